//! The thread-local storage of ended threads. When a detached thread ends, the C library frees its own, and that of
//! others whose stacks it keeps no longer. The loader does so by the program's allocator, which may find its memory
//! out. All signals are blocked by then, and those of this library, too: a fault, or a caught call, would end the
//! process. So a later thread does it.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::faults::ours;
use crate::ground::export::{export, real};
use crate::ground::real::own;
use crate::ground::{guard, state};

real!(DEALLOCATE = c"_dl_deallocate_tls": fn(*mut c_void, bool) -> ());

/// The storage of an ended thread. No lock: the C library holds one, and a forked child goes on with the list.
struct Left {
    /// The part of the thread's record that leads to it. The record itself goes with its stack.
    record: [usize; 2],
    next: *mut Left,
}

static LEFT: AtomicPtr<Left> = AtomicPtr::new(null_mut());

/// Whether the calling thread has blocked signals that are never blocked while it runs the program's code.
fn is_blocked() -> bool {
    let mut blocked = 0u64;
    // SAFETY: the kernel fills in the local.
    state::keeping_errno(|| unsafe { own!(libc::SYS_rt_sigprocmask, 0, 0usize, &raw mut blocked, 8) });
    blocked & ours::ours_mask() != 0
}

fn leave(record: [usize; 2]) {
    let _guard = guard::enter();
    let left = Box::into_raw(Box::new(Left { record, next: null_mut() }));
    let mut next = LEFT.load(Ordering::Relaxed);
    loop {
        // SAFETY: made above, and nobody else knows it before the exchange.
        unsafe { (*left).next = next };
        match LEFT.compare_exchange_weak(next, left, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => next = other,
        }
    }
}

/// Frees what was left. Called outside of a guard, because the program's allocator runs.
pub fn free_left() {
    if LEFT.load(Ordering::Relaxed).is_null() {
        return;
    }
    let mut at = LEFT.swap(null_mut(), Ordering::Acquire);
    while !at.is_null() {
        // SAFETY: `leave` made it, and this thread alone has taken it from the list. The loader looks for the storage
        // in these words of a record, unless it is to free the record, too.
        at = unsafe {
            let mut left = Box::from_raw(at);
            DEALLOCATE.get()((&raw mut left.record).cast(), false);
            left.next
        };
    }
}

export! {
    fn _dl_deallocate_tls(record: *mut c_void, frees_record: bool) -> () {
        if !frees_record && ours::has_ours() && is_blocked() {
            // SAFETY: the C library's record of a thread, which begins with a header of these two words.
            return leave(unsafe { record.cast::<[usize; 2]>().read() });
        }
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { DEALLOCATE.get()(record, frees_record) }
    }
}
