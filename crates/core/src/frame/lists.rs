//! The records of the frames, their links, and the lists of taken folios that reclaim works on.
//!
//! Invariants:
//! - a record belongs to the head of a run or of a folio, or is [`FrameState::Inner`] and carries nothing else;
//! - only taken heads have owners, and every head on a list has one;
//! - a head is linked into at most one chain: that of its free runs, or that of its list;
//! - inserting at the head of a list stamps the folio with the zone's clock, which counts inserted frames. A list is
//!   therefore sorted by stamp from head to tail, and the tails of two lists can be compared.
//!
//! **Locking.** None here: the zone's mutex guards all of it.

use crate::id::{FolioId, FrameId};
use crate::order::Order;
use crate::packed::Packed;
use std::ops::{Index, IndexMut};

pub(super) const NONE: u32 = u32::MAX;

/// The two classes of folios; each has its own set of lists.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Size {
    /// Folios that take a whole pageblock.
    Whole,
    /// All smaller folios.
    Small,
}

impl Size {
    /// Both classes.
    pub const ALL: [Size; 2] = [Size::Whole, Size::Small];

    /// The class of folios of this order.
    pub fn of(order: Order) -> Size {
        if order == Order::HUGE { Size::Whole } else { Size::Small }
    }
}

/// The lists that a taken folio can be on.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum List {
    /// Mapped, and touched again since it was read in.
    Active,
    /// Mapped; next to be unmapped.
    Inactive,
    /// In its home frames, not mapped, not known to be clean: next to be written. A fault here saves that write.
    Laundry,
    /// In its home frames, not mapped, and its slots hold a valid copy.
    Clean,
}

impl List {
    pub(super) const ALL: [List; 4] = [List::Active, List::Inactive, List::Laundry, List::Clean];
}

/// The folio at the tail of a list.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Oldest {
    /// Its first frame.
    pub frame: FrameId,
    /// The folio.
    pub folio: FolioId,
    /// Its order.
    pub order: Order,
    /// Frames inserted at the head of any list since this folio was; wraps after 16 TiB.
    pub age: u32,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum FrameState {
    /// Part of the run or folio whose head lies before it.
    Inner,
    Absent,
    Free,
    Held,
    On(List),
    /// A free run, or a part of one, that compaction took out.
    Isolated,
    Leaving,
}

impl FrameState {
    pub(super) fn taken(self) -> bool {
        matches!(self, FrameState::Held | FrameState::On(_))
    }

    pub(super) fn list(self) -> Option<List> {
        match self {
            FrameState::On(list) => Some(list),
            _ => None,
        }
    }
}

#[derive(Copy, Clone)]
pub(super) struct Record {
    /// Towards the head of the chain, where the newest are.
    pub prev: u32,
    /// Towards the tail of the chain.
    pub next: u32,
    pub owner: Packed,
    pub stamp: u32,
    pub order: Order,
    pub place: FrameState,
}

const _: () = assert!(size_of::<Record>() <= 20, "a frame's record takes 20 bytes at most");

impl Record {
    pub(super) const INNER: Record =
        Record { prev: NONE, next: NONE, owner: Packed::NONE, stamp: 0, order: Order::PAGE, place: FrameState::Inner };
}

/// The records of all frames that were used at least once. Grows within its capacity only, so memory for the rest is
/// never touched.
pub(super) struct Records {
    /// The frame of the first record.
    first: u32,
    all: Vec<Record>,
}

impl Records {
    #[cfg(test)]
    pub(super) fn with_capacity(nr_frames: usize) -> Records {
        Records::beginning_at(0, nr_frames)
    }

    pub(super) fn beginning_at(first: u32, nr_frames: usize) -> Records {
        assert!(nr_frames < (NONE - first) as usize, "the number of a frame fits 32 bits");
        Records { first, all: Vec::with_capacity(nr_frames) }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The frame after the last record.
    pub(super) fn end(&self) -> u32 {
        self.first + self.all.len() as u32
    }

    /// Adds records, all of them inner, for frames that were never used.
    pub(super) fn grow(&mut self, nr_frames: usize) {
        assert!(self.all.len() + nr_frames <= self.all.capacity(), "the records never move");
        self.all.resize(self.all.len() + nr_frames, Record::INNER);
    }

    pub(super) fn get(&self, frame: FrameId) -> Option<&Record> {
        self.all.get(frame.get().checked_sub(self.first)? as usize)
    }

    /// The record of a taken folio's head.
    #[track_caller]
    pub(super) fn taken(&mut self, frame: FrameId) -> &mut Record {
        let record = &mut self[frame.get()];
        assert!(record.place.taken(), "{frame:?} is {:?}, not taken", record.place);
        record
    }
}

impl Index<u32> for Records {
    type Output = Record;

    #[inline]
    fn index(&self, frame: u32) -> &Record {
        &self.all[(frame - self.first) as usize]
    }
}

impl IndexMut<u32> for Records {
    #[inline]
    fn index_mut(&mut self, frame: u32) -> &mut Record {
        &mut self.all[(frame - self.first) as usize]
    }
}

/// A doubly linked list of heads through their records. New heads enter at the head; the oldest leave from the tail.
#[derive(Copy, Clone)]
pub(super) struct Chain {
    pub head: u32,
    pub tail: u32,
    pub len: usize,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain { head: NONE, tail: NONE, len: 0 };

    pub(super) fn push_head(&mut self, records: &mut Records, frame: u32) {
        let next = std::mem::replace(&mut self.head, frame);
        match next {
            NONE => self.tail = frame,
            _ => records[next].prev = frame,
        }
        let record = &mut records[frame];
        (record.prev, record.next) = (NONE, next);
        self.len += 1;
    }

    pub(super) fn push_tail(&mut self, records: &mut Records, frame: u32) {
        let prev = std::mem::replace(&mut self.tail, frame);
        match prev {
            NONE => self.head = frame,
            _ => records[prev].next = frame,
        }
        let record = &mut records[frame];
        (record.prev, record.next) = (prev, NONE);
        self.len += 1;
    }

    /// Links `frame` in before `at`, on its newer side.
    fn push_before(&mut self, records: &mut Records, frame: u32, at: u32) {
        let prev = std::mem::replace(&mut records[at].prev, frame);
        match prev {
            NONE => self.head = frame,
            _ => records[prev].next = frame,
        }
        let record = &mut records[frame];
        (record.prev, record.next) = (prev, at);
        self.len += 1;
    }

    pub(super) fn unlink(&mut self, records: &mut Records, frame: u32) {
        let Record { prev, next, .. } = records[frame];
        match prev {
            NONE => self.head = next,
            _ => records[prev].next = next,
        }
        match next {
            NONE => self.tail = prev,
            _ => records[next].prev = prev,
        }
        self.len -= 1;
    }

    /// Replaces `from` by `to` in the chain.
    fn substitute(&mut self, records: &mut Records, from: u32, to: u32) {
        let Record { prev, next, .. } = records[from];
        (records[to].prev, records[to].next) = (prev, next);
        match prev {
            NONE => self.head = to,
            _ => records[prev].next = to,
        }
        match next {
            NONE => self.tail = to,
            _ => records[next].prev = to,
        }
    }

    /// The heads of the chain, newest first.
    pub(super) fn heads<'a>(&self, records: &'a Records) -> impl Iterator<Item = u32> + use<'a> {
        let linked = |head| (head != NONE).then_some(head);
        std::iter::successors(linked(self.head), move |&head| linked(records[head].next))
    }
}

/// One list of one class.
#[derive(Copy, Clone)]
pub(super) struct Folios {
    pub chain: Chain,
    pub nr_frames: usize,
}

/// The lists of both classes.
pub(super) struct Lists {
    classes: [[Folios; 4]; 2],
    /// Frames inserted at the head of any list so far.
    clock: u32,
}

impl Lists {
    pub(super) fn new() -> Lists {
        Lists { classes: [[Folios { chain: Chain::EMPTY, nr_frames: 0 }; 4]; 2], clock: 0 }
    }

    pub(super) fn of(&self, size: Size, list: List) -> &Folios {
        &self.classes[size as usize][list as usize]
    }

    fn of_mut(&mut self, order: Order, list: List) -> &mut Folios {
        &mut self.classes[Size::of(order) as usize][list as usize]
    }

    /// Puts a held folio at the head of a list.
    pub(super) fn insert(&mut self, records: &mut Records, frame: u32, list: List) {
        let Record { order, owner, .. } = records[frame];
        assert!(owner != Packed::NONE, "a folio on a list has an owner");
        self.clock = self.clock.wrapping_add(order.nr_pages() as u32);
        (records[frame].stamp, records[frame].place) = (self.clock, FrameState::On(list));
        let folios = self.of_mut(order, list);
        folios.chain.push_head(records, frame);
        folios.nr_frames += order.nr_pages();
    }

    /// Puts a held folio at the tail of a list, with the age of the oldest folio of either class there.
    pub(super) fn insert_tail(&mut self, records: &mut Records, frame: u32, list: List) {
        let tails = Size::ALL.map(|size| self.of(size, list).chain.tail);
        let oldest = tails.into_iter().filter(|&tail| tail != NONE).map(|tail| self.age(&records[tail])).max();
        self.append(records, frame, list, self.clock.wrapping_sub(oldest.unwrap_or(0)));
    }

    fn append(&mut self, records: &mut Records, frame: u32, list: List, stamp: u32) {
        let Record { order, owner, .. } = records[frame];
        assert!(owner != Packed::NONE, "a folio on a list has an owner");
        (records[frame].stamp, records[frame].place) = (stamp, FrameState::On(list));
        let folios = self.of_mut(order, list);
        folios.chain.push_tail(records, frame);
        folios.nr_frames += order.nr_pages();
    }

    /// Takes a taken folio off its list, if any, and returns the list. The folio is then held.
    pub(super) fn remove(&mut self, records: &mut Records, frame: u32) -> Option<List> {
        let Record { order, place, .. } = records[frame];
        let list = place.list()?;
        let folios = self.of_mut(order, list);
        folios.chain.unlink(records, frame);
        folios.nr_frames -= order.nr_pages();
        records[frame].place = FrameState::Held;
        Some(list)
    }

    /// Gives the owner, the place and the age of `from` to the held folio `to`; `from` is then held, without owner.
    pub(super) fn substitute(&mut self, records: &mut Records, from: u32, to: u32) {
        let Record { order, place, owner, stamp, .. } = records[from];
        assert_eq!((records[to].order, records[to].place), (order, FrameState::Held), "a place as large as the folio");
        if let Some(list) = place.list() {
            self.of_mut(order, list).chain.substitute(records, from, to);
        }
        (records[to].place, records[to].owner, records[to].stamp) = (place, owner, stamp);
        (records[from].place, records[from].owner) = (FrameState::Held, Packed::NONE);
    }

    /// The folio at the tail of a list.
    pub(super) fn oldest(&self, records: &Records, size: Size, list: List) -> Option<Oldest> {
        let tail = self.of(size, list).chain.tail;
        if tail == NONE {
            return None;
        }
        let record = &records[tail];
        let owner = record.owner.get().expect("a folio on a list has an owner");
        Some(Oldest {
            frame: FrameId::new(tail),
            folio: FolioId::new(owner),
            order: record.order,
            age: self.age(record),
        })
    }

    /// Splits a taken folio into folios of `order`, on the same list. Parts of the same class take its place and age.
    /// Parts of another class go to the tail with their age if they are the oldest there; else they enter as the
    /// newest, because finding their place would need a scan. The first frames are reclaimed first.
    pub(super) fn split(&mut self, records: &mut Records, frame: u32, order: Order) {
        let whole = records[frame];
        assert!(order < whole.order, "a folio of order {} has no parts of order {order}", whole.order);
        let in_place = Size::of(order) == Size::of(whole.order);
        let list = if in_place { whole.place.list() } else { self.remove(records, frame) };
        let parts = (0..whole.order.nr_pages() as u32).step_by(order.nr_pages());
        for at in parts.clone() {
            let owner = whole.owner.plus(at as usize);
            let record = &mut records[frame + at];
            (record.owner, record.order) = (owner, order);
            // The first part, if it stays in its class, keeps its links.
            if at > 0 || !in_place {
                record.place = FrameState::Held;
            }
        }
        let Some(list) = list else { return };
        if in_place {
            let chain = &mut self.of_mut(order, list).chain;
            for at in parts.skip(1) {
                chain.push_before(records, frame + at, frame + at - order.nr_pages() as u32);
                (records[frame + at].stamp, records[frame + at].place) = (whole.stamp, FrameState::On(list));
            }
            return;
        }
        let tail = self.of(Size::Small, list).chain.tail;
        if tail == NONE || self.age(&records[tail]) <= self.age(&whole) {
            parts.rev().for_each(|at| self.append(records, frame + at, list, whole.stamp));
        } else {
            parts.for_each(|at| self.insert(records, frame + at, list));
        }
    }

    fn age(&self, record: &Record) -> u32 {
        self.clock.wrapping_sub(record.stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(k: u8) -> Order {
        Order::new(k).unwrap()
    }

    fn owner_of(frame: u32) -> Packed {
        Packed::new(frame.into())
    }

    /// Records of `n` held folios of order 0, each its own owner.
    fn held(n: u32) -> Records {
        let mut records = Records::with_capacity(n as usize);
        records.grow(n as usize);
        for frame in 0..n {
            (records[frame].place, records[frame].owner) = (FrameState::Held, owner_of(frame));
        }
        records
    }

    fn from_tail(lists: &Lists, records: &Records, size: Size, list: List) -> Vec<u32> {
        let (mut found, mut at) = (Vec::new(), lists.of(size, list).chain.tail);
        while at != NONE {
            found.push(at);
            at = records[at].prev;
        }
        found
    }

    fn nr_frames(lists: &Lists, list: List) -> usize {
        Size::ALL.map(|size| lists.of(size, list).nr_frames).iter().sum()
    }

    #[test]
    fn the_tail_is_the_oldest_and_ages_count_frames() {
        let (mut records, mut lists) = (held(8), Lists::new());
        for frame in [3, 1, 2] {
            lists.insert(&mut records, frame, List::Active);
        }
        lists.insert_tail(&mut records, 7, List::Active);
        assert_eq!(from_tail(&lists, &records, Size::Small, List::Active), [7, 3, 1, 2]);
        let oldest = lists.oldest(&records, Size::Small, List::Active).unwrap();
        assert_eq!((oldest.folio, oldest.age), (FolioId::new(7), 2));
        assert_eq!(lists.remove(&mut records, 3), Some(List::Active));
        assert_eq!(lists.remove(&mut records, 3), None);
        assert_eq!(nr_frames(&lists, List::Active), 3);
        assert_eq!(lists.oldest(&records, Size::Whole, List::Active), None);
    }

    #[test]
    fn what_comes_in_at_the_tail_is_as_old_as_the_oldest_of_either_class() {
        let (mut records, mut lists) = (held(1024), Lists::new());
        records[0].order = Order::HUGE;
        lists.insert(&mut records, 0, List::Inactive);
        lists.insert(&mut records, 513, List::Active);
        lists.insert_tail(&mut records, 512, List::Inactive);
        assert_eq!(lists.oldest(&records, Size::Small, List::Inactive).unwrap().age, 1);
    }

    #[test]
    fn a_substitute_has_the_place_and_the_age_of_the_folio() {
        for at in 0..3 {
            let (mut records, mut lists) = (held(8), Lists::new());
            (0..3).for_each(|frame| lists.insert(&mut records, frame, List::Inactive));
            records[5].owner = Packed::NONE;
            let stamp = records[at].stamp;
            lists.substitute(&mut records, at, 5);
            let expected: Vec<_> = (0..3).map(|frame| if frame == at { 5 } else { frame }).collect();
            assert_eq!(from_tail(&lists, &records, Size::Small, List::Inactive), expected);
            assert_eq!((records[5].owner, records[5].stamp, records[at].owner), (owner_of(at), stamp, Packed::NONE));
            assert_eq!((records[at].place, lists.remove(&mut records, 5)), (FrameState::Held, Some(List::Inactive)));
            assert_eq!(nr_frames(&lists, List::Inactive), 2);
        }
    }

    #[test]
    fn ages_survive_the_wrap_of_the_clock() {
        let (mut records, mut lists) = (held(2), Lists::new());
        lists.clock = u32::MAX - 1;
        lists.insert(&mut records, 0, List::Clean);
        lists.insert(&mut records, 1, List::Clean);
        assert_eq!(lists.clock, 0);
        assert_eq!(lists.oldest(&records, Size::Small, List::Clean).unwrap().age, 1);
    }

    #[test]
    fn parts_of_the_same_class_take_the_place_of_the_folio() {
        let (mut records, mut lists) = (held(16), Lists::new());
        records[4].order = order(2);
        for frame in [0, 4, 8] {
            lists.insert(&mut records, frame, List::Laundry);
        }
        lists.split(&mut records, 4, order(1));
        lists.split(&mut records, 4, order(0));
        assert_eq!(from_tail(&lists, &records, Size::Small, List::Laundry), [0, 4, 5, 6, 8]);
        assert_eq!(nr_frames(&lists, List::Laundry), 6);
        assert_eq!((records[5].owner, records[6].owner), (owner_of(5), owner_of(6)));
        assert_eq!(records[5].stamp, records[4].stamp);
    }

    #[test]
    fn parts_of_another_class_come_in_by_their_age() {
        for older in [true, false] {
            let (mut records, mut lists) = (held(1024), Lists::new());
            records[512].order = Order::HUGE;
            let both = if older { [512, 0] } else { [0, 512] };
            both.iter().for_each(|&frame| lists.insert(&mut records, frame, List::Inactive));
            lists.split(&mut records, 512, order(8));
            let expected = if older { [512, 768, 0] } else { [0, 512, 768] };
            assert_eq!(from_tail(&lists, &records, Size::Small, List::Inactive), expected);
            assert_eq!(lists.of(Size::Whole, List::Inactive).nr_frames, 0);
            assert_eq!(lists.of(Size::Small, List::Inactive).nr_frames, 513);
        }
    }

    #[test]
    fn parts_as_old_as_the_oldest_of_their_class_are_reclaimed_first() {
        let (mut records, mut lists) = (held(1024), Lists::new());
        records[512].order = Order::HUGE;
        lists.insert(&mut records, 0, List::Inactive);
        lists.insert_tail(&mut records, 512, List::Inactive);
        lists.insert(&mut records, 1, List::Inactive);
        lists.split(&mut records, 512, order(8));
        assert_eq!(from_tail(&lists, &records, Size::Small, List::Inactive), [512, 768, 0, 1]);
        assert_eq!(lists.oldest(&records, Size::Small, List::Inactive).unwrap().age, 1);
    }
}
