//! Latency histograms with 16 buckets per power of two, so that a quantile is at most a sixteenth too large.
//!
//! Values below 16 have a bucket each; values from 2^36 ns (about 68 s) on share the last bucket. Values are also
//! counted in four wide *bands*, whose edges do not coincide with bucket edges. The maximum is exact.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where one band ends and the next begins, in nanoseconds. The first starts at 0, the last has no end.
pub const BAND_EDGES_NS: [u64; 3] = [20_000, 100_000, 500_000];

/// The number of bands.
pub const NR_BANDS: usize = BAND_EDGES_NS.len() + 1;

const SUB_BITS: u32 = 4;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
/// Values have at most this many bits.
const VALUE_BITS: u32 = 36;
const NR_BUCKETS: usize = SUB_BUCKETS * (VALUE_BITS - SUB_BITS + 1) as usize;

fn band(value: u64) -> usize {
    BAND_EDGES_NS.iter().map(|&edge| usize::from(value >= edge)).sum()
}

fn bucket(value: u64) -> usize {
    let value = value.min((1 << VALUE_BITS) - 1);
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(SUB_BITS + 1);
    shift as usize * SUB_BUCKETS + (value >> shift) as usize
}

/// The largest value of a bucket.
fn upper_edge(bucket: usize) -> u64 {
    let shift = (bucket / SUB_BUCKETS).saturating_sub(1);
    let first = (bucket - shift * SUB_BUCKETS) as u64;
    ((first + 1) << shift) - 1
}

/// Adds to a number that no other thread changes now: without a locked instruction, in a tenth of the time.
fn add_alone(number: &AtomicU64, more: u64) {
    number.store(number.load(Relaxed).wrapping_add(more), Relaxed);
}

/// Counts of values by size, shared by all threads. 4.2 KiB.
#[repr(C)]
pub struct Histogram {
    buckets: [AtomicU64; NR_BUCKETS],
    bands: [AtomicU64; NR_BANDS],
    sum: AtomicU64,
    max: AtomicU64,
}

impl Histogram {
    /// An empty histogram.
    pub const fn new() -> Self {
        Histogram {
            buckets: [const { AtomicU64::new(0) }; NR_BUCKETS],
            bands: [const { AtomicU64::new(0) }; NR_BANDS],
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }

    /// Counts a value in nanoseconds. Relaxed, from any number of threads.
    pub fn record(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Relaxed);
        self.bands[band(ns)].fetch_add(1, Relaxed);
        self.sum.fetch_add(ns, Relaxed);
        if ns > self.max.load(Relaxed) {
            self.max.fetch_max(ns, Relaxed);
        }
    }

    /// The same for the only thread that counts here now. With two threads at once, counts may be lost.
    pub fn record_alone(&self, ns: u64) {
        add_alone(&self.buckets[bucket(ns)], 1);
        add_alone(&self.bands[band(ns)], 1);
        add_alone(&self.sum, ns);
        if ns > self.max.load(Relaxed) {
            self.max.store(ns, Relaxed);
        }
    }

    /// The current counts. Allocates 4 KiB.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut snapshot = HistogramSnapshot::default();
        self.add_to(&mut snapshot);
        snapshot
    }

    /// Adds the current counts to a snapshot.
    pub fn add_to(&self, snapshot: &mut HistogramSnapshot) {
        for (sum, bucket) in snapshot.buckets.iter_mut().zip(&self.buckets) {
            *sum += bucket.load(Relaxed);
        }
        for (sum, band) in snapshot.bands.iter_mut().zip(&self.bands) {
            *sum += band.load(Relaxed);
        }
        snapshot.sum = snapshot.sum.wrapping_add(self.sum.load(Relaxed));
        snapshot.max = snapshot.max.max(self.max.load(Relaxed));
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram::new()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// A histogram at one moment.
#[derive(Clone, Eq, PartialEq)]
pub struct HistogramSnapshot {
    buckets: Box<[u64]>,
    bands: [u64; NR_BANDS],
    sum: u64,
    max: u64,
}

impl HistogramSnapshot {
    /// Values counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of the values in nanoseconds.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest value in nanoseconds; 0 when empty.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value in nanoseconds that the `q`-th part of all values does not exceed, rounded up to its bucket's upper
    /// edge or the maximum: up to a sixteenth too large, never too small below 2^36 ns. 0 when empty.
    pub fn quantile(&self, q: f64) -> u64 {
        let count = self.count();
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|nr| {
            seen += nr;
            seen >= rank
        });
        bucket.map_or(0, upper_edge).min(self.max)
    }

    /// Values in each band: below 20 us, from there to 100 us, to 500 us, and above ([`BAND_EDGES_NS`]).
    pub fn bands(&self) -> [u64; NR_BANDS] {
        self.bands
    }

    /// The share of each band in all values; zeros when empty.
    pub fn shares(&self) -> [f64; NR_BANDS] {
        let count = self.bands.iter().sum::<u64>().max(1);
        self.bands.map(|band| band as f64 / count as f64)
    }

    /// Values of 100 us or more.
    pub fn nr_over_100us(&self) -> u64 {
        self.bands[2..].iter().sum()
    }

    /// The share of values of 100 us or more.
    pub fn share_over_100us(&self) -> f64 {
        self.shares()[2..].iter().sum()
    }

    /// The used buckets in rising order: a bucket's upper edge in nanoseconds, and how many values lie above it.
    pub fn tail(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut above = self.count();
        let used = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        used.map(move |(index, count)| {
            above -= count;
            (upper_edge(index).min(self.max), above)
        })
    }

    /// Adds another snapshot's counts.
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += more;
        }
        for (band, more) in self.bands.iter_mut().zip(&other.bands) {
            *band += more;
        }
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// What was counted after `earlier`, a snapshot of the same histogram. The maximum is only as exact as its bucket,
    /// unless it is a new overall maximum.
    pub fn since(&self, earlier: &HistogramSnapshot) -> HistogramSnapshot {
        let buckets: Box<[u64]> =
            self.buckets.iter().zip(&earlier.buckets).map(|(now, before)| now.saturating_sub(*before)).collect();
        let bands = std::array::from_fn(|band| self.bands[band].saturating_sub(earlier.bands[band]));
        let max = buckets.iter().rposition(|&count| count > 0).map_or(0, |last| upper_edge(last).min(self.max));
        let max = if self.max > earlier.max { self.max } else { max };
        HistogramSnapshot { buckets, bands, sum: self.sum.wrapping_sub(earlier.sum), max }
    }
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        HistogramSnapshot { buckets: vec![0; NR_BUCKETS].into(), bands: [0; NR_BANDS], sum: 0, max: 0 }
    }
}

impl fmt::Debug for HistogramSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("sum_ns", &self.sum)
            .field("p50_ns", &self.quantile(0.5))
            .field("p99_ns", &self.quantile(0.99))
            .field("max_ns", &self.max)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        for index in 0..NR_BUCKETS {
            let upper = upper_edge(index);
            assert_eq!(bucket(upper), index);
            if upper + 1 < 1 << VALUE_BITS {
                assert_eq!(bucket(upper + 1), index + 1);
            }
            let lower = if index == 0 { 0 } else { upper_edge(index - 1) + 1 };
            assert!((upper - lower) * 16 <= lower, "bucket {index}: {lower}..={upper}");
        }
        assert_eq!(upper_edge(NR_BUCKETS - 1), (1 << VALUE_BITS) - 1);
        assert_eq!(bucket(u64::MAX), NR_BUCKETS - 1);
    }

    #[test]
    fn an_empty_one_has_quantile_zero() {
        assert_eq!(HistogramSnapshot::default().quantile(0.5), 0);
        assert_eq!(Histogram::new().snapshot(), HistogramSnapshot::default());
    }

    #[test]
    fn bands_end_where_they_say() {
        let histogram = Histogram::new();
        for ns in [0, 19_999, 20_000, 99_999, 100_000, 499_999, 500_000, u64::MAX] {
            histogram.record(ns);
            histogram.record_alone(ns);
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.bands(), [4; NR_BANDS]);
        assert_eq!((snapshot.shares(), snapshot.share_over_100us()), ([0.25; NR_BANDS], 0.5));
        assert_eq!((snapshot.count(), snapshot.max(), snapshot.nr_over_100us()), (16, u64::MAX, 8));
        let tail: Vec<_> = snapshot.tail().map(|(_, above)| above).collect();
        assert_eq!(tail, [14, 10, 6, 2, 0], "what is on both sides of an edge shares a bucket");
        assert_eq!(HistogramSnapshot::default().shares(), [0.0; NR_BANDS]);
    }

    #[test]
    fn a_difference_holds_what_came_later() {
        let histogram = Histogram::new();
        histogram.record(1_000_000);
        let before = histogram.snapshot();
        assert_eq!(histogram.snapshot().since(&before), HistogramSnapshot::default());
        histogram.record(30_000);
        let since = histogram.snapshot().since(&before);
        assert_eq!((since.count(), since.sum(), since.bands()), (1, 30_000, [0, 1, 0, 0]));
        assert!((30_000..32_000).contains(&since.max()) && since.quantile(1.0) == since.max());
        histogram.record(2_000_001);
        assert_eq!(histogram.snapshot().since(&before).max(), 2_000_001);
    }

    proptest! {
        #[test]
        fn quantiles_against_a_sorted_vector(
            values in prop::collection::vec((0u32..36).prop_flat_map(|bits| 0u64..(2 << bits)), 1..300),
            q in 0.0f64..=1.0,
            split in 0usize..300,
        ) {
            let (whole, part) = (Histogram::new(), Histogram::new());
            for (index, &value) in values.iter().enumerate() {
                if index < split { whole.record(value) } else { part.record_alone(value) }
            }
            let mut snapshot = whole.snapshot();
            snapshot.merge(&part.snapshot());
            let mut added = whole.snapshot();
            part.add_to(&mut added);
            prop_assert_eq!(&snapshot, &added);
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let rank = ((q * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
            let exact = sorted[rank - 1];
            let got = snapshot.quantile(q);
            prop_assert!(got >= exact && (got - exact) * 16 <= exact, "exact {exact}, got {got}");
            prop_assert_eq!(snapshot.max(), *sorted.last().unwrap());
            prop_assert_eq!(snapshot.bands().iter().sum::<u64>(), values.len() as u64);
            prop_assert_eq!(snapshot.count(), values.len() as u64);
            prop_assert_eq!(snapshot.sum(), values.iter().sum::<u64>());
        }
    }
}
