//! Signals during a caught call. `calls::dispatch` makes it in the handler of SIGSYS. A handler of the
//! program's that interrupted it there would run on top of it, on the signal stack, with a context not the program's.
//!
//! So such a signal is *deferred*: kept, with all signals blocked until the handler of SIGSYS returns. That makes its
//! own frame the signal's then: the program's own code is interrupted, behind its call, as by the kernel, and before
//! any signal that was queued later. A call that sleeps has failed with EINTR then. One that the kernel restarts, or
//! that has not begun, is *refused*: the program makes it again after its handler. Where it cannot be kept, the signal
//! is sent again instead, behind those that are queued.
//!
//! Calls that set a mask while they wait are left out: that mask decides which handlers run. So are those that execute
//! a program, which gets the mask.

use std::ffi::{c_int, c_long};
use std::mem::offset_of;
use std::sync::atomic::{Ordering, compiler_fence};

use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{fs_base, own_calls, sigbus, static_tls, vforked};
use libc::ucontext_t;

use crate::faults::{net, signal_stack, small_stack};
use crate::ground::real::own;
use crate::ground::{guard, libc_call, state};
use crate::memory::access;

static_tls! {
    /// Where the context of the caught call lies that is being made. Zero: signals are not deferred.
    static CAUGHT: usize = "folioswap_caught";
}

static_tls! {
    /// The FS base that the program has set, if it is another than the thread's own, else zero.
    static OTHER_BASE: usize = "folioswap_caught_base";
}

static_tls! {
    /// The number plus one of a caught call that may sleep.
    static SLEEPS: u64 = "folioswap_sleeps";
}

static_tls! {
    /// The deferred signal that is kept; zero: none.
    static KEPT: u64 = "folioswap_kept_signal";
}

// What the kernel tells about it. The rest of a description is zeros.
static_tls! {
    static ABOUT: [u64; 6] = "folioswap_about_kept_signal";
}

/// A description of a signal, in words.
type Words = [u64; size_of::<libc::siginfo_t>() / size_of::<u64>()];

/// Where the description of a signal is in a frame: behind the return address, and a context with the kernel's set of
/// signals.
pub const DESCRIBED_AT: usize = size_of::<usize>() + offset_of!(ucontext_t, uc_sigmask) + size_of::<u64>();

/// A stack pointer this far below the context is the caught call's, or that of a handler on top of it.
const DEEPEST_BYTES: usize = signal_stack::SIGNAL_BYTES;
/// What the C library's return from a handler takes up to its call.
const RETURN_BYTES: usize = 8;

// The handler of SIGSYS notes its context in `CAUGHT`, and the base that it has found in `OTHER_BASE`. Before, where
// the program has set another FS base, it sets the thread's own (`folioswap_sys::fs_base`), from here, as a signal that
// comes must find the instruction pointer here. Where it has not, the frame becomes that of a deferred signal at last,
// if there is one, and no other caught call is being made. What is for the program's handler of SIGSYS goes on there.
std::arch::global_asm!(
    ".pushsection .text",
    ".balign 16",
    ".hidden folioswap_on_call",
    ".globl folioswap_on_call",
    ".hidden folioswap_on_call_end",
    ".globl folioswap_on_call_end",
    "folioswap_on_call:",
    ".cfi_startproc",
    "xor r10d, r10d",
    "mov r8, qword ptr [rip + {stack_bytes}]",
    "test r8, r8",
    "jz 2f",
    "cmp r8, qword ptr [rdx + {stack_len}]",
    "jne 2f",
    "mov r8, qword ptr [rdx + {stack}]",
    "movabs r9, {mark}",
    "cmp r9, qword ptr [r8]",
    "jne 2f",
    "mov r8, qword ptr [r8 + 8]",
    "rdfsbase r9",
    "cmp r8, r9",
    "je 2f",
    "mov byte ptr [rip + {has_others}], 1",
    "wrfsbase r8",
    "mov r10, r9",
    "push r9",
    ".cfi_adjust_cfa_offset 8",
    "call 3f",
    "test ecx, ecx",
    "jnz 6f",
    "pop r9",
    ".cfi_adjust_cfa_offset -8",
    "wrfsbase r9",
    "ret",
    "2: sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call 3f",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "test ecx, ecx",
    "jnz 7f",
    ".hidden folioswap_on_call_last",
    ".globl folioswap_on_call_last",
    "folioswap_on_call_last:",
    "mov rax, qword ptr [rip + folioswap_kept_signal@GOTTPOFF]",
    "cmp qword ptr fs:[rax], 0",
    "jne 4f",
    "ret",
    ".hidden folioswap_on_call_looked",
    ".globl folioswap_on_call_looked",
    "folioswap_on_call_looked:",
    ".cfi_adjust_cfa_offset 16",
    "3: mov rax, qword ptr [rip + folioswap_caught_base@GOTTPOFF]",
    "push qword ptr fs:[rax]",
    ".cfi_adjust_cfa_offset 8",
    "mov qword ptr fs:[rax], r10",
    "mov rax, qword ptr [rip + folioswap_caught@GOTTPOFF]",
    "push qword ptr fs:[rax]",
    ".cfi_adjust_cfa_offset 8",
    "mov qword ptr fs:[rax], rdx",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {entry}",
    "movzx ecx, al",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "mov rax, qword ptr [rip + folioswap_caught@GOTTPOFF]",
    "pop qword ptr fs:[rax]",
    ".cfi_adjust_cfa_offset -8",
    "mov rax, qword ptr [rip + folioswap_caught_base@GOTTPOFF]",
    "pop qword ptr fs:[rax]",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    "folioswap_on_call_end:",
    ".cfi_adjust_cfa_offset -16",
    "4: mov rax, qword ptr [rip + folioswap_caught@GOTTPOFF]",
    "cmp qword ptr fs:[rax], 0",
    "jne 5f",
    "mov rdi, rsp",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {take_kept}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "test eax, eax",
    "jz 5f",
    "mov edi, eax",
    "lea rsi, [rsp + {described_at}]",
    "lea rdx, [rsp + 8]",
    "jmp {enter_kept}",
    "5: ret",
    ".cfi_adjust_cfa_offset 8",
    "6: mov rdi, qword ptr [rsp]",
    "call {note_base}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "7: mov edi, {sys}",
    "lea rsi, [rsp + {described_at}]",
    "lea rdx, [rsp + 8]",
    "jmp {enter_kept}",
    ".cfi_endproc",
    ".popsection",
    entry = sym entry,
    note_base = sym small_stack::note_base,
    sys = const libc::SIGSYS,
    has_others = sym fs_base::HAS_OTHERS,
    take_kept = sym take_kept,
    described_at = const DESCRIBED_AT,
    enter_kept = sym small_stack::enter_kept,
    stack_bytes = sym fs_base::STACK_BYTES,
    mark = const fs_base::MARK,
    stack = const offset_of!(ucontext_t, uc_stack) + offset_of!(libc::stack_t, ss_sp),
    stack_len = const offset_of!(ucontext_t, uc_stack) + offset_of!(libc::stack_t, ss_size),
);

unsafe extern "C" {
    /// The handler of SIGSYS.
    pub fn folioswap_on_call(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void);
    /// Where it looks for a kept signal, and the end of that.
    static folioswap_on_call_last: u8;
    static folioswap_on_call_looked: u8;
    static folioswap_on_call_end: u8;
}

/// Returns whether the program's handler of SIGSYS is to run.
unsafe extern "C" fn entry(_signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) -> bool {
    // SAFETY: the kernel gives these to its handler.
    let runs = unsafe { sigbus::syscall_entry(info, context) };
    if runs {
        small_stack::block_others();
    }
    runs
}

/// The FS base of the program at a caught call, if that is not the thread's own.
pub fn other_base() -> Option<usize> {
    Some(OTHER_BASE.get()).filter(|&base| base != 0)
}

/// The result of a call that a signal has ended, or kept from being made.
pub const INTERRUPTED: isize = -(libc::EINTR as isize);

/// Makes a caught call. Returns its result, and whether the program is to make it again if that is [`INTERRUPTED`].
pub fn during(number: c_long, words: &[usize; 6], call: impl FnOnce() -> Option<isize>) -> (Option<isize>, bool) {
    if keeps_mask(number, words) || !libc_call::has_instruction() {
        CAUGHT.set(0);
    }
    SLEEPS.set(if sleeps(number) { number as u64 + 1 } else { 0 });
    compiler_fence(Ordering::SeqCst);
    // A signal that came before this is handled first.
    let result = if libc_call::is_deferred() {
        libc_call::note_refused();
        Some(INTERRUPTED)
    } else {
        call()
    };
    SLEEPS.set(0);
    compiler_fence(Ordering::SeqCst);
    if other_base().is_some() {
        let (signal, about) = kept(); // from before the other base was noted
        if signal != 0 {
            send_again(signal, &about);
        }
    }
    (result, libc_call::end_refusal())
}

/// From here on, code of the program's runs: signals are not deferred.
pub fn forget() {
    CAUGHT.set(0);
    SLEEPS.set(0);
    libc_call::end_refusal();
    let (signal, about) = kept();
    if signal != 0 {
        send_again(signal, &about);
    }
}

/// In a forked child: the signal is its parent's.
pub fn begin_child() {
    KEPT.set(0);
}

/// Takes the signal that is kept, and what is known about it. Zero: none.
fn kept() -> (c_int, Words) {
    let mut about = Words::default();
    about[..6].copy_from_slice(&ABOUT.get());
    (KEPT.replace(0) as c_int, about)
}

fn keep(signal: c_int, &[a, b, c, d, e, f, ..]: &Words) {
    ABOUT.set([a, b, c, d, e, f]);
    KEPT.set(signal as u64);
}

/// Sends a deferred signal again. An action of the program's that has ended with it is set again.
fn send_again(signal: c_int, about: &Words) -> bool {
    small_stack::set_ended(signal);
    let kept = state::errno();
    // SAFETY: the kernel reads the description of the signal.
    let sent = unsafe {
        let process = own!(libc::SYS_getpid);
        own!(libc::SYS_rt_tgsigqueueinfo, process, guard::this_thread(), signal, about.as_ptr()) == 0
    };
    state::fail(kept);
    sent
}

/// Makes a frame that of the kept signal. Returns the signal; zero: the call that was made has blocked it, or has set
/// another signal stack than the one with this frame. All signals are blocked.
extern "C" fn take_kept(frame: usize) -> c_int {
    let (signal, about) = kept();
    // SAFETY: the kernel's frame: the return address, the context, and room for the description.
    unsafe {
        let context = (frame + size_of::<usize>()) as *const ucontext_t;
        let blocked = *(&raw const (*context).uc_sigmask).cast::<u64>();
        if blocked >> (signal - 1) & 1 != 0 || !signal_stack::is_on(&(*context).uc_stack, frame) {
            send_again(signal, &about);
            return 0;
        }
        ((frame + DESCRIBED_AT) as *mut Words).write_unaligned(about);
    }
    signal
}

fn places(context: &ucontext_t) -> [usize; 2] {
    [libc::REG_RIP, libc::REG_RSP].map(|register| context.uc_mcontext.gregs[register as usize] as usize)
}

/// Whether a signal has interrupted a caught call, from the first instruction of the handler of SIGSYS to the last.
pub fn is_in(context: &ucontext_t) -> bool {
    let [at, pointer] = places(context);
    let entry = folioswap_on_call as *const () as usize..&raw const folioswap_on_call_end as usize;
    let returns = net::restorer();
    let is_within = CAUGHT.get() != 0 && CAUGHT.get().wrapping_sub(pointer) < DEEPEST_BYTES;
    let is_returning =
        (returns..returns + RETURN_BYTES).contains(&at) && signal_stack::is_on(&context.uc_stack, pointer);
    is_within || entry.contains(&at) || is_returning
}

/// Has the handler of SIGSYS look for a kept signal once more, if it, or another handler on its stack, has done so and
/// only returns.
fn look_again(context: &mut ucontext_t) {
    let [at, pointer] = places(context);
    let looks = &raw const folioswap_on_call_last as usize..&raw const folioswap_on_call_looked as usize;
    let returns = net::restorer();
    let registers = &mut context.uc_mcontext.gregs;
    if (returns..returns + RETURN_BYTES).contains(&at) {
        // SAFETY: the return address of the frame, which the handler has taken from there.
        unsafe { ((pointer - size_of::<usize>()) as *mut usize).write(returns) };
        registers[libc::REG_RSP as usize] -= size_of::<usize>() as i64;
    } else if !looks.contains(&at) {
        return;
    }
    registers[libc::REG_RIP as usize] = looks.start as i64;
}

/// Defers a signal that has interrupted a caught call. Returns whether that was possible: not where the program's
/// filters may forbid it, nor for a signal that the processor raises.
///
/// # Safety
/// `about` and `context` are the signal's.
pub unsafe fn defer(signal: c_int, about: Option<*const libc::siginfo_t>, context: &mut ucontext_t) -> bool {
    let raised = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
    if raised.contains(&signal) || own_calls::is_used() {
        return false;
    }
    let all = guard::BLOCKED;
    let mut before = 0u64;
    let mut words = Words::default(); // the signal, and how it was sent: by tkill
    words[..2].copy_from_slice(&[signal as u64, u64::from(libc::SI_TKILL as u32)]);
    // SAFETY: the kernel reads and fills in locals. The description is the kernel's.
    unsafe {
        own!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const all, &raw mut before, 8);
        if let Some(about) = about {
            words = about.cast::<Words>().read();
        }
    }
    // With another FS base, and in a child that shares the memory, nobody would look for it here.
    if KEPT.get() == 0 && !fs_base::has_others() && !vforked::is_child() {
        keep(signal, &words);
        look_again(context);
    } else if !send_again(signal, &words) {
        // SAFETY: the kernel reads the local.
        unsafe { own!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0usize, 8) };
        return false;
    }
    // SAFETY: the kernel's set has 8 bytes.
    unsafe { *(&raw mut context.uc_sigmask).cast::<u64>() |= all };
    libc_call::refuse_next(SLEEPS.get(), context);
    true
}

/// Whether a call is made with the mask as it is: one that sets another while it waits, that executes a program, or
/// that does not come back to a child whose parent has these thread-local variables.
fn keeps_mask(number: c_long, words: &[usize; 6]) -> bool {
    const EXTENDED: usize = 8; // IORING_ENTER_EXT_ARG
    // SAFETY: if it can be read, it is the call's description, which begins with the address of the set.
    let named = |at: usize| at != 0 && unsafe { access::read(at as *const usize) } != Some(0);
    match number {
        libc::SYS_rt_sigsuspend | libc::SYS_execve | libc::SYS_execveat => true,
        libc::SYS_exit | libc::SYS_exit_group => vforked::is_child(),
        libc::SYS_ppoll => words[3] != 0,
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => words[4] != 0,
        libc::SYS_pselect6 | SYS_IO_PGETEVENTS => named(words[5]),
        libc::SYS_io_uring_enter if words[3] & EXTENDED != 0 => named(words[4]),
        libc::SYS_io_uring_enter => words[4] != 0,
        _ => false,
    }
}

/// Linux 4.18.
pub const SYS_IO_PGETEVENTS: c_long = 333;

/// Linux 6.7.
const SYS_FUTEX_WAIT: c_long = 455;

/// Whether a call may fail with EINTR.
#[allow(non_upper_case_globals)] // names of the libc crate
fn sleeps(number: c_long) -> bool {
    use libc::*;
    matches!(
        number,
        SYS_read
            | SYS_write
            | SYS_readv
            | SYS_writev
            | SYS_pread64
            | SYS_pwrite64
            | SYS_preadv
            | SYS_pwritev
            | SYS_preadv2
            | SYS_pwritev2
            | SYS_recvfrom
            | SYS_sendto
            | SYS_recvmsg
            | SYS_sendmsg
            | SYS_recvmmsg
            | SYS_sendmmsg
            | SYS_accept
            | SYS_accept4
            | SYS_connect
            | SYS_sendfile
            | SYS_splice
            | SYS_tee
            | SYS_vmsplice
            | SYS_copy_file_range
            | SYS_poll
            | SYS_ppoll
            | SYS_select
            | SYS_pselect6
            | SYS_epoll_wait
            | SYS_epoll_pwait
            | SYS_epoll_pwait2
            | SYS_futex
            | SYS_futex_waitv
            | SYS_nanosleep
            | SYS_clock_nanosleep
            | SYS_wait4
            | SYS_waitid
            | SYS_pause
            | SYS_rt_sigtimedwait
            | SYS_flock
            | SYS_fcntl
            | SYS_open
            | SYS_openat
            | SYS_openat2
            | SYS_msgsnd
            | SYS_msgrcv
            | SYS_semop
            | SYS_semtimedop
            | SYS_mq_timedsend
            | SYS_mq_timedreceive
            | SYS_io_getevents
            | SYS_IO_PGETEVENTS
            | SYS_FUTEX_WAIT
            | SYS_io_uring_enter
            | SYS_ioctl
            | SYS_getrandom
    )
}
