//! One handler for SIGBUS (and one for SIGSEGV, and one for SIGSYS) in front of the program's own.
//!
//! The kernel calls it with all signals blocked, on the alternate stack where the thread has one. It asks the function
//! given to [`install`]; a fault that this one does not know goes to the *chained* action: who was installed before,
//! or what a face put there in the program's name ([`set_chained_action`]). errno is as before when it returns.
//!
//! Both functions and actions are read with one atomic load in the handler. An action that was replaced is never
//! freed: a handler may be reading it, and programs replace it a few times at most.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::{errno, set_errno};

/// What a fault function says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// The fault is resolved: the access is repeated.
    Yes,
    /// It is somebody else's.
    No,
}

/// Asked about a fault: its address and whether it was a write (known on x86-64 only, else `false`). Runs in a signal
/// handler.
pub type FaultFunction = fn(addr: usize, write: bool) -> Handled;

/// A program's action for a signal, as sigaction(2) takes it.
pub type Action = libc::sigaction;

/// What belongs to one signal.
struct Front {
    signal: libc::c_int,
    /// The `FaultFunction`, or null.
    function: AtomicPtr<()>,
    /// A leaked `Action`, or null for the default one.
    chained: AtomicPtr<Action>,
    installed: Mutex<bool>,
}

static SIGBUS: Front = Front::new(libc::SIGBUS);
static SIGSEGV: Front = Front::new(libc::SIGSEGV);
static SIGSYS: Front = Front::new(libc::SIGSYS);

impl Front {
    const fn new(signal: libc::c_int) -> Self {
        Front {
            signal,
            function: AtomicPtr::new(ptr::null_mut()),
            chained: AtomicPtr::new(ptr::null_mut()),
            installed: Mutex::new(false),
        }
    }

    fn install(&self, function: *mut (), ours: Action) -> io::Result<()> {
        let mut installed = self.installed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.function.store(function, Ordering::Release);
        if *installed {
            return Ok(());
        }
        // What is there now goes behind this handler before the handler can be called.
        let mut before = zeroed_action();
        set_action(self.signal, ptr::null(), &mut before)?;
        self.chain(before);
        set_action(self.signal, &ours, ptr::null_mut())?;
        *installed = true;
        Ok(())
    }

    fn chain(&self, action: Action) {
        self.chained.store(Box::into_raw(Box::new(action)), Ordering::Release);
    }

    fn chained(&self) -> Action {
        // SAFETY: null, or a box that was leaked by `chain` and is never freed or changed.
        unsafe { self.chained.load(Ordering::Acquire).as_ref() }.copied().unwrap_or_else(zeroed_action)
    }
}

/// Asks `function` about every SIGBUS that a touch of memory causes. A later call replaces the function.
///
/// # Errors
/// None that Linux is known to give.
pub fn install(function: FaultFunction) -> io::Result<()> {
    SIGBUS.install(function as *mut (), fault_action())
}

/// The same for SIGSEGV.
///
/// # Errors
/// None that Linux is known to give.
pub fn install_segv(function: FaultFunction) -> io::Result<()> {
    SIGSEGV.install(function as *mut (), fault_action())
}

/// Asked about a SIGSYS, with the interrupted context, which it may change. Runs in a signal handler, with the signals
/// blocked that were so where it was called, and may be called again meanwhile.
pub type SyscallFunction = fn(info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> Handled;

/// Asks `function` about every SIGSYS. A later call replaces the function.
///
/// # Errors
/// None that Linux is known to give.
pub fn install_syscall(function: SyscallFunction) -> io::Result<()> {
    let mut ours = zeroed_action();
    ours.sa_sigaction = syscall_entry as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    SIGSYS.install(function as *mut (), ours)
}

/// The action for faults: all signals are blocked but the one that a caught system call gives.
fn fault_action() -> Action {
    let mut ours = zeroed_action();
    ours.sa_sigaction = entry as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // The C library's own "all signals" leaves out the one that cancels a thread: its handler would unwind the middle of a
    // fault. So all bits are set by hand.
    // SAFETY: a set is plain bits, any of which may be set; this one is of this frame.
    unsafe {
        ptr::write_bytes(&raw mut ours.sa_mask, 0xff, 1);
        libc::sigdelset(&mut ours.sa_mask, libc::SIGSYS);
    }
    ours
}

/// Whether `signal` is one that [`install`], [`install_segv`] or [`install_syscall`] has put this crate's handler in front of.
#[must_use]
pub fn is_fronted(signal: i32) -> bool {
    front(signal).is_some_and(|front| !front.function.load(Ordering::Acquire).is_null())
}

/// What gets the faults of SIGBUS that are not the engine's: the program's own action, as it would see it.
#[must_use]
pub fn chained_action() -> Action {
    SIGBUS.chained()
}

/// Replaces [`chained_action`]; for a face that presents sigaction(SIGBUS) to the program. Allocates.
pub fn set_chained_action(action: Action) {
    SIGBUS.chain(action);
}

/// As [`chained_action`], for SIGSEGV.
#[must_use]
pub fn chained_segv_action() -> Action {
    SIGSEGV.chained()
}

/// As [`set_chained_action`], for SIGSEGV.
pub fn set_chained_segv_action(action: Action) {
    SIGSEGV.chain(action);
}

/// As [`chained_action`], for SIGSYS.
#[must_use]
pub fn chained_syscall_action() -> Action {
    SIGSYS.chained()
}

/// As [`set_chained_action`], for SIGSYS.
pub fn set_chained_syscall_action(action: Action) {
    SIGSYS.chain(action);
}

fn front(signal: libc::c_int) -> Option<&'static Front> {
    match signal {
        libc::SIGBUS => Some(&SIGBUS),
        libc::SIGSEGV => Some(&SIGSEGV),
        libc::SIGSYS => Some(&SIGSYS),
        _ => None,
    }
}

/// All zeros: the default action, no flags, an empty mask.
fn zeroed_action() -> Action {
    // SAFETY: all zeros are a valid sigaction: SIG_DFL is 0, and the restorer is an option.
    unsafe { std::mem::zeroed() }
}

type SigactionFn = unsafe extern "C" fn(libc::c_int, *const Action, *mut Action) -> libc::c_int;

/// The C library's sigaction, also where a preloaded library of this repository stands in front of it. Looked up at
/// the first install, so that the handler finds it ready.
fn real_sigaction() -> SigactionFn {
    static REAL: OnceLock<SigactionFn> = OnceLock::new();
    *REAL.get_or_init(|| {
        // SAFETY: a look-up by a name that ends in 0.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) };
        if next.is_null() {
            return libc::sigaction; // statically linked
        }
        // SAFETY: the C library's symbol of this name has this type.
        unsafe { std::mem::transmute::<*mut libc::c_void, SigactionFn>(next) }
    })
}

fn set_action(signal: libc::c_int, new: *const Action, old: *mut Action) -> io::Result<()> {
    // SAFETY: both pointers are null or point at actions of the caller's frame; the handler named in `new` is `entry`
    // or one that the program gave.
    crate::check(unsafe { real_sigaction()(signal, new, old) }.into()).map(drop)
}

/// Reasons of SIGSEGV that the libc crate lacks: nothing mapped; no permission.
const SEGV_MAPERR: libc::c_int = 1;
const SEGV_ACCERR: libc::c_int = 2;

/// What the kernel calls.
extern "C" fn entry(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let kept = errno();
    let Some(front) = front(signal) else { return };
    // SAFETY: the kernel gives a valid siginfo to a handler installed with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    let by_access = match signal {
        libc::SIGBUS => code == libc::BUS_ADRERR,
        _ => code == SEGV_MAPERR || code == SEGV_ACCERR,
    };
    let function = front.function.load(Ordering::Acquire);
    let mut handled = Handled::No;
    if by_access && !function.is_null() {
        // SAFETY: only `install` stores here, and it stores a `FaultFunction`.
        let function = unsafe { std::mem::transmute::<*mut (), FaultFunction>(function) };
        // SAFETY: a fault's siginfo has an address.
        let addr = unsafe { (*info).si_addr() } as usize;
        // SAFETY: the kernel gives the interrupted context, and this is its handler.
        handled = function(addr, unsafe { was_write(context) });
    }
    if handled == Handled::No {
        // SAFETY: what the kernel gave this handler, passed on while it runs.
        unsafe { pass_on(front, code, info, context) };
    }
    set_errno(kept);
}

/// What the kernel calls for SIGSYS.
extern "C" fn syscall_entry(_signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let kept = errno();
    let function = SIGSYS.function.load(Ordering::Acquire);
    // SAFETY: only `install_syscall` stores here, and it stores a `SyscallFunction` before the handler can be called.
    let function = unsafe { std::mem::transmute::<*mut (), SyscallFunction>(function) };
    // SAFETY: the kernel gives a valid siginfo and context to a handler installed with SA_SIGINFO; they are this
    // handler's own.
    let (about, interrupted) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    if function(about, interrupted) == Handled::No {
        // SAFETY: what the kernel gave this handler, passed on while it runs.
        unsafe { pass_on(&SIGSYS, about.si_code, info, context) };
    }
    set_errno(kept);
}

/// Gives the signal to the chained action as the kernel would have.
///
/// # Safety
/// `info` and `context` are what the kernel gave the handler that calls this.
unsafe fn pass_on(front: &Front, code: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let action = front.chained();
    // By kill and its kin, or for a system call that was not made: nothing repeats after the return.
    let sent = code <= 0 || front.signal == libc::SIGSYS;
    match action.sa_sigaction {
        libc::SIG_IGN if code <= 0 => return,
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is repeated under the default action, which ends the process; a sent signal is sent again.
            let _ = set_action(front.signal, &zeroed_action(), ptr::null_mut());
            if sent {
                let _ = crate::signals::send(crate::signals::thread_id(), front.signal);
            }
            return;
        }
        _ => {}
    }
    if action.sa_flags & libc::SA_RESETHAND != 0 {
        front.chained.store(ptr::null_mut(), Ordering::Release);
    }
    // The program's handler runs under its own mask; the kernel restores the interrupted one when this handler returns.
    // SAFETY: the context is the kernel's ucontext; its mask and the action's are read, `mask` is of this frame. The
    // kernel's set is shorter than the C library's, so bits are asked for one by one.
    unsafe {
        let interrupted = &(*context.cast::<libc::ucontext_t>()).uc_sigmask;
        let mut mask: libc::sigset_t = std::mem::zeroed();
        for signal in 1..=64 {
            if is_fronted(signal) {
                continue; // the handler, too, may fault
            }
            let itself = signal == front.signal && action.sa_flags & libc::SA_NODEFER == 0;
            let blocked =
                libc::sigismember(interrupted, signal) == 1 || libc::sigismember(&action.sa_mask, signal) == 1;
            if itself || blocked {
                libc::sigaddset(&mut mask, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ptr::null_mut());
    }
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        type Full = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: an action with SA_SIGINFO names a function of this type.
        unsafe { std::mem::transmute::<usize, Full>(action.sa_sigaction)(front.signal, info, context) };
    } else {
        // SAFETY: an action without SA_SIGINFO names a function of this type; it is none of the special values.
        unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(action.sa_sigaction)(front.signal) };
    }
}

/// The write bit of the page fault's error code.
///
/// # Safety
/// `context` is the ucontext that the kernel gave the running handler.
#[cfg(target_arch = "x86_64")]
unsafe fn was_write(context: *mut libc::c_void) -> bool {
    // SAFETY: as the caller says.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_ERR as usize] & 2 != 0
}

/// Unknown on this architecture.
///
/// # Safety
/// None needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn was_write(_context: *mut libc::c_void) -> bool {
    false
}
