//! Small buffers for the kernel, which are had without a lock: a thread that polls may be the one for which another
//! thread's fork waits, and that thread holds the heaps. Most calls need no larger ones.
//!
//! One that is never given back, by a jump out of a handler or in a child of fork, is lost. Then there are the heaps.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ground::guard;

/// The longest that fits.
pub const MOST_BYTES: usize = 500;
/// The alignment in which a buffer is like the one that it stands for.
pub const ALIGNMENT: usize = 64;
const NR_WORDS: usize = 4;
const NR_BUFFERS: usize = NR_WORDS * u64::BITS as usize;

#[repr(align(64))]
struct Buffer(UnsafeCell<[u8; MOST_BYTES + ALIGNMENT]>);

// SAFETY: a buffer is used by who has taken it.
unsafe impl Sync for Buffer {}

static BUFFERS: [Buffer; NR_BUFFERS] = [const { Buffer(UnsafeCell::new([0; MOST_BYTES + ALIGNMENT])) }; NR_BUFFERS];

/// A bit for each that is taken.
static TAKEN: [AtomicU64; NR_WORDS] = [const { AtomicU64::new(0) }; NR_WORDS];

/// A buffer, and how far into it what stands for an address begins. `None`: all are taken.
pub fn take(stands_for: usize) -> Option<(*mut u8, usize)> {
    let first = guard::this_thread() as usize % NR_WORDS; // threads begin at different words
    (first..first + NR_WORDS).find_map(|word| {
        let word = word % NR_WORDS;
        loop {
            let bit = TAKEN[word].load(Ordering::Relaxed).trailing_ones();
            if bit == u64::BITS {
                return None;
            }
            if TAKEN[word].fetch_or(1 << bit, Ordering::Acquire) & 1 << bit == 0 {
                let index = word * u64::BITS as usize + bit as usize;
                return Some((BUFFERS[index].0.get().cast(), stands_for % ALIGNMENT));
            }
        }
    })
}

/// Gives a buffer back. `false`: it is none of these.
pub fn give_back(buffer: *mut u8) -> bool {
    let at = (buffer as usize).wrapping_sub(BUFFERS.as_ptr() as usize);
    let index = at / size_of::<Buffer>();
    if index >= NR_BUFFERS {
        return false;
    }
    TAKEN[index / u64::BITS as usize].fetch_and(!(1 << (index % u64::BITS as usize)), Ordering::Release);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_buffer_has_one_user() {
        let mut taken: Vec<_> = std::iter::from_fn(|| take(0x1234_5678)).collect();
        assert_eq!(taken.len(), NR_BUFFERS);
        assert!(taken.iter().all(|&(buffer, offset)| (buffer as usize).is_multiple_of(ALIGNMENT) && offset == 0x38));
        taken.sort();
        taken.dedup();
        assert_eq!(taken.len(), NR_BUFFERS);
        assert!(!give_back(std::ptr::null_mut()) && give_back(taken[5].0));
        assert_eq!(take(3), Some((taken[5].0, 3)));
        assert!(taken.iter().all(|&(buffer, _)| give_back(buffer)));
    }
}
