//! Signals in direct mode, where SIGBUS is how faults arrive.
//!
//! SIGBUS is never blocked, and the action that the program sets for it is kept beside ours: it gets the faults that
//! are not in managed memory, and is what the program is told of. Everything else about signals is the program's.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;

use folioswap_sys::sigbus::{self, Handled};
use libc::{sigaction as Action, sighandler_t, sigset_t, stack_t};

use crate::export::{export, real};
use crate::real::kernel;
use crate::{guard, signal_stack, state};

real!(SIGACTION = c"sigaction": fn(c_int, *const Action, *mut Action) -> c_int);
real!(SIGNAL = c"signal": fn(c_int, sighandler_t) -> sighandler_t);
real!(SYSV_SIGNAL = c"__sysv_signal": fn(c_int, sighandler_t) -> sighandler_t);
real!(SIGPROCMASK = c"sigprocmask": fn(c_int, *const sigset_t, *mut sigset_t) -> c_int);
real!(PTHREAD_SIGMASK = c"pthread_sigmask": fn(c_int, *const sigset_t, *mut sigset_t) -> c_int);
real!(SIGALTSTACK = c"sigaltstack": fn(*const stack_t, *mut stack_t) -> c_int);
real!(SIGSUSPEND = c"sigsuspend": fn(*const sigset_t) -> c_int);

/// Gives signals stacks of this library's, and lets SIGBUS through on the first thread.
pub fn prepare() {
    signal_stack::attach();
    if let Err(error) = sigbus::install(on_sigbus) {
        state::end(70, &format!("installing the SIGBUS handler: {error}"));
    }
    open_sigbus();
}

/// Lets SIGBUS through on the calling thread.
pub fn open_sigbus() {
    let set: u64 = 1 << (libc::SIGBUS - 1);
    // SAFETY: the kernel reads a set of 8 bytes.
    unsafe { kernel!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const set, null_mut::<u64>(), 8) };
}

fn on_sigbus(addr: usize, _write: bool) -> Handled {
    if state::space().is_some() && state::is_managed(addr) && folioswap_sys::fault_stack::call(resolve, addr) {
        Handled::Yes
    } else {
        Handled::No
    }
}

extern "C" fn resolve(addr: usize) -> bool {
    let _guard = guard::enter_blocked();
    state::space().is_some_and(|space| space.on_fault(addr))
}

/// The signals that are never blocked: faults, and the system calls that [`crate::net`] catches.
pub const OURS: [c_int; 2] = [libc::SIGBUS, libc::SIGSYS];

/// The set without the signals that are never blocked.
///
/// # Safety
/// Null, or a set.
pub unsafe fn without_ours(set: *const sigset_t) -> Option<sigset_t> {
    if set.is_null() || !state::direct() {
        return None;
    }
    // SAFETY: a valid set, copied; the copy is changed.
    unsafe {
        let mut copy = *set;
        OURS.iter().for_each(|&signal| _ = libc::sigdelset(&raw mut copy, signal));
        Some(copy)
    }
}

/// A pointer to the changed copy, or the caller's own.
pub fn pointer(copy: &Option<sigset_t>, set: *const sigset_t) -> *const sigset_t {
    copy.as_ref().map_or(set, |copy| &raw const *copy)
}

fn is_fault_signal(signal: c_int) -> bool {
    signal == libc::SIGBUS && state::direct()
}

export! {
    fn sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int {
        let real = SIGACTION.get();
        if !state::direct() {
            // SAFETY: the caller's own call.
            return unsafe { real(signal, action, before) };
        }
        // SAFETY: null or valid, as for `sigaction`; only copies are changed.
        unsafe {
            if is_fault_signal(signal) {
                let _guard = guard::enter();
                let known = sigbus::chained_action();
                if !action.is_null() {
                    sigbus::set_chained_action(*action);
                }
                if !before.is_null() {
                    *before = known;
                }
                return 0;
            }
            if action.is_null() {
                return real(signal, action, before);
            }
            let mut copy = *action;
            OURS.iter().for_each(|&signal| _ = libc::sigdelset(&raw mut copy.sa_mask, signal));
            let mut known = zeroed();
            let result = real(signal, &raw const copy, &raw mut known);
            if result == 0 && !before.is_null() {
                *before = known;
            }
            result
        }
    }
}

/// Notes a plain handler as the program's for SIGBUS; gives the one before.
fn set_fault_handler(handler: sighandler_t, flags: c_int) -> sighandler_t {
    let _guard = guard::enter();
    // SAFETY: all zero is a valid action.
    let mut action: Action = unsafe { zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    let before = sigbus::chained_action();
    sigbus::set_chained_action(action);
    before.sa_sigaction
}

export! {
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        if is_fault_signal(signal) {
            return set_fault_handler(handler, libc::SA_RESTART);
        }
        // SAFETY: the caller's own call.
        unsafe { SIGNAL.get()(signal, handler) }
    }
}

export! {
    fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: the same function under another name.
        unsafe { signal(number, handler) }
    }
}

export! {
    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        if is_fault_signal(signal) {
            return set_fault_handler(handler, libc::SA_RESETHAND | libc::SA_NODEFER);
        }
        // SAFETY: the caller's own call.
        unsafe { SYSV_SIGNAL.get()(signal, handler) }
    }
}

export! {
    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: the same function under another name.
        unsafe { __sysv_signal(signal, handler) }
    }
}

export! {
    fn sigprocmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int {
        // SAFETY: null or valid, as for `sigprocmask`; a local stands in for a result that the kernel may not reach.
        unsafe {
            let copy = if how == libc::SIG_UNBLOCK { None } else { without_ours(set) };
            let mut known = zeroed();
            let result = SIGPROCMASK.get()(how, pointer(&copy, set), &raw mut known);
            if result == 0 && !before.is_null() {
                *before = known;
            }
            result
        }
    }
}

export! {
    fn pthread_sigmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int {
        // SAFETY: as above.
        unsafe {
            let copy = if how == libc::SIG_UNBLOCK { None } else { without_ours(set) };
            let mut known = zeroed();
            let result = PTHREAD_SIGMASK.get()(how, pointer(&copy, set), &raw mut known);
            if result == 0 && !before.is_null() {
                *before = known;
            }
            result
        }
    }
}

export! {
    fn sigsuspend(set: *const sigset_t) -> c_int {
        // SAFETY: a valid set, as for `sigsuspend`.
        unsafe {
            let copy = without_ours(set);
            SIGSUSPEND.get()(pointer(&copy, set))
        }
    }
}

export! {
    fn sigaltstack(stack: *const stack_t, before: *mut stack_t) -> c_int {
        let real = SIGALTSTACK.get();
        if !state::direct() {
            // SAFETY: the caller's own call.
            return unsafe { real(stack, before) };
        }
        // SAFETY: null or valid, as for `sigaltstack`; copies are handed on.
        unsafe {
            let mut wanted = if stack.is_null() { None } else { Some(*stack) };
            if let Some(wanted) = &mut wanted {
                if wanted.ss_flags & libc::SS_DISABLE != 0 {
                    *wanted = signal_stack::own_signal_stack().unwrap_or(*wanted);
                } else {
                    crate::threads::hold(wanted.ss_sp as usize, wanted.ss_size);
                }
            }
            let mut known: stack_t = zeroed();
            let result = real(wanted.as_ref().map_or(std::ptr::null(), |wanted| &raw const *wanted), &raw mut known);
            if result == 0 && !before.is_null() {
                if signal_stack::is_ours(&known) {
                    known = stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
                }
                *before = known;
            }
            result
        }
    }
}
