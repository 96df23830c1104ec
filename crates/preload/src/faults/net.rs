//! The net of `calls::dispatch`: which threads have it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::ground::real::own;
use crate::ground::{c_library, selector};

/// PR_SET_SYSCALL_USER_DISPATCH.
pub const SET_DISPATCH: usize = 59;
const DISPATCH_OFF: usize = 0;
pub const DISPATCH_ON: usize = 1;

/// Whether threads get the net.
static READY: AtomicBool = AtomicBool::new(false);

/// The C library's return from a signal handler.
static RESTORER: AtomicUsize = AtomicUsize::new(0);

/// Notes that threads get the net, if its handler returns by the C library.
pub fn begin(restorer: usize) {
    RESTORER.store(restorer, Ordering::Relaxed);
    READY.store(c_library::code().contains(&restorer), Ordering::SeqCst);
}

/// The C library's return from a signal handler; zero if it is not known.
pub fn restorer() -> usize {
    RESTORER.load(Ordering::Relaxed)
}

/// Enables the net for the calling thread.
pub fn arm() {
    if !READY.load(Ordering::Relaxed) || selector::is_armed() {
        return;
    }
    let code = c_library::code();
    // SAFETY: the selector is in this thread's TLS, and lives as long as the thread.
    unsafe {
        selector::close();
        let armed = own!(libc::SYS_prctl, SET_DISPATCH, DISPATCH_ON, code.start, code.len(), selector::at());
        selector::set_armed(armed == 0);
    }
}

/// Called in a forked child, for whose thread the kernel has disabled dispatch.
pub fn forget() {
    selector::set_armed(false);
}

/// Disables the net for the calling thread.
pub fn step_back() {
    // SAFETY: takes no pointers.
    unsafe { own!(libc::SYS_prctl, SET_DISPATCH, DISPATCH_OFF, 0usize, 0usize, 0usize) };
    selector::set_armed(false);
}
