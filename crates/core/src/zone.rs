//! The zone: blocks of frames of one order, who occupies each, and the lists that reclaim works on.
//!
//! A block is in one place at a time:
//! - *absent*: it has no memory (never had, or it was given back to the kernel);
//! - *free*: it has memory and no owner;
//! - *held*: taken, on no list (being filled, or isolated by whoever works on it);
//! - *active*, *inactive*, *laundry*, *standby*: taken and on that list. Active and inactive folios are mapped, the
//!   others are not;
//! - *leaving*: taken out by [`Zone::take_surplus`], its memory on the way back to the kernel.
//!
//! Invariants, with every block counted in one place only:
//! `populated = free + held + active + inactive + laundry + standby + leaving`, and blocks are taken only while
//! `populated - leaving - free < limit`, fresh ones only while `populated < limit`.
//!
//! **Locking.** One mutex for all of it, a leaf, held for a few stores ([`Zone::balance`]: for as many moves as the
//! lists need). Nothing allocates after [`Zone::new`], because fault handlers call this from a signal handler.

use crate::id::{FolioId, FrameId, SlotId};
use crate::order::Order;
use crate::sync::{Mutex, MutexGuard, lock};

const NONE: u32 = u32::MAX;

/// How many free blocks are few, in blocks.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Watermarks {
    /// Kept for reclaim itself; who faults reclaims directly before going below.
    pub min: usize,
    /// Background reclaim starts below this.
    pub low: usize,
    /// Background reclaim stops at this.
    pub high: usize,
}

impl Watermarks {
    /// The watermarks of a zone of `nr_blocks`: 1/64, 1/16 and 1/8 of it, at least 2, 4 and 6, and always less than half.
    pub fn for_blocks(nr_blocks: usize) -> Watermarks {
        let most = nr_blocks.saturating_sub(1) / 2;
        Watermarks {
            min: (nr_blocks / 64).max(2).min(most),
            low: (nr_blocks / 16).max(4).min(most),
            high: (nr_blocks / 8).max(6).min(most),
        }
    }
}

/// The lists a taken block can be on.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum List {
    /// Mapped and touched again since it came.
    Active,
    /// Mapped; next to be unmapped.
    Inactive,
    /// In RAM at its home, not mapped, not known to be clean: next to be written. A fault here saves that write.
    Laundry,
    /// In RAM at its home, not mapped; its content also in its slots, or all zero.
    Standby,
}

/// A block that was taken.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Taken {
    /// The block.
    pub frame: FrameId,
    /// It has no memory yet: the first touch will make the kernel find some.
    pub fresh: bool,
}

/// How many blocks are where.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct ZoneCounts {
    /// Blocks that could be taken now, those without memory under the limit included.
    pub free: usize,
    /// Blocks on the standby list.
    pub standby: usize,
    /// Blocks on the active list.
    pub active: usize,
    /// Blocks on the inactive list.
    pub inactive: usize,
    /// Blocks in the laundry.
    pub laundry: usize,
    /// Blocks taken: on a list or held.
    pub in_use: usize,
    /// Blocks that may be in use.
    pub limit: usize,
    /// Blocks that have memory.
    pub populated: usize,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
enum Place {
    Absent,
    Free,
    Held,
    Active,
    Inactive,
    Laundry,
    Standby,
    Leaving,
}

impl Place {
    const NR: usize = 8;

    fn list(self) -> Option<List> {
        match self {
            Place::Active => Some(List::Active),
            Place::Inactive => Some(List::Inactive),
            Place::Laundry => Some(List::Laundry),
            Place::Standby => Some(List::Standby),
            _ => None,
        }
    }

    /// Blocks in this place are linked with each other.
    fn linked(self) -> bool {
        !matches!(self, Place::Held | Place::Leaving)
    }

    fn taken(self) -> bool {
        matches!(self, Place::Held | Place::Active | Place::Inactive | Place::Laundry | Place::Standby)
    }
}

impl From<List> for Place {
    fn from(list: List) -> Place {
        match list {
            List::Active => Place::Active,
            List::Inactive => Place::Inactive,
            List::Laundry => Place::Laundry,
            List::Standby => Place::Standby,
        }
    }
}

#[derive(Copy, Clone)]
struct Record {
    prev: u32,
    next: u32,
    owner: u32,
    slot: u32,
    place: Place,
}

const _: () = assert!(size_of::<Record>() <= 24, "a block's record takes 24 bytes at most");

/// A doubly linked list through the records. New blocks come in at the head; the oldest leave from the tail.
#[derive(Copy, Clone)]
struct Ends {
    head: u32,
    tail: u32,
    len: usize,
}

impl Ends {
    const EMPTY: Ends = Ends { head: NONE, tail: NONE, len: 0 };
}

/// What the mutex guards.
struct Blocks {
    /// Blocks that were taken at least once. Pushed to within its capacity only, so the memory of the rest of it is not
    /// even touched.
    records: Vec<Record>,
    nr_blocks_max: usize,
    limit: usize,
    /// One for each place; those of held and leaving blocks count only.
    ends: [Ends; Place::NR],
}

impl Blocks {
    fn count(&self, place: Place) -> usize {
        self.ends[place as usize].len
    }

    fn in_use(&self) -> usize {
        [Place::Held, Place::Active, Place::Inactive, Place::Laundry, Place::Standby]
            .map(|p| self.count(p))
            .iter()
            .sum()
    }

    fn populated(&self) -> usize {
        self.in_use() + self.count(Place::Free) + self.count(Place::Leaving)
    }

    /// Blocks that [`Zone::take`] could give.
    fn free(&self) -> usize {
        let under_limit = self.limit.saturating_sub(self.in_use());
        let fresh = self.limit.saturating_sub(self.populated());
        under_limit.min(self.count(Place::Free) + fresh)
    }

    fn record(&mut self, frame: FrameId) -> &mut Record {
        &mut self.records[frame.index()]
    }

    /// The record of a block that is taken.
    fn taken(&mut self, frame: FrameId) -> &mut Record {
        let record = self.record(frame);
        assert!(record.place.taken(), "{frame:?} is {:?}, not taken", record.place);
        record
    }

    fn detach(&mut self, frame: u32) -> Place {
        let Record { prev, next, place, .. } = self.records[frame as usize];
        if place.linked() {
            match prev {
                NONE => self.ends[place as usize].head = next,
                _ => self.records[prev as usize].next = next,
            }
            match next {
                NONE => self.ends[place as usize].tail = prev,
                _ => self.records[next as usize].prev = prev,
            }
        }
        self.ends[place as usize].len -= 1;
        place
    }

    fn attach_head(&mut self, frame: u32, place: Place) {
        let ends = &mut self.ends[place as usize];
        ends.len += 1;
        let mut next = NONE;
        if place.linked() {
            next = std::mem::replace(&mut ends.head, frame);
            match next {
                NONE => ends.tail = frame,
                _ => self.records[next as usize].prev = frame,
            }
        }
        let record = &mut self.records[frame as usize];
        (record.prev, record.next, record.place) = (NONE, next, place);
    }

    fn attach_tail(&mut self, frame: u32, place: Place) {
        assert!(place.linked());
        let ends = &mut self.ends[place as usize];
        ends.len += 1;
        let prev = std::mem::replace(&mut ends.tail, frame);
        match prev {
            NONE => ends.head = frame,
            _ => self.records[prev as usize].next = frame,
        }
        let record = &mut self.records[frame as usize];
        (record.prev, record.next, record.place) = (prev, NONE, place);
    }

    fn transfer(&mut self, frame: u32, place: Place) -> Place {
        let before = self.detach(frame);
        self.attach_head(frame, place);
        before
    }

    fn disown(&mut self, frame: FrameId) {
        let record = self.record(frame);
        (record.owner, record.slot) = (NONE, NONE);
    }

    /// A block without memory: one that was given back, else one never used.
    fn fresh(&mut self) -> Option<u32> {
        let Ends { head, .. } = self.ends[Place::Absent as usize];
        if head != NONE {
            self.transfer(head, Place::Held);
            return Some(head);
        }
        if self.records.len() == self.nr_blocks_max {
            return None;
        }
        let frame = self.records.len() as u32;
        assert!(self.records.len() < self.records.capacity(), "the records never move");
        self.records.push(Record { prev: NONE, next: NONE, owner: NONE, slot: NONE, place: Place::Held });
        self.ends[Place::Held as usize].len += 1;
        Some(frame)
    }

    fn counts(&self) -> ZoneCounts {
        ZoneCounts {
            free: self.free(),
            standby: self.count(Place::Standby),
            active: self.count(Place::Active),
            inactive: self.count(Place::Inactive),
            laundry: self.count(Place::Laundry),
            in_use: self.in_use(),
            limit: self.limit,
            populated: self.populated(),
        }
    }

    fn verify(&self) {
        let mut found = [0; Place::NR];
        for record in &self.records {
            found[record.place as usize] += 1;
            assert!(record.place.taken() || (record.owner == NONE && record.slot == NONE));
        }
        for place in [Place::Absent, Place::Free, Place::Active, Place::Inactive, Place::Laundry, Place::Standby] {
            let ends = self.ends[place as usize];
            let (mut at, mut prev, mut len) = (ends.head, NONE, 0);
            while at != NONE {
                let record = self.records[at as usize];
                assert_eq!((record.place, record.prev), (place, prev), "the links of block {at}");
                (prev, at, len) = (at, record.next, len + 1);
                assert!(len <= self.records.len(), "the list {place:?} has a loop");
            }
            assert_eq!((ends.tail, ends.len), (prev, len), "the end of the list {place:?}");
        }
        assert_eq!(found, self.ends.map(|ends| ends.len), "blocks in each place");
        assert!(self.records.len() <= self.nr_blocks_max);
    }
}

/// The blocks of frames of one arena.
pub struct Zone {
    order: Order,
    blocks: Mutex<Blocks>,
}

impl Zone {
    /// A zone of blocks of `order`, at most `nr_blocks_max` ever; the limit is 0 until [`Zone::set_limit`]. Reserves 20
    /// bytes a block, which the kernel backs only as blocks are taken for the first time.
    pub fn new(order: Order, nr_blocks_max: usize) -> Self {
        assert!(nr_blocks_max < NONE as usize, "the index of a block fits 32 bits");
        let records = Vec::with_capacity(nr_blocks_max);
        Zone { order, blocks: Mutex::new(Blocks { records, nr_blocks_max, limit: 0, ends: [Ends::EMPTY; Place::NR] }) }
    }

    /// The order of the blocks.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Blocks that the zone can ever have.
    pub fn nr_blocks_max(&self) -> usize {
        self.lock().nr_blocks_max
    }

    /// How many blocks may be in use (the budget). Below what is in use, nothing is taken until enough blocks are given
    /// back; [`Zone::take_surplus`] then finds the ones whose memory has to go. Panics above `nr_blocks_max`.
    pub fn set_limit(&self, nr_blocks: usize) {
        let mut blocks = self.lock();
        assert!(nr_blocks <= blocks.nr_blocks_max, "the zone has room for {} blocks", blocks.nr_blocks_max);
        blocks.limit = nr_blocks;
    }

    /// Takes a block if more than `reserve` are free; one that has memory rather than a fresh one. The most recently
    /// freed comes first. It is then held, without owner.
    pub fn take(&self, reserve: usize) -> Option<Taken> {
        let mut blocks = self.lock();
        if blocks.free() <= reserve {
            return None;
        }
        let head = blocks.ends[Place::Free as usize].head;
        if head != NONE {
            blocks.transfer(head, Place::Held);
            return Some(Taken { frame: FrameId::new(head), fresh: false });
        }
        blocks.fresh().map(|frame| Taken { frame: FrameId::new(frame), fresh: true })
    }

    /// Frees a taken block that has memory, and forgets its owner and slot. It may be on a list.
    pub fn give(&self, frame: FrameId) {
        let mut blocks = self.lock();
        blocks.taken(frame);
        blocks.disown(frame);
        blocks.transfer(frame.get(), Place::Free);
    }

    /// Frees a taken block, or one from [`Zone::take_surplus`], that has no memory (any more).
    pub fn give_unpopulated(&self, frame: FrameId) {
        let mut blocks = self.lock();
        let place = blocks.record(frame).place;
        assert!(place.taken() || place == Place::Leaving, "{frame:?} is {place:?}, not taken");
        blocks.disown(frame);
        blocks.transfer(frame.get(), Place::Absent);
    }

    /// How many blocks have memory beyond the limit, those not counted whose memory is being given back.
    pub fn surplus(&self) -> usize {
        let blocks = self.lock();
        (blocks.populated() - blocks.count(Place::Leaving)).saturating_sub(blocks.limit)
    }

    /// A free block beyond the limit. The caller gives its memory back to the kernel and then calls
    /// [`Zone::give_unpopulated`]. Nothing when no block is beyond the limit or none of them is free yet.
    pub fn take_surplus(&self) -> Option<FrameId> {
        let mut blocks = self.lock();
        let staying = blocks.populated() - blocks.count(Place::Leaving);
        // The coldest of the free ones: the one freed first.
        let tail = blocks.ends[Place::Free as usize].tail;
        if staying <= blocks.limit || tail == NONE {
            return None;
        }
        blocks.transfer(tail, Place::Leaving);
        Some(FrameId::new(tail))
    }

    /// Says which folio occupies a taken block, and which slot holds that folio's last written content.
    pub fn set_owner(&self, frame: FrameId, folio: FolioId, slot: Option<SlotId>) {
        assert!(folio.get() != NONE);
        let mut blocks = self.lock();
        let record = blocks.taken(frame);
        (record.owner, record.slot) = (folio.get(), pack_slot(slot));
    }

    /// The folio in a block; nothing when the block is free or nobody's yet.
    pub fn owner(&self, frame: FrameId) -> Option<FolioId> {
        let blocks = self.lock();
        blocks.records.get(frame.index()).map(|record| record.owner).filter(|&owner| owner != NONE).map(FolioId::new)
    }

    /// The slot of the folio in a block.
    pub fn slot(&self, frame: FrameId) -> Option<SlotId> {
        let blocks = self.lock();
        blocks.records.get(frame.index()).map(|record| record.slot).filter(|&slot| slot != NONE).map(SlotId::new)
    }

    /// Says which slot the folio in a taken block has.
    pub fn set_slot(&self, frame: FrameId, slot: Option<SlotId>) {
        self.lock().taken(frame).slot = pack_slot(slot);
    }

    /// Puts a taken block at the head of a list, from wherever it was: the last to be reclaimed from it.
    pub fn insert(&self, frame: FrameId, list: List) {
        let mut blocks = self.lock();
        blocks.taken(frame);
        blocks.transfer(frame.get(), list.into());
    }

    /// Puts a taken block at the tail of a list, from wherever it was: the next to be reclaimed from it.
    pub fn insert_tail(&self, frame: FrameId, list: List) {
        let mut blocks = self.lock();
        blocks.taken(frame);
        blocks.detach(frame.get());
        blocks.attach_tail(frame.get(), list.into());
    }

    /// The list on which a block is, if any.
    pub fn list(&self, frame: FrameId) -> Option<List> {
        self.lock().record(frame).place.list()
    }

    /// The block at the tail of a list, and its folio. It stays there: the caller locks the folio's entry and looks
    /// whether it still occupies the block and the block is still on the list.
    pub fn oldest(&self, list: List) -> Option<(FrameId, FolioId)> {
        let blocks = self.lock();
        let tail = blocks.ends[Place::from(list) as usize].tail;
        let owner = blocks.records.get(tail as usize)?.owner;
        assert!(owner != NONE, "a block on a list has an owner");
        Some((FrameId::new(tail), FolioId::new(owner)))
    }

    /// Puts a block at the head of the list on which it is, if it is still on that one: it is busy, look at another.
    pub fn rotate(&self, frame: FrameId, list: List) {
        let mut blocks = self.lock();
        if blocks.record(frame).place == list.into() {
            blocks.transfer(frame.get(), list.into());
        }
    }

    /// Takes a block off its list and away from its folio: it is held, by the caller, with the memory it has.
    pub fn disown(&self, frame: FrameId) {
        let mut blocks = self.lock();
        blocks.taken(frame);
        blocks.disown(frame);
        blocks.transfer(frame.get(), Place::Held);
    }

    /// Says that another folio occupies a block now; its slot and list stay.
    pub fn change_owner(&self, frame: FrameId, folio: FolioId) {
        self.lock().taken(frame).owner = folio.get();
    }

    /// All blocks that were ever taken.
    pub fn all_frames(&self) -> impl Iterator<Item = FrameId> + use<> {
        let count = self.lock().records.len() as u32;
        (0..count).map(FrameId::new)
    }

    /// Takes a taken block off the list it is on, and says which; nothing when it is on none. It is held then.
    pub fn remove(&self, frame: FrameId) -> Option<List> {
        let mut blocks = self.lock();
        blocks.taken(frame);
        blocks.transfer(frame.get(), Place::Held).list()
    }

    /// Moves the oldest active blocks to the head of the inactive list until that holds a third of the mapped blocks.
    pub fn balance(&self) {
        let mut blocks = self.lock();
        let mapped = blocks.count(Place::Active) + blocks.count(Place::Inactive);
        while blocks.count(Place::Inactive) < mapped.div_ceil(3) {
            let tail = blocks.ends[Place::Active as usize].tail;
            blocks.transfer(tail, Place::Inactive);
        }
    }

    /// How many blocks are where.
    pub fn counts(&self) -> ZoneCounts {
        self.lock().counts()
    }

    /// Blocks that can be had without a write: free ones, those without memory under the limit, standby ones.
    pub fn available(&self) -> usize {
        let blocks = self.lock();
        blocks.free() + blocks.count(Place::Standby)
    }

    /// The watermarks of the present limit.
    pub fn watermarks(&self) -> Watermarks {
        Watermarks::for_blocks(self.lock().limit)
    }

    /// Bytes of memory for the records in use.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.lock().records.len() * size_of::<Record>()
    }

    /// Checks every record and every link; for tests. Panics at the first one that is wrong.
    pub fn verify(&self) {
        self.lock().verify();
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        lock(&self.blocks)
    }
}

impl std::fmt::Debug for Zone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zone").field("order", &self.order).field("counts", &self.counts()).finish()
    }
}

fn pack_slot(slot: Option<SlotId>) -> u32 {
    slot.map_or(NONE, |slot| {
        assert!(slot.get() != NONE);
        slot.get()
    })
}
