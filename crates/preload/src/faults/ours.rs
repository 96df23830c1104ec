//! The signals that this library needs, which are never blocked: which they are, signal sets of the program's without
//! them, and a signal action as the kernel has it.

use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap_sys::held_signals;
use libc::{sighandler_t, sigset_t};

use crate::faults::net;
use crate::ground::real::own;
use crate::ground::state;
use crate::memory::access::{self, Access};
use crate::memory::bounce::Bounce;

/// Whether SIGSYS is this library's, and SIGBUS.
static CATCHES: AtomicBool = AtomicBool::new(false);
static FAULTS: AtomicBool = AtomicBool::new(false);

/// Sets whether SIGBUS is this library's.
pub fn set_faults(are_ours: bool) {
    FAULTS.store(are_ours, Ordering::SeqCst);
}

/// Sets whether SIGSYS is.
pub fn set_catches(are_ours: bool) {
    CATCHES.store(are_ours, Ordering::SeqCst);
}

/// The signals that are never blocked.
pub fn list() -> &'static [c_int] {
    match (FAULTS.load(Ordering::Relaxed), CATCHES.load(Ordering::Relaxed)) {
        (true, _) => &[libc::SIGBUS, libc::SIGSYS],
        (false, true) => &[libc::SIGSYS],
        (false, false) => &[],
    }
}

pub fn is_ours(signal: c_int) -> bool {
    list().contains(&signal)
}

/// Whether there are such signals.
pub fn has_ours() -> bool {
    !list().is_empty()
}

/// The same as a mask of the kernel's.
pub fn ours_mask() -> u64 {
    list().iter().fold(0, |bits, signal| bits | 1u64 << (signal - 1))
}

/// Blocks all other signals on the calling thread, whose stack may have left RAM.
pub fn block_others() {
    const fn others(ours: &[c_int]) -> u64 {
        let (mut mask, mut index) = (!0, 0);
        while index < ours.len() {
            mask &= !(1u64 << (ours[index] - 1));
            index += 1;
        }
        mask
    }
    static MASKS: [u64; 3] = [others(&[]), others(&[libc::SIGSYS]), others(&[libc::SIGBUS, libc::SIGSYS])];
    // SAFETY: the kernel reads a set of 8 bytes.
    unsafe { own!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const MASKS[list().len()], 0usize, 8) };
}

/// Unblocks [`list`] on the calling thread, and has its system calls caught.
pub fn open_ours() {
    let set = ours_mask();
    let mut before = 0u64;
    // SAFETY: the kernel writes a set of 8 bytes, and reads another.
    unsafe {
        own!(libc::SYS_rt_sigprocmask, 0, 0usize, &raw mut before, 8);
        own!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const set, 0usize, 8);
    }
    held_signals::begin_thread(held_signals::blocked() | before & set);
    net::arm();
}

/// A copy of the set without [`list`]; `None` if the caller's own set can be used, or cannot be read: the kernel
/// refuses it.
///
/// # Safety
/// If the set can be read, it is valid.
pub unsafe fn without_ours(set: *const sigset_t) -> Option<sigset_t> {
    if !has_ours() {
        return None;
    }
    // SAFETY: the caller's promise. The kernel's sets have 8 bytes, and it reads no more.
    let open = unsafe { open_set(set as usize) }?;
    // SAFETY: a set without signals is valid, and so is one with these.
    unsafe {
        let mut copy: sigset_t = zeroed();
        (&raw mut copy).cast::<u64>().write(open);
        Some(copy)
    }
}

/// The same where the kernel finds it: a page of the stack may leave RAM before it has read the set.
///
/// # Safety
/// As for [`without_ours`].
pub unsafe fn present_without_ours(set: *const sigset_t) -> Option<Bounce> {
    // SAFETY: the caller upholds this function's own contract.
    let copy = unsafe { without_ours(set) }?;
    let bounce = Bounce::new(0, size_of::<sigset_t>())?;
    // SAFETY: the bounce buffer is as long, and begins with a page.
    unsafe { bounce.as_ptr().cast::<sigset_t>().write(copy) };
    Some(bounce)
}

/// A kernel signal set without the signals that are never blocked; `None` for null, and for one that cannot be read.
pub unsafe fn open_set(set: usize) -> Option<u64> {
    let ours = ours_mask();
    // SAFETY: null or the caller's set.
    let known = if set == 0 { None } else { unsafe { access::read(set as *const u64) } };
    known.map(|known| known & !ours)
}

/// Writes what a call has found out to where the program wants it, if anywhere. Returns the result of the call: as from
/// the kernel, an error if that is not possible.
///
/// # Safety
/// If the memory is writable, the program gave its address for this.
pub unsafe fn bring<T>(value: T, to: *mut T, result: c_int) -> c_int {
    if result != 0 || to.is_null() {
        return result;
    }
    if !access::is_open(to as usize, size_of::<T>(), Access::Write) {
        state::fail(libc::EFAULT);
        return -1;
    }
    // SAFETY: the caller's promise. It need not be aligned.
    unsafe { to.write_unaligned(value) };
    result
}

/// A pointer to the changed copy, or the caller's own.
pub fn pointer(copy: &Option<Bounce>, set: *const sigset_t) -> *const sigset_t {
    copy.as_ref().map_or(set, |copy| copy.as_ptr().cast_const().cast())
}

/// Whether faults may come as signals, on the signal stack.
pub fn takes_faults() -> bool {
    FAULTS.load(Ordering::Relaxed)
}

/// Has the C library's own handler of a signal, if there is one, run on the signal stack: what it interrupts may have a
/// stack that has left RAM.
pub fn run_on_signal_stack(signal: c_int) {
    const ON_STACK: u64 = libc::SA_ONSTACK as u64;
    if !takes_faults() {
        return;
    }
    let mut action = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: the kernel fills in the local, and reads it.
    unsafe {
        let known = own!(libc::SYS_rt_sigaction, signal, 0usize, &raw mut action, 8);
        if known == 0 && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.handler) && action.flags & ON_STACK == 0 {
            action.flags |= ON_STACK;
            own!(libc::SYS_rt_sigaction, signal, &raw const action, 0usize, 8);
        }
    }
}

/// A signal action in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelAction {
    pub handler: sighandler_t,
    pub flags: u64,
    pub restorer: usize,
    pub mask: u64,
}

/// The kernel's flag that a restorer is given.
pub const RESTORES: u64 = 0x0400_0000;
