//! Signals during a caught call. `calls::dispatch` makes it in the handler of SIGSYS. A handler of the
//! program's that interrupted it there would run on top of it, on the signal stack, with a context not the program's.
//!
//! So such a signal is *deferred*: sent again, with all signals blocked until the handler of SIGSYS returns. Then the
//! program's own code is interrupted, behind its call, as by the kernel. A call that sleeps has failed with EINTR then.
//! One that the kernel restarts, or that has not begun, is *refused*: the program makes it again after its handler.
//!
//! Calls that set a mask while they wait are left out: that mask decides which handlers run. So are those that execute
//! a program, which gets the mask.

use std::ffi::{c_int, c_long};
use std::mem::offset_of;
use std::sync::atomic::{Ordering, compiler_fence};

use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{fs_base, own_calls, sigbus, static_tls};
use libc::ucontext_t;

use crate::faults::{net, signal_stack};
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

/// A stack pointer this far below the context is the caught call's, or that of a handler on top of it.
const DEEPEST_BYTES: usize = signal_stack::SIGNAL_BYTES;
/// What the C library's return from a handler takes up to its call.
const RETURN_BYTES: usize = 8;

// The handler of SIGSYS notes its context in `CAUGHT`, and the base that it has found in `OTHER_BASE`. Before, where
// the program has set another FS base, it sets the thread's own (`folioswap_sys::fs_base`), from here, as a signal that
// comes must find the instruction pointer here.
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
    "wrfsbase r8",
    "mov r10, r9",
    "push r9",
    ".cfi_adjust_cfa_offset 8",
    "call 2f",
    "pop r9",
    ".cfi_adjust_cfa_offset -8",
    "wrfsbase r9",
    "ret",
    "2: mov rax, qword ptr [rip + folioswap_caught_base@GOTTPOFF]",
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
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "mov rax, qword ptr [rip + folioswap_caught@GOTTPOFF]",
    "pop qword ptr fs:[rax]",
    ".cfi_adjust_cfa_offset -8",
    "mov rax, qword ptr [rip + folioswap_caught_base@GOTTPOFF]",
    "pop qword ptr fs:[rax]",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    "folioswap_on_call_end:",
    ".popsection",
    entry = sym sigbus::syscall_entry,
    stack_bytes = sym fs_base::STACK_BYTES,
    mark = const fs_base::MARK,
    stack = const offset_of!(ucontext_t, uc_stack) + offset_of!(libc::stack_t, ss_sp),
    stack_len = const offset_of!(ucontext_t, uc_stack) + offset_of!(libc::stack_t, ss_size),
);

unsafe extern "C" {
    /// The handler of SIGSYS.
    pub fn folioswap_on_call(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void);
    static folioswap_on_call_end: u8;
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
    (result, libc_call::end_refusal())
}

/// From here on, code of the program's runs: signals are not deferred.
pub fn forget() {
    CAUGHT.set(0);
    SLEEPS.set(0);
    libc_call::end_refusal();
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
    let mut plain = [0u64; 16]; // the signal, and how it was sent: by tkill
    plain[..2].copy_from_slice(&[signal as u64, u64::from(libc::SI_TKILL as u32)]);
    let about = about.unwrap_or(plain.as_ptr().cast());
    let kept = state::errno();
    // SAFETY: the kernel reads and fills in locals, and reads the description of the signal.
    let sent = unsafe {
        own!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const all, &raw mut before, 8);
        let process = own!(libc::SYS_getpid);
        let sent = own!(libc::SYS_rt_tgsigqueueinfo, process, guard::this_thread(), signal, about) == 0;
        if !sent {
            own!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0usize, 8);
        }
        sent
    };
    state::fail(kept);
    if sent {
        // SAFETY: the kernel's set has 8 bytes.
        unsafe { *(&raw mut context.uc_sigmask).cast::<u64>() |= all };
        libc_call::refuse_next(SLEEPS.get(), context);
    }
    sent
}

/// Whether a call is made with the mask as it is: one that sets another while it waits, or that executes a program.
fn keeps_mask(number: c_long, words: &[usize; 6]) -> bool {
    const EXTENDED: usize = 8; // IORING_ENTER_EXT_ARG
    // SAFETY: if it can be read, it is the call's description, which begins with the address of the set.
    let named = |at: usize| at != 0 && unsafe { access::read(at as *const usize) } != Some(0);
    match number {
        libc::SYS_rt_sigsuspend | libc::SYS_execve | libc::SYS_execveat => true,
        libc::SYS_ppoll => words[3] != 0,
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => words[4] != 0,
        libc::SYS_pselect6 | SYS_IO_PGETEVENTS => named(words[5]),
        libc::SYS_io_uring_enter if words[3] & EXTENDED != 0 => named(words[4]),
        libc::SYS_io_uring_enter => words[4] != 0,
        _ => false,
    }
}

/// Linux 4.18.
const SYS_IO_PGETEVENTS: c_long = 333;

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
