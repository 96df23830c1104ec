//! The choice of an order: whether a block that comes back is read whole or in parts.
//!
//! User space cannot see which pages of a mapped huge page are used, so some blocks come back in parts, in pages or
//! pieces ([`Neighbours`](crate::Neighbours)), and their faults are counted: every block of which that is believed,
//! and of the others a *sample*. A block is *dense* once enough of its pages were touched in one *lifetime*, the number
//! of faults after which it would leave RAM again, about the number of blocks that RAM holds; it is gathered into one
//! folio then. Enough is three eighths, so that whole blocks move at most four times the bytes even if some are less
//! dense; more if the touched pages alone would have stayed in RAM since the block left (`enough`). Otherwise it is
//! *sparse*. Unknown blocks follow the *belief* of their 64 MiB neighbourhood, or else of the arena, on which samples
//! and verdicts vote.
//!
//! **Pages that would fit.** Where little has left RAM since a folio did, its touched pages would have stayed: its
//! block comes back in parts, unless it was dense lately. Whole blocks in RAM hide pages that are not used. So once as
//! many pages have come back soon as a block has, the oldest whole block is divided where it is.
//!
//! **Streams** read whole blocks ahead. Some of these, the *probes*, come back page by page too. A stream that passes a
//! probe without using it ends, and what probes showed tells how many there are, and how far streams may read.
//! **Doubt is cheap, trust is not:** blocks by pages are all observed, whole ones are not. So every block
//! is a sample until whole ones have proved right, and each sparse sample halves what speaks for whole blocks.
//!
//! **Clock.** One tick per fault on swapped content or on a clean whole block, unless one of the last faults was of the
//! same block, and one per block that a stream has passed: the same faults give the same choices. **Locking.** One
//! mutex, a leaf; nothing allocates.

use crate::id::BlockId;
use crate::order::{BLOCK_PAGES, Order, PIECE};
use crate::policy::belief::{Belief, FLIP};
use crate::policy::history::{History, MOST_STEP, Verdict};
use crate::sync::{Mutex, lock};
use std::ops::Range;

/// Touches from which a block is dense, however many pages would have stayed in RAM. Of a walk in pieces not all are
/// seen.
const MOST_ENOUGH: u16 = 320;
/// No block has so many pages: none is judged by them.
const NEVER_ENOUGH: u16 = 2 * BLOCK_PAGES as u16;
/// Pressure is mild while less than one part in so many of RAM has left.
const MILD_SHARE: usize = 4;
/// Lifetimes for which a verdict on a block stands; then it follows the belief again.
const AGE: u32 = 8;
const LIFETIME_MAX: u32 = 256;
/// Ticks without a fault of a sample after which it is counted as sparse for the time being. While a thread walks
/// through its block, each of the others may tick.
const PATIENCE: u32 = 64;
/// Votes that flip the belief of a neighbourhood, and the most that are kept.
const NEAR_FLIP: i32 = 4;
const NEAR_MAX: i32 = 8;
/// Blocks of a neighbourhood, as a power of two: 64 MiB.
const NEIGHBOURS_SHIFT: u32 = 5;
const NEIGHBOURHOODS: usize = 1024;
/// Recent faults; another one of their blocks does not advance the clock. As many as RAM holds blocks, within bounds.
const RECENT_MIN: usize = 8;
const RECENT_MAX: usize = 64;
/// Samples in progress at once.
const SAMPLES: usize = 64;

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

impl Wish {
    /// All of them, by their numbers.
    pub(crate) const ALL: [Wish; 3] = [Wish::None, Wish::Whole, Wish::Pages];
}

/// How a block's content is to come back.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Choice {
    /// The whole block as one folio.
    Whole,
    /// Only the touched folio, of this order at most.
    Part(Order),
}

/// How the RAM stands that a block comes back to.
#[derive(Copy, Clone, Debug)]
pub struct Pressure {
    /// Blocks that RAM holds.
    pub budget_blocks: usize,
    /// Pages that have left RAM since the block left it; 0: it has not.
    pub nr_left_since: usize,
    /// The same since the touched folio left it. `None`: it has not.
    pub folio_left_since: Option<usize>,
    /// Pages that are used of each folio that is touched.
    pub used_of_folio: usize,
}

impl Pressure {
    /// Whether so few have left since the folio that RAM would have held the block's touched pages, and perhaps those
    /// of all blocks.
    fn is_mild(self) -> bool {
        self.folio_left_since.is_some_and(|nr_left| nr_left < self.budget_blocks * BLOCK_PAGES / MILD_SHARE)
    }

    /// Whether a page came back soon that had left a RAM of so many pages by itself: others in RAM are less used, those
    /// of whole blocks perhaps.
    #[must_use]
    pub fn is_soon(nr_left_since: usize, nr_ram: usize) -> bool {
        nr_left_since < nr_ram / 2
    }

    fn lifetime(self) -> u32 {
        self.budget_blocks.clamp(16, LIFETIME_MAX as usize) as u32
    }
}

/// Touches from which a block is dense, if they are [`DENSE`](super::history::DENSE) at least: more than the share at
/// which the touched pages of all blocks would have stayed in RAM since this one left, with some room.
fn enough(pressure: Pressure) -> u16 {
    if pressure.is_mild() {
        return NEVER_ENOUGH;
    }
    let ram = pressure.budget_blocks.max(1) * Order::HUGE.nr_pages();
    let fits = Order::HUGE.nr_pages() * ram / (ram + pressure.nr_left_since) * 13 / 10;
    (fits as u16).clamp(BLOCK_PAGES as u16 / MOST_STEP, MOST_ENOUGH)
}

#[derive(Copy, Clone)]
struct Sample {
    block: BlockId,
    since: u32,
    /// A stream reads around it.
    is_probe: bool,
}

struct Record {
    now: u32,
    /// The ticks of faults alone, by which samples age.
    nr_faults: u32,
    /// The blocks of the last faults, a ring, and where the latest is.
    recent: [Option<BlockId>; RECENT_MAX],
    latest: usize,
    /// Of all blocks that are not read ahead, and of those that are.
    all: Belief,
    streams: Belief,
    /// Votes of the blocks of each neighbourhood; distant ones may share an entry.
    neighbours: [i8; NEIGHBOURHOODS],
    samples: [Option<Sample>; SAMPLES],
}

impl Record {
    fn new() -> Self {
        Record {
            now: 0,
            nr_faults: 0,
            recent: [None; RECENT_MAX],
            latest: 0,
            all: Belief::ALL,
            streams: Belief::STREAMS,
            neighbours: [0; NEIGHBOURHOODS],
            samples: [None; SAMPLES],
        }
    }

    /// Counts a fault, unless its block is a recent one: a whole block would not have faulted again.
    fn tick(&mut self, block: BlockId, pressure: Pressure) {
        let recent = &self.recent[..pressure.budget_blocks.clamp(RECENT_MIN, RECENT_MAX)];
        if !recent.contains(&Some(block)) {
            self.now = self.now.wrapping_add(1);
            self.nr_faults = self.nr_faults.wrapping_add(1);
        }
        self.latest = (self.latest + 1) % recent.len();
        self.recent[self.latest] = Some(block);
    }

    fn vote(&mut self, block: BlockId, dense: bool) {
        let near = &mut self.neighbours[neighbourhood(block)];
        // Old dense votes of a neighbourhood go fast.
        let vote = match dense {
            true => 2,
            false if *near > 0 => -2,
            false => -1,
        };
        *near = (i32::from(*near) + vote).clamp(-NEAR_MAX, NEAR_MAX) as i8;
        self.all.vote(dense);
    }

    fn is_sparse(&self, block: BlockId) -> bool {
        match i32::from(self.neighbours[neighbourhood(block)]) {
            near if near <= -NEAR_FLIP => true,
            near if near >= NEAR_FLIP => false,
            _ => self.all.is_sparse,
        }
    }

    /// Gives a sample in use more time.
    fn refresh(&mut self, block: BlockId) {
        let now = self.nr_faults;
        if let Some(sample) = self.samples.iter_mut().flatten().find(|sample| sample.block == block && !sample.is_probe)
        {
            sample.since = now;
        }
    }

    /// Votes for samples that were not found dense for long, and ends them. Probes wait for their stream.
    fn expire(&mut self, lifetime: u32) {
        for index in 0..SAMPLES {
            if let Some(sample) = self.samples[index]
                && self.nr_faults.wrapping_sub(sample.since) > if sample.is_probe { lifetime } else { PATIENCE }
            {
                self.samples[index] = None;
                if !sample.is_probe {
                    self.vote(sample.block, false);
                }
            }
        }
    }

    /// Begins a sample, in place of the oldest if there are many.
    fn begin_sample(&mut self, block: BlockId, is_probe: bool) {
        let now = self.nr_faults;
        let age = |sample: &Option<Sample>| sample.map_or(u32::MAX, |sample| now.wrapping_sub(sample.since));
        if let Some(place) = self.samples.iter_mut().max_by_key(|sample| age(sample)) {
            *place = Some(Sample { block, since: now, is_probe });
        }
    }

    /// The choice for a block of which nothing is known, or that was dense.
    fn trusted(&mut self, block: BlockId, was_dense: bool) -> Choice {
        let is_sparse = match was_dense {
            true => i32::from(self.neighbours[neighbourhood(block)]) <= -NEAR_FLIP,
            false => self.is_sparse(block),
        };
        if is_sparse {
            return Choice::Part(PIECE);
        }
        if self.all.wants_sample() {
            self.begin_sample(block, false);
            return Choice::Part(self.all.order_of_sample());
        }
        Choice::Whole
    }

    fn take_sample(&mut self, block: BlockId) -> Option<Sample> {
        self.samples.iter_mut().find(|sample| sample.is_some_and(|sample| sample.block == block))?.take()
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
    /// Forgets everything, also what was found out about single blocks: a forked child does something else.
    pub fn forget(&self) {
        let mut record = lock(&self.record);
        *record = Record { now: record.now.wrapping_add(AGE * LIFETIME_MAX + 1), ..Record::new() };
    }

    /// Whether a block in the window of a stream is to be a probe: it is not read ahead.
    pub fn probes(&self, block: BlockId) -> bool {
        let mut record = lock(&self.record);
        let probes = record.streams.is_sparse || record.streams.wants_sample();
        if probes {
            record.begin_sample(block, true);
        }
        probes
    }

    /// Whether streams have proved right lately, so that they may read far ahead.
    pub fn trusts_streams(&self) -> bool {
        lock(&self.record).streams.votes >= FLIP
    }

    /// Records that a stream has passed these blocks. `false`: it did not use a probe among them.
    pub fn streamed(&self, blocks: Range<BlockId>) -> bool {
        let mut record = lock(&self.record);
        record.now = record.now.wrapping_add(blocks.end.get() - blocks.start.get());
        let mut used = true;
        for index in 0..SAMPLES {
            if let Some(sample) = record.samples[index]
                && sample.is_probe
                && blocks.contains(&sample.block)
            {
                record.samples[index] = None;
                record.streams.vote(false);
                used = false;
            }
        }
        if used && record.streams.votes >= 0 {
            for block in BlockId::each(blocks) {
                let near = &mut record.neighbours[neighbourhood(block)];
                *near = (*near + 1).min(NEAR_FLIP as i8).max(*near);
            }
        }
        used
    }

    /// How to bring back a block of `nr_folios` folios (1: it is whole) after a fault of its folio at `index`, on its
    /// swapped content or on a whole block that is clean and on standby.
    pub fn choose(
        &self,
        block: BlockId,
        history: &mut History,
        nr_folios: usize,
        index: usize,
        pressure: Pressure,
    ) -> Choice {
        let lifetime = pressure.lifetime();
        let mut record = lock(&self.record);
        record.tick(block, pressure);
        record.refresh(block);
        record.expire(lifetime);
        let is_split = nr_folios > 1;
        if is_split && history.enough > 0 {
            let mut age = (record.now as u16).wrapping_sub(history.since);
            if history.continues(index) {
                age /= 2; // a block that is touched again so soon would have stayed in RAM as a whole
                history.since = (record.now as u16).wrapping_sub(age);
            }
            if u32::from(age) <= lifetime {
                return touched_part(&mut record, block, history, (nr_folios, index), pressure.used_of_folio);
            }
            if history.enough < NEVER_ENOUGH {
                // Neighbours may have been touched since the last fault.
                let is_dense = history.is_dense();
                (history.verdict, history.judged_at) =
                    (if is_dense { Verdict::Dense } else { Verdict::Sparse }, record.now);
                record.vote(block, is_dense);
            }
        }
        let fresh = record.now.wrapping_sub(history.judged_at) < AGE * lifetime;
        let is_probe = record.samples.iter().flatten().any(|sample| sample.block == block);
        let choice = match history.verdict {
            _ if is_probe => Choice::Part(record.streams.order_of_sample()),
            Verdict::Sparse if fresh => Choice::Part(PIECE),
            verdict if pressure.is_mild() && !(verdict == Verdict::Dense && fresh) => Choice::Part(PIECE),
            verdict => record.trusted(block, verdict == Verdict::Dense && fresh),
        };
        if choice != Choice::Whole {
            history.begin(record.now, enough(pressure));
        }
        choice
    }

    /// Whether a block of which nothing is known comes back by pages.
    pub fn believes_sparse(&self, block: BlockId) -> bool {
        lock(&self.record).is_sparse(block)
    }
}

/// Counts a fault in a split block, and judges the block.
fn touched_part(
    record: &mut Record,
    block: BlockId,
    history: &mut History,
    (nr_folios, index): (usize, usize),
    used_of_folio: usize,
) -> Choice {
    let nr_folios_touched =
        usize::from(1 + history.used_ahead(index)) * history.weight(index, used_of_folio * nr_folios);
    let touches = nr_folios_touched * used_of_folio;
    history.touches = history.touches.saturating_add(touches.min(BLOCK_PAGES) as u16);
    let in_row = history.continues(index) && history.is_many_in_row(nr_folios, used_of_folio);
    if history.is_dense() || in_row {
        history.end_dense(record.now);
        let sample = record.take_sample(block);
        if in_row || sample.is_some_and(|sample| sample.is_probe) {
            record.streams.vote(true);
        }
        record.vote(block, true);
        return Choice::Whole;
    }
    Choice::Part(PIECE)
}

impl Default for OrderChoice {
    fn default() -> Self {
        // Believes that blocks are dense, until shown otherwise.
        OrderChoice { record: Mutex::new(Record::new()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::row::Row;

    const PRESSURE: Pressure =
        Pressure { budget_blocks: 256, nr_left_since: 1 << 30, folio_left_since: Some(1 << 30), used_of_folio: 1 };

    /// Blocks that come back as chosen; the flag tells whether a block is whole.
    struct Machine {
        choice: OrderChoice,
        pressure: Pressure,
        blocks: Vec<(History, bool)>,
        /// What was read ahead last in each block.
        read: Vec<Row>,
    }

    impl Machine {
        fn new(nr_blocks: usize) -> Self {
            Machine {
                choice: OrderChoice::default(),
                pressure: PRESSURE,
                blocks: vec![(History::default(), true); nr_blocks],
                read: vec![Row::default(); nr_blocks],
            }
        }

        fn fault(&mut self, block: usize, page: usize) -> Choice {
            let (history, whole) = &mut self.blocks[block];
            let nr_folios = if *whole { 1 } else { 512 };
            let choice = self.choice.choose(BlockId::from_index(block), history, nr_folios, page, self.pressure);
            *whole = choice == Choice::Whole;
            let ahead = if *whole { Row::default() } else { history.ahead(page, 512) };
            history.note(page, nr_folios, 1);
            history.note_ahead(ahead);
            self.read[block] = ahead;
            choice
        }

        /// Walks through a block. Returns the number of faults.
        fn walk(&mut self, block: usize) -> usize {
            let mut faults = 0;
            for page in 0..512 {
                if faults > 0 && self.read[block].iter().any(|read| read == page) {
                    continue;
                }
                faults += 1;
                if self.fault(block, page) == Choice::Whole {
                    break;
                }
            }
            faults
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
        assert!(whole < 100, "{whole} of 5000 came back whole");
    }

    #[test]
    fn streams_come_back_whole_all_but_a_few() {
        let mut machine = Machine::new(4096);
        let mut faults = 0;
        for block in 0..4096 {
            faults += machine.walk(block);
        }
        assert!(!machine.choice.believes_sparse(BlockId::new(0)));
        assert!(faults < 4096 * 6 / 5, "{faults} faults for 4096 blocks");
    }

    /// Each thread walks through its own blocks. They fault by turns; what was read ahead takes no turn.
    #[test]
    fn streams_of_many_threads_come_back_whole_all_but_a_few() {
        for (nr_threads, budget_blocks) in [(1, 64), (2, 64), (4, 64), (8, 64), (16, 128), (16, 256), (32, 256)] {
            let mut machine = Machine::new(2048);
            machine.pressure.budget_blocks = budget_blocks;
            let each = 2048 / nr_threads;
            let mut at: Vec<(usize, usize)> = (0..nr_threads).map(|thread| (thread * each, 0)).collect();
            let mut faults = 0;
            while at.iter().enumerate().any(|(thread, &(block, _))| block < (thread + 1) * each) {
                for (thread, (block, page)) in at.iter_mut().enumerate() {
                    while *page > 0 && machine.read[*block].iter().any(|read| read == *page) {
                        (*block, *page) = if *page == 511 { (*block + 1, 0) } else { (*block, *page + 1) };
                    }
                    if *block == (thread + 1) * each {
                        continue;
                    }
                    faults += 1;
                    let choice = machine.fault(*block, *page);
                    let is_over = choice == Choice::Whole || *page == 511;
                    (*block, *page) = if is_over { (*block + 1, 0) } else { (*block, *page + 1) };
                }
            }
            // Of more threads, samples in use are taken for sparse now and then.
            let most = if nr_threads <= 16 { 2048 * 5 / 4 } else { 2048 * 2 };
            assert!(faults < most, "{nr_threads} threads: {faults} faults for 2048 blocks");
        }
    }

    /// As in small mappings, of which the kernel places each new one below the last.
    #[test]
    fn what_is_walked_through_in_pieces_comes_back_whole() {
        for piece in [8, 16, 64, 128] {
            let mut machine = Machine::new(400);
            machine.pressure.nr_left_since = 1000; // nearly all touched pages would have stayed in RAM
            let mut by_pages = 0;
            for block in (0..400).rev() {
                let mut read = Vec::new();
                let pieces = (0..512).step_by(piece).rev();
                for (at, page) in pieces.flat_map(|first| first..first + piece).enumerate() {
                    if read.contains(&page) {
                        continue;
                    }
                    let choice = machine.fault(block, page);
                    by_pages += usize::from(at == 0 && choice != Choice::Whole);
                    if choice == Choice::Whole {
                        break;
                    }
                    read.extend(machine.read[block].iter().chain([page]));
                }
            }
            assert!(by_pages < 40, "pieces of {piece} pages: {by_pages} of 400 blocks came back by pages");
        }
    }

    #[test]
    fn a_block_that_left_in_pieces_follows_the_belief_too() {
        let mut machine = Machine::new(1024);
        for block in 0..512 {
            machine.walk(block);
        }
        machine.blocks[512..].iter_mut().for_each(|(_, is_whole)| *is_whole = false);
        let faults: usize = (512..1024).map(|block| machine.walk(block)).sum();
        assert!(faults < 512 * 6 / 5, "{faults} faults for 512 blocks");
    }

    /// A column of a matrix touches one page in so many. Its blocks come back whole if that moves no more than four
    /// times as much.
    #[test]
    fn columns_take_few_faults() {
        for (step, most_faults, is_whole) in [(2, 6, true), (4, 6, true), (5, 8, false), (20, 6, false)] {
            let mut machine = Machine::new(400);
            machine.choice.record.lock().unwrap().all.is_sparse = true;
            let (mut faults, mut whole) = (0, 0);
            for block in 0..400 {
                let mut read = Vec::new();
                for page in (0..512).step_by(step) {
                    if read.contains(&page) {
                        continue;
                    }
                    faults += 1;
                    if machine.fault(block, page) == Choice::Whole {
                        whole += 1;
                        break;
                    }
                    read.extend(machine.read[block].iter());
                }
            }
            assert!(faults <= 400 * most_faults, "one page in {step}: {faults} faults");
            assert_eq!(whole > 300, is_whole, "one page in {step}: {whole} whole");
            assert!(is_whole || whole == 0, "one page in {step}: {whole} whole");
        }
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
            machine.walk(block);
        }
        assert!(!machine.choice.believes_sparse(BlockId::new(0)));
    }
}
