//! SIGBUS (and SIGSEGV) handlers that look at the address first and pass on what is not theirs.
//!
//! The handler runs with all signals blocked, on the alternate stack if there is one, and keeps errno. What it does not
//! resolve goes to the action that was there before, or that the program has set since ([`set_chained`]).

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// What a handler made of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// Resolved: the access is repeated.
    Yes,
    /// Not ours, or lost: whoever was installed before gets it.
    No,
}

/// A handler: address, and whether the access was a write (known on x86-64 only).
pub type Handler = fn(addr: usize, write: bool) -> Handled;

/// One signal's handler and the action it passes faults on to.
struct Slot {
    handler: AtomicUsize,
    /// Leaked boxes: a handler may be reading the one before while it is replaced. Actions are set a few times a
    /// program.
    chained: AtomicPtr<libc::sigaction>,
    installing: Mutex<()>,
}

static SLOTS: [Slot; 2] = [const {
    Slot { handler: AtomicUsize::new(0), chained: AtomicPtr::new(ptr::null_mut()), installing: Mutex::new(()) }
}; 2];

fn slot(signal: i32) -> &'static Slot {
    &SLOTS[usize::from(signal == libc::SIGSEGV)]
}

/// Installs the handler for SIGBUS. A second call replaces the function and keeps the rest.
///
/// # Errors
/// The kernel's.
pub fn install(handler: Handler) -> io::Result<()> {
    install_for(libc::SIGBUS, handler)
}

/// The same for SIGSEGV.
///
/// # Errors
/// The kernel's.
pub fn install_segv(handler: Handler) -> io::Result<()> {
    install_for(libc::SIGSEGV, handler)
}

fn install_for(signal: i32, handler: Handler) -> io::Result<()> {
    let slot = slot(signal);
    let _one_at_a_time = slot.installing.lock().expect("nothing panics under this lock");
    if slot.handler.swap(handler as usize, Ordering::SeqCst) != 0 {
        return Ok(());
    }
    // SAFETY: all zero is a valid sigaction; the calls fill it in or read it.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigfillset(&mut action.sa_mask);
        let mut before = MaybeUninit::uninit();
        raw_sigaction(signal, &raw const action, before.as_mut_ptr())?;
        slot.chained.store(Box::into_raw(Box::new(before.assume_init())), Ordering::SeqCst);
    }
    Ok(())
}

/// The C library's own `sigaction`, past any stand-in of the same name in this program.
///
/// # Safety
/// As `sigaction`.
unsafe fn raw_sigaction(signal: i32, action: *const libc::sigaction, before: *mut libc::sigaction) -> io::Result<()> {
    type Sigaction = unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> i32;
    // SAFETY: the name is a C string; a symbol of this name in the C library has this type.
    let result = unsafe {
        match libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) {
            found if found.is_null() => libc::sigaction(signal, action, before),
            found => std::mem::transmute::<*mut libc::c_void, Sigaction>(found)(signal, action, before),
        }
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a handler is installed for this signal.
#[must_use]
pub fn installed(signal: i32) -> bool {
    slot(signal).handler.load(Ordering::SeqCst) != 0
}

/// The action that faults which are not ours go to.
#[must_use]
pub fn chained(signal: i32) -> Option<libc::sigaction> {
    let action = slot(signal).chained.load(Ordering::SeqCst);
    // SAFETY: null, or a leaked box that is never changed.
    unsafe { action.as_ref() }.copied()
}

/// Sets the action that faults which are not ours go to; gives back the one before.
pub fn set_chained(signal: i32, action: libc::sigaction) -> Option<libc::sigaction> {
    let before = slot(signal).chained.swap(Box::into_raw(Box::new(action)), Ordering::SeqCst);
    // SAFETY: null, or a leaked box that is never changed.
    unsafe { before.as_ref() }.copied()
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is this thread's own; the kernel gives a valid siginfo, whose si_addr is set for this signal.
    let (errno, addr) = unsafe { (*libc::__errno_location(), (*info).si_addr() as usize) };
    let handler = slot(signal).handler.load(Ordering::SeqCst);
    // SAFETY: only Handler functions are stored there, before the action was installed.
    let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
    if handler(addr, is_write(context)) == Handled::No {
        pass_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(target_arch = "x86_64")]
fn is_write(context: *mut libc::c_void) -> bool {
    // SAFETY: the third argument of an SA_SIGINFO handler is a ucontext.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn is_write(_context: *mut libc::c_void) -> bool {
    false
}

fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let chained = chained(signal);
    let target = chained.map_or(libc::SIG_DFL, |action| action.sa_sigaction);
    if target == libc::SIG_DFL || target == libc::SIG_IGN {
        // A fault cannot be ignored: the default action, and the access is repeated and ends the process.
        // SAFETY: all zero is SIG_DFL with no flags.
        unsafe {
            let default: libc::sigaction = zeroed();
            let _ = raw_sigaction(signal, &raw const default, ptr::null_mut());
        }
        return;
    }
    let flags = chained.map_or(0, |action| action.sa_flags);
    // SAFETY: the program installed this address as a handler of the kind that its flags say.
    unsafe {
        if flags & libc::SA_SIGINFO != 0 {
            type WithInfo = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            std::mem::transmute::<usize, WithInfo>(target)(signal, info, context);
        } else {
            std::mem::transmute::<usize, extern "C" fn(i32)>(target)(signal);
        }
    }
}
