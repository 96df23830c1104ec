//! The C library's `syscall`, by which this library makes its calls. A caught call is refused there when a signal comes
//! before it is made (`faults::caught`).

use std::ffi::c_long;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;
use libc::ucontext_t;

use crate::ground::{depth, state};

static_tls! {
    /// The number plus one of a call that is refused.
    static REFUSED: u64 = "folioswap_refused";
}

static_tls! {
    /// Whether a signal was deferred, and whether the call was refused.
    static STATE: (bool, bool) = "folioswap_deferred";
}

/// The C library's `syscall`, and its instruction; zero if that is not known.
static SYSCALL: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
static INSTRUCTION: AtomicUsize = AtomicUsize::new(0);

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `mov rax, rdi`.
const TAKES_NUMBER: [u8; 3] = [0x48, 0x89, 0xf8];
const MAKES_CALL: [u8; 2] = [0x0f, 0x05];
/// `mov r9, [rsp+8]`, the last argument.
const TAKES_LAST: [u8; 5] = [0x4c, 0x8b, 0x4c, 0x24, 0x08];

// The function is `syscall`, but for a call that is refused. Until the C library makes the call, the stack pointer is
// as at the beginning.
std::arch::global_asm!(
    ".pushsection .text",
    ".balign 16",
    ".hidden folioswap_call",
    ".globl folioswap_call",
    ".hidden folioswap_interrupted",
    ".globl folioswap_interrupted",
    "folioswap_call:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + folioswap_refused@GOTTPOFF]",
    "mov rax, qword ptr fs:[rax]",
    "test rax, rax",
    "jz 3f",
    "dec rax",
    "cmp rax, rdi",
    "je 2f",
    "3: jmp qword ptr [rip + {syscall}]",
    "2: jmp {refuse}",
    "folioswap_interrupted: jmp {interrupted}",
    ".cfi_endproc",
    ".popsection",
    syscall = sym SYSCALL,
    refuse = sym refuse,
    interrupted = sym interrupted,
);

unsafe extern "C" {
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

/// Whether the C library's `syscall` is known.
pub fn is_known() -> bool {
    !SYSCALL.load(Ordering::Relaxed).is_null()
}

/// Makes a call that does not fail, using nothing thread-local. Returns whether the C library's `syscall` is known.
///
/// # Safety
/// As the system call.
pub unsafe fn without_tls(number: c_long, a: usize, b: usize) -> bool {
    let syscall = SYSCALL.load(Ordering::Relaxed);
    if !syscall.is_null() {
        // SAFETY: the C library's `syscall`, which sets errno on failure only. The call is the caller's.
        unsafe {
            let call: unsafe extern "C" fn(c_long, usize, usize) -> c_long = std::mem::transmute(syscall);
            call(number, a, b);
        }
    }
    !syscall.is_null()
}

/// Whether its instruction is known: only then can a call be refused.
pub fn has_instruction() -> bool {
    INSTRUCTION.load(Ordering::Relaxed) != 0
}

pub fn is_deferred() -> bool {
    STATE.get().0
}

pub fn note_refused() {
    STATE.set((STATE.get().0, true));
}

/// No call is refused from here on. Returns whether one was.
pub fn end_refusal() -> bool {
    REFUSED.set(0);
    STATE.replace((false, false)).1
}

extern "C" fn interrupted() -> c_long {
    note_refused();
    state::fail(libc::EINTR);
    -1
}

/// Refuses a call, but for one of this library's own.
unsafe extern "C" fn refuse(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    if !depth::inside() {
        return interrupted();
    }
    type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    // SAFETY: the C library's `syscall` has this type. The caller's call.
    unsafe {
        std::mem::transmute::<*mut libc::c_void, Syscall>(SYSCALL.load(Ordering::Relaxed))(number, a, b, c, d, e, f)
    }
}

/// Notes that a signal was deferred. Has the call that may sleep refused, if it is not made yet: `sleeps` is its number
/// plus one, or zero.
pub fn refuse_next(sleeps: u64, context: &mut ucontext_t) {
    STATE.set((true, STATE.get().1));
    REFUSED.set(sleeps);
    let at = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    let syscall = SYSCALL.load(Ordering::Relaxed) as usize;
    let in_own = (folioswap_call as *const () as usize..&raw const folioswap_interrupted as usize).contains(&at);
    if !in_own && !(syscall..=INSTRUCTION.load(Ordering::Relaxed)).contains(&at) {
        return;
    }
    let has_number = !in_own && at != syscall && at != syscall + ENDBR64.len();
    let number = context.uc_mcontext.gregs[if has_number { libc::REG_RAX } else { libc::REG_RDI } as usize];
    if sleeps != 0 && number as u64 == sleeps - 1 {
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = &raw const folioswap_interrupted as i64;
    }
}
