//! Compaction's view of the zone: free runs are isolated, put back, or occupied by folios that move.
//!
//! Isolated frames are neither free nor taken. They have memory and come from pageblocks with small pages that are
//! partly in use. They count against the limit as frames in use, because they are about to be: the limit holds even
//! while a folio that moves still has its old frames. A part of an isolated run can be put back or occupied; the run is
//! then halved until that part is a run of its own.
//!
//! **Locking.** The zone's mutex, for a walk over one pageblock's heads or a few links. No code of the caller runs
//! under it.

use super::buddy::{BLOCK, Block, Buddy, Memory, PageblockId, Taken, order_of};
use super::frames::Frames;
use super::lists::{FrameState, Records};
use super::pageblocks::Pageblocks;
use super::zone::Zone;
use crate::id::FrameId;
use crate::order::{MAX_ORDER, Order};

/// Runs of each order that one call of [`Pageblocks::isolate_listed`] examines.
const SCAN_LIMIT: usize = 32;

/// Free runs of a partly taken pageblock: no two of them are buddies.
const MAX_RUNS: usize = BLOCK / 2;

impl Block {
    /// Whether it has small pages and folios in them. A pageblock with only free and isolated frames will soon be
    /// wholly free.
    fn serves_parts(&self) -> bool {
        self.memory == Memory::Small && self.nr_taken > 0
    }
}

impl Frames {
    /// Whether the limit permits isolating frames on top of those in use.
    fn may_isolate(&self, order: Order) -> bool {
        self.buddy.taken + self.buddy.isolated + order.nr_pages() <= self.limit
    }

    /// Isolated frames of a pageblock.
    fn isolated_of(&self, first: u32) -> usize {
        let (mut at, mut nr_isolated) = (first, 0);
        while at < first + BLOCK as u32 {
            let record = &self.records[at];
            nr_isolated += if record.place == FrameState::Isolated { record.order.nr_pages() } else { 0 };
            at += record.order.nr_pages() as u32;
        }
        nr_isolated
    }

    /// The next free run of a pageblock that may be isolated, starting at the head `at`.
    fn next_free_part(&self, mut at: u32) -> Option<u32> {
        let end = PageblockId::of(at).first_frame() + BLOCK as u32;
        while at < end {
            let record = &self.records[at];
            if record.place == FrameState::Free && record.order < Order::HUGE && self.may_isolate(record.order) {
                return Some(at);
            }
            at += record.order.nr_pages() as u32;
        }
        None
    }
}

impl Buddy {
    fn isolate(&mut self, records: &mut Records, head: u32) {
        self.unlink(records, head);
        records[head].place = FrameState::Isolated;
        self.isolated += records[head].order.nr_pages();
    }

    fn isolate_held(&mut self, records: &mut Records, head: u32) {
        let nr_frames = records[head].order.nr_pages();
        self.block_mut(head).nr_taken -= nr_frames as u16;
        self.taken -= nr_frames;
        records[head].place = FrameState::Isolated;
        self.isolated += nr_frames;
    }

    /// Merges all runs of a pageblock, free and isolated, and takes them as one.
    fn gather(&mut self, records: &mut Records, first: u32) {
        let mut at = first;
        while at < first + BLOCK as u32 {
            let nr_frames = records[at].order.nr_pages();
            match records[at].place {
                FrameState::Free => self.unlink(records, at),
                FrameState::Isolated => self.isolated -= nr_frames,
                other => panic!("frame {at} is {other:?} though nothing of its pageblock is taken"),
            }
            records[at].place = FrameState::Inner;
            at += nr_frames as u32;
        }
        self.block_mut(first).memory = Memory::Huge;
        self.hold(records, first, Order::HUGE);
    }

    /// Makes these isolated frames a run of their own. Panics when they are not isolated.
    fn separate(&mut self, records: &mut Records, frame: u32, order: Order) {
        let is_head = |&head: &u32| records[head].place == FrameState::Isolated;
        let found = (0..MAX_ORDER).map(|k| frame >> k << k).find(is_head);
        let mut head = found.unwrap_or_else(|| panic!("frame {frame} is not isolated"));
        let mut k = records[head].order.exponent();
        assert!(k >= order.exponent() && frame - head < 1 << k, "{order} from frame {frame} on is not isolated");
        while k > order.exponent() {
            k -= 1;
            for half in [head, head + (1 << k)] {
                (records[half].order, records[half].place) = (order_of(k), FrameState::Isolated);
            }
            if frame - head >= 1 << k {
                head += 1 << k;
            }
        }
        assert_eq!(head, frame, "a part of a run is aligned");
    }
}

impl Pageblocks<'_> {
    /// Isolates free runs of a partly used pageblock with small pages, from its first frame on, until they have
    /// `enough` frames together, and calls `each` with them. Skips runs that the limit does not permit. Returns how
    /// many frames it examined. No lock is held during the calls; the copy of the runs takes 2 KiB of stack.
    pub fn isolate_in(self, block: FrameId, enough: usize, each: &mut dyn FnMut(FrameId, Order)) -> usize {
        assert!(block.index().is_multiple_of(BLOCK), "{block:?} is not the first frame of a pageblock");
        let mut found = [(0, Order::PAGE); MAX_RUNS];
        let (mut nr_runs, mut nr_frames, mut at) = (0, 0, block.get());
        let end = at + BLOCK as u32;
        {
            let frames = &mut *self.lock();
            if !frames.buddy.find(block).is_some_and(Block::serves_parts) {
                return 0;
            }
            while nr_frames < enough && at < end {
                let Some(head) = frames.next_free_part(at) else {
                    at = end;
                    break;
                };
                let order = frames.records[head].order;
                frames.buddy.isolate(&mut frames.records, head);
                found[nr_runs] = (head, order);
                (nr_runs, nr_frames, at) = (nr_runs + 1, nr_frames + order.nr_pages(), head + order.nr_pages() as u32);
            }
        }
        found[..nr_runs].iter().for_each(|&(head, order)| each(FrameId::new(head), order));
        (at - block.get()) as usize
    }

    /// Isolates a free run at or after `from`, of an order from `least` to `most`, in a partly used pageblock with
    /// small pages: the smallest that it finds among the first 32 runs of each order.
    pub fn isolate_listed(self, least: Order, most: Order, from: FrameId) -> Option<(FrameId, Order)> {
        let frames = &mut *self.lock();
        for k in least.exponent()..=most.exponent().min(MAX_ORDER - 1) {
            if !frames.may_isolate(order_of(k)) {
                return None;
            }
            let chain = &frames.buddy.chains[usize::from(k)];
            let serves = |head| frames.buddy.block(head).serves_parts();
            let fits = |&head: &u32| head >= from.get() && serves(head);
            let found = chain.heads(&frames.records).take(SCAN_LIMIT).find(fits);
            if let Some(head) = found {
                frames.buddy.isolate(&mut frames.records, head);
                return Some((FrameId::new(head), order_of(k)));
            }
        }
        None
    }

    /// The first isolated run of a pageblock.
    pub fn isolated_in(self, block: FrameId) -> Option<(FrameId, Order)> {
        let frames = self.lock();
        let (mut at, end) = (block.get(), block.get() + BLOCK as u32);
        while at < end {
            let record = &frames.records[at];
            if record.place == FrameState::Isolated {
                return Some((FrameId::new(at), record.order));
            }
            at += record.order.nr_pages() as u32;
        }
        None
    }

    /// Takes a whole pageblock of which everything is free or isolated by the caller. It counts as [`Memory::Huge`]
    /// from now on.
    pub fn take_emptied(self, block: FrameId) -> Option<Taken> {
        let frames = &mut *self.lock();
        let Block { memory, nr_taken, .. } = *frames.buddy.find(block)?;
        let nr_isolated = frames.isolated_of(block.get());
        let in_use = frames.buddy.taken + frames.buddy.isolated - nr_isolated;
        // Everything in it was freed, and reclaim is giving its memory back.
        let is_leaving = frames.records[block.get()].place == FrameState::Leaving;
        if memory != Memory::Small || nr_taken > 0 || is_leaving || in_use + BLOCK > frames.limit {
            return None;
        }
        frames.buddy.gather(&mut frames.records, block.get());
        Some(Taken { frame: block, order: Order::HUGE, memory })
    }
}

impl Zone {
    /// Frees isolated frames: a run, or an aligned part of one. Merges them with their free buddies.
    pub fn put_back(&self, frame: FrameId, order: Order) {
        let frames = &mut *self.lock();
        frames.buddy.separate(&mut frames.records, frame.get(), order);
        frames.buddy.isolated -= order.nr_pages();
        frames.buddy.join(&mut frames.records, frame.get(), order);
    }

    /// Isolates the frames that a folio has moved out of. The caller holds them, without owner.
    pub fn isolate_left(&self, from: FrameId) {
        let frames = &mut *self.claim(from);
        frames.disown(from);
        frames.buddy.isolate_held(&mut frames.records, from.get());
    }

    /// Moves a folio: `to`, the start of as many isolated frames as the folio has, takes the owner of `from` and its
    /// place on its list, if any. The caller then holds `from`, without owner.
    pub fn occupy(&self, to: FrameId, from: FrameId) {
        let frames = &mut *self.claim(from);
        let order = frames.records.taken(from).order;
        let records = &mut frames.records;
        frames.buddy.separate(records, to.get(), order);
        frames.buddy.isolated -= order.nr_pages();
        frames.buddy.hold(records, to.get(), order);
        frames.lists.substitute(records, from.get(), to.get());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::List;
    use crate::id::FolioId;

    fn order(k: u8) -> Order {
        Order::new(k).unwrap()
    }

    /// A zone of one pageblock, taken for a folio of this order.
    fn zone(k: u8) -> (Zone, FrameId) {
        let zone = Zone::new(0..1, 0, 1);
        zone.set_limit(BLOCK);
        let frame = zone.take(order(k), 0).unwrap().frame;
        (zone, frame)
    }

    fn isolate(zone: &Zone, enough: usize) -> Vec<(u32, u8)> {
        let mut found = Vec::new();
        zone.pageblocks()
            .isolate_in(FrameId::new(0), enough, &mut |frame, order| found.push((frame.get(), order.exponent())));
        zone.verify();
        found
    }

    #[test]
    fn isolated_frames_are_neither_free_nor_in_use() {
        let (zone, frame) = zone(6);
        zone.carve(frame, order(6));
        assert_eq!(isolate(&zone, 65), [(64, 6), (128, 7)]);
        let counts = zone.counts();
        assert_eq!((counts.in_use, counts.isolated, counts.free, counts.populated), (64, 192, 256, BLOCK));
        assert_eq!((zone.free_runs(order(6)), zone.counts().available()), (1, 256));
        // A pageblock of only free and isolated frames gives no more of them, and is whole once they are back.
        zone.give(frame);
        assert_eq!((isolate(&zone, BLOCK), zone.pageblocks().nr_taken_in_parts(frame)), (vec![], None));
        zone.put_back(FrameId::new(128), order(7));
        zone.put_back(FrameId::new(64), order(6));
        zone.verify();
        assert_eq!((zone.free_runs(Order::HUGE), zone.counts().isolated), (1, 0));
    }

    #[test]
    fn a_whole_pageblock_is_left_alone() {
        let (zone, frame) = zone(9);
        assert_eq!((isolate(&zone, BLOCK), zone.pageblocks().nr_taken_in_parts(frame)), (vec![], None));
        zone.split(frame, order(8));
        zone.give(frame);
        assert_eq!(zone.pageblocks().nr_taken_in_parts(frame), Some(256));
        zone.give(FrameId::new(256));
        assert_eq!(
            (isolate(&zone, BLOCK), zone.pageblocks().isolate_listed(order(0), Order::HUGE, frame)),
            (vec![], None)
        );
    }

    #[test]
    fn a_part_of_a_run_takes_a_folio_and_the_rest_goes_back() {
        let (zone, frame) = zone(4);
        zone.carve(frame, order(4));
        zone.set_owner(frame, FolioId::new(64));
        zone.insert(frame, List::Laundry);
        assert_eq!(
            zone.pageblocks().isolate_listed(order(5), order(7), FrameId::new(64)),
            Some((FrameId::new(64), order(6)))
        );
        zone.occupy(FrameId::new(96), frame);
        zone.verify();
        assert_eq!(
            (zone.owner(FrameId::new(96)), zone.list(FrameId::new(96))),
            (Some(FolioId::new(64)), Some(List::Laundry))
        );
        assert_eq!((zone.owner(frame), zone.list(frame), zone.order(frame)), (None, None, Some(order(4))));
        zone.give(frame);
        zone.put_back(FrameId::new(112), order(4));
        zone.put_back(FrameId::new(64), order(5));
        zone.verify();
        assert_eq!((zone.counts().isolated, zone.counts().in_use), (0, 16));
    }

    #[test]
    fn a_pageblock_is_calm_when_nothing_was_given_back_for_a_while() {
        let (zone, frame) = zone(9);
        zone.split(frame, order(7));
        let calm = || zone.pageblocks().nr_taken_in_calm(frame);
        (0..4).for_each(|_| zone.pageblocks().tick());
        assert_eq!(calm(), None, "more than half of it is taken");
        zone.give(FrameId::new(128));
        zone.give(FrameId::new(256));
        assert_eq!(calm(), None);
        zone.pageblocks().tick();
        assert_eq!(calm(), None, "given back in the last tick");
        zone.pageblocks().tick();
        assert_eq!(calm(), Some(256));
        zone.take(order(2), 0).unwrap();
        assert_eq!(calm(), None);
    }

    #[test]
    fn a_pageblock_of_free_and_isolated_frames_is_taken_whole() {
        let (zone, frame) = zone(6);
        zone.carve(frame, order(6));
        assert_eq!(isolate(&zone, 65), [(64, 6), (128, 7)]);
        assert_eq!(zone.pageblocks().take_emptied(frame), None, "a folio is in it");
        zone.isolate_left(frame);
        zone.verify();
        assert_eq!((zone.counts().in_use, zone.counts().isolated), (0, 256));
        assert_eq!(zone.pageblocks().isolated_in(frame), Some((frame, order(6))));
        let taken = zone.pageblocks().take_emptied(frame).unwrap();
        zone.verify();
        assert_eq!((taken.memory, taken.order, zone.counts().in_use), (Memory::Small, Order::HUGE, BLOCK));
        assert_eq!((zone.counts().isolated, zone.pageblocks().isolated_in(frame)), (0, None));
        zone.pageblocks().give_unpopulated(frame);
        assert_eq!((zone.counts().populated, zone.memory(frame)), (0, Memory::Absent));
        zone.verify();
    }

    #[test]
    fn a_pageblock_whose_memory_is_being_given_back_is_not_taken() {
        let zone = Zone::new(0..2, 0, 1);
        zone.set_limit(2 * BLOCK);
        let [frame, other] = [(); 2].map(|()| zone.take(Order::HUGE, 0).unwrap().frame);
        zone.carve(frame, order(6));
        zone.give(other);
        // Compaction wanted to empty it, but all its folios were freed: nothing of it is isolated.
        zone.give(frame);
        zone.set_limit(BLOCK);
        assert_eq!(zone.pageblocks().take_surplus(), Some(frame));
        assert_eq!((zone.pageblocks().take_emptied(frame), zone.pageblocks().isolated_in(frame)), (None, None));
        zone.pageblocks().give_unpopulated(frame);
        zone.verify();
        assert_eq!(zone.pageblocks().take_emptied(frame), None, "it has none");
    }

    #[test]
    #[should_panic(expected = "is not isolated")]
    fn what_is_free_is_not_put_back() {
        let (zone, frame) = zone(4);
        zone.carve(frame, order(4));
        zone.put_back(FrameId::new(16), order(4));
    }

    #[test]
    #[should_panic(expected = "is not isolated")]
    fn more_than_was_isolated_is_not_put_back() {
        let (zone, frame) = zone(4);
        zone.carve(frame, order(4));
        assert_eq!(isolate(&zone, 1), [(16, 4)]);
        zone.put_back(FrameId::new(16), order(5));
    }
}
