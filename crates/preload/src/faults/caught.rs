//! Signals during a caught call. [`dispatch`] makes it in the handler of SIGSYS. A handler of the
//! program's that interrupted it there would run on top of it, on the signal stack, with a context not the program's.
//!
//! So such a signal is *deferred*: sent again, with all signals blocked until the handler of SIGSYS returns. Then the
//! program's own code is interrupted, behind its call, as by the kernel. A call that sleeps has failed with EINTR then.
//! One that the kernel restarts, or that has not begun, is *refused*: the program makes it again after its handler.
//!
//! Calls that set a mask while they wait are left out: that mask decides which handlers run. So are those that execute
//! a program, which gets the mask.

use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, compiler_fence};

use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{own_calls, sigbus, static_tls};
use libc::ucontext_t;

use crate::calls::dispatch;
use crate::faults::signal_stack;
use crate::ground::real::own;
use crate::ground::{guard, state};
use crate::memory::access;

static_tls! {
    /// Where the context of the caught call lies that is being made. Zero: signals are not deferred.
    static CAUGHT: usize = "folioswap_caught";
}

static_tls! {
    /// The number plus one of a call that is refused.
    static REFUSED: u64 = "folioswap_refused";
}

static_tls! {
    /// The number plus one of a caught call that may sleep.
    static SLEEPS: u64 = "folioswap_sleeps";
}

static_tls! {
    /// Whether a signal was deferred, and whether the call was refused.
    static STATE: (bool, bool) = "folioswap_deferred";
}

/// The C library's `syscall`, and its instruction; zero if that is not known.
pub static SYSCALL: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
static INSTRUCTION: AtomicUsize = AtomicUsize::new(0);

/// A stack pointer this far below the context is the caught call's.
const DEEPEST_BYTES: usize = 64 << 10;
/// What the C library's return from a handler takes up to its call.
const RETURN_BYTES: usize = 8;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `mov rax, rdi`.
const TAKES_NUMBER: [u8; 3] = [0x48, 0x89, 0xf8];
const MAKES_CALL: [u8; 2] = [0x0f, 0x05];
/// `mov r9, [rsp+8]`, the last argument.
const TAKES_LAST: [u8; 5] = [0x4c, 0x8b, 0x4c, 0x24, 0x08];

// The handler of SIGSYS notes its context in `CAUGHT`. The second function is `syscall`, but for a call that is
// refused. Until the C library makes the call, the stack pointer is as at the beginning of both.
std::arch::global_asm!(
    ".pushsection .text",
    ".balign 16",
    ".hidden folioswap_on_call",
    ".globl folioswap_on_call",
    ".hidden folioswap_on_call_end",
    ".globl folioswap_on_call_end",
    "folioswap_on_call:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + folioswap_caught@GOTTPOFF]",
    "push qword ptr fs:[rax]",
    ".cfi_adjust_cfa_offset 8",
    "mov qword ptr fs:[rax], rdx",
    "call {entry}",
    "mov rax, qword ptr [rip + folioswap_caught@GOTTPOFF]",
    "pop qword ptr fs:[rax]",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    "folioswap_on_call_end:",
    ".hidden folioswap_call",
    ".globl folioswap_call",
    ".hidden folioswap_interrupted",
    ".globl folioswap_interrupted",
    "folioswap_call:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + folioswap_refused@GOTTPOFF]",
    "mov rax, qword ptr fs:[rax]",
    "dec rax",
    "cmp rax, rdi",
    "je 2f",
    "jmp qword ptr [rip + {syscall}]",
    "2: jmp {refuse}",
    "folioswap_interrupted: jmp {interrupted}",
    ".cfi_endproc",
    ".popsection",
    entry = sym sigbus::syscall_entry,
    syscall = sym SYSCALL,
    refuse = sym refuse,
    interrupted = sym interrupted,
);

unsafe extern "C" {
    /// The handler of SIGSYS.
    pub fn folioswap_on_call(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void);
    static folioswap_on_call_end: u8;
    /// Makes a call by the C library's `syscall`, once that is known.
    pub fn folioswap_call(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
    static folioswap_interrupted: u8;
}

/// Notes the C library's `syscall`. Its code is known: it takes the number, then the words, and makes the call.
pub fn note_syscall(found: *mut libc::c_void) {
    SYSCALL.store(found, Ordering::Relaxed);
    if found.is_null() {
        return;
    }
    // SAFETY: the function's code is longer than this.
    let code = unsafe { std::slice::from_raw_parts(found as *const u8, 32) };
    let rest = code.strip_prefix(&ENDBR64).unwrap_or(code);
    let is_known = rest.starts_with(&TAKES_NUMBER);
    let call = [&TAKES_LAST[..], &MAKES_CALL].concat();
    if let Some(at) = code.windows(call.len()).position(|part| part == call).filter(|_| is_known) {
        INSTRUCTION.store(found as usize + at + TAKES_LAST.len(), Ordering::Relaxed);
    }
}

extern "C" fn interrupted() -> c_long {
    STATE.set((STATE.get().0, true));
    state::fail(libc::EINTR);
    -1
}

/// Refuses a call, but for one of this library's own.
unsafe extern "C" fn refuse(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    if !guard::inside() {
        return interrupted();
    }
    type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    // SAFETY: the C library's `syscall` has this type. The caller's call.
    unsafe {
        std::mem::transmute::<*mut libc::c_void, Syscall>(SYSCALL.load(Ordering::Relaxed))(number, a, b, c, d, e, f)
    }
}

/// The result of a call that a signal has ended, or kept from being made.
pub const INTERRUPTED: isize = -(libc::EINTR as isize);

/// Makes a caught call. Returns its result, and whether the program is to make it again if that is [`INTERRUPTED`].
pub fn during(number: c_long, words: &[usize; 6], call: impl FnOnce() -> Option<isize>) -> (Option<isize>, bool) {
    if keeps_mask(number, words) || INSTRUCTION.load(Ordering::Relaxed) == 0 {
        CAUGHT.set(0);
    }
    SLEEPS.set(if sleeps(number) { number as u64 + 1 } else { 0 });
    compiler_fence(Ordering::SeqCst);
    // A signal that came before this is handled first.
    let result = match STATE.get() {
        (true, _) => {
            STATE.set((true, true));
            Some(INTERRUPTED)
        }
        _ => call(),
    };
    SLEEPS.set(0);
    compiler_fence(Ordering::SeqCst);
    REFUSED.set(0);
    (result, STATE.replace((false, false)).1)
}

/// From here on, code of the program's runs: signals are not deferred.
pub fn forget() {
    CAUGHT.set(0);
    SLEEPS.set(0);
    REFUSED.set(0);
    STATE.set((false, false));
}

fn places(context: &ucontext_t) -> [usize; 2] {
    [libc::REG_RIP, libc::REG_RSP].map(|register| context.uc_mcontext.gregs[register as usize] as usize)
}

/// Whether a signal has interrupted a caught call, from the first instruction of the handler of SIGSYS to the last.
pub fn is_in(context: &ucontext_t) -> bool {
    let [at, pointer] = places(context);
    let entry = folioswap_on_call as *const () as usize..&raw const folioswap_on_call_end as usize;
    let returns = dispatch::restorer();
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
        interrupt(context);
    }
    sent
}

/// Has a call that may sleep refused, if it is not made yet.
fn interrupt(context: &mut ucontext_t) {
    STATE.set((true, STATE.get().1));
    REFUSED.set(SLEEPS.get());
    let [at, _] = places(context);
    let syscall = SYSCALL.load(Ordering::Relaxed) as usize;
    let in_own = (folioswap_call as *const () as usize..&raw const folioswap_interrupted as usize).contains(&at);
    if !in_own && !(syscall..=INSTRUCTION.load(Ordering::Relaxed)).contains(&at) {
        return;
    }
    let has_number = !in_own && at != syscall && at != syscall + ENDBR64.len();
    let number = context.uc_mcontext.gregs[if has_number { libc::REG_RAX } else { libc::REG_RDI } as usize];
    if number as u64 + 1 == REFUSED.get() {
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = &raw const folioswap_interrupted as i64;
    }
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
