//! Pages that are known to be readable and writable. Of all others nothing is known.
//!
//! **Layout.** A word for each block holds one run of such pages. Where there are several, the longest is kept. The
//! words lie in chunks, which are mapped when the first page in them opens.
//!
//! **Locking.** None. A word is changed as one. Pages are removed before they go, and added once they are there.

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use folioswap::{BLOCK_BYTES, PAGE_SIZE};
use folioswap_sys::memory::place_apart;

use crate::ground::real::own;
use crate::ground::state;
use crate::memory::pages::PLAIN;

/// Programs have no addresses from here on.
const ADDRESSES_END: usize = 1 << 47;
const CHUNK_BLOCKS: usize = 8192;
const CHUNK_BYTES: usize = CHUNK_BLOCKS * BLOCK_BYTES;
const NR_CHUNKS: usize = ADDRESSES_END / CHUNK_BYTES;

type Chunk = [AtomicU32; CHUNK_BLOCKS];

static CHUNKS: [AtomicPtr<Chunk>; NR_CHUNKS] = [const { AtomicPtr::new(null_mut()) }; NR_CHUNKS];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    start: u16,
    end: u16,
}

impl Run {
    fn of(word: u32) -> Run {
        Run { start: word as u16, end: (word >> 16) as u16 }
    }

    fn word(self) -> u32 {
        u32::from(self.end) << 16 | u32::from(self.start)
    }

    fn touched(block: usize, range: &Range<usize>) -> Run {
        let inside = |addr: usize| addr.saturating_sub(block).min(BLOCK_BYTES);
        Run { start: (inside(range.start) / PAGE_SIZE) as u16, end: inside(range.end).div_ceil(PAGE_SIZE) as u16 }
    }

    fn len(self) -> u16 {
        self.end - self.start
    }

    fn has(self, other: Run) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    fn longer(self, other: Run) -> Run {
        if self.len() >= other.len() { self } else { other }
    }

    fn with(self, other: Run) -> Run {
        match other.start > self.end || self.start > other.end {
            true => self.longer(other),
            false => Run { start: self.start.min(other.start), end: self.end.max(other.end) },
        }
    }

    fn without(self, other: Run) -> Run {
        if other.start >= self.end || self.start >= other.end {
            return self;
        }
        let before = Run { start: self.start, end: other.start.max(self.start) };
        let after = Run { start: other.end.min(self.end), end: self.end };
        before.longer(after)
    }
}

/// The words of a chunk, which is made if that is wanted. `None`: it is not there.
fn chunk(index: usize, makes: bool) -> Option<&'static Chunk> {
    let place = &CHUNKS[index];
    let there = place.load(Ordering::Acquire);
    if there.is_null() && makes {
        return make(place);
    }
    // SAFETY: a chunk, which stays.
    unsafe { there.as_ref() }
}

#[cold]
fn make(place: &AtomicPtr<Chunk>) -> Option<&'static Chunk> {
    let (len, flags) = (size_of::<Chunk>(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    state::keeping_errno(|| {
        // SAFETY: a new mapping, which only this function knows until it is in its place. Zeros are words.
        unsafe {
            let made = own!(libc::SYS_mmap, place_apart(len), len, PLAIN, flags, -1i32, 0usize);
            if made < 0 {
                return None; // nothing is known of these pages
            }
            let made = made as *mut Chunk;
            match place.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => made.as_ref(),
                Err(others) => {
                    own!(libc::SYS_munmap, made, len);
                    others.as_ref()
                }
            }
        }
    })
}

/// What is done about words that are not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    Make,
    Skip,
    Stop,
}

/// Calls `visit` with the word of each block that a range touches, and the pages of it in there, until it returns
/// false. Whether it never did.
fn each(range: &Range<usize>, absent: Absent, mut visit: impl FnMut(&AtomicU32, Run) -> bool) -> bool {
    let end = range.end.min(ADDRESSES_END);
    let mut block = range.start & !(BLOCK_BYTES - 1);
    while block < end {
        let Some(words) = chunk(block / CHUNK_BYTES, absent == Absent::Make) else {
            if absent == Absent::Stop {
                return false;
            }
            block = (block / CHUNK_BYTES + 1) * CHUNK_BYTES;
            continue;
        };
        if !visit(&words[block / BLOCK_BYTES % CHUNK_BLOCKS], Run::touched(block, range)) {
            return false;
        }
        block += BLOCK_BYTES;
    }
    true
}

fn update(range: &Range<usize>, absent: Absent, change: impl Fn(Run, Run) -> Run) {
    each(range, absent, |word, run| {
        let changed = |old: u32| Some(change(Run::of(old), run).word()).filter(|&new| new != old);
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed); // an error: it is so already
        true
    });
}

/// Notes that the pages of a range are readable and writable.
pub fn add(range: &Range<usize>) {
    update(range, Absent::Make, Run::with);
}

/// Forgets the pages that a range touches.
pub fn remove(range: &Range<usize>) {
    update(range, Absent::Skip, Run::without);
}

/// Whether all pages that a range touches are known to be readable and writable.
pub fn has(range: &Range<usize>) -> bool {
    range.end <= ADDRESSES_END && each(range, Absent::Stop, |word, run| Run::of(word.load(Ordering::Relaxed)).has(run))
}

/// Notes that a range may not be both readable and writable from now on, or that nothing may be mapped there.
pub fn note_closed(range: &Range<usize>) {
    if state::space().is_some() {
        remove(range);
    }
}

/// Notes that all of a range is readable and writable.
pub fn note_open(range: &Range<usize>) {
    if state::space().is_some() {
        add(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_packed() {
        for run in [Run { start: 0, end: 0 }, Run { start: 0, end: 512 }, Run { start: 511, end: 512 }] {
            assert_eq!(Run::of(run.word()), run);
        }
        let block = 3 * BLOCK_BYTES;
        let touched = |start: usize, end: usize| Run::touched(block, &(block + start..block + end));
        assert_eq!(touched(0, 1), Run { start: 0, end: 1 });
        assert_eq!(touched(PAGE_SIZE - 1, PAGE_SIZE + 1), Run { start: 0, end: 2 });
        assert_eq!(touched(5 * PAGE_SIZE, 2 * BLOCK_BYTES), Run { start: 5, end: 512 });
        assert_eq!(Run::touched(block, &(0..usize::MAX)), Run { start: 0, end: 512 });
    }

    /// What is known must be open in a plain model.
    #[test]
    fn like_a_model() {
        const NR_PAGES: usize = 4 * 512;
        let base = CHUNK_BYTES * 5 - 2 * BLOCK_BYTES; // two chunks
        let (mut model, mut state) = ([false; NR_PAGES], 7u64);
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for round in 0..20_000 {
            let start = random(NR_PAGES);
            let len = 1 + random(if round % 3 == 0 { 700 } else { 8 }.min(NR_PAGES - start));
            let (pages, range) = (start..start + len, base + start * PAGE_SIZE..base + (start + len) * PAGE_SIZE);
            match random(3) {
                0 => {
                    model[pages].fill(true);
                    add(&range);
                }
                1 => {
                    model[pages].fill(false);
                    remove(&range);
                    assert!(!has(&range), "round {round}");
                }
                _ => assert!(!has(&range) || model[pages].iter().all(|&is_open| is_open), "round {round}"),
            }
        }
        let all = base..base + NR_PAGES * PAGE_SIZE;
        remove(&all);
        let (middle, beyond) = (all.start + 7 * PAGE_SIZE, all.start + 600 * PAGE_SIZE);
        add(&(middle..beyond));
        assert!(has(&(middle..beyond)));
        add(&(all.start..middle));
        add(&(beyond..all.end));
        assert!(has(&all) && !has(&(all.start..all.end + 1)) && !has(&(all.start - 1..all.end)));
        assert!(!has(&(0..PAGE_SIZE)) && !has(&(ADDRESSES_END..ADDRESSES_END + 1)));
    }
}
