//! The signals that this library handles: SIGSYS, by which system calls outside the C library are caught, and in direct
//! mode SIGBUS, as which faults arrive.
//!
//! They are never blocked. The actions that the program sets for them are kept here, and the program reads back those.
//! They get the signals that this library does not handle. Nothing else about signals changes.

use std::ffi::c_int;
use std::mem::{offset_of, zeroed};
use std::ptr::{null, null_mut};

use folioswap::ExitStatus;
use folioswap_sys::sigbus::{self, Handled};
use folioswap_sys::{held_signals, vforked};
use libc::{sigaction as Action, sighandler_t, sigset_t, stack_t};

use crate::faults::ours::{self, KernelAction, RESTORES, bring};
use crate::faults::{caught, masks, only_thread, signal_stack, small_stack, threads};
use crate::ground::export::{aliases, export, real};
use crate::ground::real::{kernel, own};
use crate::ground::{guard, selector, state};
use crate::memory::{access, cover};

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;

real!(SIGACTION = c"sigaction": fn(c_int, *const Action, *mut Action) -> c_int);
real!(SIGNAL = c"signal": fn(c_int, sighandler_t) -> sighandler_t);
real!(SYSV_SIGNAL = c"__sysv_signal": fn(c_int, sighandler_t) -> sighandler_t);
real!(SIGALTSTACK = c"sigaltstack": fn(*const stack_t, *mut stack_t) -> c_int);
real!(SIGSUSPEND = c"sigsuspend": fn(*const sigset_t) -> c_int);

real!(SIGSET = c"sigset": fn(c_int, sighandler_t) -> sighandler_t);
real!(SIGIGNORE = c"sigignore": fn(c_int) -> c_int);
real!(SIGINTERRUPT = c"siginterrupt": fn(c_int, c_int) -> c_int);

/// Installs the net of [`crate::calls::dispatch`], and the SIGBUS handler if threads may come to resolve their own
/// faults. Prepares the first thread.
pub fn prepare(may_be_direct: bool, catch: impl FnOnce() -> bool) {
    vforked::note_owner(guard::own_process);
    signal_stack::attach();
    threads::note_first();
    ours::set_faults(may_be_direct);
    if may_be_direct && let Err(error) = sigbus::install_with(on_sigbus, small_stack::on_bus) {
        state::end(ExitStatus::OutOfMemory, &format!("installing the SIGBUS handler: {error}"));
    }
    ours::set_catches(catch());
    access::prepare();
    begin_all_here();
    ours::open_ours();
}

/// Has the handlers that constructors of other libraries have set begin as those that are set later: the kernel would
/// block the signals of [`ours`] in them.
fn begin_all_here() {
    if ours::has_ours() {
        let others = (1..=libc::SIGRTMAX()).filter(|&signal| !ours::is_ours(signal) && !threads::is_internal(signal));
        others.for_each(small_stack::begin_here);
    }
}

fn on_sigbus(addr: usize, _write: bool) -> Handled {
    let is_resolved = selector::with_net_open(|| match state::space() {
        Some(_) if !state::direct() => false,
        None => false,
        Some(_) if state::is_managed(addr) => {
            let _guard = guard::enter_blocked(); // the stack is no memory of the program's
            folioswap_sys::fault_stack::call(resolve, addr)
        }
        Some(space) if !guard::inside() => {
            let _guard = guard::enter_blocked();
            space.on_own_fault(addr)
        }
        Some(_) => false,
    });
    if !is_resolved {
        caught::forget(); // the program's handler may not return
    }
    if is_resolved { Handled::Yes } else { Handled::No }
}

extern "C" fn resolve(addr: usize) -> bool {
    state::space().is_some_and(|space| space.on_fault(addr))
}

/// The program's own action for a signal of [`ours`].
fn chained(signal: c_int) -> Action {
    if signal == libc::SIGSYS { sigbus::chained_syscall_action() } else { sigbus::chained_action() }
}

fn set_chained(signal: c_int, action: Action) {
    if signal == libc::SIGSYS { sigbus::set_chained_syscall_action(action) } else { sigbus::set_chained_action(action) }
}

/// Makes a call that executes a program, which is to ignore and block what this one does, as far as the program knows.
/// Until it has, or has failed, the signals of faults do not work: only where no other thread needs them.
pub fn inherited<R>(call: impl FnOnce() -> R) -> R {
    let blocked = held_signals::blocked() & ours::ours_mask();
    let ignored = ours::list().iter().copied().filter(|&signal| chained(signal).sa_sigaction == libc::SIG_IGN);
    let ignored = ignored.fold(0u64, |bits, signal| bits | 1 << (signal - 1));
    if guard::inside() || blocked | ignored == 0 {
        return call();
    }
    let is_alone = ignored != 0 && (vforked::is_child() || only_thread::has_one_thread());
    let ignored = || ours::list().iter().copied().filter(move |&signal| is_alone && ignored >> (signal - 1) & 1 != 0);
    let ignore = KernelAction { handler: libc::SIG_IGN, flags: 0, restorer: 0, mask: 0 };
    let mut before = [ignore; 2];
    // SAFETY: the kernel reads and fills in locals. The handlers come back before anything can fault.
    unsafe {
        for (signal, before) in ignored().zip(&mut before) {
            own!(libc::SYS_rt_sigaction, signal, 0usize, &raw mut *before, 8);
            own!(libc::SYS_rt_sigaction, signal, &raw const ignore, 0usize, 8);
        }
        own!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const blocked, 0usize, 8);
    }
    let result = call();
    state::keeping_errno(|| {
        // SAFETY: as above.
        unsafe {
            for (signal, before) in ignored().zip(&before) {
                own!(libc::SYS_rt_sigaction, signal, &raw const *before, 0usize, 8);
            }
            own!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const blocked, 0usize, 8);
        }
    });
    result
}

export! {
    fn sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int {
        let real = SIGACTION.get();
        if !ours::has_ours() || threads::is_internal(signal) {
            // SAFETY: passes the caller's arguments on unchanged.
            return unsafe { real(signal, action, before) };
        }
        // SAFETY: the pointers are null or valid, as `sigaction` requires. Only copies are changed.
        unsafe {
            if ours::is_ours(signal) {
                let wanted = (!action.is_null()).then(|| read(action)); // which may fault
                let _guard = guard::enter();
                let known = chained(signal);
                if let Some(action) = wanted {
                    set_chained(signal, Action { sa_flags: action.sa_flags | RESTORES as c_int, ..action });
                }
                if !before.is_null() {
                    *before = known;
                }
                return 0;
            }
            let mut copy = (!action.is_null()).then(|| read(action));
            let was = small_stack::noted(signal);
            if let Some(copy) = &mut copy {
                change(copy, |wanted| small_stack::instead_of(signal, wanted));
            }
            let mut known: Action = zeroed();
            let _stack = cover::stack();
            let result = real(signal, copy.as_ref().map_or(null(), |copy| &raw const *copy), &raw mut known);
            if result != 0 {
                small_stack::note(signal, was);
            } else if !before.is_null() {
                change(&mut known, |known| small_stack::told(known, was));
                *before = known;
            }
            result
        }
    }
}

/// What the C library reads of an action: all but the restorer, which may lie beyond the program's memory.
///
/// # Safety
/// The caller's action.
unsafe fn read(action: *const Action) -> Action {
    // SAFETY: the caller's promise, for the bytes that are read. All zeroes is a valid action.
    unsafe {
        let mut copy: Action = zeroed();
        let len = offset_of!(Action, sa_flags) + size_of::<c_int>();
        std::ptr::copy_nonoverlapping(action.cast::<u8>(), (&raw mut copy).cast(), len);
        copy
    }
}

/// Changes an action of the C library's as one of the kernel's.
fn change(action: &mut Action, by: impl FnOnce(KernelAction) -> KernelAction) {
    let mask = (&raw mut action.sa_mask).cast::<u64>();
    // SAFETY: the kernel's part of the set, in which any bits are valid.
    let kernels = unsafe { *mask };
    let (handler, flags) = (action.sa_sigaction, action.sa_flags as u32 as u64);
    let changed = by(KernelAction { handler, flags, restorer: 0, mask: kernels });
    (action.sa_sigaction, action.sa_flags) = (changed.handler, changed.flags as c_int);
    // SAFETY: as above.
    unsafe { *mask = changed.mask };
}

/// Sets a handler by a call of the C library's, and has it begin here. Returns the previous handler.
fn set_plain(signal: c_int, set: impl FnOnce() -> sighandler_t) -> sighandler_t {
    let was = small_stack::noted(signal);
    let _stack = cover::stack();
    let before = set();
    if before == libc::SIG_ERR {
        return before;
    }
    // SAFETY: all zeroes is a valid action. The C library reads one and fills in the other.
    unsafe {
        let mut now: Action = zeroed();
        if SIGACTION.get()(signal, null(), &raw mut now) == 0 {
            let handler = now.sa_sigaction;
            change(&mut now, |now| small_stack::instead_of(signal, now));
            if handler != now.sa_sigaction {
                SIGACTION.get()(signal, &raw const now, null_mut());
            }
        }
    }
    small_stack::told(KernelAction { handler: before, flags: 0, restorer: 0, mask: 0 }, was).handler
}

/// Records a plain handler as the program's for a signal of [`ours`]. Returns the previous handler.
fn set_own_handler(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    let _guard = guard::enter();
    // SAFETY: all zeroes is a valid action.
    let mut action: Action = unsafe { zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags | RESTORES as c_int;
    let before = chained(signal);
    set_chained(signal, action);
    before.sa_sigaction
}

export! {
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        if ours::is_ours(signal) {
            return set_own_handler(signal, handler, libc::SA_RESTART);
        }
        // SAFETY: passes the caller's arguments on unchanged.
        set_plain(signal, || unsafe { SIGNAL.get()(signal, handler) })
    }
}

export! {
    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        if ours::is_ours(signal) {
            return set_own_handler(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER);
        }
        // SAFETY: passes the caller's arguments on unchanged.
        set_plain(signal, || unsafe { SYSV_SIGNAL.get()(signal, handler) })
    }
}

/// Implements `rt_sigaction` when it is called by number. As by the kernel, the new action is set where the old one
/// cannot be told.
///
/// # Safety
/// As the system call.
pub unsafe fn kernel_action(
    signal: c_int,
    action: *const KernelAction,
    before: *mut KernelAction,
    set_len: usize,
) -> c_int {
    // SAFETY: the caller's pointers. The kernel gets copies only.
    unsafe {
        let mut wanted = access::read(action);
        if set_len != SET_BYTES || wanted.is_none() && !action.is_null() {
            state::fail(if set_len != SET_BYTES { libc::EINVAL } else { libc::EFAULT });
            return -1;
        }
        let mut known = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        if ours::is_ours(signal) {
            let _guard = guard::enter();
            let now = chained(signal);
            known.handler = now.sa_sigaction;
            known.flags = now.sa_flags as u32 as u64;
            known.mask = *(&raw const now.sa_mask).cast::<u64>();
            if let Some(wanted) = wanted {
                let mut action: Action = zeroed();
                action.sa_sigaction = wanted.handler;
                action.sa_flags = wanted.flags as c_int;
                *(&raw mut action.sa_mask).cast::<u64>() = wanted.mask;
                set_chained(signal, action);
            }
        } else {
            let was = small_stack::noted(signal);
            if let Some(wanted) = &mut wanted {
                *wanted = small_stack::instead_of(signal, *wanted);
            }
            let _stack = cover::stack();
            let new = wanted.as_ref().map_or(std::ptr::null(), |wanted| &raw const *wanted);
            if kernel!(libc::SYS_rt_sigaction, signal, new, &raw mut known, SET_BYTES) < 0 {
                small_stack::note(signal, was);
                return -1;
            }
            known = small_stack::told(known, was);
        }
        bring(known, before, 0)
    }
}

/// Sets the default actions for all signals that are not ignored, as the kernel does for a child of `clone3` with
/// CLONE_CLEAR_SIGHAND.
pub fn clear_handlers() {
    for signal in 1..=libc::SIGRTMAX() {
        let mut action = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
        // SAFETY: reads and writes a local. Two signals have no action, which is refused.
        unsafe {
            if kernel_action(signal, null(), &raw mut action, 8) == 0 {
                let handler = if action.handler == libc::SIG_IGN { libc::SIG_IGN } else { libc::SIG_DFL };
                action = KernelAction { handler, flags: 0, restorer: 0, mask: 0 };
                kernel_action(signal, &raw const action, null_mut(), 8);
            }
        }
    }
}

export! {
    fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t {
        if ours::is_ours(number) {
            const SIG_HOLD: sighandler_t = 2;
            let is_held = held_signals::blocked() >> (number - 1) & 1 != 0;
            let known = chained(number).sa_sigaction;
            masks::change_one(if handler == SIG_HOLD { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK }, number);
            if handler != SIG_HOLD {
                set_own_handler(number, handler, 0);
            }
            return if is_held { SIG_HOLD } else { known };
        }
        // SAFETY: passes the caller's arguments on unchanged.
        set_plain(number, || unsafe { SIGSET.get()(number, handler) })
    }
}

export! {
    fn sigignore(number: c_int) -> c_int {
        if ours::is_ours(number) {
            set_own_handler(number, libc::SIG_IGN, 0);
            return 0;
        }
        let _stack = cover::stack();
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { SIGIGNORE.get()(number) }
    }
}

export! {
    fn siginterrupt(number: c_int, on: c_int) -> c_int {
        let _stack = cover::stack();
        // SAFETY: passes the caller's arguments on, unless they would change the action of a signal in [`ours`].
        if ours::is_ours(number) { 0 } else { unsafe { SIGINTERRUPT.get()(number, on) } }
    }
}

export! {
    fn sigsuspend(set: *const sigset_t) -> c_int {
        // SAFETY: `set` is valid, as `sigsuspend` requires.
        unsafe {
            let copy = ours::present_without_ours(set);
            SIGSUSPEND.get()(ours::pointer(&copy, set))
        }
    }
}

export! {
    fn sigpause(mask: c_int) -> c_int {
        // SAFETY: BSD's, which takes a mask of the first 32 signals.
        unsafe { __sigpause(mask, 0) }
    }
}

export! {
    fn __sigpause(mask_or_signal: c_int, is_signal: c_int) -> c_int {
        real!(SIGPAUSE = c"__sigpause": fn(c_int, c_int) -> c_int);
        if is_signal != 0 {
            // SAFETY: passes the caller's arguments on unchanged.
            return unsafe { SIGPAUSE.get()(mask_or_signal, is_signal) };
        }
        let mut set = [0u64; size_of::<sigset_t>() / 8];
        set[0] = mask_or_signal as u32 as u64;
        // SAFETY: a set of the C library's size.
        unsafe { sigsuspend(set.as_ptr().cast()) }
    }
}

export! {
    fn sigaltstack(stack: *const stack_t, before: *mut stack_t) -> c_int {
        let real = SIGALTSTACK.get();
        if !ours::has_ours() {
            // SAFETY: passes the caller's arguments on unchanged.
            return unsafe { real(stack, before) };
        }
        // SAFETY: the pointers are null or valid, as `sigaltstack` requires. The kernel gets copies.
        unsafe {
            let stood_for = signal_stack::stands_for();
            let mut wanted = access::read(stack);
            if wanted.is_none() && !stack.is_null() {
                state::fail(libc::EFAULT);
                return -1;
            }
            let is_on_it = signal_stack::is_on_theirs(&raw const stood_for as usize);
            if is_on_it && wanted.is_some() {
                state::fail(libc::EPERM);
                return -1;
            }
            let _before = wanted.as_mut().map(|wanted| {
                *wanted = signal_stack::instead_of(*wanted);
                signal_stack::hold(wanted)
            });
            let mut known: stack_t = zeroed();
            let result = real(wanted.as_ref().map_or(std::ptr::null(), |wanted| &raw const *wanted), &raw mut known);
            if result < 0 {
                signal_stack::stay(stood_for);
            }
            let mut told = signal_stack::told(known, stood_for);
            told.ss_flags |= if is_on_it { libc::SS_ONSTACK } else { 0 };
            bring(told, before, result)
        }
    }
}

aliases! {
    fn bsd_signal = signal(number: c_int, handler: sighandler_t) -> sighandler_t;
    fn sysv_signal = __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn __sigaction = sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int;
    fn ssignal = signal(number: c_int, handler: sighandler_t) -> sighandler_t;
    fn __sigsuspend = sigsuspend(set: *const sigset_t) -> c_int;
}
