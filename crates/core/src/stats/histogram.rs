//! Latency histograms: 16 buckets for each power of two, so a quantile is off by at most a sixteenth.
//!
//! Values below 16 have a bucket each. Values from 2^36 ns (about 68 s) on fall into the last bucket.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SUB_BITS: u32 = 4;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
/// Values have this many bits at most.
const VALUE_BITS: u32 = 36;
const NR_BUCKETS: usize = SUB_BUCKETS * (VALUE_BITS - SUB_BITS + 1) as usize;

/// The bucket for a value.
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

/// The smallest upper edge that at least the `q`-th part of `count` values do not exceed; 0 when there are none.
fn quantile(buckets: impl Iterator<Item = u64>, count: u64, q: f64) -> u64 {
    let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
    let mut seen = 0;
    for (index, nr) in buckets.enumerate() {
        seen += nr;
        if seen >= rank {
            return upper_edge(index);
        }
    }
    0
}

/// Counts of values by size, shared by all threads. 4 KiB.
#[repr(C)]
pub struct Histogram {
    buckets: [AtomicU64; NR_BUCKETS],
    sum: AtomicU64,
}

impl Histogram {
    /// Empty.
    pub const fn new() -> Self {
        Histogram { buckets: [const { AtomicU64::new(0) }; NR_BUCKETS], sum: AtomicU64::new(0) }
    }

    /// Counts a value in nanoseconds. Two relaxed additions.
    pub fn record(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Relaxed);
        self.sum.fetch_add(ns, Relaxed);
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// The sum of the values in nanoseconds.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// The value in nanoseconds that the `q`-th part of all do not exceed, rounded up to its bucket's upper edge: up to
    /// a sixteenth too large, never too small below 2^36 ns. 0 when empty.
    pub fn quantile(&self, q: f64) -> u64 {
        quantile(self.buckets.iter().map(|bucket| bucket.load(Relaxed)), self.count(), q)
    }

    /// Adds another's counts to this one's.
    pub fn merge(&self, other: &Histogram) {
        for (bucket, more) in self.buckets.iter().zip(&other.buckets) {
            bucket.fetch_add(more.load(Relaxed), Relaxed);
        }
        self.sum.fetch_add(other.sum(), Relaxed);
    }

    /// The counts now. Allocates 4 KiB.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let buckets: Box<[u64]> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        HistogramSnapshot { buckets, sum: self.sum() }
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
    sum: u64,
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

    /// As [`Histogram::quantile`].
    pub fn quantile(&self, q: f64) -> u64 {
        quantile(self.buckets.iter().copied(), self.count(), q)
    }

    /// Adds another's counts to this one's.
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += more;
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        HistogramSnapshot { buckets: vec![0; NR_BUCKETS].into(), sum: 0 }
    }
}

impl fmt::Debug for HistogramSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("sum_ns", &self.sum)
            .field("p50_ns", &self.quantile(0.5))
            .field("p99_ns", &self.quantile(0.99))
            .field("max_ns", &self.quantile(1.0))
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
        assert_eq!(Histogram::new().quantile(0.99), 0);
        assert_eq!(HistogramSnapshot::default().quantile(0.5), 0);
        assert_eq!(Histogram::new().snapshot(), HistogramSnapshot::default());
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
                if index < split { whole.record(value) } else { part.record(value) }
            }
            let mut snapshot = whole.snapshot();
            snapshot.merge(&part.snapshot());
            whole.merge(&part);
            prop_assert_eq!(&snapshot, &whole.snapshot());
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let rank = ((q * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
            let exact = sorted[rank - 1];
            let got = whole.quantile(q);
            prop_assert_eq!(got, snapshot.quantile(q));
            prop_assert!(got >= exact && (got - exact) * 16 <= exact, "exact {exact}, got {got}");
            prop_assert_eq!(whole.count(), values.len() as u64);
            prop_assert_eq!(whole.sum(), values.iter().sum::<u64>());
        }
    }
}
