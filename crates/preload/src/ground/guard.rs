//! Keeps the program's signal handlers out while a thread runs code of the engine or of this library.
//!
//! A handler may touch managed memory at any time. If it interrupted its own thread inside the engine, its fault could
//! wait for a lock that this thread holds. So every call into the engine, and every allocation of this library, runs
//! with signals blocked. Signals that an instruction raises stay open: in direct mode faults arrive as SIGBUS, and
//! system calls from outside the C library as SIGSYS. Nor is the thread cancelled there, by functions of the C library.

use std::sync::atomic::{AtomicU64, Ordering};

use folioswap_sys::c_thread::{Uncancelled, uncancelled};
use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{static_tls, vforked};

pub use crate::ground::depth::inside;
use crate::ground::real::own;
use crate::ground::{depth, state};

static_tls! {
    /// The thread's id; 0: unknown.
    static THREAD: u32 = "folioswap_thread";
}

static_tls! {
    /// Where the kernel finds and leaves a mask if the stack is managed: a page of that may have left RAM. The handler
    /// of a signal that guards leave open may overwrite it.
    static MASK: u64 = "folioswap_mask";
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

/// Until this is dropped, signals are blocked, the thread is not cancelled, and allocations come from the private heap.
pub struct Guard {
    before: Option<u64>,
    uncancelled: Option<Uncancelled>,
}

/// Enters. Nested entries are cheap: only the outermost makes a system call.
pub fn enter() -> Guard {
    let before = if inside() { None } else { Some(block(&raw const BLOCKED_SET)) };
    depth::enter();
    Guard { before, uncancelled: before.map(|_| uncancelled()) }
}

/// Enters from a signal handler that runs with all signals blocked.
pub fn enter_blocked() -> Guard {
    depth::enter();
    Guard { before: None, uncancelled: None }
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

/// Blocks the signals of a set that does not move. Returns the mask before.
fn block(set: *const u64) -> u64 {
    let mut before = 0u64;
    let is_managed = is_managed(&before);
    let place = if is_managed { MASK.at() } else { &raw mut before };
    // SAFETY: the kernel reads one set of 8 bytes and fills in the other.
    unsafe { own!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, set, place, 8) };
    if is_managed { MASK.get() } else { before }
}

/// Whether a variable of the calling thread's lies in memory of which the kernel may find a page missing.
fn is_managed(variable: &u64) -> bool {
    state::direct() && state::is_managed(&raw const *variable as usize)
}

/// Sets the mask, while no handler that a guard keeps out can run.
fn set(mask: u64) {
    let place = if is_managed(&mask) {
        MASK.set(mask);
        MASK.at().cast_const()
    } else {
        &raw const mask
    };
    // SAFETY: the kernel reads a set of 8 bytes.
    unsafe { own!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, place, 0usize, 8) };
}

static BLOCKED_SET: u64 = BLOCKED;

/// Those of [`BLOCKED`] for which the program has set handlers.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// Notes whether the program has set a handler for a signal.
pub fn note_handler(signal: i32, is_handled: bool) {
    if is_handled {
        HANDLED.fetch_or(bit(signal) & BLOCKED, Ordering::Relaxed);
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
    if HANDLED.load(Ordering::Relaxed) == 0 || inside() {
        return None;
    }
    Some(KeptOut { before: block(HANDLED.as_ptr()) })
}

impl Drop for KeptOut {
    fn drop(&mut self) {
        set(self.before);
    }
}

impl Guard {
    /// Leaves, but handlers of the program's stay out. Other signals do what they do.
    pub fn leave_to_others(mut self) -> Option<KeptOut> {
        let (before, uncancelled) = (self.before, self.uncancelled.take());
        std::mem::forget(self);
        depth::leave();
        let before = before?;
        uncancelled.iter().for_each(Uncancelled::permit);
        set(before | HANDLED.load(Ordering::Relaxed));
        drop(uncancelled);
        Some(KeptOut { before })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        depth::leave();
        if let Some(before) = self.before {
            self.uncancelled.iter().for_each(Uncancelled::permit);
            set(before);
        }
        // An asynchronous cancellation ends the thread behind this.
    }
}
