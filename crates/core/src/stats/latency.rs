//! Fault latencies by kind of fault and by phase.
//!
//! Every fault is counted by kind with its total time. Reading the clock costs as much as the rest of the recording, so
//! only one fault in [`PHASES_OF_ONE_IN`], drawn at random, is timed by phase without gaps. A fault that starts
//! something long (a wait, a reclaim, a device read, work on 2 MiB) is always timed by phase, so that the longest phase
//! of a slow one ([`SLOW_NS`]) is known, but its phases count only if it was drawn.
//!
//! **Locking.** None. A thread claims one of several *shards* with a swap, counts there with plain loads and stores,
//! and releases it; acquire and release order its counts before the next owner's. A claimed shard is skipped, so
//! nothing waits for a stopped or killed thread. If all are claimed, [`FaultLatencies::common`] takes locked
//! instructions. Readers are not ordered. **Size.** 637 KiB of addresses; a thread that swaps in folios of one order
//! touches about 50 KiB of it.

use super::histogram::{BAND_EDGES_NS, Histogram, HistogramSnapshot};
use crate::order::{MAX_ORDER, NR_ORDERS, Order};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// What a fault turned out to be.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[repr(usize)]
pub enum FaultKind {
    /// On an empty folio: it got zeroed memory.
    FirstTouch = 0,
    /// On a folio still in RAM: mapped back.
    Standby = 1,
    /// On a folio in its slots: read from the device.
    SwapIn = 2,
    /// Waited for another thread's read of the same folio.
    Wait = 3,
}

impl FaultKind {
    /// How many kinds there are.
    pub const NR: usize = 4;
    /// Each kind, in the order of [`StatsSnapshot::faults`](super::StatsSnapshot::faults).
    pub const ALL: [FaultKind; Self::NR] =
        [FaultKind::FirstTouch, FaultKind::Standby, FaultKind::SwapIn, FaultKind::Wait];

    /// Its index in [`StatsSnapshot::faults`](super::StatsSnapshot::faults).
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            FaultKind::FirstTouch => "first_touch",
            FaultKind::Standby => "standby",
            FaultKind::SwapIn => "swap_in",
            FaultKind::Wait => "wait",
        }
    }
}

/// What a fault spends its time on.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[repr(usize)]
pub enum Phase {
    /// Waiting for the block's lock. Taking a free lock is faster than reading the clock and is no phase.
    Table = 0,
    /// Getting frames and memory for them, zeroed if there is no content.
    Frame = 1,
    /// Of that, the thread's own work to free frames: reclaim and compaction.
    Reclaim = 2,
    /// Reading and checking the content.
    Read = 3,
    /// Mapping the folio, and updating its records.
    Map = 4,
    /// Freeing slots.
    Free = 5,
}

impl Phase {
    /// How many phases there are.
    pub const NR: usize = 6;
    /// Each phase, in the order of [`StatsSnapshot::phases`](super::StatsSnapshot::phases).
    pub const ALL: [Phase; Self::NR] =
        [Phase::Table, Phase::Frame, Phase::Reclaim, Phase::Read, Phase::Map, Phase::Free];

    /// Its index in [`StatsSnapshot::phases`](super::StatsSnapshot::phases).
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Table => "table",
            Phase::Frame => "frame",
            Phase::Reclaim => "reclaim",
            Phase::Read => "read",
            Phase::Map => "map",
            Phase::Free => "free",
        }
    }
}

/// A fault of at least this many nanoseconds is slow: its longest phase is counted if known.
pub const SLOW_NS: u64 = BAND_EDGES_NS[1];

/// Phases are counted for one fault in this many.
pub const PHASES_OF_ONE_IN: u64 = 16;

/// Whether to count the phases of a fault that begins at this reading of any clock. The reading is hashed, because
/// clocks may advance in steps and faults may come at regular intervals.
pub const fn is_drawn(moment: u64) -> bool {
    let scattered = moment.wrapping_mul(0x9E37_79B9_7F4A_7C15); // 2^64 by the golden ratio
    scattered >> (u64::BITS - PHASES_OF_ONE_IN.trailing_zeros()) == 0
}
const _: () = assert!(PHASES_OF_ONE_IN.is_power_of_two());

/// What one fault spent its time on, as far as it was measured.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct FaultTimes {
    /// The total, which the phases need not cover.
    total_ns: u64,
    phases: [u64; Phase::NR],
    drawn: bool,
}

impl FaultTimes {
    /// A fault without times yet. Its phases are counted if it was drawn.
    pub fn new(drawn: bool) -> FaultTimes {
        FaultTimes { drawn, ..FaultTimes::default() }
    }

    /// Whether its phases are counted.
    pub fn is_drawn(&self) -> bool {
        self.drawn
    }

    /// Adds time spent in a phase.
    pub fn add(&mut self, phase: Phase, ns: u64) {
        self.phases[phase.index()] += ns;
        self.total_ns += ns;
    }

    /// Adds time whose phase is unknown.
    pub fn add_uncut(&mut self, ns: u64) {
        self.total_ns += ns;
    }

    /// The time spent in a phase, as far as known.
    pub fn get(&self, phase: Phase) -> u64 {
        self.phases[phase.index()]
    }

    /// The total time.
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// The longest phase, the first of equals. `None` if the time without phase may hide a longer one.
    pub fn longest(&self) -> Option<Phase> {
        let mut longest = Phase::Table;
        for phase in Phase::ALL {
            if self.get(phase) > self.get(longest) {
                longest = phase;
            }
        }
        let uncut_ns = self.total_ns - self.phases.iter().sum::<u64>();
        (self.get(longest) >= uncut_ns).then_some(longest)
    }
}

/// Histograms of kinds; swap-ins have one for each order.
const NR_ROWS: usize = FaultKind::NR - 1 + NR_ORDERS;

fn row(kind: FaultKind, order: Order) -> usize {
    match kind {
        FaultKind::FirstTouch => 0,
        FaultKind::Standby => 1,
        FaultKind::Wait => 2,
        FaultKind::SwapIn => 3 + usize::from(order.exponent()),
    }
}

const UNUSED: u64 = 0;
const FREE: u64 = 1;
const CLAIMED: u64 = 2;

/// One set of all histograms.
#[repr(C)]
struct Shard {
    state: AtomicU64,
    rows: [Histogram; NR_ROWS],
    phases: [Histogram; Phase::NR],
    /// Slow faults by kind and by longest phase, if known.
    slow: [[AtomicU64; Phase::NR]; FaultKind::NR],
    /// Keeps shards on separate cache lines.
    _apart: [AtomicU64; 16],
}

impl Shard {
    const fn new() -> Shard {
        Shard {
            state: AtomicU64::new(UNUSED),
            rows: [const { Histogram::new() }; NR_ROWS],
            phases: [const { Histogram::new() }; Phase::NR],
            slow: [const { [const { AtomicU64::new(0) }; Phase::NR] }; FaultKind::NR],
            _apart: [const { AtomicU64::new(0) }; 16],
        }
    }

    /// Counts a fault, using `record` for each histogram.
    fn count(&self, kind: FaultKind, order: Order, times: &FaultTimes, record: impl Fn(&Histogram, u64)) {
        let total_ns = times.total_ns();
        record(&self.rows[row(kind, order)], total_ns);
        if times.drawn {
            for (histogram, &ns) in self.phases.iter().zip(&times.phases).filter(|(_, ns)| **ns > 0) {
                record(histogram, ns);
            }
        }
        if total_ns >= SLOW_NS
            && let Some(longest) = times.longest()
        {
            self.slow[kind.index()][longest.index()].fetch_add(1, Relaxed);
        }
    }

    fn add_to(&self, snapshot: &mut LatencySnapshot) {
        if self.state.load(Relaxed) == UNUSED {
            return; // reading it would allocate memory for it
        }
        for kind in [FaultKind::FirstTouch, FaultKind::Standby, FaultKind::Wait] {
            self.rows[row(kind, Order::PAGE)].add_to(&mut snapshot.faults[kind.index()]);
        }
        for (order, swap_ins) in (0..=MAX_ORDER).filter_map(Order::new).zip(&mut snapshot.swap_ins) {
            self.rows[row(FaultKind::SwapIn, order)].add_to(swap_ins);
        }
        for (phase, sum) in self.phases.iter().zip(&mut snapshot.phases) {
            phase.add_to(sum);
        }
        for (count, sum) in self.slow.iter().flatten().zip(snapshot.slow.iter_mut().flatten()) {
            *sum += count.load(Relaxed);
        }
    }
}

/// Shards that can be claimed.
const NR_SHARDS: usize = 7;

/// Fault latencies, shared by all threads.
#[repr(C)]
pub struct FaultLatencies {
    shards: [Shard; NR_SHARDS],
    /// For threads that find no free shard.
    common: Shard,
}

impl FaultLatencies {
    pub(super) const fn new() -> Self {
        FaultLatencies { shards: [const { Shard::new() }; NR_SHARDS], common: Shard::new() }
    }

    /// Counts a fault, starting the search for a shard at `thread`. Takes 10 ns, or 29 ns with five phases, for one
    /// thread or two at once; locked instructions on one shard took 133 ns with five phases, and 250 ns with two
    /// threads.
    pub fn record(&self, kind: FaultKind, order: Order, thread: u32, times: &FaultTimes) {
        let first = thread as usize % NR_SHARDS;
        for shard in self.shards[first..].iter().chain(&self.shards[..first]) {
            if shard.state.swap(CLAIMED, Acquire) != CLAIMED {
                shard.count(kind, order, times, Histogram::record_alone);
                shard.state.store(FREE, Release);
                return;
            }
        }
        self.common.state.store(FREE, Relaxed);
        self.common.count(kind, order, times, Histogram::record);
    }

    /// The sum of all shards.
    pub(super) fn snapshot(&self) -> LatencySnapshot {
        let mut snapshot = LatencySnapshot::default();
        self.shards.iter().chain([&self.common]).for_each(|shard| shard.add_to(&mut snapshot));
        for swap_ins in &snapshot.swap_ins {
            snapshot.faults[FaultKind::SwapIn.index()].merge(swap_ins);
        }
        snapshot
    }
}

impl std::fmt::Debug for FaultLatencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// Fault latencies at one moment.
#[derive(Clone, Eq, PartialEq, Debug, Default)]
pub(super) struct LatencySnapshot {
    pub faults: [HistogramSnapshot; FaultKind::NR],
    pub swap_ins: [HistogramSnapshot; NR_ORDERS],
    pub phases: [HistogramSnapshot; Phase::NR],
    pub slow: [[u64; Phase::NR]; FaultKind::NR],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(spent: &[(Phase, u64)]) -> FaultTimes {
        let mut times = FaultTimes::new(true);
        spent.iter().for_each(|&(phase, ns)| times.add(phase, ns));
        times
    }

    #[test]
    fn shards_are_merged_and_phases_add_up() {
        static LATENCIES: FaultLatencies = FaultLatencies::new();
        const EACH: u64 = 2000;
        let nr_threads = NR_SHARDS as u32 + 3;
        std::thread::scope(|scope| {
            for thread in 0..nr_threads {
                scope.spawn(move || {
                    for at in 1..=EACH {
                        let order = Order::new((thread % 10) as u8).unwrap();
                        let spent = times(&[(Phase::Table, 3), (Phase::Read, at), (Phase::Map, 7), (Phase::Read, 1)]);
                        LATENCIES.record(FaultKind::SwapIn, order, thread, &spent);
                    }
                });
            }
        });
        let snapshot = LATENCIES.snapshot();
        let (all, each) = (EACH * u64::from(nr_threads), EACH * (EACH + 1) / 2);
        assert_eq!(snapshot.faults[FaultKind::SwapIn.index()].count(), all, "none is lost");
        assert_eq!(snapshot.swap_ins.iter().map(HistogramSnapshot::count).sum::<u64>(), all);
        assert!(snapshot.swap_ins.iter().all(|swap_ins| swap_ins.count() >= EACH));
        let total: u64 = snapshot.faults.iter().map(HistogramSnapshot::sum).sum();
        assert_eq!(total, u64::from(nr_threads) * (each + 11 * EACH));
        assert_eq!(total, snapshot.phases.iter().map(HistogramSnapshot::sum).sum::<u64>());
        assert_eq!(snapshot.phases[Phase::Free.index()], HistogramSnapshot::default(), "it did not occur");
    }

    #[test]
    fn a_claimed_shard_is_passed_over_and_unused_ones_are_not_read() {
        static LATENCIES: FaultLatencies = FaultLatencies::new();
        let state = |index: usize| LATENCIES.shards[index].state.load(Relaxed);
        let spent = times(&[(Phase::Map, 5)]);
        LATENCIES.shards[2].state.store(CLAIMED, Relaxed);
        LATENCIES.record(FaultKind::Standby, Order::PAGE, 2 + NR_SHARDS as u32, &spent);
        assert_eq!((state(2), state(3), state(4)), (CLAIMED, FREE, UNUSED));
        LATENCIES.shards.iter().for_each(|shard| shard.state.store(CLAIMED, Relaxed));
        LATENCIES.record(FaultKind::Standby, Order::PAGE, 0, &spent);
        assert_eq!(LATENCIES.common.state.load(Relaxed), FREE);
        assert_eq!(LATENCIES.snapshot().faults[FaultKind::Standby.index()].count(), 2);
    }

    #[test]
    fn what_was_not_drawn_has_no_phases() {
        static LATENCIES: FaultLatencies = FaultLatencies::new();
        for (drawn, read, uncut) in [(false, SLOW_NS, 7), (false, 5, SLOW_NS), (true, 3, 0)] {
            let mut times = FaultTimes::new(drawn);
            times.add(Phase::Read, read);
            times.add_uncut(uncut);
            LATENCIES.record(FaultKind::SwapIn, Order::PAGE, 0, &times);
        }
        let snapshot = LATENCIES.snapshot();
        let all = &snapshot.faults[FaultKind::SwapIn.index()];
        assert_eq!((all.count(), all.sum()), (3, 2 * SLOW_NS + 15), "each is counted, with the whole of its time");
        assert_eq!((snapshot.phases[Phase::Read.index()].count(), snapshot.phases[Phase::Read.index()].sum()), (1, 3));
        assert_eq!(snapshot.slow[FaultKind::SwapIn.index()], [0, 0, 0, 1, 0, 0], "of one the longest is known");
    }

    #[test]
    fn one_in_so_many_is_drawn_whatever_the_steps_of_the_clock() {
        const NR: u64 = 100_000;
        for step in [1, 2, 10, 16, 36, 1_000, 4_096, 12_345, 1 << 20, 1_000_000] {
            let drawn = (0..NR).filter(|at| is_drawn(at * step)).count() as u64;
            let expected = NR / PHASES_OF_ONE_IN;
            assert!((expected * 3 / 4..=expected * 5 / 4).contains(&drawn), "{drawn} at steps of {step}");
        }
    }

    #[test]
    fn the_longest_phase_of_slow_faults_is_counted() {
        static LATENCIES: FaultLatencies = FaultLatencies::new();
        for (free, read) in [(1, SLOW_NS - 2), (1, SLOW_NS - 1), (SLOW_NS, 5), (60_000, 70_000)] {
            let spent = times(&[(Phase::Free, free), (Phase::Read, read)]);
            LATENCIES.record(FaultKind::SwapIn, Order::HUGE, 9, &spent);
        }
        let slow = LATENCIES.snapshot().slow;
        assert_eq!(slow[FaultKind::SwapIn.index()], [0, 0, 0, 2, 0, 1]);
        assert_eq!(slow.iter().flatten().sum::<u64>(), 3);
        assert!(FaultKind::ALL.iter().enumerate().all(|(index, kind)| kind.index() == index));
        assert!(Phase::ALL.iter().enumerate().all(|(index, phase)| phase.index() == index));
    }
}
