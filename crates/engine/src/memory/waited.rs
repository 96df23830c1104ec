//! What threads of the program need in RAM for the time of a call in direct mode: words on which they sleep in the C
//! library, which ends the process if the kernel does not find such a word, and stacks on which the kernel fills in
//! variables, or on which faults cannot be handled. A folio with some of it does not leave.
//!
//! What is kept is how many threads need it, by a hash of the block and by one of the page. So two pages may be taken
//! for one, and a folio stays that could leave; none leaves that must stay. A thread is counted before it locks the
//! block, and a folio is looked up under that lock.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use folioswap_core::{BLOCK_BYTES, PAGE_SIZE};

static BY_BLOCK: [AtomicU32; 1 << 14] = [const { AtomicU32::new(0) }; 1 << 14];
static BY_PAGE: [AtomicU32; 1 << 18] = [const { AtomicU32::new(0) }; 1 << 18];

fn block_at(addr: usize) -> &'static AtomicU32 {
    &BY_BLOCK[addr / BLOCK_BYTES % BY_BLOCK.len()]
}

fn page_at(addr: usize) -> &'static AtomicU32 {
    let page = addr / PAGE_SIZE;
    &BY_PAGE[(page ^ (page / BY_PAGE.len())) % BY_PAGE.len()]
}

/// A thread is about to need some pages, or needs them, until this is dropped.
#[derive(Debug)]
pub struct Waited(Range<usize>);

impl Waited {
    /// Of the pages that a range overlaps.
    pub(crate) fn new(range: Range<usize>) -> Waited {
        let waited = Waited(range);
        waited.counts().for_each(|count| _ = count.fetch_add(1, Ordering::SeqCst));
        waited
    }

    /// That of each page, and each page's of its block.
    fn counts(&self) -> impl Iterator<Item = &'static AtomicU32> + use<> {
        let pages = self.0.start & !(PAGE_SIZE - 1)..self.0.end;
        pages.step_by(PAGE_SIZE).flat_map(|page| [page_at(page), block_at(page)])
    }
}

impl Drop for Waited {
    fn drop(&mut self) {
        // Not below zero: a forked child has forgotten the thread that sleeps while its handler forks.
        for count in self.counts() {
            let _ = count.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |count| count.checked_sub(1));
        }
    }
}

/// Whether a thread may sleep on a word in a range of one block, which is locked.
pub(crate) fn is_waited_on(range: &Range<usize>) -> bool {
    block_at(range.start).load(Ordering::SeqCst) != 0
        && range.clone().step_by(PAGE_SIZE).any(|addr| page_at(addr).load(Ordering::SeqCst) != 0)
}

/// In a forked child: none of its parent's threads are there.
pub(crate) fn begin_child() {
    let counted = |counts: &'static [AtomicU32]| counts.iter().filter(|count| count.load(Ordering::Relaxed) != 0);
    // Their memory is not touched where nobody sleeps.
    if counted(&BY_BLOCK).next().is_some() {
        counted(&BY_BLOCK).chain(counted(&BY_PAGE)).for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_waited_on_while_a_thread_sleeps_there() {
        let at = 0x7654_3210_0000;
        let block = at..at + BLOCK_BYTES;
        let page = |index: usize| at + index * PAGE_SIZE..at + (index + 1) * PAGE_SIZE;
        assert!(!is_waited_on(&block));
        let word = |at: usize| Waited::new(at..at + 4);
        let (first, again) = (word(at + 5 * PAGE_SIZE + 8), word(at + 5 * PAGE_SIZE + 64));
        drop(first);
        assert!(is_waited_on(&block) && is_waited_on(&page(5)) && !is_waited_on(&page(6)));
        drop(again);
        assert!(!is_waited_on(&block));
        let stack = Waited::new(at + 2 * PAGE_SIZE + 8..at + 4 * PAGE_SIZE + 8);
        let are = [1, 2, 3, 4, 5].map(|index| is_waited_on(&page(index)));
        assert_eq!(are, [false, true, true, true, false]);
        drop(stack);
        assert!(!is_waited_on(&block));
        drop(Waited(at..at + 1));
        assert!(!is_waited_on(&block), "never below zero");
    }
}
