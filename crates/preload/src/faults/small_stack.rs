//! Runs the program's handlers on the small signal stack that it has set, while the kernel knows this library's stack
//! ([`signal_stack::instead_of`]): that one takes the frames of faults and caught calls, for which the program's has no
//! room.
//!
//! A handler that wants the signal stack (SA_ONSTACK) begins here, on this library's stack. The kernel's frame is
//! copied to the program's, and the handler returns from there.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{sighandler_t, siginfo_t, ucontext_t};

use crate::export::{export, real};
use crate::faults::signal_stack;

real!(LONGJMP = c"siglongjmp": fn(*mut c_void, c_int) -> ());
real!(LONGJMP_CHECKED = c"__longjmp_chk": fn(*mut c_void, c_int) -> ());

const NR_SIGNALS: usize = 65;

/// The program's handlers that begin here.
static HANDLERS: [AtomicUsize; NR_SIGNALS] = [const { AtomicUsize::new(libc::SIG_DFL) }; NR_SIGNALS];

/// The red zone of a function that was interrupted.
const RED_ZONE_BYTES: usize = 128;
/// The least room that a handler is left below its frame.
const LEAST_ROOM_BYTES: usize = 512;
/// Where the kernel describes the extended state of the FPU, in the state's legacy part, and how it begins.
const DESCRIBED_AT: usize = 464;
const EXTENDED: u32 = 0x4650_5853;
const LEGACY_BYTES: usize = 512;
const STATE_ALIGNMENT: usize = 64;

/// The handler for the kernel, for one of the program's with these flags.
pub fn instead_of(signal: c_int, handler: sighandler_t, flags: u64) -> sighandler_t {
    let is_special = handler == libc::SIG_DFL || handler == libc::SIG_IGN;
    let Some(place) = HANDLERS.get(signal as usize) else { return handler };
    if is_special || flags & libc::SA_ONSTACK as u64 == 0 {
        return handler;
    }
    place.store(handler, Ordering::SeqCst);
    enter as *const () as usize
}

/// The program's handler that begins here, if any does.
pub fn handler(signal: c_int) -> sighandler_t {
    HANDLERS.get(signal as usize).map_or(libc::SIG_DFL, |place| place.load(Ordering::SeqCst))
}

/// The program's handler where the kernel knows one, and `begins_here` is what began here then.
pub fn told(known: sighandler_t, begins_here: sighandler_t) -> sighandler_t {
    if known == enter as *const () as usize { begins_here } else { known }
}

/// The handler, and where the frame lies now; zero: where it was.
#[repr(C)]
struct Landing {
    frame: usize,
    handler: usize,
}

/// Copies the frame to the program's stack, if that is a small one.
extern "C" fn land(signal: c_int, frame: usize, context: &ucontext_t) -> Landing {
    let handler = HANDLERS[signal as usize].load(Ordering::SeqCst);
    // SAFETY: the kernel's frame, which this handler alone uses.
    Landing { frame: unsafe { moved(frame, context) }.unwrap_or(0), handler }
}

/// Moves a frame: the return address, the context, the description of the signal, and the state of the FPU behind them.
///
/// # Safety
/// The kernel has just made the frame, and its handler has not begun.
unsafe fn moved(frame: usize, context: &ucontext_t) -> Option<usize> {
    let theirs = signal_stack::stands_for()?;
    let interrupted = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    // A fault, or a call that is being made: what was interrupted has this library's stack.
    if signal_stack::is_on_own(interrupted) {
        return None;
    }
    let bottom = theirs.ss_sp as usize;
    let top = match signal_stack::is_on(&theirs, interrupted) {
        true => interrupted - RED_ZONE_BYTES,
        false => bottom + theirs.ss_size,
    };
    let state = context.uc_mcontext.fpregs as usize;
    let before_state = state.checked_sub(frame)?;
    // SAFETY: the caller's promise. The kernel's state is at least as long as its legacy part, in which its length is.
    let [magic, len] = unsafe { ((state + DESCRIBED_AT) as *const [u32; 2]).read() };
    let len = if magic == EXTENDED { len as usize } else { LEGACY_BYTES };
    let new_state = top.checked_sub(len)? & !(STATE_ALIGNMENT - 1);
    let new_frame = new_state.checked_sub(before_state).filter(|&new| new >= bottom + LEAST_ROOM_BYTES)?;
    // SAFETY: the program's stack, of which the part above is in use. It may fault, as this runs on another stack.
    unsafe {
        std::ptr::copy_nonoverlapping(frame as *const u8, new_frame as *mut u8, before_state + len);
        let context = (new_frame + (&raw const *context as usize - frame)) as *mut ucontext_t;
        (*context).uc_mcontext.fpregs = new_state as *mut _;
    }
    Some(new_frame)
}

/// What the kernel calls. The frame begins with the return address, at the stack pointer.
#[unsafe(naked)]
unsafe extern "C" fn enter(_signal: c_int, _about: *mut siginfo_t, _context: *mut c_void) {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "lea rsi, [rsp + 24]",
        "call {land}",
        "mov r11, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "sub rsi, rsp",
        "add rsi, rax",
        "sub rdx, rsp",
        "add rdx, rax",
        "mov rsp, rax",
        "2:",
        "jmp r11",
        land = sym land,
    )
}

export! {
    fn __longjmp_chk(to: *mut c_void, value: c_int) -> () {
        // The C library asks the kernel whether the thread is on the signal stack, which does not know it.
        let here = 0u8;
        let real = if signal_stack::is_on_theirs(&raw const here as usize) { &LONGJMP } else { &LONGJMP_CHECKED };
        // SAFETY: the caller's call. It does not return, and no frame of this library has anything to drop.
        unsafe { real.get()(to, value) };
    }
}
