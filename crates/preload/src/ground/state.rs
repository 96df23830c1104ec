//! The library's phase, and the managed memory once there is some.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use folioswap::{Arena, ExitStatus, FaultMode, RawSpace};
use folioswap_sys::c_thread;

/// The library's phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Before the constructor has decided.
    Early = 0,
    /// Nothing was asked of this library. All calls go to the C library.
    Passing = 1,
    /// The program fits into its budget, and has one thread. The engine starts before that changes.
    Waiting = 2,
    /// The engine is running.
    Managed = 3,
}

static PHASE: AtomicU8 = AtomicU8::new(Phase::Early as u8);
static ARENA: OnceLock<(Arena, RawSpace)> = OnceLock::new();
static DIRECT: AtomicBool = AtomicBool::new(false);

pub fn phase() -> Phase {
    match PHASE.load(Ordering::Relaxed) {
        0 => Phase::Early,
        1 => Phase::Passing,
        2 => Phase::Waiting,
        _ => Phase::Managed,
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
    DIRECT.store(space.mode() == FaultMode::Direct, Ordering::SeqCst);
    space
}

/// The managed memory, while the engine is running.
pub fn space() -> Option<&'static RawSpace> {
    if phase() == Phase::Managed { ARENA.get().map(|(_, space)| space) } else { None }
}

/// The arena, while the engine is running.
pub fn arena() -> Option<&'static Arena> {
    if phase() == Phase::Managed { ARENA.get().map(|(arena, _)| arena) } else { None }
}

/// Whether the program's memory is managed, or may be once the engine starts.
pub fn may_manage() -> bool {
    matches!(phase(), Phase::Waiting | Phase::Managed)
}

/// Whether the address lies in a block with managed memory.
pub fn is_managed(addr: usize) -> bool {
    ARENA.get().is_some_and(|(_, space)| space.contains(addr))
}

/// Whether the range overlaps a block with managed memory.
pub fn overlaps(addr: usize, len: usize) -> bool {
    ARENA.get().is_some_and(|(_, space)| space.overlaps(addr, len))
}

/// As [`RawSpace::on_present_stack`].
pub fn on_present_stack<R>(work: impl FnOnce() -> R) -> R {
    match ARENA.get() {
        Some((_, space)) => space.on_present_stack(work),
        None => work(),
    }
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
pub fn end(status: ExitStatus, message: &str) -> ! {
    say(message);
    folioswap_sys::signals::exit_now(status.code().into())
}

pub fn fail(errno: i32) {
    // SAFETY: errno is the calling thread's own.
    unsafe { *libc::__errno_location() = errno }
}

/// The calling thread's errno.
pub fn errno() -> i32 {
    // SAFETY: errno is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

/// What a system call returns.
pub trait Outcome {
    /// What it returns when it fails with the error in errno.
    fn failed() -> Self;

    fn has_failed(&self) -> bool;
}

impl Outcome for i32 {
    fn failed() -> Self {
        -1
    }

    fn has_failed(&self) -> bool {
        *self < 0
    }
}

impl Outcome for *mut std::ffi::c_void {
    fn failed() -> Self {
        libc::MAP_FAILED
    }

    fn has_failed(&self) -> bool {
        *self == libc::MAP_FAILED
    }
}

impl<T> Outcome for std::io::Result<T> {
    fn failed() -> Self {
        Err(std::io::Error::from_raw_os_error(errno()))
    }

    fn has_failed(&self) -> bool {
        self.is_err()
    }
}

/// Does the work of a system call on memory, and leaves errno as it was if that succeeds. A thread that is cancelled
/// asynchronously ends after it: the C library cannot unwind from every place in it.
pub fn as_the_kernel<R: Outcome>(work: impl FnOnce() -> R) -> R {
    let (uncancelled, kept) = (c_thread::uncancelled(), errno());
    let result = work();
    if !result.has_failed() {
        fail(kept);
    }
    drop(uncancelled);
    result
}

/// Runs code of the engine, and leaves errno as it was: the engine repeats system calls that fail for a moment.
pub fn keeping_errno<R>(work: impl FnOnce() -> R) -> R {
    let kept = errno();
    let result = work();
    fail(kept);
    result
}
