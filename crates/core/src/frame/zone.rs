//! The zone: the frames of one node behind one mutex, with per-CPU lists of free frames in front of it (`percpu`).
//!
//! Invariants, in frames: `populated = free + listed + held + active + inactive + laundry + clean + isolated +
//! leaving`. Frames are taken or isolated only while `in use + listed + isolated + 2^order <= limit`, pageblocks
//! without memory only while `populated < limit`. A whole pageblock handed out to be carved counts as in use until it
//! is carved. In a zone with a surplus, use may therefore exceed the limit for that time, by less than a pageblock.
//!
//! **Locking.** One mutex, a leaf, held for a few stores. [`Zone::balance`] holds it for as many moves as the lists
//! need; [`Zone::split`], the walks and the first take of a pageblock for at most 512 records. Only [`Zone::new`] and
//! [`Zone::set_limit`] allocate, because fault handlers call the rest from a signal handler.

use super::buddy::{BLOCK, Buddy, Memory, Taken};
use super::counts::{Contiguity, ZoneCounts};
use super::cpu_lists::{CpuLists, Paused};
use super::frames::Frames;
use super::lists::{FrameState, List, Lists, Oldest, Record, Records, Size};
use super::pageblocks::Pageblocks;
use super::verify::verify;
use crate::id::{CpuId, FolioId, FrameId};
use crate::order::Order;
use crate::sync::{Mark, Mutex, MutexGuard, lock};
use std::ops::Range;

/// The frames of one NUMA node.
pub struct Zone {
    first: FrameId,
    frames: Mutex<Frames>,
    cpus: CpuLists,
}

impl Zone {
    /// Bytes of metadata per frame.
    pub const RECORD_BYTES: usize = size_of::<Record>() + size_of::<Mark>();

    /// A zone that can grow to these pageblocks, numbered across all zones, with lists for `nr_cpus` CPUs (CPUs beyond
    /// that share them; 0: no lists) that hold at most 1/`share` of the limit together. The limit is 0 until
    /// [`Zone::set_limit`]. Reserves 20 bytes per frame of address space; the kernel backs it only as pageblocks are
    /// taken for the first time.
    pub fn new(pageblocks: Range<usize>, nr_cpus: usize, share: usize) -> Self {
        let first = u32::try_from(pageblocks.start * BLOCK).expect("the number of a frame fits 32 bits");
        let nr_frames = pageblocks.len().checked_mul(BLOCK).expect("the number of a frame fits 32 bits");
        let records = Records::beginning_at(first, nr_frames);
        let buddy = Buddy::new(first, pageblocks.len());
        let frames = Frames { records, buddy, lists: Lists::new(), limit: 0, kept_whole: 0, cursor: 0 };
        Zone {
            first: FrameId::new(first),
            frames: Mutex::new(frames),
            cpus: CpuLists::new(first, nr_frames, nr_cpus, share),
        }
    }

    /// Its first frame.
    pub fn first_frame(&self) -> FrameId {
        self.first
    }

    /// Its pageblocks.
    pub fn pageblocks(&self) -> Pageblocks<'_> {
        Pageblocks::of(&self.frames)
    }

    /// Sets how many frames may be in use (the budget), rounded down to whole pageblocks. While more are in use,
    /// nothing is taken until enough is freed; [`Pageblocks::take_surplus`] then finds the pageblocks whose memory has
    /// to go. Panics if the limit is above what the zone can ever have.
    pub fn set_limit(&self, nr_frames: usize) {
        let (nr_blocks, nr_blocks_max) = (nr_frames / BLOCK, self.lock().buddy.nr_blocks_max);
        assert!(nr_blocks <= nr_blocks_max, "the zone has {nr_blocks_max} pageblocks");
        self.cpus.resize(nr_blocks * BLOCK, &self.frames);
        self.lock().limit = nr_blocks * BLOCK;
        self.drain();
    }

    /// Sets how many wholly free pageblocks are kept for whole folios: small folios do not break them.
    pub fn keep_whole(&self, nr_pageblocks: usize) {
        self.lock().kept_whole = nr_pageblocks;
    }

    /// Takes 2^order frames if at least `reserve` free frames remain, the most recently freed first. The frames are
    /// then held, without owner. If there is no run, drains the CPU lists and tries once more.
    ///
    /// A whole pageblock comes with a huge page if possible, else without memory, else with small pages; the caller
    /// gives it a huge page unless [`Taken::memory`] says that it has one. A smaller folio gets the smallest sufficient
    /// run in small pages. If there is none, it gets a WHOLE pageblock (order 9) without memory, or else one with a
    /// huge page; the caller gives it small pages and calls [`Zone::carve`]. A pageblock taken whole counts as
    /// [`Memory::Huge`] until it is carved or split.
    pub fn take(&self, order: Order, reserve: usize) -> Option<Taken> {
        let taken = self.lock().take_if_left(order, reserve);
        taken.or_else(|| {
            if self.cpus.nr_frames() == 0 {
                return None;
            }
            self.drain();
            self.lock().take_if_left(order, reserve)
        })
    }

    /// Takes 2^order frames from this CPU's list, without the zone's lock. They are then held, without owner.
    pub fn take_listed(&self, cpu: CpuId, order: Order) -> Option<Taken> {
        self.cpus.take(cpu, order)
    }

    /// Like [`Zone::take`] without a reserve, but from this CPU's list if it can.
    pub fn take_on(&self, cpu: CpuId, order: Order) -> Option<Taken> {
        self.cpus.take_or_refill(cpu, order, &self.frames).or_else(|| self.take(order, 0))
    }

    /// Records that a held whole pageblock has small pages now. Its first 2^order frames stay taken and are returned;
    /// the rest is free.
    pub fn carve(&self, block: FrameId, order: Order) -> FrameId {
        let frames = &mut *self.lock();
        assert_eq!(frames.records.taken(block).place, FrameState::Held, "what is carved is on no list");
        frames.buddy.carve(&mut frames.records, block.get(), order);
        block
    }

    /// The kind of memory of a frame's pageblock. With a huge page, the frame may be mapped at the address of a whole
    /// folio.
    pub fn memory(&self, frame: FrameId) -> Memory {
        self.lock().buddy.memory(frame.get())
    }

    /// Frees a taken folio's frames, which have memory, and clears its owner. The folio may be on a list. Merges the
    /// frames with free buddies at once.
    pub fn give(&self, frame: FrameId) {
        let frames = &mut *self.claim(frame);
        frames.disown(frame);
        frames.buddy.give(&mut frames.records, frame.get());
    }

    /// Like [`Zone::give`], but puts the frames on this CPU's list if it can. Frames with an owner lose it under the
    /// zone's lock. Frames without owner since [`Zone::take_on`] or [`Zone::take_listed`] need no zone lock.
    pub fn give_on(&self, cpu: CpuId, frame: FrameId) {
        if !self.cpus.give(cpu, frame, &self.frames) {
            self.give(frame);
        }
    }

    /// Gives the frames on all CPU lists back to the buddy, one CPU at a time.
    pub fn drain(&self) {
        self.cpus.drain(&self.frames);
    }

    /// Drains the lists and keeps them empty, for callers that want pageblocks to become whole.
    pub fn pause_cpus(&self) -> Paused<'_> {
        self.cpus.pause(&self.frames)
    }

    /// The first frames of the runs on a CPU's list of an order, the next to be taken last; for tests.
    pub fn listed_on(&self, cpu: CpuId, order: Order) -> Vec<FrameId> {
        self.cpus.listed_on(cpu, order)
    }

    /// Splits a taken folio into folios of `order`, each owned by the folio at its offset. They are held if the folio
    /// was held. Otherwise they go on the same list: in its place, or, on the lists of the other class, at the tail if
    /// they are the oldest there and else at the head. The pageblock counts as [`Memory::Small`].
    pub fn split(&self, frame: FrameId, order: Order) {
        let frames = &mut *self.claim(frame);
        frames.records.taken(frame);
        frames.lists.split(&mut frames.records, frame.get(), order);
        frames.buddy.divide(frame.get());
    }

    /// Sets the folio that occupies taken frames.
    pub fn set_owner(&self, frame: FrameId, folio: FolioId) {
        self.claim(frame).set_owner(frame, folio);
    }

    /// The folio whose first frame this is; `None` when the frame is free or has no owner yet.
    pub fn owner(&self, frame: FrameId) -> Option<FolioId> {
        let frames = self.lock();
        frames.records.get(frame).and_then(|record| record.owner.get()).map(FolioId::new)
    }

    /// Takes frames off their list and clears their owner. The caller then holds them, with their memory.
    pub fn disown(&self, frame: FrameId) {
        let frames = &mut *self.claim(frame);
        frames.disown(frame);
    }

    /// The order of the taken folio whose first frame this is.
    pub fn order(&self, frame: FrameId) -> Option<Order> {
        let frames = self.lock();
        let taken =
            frames.records.get(frame).filter(|record| record.place.taken() && !self.cpus.marks().is_listed(frame));
        taken.map(|record| record.order)
    }

    /// Moves a taken folio, which has an owner, to the head of a list: it is reclaimed last from there.
    pub fn insert(&self, frame: FrameId, list: List) {
        self.lock().move_to(frame, list);
    }

    /// The same for a folio that may not own the frames yet.
    pub fn insert_for(&self, folio: FolioId, frame: FrameId, list: List) {
        let frames = &mut *self.claim(frame);
        frames.set_owner(frame, folio);
        frames.move_to(frame, list);
    }

    /// Moves a taken folio, which has an owner, to the tail of a list: it is reclaimed next from there. Its age becomes
    /// that of the oldest folio of either class on that list.
    pub fn insert_tail(&self, frame: FrameId, list: List) {
        let frames = &mut *self.lock();
        frames.records.taken(frame);
        frames.lists.remove(&mut frames.records, frame.get());
        frames.lists.insert_tail(&mut frames.records, frame.get(), list);
    }

    /// Takes a taken folio off its list and returns the list; `None` if it was on none. The folio is then held.
    pub fn remove(&self, frame: FrameId) -> Option<List> {
        let frames = &mut *self.lock();
        frames.records.taken(frame);
        frames.lists.remove(&mut frames.records, frame.get())
    }

    /// The list of the folio whose first frame this is, if any.
    pub fn list(&self, frame: FrameId) -> Option<List> {
        self.lock().records.get(frame).and_then(|record| record.place.list())
    }

    /// Moves a busy folio to the head of its list, if it is still on that list, so that reclaim tries another one next.
    pub fn rotate(&self, frame: FrameId, list: List) {
        let frames = &mut *self.lock();
        if frames.records[frame.get()].place.list() == Some(list) {
            frames.move_to(frame, list);
        }
    }

    /// The folio at the tail of a list. It stays there: the caller locks the folio's entry and checks whether the folio
    /// still occupies the frames and is still on the list.
    pub fn oldest(&self, size: Size, list: List) -> Option<Oldest> {
        let frames = self.lock();
        frames.lists.oldest(&frames.records, size, list)
    }

    /// Moves the oldest active folios of a class to the head of its inactive list until that list holds a third of the
    /// mapped folios of the class.
    pub fn balance(&self, size: Size) {
        let frames = &mut *self.lock();
        let len = |lists: &Lists, list| lists.of(size, list).chain.len;
        let mapped = len(&frames.lists, List::Active) + len(&frames.lists, List::Inactive);
        while len(&frames.lists, List::Inactive) < mapped.div_ceil(3) {
            let tail = frames.lists.of(size, List::Active).chain.tail;
            frames.lists.remove(&mut frames.records, tail);
            frames.lists.insert(&mut frames.records, tail, List::Inactive);
        }
    }

    /// Frame counts by state, and what follows from them, as a snapshot under one lock.
    pub fn counts(&self) -> ZoneCounts {
        let frames = self.lock();
        frames.counts(self.cpus.nr_frames())
    }

    /// Whether frames of this order are available, as a snapshot under one lock.
    pub fn contiguity(&self, order: Order) -> Contiguity {
        let frames = self.lock();
        match frames.free() >= order.nr_pages() {
            true if frames.has_run(order) => Contiguity::Run,
            true => Contiguity::Pieces,
            false => Contiguity::Few,
        }
    }

    /// Free runs of this order or larger, including pageblocks without memory under the limit. Ignores how many frames
    /// may still be taken; frames on CPU lists are in no run.
    pub fn free_runs(&self, order: Order) -> usize {
        let frames = self.lock();
        frames.buddy.runs_from(order) + frames.absent() / BLOCK
    }

    /// Bytes of memory for the metadata in use.
    pub fn bytes(&self) -> usize {
        let frames = self.lock();
        let blocks = std::mem::size_of_val(frames.buddy.blocks.as_slice());
        size_of::<Self>() + frames.records.len() * size_of::<Record>() + blocks + self.cpus.bytes()
    }

    /// Checks every record and every link; for tests. Panics at the first inconsistency.
    pub fn verify(&self) {
        let lists = self.cpus.lock_all();
        let frames = self.lock();
        verify(&frames);
        self.cpus.verify(&lists, &frames);
    }

    /// Locks the zone, which alone knows the frame's state from now on. Panics if the frame is on a CPU's list.
    #[track_caller]
    pub(super) fn claim(&self, frame: FrameId) -> MutexGuard<'_, Frames> {
        let frames = self.lock();
        self.cpus.marks().claim(frame);
        frames
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Frames> {
        lock(&self.frames)
    }
}

impl std::fmt::Debug for Zone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zone").field("counts", &self.counts()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::pageblocks::SCAN_LIMIT;
    use super::*;

    fn zone(nr_blocks: usize) -> Zone {
        let zone = Zone::new(0..nr_blocks, 0, 1);
        zone.set_limit(nr_blocks * BLOCK);
        zone
    }

    /// Takes frames as the engine does: carves a whole pageblock if it gets one.
    fn take(zone: &Zone, k: u8) -> FrameId {
        let order = Order::new(k).unwrap();
        let taken = zone.take(order, 0).unwrap();
        if taken.order == order { taken.frame } else { zone.carve(taken.frame, order) }
    }

    #[test]
    fn the_reserve_and_the_limit_are_kept() {
        let zone = zone(2);
        assert_eq!(zone.take(Order::HUGE, BLOCK + 1), None);
        assert!(zone.take(Order::HUGE, BLOCK).is_some());
        assert_eq!(zone.take(Order::PAGE, BLOCK), None);
        assert_eq!(zone.take(Order::PAGE, usize::MAX), None);
        zone.set_limit(2 * BLOCK - 1);
        assert_eq!((zone.counts().limit, zone.take(Order::PAGE, 0)), (BLOCK, None));
        zone.verify();
    }

    #[test]
    fn small_folios_fill_a_pageblock_before_another_is_divided() {
        let zone = zone(3);
        let huge = take(&zone, 9);
        zone.give(huge);
        let frames: Vec<_> = (0..BLOCK).map(|_| take(&zone, 0)).collect();
        assert_eq!(zone.counts().populated, 2 * BLOCK);
        assert!(frames.iter().all(|frame| frame.index() / BLOCK == frames[0].index() / BLOCK));
        // No unpopulated pageblock is left under this limit, so the huge page is divided.
        zone.set_limit(2 * BLOCK);
        let taken = zone.take(Order::PAGE, 0).unwrap();
        assert_eq!(taken, Taken { frame: huge, order: Order::HUGE, memory: Memory::Huge });
        zone.verify();
    }

    #[test]
    fn a_pageblock_whose_folios_are_gone_serves_either_kind() {
        let zone = zone(1);
        let frame = take(&zone, 3);
        zone.give(frame);
        assert_eq!(take(&zone, 0), frame);
        zone.give(frame);
        assert_eq!(zone.take(Order::HUGE, 0).unwrap().memory, Memory::Small);
        zone.give(frame);
        assert_eq!(zone.take(Order::HUGE, 0).unwrap().memory, Memory::Huge);
        zone.verify();
    }

    #[test]
    #[should_panic(expected = "not taken")]
    fn frames_are_given_once() {
        let zone = zone(1);
        let frame = take(&zone, 0);
        zone.give(frame);
        zone.give(frame);
    }

    #[test]
    #[should_panic(expected = "Inner, not taken")]
    fn the_middle_of_a_folio_is_not_given() {
        let zone = zone(1);
        zone.give(FrameId::new(take(&zone, 4).get() + 8));
    }

    #[test]
    #[should_panic(expected = "has an owner")]
    fn nobodys_frames_are_on_no_list() {
        let zone = zone(1);
        zone.insert(take(&zone, 0), List::Active);
    }

    #[test]
    fn all_under_the_limit_can_be_given_memory_and_no_more() {
        let zone = zone(3);
        zone.set_limit(2 * BLOCK);
        let held = take(&zone, 9);
        let other = zone.pageblocks().take_absent().unwrap();
        assert_ne!(other, held);
        assert_eq!(zone.pageblocks().take_absent(), None);
        zone.give(held);
        zone.give(other);
        assert_eq!(
            (zone.pageblocks().take_absent(), zone.counts().populated, zone.free_runs(Order::HUGE)),
            (None, 2 * BLOCK, 2)
        );
        // A pageblock whose small pages could not be collapsed keeps them, whoever owns it.
        let whole = take(&zone, 9);
        zone.carve(whole, Order::HUGE);
        zone.verify();
        zone.give(whole);
        zone.verify();
        assert_eq!(zone.pageblocks().take_divided().map(|taken| taken.frame), Some(whole));
    }

    #[test]
    fn what_is_beyond_a_lowered_limit_leaves() {
        let zone = zone(2);
        let frames = [take(&zone, 9), take(&zone, 9)];
        zone.give(frames[0]);
        zone.set_limit(BLOCK);
        assert_eq!((zone.counts().surplus, zone.take(Order::PAGE, 0)), (BLOCK, None));
        assert_eq!(zone.pageblocks().take_surplus(), Some(frames[0]));
        assert_eq!((zone.counts().surplus, zone.pageblocks().take_surplus()), (0, None));
        zone.verify();
        zone.pageblocks().give_unpopulated(frames[0]);
        assert_eq!(zone.counts().populated, BLOCK);
        zone.verify();
    }

    #[test]
    fn the_coldest_leave_first_and_huge_pages_last() {
        let zone = zone(4);
        let huge = take(&zone, 9);
        let parts = [8, 9, 9].map(|k| take(&zone, k));
        zone.split(parts[1], Order::new(8).unwrap());
        zone.give(huge);
        for frame in [parts[1].get(), parts[1].get() + 256, parts[0].get(), parts[2].get()] {
            zone.give(FrameId::new(frame));
        }
        zone.set_limit(0);
        let leaving: Vec<_> = std::iter::from_fn(|| zone.pageblocks().take_surplus()).collect();
        assert_eq!(leaving, [parts[1], parts[0], huge, parts[2]]);
        zone.verify();
        leaving.into_iter().for_each(|frame| zone.pageblocks().give_unpopulated(frame));
        assert_eq!((zone.counts().populated, zone.counts().surplus), (0, 0));
        zone.verify();
    }

    #[test]
    fn the_emptiest_pageblock_is_found_and_its_folios_named() {
        let zone = zone(SCAN_LIMIT + 2);
        assert_eq!(zone.pageblocks().emptiest(), None);
        for _ in 0..SCAN_LIMIT + 1 {
            take(&zone, 9);
        }
        let frame = take(&zone, 2);
        zone.set_owner(frame, FolioId::new(40));
        zone.insert(frame, List::Active);
        zone.split(frame, Order::new(1).unwrap());
        // Not among the first 64 pageblocks, but among the next.
        assert_eq!(zone.pageblocks().nr_looks(), 2);
        assert_eq!((zone.pageblocks().emptiest(), zone.pageblocks().emptiest()), (None, Some(frame)));
        let mut found = Vec::new();
        zone.pageblocks()
            .folios_in(frame, &mut |at, folio, order| found.push((at.get() - frame.get(), folio.get(), order.bytes())));
        assert_eq!(found, [(0, 40, 8192), (2, 42, 8192)]);
        assert_eq!(zone.pageblocks().all_folios().count(), 2);
        zone.verify();
    }

    #[test]
    #[should_panic(expected = "only whole pageblocks")]
    fn a_part_of_a_pageblock_keeps_its_memory() {
        let zone = zone(1);
        zone.pageblocks().give_unpopulated(take(&zone, 4));
    }
}
