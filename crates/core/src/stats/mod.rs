//! Counters, gauges and latency histograms.
//!
//! Everything is `repr(C)` and consists of 64-bit atomics, so it can live in shared memory, where all-zero bytes are a
//! valid, empty value. Every operation is relaxed and orders nothing; a snapshot taken while others count may miss what
//! is in progress.

mod device;
mod histogram;
mod latency;
mod outside;

pub use device::{DeviceFailure, DeviceIo, DeviceRecord, DeviceTransfers, Direction};
pub use histogram::{BAND_EDGES_NS, Histogram, HistogramSnapshot, NR_BANDS};
pub use latency::{FaultKind, FaultLatencies, FaultTimes, PHASES_OF_ONE_IN, Phase, SLOW_NS, is_drawn};
pub use outside::{ProcessMemory, ProcessRecord};

// Not loom's atomics even in a model: the layout must not change, and these order nothing.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::order::{NR_ORDERS, Order, PAGE_SIZE};

/// A number that only grows.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    pub const fn new() -> Self {
        Counter(AtomicU64::new(0))
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Adds `n`, and returns the previous value.
    fn add_to(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Relaxed)
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number for each order.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ByOrder([Counter; NR_ORDERS]);

impl ByOrder {
    /// Zeros.
    pub const fn new() -> Self {
        ByOrder([const { Counter::new() }; NR_ORDERS])
    }

    /// Counts `n` more folios of this order.
    pub fn add(&self, order: Order, n: u64) {
        self.0[usize::from(order.exponent())].add(n);
    }

    /// The current number for this order.
    pub fn get(&self, order: Order) -> u64 {
        self.0[usize::from(order.exponent())].get()
    }

    /// The current numbers, from order 0 on.
    pub fn snapshot(&self) -> [u64; NR_ORDERS] {
        std::array::from_fn(|k| self.0[k].get())
    }
}

/// A number that goes up and down, with its peak.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Gauge {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    /// Zero.
    pub const fn new() -> Self {
        Gauge { now: AtomicU64::new(0), peak: AtomicU64::new(0) }
    }

    /// Sets it.
    pub fn set(&self, value: u64) {
        self.now.store(value, Relaxed);
        self.peak.fetch_max(value, Relaxed);
    }

    /// Raises it by `n`.
    pub fn add(&self, n: u64) {
        let value = self.now.fetch_add(n, Relaxed).wrapping_add(n);
        self.peak.fetch_max(value, Relaxed);
    }

    /// Lowers it by `n`, which was added before.
    pub fn sub(&self, n: u64) {
        let before = self.now.fetch_sub(n, Relaxed);
        debug_assert!(before >= n, "a gauge is lowered by what was added to it");
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.now.load(Relaxed)
    }

    /// The highest value so far.
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// Value and peak.
    pub fn snapshot(&self) -> GaugeSnapshot {
        let now = self.get();
        GaugeSnapshot { now, peak: self.peak().max(now) }
    }
}

/// A gauge at one moment.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct GaugeSnapshot {
    /// The value.
    pub now: u64,
    /// The highest value until then.
    pub peak: u64,
}

macro_rules! stats {
    (
        counters { $($(#[$counter_doc:meta])* $counter:ident,)* }
        by_order { $($(#[$by_order_doc:meta])* $by_order:ident,)* }
        gauges { $($(#[$gauge_doc:meta])* $gauge:ident,)* }
    ) => {
        /// All statistics. Large because of the latencies: for statics and mappings, not for the stack.
        #[repr(C)]
        #[derive(Debug)]
        pub struct Stats {
            $($(#[$counter_doc])* pub $counter: Counter,)*
            $($(#[$by_order_doc])* pub $by_order: ByOrder,)*
            $($(#[$gauge_doc])* pub $gauge: Gauge,)*
            /// Latencies of faults.
            pub latencies: FaultLatencies,
        }

        /// [`Stats`] at one moment, as plain numbers.
        #[derive(Clone, Eq, PartialEq, Debug, Default)]
        pub struct StatsSnapshot {
            $($(#[$counter_doc])* pub $counter: u64,)*
            $($(#[$by_order_doc])* pub $by_order: [u64; NR_ORDERS],)*
            $($(#[$gauge_doc])* pub $gauge: GaugeSnapshot,)*
            /// Fault latencies in nanoseconds, by [`FaultKind`].
            pub faults: [HistogramSnapshot; FaultKind::NR],
            /// Swap-in latencies by the folio's order, from 0 on.
            pub swap_ins: [HistogramSnapshot; NR_ORDERS],
            /// Time that faults spent in each [`Phase`], in nanoseconds, for one fault in [`PHASES_OF_ONE_IN`].
            pub phases: [HistogramSnapshot; Phase::NR],
            /// Faults of [`SLOW_NS`] or more, by [`FaultKind`] and longest [`Phase`], where that is known.
            pub slow: [[u64; Phase::NR]; FaultKind::NR],
        }

        impl Stats {
            /// All zero.
            #[allow(clippy::new_without_default)] // a default would be a value on the stack
            pub const fn new() -> Self {
                Stats {
                    $($counter: Counter::new(),)*
                    $($by_order: ByOrder::new(),)*
                    $($gauge: Gauge::new(),)*
                    latencies: FaultLatencies::new(),
                }
            }

            /// The current numbers. Allocates 83 KiB for the histograms, and takes about 100 us to add up the shards.
            pub fn snapshot(&self) -> StatsSnapshot {
                let latency::LatencySnapshot { faults, swap_ins, phases, slow } = self.latencies.snapshot();
                StatsSnapshot {
                    $($counter: self.$counter.get(),)*
                    $($by_order: self.$by_order.snapshot(),)*
                    $($gauge: self.$gauge.snapshot(),)*
                    faults,
                    swap_ins,
                    phases,
                    slow,
                }
            }
        }

        impl StatsSnapshot {
            /// Each counter's name and value, in field order.
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($counter), self.$counter),)*].into_iter()
            }

            /// Each name and its numbers from order 0 on, in field order.
            pub fn by_order(&self) -> impl Iterator<Item = (&'static str, [u64; NR_ORDERS])> {
                [$((stringify!($by_order), self.$by_order),)*].into_iter()
            }
        }
    };
}

stats! {
    counters {
        /// Folios read from a device.
        swapped_in_folios,
        /// Bytes read from a device.
        swapped_in_bytes,
        /// Folios written to a device.
        swapped_out_folios,
        /// Bytes written to a device.
        swapped_out_bytes,
        /// Folios that were all zero when evicted and needed no slot.
        zero_folios_dropped,
        /// Folios that matched their slots when evicted and needed no write.
        clean_folios_dropped,
        /// Folios read ahead of their touch.
        readahead_folios,
        /// Folios read ahead that were touched afterwards, as far as touches are seen.
        readahead_hits,
        /// Times a thread that needed a frame reclaimed one itself.
        direct_reclaims,
        /// Victims that could not be moved at that time.
        busy_victims,
        /// Folios whose content was not what had been written.
        verify_failures,
        /// Device reads and writes that failed.
        io_errors,
        /// Bytes written back from compressed RAM to a device behind it.
        written_back_bytes,
        /// Folios of 2 MiB swapped out to one run of slots. This and the following names are Linux's.
        thp_swpout,
        /// Folios of 2 MiB that got no whole run of slots.
        thp_swpout_fallback,
        /// Times a fault on a whole folio compacted frames to get a wholly free pageblock.
        compact_stall,
        /// Those that succeeded.
        compact_success,
        /// Those that failed.
        compact_fail,
        /// Pages that compaction isolated: folios to move, and free frames as targets.
        compact_isolated,
        /// Pages examined for folios to move.
        compact_migrate_scanned,
        /// Pages examined for free frames.
        compact_free_scanned,
        /// Times that the compaction thread woke up.
        compact_daemon_wake,
        /// Pages of folios that compaction moved.
        pgmigrate_success,
        /// Pages of folios that it could not move.
        pgmigrate_fail,
        /// Bytes that it copied: those of folios that were not mapped and migrated.
        compact_copied_bytes,
        /// Pageblocks that it emptied by exchange, to get a fresh huge page.
        compact_exchange,
        /// Huge pages that the kernel did not provide: small pages were used instead.
        thp_fault_fallback,
        /// Pageblocks of small pages that were made huge in place, as a locked budget requires.
        thp_collapse_alloc,
        /// Those that had to stay small.
        thp_collapse_alloc_failed,
        /// Slots whose content compaction of a swap device copied to other slots.
        slots_migrated,
        /// Slots whose content it could not copy: busy, or a read or write failed.
        slots_migrate_failed,
        /// Requests for whole clusters that it fulfilled.
        slot_compact_success,
        /// Requests for whole clusters that it could not fulfil.
        slot_compact_fail,
    }
    by_order {
        /// Folios swapped out to one run of slots.
        swpout,
        /// Folios that got no whole run of slots.
        swpout_fallback,
        /// Folios read back in one piece.
        swpin,
        /// Folios that could not be read back in one piece and came back in smaller ones.
        swpin_fallback,
        /// Folios split into smaller ones.
        split,
    }
    gauges {
        /// Bytes of managed memory in RAM, including frames without folio.
        resident_bytes,
        /// Those of them in huge pages.
        huge_resident_bytes,
        /// Processes that count here.
        processes,
    }
}

impl Stats {
    /// Counts a fault by `thread`: its kind, order and times.
    pub fn record_fault(&self, kind: FaultKind, order: Order, thread: u32, times: &FaultTimes) {
        self.latencies.record(kind, order, thread, times);
    }
}

impl StatsSnapshot {
    /// The latencies of faults of this kind.
    pub fn fault(&self, kind: FaultKind) -> &HistogramSnapshot {
        &self.faults[kind.index()]
    }

    /// The latencies of swap-ins of folios of this order.
    pub fn swap_in(&self, order: Order) -> &HistogramSnapshot {
        &self.swap_ins[usize::from(order.exponent())]
    }

    /// The time that faults spent in this phase.
    pub fn phase(&self, phase: Phase) -> &HistogramSnapshot {
        &self.phases[phase.index()]
    }

    /// Faults of this kind that took [`SLOW_NS`] or more, and longest in this phase.
    pub fn slow(&self, kind: FaultKind, longest: Phase) -> u64 {
        self.slow[kind.index()][longest.index()]
    }

    /// Faults of this kind that took [`SLOW_NS`] or more and whose longest phase is unknown: they started nothing long
    /// and were not drawn.
    pub fn slow_unknown(&self, kind: FaultKind) -> u64 {
        let slow = self.fault(kind).nr_over_100us();
        slow.saturating_sub(self.slow[kind.index()].iter().sum())
    }

    /// Nanoseconds that threads of the program spent in faults.
    pub fn stalled_ns(&self) -> u64 {
        self.faults.iter().map(HistogramSnapshot::sum).sum()
    }

    /// Pages read from devices.
    pub fn pswpin(&self) -> u64 {
        self.swapped_in_bytes / PAGE_SIZE as u64
    }

    /// Pages written to devices.
    pub fn pswpout(&self) -> u64 {
        self.swapped_out_bytes / PAGE_SIZE as u64
    }

    /// Faults of all kinds.
    pub fn nr_faults(&self) -> u64 {
        self.faults.iter().map(HistogramSnapshot::count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_zero_means_empty_and_the_layout_is_64_bit_words() {
        static STATS: Stats = Stats::new();
        assert_eq!(align_of::<Stats>(), 8);
        assert_eq!(STATS.snapshot(), StatsSnapshot::default());
        let words = 33 + 5 * NR_ORDERS + 3 * 2 + size_of::<FaultLatencies>() / 8;
        assert_eq!(size_of::<Stats>(), words * 8, "no padding, so nothing but words");
        assert!(size_of::<Stats>() < 640 << 10, "{} bytes", size_of::<Stats>());
    }

    #[test]
    fn a_gauge_knows_its_peak() {
        let gauge = Gauge::new();
        gauge.add(10);
        gauge.sub(4);
        assert_eq!(gauge.snapshot(), GaugeSnapshot { now: 6, peak: 10 });
        gauge.set(17);
        assert_eq!(gauge.snapshot(), GaugeSnapshot { now: 17, peak: 17 });
    }

    #[test]
    fn folios_are_counted_by_order() {
        static STATS: Stats = Stats::new();
        let stats = &STATS;
        stats.swpout.add(Order::PAGE, 2);
        stats.swpout.add(Order::HUGE, 3);
        stats.swapped_out_bytes.add(3 * PAGE_SIZE as u64);
        assert_eq!(stats.swpout.get(Order::HUGE), 3);
        let snapshot = stats.snapshot();
        assert_eq!(snapshot.swpout, [2, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(snapshot.pswpout(), 3);
        let names: Vec<_> = snapshot.by_order().map(|(name, _)| name).collect();
        assert_eq!(names, ["swpout", "swpout_fallback", "swpin", "swpin_fallback", "split"]);
    }

    #[test]
    fn faults_are_counted_by_kind() {
        static STATS: Stats = Stats::new();
        let mut times = FaultTimes::new(true);
        times.add(Phase::Table, 500);
        STATS.record_fault(FaultKind::Wait, Order::PAGE, 1, &times);
        times.add(Phase::Read, SLOW_NS);
        STATS.record_fault(FaultKind::SwapIn, Order::HUGE, 2, &times);
        STATS.swapped_in_folios.add(1);
        let snapshot = STATS.snapshot();
        assert_eq!(snapshot.nr_faults(), 2);
        assert_eq!(snapshot.stalled_ns(), 1000 + SLOW_NS);
        assert_eq!(snapshot.fault(FaultKind::SwapIn), snapshot.swap_in(Order::HUGE));
        assert_eq!((snapshot.phase(Phase::Table).count(), snapshot.phase(Phase::Read).max()), (2, SLOW_NS));
        assert_eq!(
            (snapshot.slow(FaultKind::SwapIn, Phase::Read), snapshot.slow(FaultKind::Wait, Phase::Table)),
            (1, 0)
        );
        times = FaultTimes::new(false);
        times.add_uncut(SLOW_NS);
        STATS.record_fault(FaultKind::SwapIn, Order::HUGE, 2, &times);
        let snapshot = STATS.snapshot();
        assert_eq!(FaultKind::ALL.map(|kind| snapshot.slow_unknown(kind)), [0, 0, 1, 0]);
        assert_eq!(snapshot.counters().next(), Some(("swapped_in_folios", 1)));
        assert_eq!((snapshot.pswpin(), snapshot.pswpout()), (0, 0));
    }
}
