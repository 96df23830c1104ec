//! brk and sbrk: the memory behind the program's data, which some allocators use.

use std::ffi::{c_int, c_void};

use crate::alloc::malloc;
use crate::calls::access;
use crate::export::{export, real};
use crate::map::known;
use crate::map::mapping::{manage, pages, replace};
use crate::real::own;
use crate::{guard, start, state};

// The C library's own calls keep in mind where the end is.
real!(BRK = c"brk": fn(*mut c_void) -> c_int);
real!(SBRK = c"sbrk": fn(isize) -> *mut c_void);

/// The end now.
fn now() -> usize {
    // SAFETY: an impossible address changes nothing.
    unsafe { own!(libc::SYS_brk, 0usize) as usize }
}

/// Moves the end by a call that returns 0 or -1. What it grows by is managed, unless it fits into the ordinary share.
fn change(wanted: usize, call: impl FnOnce() -> c_int) -> c_int {
    let (old, new) = (pages(now()), pages(wanted));
    start::before_mapping(new.saturating_sub(old));
    if guard::inside() || !state::may_manage() || wanted == 0 {
        return call();
    }
    let _guard = guard::enter();
    if new < old {
        let gone = new..old;
        known::forget(&gone);
        return match state::space() {
            // SAFETY: the program gives this memory up.
            Some(space) if state::overlaps(gone.start, gone.len()) => unsafe { replace(space, &gone, false, call) },
            _ => call(),
        };
    }
    let result = call();
    if result == 0 && new > old {
        let grown = old..new;
        known::forget(&grown);
        access::note_mapped(&grown, true);
        match state::space() {
            Some(space) if !malloc::has_share(grown.len()) => manage(space, grown),
            _ => known::note_ordinary(grown),
        }
    }
    result
}

/// Implements the system call: returns the end as it is afterwards.
pub fn by_number(wanted: usize) -> usize {
    change(wanted, || {
        // SAFETY: the program's own call.
        if unsafe { own!(libc::SYS_brk, wanted) as usize } == wanted { 0 } else { -1 }
    });
    now()
}

export! {
    fn brk(end: *mut c_void) -> c_int {
        // SAFETY: the caller's call.
        state::as_the_kernel(|| change(end as usize, || unsafe { BRK.get()(end) }))
    }
}

export! {
    fn sbrk(more: isize) -> *mut c_void {
        state::as_the_kernel(|| {
            // SAFETY: moves nothing.
            let old = unsafe { SBRK.get()(0) };
            if more == 0 || old == libc::MAP_FAILED {
                return old;
            }
            let moved = (old as usize).checked_add_signed(more).map(|end| {
                // SAFETY: the caller's call.
                change(end, || if unsafe { SBRK.get()(more) } == libc::MAP_FAILED { -1 } else { 0 })
            });
            if moved == Some(0) {
                return old;
            }
            state::fail(libc::ENOMEM);
            libc::MAP_FAILED
        })
    }
}

export! {
    fn __sbrk(more: isize) -> *mut c_void {
        // SAFETY: an alias with the same contract.
        unsafe { sbrk(more) }
    }
}
