//! Which memory the kernel may read or write for the program.
//!
//! A system call that is given other memory fails with EFAULT, or ends before it. A cover that copies that memory
//! itself would raise SIGSEGV. So covers ask first. Memory that the program has mapped readable and writable is known
//! to be accessible (`map::open_pages`). About all other memory the kernel is asked, with MADV_POPULATE_READ or _WRITE;
//! and where it does not populate any, by a call that reads a word there or adds zero to it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::ground::real::own;
use crate::ground::state;
use crate::memory::{open_pages, resident};
use folioswap::PAGE_SIZE;

/// What a call does with memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Whether the kernel can be asked (Linux 5.14).
static ANSWERS: AtomicBool = AtomicBool::new(false);

/// The most bytes about which the kernel is asked at a time, because they must be in RAM at once.
const PIECE_BYTES: usize = 256 << 10;

/// How often pages that left meanwhile are brought in again.
const MOST_TRIES: usize = 100;

/// Addresses at most this far above the stack pointer are taken to be the caller's stack.
const STACK_BYTES: usize = 32 << 10;

/// Finds out whether the kernel can be asked.
pub fn prepare() {
    let local = 0u8;
    let page = &raw const local as usize & !(PAGE_SIZE - 1);
    ANSWERS.store(populate(page..page + PAGE_SIZE, Access::Read) == 0, Ordering::Relaxed);
}

/// Whether some of a range may not be accessible.
pub fn is_doubtful(range: &Range<usize>) -> bool {
    !open_pages::has(range) && ANSWERS.load(Ordering::Relaxed)
}

/// Has the kernel fault pages in. Zero, or the error.
fn populate(pages: Range<usize>, access: Access) -> i32 {
    let advice = if access == Access::Read { libc::MADV_POPULATE_READ } else { libc::MADV_POPULATE_WRITE };
    state::keeping_errno(|| {
        // SAFETY: faults pages in as a touch would, and changes nothing else.
        let result = unsafe { own!(libc::SYS_madvise, pages.start, pages.len(), advice) };
        if result == 0 { 0 } else { state::errno() }
    })
}

fn may_access(pages: &Range<usize>, access: Access) -> bool {
    for _ in 0..MOST_TRIES {
        match populate(pages.clone(), access) {
            0 => return true,
            // Pages are not in RAM, or their content is lost.
            libc::EFAULT => resident::bring_in(pages.start, pages.len()),
            libc::EAGAIN | libc::EINTR => {}
            // What may be written or run may be read on this architecture, but is not populated so.
            libc::EINVAL if access == Access::Read && pages.len() == PAGE_SIZE => return is_readable(pages.start),
            _ => return false,
        }
    }
    false
}

/// Whether the kernel can read from a page.
fn is_readable(page: usize) -> bool {
    (0..MOST_TRIES).any(|_| {
        resident::bring_in(page, PAGE_SIZE);
        finds(page, Access::Read)
    })
}

/// A word on which nobody sleeps.
static UNUSED: AtomicU32 = AtomicU32::new(0);

/// Whether the kernel can access the bytes at `addr`, if their page is in RAM; tested by a call without other effect.
/// All eight are in one page.
fn finds(addr: usize, access: Access) -> bool {
    const NOTHING: usize = 99;
    const WAKE: i32 = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // Who sleeps on the word is woken only if it holds a number that is unlikely.
    const ADD_ZERO: u32 = (libc::FUTEX_OP_ADD as u32) << 28 | (libc::FUTEX_OP_CMP_EQ as u32) << 24 | 0x5a5;
    state::keeping_errno(|| match access {
        // It reads a signal set there before it refuses this operation.
        // SAFETY: the kernel knows no such operation, so it changes nothing.
        Access::Read => unsafe {
            own!(libc::SYS_rt_sigprocmask, NOTHING, addr, 0usize, 8usize);
            state::errno() == libc::EINVAL
        },
        // SAFETY: the kernel adds zero to a word, as one operation. Who sleeps on it may be woken, as at any time.
        Access::Write => unsafe { own!(libc::SYS_futex, UNUSED.as_ptr(), WAKE, 0, 0usize, addr & !3, ADD_ZERO) >= 0 },
    })
}

/// No program has memory from here on.
const BEYOND: usize = 1 << 63;

/// How many bytes from the start of a range on may be accessed.
pub fn prefix(addr: usize, len: usize, access: Access) -> usize {
    if addr >= BEYOND {
        return 0;
    }
    let end = addr.saturating_add(len).min(BEYOND);
    if !is_doubtful(&(addr..end)) {
        return len;
    }
    let mut at = addr & !(PAGE_SIZE - 1);
    let mut most = PIECE_BYTES;
    while at < end {
        let pages = at..at.saturating_add(most).min(end.next_multiple_of(PAGE_SIZE));
        if may_access(&pages, access) {
            at = pages.end;
        } else if pages.len() > PAGE_SIZE {
            most = (pages.len() / 2).next_multiple_of(PAGE_SIZE);
        } else {
            return at.saturating_sub(addr);
        }
    }
    len
}

/// Whether all of a range may be accessed, managed or not.
pub fn is_open(addr: usize, len: usize, access: Access) -> bool {
    let local = 0u8;
    let here = &raw const local as usize;
    if len == 0 || addr.wrapping_sub(here) < STACK_BYTES {
        return true;
    }
    let end = addr.saturating_add(len);
    if addr < PAGE_SIZE || end > BEYOND {
        return false;
    }
    if open_pages::has(&(addr..end)) {
        return true;
    }
    if state::overlaps(addr, len) {
        return prefix(addr, len, access) == len;
    }
    let pages = addr & !(PAGE_SIZE - 1)..end.next_multiple_of(PAGE_SIZE);
    !ANSWERS.load(Ordering::Relaxed)
        || match populate(pages.clone(), access) {
            0 => true,
            // Memory of memfd_secret or of a device, or what may be written but not read: it is not populated.
            libc::EFAULT | libc::EINVAL => {
                pages.step_by(PAGE_SIZE).all(|page| finds(addr.clamp(page, page + PAGE_SIZE - 8), access))
            }
            _ => false,
        }
}

/// Reads a value of the program's; `None` if the kernel could not. Reading it faults it in.
///
/// # Safety
/// If the memory may be read, it holds such a value, and no other thread unmaps it.
pub unsafe fn read<T: Copy>(at: *const T) -> Option<T> {
    // SAFETY: the range may be read. It need not be aligned. The caller vouches for the value.
    is_open(at as usize, size_of::<T>(), Access::Read).then(|| unsafe { at.read_unaligned() })
}

/// The length of a managed C string; `None` if the kernel could not read all of it. Reading it faults it in.
///
/// # Safety
/// If the memory may be read, it holds a C string, and no other thread unmaps it.
pub unsafe fn text_len(at: usize) -> Option<usize> {
    let mut next = at;
    loop {
        let len = PAGE_SIZE - next % PAGE_SIZE;
        if prefix(next, len, Access::Read) == 0 {
            return None;
        }
        // SAFETY: the rest of a page, which may be read.
        let part = unsafe { std::slice::from_raw_parts(next as *const u8, len) };
        match part.iter().position(|&byte| byte == 0) {
            Some(index) => return Some(next - at + index),
            None => next += len,
        }
    }
}
