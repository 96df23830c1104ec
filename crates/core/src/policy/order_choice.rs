//! The choice of an order: whether a block that comes back is read whole or page by page.
//!
//! User space cannot see which pages of a mapped huge page are used, so a sample of blocks comes back page by page and
//! its faults are counted. A whole block costs one large read; by pages it costs a read per page touched during its
//! *lifetime*, the number of faults after which it would leave RAM again, about the number of blocks that RAM holds. A
//! block with [`DENSE`] touches, or [`RUN`] in a row, is *dense* and gathered into one folio; otherwise it is *sparse*.
//! Unknown blocks follow the *belief* of their 64 MiB neighbourhood, or else of the arena, on which samples, verdicts
//! and streams vote.
//!
//! **Clock.** One tick per fault on swapped content or on a clean whole block, except repeated faults on the last few
//! blocks: the same faults give the same choices. **Locking.** One mutex, a leaf; nothing allocates.

use crate::id::BlockId;
use crate::order::Order;
use crate::sync::{Mutex, lock};
use std::ops::Range;

/// Pages touched in one lifetime from which reading the block whole is cheaper.
pub const DENSE: u16 = 32;
/// Folios touched consecutively that show that a block is being streamed through.
pub const RUN: u8 = 8;
/// Folios touched consecutively that hint at a stream.
const ROW: u8 = 4;
/// Lifetimes for which a verdict on a block stands; then it follows the belief again.
const AGE: u32 = 8;
/// Votes that flip the belief, and the most that are kept.
const FLIP: i32 = 8;
const VOTES_MAX: i32 = 24;
/// The same for a neighbourhood.
const NEAR_FLIP: i32 = 4;
const NEAR_MAX: i32 = 8;
/// Blocks of a neighbourhood, as a power of two: 64 MiB.
const NEIGHBOURS_SHIFT: u32 = 5;
const NEIGHBOURHOODS: usize = 1024;
/// Recently faulting blocks, whose repeated faults do not advance the clock.
const RECENT: usize = 8;
/// Samples in progress at once.
const SAMPLES: usize = 16;
/// One unknown block in this many is a sample: at first, and once all kept votes say dense.
const SAMPLE_FIRST: u32 = 8;
const SAMPLE_SURE: u32 = 64;

/// What a block's faults have shown, kept with the block.
#[derive(Copy, Clone, Debug, Default)]
pub struct History {
    /// Start of the lifetime in which touches are counted.
    since: u32,
    judged_at: u32,
    touches: u16,
    /// The folio of the last fault, and the length of the row that ended there.
    last: u16,
    run: u8,
    verdict: Verdict,
}

impl History {
    /// Records a fault of the folio at `index` of its split block. Returns whether it is one of several in a row.
    pub fn note(&mut self, index: usize) -> bool {
        let next = index.abs_diff(usize::from(self.last)) == 1;
        self.run = if next { self.run.saturating_add(1) } else { 1 };
        self.last = index as u16;
        self.run >= ROW
    }
}

#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
enum Verdict {
    #[default]
    None,
    Dense,
    Sparse,
}

/// The program's advice for a block.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Wish {
    /// None.
    #[default]
    None,
    /// In one piece (as `MADV_HUGEPAGE`).
    Whole,
    /// Page by page (as `MADV_NOHUGEPAGE`).
    Pages,
}

/// How a block's content is to come back.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Choice {
    /// The whole block as one folio.
    Whole,
    /// Only the touched folio, of this order.
    Part(Order),
}

#[derive(Copy, Clone)]
struct Sample {
    block: BlockId,
    since: u32,
    touches: u16,
}

struct Record {
    now: u32,
    recent: [Option<BlockId>; RECENT],
    /// Of all blocks. Above zero: dense; below: sparse.
    votes: i32,
    believes_sparse: bool,
    /// Votes of the blocks of each neighbourhood; distant ones may share an entry.
    neighbours: [i8; NEIGHBOURHOODS],
    /// Unknown blocks since the last sample.
    unknown: u32,
    samples: [Option<Sample>; SAMPLES],
}

impl Record {
    fn new() -> Self {
        Record {
            now: 0,
            recent: [None; RECENT],
            votes: 0,
            believes_sparse: false,
            neighbours: [0; NEIGHBOURHOODS],
            unknown: 0,
            samples: [None; SAMPLES],
        }
    }

    /// Counts a fault, unless its block is a recent one: a whole block would not have faulted again.
    fn tick(&mut self, block: BlockId) {
        if !self.recent.contains(&Some(block)) {
            self.recent[self.now as usize % RECENT] = Some(block);
            self.now = self.now.wrapping_add(1);
        }
    }

    fn vote(&mut self, block: BlockId, dense: bool) {
        // A dense block was often voted sparse before, for a lifetime in which it was not touched.
        let vote = if dense { 2 } else { -1 };
        let near = &mut self.neighbours[neighbourhood(block)];
        // Old dense votes of a neighbourhood go fast.
        let near_vote = if *near > 0 && !dense { 2 * vote } else { vote };
        *near = (i32::from(*near) + near_vote).clamp(-NEAR_MAX, NEAR_MAX) as i8;
        self.votes = (self.votes + vote).clamp(-VOTES_MAX, VOTES_MAX);
        if self.votes <= -FLIP {
            self.believes_sparse = true;
        } else if self.votes >= FLIP {
            self.believes_sparse = false;
        }
    }

    fn is_sparse(&self, block: BlockId) -> bool {
        match i32::from(self.neighbours[neighbourhood(block)]) {
            near if near <= -NEAR_FLIP => true,
            near if near >= NEAR_FLIP => false,
            _ => self.believes_sparse,
        }
    }

    /// Votes for samples whose lifetime has passed, and ends them.
    fn expire(&mut self, lifetime: u32) {
        for index in 0..SAMPLES {
            if let Some(sample) = self.samples[index]
                && self.now.wrapping_sub(sample.since) > lifetime
            {
                self.samples[index] = None;
                self.vote(sample.block, sample.touches >= DENSE);
            }
        }
    }

    /// The choice for a block of which nothing is known.
    fn unknown(&mut self, block: BlockId) -> Choice {
        if self.is_sparse(block) {
            return Choice::Part(Order::PAGE);
        }
        self.unknown += 1;
        let every = if self.votes == VOTES_MAX { SAMPLE_SURE } else { SAMPLE_FIRST };
        match self.samples.iter_mut().find(|sample| sample.is_none()) {
            Some(vacant) if self.unknown >= every => {
                *vacant = Some(Sample { block, since: self.now, touches: 1 });
                self.unknown = 0;
                Choice::Part(Order::PAGE)
            }
            _ => Choice::Whole,
        }
    }

    fn sample(&mut self, block: BlockId) -> Option<&mut Option<Sample>> {
        self.samples.iter_mut().find(|sample| sample.is_some_and(|sample| sample.block == block))
    }
}

fn neighbourhood(block: BlockId) -> usize {
    (block.index() >> NEIGHBOURS_SHIFT) % NEIGHBOURHOODS
}

/// The choice for the blocks of one arena.
pub struct OrderChoice {
    record: Mutex<Record>,
}

impl OrderChoice {
    /// Believes that blocks are dense, until shown otherwise.
    pub fn new() -> Self {
        OrderChoice { record: Mutex::new(Record::new()) }
    }

    /// Records that a stream has passed these blocks again: their neighbourhoods count as dense.
    pub fn streamed(&self, blocks: Range<BlockId>) {
        let mut record = lock(&self.record);
        for block in BlockId::each(blocks) {
            let near = &mut record.neighbours[neighbourhood(block)];
            *near = (*near + 1).min(NEAR_FLIP as i8).max(*near);
        }
    }

    /// How to bring back a block of `nr_folios` folios (1: it is whole) after a fault on its swapped content, or on a
    /// whole block that is clean and on standby. `lifetime` is the number of blocks that RAM holds.
    pub fn choose(&self, block: BlockId, history: &mut History, nr_folios: usize, lifetime: usize) -> Choice {
        let lifetime = lifetime.clamp(16, 256) as u32;
        let mut record = lock(&self.record);
        record.tick(block);
        record.expire(lifetime);
        if nr_folios > 1 {
            // For larger folios, touching a quarter of them tells as much as touching DENSE pages.
            let dense = usize::from(DENSE).min((nr_folios / 4).max(2)) as u16;
            return touched_part(&mut record, block, history, dense, lifetime);
        }
        let fresh = record.now.wrapping_sub(history.judged_at) < AGE * lifetime;
        let choice = match history.verdict {
            Verdict::Dense if fresh => Choice::Whole,
            Verdict::Sparse if fresh => Choice::Part(Order::PAGE),
            _ => record.unknown(block),
        };
        if choice != Choice::Whole {
            let now = record.now;
            *history = History { since: now, touches: 1, ..*history };
        }
        choice
    }

    /// Whether a block of which nothing is known comes back by pages.
    pub fn believes_sparse(&self, block: BlockId) -> bool {
        lock(&self.record).is_sparse(block)
    }
}

/// Counts a fault in a split block, and judges the block.
fn touched_part(record: &mut Record, block: BlockId, history: &mut History, dense: u16, lifetime: u32) -> Choice {
    if record.now.wrapping_sub(history.since) > lifetime {
        if history.touches < dense {
            (history.verdict, history.judged_at) = (Verdict::Sparse, record.now);
            record.vote(block, false);
        }
        (history.since, history.touches) = (record.now, 0);
    }
    history.touches = history.touches.saturating_add(1);
    if history.touches >= dense || history.run >= RUN {
        *history = History { verdict: Verdict::Dense, judged_at: record.now, ..History::default() };
        if let Some(sample) = record.sample(block) {
            *sample = None;
        }
        record.vote(block, true);
        return Choice::Whole;
    }
    if let Some(Some(sample)) = record.sample(block) {
        sample.touches = history.touches;
    }
    Choice::Part(Order::PAGE)
}

impl Default for OrderChoice {
    fn default() -> Self {
        OrderChoice::new()
    }
}

impl std::fmt::Debug for OrderChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let record = lock(&self.record);
        f.debug_struct("OrderChoice").field("votes", &record.votes).field("sparse", &record.believes_sparse).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: usize = 256;

    /// Blocks that come back as chosen; the flag tells whether a block is whole.
    struct Machine {
        choice: OrderChoice,
        blocks: Vec<(History, bool)>,
    }

    impl Machine {
        fn new(nr_blocks: usize) -> Self {
            Machine { choice: OrderChoice::new(), blocks: vec![(History::default(), true); nr_blocks] }
        }

        fn fault(&mut self, block: usize, page: usize) -> Choice {
            let (history, whole) = &mut self.blocks[block];
            let choice =
                self.choice.choose(BlockId::from_index(block), history, if *whole { 1 } else { 512 }, LIFETIME);
            history.note(page);
            *whole = choice == Choice::Whole;
            choice
        }
    }

    #[test]
    fn random_touches_make_it_believe_in_pages() {
        let mut machine = Machine::new(1024);
        let mut random = fastrand::Rng::with_seed(1);
        let mut whole = 0;
        for _ in 0..5000 {
            let (block, page) = (random.usize(..1024), random.usize(..512));
            whole += usize::from(machine.fault(block, page) == Choice::Whole);
        }
        assert!(machine.choice.believes_sparse(BlockId::new(0)));
        assert!(whole < 700, "{whole} of 5000 came back whole");
    }

    #[test]
    fn streams_come_back_whole_all_but_a_few() {
        let mut machine = Machine::new(4096);
        let mut faults = 0;
        for block in 0..4096 {
            for page in 0..512 {
                faults += 1;
                if machine.fault(block, page) == Choice::Whole {
                    break;
                }
            }
        }
        assert!(!machine.choice.believes_sparse(BlockId::new(0)));
        assert!(faults < 4096 * 6 / 5, "{faults} faults for 4096 blocks");
    }

    #[test]
    fn two_structures_are_used_in_their_own_ways() {
        let mut machine = Machine::new(1024);
        for at in 0..20_000 {
            // Streams in the lower half are read ahead, and pass without a fault.
            machine.choice.streamed(BlockId::from_index(at % 512)..BlockId::from_index(at % 512 + 1));
            machine.fault(512 + at * 7919 % 512, at * 31 % 512);
        }
        assert!(!machine.choice.believes_sparse(BlockId::new(100)));
        assert!(machine.choice.believes_sparse(BlockId::new(900)));
    }

    #[test]
    fn a_change_of_ways_is_noticed() {
        let mut machine = Machine::new(1024);
        for at in 0..6000 {
            machine.fault(at * 7919 % 1024, at * 31 % 512);
        }
        assert!(machine.choice.believes_sparse(BlockId::new(0)));
        for block in 0..1024 {
            for page in 0..512 {
                if machine.fault(block, page) == Choice::Whole {
                    break;
                }
            }
        }
        assert!(!machine.choice.believes_sparse(BlockId::new(0)));
    }
}
