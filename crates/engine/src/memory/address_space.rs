//! Allocation of an arena's addresses, in blocks of 2 MiB: first fit, and freed ranges merge with free neighbours.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

/// The free ranges of a span in blocks, start -> end. No range is empty, and no two ranges touch.
pub(crate) struct AddressSpace {
    free: Mutex<BTreeMap<usize, usize>>,
    nr_blocks: usize,
}

impl AddressSpace {
    pub fn new(nr_blocks: usize) -> Self {
        AddressSpace { free: Mutex::new(BTreeMap::from([(0, nr_blocks)])), nr_blocks }
    }

    /// Allocates `count` blocks in the lowest free range that fits.
    pub fn allocate(&self, count: usize) -> Option<Range<usize>> {
        let mut free = self.free.lock().expect("nothing panics under this lock");
        let (&start, &end) = free.iter().find(|&(start, end)| end - start >= count)?;
        free.remove(&start);
        if start + count < end {
            free.insert(start + count, end);
        }
        Some(start..start + count)
    }

    /// Extends a range in place: takes `count` blocks at `at`, if they are free.
    pub fn extend(&self, at: usize, count: usize) -> bool {
        let mut free = self.free.lock().expect("nothing panics under this lock");
        let Some(&end) = free.get(&at) else { return false };
        if end - at < count {
            return false;
        }
        free.remove(&at);
        if at + count < end {
            free.insert(at + count, end);
        }
        true
    }

    /// Takes the free blocks of a given range, and returns them. The others are already in use.
    pub fn claim(&self, wanted: Range<usize>) -> Vec<Range<usize>> {
        let mut free = self.free.lock().expect("nothing panics under this lock");
        let found: Vec<_> = free
            .range(..wanted.end)
            .rev()
            .take_while(|&(_, &end)| end > wanted.start)
            .map(|(&start, &end)| (start, end))
            .collect();
        let mut claimed = Vec::with_capacity(found.len());
        for (start, end) in found {
            let part = start.max(wanted.start)..end.min(wanted.end);
            free.remove(&start);
            if start < part.start {
                free.insert(start, part.start);
            }
            if part.end < end {
                free.insert(part.end, end);
            }
            claimed.push(part);
        }
        claimed
    }

    /// Frees an allocated range, or a part of one.
    ///
    /// # Panics
    /// When any of it is free already.
    pub fn free(&self, range: Range<usize>) {
        let mut free = self.free.lock().expect("nothing panics under this lock");
        let Range { mut start, mut end } = range;
        assert!(start < end && end <= self.nr_blocks);
        if let Some((&before, &before_end)) = free.range(..=start).next_back() {
            assert!(before_end <= start, "blocks {start}..{end} freed twice");
            if before_end == start {
                free.remove(&before);
                start = before;
            }
        }
        if let Some((&after, &after_end)) = free.range(start..).next() {
            assert!(after >= end, "blocks {start}..{end} freed twice");
            if after == end {
                free.remove(&after);
                end = after_end;
            }
        }
        free.insert(start, end);
    }

    /// The ranges in use, lowest first. Adjacent ranges appear as one.
    pub fn in_use(&self) -> Vec<Range<usize>> {
        let free = self.free.lock().expect("nothing panics under this lock");
        let mut used = Vec::with_capacity(free.len() + 1);
        let mut at = 0;
        for (&start, &end) in &*free {
            if at < start {
                used.push(at..start);
            }
            at = end;
        }
        if at < self.nr_blocks {
            used.push(at..self.nr_blocks);
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a plain list of used blocks.
        #[test]
        fn agrees_with_a_plain_list(steps in prop::collection::vec((0u8..4, 0usize..64, 1usize..9), 1..200)) {
            let space = AddressSpace::new(64);
            let mut used = [false; 64];
            let mut held: Vec<Range<usize>> = Vec::new();
            for (what, pick, count) in steps {
                match what {
                    0 => if let Some(range) = space.allocate(count) {
                        prop_assert_eq!(range.len(), count);
                        for at in range.clone() { prop_assert!(!std::mem::replace(&mut used[at], true)); }
                        held.push(range);
                    } else {
                        prop_assert!(!used.windows(count).any(|run| run.iter().all(|&one| !one)));
                    },
                    1 if !held.is_empty() => {
                        let range = held.swap_remove(pick % held.len());
                        used[range.clone()].fill(false);
                        space.free(range);
                    }
                    2 if !held.is_empty() => {
                        let at = pick % held.len();
                        let end = held[at].end;
                        let fits = end + count <= 64 && used[end..end + count].iter().all(|&one| !one);
                        prop_assert_eq!(space.extend(end, count), fits);
                        if fits { used[end..end + count].fill(true); held[at].end += count; }
                    }
                    3 => for range in space.claim(pick..(pick + count).min(64)) {
                        prop_assert!(pick <= range.start && range.end <= pick + count);
                        for at in range.clone() { prop_assert!(!std::mem::replace(&mut used[at], true)); }
                        held.push(range);
                    },
                    _ => {}
                }
                let listed: usize = space.in_use().iter().map(Range::len).sum();
                prop_assert_eq!(listed, used.iter().filter(|&&one| one).count());
            }
        }
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_twice_is_caught() {
        let space = AddressSpace::new(8);
        let range = space.allocate(4).unwrap();
        space.free(range.clone());
        space.free(range);
    }
}
