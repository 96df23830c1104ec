//! The library's phase, and the managed memory once there is some.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use folioswap::{Arena, FaultMode, RawSpace};

/// The library's phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Before the constructor has decided.
    Early = 0,
    /// Nothing was asked of this library. All calls go to the C library.
    Passing = 1,
    /// The engine is running.
    Managed = 2,
    /// A forked child. It may use inherited memory, but manages nothing new.
    Child = 3,
}

static PHASE: AtomicU8 = AtomicU8::new(Phase::Early as u8);
static SPAN_START: AtomicUsize = AtomicUsize::new(0);
static SPAN_LEN: AtomicUsize = AtomicUsize::new(0);
static ARENA: OnceLock<(Arena, RawSpace)> = OnceLock::new();
static DIRECT: AtomicBool = AtomicBool::new(false);

/// The current phase.
pub fn phase() -> Phase {
    match PHASE.load(Ordering::Relaxed) {
        0 => Phase::Early,
        1 => Phase::Passing,
        2 => Phase::Managed,
        _ => Phase::Child,
    }
}

pub fn set_phase(phase: Phase) {
    PHASE.store(phase as u8, Ordering::SeqCst);
}

/// Makes an arena's memory the managed memory. Called once per process.
pub fn adopt(arena: Arena) -> &'static RawSpace {
    let (_, space) = ARENA.get_or_init(|| {
        let space = arena.raw();
        (arena, space)
    });
    let span = space.span();
    SPAN_START.store(span.start, Ordering::Relaxed);
    SPAN_LEN.store(span.len(), Ordering::SeqCst);
    DIRECT.store(space.mode() == FaultMode::Direct, Ordering::SeqCst);
    space
}

/// The managed memory, while the engine is running.
pub fn space() -> Option<&'static RawSpace> {
    if phase() == Phase::Managed { ARENA.get().map(|(_, space)| space) } else { None }
}

/// Whether the address lies in the managed span. Valid in a forked child too.
pub fn is_managed(addr: usize) -> bool {
    addr.wrapping_sub(SPAN_START.load(Ordering::Relaxed)) < SPAN_LEN.load(Ordering::Relaxed)
}

/// Whether any part of the range lies in the managed span.
pub fn overlaps(addr: usize, len: usize) -> bool {
    let start = SPAN_START.load(Ordering::Relaxed);
    addr < start + SPAN_LEN.load(Ordering::Relaxed) && start < addr.saturating_add(len)
}

/// Splits a range into its parts before, in and after the managed span.
pub fn cut(addr: usize, len: usize) -> [std::ops::Range<usize>; 3] {
    let start = SPAN_START.load(Ordering::Relaxed);
    let end = start + SPAN_LEN.load(Ordering::Relaxed);
    let last = addr.saturating_add(len);
    [addr..last.min(start), addr.max(start)..last.min(end), addr.max(end)..last]
}

/// Whether threads resolve their own faults. The kernel then finds pages missing in system calls.
pub fn direct() -> bool {
    DIRECT.load(Ordering::Relaxed) && phase() == Phase::Managed
}

/// Writes one line to standard error, without stdio.
pub fn say(message: &str) {
    folioswap_sys::own_table::write_to_stderr(["folioswap: ", message, "\n"]);
}

/// Prints the reason and ends the process at once.
pub fn end(status: i32, message: &str) -> ! {
    say(message);
    folioswap_sys::signals::exit_now(status)
}

/// Sets errno.
pub fn fail(errno: i32) {
    // SAFETY: errno is the calling thread's own.
    unsafe { *libc::__errno_location() = errno }
}

/// The calling thread's errno.
pub fn errno() -> i32 {
    // SAFETY: errno is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

/// Runs code of the engine, and leaves errno as it was: the engine repeats system calls that fail for a moment.
pub fn keeping_errno<R>(work: impl FnOnce() -> R) -> R {
    let kept = errno();
    let result = work();
    fail(kept);
    result
}
