//! Keeps the program's signal handlers out while a thread of the program is in the engine's or this library's code.
//!
//! A handler of the program may touch managed memory at any time. If it interrupted its own thread inside the engine,
//! its fault could wait for a lock that this thread holds. So every call into the engine, and every allocation of this
//! library's own code, happens with signals blocked. Those that a thread causes by what it does stay open: in direct
//! mode SIGBUS is how faults arrive, and SIGSYS how system calls do that are not the C library's.

use std::cell::Cell;
use std::mem::MaybeUninit;

use crate::real::kernel;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// What a guard blocks: all but the signals that an instruction causes.
const BLOCKED: u64 = !(bit(libc::SIGBUS)
    | bit(libc::SIGSYS)
    | bit(libc::SIGSEGV)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP));

/// Signals are blocked, and allocations are this library's own, until this is dropped.
pub struct Guard {
    before: Option<u64>,
}

/// Enters; nested entries are cheap.
pub fn enter() -> Guard {
    let before = if inside() { None } else { Some(block()) };
    DEPTH.set(DEPTH.get() + 1);
    Guard { before }
}

/// The same in a signal handler that runs with all signals blocked.
pub fn enter_blocked() -> Guard {
    DEPTH.set(DEPTH.get() + 1);
    Guard { before: None }
}

/// Whether this thread runs the engine's or this library's own code now.
pub fn inside() -> bool {
    DEPTH.get() > 0 || folioswap::internal_thread()
}

fn block() -> u64 {
    let mut before = MaybeUninit::<u64>::uninit();
    // SAFETY: the kernel reads one set of 8 bytes and fills in the other.
    unsafe {
        kernel!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const BLOCKED_SET, before.as_mut_ptr(), 8);
        before.assume_init()
    }
}

static BLOCKED_SET: u64 = BLOCKED;

impl Drop for Guard {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if let Some(before) = self.before {
            // SAFETY: the kernel reads the set that `block` was given.
            unsafe {
                kernel!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, std::ptr::null_mut::<u64>(), 8,);
            }
        }
    }
}
