//! Keeps the program's signal handlers out while a thread runs code of the engine or of this library.
//!
//! A handler may touch managed memory at any time. If it interrupted its own thread inside the engine, its fault could
//! wait for a lock that this thread holds. So every call into the engine, and every allocation of this library, runs
//! with signals blocked. Signals that an instruction raises stay open: in direct mode faults arrive as SIGBUS, and
//! system calls from outside the C library as SIGSYS.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{static_tls, vforked};

use crate::ground::depth;
pub use crate::ground::depth::inside;
use crate::ground::real::own;

static_tls! {
    /// The thread's id; 0: unknown.
    static THREAD: u32 = "folioswap_thread";
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// What a guard blocks: all signals except those that an instruction raises.
pub const BLOCKED: u64 = !(bit(libc::SIGBUS)
    | bit(libc::SIGSYS)
    | bit(libc::SIGSEGV)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP));

/// Until this is dropped, signals are blocked and allocations come from the private heap.
pub struct Guard {
    before: Option<u64>,
}

/// Enters. Nested entries are cheap: only the outermost makes a system call.
pub fn enter() -> Guard {
    let before = if inside() { None } else { Some(block()) };
    depth::enter();
    Guard { before }
}

/// Enters from a signal handler that runs with all signals blocked.
pub fn enter_blocked() -> Guard {
    depth::enter();
    Guard { before: None }
}

/// The calling thread's id. Cheap but for the first call.
pub fn this_thread() -> u32 {
    match THREAD.get() {
        0 => {
            THREAD.set(folioswap_sys::signals::thread_id());
            THREAD.get()
        }
        thread => thread,
    }
}

/// The id of the process, also in a child that shares its parent's memory.
pub fn own_process() -> u32 {
    // SAFETY: takes no pointers.
    unsafe { own!(libc::SYS_getpid) as u32 }
}

/// In a forked child: its thread has another id, and the memory is its own.
pub fn begin_child() {
    THREAD.set(0);
    vforked::note_owner(own_process);
}

fn block() -> u64 {
    let mut before = MaybeUninit::<u64>::uninit();
    // SAFETY: the kernel reads one set of 8 bytes and fills in the other.
    unsafe {
        own!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const BLOCKED_SET, before.as_mut_ptr(), 8);
        before.assume_init()
    }
}

static BLOCKED_SET: u64 = BLOCKED;

/// The signals for which the program has set handlers.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// Notes whether the program has set a handler for a signal.
pub fn note_handler(signal: i32, is_handled: bool) {
    if is_handled {
        HANDLED.fetch_or(bit(signal), Ordering::Relaxed);
    } else {
        HANDLED.fetch_and(!bit(signal), Ordering::Relaxed);
    }
}

/// While this lives, no handler of the program's runs on the calling thread. Other signals do what they do.
pub struct KeptOut {
    before: u64,
}

/// Keeps handlers out, if the program has any, where a jump out of one would leave something behind.
pub fn keep_handlers_out() -> Option<KeptOut> {
    let kept_out = HANDLED.load(Ordering::Relaxed) & BLOCKED;
    if kept_out == 0 || inside() {
        return None;
    }
    let mut before = MaybeUninit::<u64>::uninit();
    // SAFETY: the kernel reads one set of 8 bytes and fills in the other.
    unsafe {
        own!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const kept_out, before.as_mut_ptr(), 8);
        Some(KeptOut { before: before.assume_init() })
    }
}

impl Drop for KeptOut {
    fn drop(&mut self) {
        // SAFETY: the kernel reads the 8-byte set that it gave before.
        unsafe {
            own!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut::<u64>(), 8);
        }
    }
}

impl Guard {
    /// Leaves, but handlers of the program's stay out. Other signals do what they do.
    pub fn leave_to_others(self) -> Option<KeptOut> {
        let before = self.before;
        std::mem::forget(self);
        depth::leave();
        let (before, kept_out) = (before?, before? | HANDLED.load(Ordering::Relaxed) & BLOCKED);
        // SAFETY: the kernel reads this set of 8 bytes.
        unsafe {
            own!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const kept_out, std::ptr::null_mut::<u64>(), 8);
        }
        Some(KeptOut { before })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        depth::leave();
        if let Some(before) = self.before {
            // SAFETY: the kernel reads the 8-byte set that `block` returned.
            unsafe {
                own!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, std::ptr::null_mut::<u64>(), 8,);
            }
        }
    }
}
