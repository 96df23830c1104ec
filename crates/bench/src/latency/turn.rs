//! One turn of `bench latency`: one thread swaps in folios at fixed times, another drops folios and writes them
//! again.
//!
//! The folios are shuffled once and then touched in that order, again and again. More of them are swapped out than
//! RAM holds, so that each one has left RAM when it is touched again, and none is read ahead. The device is more than
//! half full, so that a swap-in frees its slots. The other thread drops a few neighbouring folios at a time, most of
//! them swapped out, and writes them again. It follows the pace of the first thread.

use crate::shared::pages::{Access, PAGE, PAGE_WORDS, PageSet, value};
use crate::shared::records::Data;
use crate::shared::setup::ArenaPlan;
use fastrand::Rng;
use folioswap::{Advice, Arena, FolioSize, Region, StatsSnapshot};
use folioswap_command::exit::Failure;
use folioswap_core::{FaultKind, Histogram, HistogramSnapshot, Order, Phase};
use folioswap_sys::cpu::thread_cpu_time;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One part in this many of the memory is dropped and written again.
const CHURNED_SHARE: usize = 4;
/// Words that a touch reads, checks and writes.
const TOUCHED_WORDS: usize = 8;
/// How many steps the other thread may fall behind before it skips some.
const MOST_BEHIND: u64 = 64;
/// How long the other thread sleeps when it is not behind.
const NAP: Duration = Duration::from_micros(100);
/// One step in this many checks the folios before it drops them, which swaps them in.
const CHECKED_STEPS: u64 = 8;

/// When the folios are touched.
#[derive(Copy, Clone, Debug)]
pub enum Pace {
    /// Each touch starts when the previous one has ended.
    Closed,
    /// So many touches a second, each at its time, however long the others take.
    Open(f64),
}

pub struct Turn<'a> {
    pub plan: ArenaPlan<'a>,
    pub order: Order,
    /// Size of all memory.
    pub bytes: usize,
    pub pace: Pace,
    /// Time before anything is counted.
    pub warm_up: Duration,
    pub time: Duration,
    pub seed: u64,
}

/// The result of one turn, or of several.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Time from when a touch was due until it ended.
    pub due: HistogramSnapshot,
    /// Time from when a touch began until it ended.
    pub touch: HistogramSnapshot,
    /// Swap-ins as the engine timed them, including those of the other thread.
    pub swap_in: HistogramSnapshot,
    /// Time that faults spent in each phase, of one fault in 16.
    pub phases: [HistogramSnapshot; Phase::NR],
    /// Slow swap-ins by their longest phase, if it is known.
    pub slow: [u64; Phase::NR],
    pub seconds: f64,
    /// Part of `seconds` that the touching thread was not on a CPU. It never sleeps by itself: it was preempted or
    /// slept in a fault.
    pub off_cpu_seconds: f64,
    /// Touches that were too late to be made. Only their wait is counted.
    pub nr_given_up: u64,
    pub bad_words: u64,
}

impl Outcome {
    /// Touches a second.
    pub fn rate(&self) -> f64 {
        self.due.count() as f64 / self.seconds.max(1e-9)
    }

    /// Share of the time that the touching thread spent in touches.
    pub fn busy_share(&self) -> f64 {
        self.touch.sum() as f64 / 1e9 / self.seconds.max(1e-9)
    }

    /// Share of touches over 100 us. Half a touch is added: none in a hundred does not prove that there never is one.
    pub fn tail(&self) -> f64 {
        tail(&self.due)
    }

    /// The same share for swap-ins as the engine timed them.
    pub fn engine_tail(&self) -> f64 {
        tail(&self.swap_in)
    }

    /// Share of timed frees over 4 us. Freeing one slot takes 0.3 us, a batch of 64 takes 5 to 20 us, so that this
    /// shows what freeing costs a fault. The tail over 100 us mostly shows how long other work held the CPU.
    pub fn freeing_tail(&self) -> f64 {
        const EDGE_NS: u64 = 4096;
        let frees = &self.phases[Phase::Free.index()];
        let below = frees.tail().take_while(|&(upper_ns, _)| upper_ns <= EDGE_NS).last();
        let nr_over = below.map_or(frees.count(), |(_, above)| above);
        (nr_over as f64 + 0.5) / frees.count() as f64
    }

    /// Median time from when a touch was due.
    pub fn p50_ns(&self) -> f64 {
        self.due.quantile(0.5) as f64
    }

    /// Adds the result of another turn.
    pub fn merge(&mut self, other: &Outcome) {
        self.due.merge(&other.due);
        self.touch.merge(&other.touch);
        self.swap_in.merge(&other.swap_in);
        self.phases.iter_mut().zip(&other.phases).for_each(|(sum, phase)| sum.merge(phase));
        self.slow.iter_mut().zip(other.slow).for_each(|(sum, slow)| *sum += slow);
        self.seconds += other.seconds;
        self.off_cpu_seconds += other.off_cpu_seconds;
        self.nr_given_up += other.nr_given_up;
        self.bad_words += other.bad_words;
    }

    fn add_stats(&mut self, from: &StatsSnapshot, to: &StatsSnapshot) {
        self.swap_in = to.fault(FaultKind::SwapIn).since(from.fault(FaultKind::SwapIn));
        self.phases = Phase::ALL.map(|phase| to.phase(phase).since(from.phase(phase)));
        self.slow = Phase::ALL.map(|phase| to.slow(FaultKind::SwapIn, phase) - from.slow(FaultKind::SwapIn, phase));
    }
}

fn tail(times: &HistogramSnapshot) -> f64 {
    let [_, _, slow, slower] = times.bands();
    ((slow + slower) as f64 + 0.5) / times.count() as f64
}

/// Memory that is dropped and written again, in batches of folios.
struct Churned {
    region: Region,
    batch_bytes: usize,
    generations: Vec<u32>,
    bad_words: u64,
}

impl Churned {
    fn new(arena: &Arena, bytes: usize, order: Order) -> Result<Churned, Failure> {
        let batch_bytes = (16 * order.bytes()).min(256 << 10);
        let region = arena.map_with(bytes, FolioSize::Fixed(order))?;
        let mut churned = Churned { region, batch_bytes, generations: vec![0; bytes / batch_bytes], bad_words: 0 };
        (0..churned.generations.len()).for_each(|batch| churned.write(batch));
        Ok(churned)
    }

    fn words(&mut self, batch: usize) -> (u64, &mut [u64]) {
        let start = batch * self.batch_bytes;
        let bytes = &mut self.region[start..start + self.batch_bytes];
        ((start / size_of::<u64>()) as u64, bytemuck::cast_slice_mut(bytes))
    }

    fn write(&mut self, batch: usize) {
        self.generations[batch] += 1;
        let generation = self.generations[batch];
        let (first, words) = self.words(batch);
        words.iter_mut().zip(first..).for_each(|(word, index)| *word = value(index, generation));
    }

    fn check(&mut self, batch: usize) {
        let generation = self.generations[batch];
        let (first, words) = self.words(batch);
        let bad_words = words.iter().zip(first..).filter(|(word, index)| **word != value(*index, generation)).count();
        self.bad_words += bad_words as u64;
    }

    fn renew(&mut self, batch: usize) {
        let start = batch * self.batch_bytes;
        self.region.advise(start..start + self.batch_bytes, Advice::DontNeed);
        self.write(batch);
    }

    /// Drops and rewrites half as many folios as are touched, until `end` is set.
    fn run(&mut self, nr_touched: &AtomicU64, end: &AtomicBool, order: Order, random: &mut Rng) {
        let every = 2 * (self.batch_bytes / order.bytes()) as u64;
        let mut nr_steps = 0;
        while !end.load(Ordering::Relaxed) {
            let due = nr_touched.load(Ordering::Relaxed) / every;
            if nr_steps == due {
                std::thread::sleep(NAP);
                continue;
            }
            nr_steps = (nr_steps + 1).max(due.saturating_sub(MOST_BEHIND));
            let batch = random.usize(..self.generations.len());
            if nr_steps.is_multiple_of(CHECKED_STEPS) {
                self.check(batch);
            }
            self.renew(batch);
        }
    }
}

/// The folios in the order in which they are touched.
struct Rounds {
    folios: Vec<u32>,
    next: usize,
    pages_each: usize,
    random: Rng,
}

impl Rounds {
    fn new(nr_pages: usize, order: Order, mut random: Rng) -> Rounds {
        let mut folios: Vec<u32> = (0..(nr_pages / order.nr_pages()) as u32).collect();
        random.shuffle(&mut folios);
        Rounds { folios, next: 0, pages_each: order.nr_pages(), random }
    }

    fn next_page(&mut self) -> usize {
        let folio = self.folios[self.next] as usize;
        self.next = (self.next + 1) % self.folios.len();
        folio * self.pages_each + self.random.usize(..self.pages_each)
    }
}

/// Touches folios for the duration of the turn and counts from `warm_up` on. Calls `counting` when counting begins.
fn touch(
    turn: &Turn,
    pages: &PageSet,
    rounds: &mut Rounds,
    nr_touched: &AtomicU64,
    counting: impl FnOnce(),
) -> Outcome {
    let (due_times, touch_times) = (Histogram::new(), Histogram::new());
    let begin = Instant::now();
    let counted_from = begin + turn.warm_up;
    let end = counted_from + turn.time;
    let (mut nr, mut nr_given_up, mut bad_words, mut counting) = (0u32, 0, 0, Some(counting));
    let mut ran_before = thread_cpu_time();
    loop {
        let due = match turn.pace {
            Pace::Closed => Instant::now(),
            Pace::Open(rate) => begin + Duration::from_secs_f64(f64::from(nr) / rate),
        };
        if due >= end {
            break;
        }
        // Spins: a thread that slept would be late by the time that waking it takes.
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        if due >= counted_from
            && let Some(counting) = counting.take()
        {
            counting();
            ran_before = thread_cpu_time();
        }
        let (page, first) = (rounds.next_page(), rounds.random.usize(..PAGE_WORDS / TOUCHED_WORDS) * TOUCHED_WORDS);
        let started = Instant::now();
        if started > end + turn.time {
            nr_given_up += 1;
        } else {
            bad_words += pages.access(page, first..first + TOUCHED_WORDS, Access::Change);
        }
        let ended = Instant::now();
        if due >= counted_from {
            due_times.record_alone(ended.duration_since(due).as_nanos() as u64);
            touch_times.record_alone(ended.duration_since(started).as_nanos() as u64);
        }
        nr += 1;
        nr_touched.store(u64::from(nr), Ordering::Relaxed);
    }
    let seconds = counted_from.elapsed().as_secs_f64();
    let off_cpu_seconds = (seconds - (thread_cpu_time() - ran_before).as_secs_f64()).max(0.0);
    let (due, touch) = (due_times.snapshot(), touch_times.snapshot());
    Outcome { due, touch, seconds, off_cpu_seconds, nr_given_up, bad_words, ..Outcome::default() }
}

/// Runs a turn, from the creation of its arena to the check of every word.
pub fn run(turn: &Turn) -> Result<Outcome, Failure> {
    let arena = turn.plan.build()?;
    let block = Order::HUGE.bytes();
    let churned_bytes = turn.bytes / CHURNED_SHARE / block * block;
    let mut churned = Churned::new(&arena, churned_bytes, turn.order)?;
    let mut region = arena.map_with(turn.bytes - churned_bytes, FolioSize::Fixed(turn.order))?;
    let pages = PageSet::fill(bytemuck::cast_slice_mut(&mut region), Data::Plain, 1, &AtomicU64::new(0));
    arena.evict_all();
    let mut rounds = Rounds::new(pages.len(), turn.order, Rng::with_seed(turn.seed));
    let (nr_touched, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut before, mut random) = (None, Rng::with_seed(!turn.seed));
    let mut outcome = std::thread::scope(|scope| {
        scope.spawn(|| churned.run(&nr_touched, &end, turn.order, &mut random));
        let outcome = touch(turn, &pages, &mut rounds, &nr_touched, || before = Some(arena.stats()));
        end.store(true, Ordering::Relaxed);
        outcome
    });
    let after = arena.stats();
    outcome.add_stats(before.as_ref().unwrap_or(&after), &after);
    (0..churned.generations.len()).for_each(|batch| churned.check(batch));
    outcome.bad_words += churned.bad_words + pages.verify(1);
    debug_assert!(pages.len() * PAGE + churned_bytes <= turn.bytes);
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folio_has_its_turn() {
        let order = Order::new(2).expect("an order");
        let mut rounds = Rounds::new(40, order, Rng::with_seed(3));
        let mut first: Vec<_> = (0..10).map(|_| rounds.next_page() / 4).collect();
        let second: Vec<_> = (0..10).map(|_| rounds.next_page() / 4).collect();
        assert_eq!(first, second);
        assert!(!first.is_sorted());
        first.sort_unstable();
        assert_eq!(first, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn the_tail_of_nothing_slow_is_not_nothing() {
        let histogram = Histogram::new();
        (0..100).for_each(|_| histogram.record(50_000));
        let mut outcome = Outcome { due: histogram.snapshot(), seconds: 2.0, ..Outcome::default() };
        assert_eq!((outcome.tail(), outcome.rate()), (0.005, 50.0));
        histogram.record(200_000);
        outcome.merge(&Outcome { due: histogram.snapshot(), seconds: 1.0, bad_words: 2, ..Outcome::default() });
        assert_eq!((outcome.tail(), outcome.rate(), outcome.bad_words), (1.5 / 201.0, 67.0, 2));
    }
}
