//! The program's signal masks. The signals that this library needs are never really blocked. A program that blocks them
//! reads that they are, and they stay pending when they are sent ([`held_signals`]).

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::{null, null_mut};

use folioswap_sys::held_signals::{self, Waiting};
use libc::{siginfo_t, sigset_t, timespec};

use crate::calls::access;
use crate::calls::copied;
use crate::export::{export, real};
use crate::faults::signals::{bring, kernels, ours_mask, pointer, without_ours};
use crate::state;

real!(SIGPROCMASK = c"sigprocmask": fn(c_int, *const sigset_t, *mut sigset_t) -> c_int);
real!(SIGBLOCK = c"sigblock": fn(c_int) -> c_int);
real!(SIGSETMASK = c"sigsetmask": fn(c_int) -> c_int);
real!(SIGPENDING = c"sigpending": fn(*mut sigset_t) -> c_int);
real!(SIGTIMEDWAIT = c"sigtimedwait": fn(*const sigset_t, *mut siginfo_t, *const timespec) -> c_int);

/// Changes what is blocked in name, after the kernel has changed the rest. Returns the program's mask before, of which
/// `known` is the kernel's part.
pub fn change(how: c_int, set: Option<u64>, known: u64) -> u64 {
    known & !ours_mask() | held_signals::change(how, set, ours_mask())
}

/// Sets and reads the mask. Returns 0 or an error number.
///
/// # Safety
/// As `sigprocmask`.
unsafe fn set_mask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int {
    // SAFETY: the pointers are null or valid, as the caller promises. A local receives the old mask, because the kernel
    // may find the program's page missing.
    unsafe {
        let words = if set.is_null() { None } else { access::read(set.cast::<u64>()) };
        let copy = if how == libc::SIG_UNBLOCK { None } else { without_ours(set) };
        let mut known = zeroed();
        if SIGPROCMASK.get()(how, pointer(&copy, set), &raw mut known) != 0 {
            return *libc::__errno_location();
        }
        let told = change(how, words, kernels(&known));
        if bring(told, before.cast(), 0) < 0 { libc::EFAULT } else { 0 }
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
}

export! {
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
}

export! {
    fn sigsetmask(mask: c_int) -> c_int {
        // SAFETY: takes no pointers.
        let known = unsafe { SIGSETMASK.get()(mask & !(ours_mask() as c_int)) };
        change(libc::SIG_SETMASK, Some(old(mask)), old(known)) as c_int
    }
}

export! {
    fn siggetmask() -> c_int {
        // SAFETY: takes no pointers.
        unsafe { sigblock(0) }
    }
}

/// Blocks or unblocks one signal.
fn change_one(how: c_int, signal: c_int) -> c_int {
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
}

export! {
    fn sigrelse(signal: c_int) -> c_int {
        change_one(libc::SIG_UNBLOCK, signal)
    }
}

export! {
    fn sigpending(set: *mut sigset_t) -> c_int {
        // SAFETY: a local of this frame receives the set, then the program's, as `sigpending` requires.
        unsafe {
            let mut known = zeroed();
            let result = SIGPENDING.get()(&raw mut known);
            bring(kernels(&known) | held_signals::pending(), set.cast::<u64>(), result)
        }
    }
}

/// Waits for a signal of a set. Returns -1 and sets errno, or its number.
///
/// # Safety
/// As `sigtimedwait`.
unsafe fn wait_for(set: *const sigset_t, about: *mut siginfo_t, limit: *const timespec) -> c_int {
    // SAFETY: the caller's pointers, with valid copies in place of them.
    unsafe {
        let held = access::read(set.cast::<u64>()).unwrap_or(0) & held_signals::blocked();
        let _waiting = (held != 0).then(|| Waiting::begin(held));
        let mut info: siginfo_t = zeroed();
        let taken = |info: &mut siginfo_t| {
            held_signals::take(held).is_some_and(|kept| {
                *info = kept;
                true
            })
        };
        if !taken(&mut info) {
            let (set, limit) = (copied::value(set), copied::value(limit));
            if SIGTIMEDWAIT.get()(set.addr() as *const _, &raw mut info, limit.addr() as *const _) < 0 {
                return -1;
            }
            if held >> (info.si_signo - 1) & 1 != 0 {
                taken(&mut info); // another thread got it, and has woken this one
            }
        }
        if info.si_code == libc::SI_TKILL {
            info.si_code = libc::SI_USER; // as the C library says it
        }
        if bring(info, about, 0) < 0 { -1 } else { info.si_signo }
    }
}

export! {
    fn sigtimedwait(set: *const sigset_t, about: *mut siginfo_t, limit: *const timespec) -> c_int {
        // SAFETY: the caller's call.
        unsafe { wait_for(set, about, limit) }
    }
}

export! {
    fn sigwaitinfo(set: *const sigset_t, about: *mut siginfo_t) -> c_int {
        // SAFETY: the caller's call.
        unsafe { wait_for(set, about, null()) }
    }
}

export! {
    fn sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int {
        loop {
            let (got, error) = state::keeping_errno(|| {
                // SAFETY: the caller's call, which a handler does not end.
                let got = unsafe { wait_for(set, null_mut(), null()) };
                (got, state::errno())
            });
            if got > 0 {
                // SAFETY: the caller wants the number there.
                unsafe { *signal = got };
                return 0;
            }
            if error != libc::EINTR {
                return error;
            }
        }
    }
}
