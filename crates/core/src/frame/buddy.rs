//! Free runs by order, and the pageblocks.
//!
//! Invariants:
//! - a run of order k starts at a multiple of 2^k and lies within one pageblock; two free buddies are always merged;
//! - only pageblocks with small pages are divided; any other pageblock is one run or one folio;
//! - `populated = free + taken + isolated + leaving`, in frames; a pageblock counts as populated once it is taken;
//! - the length of a chain is the number of its runs, so counting runs costs nothing.
//!
//! Nothing here scans: a run's buddy is found by its number, a run of an order at the head of its chain.
//!
//! **Locking.** None here: the zone's mutex guards all of it.

use super::lists::{Chain, FrameState, NONE, Record, Records};
use crate::id::FrameId;
use crate::order::{MAX_ORDER, Order};

/// Frames in a pageblock.
pub(super) const BLOCK: usize = Order::HUGE.nr_pages();

/// What backs a pageblock at its own addresses.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Memory {
    /// No memory: never touched, or given back to the kernel.
    Absent,
    /// One huge page.
    Huge,
    /// Small pages.
    Small,
}

/// Frames that were taken: held, without owner.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Taken {
    /// The first frame.
    pub frame: FrameId,
    /// The order asked for, or a whole pageblock that still has to be carved.
    pub order: Order,
    /// What their pageblock had before.
    pub memory: Memory,
}

/// A pageblock: its number among those of all zones.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct PageblockId(u32);

impl PageblockId {
    pub(super) fn of(frame: u32) -> PageblockId {
        PageblockId(frame >> MAX_ORDER)
    }

    pub(super) fn first_frame(self) -> u32 {
        self.0 << MAX_ORDER
    }
}

/// What is kept for a pageblock besides its records.
#[derive(Copy, Clone)]
pub(super) struct Block {
    pub memory: Memory,
    /// Frames of it that are taken.
    pub nr_taken: u16,
    /// The tick in which frames of it were last freed.
    pub given_at: u32,
}

impl Block {
    fn unused(memory: Memory) -> Block {
        Block { memory, nr_taken: 0, given_at: 0 }
    }
}

/// Chains of runs: one per order for small pages, then whole pageblocks with a huge page and without memory.
const NR_CHAINS: usize = MAX_ORDER as usize + 3;

/// The chain for free runs of this order in pageblocks with this memory.
pub(super) fn chain_of(order: Order, memory: Memory) -> usize {
    match memory {
        Memory::Small => order.exponent() as usize,
        Memory::Huge => NR_CHAINS - 2,
        Memory::Absent => NR_CHAINS - 1,
    }
}

pub(super) struct Buddy {
    /// The first frame of the first pageblock.
    first: u32,
    pub nr_blocks_max: usize,
    /// Pageblocks that were taken at least once. Grows within its capacity only, as the records do.
    pub blocks: Vec<Block>,
    pub chains: [Chain; NR_CHAINS],
    /// Frames that are free and have memory.
    pub free: usize,
    /// Frames that are taken.
    pub taken: usize,
    /// Frames of free runs that compaction took out.
    pub isolated: usize,
    /// Frames on their way back to the kernel.
    pub leaving: usize,
    /// The current tick, advanced by the caller; wraps.
    pub now: u32,
}

impl Buddy {
    pub(super) fn new(first: u32, nr_blocks_max: usize) -> Buddy {
        Buddy {
            first,
            nr_blocks_max,
            blocks: Vec::with_capacity(nr_blocks_max),
            chains: [Chain::EMPTY; NR_CHAINS],
            free: 0,
            taken: 0,
            isolated: 0,
            leaving: 0,
            now: 0,
        }
    }

    /// Frames that have memory.
    pub(super) fn populated(&self) -> usize {
        self.free + self.taken + self.isolated + self.leaving
    }

    pub(super) fn memory(&self, frame: u32) -> Memory {
        self.block(frame).memory
    }

    /// The index of a frame's pageblock in this zone.
    fn index_of(&self, frame: u32) -> usize {
        (frame - self.first) as usize / BLOCK
    }

    /// A pageblock by its index in this zone.
    pub(super) fn id_of(&self, index: usize) -> PageblockId {
        PageblockId::of(self.first + (index * BLOCK) as u32)
    }

    /// The pageblock of a frame.
    pub(super) fn block(&self, frame: u32) -> &Block {
        &self.blocks[self.index_of(frame)]
    }

    /// The same, if it was ever used.
    pub(super) fn find(&self, frame: FrameId) -> Option<&Block> {
        self.blocks.get(self.index_of(frame.get()))
    }

    pub(super) fn block_mut(&mut self, frame: u32) -> &mut Block {
        let index = self.index_of(frame);
        &mut self.blocks[index]
    }

    /// Free runs of `order` or larger in populated pageblocks.
    pub(super) fn runs_from(&self, order: Order) -> usize {
        let small = &self.chains[order.exponent() as usize..=MAX_ORDER as usize];
        let huge = &self.chains[chain_of(Order::HUGE, Memory::Huge)];
        small.iter().map(|chain| chain.len).sum::<usize>() + huge.len
    }

    /// Whether a divided pageblock has a free run of `order` or larger.
    pub(super) fn has_part(&self, order: Order) -> bool {
        self.chains[..MAX_ORDER as usize].iter().skip(order.exponent() as usize).any(|chain| chain.len > 0)
    }

    /// Takes a wholly free pageblock with one of these kinds of memory, in order of preference. It counts as
    /// [`Memory::Huge`] from now on.
    pub(super) fn take_whole(&mut self, records: &mut Records, from: &[Memory]) -> Option<Taken> {
        for &memory in from {
            let mut head = self.chains[chain_of(Order::HUGE, memory)].head;
            if head == NONE && memory == Memory::Absent {
                head = self.grow(records);
            }
            if head == NONE {
                continue;
            }
            self.unlink(records, head);
            self.block_mut(head).memory = Memory::Huge;
            self.hold(records, head, Order::HUGE);
            return Some(Taken { frame: FrameId::new(head), order: Order::HUGE, memory });
        }
        None
    }

    /// Takes 2^order frames from the smallest sufficient run in small pages. Uses a wholly free pageblock only if
    /// `may_break`.
    pub(super) fn take_part(&mut self, records: &mut Records, order: Order, may_break: bool) -> Option<Taken> {
        let small = &self.chains[..MAX_ORDER as usize + usize::from(may_break)];
        let found = (order.exponent()..small.len() as u8).find(|&k| small[k as usize].head != NONE)?;
        let head = self.chains[found as usize].head;
        self.unlink(records, head);
        self.hold(records, head, order);
        self.free_upper_halves(records, head, order.exponent()..found);
        Some(Taken { frame: FrameId::new(head), order, memory: Memory::Small })
    }

    /// Turns a whole taken pageblock into small pages, of which only the first 2^order frames stay taken.
    pub(super) fn carve(&mut self, records: &mut Records, head: u32, order: Order) {
        assert_eq!(records[head].order, Order::HUGE, "a whole pageblock is carved");
        let block = self.block_mut(head);
        (block.memory, block.nr_taken) = (Memory::Small, order.nr_pages() as u16);
        self.taken -= BLOCK - order.nr_pages();
        records[head].order = order;
        self.free_upper_halves(records, head, order.exponent()..MAX_ORDER);
    }

    /// Records that a pageblock has small pages now; for folios in it that are split.
    pub(super) fn divide(&mut self, frame: u32) {
        self.block_mut(frame).memory = Memory::Small;
    }

    /// Frees a held folio and merges it with its free buddies.
    pub(super) fn give(&mut self, records: &mut Records, frame: u32) {
        let order = records[frame].order;
        let now = self.now;
        let block = self.block_mut(frame);
        block.nr_taken -= order.nr_pages() as u16;
        block.given_at = now;
        self.taken -= order.nr_pages();
        self.join(records, frame, order);
    }

    /// Turns frames that are in no state into a free run, merged with its free buddies.
    pub(super) fn join(&mut self, records: &mut Records, frame: u32, order: Order) {
        let memory = self.memory(frame);
        let (mut head, mut k) = (frame, order.exponent());
        while k < MAX_ORDER {
            let buddy = head ^ (1 << k);
            let Record { place, order, .. } = records[buddy];
            if place != FrameState::Free || order.exponent() != k {
                break;
            }
            self.chains[k as usize].unlink(records, buddy);
            self.free -= 1 << k;
            records[head | buddy].place = FrameState::Inner;
            head &= buddy;
            k += 1;
        }
        self.link(records, head, order_of(k), memory);
    }

    /// Takes the wholly free, populated pageblock that was freed first, small pages before huge ones. It is then
    /// leaving.
    pub(super) fn take_coldest(&mut self, records: &mut Records) -> Option<u32> {
        let tails = [Memory::Small, Memory::Huge].map(|memory| self.chains[chain_of(Order::HUGE, memory)].tail);
        let head = tails.into_iter().find(|&tail| tail != NONE)?;
        self.unlink(records, head);
        records[head].place = FrameState::Leaving;
        self.leaving += BLOCK;
        Some(head)
    }

    /// Frees a whole pageblock, held or leaving, that has no memory any more.
    pub(super) fn give_absent(&mut self, records: &mut Records, head: u32) {
        assert_eq!(records[head].order, Order::HUGE, "only whole pageblocks lose their memory");
        match records[head].place {
            FrameState::Leaving => self.leaving -= BLOCK,
            _ => self.taken -= BLOCK,
        }
        *self.block_mut(head) = Block::unused(Memory::Absent);
        self.link(records, head, Order::HUGE, Memory::Absent);
    }

    /// Adds a pageblock that was never used, free and without memory.
    fn grow(&mut self, records: &mut Records) -> u32 {
        if self.blocks.len() == self.nr_blocks_max {
            return NONE;
        }
        assert!(self.blocks.len() < self.blocks.capacity(), "the pageblocks never move");
        let head = self.id_of(self.blocks.len()).first_frame();
        self.blocks.push(Block::unused(Memory::Absent));
        records.grow(BLOCK);
        self.link(records, head, Order::HUGE, Memory::Absent);
        head
    }

    /// Frees the upper half of the run of order k + 1 at `head`, for each k of `exponents`: what taking its start
    /// leaves.
    fn free_upper_halves(&mut self, records: &mut Records, head: u32, exponents: std::ops::Range<u8>) {
        for k in exponents {
            self.link(records, head + (1 << k), order_of(k), Memory::Small);
        }
    }

    /// Takes a run that is in no chain.
    pub(super) fn hold(&mut self, records: &mut Records, head: u32, order: Order) {
        let record = &mut records[head];
        (record.order, record.place) = (order, FrameState::Held);
        self.taken += order.nr_pages();
        self.block_mut(head).nr_taken += order.nr_pages() as u16;
    }

    fn link(&mut self, records: &mut Records, head: u32, order: Order, memory: Memory) {
        let record = &mut records[head];
        record.order = order;
        record.place = match memory {
            Memory::Absent => FrameState::Absent,
            Memory::Huge | Memory::Small => FrameState::Free,
        };
        if memory != Memory::Absent {
            self.free += order.nr_pages();
        }
        self.chains[chain_of(order, memory)].push_head(records, head);
    }

    /// Takes a free run out of its chain. It is in no state until the caller places it.
    pub(super) fn unlink(&mut self, records: &mut Records, head: u32) {
        let (order, memory) = (records[head].order, self.memory(head));
        if memory != Memory::Absent {
            self.free -= order.nr_pages();
        }
        self.chains[chain_of(order, memory)].unlink(records, head);
    }
}

pub(super) fn order_of(exponent: u8) -> Order {
    Order::new(exponent).expect("runs lie within a pageblock")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: [Memory; 3] = [Memory::Huge, Memory::Absent, Memory::Small];

    fn buddy(nr_blocks: usize) -> (Records, Buddy) {
        (Records::with_capacity(nr_blocks * BLOCK), Buddy::new(0, nr_blocks))
    }

    fn lens(buddy: &Buddy) -> Vec<usize> {
        buddy.chains.iter().map(|chain| chain.len).collect()
    }

    #[test]
    fn carving_leaves_one_run_of_each_larger_order_and_giving_joins_them() {
        for k in 0..MAX_ORDER {
            let (mut records, mut buddy) = buddy(1);
            let taken = buddy.take_whole(&mut records, &WHOLE).unwrap();
            assert_eq!(taken, Taken { frame: FrameId::new(0), order: Order::HUGE, memory: Memory::Absent });
            buddy.carve(&mut records, 0, order_of(k));
            let expected: Vec<_> = (0..NR_CHAINS).map(|at| usize::from((k as usize..9).contains(&at))).collect();
            assert_eq!(lens(&buddy), expected);
            assert_eq!((buddy.free, buddy.taken), (BLOCK - (1 << k), 1 << k));
            buddy.give(&mut records, 0);
            assert_eq!(buddy.chains[9].len, 1);
            assert_eq!((lens(&buddy).iter().sum::<usize>(), buddy.free), (1, BLOCK));
        }
    }

    #[test]
    fn the_smallest_sufficient_run_is_divided() {
        let (mut records, mut buddy) = buddy(2);
        for head in [0, BLOCK as u32] {
            buddy.take_whole(&mut records, &WHOLE).unwrap();
            buddy.carve(&mut records, head, Order::PAGE);
        }
        assert_eq!(buddy.take_part(&mut records, order_of(8), true).unwrap().frame.get() % 512, 256);
        assert_eq!(buddy.take_part(&mut records, order_of(2), true).unwrap().frame.get() % 512, 4);
        // The pageblock that lost those has five larger runs; the other has the one of order 2 and all larger ones.
        assert_eq!(buddy.runs_from(order_of(2)), 5 + 7);
        assert_eq!(buddy.runs_from(order_of(8)), 1);
        let expected = [2, 2, 1, 2, 2, 2, 2, 2, 1, 0, 0, 0];
        assert_eq!(lens(&buddy), expected);
        assert_eq!(buddy.free, 2 * (BLOCK - 1) - 256 - 4);
    }

    #[test]
    fn runs_do_not_join_across_pageblocks_or_with_taken_frames() {
        let (mut records, mut buddy) = buddy(2);
        for head in [0, BLOCK as u32] {
            buddy.take_whole(&mut records, &WHOLE).unwrap();
            buddy.carve(&mut records, head, order_of(8));
        }
        let held = [0; 2].map(|_| buddy.take_part(&mut records, order_of(8), true).unwrap().frame.get());
        buddy.give(&mut records, 256);
        buddy.give(&mut records, 512);
        assert_eq!((buddy.chains[8].len, buddy.chains[9].len), (2, 0));
        buddy.give(&mut records, 0);
        assert_eq!((buddy.chains[8].len, buddy.chains[9].len), (1, 1));
        assert!(held.contains(&768));
        assert_eq!(buddy.take_whole(&mut records, &WHOLE).unwrap().memory, Memory::Small);
        assert_eq!(buddy.memory(0), Memory::Huge);
    }
}
