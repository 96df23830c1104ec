//! The limit of file sizes. A write that reaches it ends there, and only one that begins there raises SIGXFSZ. A long
//! write that this library splits must therefore raise none for its later pieces.

use libc::timespec;

use crate::ground::real::own;
use crate::ground::{heap, state};

static SIGNAL: u64 = 1 << (libc::SIGXFSZ - 1);

/// Makes a further piece of a write.
pub fn go_on(call: impl FnOnce() -> isize) -> isize {
    if state::keeping_errno(|| heap::limits(libc::RLIMIT_FSIZE))[0] == libc::RLIM_INFINITY {
        return call();
    }
    let (mut before, mut waiting) = (0u64, 0u64);
    // SAFETY: the kernel reads a set of 8 bytes and fills in the locals.
    unsafe {
        own!(libc::SYS_rt_sigprocmask, 0, 0usize, &raw mut before, 8);
        own!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const SIGNAL, 0usize, 8);
        own!(libc::SYS_rt_sigpending, &raw mut waiting, 8);
    }
    let result = call();
    let is_raised = result < 0 && state::errno() == libc::EFBIG && waiting & SIGNAL == 0;
    let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above. What is taken is the signal of this thread's own call, unless the program ignores it.
    state::keeping_errno(|| unsafe {
        if is_raised {
            own!(libc::SYS_rt_sigtimedwait, &raw const SIGNAL, 0usize, &raw const at_once, 8);
        }
        if before & SIGNAL == 0 {
            own!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const SIGNAL, 0usize, 8);
        }
    });
    result
}
