//! Signal handlers for SIGBUS and SIGSYS, in front of the program's own handlers.
//!
//! The kernel calls the fault handler with signals blocked, on the alternate stack if the thread has one. It asks the
//! function given to [`install`]. Faults that this function does not handle go to the *chained* action: the one
//! installed before, or the one that a preloaded library set for the program ([`set_chained_action`]). Handlers
//! preserve errno.
//!
//! Handlers read functions and actions with one atomic load each. Replaced actions are never freed, because a handler
//! may be reading them. Programs replace them a few times at most.

use std::io;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::signals::{self, Action, bit, change_mask, plain_action};
use crate::{errno, fs_base, held_signals, set_errno, vforked};

/// The answer of a fault function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// The fault is resolved. The access is repeated.
    Yes,
    /// The fault is not the engine's.
    No,
}

/// Called for a fault with its address, and whether it was a write. Runs in a signal handler.
pub type FaultFunction = fn(addr: usize, write: bool) -> Handled;

/// The state of one signal.
struct Front {
    signal: libc::c_int,
    /// The `FaultFunction`, or null.
    function: AtomicPtr<()>,
    /// A leaked `Action`, or null for the default one.
    chained: AtomicPtr<Action>,
    installed: Mutex<bool>,
    /// Changes of the action behind the handler that are under way.
    nr_changes: AtomicUsize,
}

static SIGBUS: Front = Front::new(libc::SIGBUS);
static SIGSYS: Front = Front::new(libc::SIGSYS);

impl Front {
    const fn new(signal: libc::c_int) -> Self {
        Front {
            signal,
            function: AtomicPtr::new(ptr::null_mut()),
            chained: AtomicPtr::new(ptr::null_mut()),
            installed: Mutex::new(false),
            nr_changes: AtomicUsize::new(0),
        }
    }

    fn install(&self, function: *mut (), ours: Action) -> io::Result<()> {
        let mut installed = self.lock();
        self.function.store(function, Ordering::Release);
        if *installed {
            return Ok(());
        }
        // The current action is chained before the handler can be called.
        let mut before = plain_action(libc::SIG_DFL);
        set_action(self.signal, ptr::null(), &mut before)?;
        self.chain(before);
        set_action(self.signal, &restarting_as(&before, ours), ptr::null_mut())?;
        *installed = true;
        Ok(())
    }

    /// Calls `change` while the signal has the chained action; what it has then is chained. The lock is not held
    /// meanwhile. If other threads do the same, the handler is back in front once all are done, also if one panics.
    fn behind<R>(&self, ours: Action, change: impl FnOnce() -> R) -> io::Result<R> {
        let under_way = {
            let installed = self.lock();
            if *installed && self.is_in_front(&ours)?.0 {
                set_action(self.signal, &self.chained(), ptr::null_mut())?;
            }
            self.nr_changes.fetch_add(1, Ordering::Relaxed);
            UnderWay { front: self, ours }
        };
        let result = change();
        ManuallyDrop::new(under_way).end()?;
        Ok(result)
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.installed.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether the signal has this action's handler, and the action that it has.
    fn is_in_front(&self, ours: &Action) -> io::Result<(bool, Action)> {
        let mut now = plain_action(libc::SIG_DFL);
        set_action(self.signal, ptr::null(), &mut now).map(|()| (now.sa_sigaction == ours.sa_sigaction, now))
    }

    fn chain(&self, action: Action) {
        if vforked::set_action(self.signal, &action, held_signals::blocked()) {
            return;
        }
        self.chained.store(Box::into_raw(Box::new(action)), Ordering::Release);
    }

    /// Chains an action that the program sets while the handler is in front.
    fn chain_behind(&self, action: Action) {
        self.chain(action);
        let mut now = plain_action(libc::SIG_DFL);
        let is_known = !vforked::is_child() && set_action(self.signal, ptr::null(), &mut now).is_ok();
        if is_known && now.sa_sigaction != action.sa_sigaction {
            let _ = set_action(self.signal, &restarting_as(&action, now), ptr::null_mut());
        }
    }

    fn chained(&self) -> Action {
        // SAFETY: null, or a box that `chain` leaked, which is never freed or changed.
        let shared = || unsafe { self.chained.load(Ordering::Acquire).as_ref() };
        vforked::action(self.signal).or_else(shared).copied().unwrap_or_else(|| plain_action(libc::SIG_DFL))
    }
}

/// The action of a front after which calls go on, or are interrupted, as after the chained action.
fn restarting_as(chained: &Action, front: Action) -> Action {
    let restarts = chained.sa_flags & libc::SA_RESTART != 0 || chained.sa_sigaction == libc::SIG_IGN;
    let flag = if restarts { libc::SA_RESTART } else { 0 };
    Action { sa_flags: front.sa_flags & !libc::SA_RESTART | flag, ..front }
}

/// A change of the action behind a handler that is under way. It ends when this is dropped.
struct UnderWay<'a> {
    front: &'a Front,
    ours: Action,
}

impl UnderWay<'_> {
    /// Puts the handler back in front, if no other change is under way.
    fn end(&self) -> io::Result<()> {
        let installed = self.front.lock();
        let is_last = self.front.nr_changes.fetch_sub(1, Ordering::Relaxed) == 1;
        if *installed
            && is_last
            && let (false, now) = self.front.is_in_front(&self.ours)?
        {
            self.front.chain(now);
            set_action(self.front.signal, &restarting_as(&now, self.ours), ptr::null_mut())?;
        }
        Ok(())
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let _ = self.end(); // `change` panicked, and there is nobody to tell
    }
}

/// Asks `function` about every SIGBUS caused by a memory access. A later call replaces the function.
///
/// # Errors
/// None that Linux is known to give.
pub fn install(function: FaultFunction) -> io::Result<()> {
    SIGBUS.install(function as *mut (), fault_action())
}

/// The same, with this handler, which calls [`fault`] with what the kernel gave it.
///
/// # Errors
/// None that Linux is known to give.
pub fn install_with(function: FaultFunction, handler: Entry) -> io::Result<()> {
    FAULT_HANDLER.store(handler as *const () as usize, Ordering::Release);
    install(function)
}

/// The handler for faults; 0: [`entry`].
static FAULT_HANDLER: AtomicUsize = AtomicUsize::new(0);

/// Calls `change` as if [`install`] had not been called: the action for SIGBUS that it finds and leaves is the chained
/// one. Faults are not resolved meanwhile.
///
/// # Errors
/// None that Linux is known to give.
pub fn behind<R>(change: impl FnOnce() -> R) -> io::Result<R> {
    SIGBUS.behind(fault_action(), change)
}

/// Called for a SIGSYS with the interrupted context, which it may change. Runs in a signal handler with the mask of the
/// interrupted code, and may be re-entered.
pub type SyscallFunction = fn(info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> Handled;

/// Asks `function` about every SIGSYS. A later call replaces the function. The handler is `entry`, which calls
/// [`syscall_entry`] with what the kernel gave it.
///
/// # Errors
/// None that Linux is known to give.
pub fn install_syscall(function: SyscallFunction, entry: Entry) -> io::Result<()> {
    let mut ours = plain_action(libc::SIG_DFL);
    ours.sa_sigaction = entry as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    SIGSYS.install(function as *mut (), ours)
}

/// The action for faults. Blocks all signals except SIGSYS, which a caught system call raises.
fn fault_action() -> Action {
    let mut ours = plain_action(libc::SIG_DFL);
    ours.sa_sigaction = match FAULT_HANDLER.load(Ordering::Acquire) {
        0 => entry as *const () as usize,
        other => other,
    };
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // glibc's full set leaves out the signal that cancels a thread, whose handler would unwind the middle of a fault.
    // So all bits are set by hand.
    // SAFETY: a set is plain bits, and any bits are valid. This set is a local of this frame.
    unsafe {
        ptr::write_bytes(&raw mut ours.sa_mask, 0xff, 1);
        libc::sigdelset(&mut ours.sa_mask, libc::SIGSYS);
    }
    ours
}

/// Whether [`install`] or [`install_syscall`] has put this crate's handler in front of `signal`.
#[must_use]
pub fn is_fronted(signal: i32) -> bool {
    let front = match signal {
        libc::SIGBUS => &SIGBUS,
        libc::SIGSYS => &SIGSYS,
        _ => return false,
    };
    !front.function.load(Ordering::Acquire).is_null()
}

/// The action that gets the SIGBUS faults that are not the engine's: the program's own, as it would see it.
#[must_use]
pub fn chained_action() -> Action {
    SIGBUS.chained()
}

/// Replaces [`chained_action`]. For a preloaded library that implements sigaction(SIGBUS) for the program. Allocates.
pub fn set_chained_action(action: Action) {
    SIGBUS.chain_behind(action);
}

/// As [`chained_action`], for SIGSYS.
#[must_use]
pub fn chained_syscall_action() -> Action {
    SIGSYS.chained()
}

/// As [`set_chained_action`], for SIGSYS.
pub fn set_chained_syscall_action(action: Action) {
    SIGSYS.chain_behind(action);
}

type SigactionFn = unsafe extern "C" fn(libc::c_int, *const Action, *mut Action) -> libc::c_int;

/// The C library's sigaction, even if this repository's preloaded library overrides the name. Looked up at the first
/// install, so that the handler finds it ready.
fn real_sigaction() -> SigactionFn {
    static REAL: OnceLock<SigactionFn> = OnceLock::new();
    *REAL.get_or_init(|| {
        // SAFETY: the name is NUL-terminated.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) };
        if next.is_null() {
            return libc::sigaction; // statically linked
        }
        // SAFETY: the C library's symbol of this name has this type.
        unsafe { std::mem::transmute::<*mut libc::c_void, SigactionFn>(next) }
    })
}

fn set_action(signal: libc::c_int, new: *const Action, old: *mut Action) -> io::Result<()> {
    // SAFETY: both pointers are null or point to actions in the caller's frame. The handler in `new` is `entry`,
    // `syscall_entry` or one that the program gave.
    crate::check(unsafe { real_sigaction()(signal, new, old) }.into()).map(drop)
}

/// The flag that forbids unaligned access. The kernel leaves it to handlers as it was.
const ALIGNMENT_CHECK: i32 = 1 << 18;

/// Permits unaligned access in a handler, whatever the interrupted code had set. Handlers call it first: copies may be
/// made by unaligned access.
///
/// # Safety
/// `context` is the ucontext that the kernel gave the running handler.
pub unsafe fn permit_unaligned(context: *const libc::ucontext_t) {
    // SAFETY: the caller upholds this function's own contract.
    let flags = unsafe { (*context).uc_mcontext.gregs[libc::REG_EFL as usize] };
    if flags & i64::from(ALIGNMENT_CHECK) != 0 {
        // SAFETY: changes this flag only. Compiled code does not depend on it.
        unsafe { std::arch::asm!("pushfq", "and dword ptr [rsp], {others}", "popfq", others = const !ALIGNMENT_CHECK) };
    }
}

/// The handler for SIGBUS. The program's own handler finds the FS base that the program has set.
extern "C" fn entry(_signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives these to its handler, which this is.
    unsafe {
        permit_unaligned(context.cast());
        let theirs = fs_base::return_to_own(&(*context.cast::<libc::ucontext_t>()).uc_stack);
        let action = on_fault(info, context);
        if let Some(theirs) = theirs {
            fs_base::set(theirs);
        }
        if let Some(action) = action {
            change_mask(libc::SIG_SETMASK, mask_of(&action, libc::SIGBUS, context));
            end_once(&SIGBUS, &action);
            call(&action, info, context);
        }
    }
}

/// What another handler than `entry` calls, with the thread's own FS base. Returns whether the program's handler is
/// to run: the caller calls [`block_others`] then.
///
/// # Safety
/// The arguments are the kernel's.
pub unsafe fn fault(info: *mut libc::siginfo_t, context: *mut libc::c_void) -> bool {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { on_fault(info, context) }.is_some()
}

/// Blocks all signals but those with a handler in front, before the program's handler runs.
pub fn block_others() {
    let fronted = (1..=64).filter(|&signal| is_fronted(signal)).fold(0, |mask, signal| mask | bit(signal));
    change_mask(libc::SIG_SETMASK, !fronted);
}

/// Ends the program's action for a signal that is about to be handled, if it is for one signal.
pub fn end_once_of(signal: libc::c_int) {
    let front = if signal == libc::SIGSYS { &SIGSYS } else { &SIGBUS };
    end_once(front, &front.chained());
}

fn end_once(front: &Front, action: &Action) {
    if action.sa_flags & libc::SA_RESETHAND != 0
        && !vforked::set_action(front.signal, &plain_action(libc::SIG_DFL), held_signals::blocked())
    {
        front.chained.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Returns the action of the program's whose handler is to be called.
///
/// # Safety
/// The arguments are the kernel's.
#[inline(never)] // it looks for what is thread-local
unsafe fn on_fault(info: *mut libc::siginfo_t, context: *mut libc::c_void) -> Option<Action> {
    let kept = errno();
    // SAFETY: the kernel gives a valid siginfo to a handler installed with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    let function = SIGBUS.function.load(Ordering::Acquire);
    let mut handled = Handled::No;
    if code == libc::BUS_ADRERR && !function.is_null() {
        // SAFETY: only `install` stores here, and it stores a `FaultFunction`.
        let function = unsafe { std::mem::transmute::<*mut (), FaultFunction>(function) };
        // SAFETY: the siginfo of a fault has an address.
        let addr = unsafe { (*info).si_addr() } as usize;
        // SAFETY: the kernel gives the interrupted context to its handler, which this is.
        handled = function(addr, unsafe { was_write(context) });
    }
    let action = match handled {
        Handled::Yes => None,
        Handled::No => pass_on(&SIGBUS, code),
    };
    set_errno(kept);
    action
}

/// A handler, as the kernel calls it.
pub type Entry = unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// The handler for SIGSYS, which the one given to [`install_syscall`] calls. Returns what [`fault`] does.
///
/// # Safety
/// The arguments are the kernel's.
pub unsafe fn syscall_entry(info: *mut libc::siginfo_t, context: *mut libc::c_void) -> bool {
    // SAFETY: the kernel gives the interrupted context to its handler, which this is.
    unsafe { permit_unaligned(context.cast()) };
    let kept = errno();
    let function = SIGSYS.function.load(Ordering::Acquire);
    // SAFETY: only `install_syscall` stores here, and it stores a `SyscallFunction` before the handler can be called.
    let function = unsafe { std::mem::transmute::<*mut (), SyscallFunction>(function) };
    // SAFETY: the kernel gives a valid siginfo and context to a handler installed with SA_SIGINFO. They are this
    // handler's own.
    let (about, interrupted) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    let action = match function(about, interrupted) {
        Handled::Yes => None,
        Handled::No => pass_on(&SIGSYS, about.si_code),
    };
    set_errno(kept);
    action.is_some()
}

/// Delivers the signal to the chained action as the kernel would have done. If that has a handler, returns it.
fn pass_on(front: &Front, code: libc::c_int) -> Option<Action> {
    let action = front.chained();
    // Sent by kill and the like, or raised for a system call that was not made: returning does not raise it again.
    let sent = code <= 0 || front.signal == libc::SIGSYS;
    // What the processor raises ends the process, if the program blocks it.
    let is_fatal = code > 0 && held_signals::blocked() & bit(front.signal) != 0;
    match if is_fatal { libc::SIG_DFL } else { action.sa_sigaction } {
        libc::SIG_IGN if code <= 0 => None,
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is repeated under the default action, which ends the process. A sent signal is sent again.
            let _ = set_action(front.signal, &plain_action(libc::SIG_DFL), ptr::null_mut());
            if sent {
                let _ = signals::send(signals::thread_id(), front.signal);
            }
            None
        }
        _ => Some(action),
    }
}

/// The mask with which the program's handler runs. Those in front stay open: it may fault, too.
///
/// # Safety
/// `context` is what the kernel gave the handler that calls this.
unsafe fn mask_of(action: &Action, signal: libc::c_int, context: *mut libc::c_void) -> u64 {
    // SAFETY: the context is the kernel's ucontext. Its mask and the action's are read. The kernel's set is shorter
    // than the C library's, so bits are tested one by one.
    unsafe {
        let interrupted = &(*context.cast::<libc::ucontext_t>()).uc_sigmask;
        let is_blocked = |other: libc::c_int| {
            let itself = other == signal && action.sa_flags & libc::SA_NODEFER == 0;
            itself || libc::sigismember(interrupted, other) == 1 || libc::sigismember(&action.sa_mask, other) == 1
        };
        (1..=64).filter(|&other| !is_fronted(other) && is_blocked(other)).fold(0, |mask, other| mask | bit(other))
    }
}

/// Calls the program's handler. Uses nothing thread-local.
///
/// # Safety
/// [`pass_on`] returned the action. `info` and `context` are what the kernel gave the handler that calls this.
unsafe fn call(action: &Action, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let signal = libc::SIGBUS;
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        type Full = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: an action with SA_SIGINFO names a function of this type.
        unsafe { std::mem::transmute::<usize, Full>(action.sa_sigaction)(signal, info, context) };
    } else {
        // SAFETY: an action without SA_SIGINFO names a function of this type, and this is none of the special values.
        unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(action.sa_sigaction)(signal) };
    }
}

/// The write bit of the page fault's error code.
///
/// # Safety
/// `context` is the ucontext that the kernel gave the running handler.
unsafe fn was_write(context: *mut libc::c_void) -> bool {
    // SAFETY: the caller upholds this function's own contract.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_ERR as usize] & 2 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_panics_is_over_and_the_handler_is_in_front_again() {
        extern "C" fn own(_signal: libc::c_int) {}
        static UNUSED: Front = Front::new(libc::SIGUSR2);
        let ours = plain_action(own as *const () as usize);
        UNUSED.install(ptr::null_mut(), ours).unwrap();
        let is_default = || UNUSED.is_in_front(&plain_action(libc::SIG_DFL)).unwrap().0;
        assert!(UNUSED.behind(ours, is_default).unwrap());
        let panics = || -> io::Result<()> { UNUSED.behind(ours, || std::panic::resume_unwind(Box::new(()))) };
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!((UNUSED.nr_changes.load(Ordering::Relaxed), UNUSED.is_in_front(&ours).unwrap().0), (0, true));
        assert!(UNUSED.behind(ours, is_default).unwrap());
        assert!(UNUSED.is_in_front(&ours).unwrap().0);
    }
}
