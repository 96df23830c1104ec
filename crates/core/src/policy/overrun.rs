//! Overruns: predicts whether an access that faults on a page will also fault on the next page.
//!
//! Objects of 1 KiB in a heap cross a page boundary one time in four, and each crossing costs a second fault and read.
//! The fault's offset in its page predicts this: an access that begins late in the page runs over its end. So each
//! sixteenth of a page is judged by trials: was the thread's next fault on the next page, if that was missing too? If
//! half or more were, both pages come in with one read, except one time in sixteen, which is a new trial.
//!
//! **Locking.** None: relaxed atomics. Threads that share a slot of `hands` overwrite each other's trial, and
//! concurrent updates of a count may lose one; trials are lost, but none is misjudged.

use crate::id::FolioId;
use crate::order::PAGE_SIZE;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Parts of a page that are judged separately.
const PARTS: usize = 16;
/// Slots for open trials, one per thread; threads share them by number.
const HANDS: usize = 16;
/// A part is trusted after this many trials, if half of them succeeded.
const TRIALS_MIN: u32 = 8;
/// Both counts of a part are halved here, so that old behaviour is forgotten.
const TRIALS_MAX: u32 = 64;
/// One in this many faults of a trusted part is a trial.
const PROBE_EVERY: u32 = 16;

/// Bits kept of a page's number: pages with equal bits are 128 TiB apart.
const PAGE_BITS: u32 = 35;
const PART_BITS: u32 = 5;

/// An access to a missing page.
#[derive(Copy, Clone, Debug)]
pub struct Access {
    /// The page.
    pub page: FolioId,
    /// The offset in the page, in bytes; 0 if the kernel does not report it.
    pub offset: usize,
    /// The thread.
    pub thread: u32,
}

impl Access {
    fn part(&self) -> usize {
        self.offset * PARTS / PAGE_SIZE
    }
}

/// What is known of accesses by their offset in a page.
pub struct Overruns {
    /// Successes in the low 16 bits, trials above.
    parts: [AtomicU32; PARTS],
    /// By thread: the thread's tag, the page its trial waits for, and the part plus 1 in the low 5 bits; 0: none.
    hands: [AtomicU64; HANDS],
    nr_trusted: AtomicU32,
}

impl Overruns {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Overruns {
            parts: std::array::from_fn(|_| AtomicU32::new(0)),
            hands: std::array::from_fn(|_| AtomicU64::new(0)),
            nr_trusted: AtomicU32::new(0),
        }
    }

    /// Ends the thread's open trial, if any. Call it for each of the thread's faults.
    pub fn note(&self, access: Access) {
        let hand = self.hand(access);
        let open = hand.load(Ordering::Relaxed);
        if open == 0 || open >> (PAGE_BITS + PART_BITS) != Self::tag(access) {
            return;
        }
        hand.store(0, Ordering::Relaxed);
        let (awaited, part) =
            (open >> PART_BITS & ((1 << PAGE_BITS) - 1), (open & ((1 << PART_BITS) - 1)) as usize - 1);
        let success = u32::from(awaited == access.page.get() & ((1 << PAGE_BITS) - 1));
        let (successes, trials) = self.counts(part);
        let (successes, trials) = (successes + success, trials + 1);
        let halved = u32::from(trials >= TRIALS_MAX);
        self.parts[part].store((successes >> halved) | (trials >> halved) << 16, Ordering::Relaxed);
    }

    /// Whether to bring in the next page too, which is also missing. If not, and one time in sixteen otherwise, this
    /// starts a trial, which the thread's next fault ends.
    pub fn wants_next(&self, access: Access) -> bool {
        let (successes, trials) = self.counts(access.part());
        let trusted = trials >= TRIALS_MIN && successes * 2 >= trials;
        if trusted && !self.nr_trusted.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE_EVERY) {
            return true;
        }
        let awaited = (access.page.get() + 1) & ((1 << PAGE_BITS) - 1);
        let open = Self::tag(access) << (PAGE_BITS + PART_BITS) | awaited << PART_BITS | (access.part() as u64 + 1);
        self.hand(access).store(open, Ordering::Relaxed);
        false
    }

    fn counts(&self, part: usize) -> (u32, u32) {
        let both = self.parts[part].load(Ordering::Relaxed);
        (both & 0xffff, both >> 16)
    }

    /// Bits kept of a thread's id: all that Linux uses.
    fn tag(access: Access) -> u64 {
        u64::from(access.thread) & 0xff_ffff
    }

    fn hand(&self, access: Access) -> &AtomicU64 {
        &self.hands[access.thread as usize % HANDS]
    }
}

impl Default for Overruns {
    fn default() -> Self {
        Overruns::new()
    }
}

impl std::fmt::Debug for Overruns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts: Vec<_> = (0..PARTS).map(|part| self.counts(part)).collect();
        f.debug_struct("Overruns").field("successes_of_trials", &counts).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Touches an object of `len` bytes: its page, then the next page if it crosses the boundary, on a thread that
    /// finds all pages missing. Returns the number of faults.
    fn touch(overruns: &Overruns, thread: u32, addr: usize, len: usize) -> usize {
        let at = |addr: usize| Access { page: FolioId::from_index(addr / PAGE_SIZE), offset: addr % PAGE_SIZE, thread };
        overruns.note(at(addr));
        let has_both = overruns.wants_next(at(addr));
        let crosses = addr % PAGE_SIZE + len > PAGE_SIZE;
        if crosses && !has_both {
            let next = (addr / PAGE_SIZE + 1) * PAGE_SIZE;
            overruns.note(at(next));
            overruns.wants_next(at(next));
        }
        1 + usize::from(crosses && !has_both)
    }

    #[test]
    fn objects_that_cross_the_end_of_a_page_come_in_at_once() {
        let overruns = Overruns::new();
        let faults = |rounds: std::ops::Range<usize>| -> usize {
            rounds.map(|round| touch(&overruns, 7, (round * 7919 % 65536) * 1280, 1030)).sum()
        };
        faults(0..1000);
        let learned = faults(1000..2000);
        assert!((1000..1030).contains(&learned), "{learned} faults for 1000 objects, 250 of which cross");
    }

    #[test]
    fn accesses_that_end_in_their_page_bring_in_nothing_else() {
        let overruns = Overruns::new();
        for round in 0..1000 {
            let addr = (round * 7919 % 65536) * PAGE_SIZE + round % 16 * 256;
            touch(&overruns, 7, addr, 8);
            assert!(!overruns.wants_next(Access { page: FolioId::new(1), offset: addr % PAGE_SIZE, thread: 9 }));
        }
    }

    #[test]
    fn what_a_program_no_longer_does_is_forgotten() {
        let overruns = Overruns::new();
        let faults: usize = (0..200).map(|round| touch(&overruns, 1, round * 3 * PAGE_SIZE + 4000, 1000)).sum();
        assert!(faults < 230, "{faults} for 200 objects");
        assert!((0..2).any(|_| overruns.wants_next(Access { page: FolioId::new(9), offset: 4000, thread: 1 })));
        (0..PROBE_EVERY as usize * 200).for_each(|round| {
            touch(&overruns, 1, round * 3 * PAGE_SIZE + 4000, 8);
        });
        assert!((0..4).all(|_| !overruns.wants_next(Access { page: FolioId::new(9), offset: 4000, thread: 1 })));
    }
}
