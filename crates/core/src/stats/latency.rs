//! How long faults take: by what a fault turned out to be, and by phase.
//!
//! Every fault is counted by its kind, with the whole of its time. A look at the clock costs as much as all the rest of it, so
//! the phases are those of one fault in [`PHASES_OF_ONE_IN`], drawn by chance: its time is cut without a gap, and they add
//! up to the whole of it. A fault that begins something long (it waits for its block, reclaims, reads a device, or
//! works on 2 MiB) is cut always, for the sake of [`SLOW_NS`]: of a slow one the longest phase is known then. It is not
//! counted among the phases of those that were drawn.
//!
//! **Without contention.** There are several *shards*, each with all histograms. Who records claims one with a single
//! swap, counts there alone, with plain loads and stores, and gives it back. A shard that somebody else has is passed
//! over, never waited for: in a handler, on a thread that was stopped in the middle, or killed there, nothing waits.
//! When all are taken, [`FaultLatencies::common`] is there for all, with locked instructions. The claim's acquire and
//! release order one recorder's counts before the next one's; a reader of them is ordered by nothing.
//!
//! **Size.** 7 shards and the common one take 637 KiB of addresses; of memory, what is used of it: a thread that swaps in
//! folios of one order has about 50 KiB written.

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
    /// Of an empty folio: it got zeroed memory.
    FirstTouch = 0,
    /// Of a folio that was still in RAM: mapped back.
    Standby = 1,
    /// Of a folio in its slots: read from the device.
    SwapIn = 2,
    /// Waited for somebody else's read of the same folio.
    Wait = 3,
}

impl FaultKind {
    /// How many kinds there are.
    pub const NR: usize = 4;
    /// Each kind, in the order of [`StatsSnapshot::faults`](super::StatsSnapshot::faults).
    pub const ALL: [FaultKind; Self::NR] =
        [FaultKind::FirstTouch, FaultKind::Standby, FaultKind::SwapIn, FaultKind::Wait];

    /// Its place in [`StatsSnapshot::faults`](super::StatsSnapshot::faults).
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
    /// Waiting for the block's lock. One that is free is taken in less time than a look at the clock: no phase.
    Table = 0,
    /// Getting frames, and making memory for them, zeroed where there is no content.
    Frame = 1,
    /// Of that, what the thread did itself to free frames: reclaim and compaction.
    Reclaim = 2,
    /// Reading the content, and checking it.
    Read = 3,
    /// Putting it under its address, and what is noted of that.
    Map = 4,
    /// Giving slots back.
    Free = 5,
}

impl Phase {
    /// How many phases there are.
    pub const NR: usize = 6;
    /// Each phase, in the order of [`StatsSnapshot::phases`](super::StatsSnapshot::phases).
    pub const ALL: [Phase; Self::NR] =
        [Phase::Table, Phase::Frame, Phase::Reclaim, Phase::Read, Phase::Map, Phase::Free];

    /// Its place in [`StatsSnapshot::phases`](super::StatsSnapshot::phases).
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

/// From how many nanoseconds on a fault is a slow one, of which the longest phase is counted if it is known.
pub const SLOW_NS: u64 = BAND_EDGES_NS[1];

/// Of so many faults the phases of one are counted.
pub const PHASES_OF_ONE_IN: u64 = 16;

/// Whether a fault that begins at this moment, a reading of any clock, is one whose phases are counted. The reading is
/// scattered: a clock may run in steps, and what comes at equal distances is not to meet the same answer each time.
pub const fn is_drawn(moment: u64) -> bool {
    let scattered = moment.wrapping_mul(0x9E37_79B9_7F4A_7C15); // 2^64 by the golden ratio
    scattered >> (u64::BITS - PHASES_OF_ONE_IN.trailing_zeros()) == 0
}
const _: () = assert!(PHASES_OF_ONE_IN.is_power_of_two());

/// What one fault spent its time on, as far as that was looked at.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct FaultTimes {
    /// The whole, of which not all need be known by phases.
    total_ns: u64,
    phases: [u64; Phase::NR],
    drawn: bool,
}

impl FaultTimes {
    /// Of a fault of which nothing is known yet. Its phases are counted if it was drawn.
    pub fn new(drawn: bool) -> FaultTimes {
        FaultTimes { drawn, ..FaultTimes::default() }
    }

    /// Whether its phases are counted.
    pub fn is_drawn(&self) -> bool {
        self.drawn
    }

    /// Adds time that was spent on a phase.
    pub fn add(&mut self, phase: Phase, ns: u64) {
        self.phases[phase.index()] += ns;
        self.total_ns += ns;
    }

    /// Adds time of which is not known what it was spent on.
    pub fn add_uncut(&mut self, ns: u64) {
        self.total_ns += ns;
    }

    /// The time spent on a phase, as far as it is known.
    pub fn get(&self, phase: Phase) -> u64 {
        self.phases[phase.index()]
    }

    /// All of it.
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// The phase that took longest; the first of several. None where what was not cut may have held a longer one.
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

/// Histograms of kinds: swap-ins have one for each order.
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

/// All histograms once.
#[repr(C)]
struct Shard {
    state: AtomicU64,
    rows: [Histogram; NR_ROWS],
    phases: [Histogram; Phase::NR],
    /// Slow faults by kind and by their longest phase, if it is known.
    slow: [[AtomicU64; Phase::NR]; FaultKind::NR],
    /// No line of the cache is of two shards.
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

    /// Counts a fault, each histogram by `record`.
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
            return; // reading it would take memory for it
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

/// Shards that are claimed.
const NR_SHARDS: usize = 7;

/// Latencies of faults, shared by all threads.
#[repr(C)]
pub struct FaultLatencies {
    shards: [Shard; NR_SHARDS],
    /// For who finds none.
    common: Shard,
}

impl FaultLatencies {
    pub(super) const fn new() -> Self {
        FaultLatencies { shards: [const { Shard::new() }; NR_SHARDS], common: Shard::new() }
    }

    /// Counts a fault; `thread` says at which shard to begin. 10 ns, and 29 ns with five phases, by one thread or by two at
    /// once; with locked instructions on one shard five phases took 133 ns, and 250 ns by two.
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

    /// All shards together.
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

/// Latencies of faults at one moment.
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
