//! Runs the program's handlers on the stacks that it has for them, though the kernel makes their frames on this
//! library's stack.
//!
//! - A handler that wants the signal stack (SA_ONSTACK) runs on the small one that the program has set, while the
//!   kernel knows this library's ([`signal_stack::instead_of`]): that one takes the frames of faults and caught calls,
//!   for which the program's has no room. With SS_AUTODISARM none is set in name until the handler returns.
//! - A *plain* handler, without that flag or where the program has set no such stack, runs on the stack of the
//!   interrupted code. If that has left RAM, as a coroutine's may, the kernel could make no frame there in direct mode,
//!   and would end the process.
//!
//! Handlers begin here: on this library's stack, but for plain ones in monitor mode. One that has interrupted a caught
//! call is deferred ([`caught`]). Else the kernel's frame is copied to the program's stack. All signals are blocked
//! meanwhile: handlers of others would run on this library's stack. One whose frame was made on top of others that have
//! not begun moves those first. Handlers return by way of this library, which takes the mask from their context. A
//! frame that was moved may have left RAM again, or be another thread's by then: it is copied to where the kernel finds
//! it.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{fs_base, held_signals, sigbus, static_tls, vforked};
use libc::{sighandler_t, siginfo_t, ucontext_t};

use crate::faults::ours::{self, KernelAction};
use crate::faults::{caught, net, signal_stack};
use crate::ground::real::own;
use crate::ground::{guard, state};
use crate::memory::key_rights::{DESCRIBED_AT, EXTENDED};

const NR_SIGNALS: usize = 65;

/// The program's handlers that begin here.
static HANDLERS: [AtomicUsize; NR_SIGNALS] = [const { AtomicUsize::new(libc::SIG_DFL) }; NR_SIGNALS];

/// The red zone of a function that was interrupted.
const RED_ZONE_BYTES: usize = 128;
/// The least room that a handler is left below its frame.
const LEAST_ROOM_BYTES: usize = 512;
/// The bytes of the legacy part of the state of the FPU, and how the whole state is aligned.
const LEGACY_BYTES: usize = 512;
const STATE_ALIGNMENT: usize = 64;

/// Their flags.
static FLAGS: [AtomicU64; NR_SIGNALS] = [const { AtomicU64::new(0) }; NR_SIGNALS];
/// The signals that they block.
static MASKS: [AtomicU64; NR_SIGNALS] = [const { AtomicU64::new(0) }; NR_SIGNALS];

static_tls! {
    /// Whether signals are blocked until the handler runs, and what was blocked before.
    static BLOCKED: (bool, u64) = "folioswap_blocked_by_landing";
}

static_tls! {
    /// Whether the program has set another FS base, which [`reopen`] sets again, and which.
    static OTHER_BASE: (bool, usize) = "folioswap_other_base";
}

const ON_STACK: u64 = libc::SA_ONSTACK as u64;
const OPEN: u64 = libc::SA_NODEFER as u64;

/// What the program has set for a signal whose handlers begin here.
#[derive(Clone, Copy)]
pub struct Noted {
    handler: sighandler_t,
    flags: u64,
    mask: u64,
}

impl Noted {
    fn is_plain(self) -> bool {
        self.flags & ON_STACK == 0
    }

    /// The flags that the kernel is to know. Only faults need the signal stack for plain handlers. On that stack there
    /// is room for one frame of each signal, so the kernel blocks it until the handler begins ([`Noted::opened`]).
    fn kernels_flags(self) -> u64 {
        let flags = if ours::takes_faults() { self.flags | ON_STACK } else { self.flags };
        if flags & ON_STACK != 0 { flags & !OPEN } else { flags }
    }

    /// The signal of this handler as a mask, if only the kernel blocks it.
    fn opened(self, signal: c_int) -> u64 {
        if self.flags & !self.kernels_flags() & OPEN != 0 { 1 << (signal - 1) & !self.mask } else { 0 }
    }
}

/// What the kernel is to know of an action of the program's: a handler of its own begins here.
pub fn instead_of(signal: c_int, action: KernelAction) -> KernelAction {
    let is_special = [libc::SIG_DFL, libc::SIG_IGN, enter as *const () as usize].contains(&action.handler);
    if !vforked::is_child() && (1..NR_SIGNALS as c_int).contains(&signal) {
        guard::note_handler(signal, ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.handler));
    }
    if is_special || vforked::is_child() || signal as usize >= NR_SIGNALS {
        return KernelAction { mask: action.mask & !ours::ours_mask(), ..action };
    }
    note(signal, Noted { handler: action.handler, flags: action.flags, mask: action.mask });
    KernelAction { restorer: action.restorer, ..kernels(noted(signal)) }
}

/// Notes what the program has set. Or puts back what was noted, if the kernel has refused that.
pub fn note(signal: c_int, noted: Noted) {
    if let Some(place) = HANDLERS.get(signal as usize).filter(|_| !vforked::is_child()) {
        place.store(noted.handler, Ordering::SeqCst);
        FLAGS[signal as usize].store(noted.flags, Ordering::SeqCst);
        MASKS[signal as usize].store(noted.mask, Ordering::SeqCst);
        guard::note_handler(signal, ![libc::SIG_DFL, libc::SIG_IGN].contains(&noted.handler));
    }
}

/// Has the handler of a signal that was set without this library, if there is one, begin here.
pub fn begin_here(signal: c_int) {
    let mut action = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: the kernel fills in the local, and reads it.
    unsafe {
        let result = own!(libc::SYS_rt_sigaction, signal, 0usize, &raw mut action, 8);
        if result == 0 && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.handler) {
            action = instead_of(signal, action);
            own!(libc::SYS_rt_sigaction, signal, &raw const action, 0usize, 8);
        }
    }
}

/// What the kernel is to know of a noted action.
fn kernels(noted: Noted) -> KernelAction {
    let mask = noted.mask & !ours::ours_mask();
    let restorer = net::restorer();
    KernelAction { handler: enter as *const () as usize, flags: noted.kernels_flags(), restorer, mask }
}

/// What the program has set, if its handler begins here, or is for a signal of [`ours`].
pub fn noted(signal: c_int) -> Noted {
    if ours::is_ours(signal) {
        let action = if signal == libc::SIGSYS { sigbus::chained_syscall_action() } else { sigbus::chained_action() };
        // SAFETY: the kernel's part of the set, in which any bits are valid.
        let mask = unsafe { *(&raw const action.sa_mask).cast::<u64>() };
        return Noted { handler: action.sa_sigaction, flags: action.sa_flags as u32 as u64, mask };
    }
    let Some(handler) = HANDLERS.get(signal as usize) else { return Noted { handler: 0, flags: 0, mask: 0 } };
    let [flags, mask] = [&FLAGS, &MASKS].map(|of| of[signal as usize].load(Ordering::SeqCst));
    Noted { handler: handler.load(Ordering::SeqCst), flags, mask }
}

/// The program's action where the kernel knows this one, and `noted` was noted then.
pub fn told(known: KernelAction, noted: Noted) -> KernelAction {
    let (added, left_out) = (if noted.is_plain() { ON_STACK } else { 0 }, noted.flags & OPEN);
    if known.handler != enter as *const () as usize {
        // The kernel has reset it (SA_RESETHAND), but for its flags.
        let is_reset = noted.flags & libc::SA_RESETHAND as u64 != 0
            && known.handler == libc::SIG_DFL
            && (known.flags ^ kernels(noted).flags) & !ours::RESTORES == 0;
        return if is_reset { KernelAction { flags: known.flags & !added | left_out, ..known } } else { known };
    }
    let mask = known.mask | noted.mask & ours::ours_mask();
    KernelAction { handler: noted.handler, flags: known.flags & !added | left_out, mask, ..known }
}

/// Where to go on, and where the frame lies now; zero: where it was.
#[repr(C)]
struct Landing {
    frame: usize,
    handler: usize,
}

/// Prepares the handler. If its frame is moved, the thread's own FS base is set until [`reopen`].
extern "C" fn land(signal: c_int, frame: usize, context: &mut ucontext_t, about: *const siginfo_t) -> Landing {
    // SAFETY: the kernel's own context.
    let theirs = unsafe {
        sigbus::permit_unaligned(context);
        fs_base::return_to_own(&context.uc_stack)
    };
    let landing = landed(signal, frame, context, about);
    if let Some(base) = theirs {
        if landing.frame == 0 {
            // SAFETY: what this has found.
            unsafe { fs_base::set(base) };
        } else {
            OTHER_BASE.set((true, base));
        }
    }
    landing
}

/// Copies the frame to the stack on which the handler is to run.
#[inline(never)] // it looks for what is thread-local
fn landed(signal: c_int, frame: usize, context: &mut ucontext_t, about: *const siginfo_t) -> Landing {
    let noted = noted(signal);
    if caught::is_in(context) {
        let about = (noted.flags & libc::SA_SIGINFO as u64 != 0).then_some(about);
        // SAFETY: the kernel's own. It describes the signal if the program wants it.
        if unsafe { caught::defer(signal, about, context) } {
            // The program's own way to return may be a call that is caught again.
            // SAFETY: the kernel's frame, which begins with the return address.
            unsafe { (frame as *mut usize).write(net::restorer()) };
            return Landing { frame: 0, handler: back() };
        }
        caught::forget();
    }
    // SAFETY: the kernel's frame, which this handler alone uses.
    let opened = unsafe { noted.opened(signal) | open_below(context) & !noted.mask };
    // SAFETY: as above.
    let moved = unsafe { settled_blocked(frame, context, (opened, noted)) };
    if moved.is_none() {
        // SAFETY: as above.
        unsafe { begin(frame, context, leave_in_place()) };
        if opened != 0 {
            // SAFETY: the kernel reads a set of 8 bytes.
            unsafe { own!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const opened, 0usize, 8) };
        }
    }
    Landing { frame: moved.unwrap_or(0), handler: noted.handler }
}

/// Has the handler of a frame return to `leaves`, and find in its context the signals that the program blocks in name
/// and the signal stack that it has set.
///
/// # Safety
/// As [`moved`]. The context is the frame's.
unsafe fn begin(frame: usize, context: *mut ucontext_t, leaves: usize) {
    // SAFETY: the caller upholds this function's own contract. A frame begins with the return address.
    unsafe {
        (frame as *mut usize).write(leaves);
        *(&raw mut (*context).uc_sigmask).cast::<u64>() |= held_signals::blocked() & ours::ours_mask();
        (*context).uc_stack = signal_stack::in_context((*context).uc_stack);
    }
}

/// Takes what the program blocks in name, and its signal stack, from the context to which a handler returns.
///
/// # Safety
/// The context is in a frame whose handler has ended.
pub unsafe fn take_context(context: *mut ucontext_t) {
    let ours = ours::ours_mask();
    // SAFETY: the caller's promise. The kernel's set has 8 bytes.
    unsafe {
        (*context).uc_stack = signal_stack::returned_to((*context).uc_stack, context as usize);
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        held_signals::change(libc::SIG_SETMASK, Some(*mask), ours);
        *mask &= !ours;
    }
}

/// Sets the program's action for a signal again that is sent again, if the action has ended with it.
pub fn set_ended(signal: c_int) {
    let noted = noted(signal);
    if noted.flags & libc::SA_RESETHAND as u64 != 0 {
        let mut action = kernels(noted);
        action.flags |= ours::RESTORES;
        // SAFETY: the kernel reads the local.
        unsafe { own!(libc::SYS_rt_sigaction, signal, &raw const action, 0usize, 8) };
    }
}

/// As [`land`] for a signal that was kept until here, or is one of [`ours`]. The frame is that of the handler of SIGSYS
/// or SIGBUS, and all other signals are blocked.
extern "C" fn land_kept(signal: c_int, frame: usize, context: &mut ucontext_t, _about: *const siginfo_t) -> Landing {
    let noted = noted(signal);
    if ours::is_ours(signal) {
        if [libc::SIG_DFL, libc::SIG_IGN].contains(&noted.handler) {
            return Landing { frame: 0, handler: back() }; // another thread has just set it
        }
        sigbus::end_once_of(signal);
    }
    let itself = if noted.flags & OPEN != 0 { 0 } else { 1 << (signal - 1) };
    BLOCKED.set((true, (kernels_mask(context) | noted.mask | itself) & !ours::ours_mask()));
    // SAFETY: the kernel's frame, which nobody else uses.
    let moved = unsafe { settled(frame, context, noted) };
    if moved.is_none() {
        // SAFETY: as above.
        unsafe { begin(frame, context, leave_in_place()) };
        reopen();
    }
    Landing { frame: moved.unwrap_or(0), handler: noted.handler }
}

/// Whether a handler is to run on the stack of what was interrupted: also if it wants the signal stack, and the program
/// has set none.
fn is_plain_here(noted: Noted, frame: usize) -> bool {
    noted.is_plain() || signal_stack::is_on_own(frame) && signal_stack::stands_for().is_none()
}

/// Settles the frame of a handler, and blocks all signals for [`reopen`] if it is moved.
///
/// # Safety
/// As [`moved`].
unsafe fn settled_blocked(frame: usize, context: &mut ucontext_t, (opened, noted): (u64, Noted)) -> Option<usize> {
    let is_first = !has_not_begun(context);
    let is_wanted = match is_plain_here(noted, frame) {
        true => is_to_move(frame, context),
        false => !is_first || signal_stack::stands_for_run_on().is_some() && !signal_stack::is_on_own(pointer(context)),
    };
    if !is_wanted {
        return None;
    }
    let (all, mut before) = (!ours::ours_mask(), 0u64);
    // SAFETY: the kernel reads a set of 8 bytes and writes another.
    unsafe { own!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const all, &raw mut before, 8) };
    BLOCKED.set((true, before & !opened));
    // SAFETY: the caller upholds this function's own contract.
    let moved = unsafe { settled(frame, context, noted) };
    if moved.is_none() {
        BLOCKED.set((true, before));
        reopen();
    }
    moved
}

/// Moves the frame of a handler, after those on top of which it was made and whose handlers have not begun.
///
/// # Safety
/// As [`moved`].
unsafe fn settled(frame: usize, context: &mut ucontext_t, noted: Noted) -> Option<usize> {
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        if has_not_begun(context) && signal_stack::is_on(&context.uc_stack, pointer(context)) {
            settle_below(context)?;
        }
        if !is_plain_here(noted, frame) {
            return moved(frame, context);
        }
        if is_to_move(frame, context) { moved_plain(frame, context) } else { None }
    }
}

/// The same for the handler that was interrupted before it began, which goes on with its frame at the new place.
/// `None`: it stays here.
///
/// # Safety
/// As [`moved`]. What was interrupted is such a handler.
unsafe fn settle_below(context: &mut ucontext_t) -> Option<()> {
    let below = pointer(context);
    let (signal, of_below) = arguments(context);
    let noted = noted(signal);
    // SAFETY: the frame and the context of a handler that has not begun.
    let new = unsafe { settled(below, &mut *of_below, noted)? };
    let registers = &mut context.uc_mcontext.gregs;
    for register in [libc::REG_RSP, libc::REG_RSI, libc::REG_RDX] {
        registers[register as usize] += new.wrapping_sub(below) as i64;
    }
    registers[libc::REG_RIP as usize] = noted.handler as i64;
    Some(())
}

/// Opens in a context the signals that only the kernel blocks, as the handlers on top of which it was made have not
/// begun, and disarms the signal stack for them. Returns these signals.
///
/// # Safety
/// As [`moved`].
unsafe fn open_below(context: &mut ucontext_t) -> u64 {
    if !has_not_begun(context) {
        return 0;
    }
    let (signal, of_below) = arguments(context);
    let noted = noted(signal);
    // SAFETY: the context of a handler that has not begun.
    unsafe {
        let opened = noted.opened(signal) | open_below(&mut *of_below) & !noted.mask;
        *(&raw mut context.uc_sigmask).cast::<u64>() &= !opened;
        if !signal_stack::is_on(&(*of_below).uc_stack, pointer(context)) {
            (*of_below).uc_stack = signal_stack::in_context((*of_below).uc_stack);
        }
        opened
    }
}

/// The signal and the context that a handler which has not begun gets.
fn arguments(context: &ucontext_t) -> (c_int, *mut ucontext_t) {
    let registers = &context.uc_mcontext.gregs;
    (registers[libc::REG_RDI as usize] as c_int, registers[libc::REG_RDX as usize] as *mut ucontext_t)
}

/// Whether the kernel has made the frame of a plain handler on the signal stack only because it was told to.
fn is_to_move(frame: usize, context: &ucontext_t) -> bool {
    let stack = &context.uc_stack;
    signal_stack::is_on(stack, frame) && (!signal_stack::is_on(stack, pointer(context)) || has_not_begun(context))
}

/// The signals that a context blocks.
fn kernels_mask(context: &ucontext_t) -> u64 {
    // SAFETY: the kernel's set has 8 bytes.
    unsafe { *(&raw const context.uc_sigmask).cast::<u64>() }
}

fn pointer(context: &ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize
}

/// Whether what was interrupted is a handler at its beginning here.
fn has_not_begun(context: &ucontext_t) -> bool {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize == enter as *const () as usize
}

/// Moves the frame of a plain handler to where the kernel would have put it.
///
/// # Safety
/// As [`moved`].
unsafe fn moved_plain(frame: usize, context: &ucontext_t) -> Option<usize> {
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        let new = copied(frame, context, pointer(context).checked_sub(RED_ZONE_BYTES)?, 0)?;
        let copy = (new + (&raw const *context as usize - frame)) as *mut ucontext_t;
        begin(new, copy, leave());
        Some(new)
    }
}

/// Ends what [`settled_blocked`] began, once the stack pointer is on the program's stack.
extern "C" fn reopen() {
    let theirs = OTHER_BASE.replace((false, 0));
    if let (true, before) = BLOCKED.replace((false, 0)) {
        // SAFETY: the kernel reads a set of 8 bytes.
        unsafe { own!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0usize, 8) };
    }
    if let (true, base) = theirs {
        // SAFETY: `land` has found it.
        unsafe { fs_base::set(base) };
    }
}

/// Moves the frame of a handler that wants the signal stack, if it is to run on the program's.
///
/// # Safety
/// The kernel has just made the frame, and its handler has not begun.
unsafe fn moved(frame: usize, context: &ucontext_t) -> Option<usize> {
    let theirs = signal_stack::stands_for_run_on()?;
    let interrupted = pointer(context);
    // A fault, or a call that is being made: what was interrupted has this library's stack.
    if signal_stack::is_on_own(interrupted) {
        return None;
    }
    let (bottom, disarms) = (theirs.ss_sp as usize, signal_stack::disarms(&theirs));
    let top = match signal_stack::is_on(&theirs, interrupted) && !disarms {
        true => interrupted - RED_ZONE_BYTES,
        false => bottom + theirs.ss_size,
    };
    // SAFETY: the caller upholds this function's own contract. The stack is the program's.
    unsafe {
        let new = copied(frame, context, top, bottom)?;
        let copy = (new + (&raw const *context as usize - frame)) as *mut ucontext_t;
        begin(new, copy, leave());
        Some(new)
    }
}

// Handlers return here, with the stack pointer behind the return address in their frame: moved frames, which may have
// left RAM again, to `folioswap_leave`, all others to `folioswap_leave_in_place`. Those who unwind the
// stack find the interrupted registers in the frame, as in that of the C library's function for this, and look for the
// instruction before this. Registers need not be kept.
std::arch::global_asm!(
    ".pushsection .text",
    ".balign 16",
    ".cfi_startproc",
    ".cfi_signal_frame",
    ".cfi_escape 0x0f, 4, 0x77, 0xa0, 1, 6", // the stack pointer
    ".cfi_escape 0x10, 8, 2, 0x77, 40",      // r8 and the others, to r15
    ".cfi_escape 0x10, 9, 2, 0x77, 48",
    ".cfi_escape 0x10, 10, 2, 0x77, 56",
    ".cfi_escape 0x10, 11, 3, 0x77, 0xc0, 0",
    ".cfi_escape 0x10, 12, 3, 0x77, 0xc8, 0",
    ".cfi_escape 0x10, 13, 3, 0x77, 0xd0, 0",
    ".cfi_escape 0x10, 14, 3, 0x77, 0xd8, 0",
    ".cfi_escape 0x10, 15, 3, 0x77, 0xe0, 0",
    ".cfi_escape 0x10, 5, 3, 0x77, 0xe8, 0", // rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip
    ".cfi_escape 0x10, 4, 3, 0x77, 0xf0, 0",
    ".cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0",
    ".cfi_escape 0x10, 3, 3, 0x77, 0x80, 1",
    ".cfi_escape 0x10, 1, 3, 0x77, 0x88, 1",
    ".cfi_escape 0x10, 0, 3, 0x77, 0x90, 1",
    ".cfi_escape 0x10, 2, 3, 0x77, 0x98, 1",
    ".cfi_escape 0x10, 7, 3, 0x77, 0xa0, 1",
    ".cfi_escape 0x10, 16, 3, 0x77, 0xa8, 1",
    "nop",
    ".hidden folioswap_leave_in_place",
    ".globl folioswap_leave_in_place",
    "folioswap_leave_in_place:",
    "xor esi, esi",
    "jmp 3f",
    ".hidden folioswap_leave",
    ".globl folioswap_leave",
    "folioswap_leave:",
    "mov esi, 1",
    "3: lea rdi, [rsp - 8]",
    "and rsp, -16",
    "call {taken_off}",
    "lea rsp, [rax + 8]",
    "mov eax, 15", // rt_sigreturn
    "test rdx, rdx",
    "jz 2f",
    "jmp rdx",
    "2: syscall",
    ".cfi_endproc",
    ".hidden folioswap_back",
    ".globl folioswap_back",
    "folioswap_back: ret",
    ".popsection",
    taken_off = sym taken_off,
);

fn leave_in_place() -> usize {
    unsafe extern "C" {
        static folioswap_leave_in_place: u8;
    }
    &raw const folioswap_leave_in_place as usize
}

fn leave() -> usize {
    unsafe extern "C" {
        static folioswap_leave: u8;
    }
    &raw const folioswap_leave as usize
}

/// Where a handler would return to its caller.
fn back() -> usize {
    unsafe extern "C" {
        static folioswap_back: u8;
    }
    &raw const folioswap_back as usize
}

/// Ends the frame of a handler that returns, with the thread's own FS base.
extern "C" fn taken_off(frame: usize, was_moved: bool) -> Landing {
    // The stack in the frame may be another thread's: the handler has begun there.
    let stack = fs_base::has_others().then(signal_stack::current_without_tls).flatten();
    // SAFETY: the calling thread's stack.
    let theirs = stack.and_then(|stack| unsafe { fs_base::return_to_own(&stack) });
    let landing = taken(frame, was_moved);
    if let Some(base) = theirs {
        // SAFETY: what this has found.
        unsafe { fs_base::set(base) };
    }
    landing
}

/// Ends such a frame. Returns its place, and the C library's function that returns from there.
///
/// One that `was_moved` is copied to the bottom of this library's stack, with all signals blocked until the kernel has
/// restored what was blocked.
#[inline(never)] // it looks for what is thread-local
fn taken(frame: usize, was_moved: bool) -> Landing {
    let context = (frame + size_of::<usize>()) as *mut ucontext_t;
    if was_moved {
        ours::block_others(); // this is the program's stack, on which the kernel would not find a variable
    }
    // SAFETY: the context is in the frame.
    unsafe { take_context(context) };
    if !was_moved {
        return Landing { frame, handler: net::restorer() };
    }
    // SAFETY: the frame that `copied` has made. Reading it faults it in. Nothing else uses the bottom of that stack.
    let taken = unsafe {
        signal_stack::own_signal_stack().and_then(|own| {
            let bottom = own.ss_sp as usize;
            copied(frame, &*context, bottom + own.ss_size / 2, bottom)
        })
    };
    Landing { frame: taken.unwrap_or(frame), handler: net::restorer() }
}

/// Copies a frame to below `top`: the return address, the context, the description of the signal, and the state of the
/// FPU behind them.
///
/// # Safety
/// As [`moved`]. From `bottom` to `top` there is a stack of the program's that is not in use.
unsafe fn copied(frame: usize, context: &ucontext_t, top: usize, bottom: usize) -> Option<usize> {
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

macro_rules! enter {
    ($(#[$attribute:meta])* $name:ident: $land:ident) => {
        $(#[$attribute])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(_signal: c_int, _about: *mut siginfo_t, _context: *mut c_void) {
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "mov rcx, rsi",
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
                "push rdi",
                "push rsi",
                "push rdx",
                "push r11",
                "sub rsp, 8",
                "call {reopen}",
                "add rsp, 8",
                "pop r11",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "2:",
                "jmp r11",
                land = sym $land,
                reopen = sym reopen,
            )
        }
    };
}

enter! {
    /// What the kernel calls. The frame begins with the return address, at the stack pointer.
    enter: land
}

enter! {
    /// The same for a signal that was kept until a caught call was made ([`caught`]).
    enter_kept: land_kept
}

/// The handler of SIGBUS. What is not a fault of the engine's is for the program's handler.
#[unsafe(naked)]
pub unsafe extern "C" fn on_bus(_signal: c_int, _about: *mut siginfo_t, _context: *mut c_void) {
    std::arch::naked_asm!(
        "sub rsp, 8",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "call {fault}",
        "add rsp, 8",
        "test al, al",
        "jnz 2f",
        "ret",
        "2: mov edi, {bus}",
        "lea rsi, [rsp + {described_at}]",
        "lea rdx, [rsp + 8]",
        "jmp {enter_kept}",
        fault = sym fault,
        bus = const libc::SIGBUS,
        described_at = const caught::DESCRIBED_AT,
        enter_kept = sym enter_kept,
    )
}

/// Returns whether the program's handler is to run, with the thread's own FS base until [`reopen`].
unsafe extern "C" fn fault(about: *mut siginfo_t, context: *mut ucontext_t) -> bool {
    // SAFETY: the kernel gives these to its handler.
    unsafe {
        sigbus::permit_unaligned(context);
        let theirs = fs_base::return_to_own(&(*context).uc_stack);
        let runs = sigbus::fault(about, context.cast());
        if runs {
            block_others();
        }
        match theirs {
            Some(base) if runs => note_base(base),
            Some(base) => fs_base::set(base),
            None => {}
        }
        runs
    }
}

/// Blocks what [`sigbus::block_others`] does, by a call of this library's own: a filter of the program's may trap it,
/// and the handler of that would do the same again.
pub fn block_others() {
    let _guard = guard::enter_blocked();
    state::keeping_errno(sigbus::block_others);
}

/// Has [`reopen`] set another FS base again.
#[inline(never)] // it looks for what is thread-local
pub extern "C" fn note_base(base: usize) {
    OTHER_BASE.set((true, base));
}
