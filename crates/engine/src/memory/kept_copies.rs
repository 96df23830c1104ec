//! Which pageblocks hold folios whose copies in swap can be given up (`reclaim::kept`).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use folioswap_core::{BLOCK_PAGES, FrameId};

/// One bit per pageblock.
pub(crate) struct KeptCopies {
    words: Box<[AtomicU64]>,
    /// The pageblock at which the next search starts.
    next: AtomicUsize,
    /// Folios that were looked at.
    #[cfg(test)]
    pub nr_looks: AtomicUsize,
}

impl KeptCopies {
    pub fn new(nr_pageblocks: usize) -> Self {
        KeptCopies {
            words: (0..nr_pageblocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicUsize::new(0),
            #[cfg(test)]
            nr_looks: AtomicUsize::new(0),
        }
    }

    /// Notes that a folio in these frames keeps a copy.
    pub fn note(&self, frame: FrameId) {
        let pageblock = frame.index() / BLOCK_PAGES;
        let (word, bit) = (&self.words[pageblock / 64], 1 << (pageblock % 64));
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    #[cfg(test)]
    pub fn is_noted(&self, frame: FrameId) -> bool {
        let pageblock = frame.index() / BLOCK_PAGES;
        self.words[pageblock / 64].load(Relaxed) >> (pageblock % 64) & 1 == 1
    }

    /// Takes the next pageblock that may hold copies, in turn, and returns its first frame. The pageblock is not
    /// returned again before another copy is noted there.
    pub fn take(&self) -> Option<FrameId> {
        let (first, nr_words) = (self.next.load(Relaxed), self.words.len());
        for step in 0..=nr_words {
            let word = &self.words[(first / 64 + step) % nr_words];
            let passed = if step == 0 { (1 << (first % 64)) - 1 } else { 0 }; // bits before `first` come last
            let found = word.load(Relaxed) & !passed;
            let bit = found & found.wrapping_neg();
            if bit != 0 && word.fetch_and(!bit, Relaxed) & bit != 0 {
                let pageblock = (first / 64 + step) % nr_words * 64 + bit.trailing_zeros() as usize;
                self.next.store(pageblock + 1, Relaxed);
                return Some(FrameId::from_index(pageblock * BLOCK_PAGES));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pageblocks_are_named_by_turns_and_once() {
        let kept = KeptCopies::new(130);
        let named = || kept.take().map(|frame| frame.index() / BLOCK_PAGES);
        for pageblock in [3, 64, 129] {
            kept.note(FrameId::from_index(pageblock * BLOCK_PAGES + 7));
        }
        assert_eq!(named(), Some(3));
        kept.note(FrameId::from_index(3 * BLOCK_PAGES));
        assert_eq!([named(), named(), named(), named()], [Some(64), Some(129), Some(3), None]);
    }
}
