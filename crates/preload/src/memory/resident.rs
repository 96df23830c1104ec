//! Brings managed memory into RAM, and keeps it there.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};

use folioswap::PAGE_SIZE;

use crate::ground::{guard, state};
use crate::memory::access::{self, Access};

/// Faults in the managed part of a range, also under a guard. The kernel refuses a range beyond all addresses as a
/// whole.
pub fn bring_in(addr: usize, len: usize) {
    let is_possible = addr.checked_add(len).is_some_and(|end| end <= 1 << 47);
    if let Some(space) = state::space().filter(|_| is_possible) {
        let _guard = guard::enter();
        state::keeping_errno(|| space.touch(addr, len));
    }
}

/// Holds a range in RAM, if it is managed: memory that the kernel writes to on its own.
pub fn hold(addr: usize, len: usize) {
    if let Some(space) = state::space()
        && len > 0
        && state::is_managed(addr)
    {
        let _guard = guard::enter();
        // SAFETY: the program has mapped this memory.
        state::keeping_errno(|| unsafe { space.hold(addr, len) });
    }
}

/// Ends such a hold.
pub fn release(addr: usize, len: usize) {
    if let Some(space) = state::space()
        && len > 0
    {
        let _guard = guard::enter();
        // SAFETY: it was held.
        state::keeping_errno(|| unsafe { space.release_hold(addr, len) });
    }
}

/// Brings the next part of the calling thread's stack in, as far as it is managed: before the C library blocks the
/// signals of faults.
pub fn touch_stack() {
    /// What the C library may use of it meanwhile.
    const STACK_BYTES: usize = 32 << 10;
    let here = 0u8;
    let top = &raw const here as usize & !(PAGE_SIZE - 1);
    let pages = (top - STACK_BYTES..top).step_by(PAGE_SIZE).rev();
    for page in pages.take_while(|&page| state::is_managed(page) && access::is_open(page, 1, Access::Write)) {
        let nothing = black_box(0); // a known zero is no access to the compiler
        // SAFETY: the program may write there, and nothing is changed. It may be no stack, but another thread's data.
        unsafe { AtomicU8::from_ptr(page as *mut u8) }.fetch_or(nothing, Ordering::Relaxed);
    }
}
