//! The zone's part in compaction: free runs that are isolated, put back, and occupied by folios that move.
//!
//! Isolated frames are neither free nor taken. They have memory and come from pageblocks with small pages that are partly
//! in use. Against the limit they count as frames in use, for that is what they are about to be: so a folio can move
//! there while the frames that it leaves are still taken, and the limit holds all the same.
//!
//! Part of an isolated run can be put back or occupied: the run is then halved until that part is a run of its own.
//!
//! **Locking.** The zone's mutex, for a walk over one pageblock's heads or a few links. No caller's code runs under it.

use super::buddy::{BLOCK, Block, Buddy, Memory, PageblockId, order_of};
use super::lists::{Place, Records};
use super::zone::{Frames, Zone};
use crate::id::FrameId;
use crate::order::{MAX_ORDER, Order};

/// Runs of an order that one call of [`Zone::isolate_listed`] looks at.
const LOOK: usize = 32;

/// Free runs of a pageblock of which a part is taken: no two of them are buddies.
const MAX_RUNS: usize = BLOCK / 2;

impl Frames {
    /// Whether frames may be isolated on top of those that are in use.
    fn may_isolate(&self, order: Order) -> bool {
        self.buddy.taken + self.buddy.isolated + order.nr_pages() <= self.limit
    }

    /// The heads of free runs that may be isolated in a pageblock, at or after `at`.
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
            let divided = |block: &Block| block.memory == Memory::Small && block.nr_taken > 0;
            if !frames.buddy.blocks.get(block.index() / BLOCK).is_some_and(divided) {
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

    /// Isolates a free run at or after `from`, of one of these orders, the smallest that is found among the first 32 of
    /// each, in pageblocks with small pages that are partly in use.
    pub fn isolate_listed(&self, least: Order, most: Order, from: FrameId) -> Option<(FrameId, Order)> {
        let frames = &mut *self.lock();
        for k in least.exponent()..=most.exponent().min(MAX_ORDER - 1) {
            if !frames.may_isolate(order_of(k)) {
                return None;
            }
            let chain = &frames.buddy.chains[usize::from(k)];
            let found = chain.heads(&frames.records).take(LOOK).find(|&head| head >= from.get());
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
        let order = frames.records.taken(from).order;
        let records = &mut frames.records;
        frames.buddy.separate(records, to.get(), order);
        frames.buddy.isolated -= order.nr_pages();
        frames.buddy.hold(records, to.get(), order);
        frames.lists.substitute(records, from.get(), to.get());
    }
}
