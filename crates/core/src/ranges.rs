//! A set of numbers as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges of numbers.
#[derive(Debug, Default)]
pub struct RangeSet {
    /// Start -> end. No range is empty, and no two touch.
    ranges: BTreeMap<usize, usize>,
    total: usize,
}

impl RangeSet {
    /// An empty set.
    pub const fn new() -> Self {
        RangeSet { ranges: BTreeMap::new(), total: 0 }
    }

    /// Adds a range, a part of which may be in the set already.
    pub fn add(&mut self, range: Range<usize>) {
        let RangeSet { ranges, total } = self;
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        while let Some((&other, &other_end)) = ranges.range(..=end).next_back()
            && other_end >= start
        {
            ranges.remove(&other);
            *total -= other_end - other;
            (start, end) = (start.min(other), end.max(other_end));
        }
        ranges.insert(start, end);
        *total += end - start;
    }

    /// Removes a range. Returns the parts of it that were in the set.
    pub fn remove(&mut self, range: Range<usize>) -> Vec<Range<usize>> {
        let (ranges, mut removed) = (&mut self.ranges, Vec::new());
        while let Some((&start, &end)) = ranges.range(..range.end).next_back()
            && end > range.start
        {
            ranges.remove(&start);
            removed.push(start.max(range.start)..end.min(range.end));
            for part in [start..range.start, range.end..end] {
                if part.start < part.end {
                    ranges.insert(part.start, part.end);
                }
            }
        }
        self.total -= removed.iter().map(Range::len).sum::<usize>();
        removed.reverse();
        removed
    }

    /// The ranges, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// The parts of a range that are in the set, lowest first.
    pub fn parts(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let before = self.ranges.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        let clipped = |(&start, &end): (&usize, &usize)| start.max(range.start)..end.min(range.end);
        self.ranges.range(before..range.end).map(clipped).filter(|part| !part.is_empty()).collect()
    }

    /// The range of the set in which a number lies.
    pub fn around(&self, number: usize) -> Option<Range<usize>> {
        let (&start, &end) = self.ranges.range(..=number).next_back()?;
        (number < end).then_some(start..end)
    }

    /// Whether the set has a part of a range.
    pub fn overlaps(&self, range: &Range<usize>) -> bool {
        self.ranges.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many numbers the set has.
    pub fn total(&self) -> usize {
        self.total
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a plain list.
        #[test]
        fn agrees_with_a_plain_list(steps in prop::collection::vec((any::<bool>(), 0usize..64, 1usize..9), 1..200)) {
            let (mut set, mut listed) = (RangeSet::new(), [false; 72]);
            for (adds, start, len) in steps {
                let range = start..start + len;
                if adds {
                    set.add(range.clone());
                    let around = set.around(start).unwrap();
                    prop_assert!(around.start <= range.start && range.end <= around.end);
                    prop_assert!(set.iter().any(|one| one == around) && set.around(around.end).is_none());
                } else {
                    let (parts, removed) = (set.parts(&range), set.remove(range.clone()));
                    prop_assert_eq!(&parts, &removed);
                    let removed: Vec<usize> = removed.into_iter().flatten().collect();
                    prop_assert_eq!(removed, range.clone().filter(|&at| listed[at]).collect::<Vec<_>>());
                }
                listed[range].fill(adds);
                let ranges: Vec<_> = set.iter().collect();
                let has = |at: usize| ranges.iter().any(|range| range.contains(&at));
                prop_assert!((0..72).all(|at| listed[at] == has(at)), "{:?}", ranges);
                prop_assert_eq!(set.total(), listed.iter().filter(|&&is_in| is_in).count());
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ranges);
            }
        }
    }
}
