//! The FS base, by which a thread finds what is thread-local. A program may set another one, and touch memory, make
//! system calls or get signals then. Handlers set the thread's own meanwhile, which is noted at the start of its signal
//! stack. The program's handlers find what the program has set, but for those of SIGSYS. Only where programs may set it
//! by an instruction (Linux 5.9): a caught system call could not do it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::stack_t;

/// How a signal stack begins that knows the base of its thread.
#[repr(C)]
struct Head {
    mark: usize,
    base: usize,
}

/// What is at the start of such a stack, before the base.
pub const MARK: usize = 0x6f77_6e20_6261_7365;

/// The size of such stacks; 0: there are none. Others may begin with a page without access.
pub static STACK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Whether a handler has found another base than its thread's own, on any thread.
pub static HAS_OTHERS: AtomicBool = AtomicBool::new(false);

/// Whether a handler has found another base than its thread's own.
pub fn has_others() -> bool {
    HAS_OTHERS.load(Ordering::Relaxed)
}

/// Notes the calling thread's base in its signal stack.
///
/// # Safety
/// The stack is mapped and nobody runs on it. All such stacks have one size.
pub unsafe fn note(stack: &stack_t) {
    const HAS_INSTRUCTIONS: u64 = 1 << 1;
    // SAFETY: reads what the kernel told the process at its start.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HAS_INSTRUCTIONS != 0 {
        STACK_BYTES.store(stack.ss_size, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { stack.ss_sp.cast::<Head>().write(Head { mark: MARK, base: crate::static_tls::thread_pointer() }) };
    }
}

/// Forgets what [`note`] noted.
///
/// # Safety
/// As [`note`].
pub unsafe fn forget(stack: &stack_t) {
    // SAFETY: the caller's promise.
    unsafe { stack.ss_sp.cast::<Head>().write(Head { mark: 0, base: 0 }) };
}

/// Sets the thread's own base, if another one is set and its signal stack knows it. Returns the other one, for [`set`].
/// Uses nothing thread-local.
///
/// # Safety
/// The kernel knows `stack` as the calling thread's.
pub unsafe fn return_to_own(stack: &stack_t) -> Option<usize> {
    if stack.ss_sp.is_null() || stack.ss_size != STACK_BYTES.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: a signal stack of this size. The kernel has just used it, or would have.
    let head = unsafe { stack.ss_sp.cast::<Head>().read() };
    if head.mark != MARK {
        return None;
    }
    // SAFETY: `note` saw that the instructions can be used. The noted base is this thread's.
    unsafe {
        let other = now();
        (other != head.base).then(|| {
            set(head.base);
            HAS_OTHERS.store(true, Ordering::Relaxed);
            other
        })
    }
}

unsafe fn now() -> usize {
    let base;
    // SAFETY: the caller knows that the instruction can be used.
    unsafe { std::arch::asm!("rdfsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base
}

/// Sets the calling thread's base.
///
/// # Safety
/// [`return_to_own`] returned it to this handler, which uses nothing thread-local of its own any more.
pub unsafe fn set(base: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::arch::asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags)) };
}
