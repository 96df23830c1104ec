//! The zone's part in compaction: free runs that are isolated, put back, and occupied by folios that move.
//!
//! Isolated frames are neither free nor taken. They have memory and come from pageblocks with small pages that are partly
//! in use. Against the limit they count as frames in use, for that is what they are about to be: so a folio can move
//! there while the frames that it leaves are still taken, and the limit holds all the same.
//!
//! A part of an isolated run can be put back or occupied: the run is then halved until that part is a run of its own.
//!
//! **Locking.** The zone's mutex, for a walk over one pageblock's heads or a few links. No caller's code runs under it.

use super::buddy::{BLOCK, Block, Buddy, Memory, PageblockId, Taken, order_of};
use super::lists::{Place, Records};
use super::zone::{Frames, Zone};
use crate::id::FrameId;
use crate::order::{MAX_ORDER, Order};

/// Runs of an order that one call of [`Zone::isolate_listed`] looks at.
const LOOK: usize = 32;

/// Free runs of a pageblock of which a part is taken: no two of them are buddies.
const MAX_RUNS: usize = BLOCK / 2;

impl Block {
    /// Whether it has small pages and folios in them. One that is free but for isolated frames is soon free in whole.
    fn serves_parts(&self) -> bool {
        self.memory == Memory::Small && self.nr_taken > 0
    }
}

impl Frames {
    /// Whether frames may be isolated on top of those that are in use.
    fn may_isolate(&self, order: Order) -> bool {
        self.buddy.taken + self.buddy.isolated + order.nr_pages() <= self.limit
    }

    /// The next free run that may be isolated in a pageblock, from the head `at` on.
    fn next_free_part(&self, mut at: u32) -> Option<u32> {
        let end = PageblockId::of(at).first_frame() + BLOCK as u32;
        while at < end {
            let record = &self.records[at];
            if record.place == Place::Free && record.order < Order::HUGE && self.may_isolate(record.order) {
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
        records[head].place = Place::Isolated;
        self.isolated += records[head].order.nr_pages();
    }

    /// Makes these frames, all isolated, a run of their own. Panics when they are not isolated.
    fn separate(&mut self, records: &mut Records, frame: u32, order: Order) {
        let is_head = |&head: &u32| records[head].place == Place::Isolated;
        let found = (0..MAX_ORDER).map(|k| frame >> k << k).find(is_head);
        let mut head = found.unwrap_or_else(|| panic!("frame {frame} is not isolated"));
        let mut k = records[head].order.exponent();
        assert!(k >= order.exponent() && frame - head < 1 << k, "{order} from frame {frame} on is not isolated");
        while k > order.exponent() {
            k -= 1;
            for half in [head, head + (1 << k)] {
                (records[half].order, records[half].place) = (order_of(k), Place::Isolated);
            }
            if frame - head >= 1 << k {
                head += 1 << k;
            }
        }
        assert_eq!(head, frame, "a part of a run is aligned");
    }
}

impl Zone {
    /// Pageblocks that were used at least once; all others are without memory and free.
    pub fn nr_pageblocks(&self) -> usize {
        self.lock().buddy.blocks.len()
    }

    /// How many frames of a pageblock are taken by folios smaller than it; nothing when there are none.
    pub fn nr_taken_in_parts(&self, block: FrameId) -> Option<usize> {
        let frames = self.lock();
        let in_parts = frames.records.get(block)?.order < Order::HUGE;
        in_parts.then(|| usize::from(frames.buddy.blocks[block.index() / BLOCK].nr_taken)).filter(|&nr| nr > 0)
    }

    /// Isolates free runs of a pageblock with small pages that is partly in use, from its first frame on, until they have
    /// `enough` frames or more together, and calls `each` with them. Leaves out those for which there is no room under
    /// the limit. Returns how many frames it looked at. No lock is held during the calls; the copy takes 2 KiB of stack.
    pub fn isolate_in(&self, block: FrameId, enough: usize, each: &mut dyn FnMut(FrameId, Order)) -> usize {
        assert!(block.index().is_multiple_of(BLOCK), "{block:?} is not the first frame of a pageblock");
        let mut found = [(0, Order::PAGE); MAX_RUNS];
        let (mut nr_runs, mut nr_frames, mut at) = (0, 0, block.get());
        let end = at + BLOCK as u32;
        {
            let frames = &mut *self.lock();
            if !frames.buddy.blocks.get(block.index() / BLOCK).is_some_and(Block::serves_parts) {
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

    /// Takes a wholly free pageblock that has small pages, for the caller to make it huge and give it back.
    pub fn take_divided(&self) -> Option<Taken> {
        let frames = &mut *self.lock();
        let room = frames.limit.saturating_sub(frames.buddy.taken + frames.buddy.isolated) >= BLOCK;
        if room { frames.buddy.take_whole(&mut frames.records, &[Memory::Small]) } else { None }
    }

    /// Isolates a free run at or after `from`, of one of these orders, the smallest that is found among the first 32 of
    /// each, in pageblocks with small pages that are partly in use.
    pub fn isolate_listed(&self, least: Order, most: Order, from: FrameId) -> Option<(FrameId, Order)> {
        let frames = &mut *self.lock();
        for k in least.exponent()..=most.exponent().min(MAX_ORDER - 1) {
            if !frames.may_isolate(order_of(k)) {
                return None;
            }
            let chain = &frames.buddy.chains[usize::from(k)];
            let serves = |head| frames.buddy.blocks[PageblockId::of(head).index()].serves_parts();
            let fits = |&head: &u32| head >= from.get() && serves(head);
            let found = chain.heads(&frames.records).take(LOOK).find(fits);
            if let Some(head) = found {
                frames.buddy.isolate(&mut frames.records, head);
                return Some((FrameId::new(head), order_of(k)));
            }
        }
        None
    }

    /// Frees isolated frames: a run, or an aligned part of one. Joins them with the free frames around them.
    pub fn put_back(&self, frame: FrameId, order: Order) {
        let frames = &mut *self.lock();
        frames.buddy.separate(&mut frames.records, frame.get(), order);
        frames.buddy.isolated -= order.nr_pages();
        frames.buddy.join(&mut frames.records, frame.get(), order);
    }

    /// A folio has moved: `to`, which begins isolated frames as many as the folio has, takes the place of `from`, on the
    /// same place of the same list if it is on one. `from` is held, without owner, by the caller.
    pub fn occupy(&self, to: FrameId, from: FrameId) {
        let frames = &mut *self.lock();
        self.marks().claim(from);
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

    /// A zone of one pageblock, of which the first frames are a folio of this order.
    fn zone(k: u8) -> (Zone, FrameId) {
        let zone = Zone::new(1);
        zone.set_limit(BLOCK);
        let frame = zone.take(order(k), 0).unwrap().frame;
        (zone, frame)
    }

    fn isolate(zone: &Zone, enough: usize) -> Vec<(u32, u8)> {
        let mut found = Vec::new();
        zone.isolate_in(FrameId::new(0), enough, &mut |frame, order| found.push((frame.get(), order.exponent())));
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
        assert_eq!((zone.free_runs(order(6)), zone.available()), (1, 256));
        // Free but for isolated frames, a pageblock gives no more of them, and it is whole when they are back.
        zone.give(frame);
        assert_eq!((isolate(&zone, BLOCK), zone.nr_taken_in_parts(frame)), (vec![], None));
        zone.put_back(FrameId::new(128), order(7));
        zone.put_back(FrameId::new(64), order(6));
        zone.verify();
        assert_eq!((zone.free_runs(Order::HUGE), zone.counts().isolated), (1, 0));
    }

    #[test]
    fn a_whole_pageblock_is_left_alone() {
        let (zone, frame) = zone(9);
        assert_eq!((isolate(&zone, BLOCK), zone.nr_taken_in_parts(frame)), (vec![], None));
        zone.split(frame, order(8));
        zone.give(frame);
        assert_eq!(zone.nr_taken_in_parts(frame), Some(256));
        zone.give(FrameId::new(256));
        assert_eq!((isolate(&zone, BLOCK), zone.isolate_listed(order(0), Order::HUGE, frame)), (vec![], None));
    }

    #[test]
    fn a_part_of_a_run_takes_a_folio_and_the_rest_goes_back() {
        let (zone, frame) = zone(4);
        zone.carve(frame, order(4));
        zone.set_owner(frame, FolioId::new(64));
        zone.insert(frame, List::Laundry);
        assert_eq!(zone.isolate_listed(order(5), order(7), FrameId::new(64)), Some((FrameId::new(64), order(6))));
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
