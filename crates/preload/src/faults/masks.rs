//! The program's signal masks. The signals that this library needs are never really blocked. A program that blocks them
//! reads that they are ([`held_signals`]).

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::{null, null_mut};

use folioswap_sys::held_signals;
use libc::sigset_t;

use crate::faults::ours::{bring, ours_mask};
use crate::ground::export::{export, real};
use crate::ground::real::kernel;
use crate::ground::state;
use crate::memory::access;

real!(SIGBLOCK = c"sigblock": fn(c_int) -> c_int);
real!(SIGSETMASK = c"sigsetmask": fn(c_int) -> c_int);

/// Changes what is blocked in name, after the kernel has changed the rest. Returns the program's mask before, of which
/// `known` is the kernel's part.
pub fn change(how: c_int, set: Option<u64>, known: u64) -> u64 {
    known & !ours_mask() | held_signals::change(how, set, ours_mask())
}

/// The signals by which the C library cancels threads, and changes their users. It lets no program block them.
const INTERNAL: u64 = 0b11 << 31;

/// Sets the mask by these signals, if there are some, and returns the program's mask before. An error number if the
/// kernel refuses that.
pub fn exchange(how: c_int, set: Option<u64>) -> Result<u64, c_int> {
    let local = set.unwrap_or(0) & !(ours_mask() | INTERNAL);
    let (new, mut known) = (set.map_or(null(), |_| &raw const local), 0u64);
    // A call that sets the mask is not repeated if the kernel does not find where to leave the old one.
    let is_at_once = !state::direct() || !state::is_managed(&raw const local as usize);
    // SAFETY: the kernel reads one local and fills in the other.
    let result = unsafe {
        if is_at_once || set.is_none() {
            kernel!(libc::SYS_rt_sigprocmask, how, new, &raw mut known, 8)
        } else {
            kernel!(libc::SYS_rt_sigprocmask, how, 0usize, &raw mut known, 8);
            kernel!(libc::SYS_rt_sigprocmask, how, new, 0usize, 8)
        }
    };
    if result < 0 { Err(state::errno()) } else { Ok(change(how, set, known)) }
}

/// Sets and reads the mask. Returns 0 or an error number.
///
/// # Safety
/// As `sigprocmask`.
unsafe fn set_mask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int {
    // SAFETY: the pointers are null or valid, as the caller promises.
    unsafe {
        let words = if set.is_null() { None } else { access::read(set.cast::<u64>()) };
        if !set.is_null() && words.is_none() {
            return libc::EFAULT;
        }
        match exchange(how, words) {
            Err(error) => error,
            Ok(known) if bring(known, before.cast(), 0) < 0 => libc::EFAULT,
            Ok(_) => 0,
        }
    }
}

export! {
    fn sigprocmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int {
        // SAFETY: the caller's call.
        match unsafe { set_mask(how, set, before) } {
            0 => 0,
            error => {
                state::fail(error);
                -1
            }
        }
    }

    fn pthread_sigmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int {
        // SAFETY: the caller's call.
        state::keeping_errno(|| unsafe { set_mask(how, set, before) })
    }
}

/// Masks of the old interfaces have 32 signals.
fn old(mask: c_int) -> u64 {
    mask as u32 as u64
}

export! {
    fn sigblock(mask: c_int) -> c_int {
        // SAFETY: takes no pointers.
        let known = unsafe { SIGBLOCK.get()(mask & !(ours_mask() as c_int)) };
        change(libc::SIG_BLOCK, Some(old(mask)), old(known)) as c_int
    }

    fn sigsetmask(mask: c_int) -> c_int {
        // SAFETY: takes no pointers.
        let known = unsafe { SIGSETMASK.get()(mask & !(ours_mask() as c_int)) };
        change(libc::SIG_SETMASK, Some(old(mask)), old(known)) as c_int
    }

    fn siggetmask() -> c_int {
        // SAFETY: takes no pointers.
        unsafe { sigblock(0) }
    }
}

/// Blocks or unblocks one signal.
pub fn change_one(how: c_int, signal: c_int) -> c_int {
    // SAFETY: a set of this frame.
    unsafe {
        let mut set: sigset_t = zeroed();
        if libc::sigaddset(&raw mut set, signal) < 0 { -1 } else { sigprocmask(how, &raw const set, null_mut()) }
    }
}

export! {
    fn sighold(signal: c_int) -> c_int {
        change_one(libc::SIG_BLOCK, signal)
    }

    fn sigrelse(signal: c_int) -> c_int {
        change_one(libc::SIG_UNBLOCK, signal)
    }
}
