//! Memory that is checked at each access: every word encodes its place and when it was written.
//!
//! The upper half of a word is computed from its index. The lower half is the generation of its page when it was
//! written. The current generation, and which words were written last, are kept here in unmanaged memory. This
//! detects a word from another place, and one from the future. A lost write is detected at the next access to the
//! page or by [`PageSet::verify`], because the words written last must have the current generation. The same holds
//! for rows of [`Data::Records`], which encode their number and generation.
//!
//! Each page has its own mutex. Its holder may have to wait for a fault on the page.

use crate::shared::records::{self, Data, ROW_WORDS};
use folioswap::Order;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a page, and of a block.
pub const PAGE: usize = Order::PAGE.bytes();
pub const BLOCK: usize = Order::HUGE.bytes();

pub const PAGE_WORDS: usize = PAGE / size_of::<u64>();

/// The right value of the word at `index`, written in `generation`. Never 0 in generations from 1 on.
pub fn value(index: u64, generation: u32) -> u64 {
    tag(index) | u64::from(generation)
}

fn tag(index: u64) -> u64 {
    index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) & !u64::from(u32::MAX)
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Access {
    /// Reads and checks.
    Read,
    /// Writes without reading.
    Write,
    /// Reads, checks and writes.
    Change,
}

impl Access {
    pub fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Change => "change",
        }
    }
}

struct Page<'a> {
    words: &'a mut [u64; PAGE_WORDS],
    generation: u32,
    /// The first word of the last write.
    last: u16,
    /// Words of the last write.
    last_len: u16,
}

impl Page<'_> {
    /// The number of wrong words, in the range or in the last write. `first` is the index of the page's first word.
    fn check(&self, first: u64, range: Range<usize>, data: Data) -> u64 {
        let bad_last = self.check_last(first, data);
        if range == self.last_range() {
            // Words that have the page's tag and its generation cannot be of another page or from the future.
            return bad_last;
        }
        bad_last.max(match data {
            Data::Plain => self.check_words(first, range),
            Data::Records => self.check_rows(first, range),
        })
    }

    /// The number of words in the range that are of another page or from the future.
    fn check_words(&self, first: u64, range: Range<usize>) -> u64 {
        let words = self.words[range.clone()].iter().zip(range);
        let wrong = words.filter(|(word, offset)| {
            **word & !u64::from(u32::MAX) != tag(first + *offset as u64) || **word as u32 > self.generation
        });
        wrong.count() as u64
    }

    /// The same for rows. The range consists of whole rows.
    fn check_rows(&self, first: u64, range: Range<usize>) -> u64 {
        let rows = self.words[range.clone()].chunks(ROW_WORDS).zip((first + range.start as u64..).step_by(ROW_WORDS));
        let bad = rows.map(|(row, first)| match records::version_of(row) {
            version if version > self.generation => row.len() as u64,
            version => records::count_bad(row, first, version),
        });
        bad.sum()
    }

    fn last_range(&self) -> Range<usize> {
        usize::from(self.last)..usize::from(self.last) + usize::from(self.last_len)
    }

    /// The number of words of the last write that do not have the value written.
    fn check_last(&self, first: u64, data: Data) -> u64 {
        let last = self.last_range();
        if data == Data::Records {
            return records::count_bad(&self.words[last.clone()], first + last.start as u64, self.generation);
        }
        let words = self.words[last.clone()].iter().zip(last);
        words.filter(|(word, offset)| **word != value(first + *offset as u64, self.generation)).count() as u64
    }

    fn write(&mut self, first: u64, range: Range<usize>, data: Data) {
        self.generation += 1;
        (self.last, self.last_len) = (range.start as u16, range.len() as u16);
        if data == Data::Records {
            return records::write(&mut self.words[range.clone()], first + range.start as u64, self.generation);
        }
        for (word, offset) in self.words[range.clone()].iter_mut().zip(range) {
            *word = value(first + offset as u64, self.generation);
        }
    }
}

/// The pages of a region, shared by threads.
pub struct PageSet<'a> {
    pages: Vec<Mutex<Page<'a>>>,
    data: Data,
}

impl<'a> PageSet<'a> {
    /// Bytes of unmanaged memory for each page.
    pub const BOOK_BYTES: usize = size_of::<Mutex<Page<'static>>>();

    /// Fills every whole page with `data`, using `threads` threads. `progress` counts bytes.
    pub fn fill(words: &'a mut [u64], data: Data, threads: usize, progress: &AtomicU64) -> PageSet<'a> {
        let pages = words.as_chunks_mut().0.iter_mut();
        let pages = pages.map(|words| Mutex::new(Page { words, generation: 0, last: 0, last_len: 0 })).collect();
        let pages = PageSet { pages, data };
        pages.each(threads, |index, page| {
            page.write((index * PAGE_WORDS) as u64, 0..PAGE_WORDS, data);
            progress.fetch_add(4096, Ordering::Relaxed);
        });
        pages
    }

    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Accesses a range of words of a page; whole rows if it holds rows. Returns the number of wrong words.
    pub fn access(&self, index: usize, range: Range<usize>, access: Access) -> u64 {
        let first = (index * PAGE_WORDS) as u64;
        let mut page = locked(&self.pages[index]);
        let mut bad_words = 0;
        if access != Access::Write {
            bad_words = page.check(first, range.clone(), self.data);
        }
        if access != Access::Read {
            page.write(first, range, self.data);
        }
        bad_words
    }

    /// Checks every word. Returns the number of wrong words.
    pub fn verify(&self, threads: usize) -> u64 {
        self.verify_from(1, threads)
    }

    /// Like [`PageSet::verify`], for pages written since they were filled. If memory is filled often and used
    /// briefly, reading all of it would take most of the time.
    pub fn verify_written(&self, threads: usize) -> u64 {
        self.verify_from(2, threads)
    }

    fn verify_from(&self, generation: u32, threads: usize) -> u64 {
        let bad_words = AtomicU64::new(0);
        self.each(threads, |index, page| {
            if page.generation < generation {
                return;
            }
            let first = (index * PAGE_WORDS) as u64;
            let bad = page.check(first, 0..PAGE_WORDS, self.data);
            bad_words.fetch_add(bad, Ordering::Relaxed);
        });
        bad_words.into_inner()
    }

    /// Visits every page once. Each thread visits a share of its own from start to end.
    fn each(&self, threads: usize, visit: impl Fn(usize, &mut Page<'a>) + Sync) {
        let share = self.pages.len().div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            for (number, pages) in self.pages.chunks(share).enumerate() {
                let visit = &visit;
                scope.spawn(move || {
                    for (offset, page) in pages.iter().enumerate() {
                        visit(number * share + offset, &mut locked(page));
                    }
                });
            }
        });
    }
}

/// Ignores poisoning: a thread that panics ends the benchmark anyway.
fn locked<'g, 'a>(page: &'g Mutex<Page<'a>>) -> MutexGuard<'g, Page<'a>> {
    page.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NR_WORDS: usize = 5 * PAGE_WORDS;

    fn with_pages(data: Data, test: impl FnOnce(&PageSet)) {
        let mut words = vec![0; NR_WORDS + 3];
        let progress = AtomicU64::new(0);
        let pages = PageSet::fill(&mut words, data, 2, &progress);
        assert_eq!((pages.len(), progress.load(Ordering::Relaxed)), (5, 5 * 4096));
        test(&pages);
    }

    fn sound_memory_has_no_bad_words(data: Data, accesses: &[(usize, Range<usize>, Access)]) {
        with_pages(data, |pages| {
            assert_eq!(pages.verify(3), 0);
            for (page, range, access) in accesses {
                assert_eq!(pages.access(*page, range.clone(), *access), 0);
            }
            assert_eq!(pages.verify(1), 0);
        });
    }

    #[test]
    fn sound_words_are_right() {
        let accesses = [
            (0, 0..512, Access::Change),
            (4, 7..8, Access::Write),
            (4, 500..501, Access::Change),
            (4, 7..8, Access::Read),
            (2, 0..512, Access::Read),
        ];
        sound_memory_has_no_bad_words(Data::Plain, &accesses);
    }

    #[test]
    fn sound_rows_are_right() {
        let accesses = [
            (0, 0..512, Access::Change),
            (4, 16..32, Access::Write),
            (4, 480..512, Access::Change),
            (4, 16..32, Access::Read),
            (4, 0..64, Access::Read),
        ];
        sound_memory_has_no_bad_words(Data::Records, &accesses);
    }

    #[test]
    fn a_lost_write_is_found_at_the_next_access_elsewhere_in_the_page() {
        for (data, written, elsewhere) in [(Data::Plain, 9..10, 100..101), (Data::Records, 16..32, 64..80)] {
            with_pages(data, |pages| {
                let lost = written.len() as u64;
                let before = *locked(&pages.pages[1]).words;
                pages.access(1, written, Access::Change);
                *locked(&pages.pages[1]).words = before;
                assert_eq!(pages.access(1, elsewhere, Access::Read), lost);
                assert_eq!((pages.verify(2), pages.verify_written(2)), (lost, lost));
            });
        }
    }

    #[test]
    fn words_of_another_page_or_of_none_are_wrong() {
        with_pages(Data::Plain, |pages| {
            let other = *locked(&pages.pages[1]).words;
            *locked(&pages.pages[3]).words = other;
            assert_eq!((pages.verify(2), pages.verify_written(2)), (512, 0), "it was never written again");
            *locked(&pages.pages[3]).words = [0; PAGE_WORDS];
            assert_eq!(pages.access(3, 8..16, Access::Change), 512);
            locked(&pages.pages[0]).words[1] += 1;
            assert_eq!(pages.access(0, 1..2, Access::Read), 1, "from the future");
        });
    }

    #[test]
    fn rows_of_another_page_or_of_none_or_of_another_time_are_wrong() {
        with_pages(Data::Records, |pages| {
            let other = *locked(&pages.pages[1]).words;
            *locked(&pages.pages[3]).words = other;
            let bad = pages.verify(2);
            assert!((4 * 32..512).contains(&bad), "the numbers, the times, the checksums, the prices: {bad}");
            *locked(&pages.pages[3]).words = [0; PAGE_WORDS];
            assert_eq!(pages.access(3, 0..16, Access::Change), 512);
            // A row of this page whose own version is later than the page's generation.
            let mut page = locked(&pages.pages[0]);
            records::write(&mut page.words[16..32], 16, 2);
            assert_eq!(page.check_rows(0, 16..32), 16, "from the future");
            // Rows of two generations. Then one row of the last write reverts to the earlier one, except for one word.
            page.write(0, 32..64, Data::Records);
            records::write(&mut page.words[16..32], 16, 1);
            assert_eq!(page.check(0, 0..512, Data::Records), 0);
            let word = page.words[32 + 3];
            records::write(&mut page.words[32..48], 32, 1);
            page.words[32 + 3] = word;
            assert_eq!(page.check(0, 0..512, Data::Records), 15, "all but one are as they were before");
            assert_eq!(page.check_rows(0, 32..48), 1, "one is not of the time that the row says");
        });
    }
}
