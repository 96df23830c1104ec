//! The net of `calls::dispatch`: which threads have it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;

use crate::ground::real::own;
use crate::ground::{c_library, selector, state};
use crate::memory::access;

/// PR_SET_SYSCALL_USER_DISPATCH.
pub const SET_DISPATCH: usize = 59;
const DISPATCH_OFF: usize = 0;
pub const DISPATCH_ON: usize = 1;

static_tls! {
    /// The program's own dispatch for this thread: the start and the length of the range whose calls it lets through,
    /// and the address of its selector with [`IS_ON`].
    static THEIRS: (usize, (usize, usize)) = "folioswap_their_dispatch";
}

/// No address has this bit.
const IS_ON: usize = 1 << 63;
const END_OF_ADDRESSES: usize = 1 << 47;

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
    THEIRS.set((0, (0, 0)));
}

/// Sets the program's own dispatch of the calling thread, which has the net, or ends it. The arguments are judged as by
/// kernels before 6.18, which let the calls from a range through. Returns -1 and sets errno on failure.
pub fn set_theirs(&[_, how, start, len, selector, _]: &[usize; 6]) -> isize {
    let ends_behind = start.checked_add(len).is_some_and(|end| end > start);
    let theirs = match how {
        DISPATCH_OFF if start | len | selector == 0 => (0, (0, 0)),
        DISPATCH_ON if start == 0 || ends_behind => (start, (len, selector | IS_ON)),
        _ => {
            state::fail(libc::EINVAL);
            return -1;
        }
    };
    if selector >= END_OF_ADDRESSES {
        state::fail(libc::EFAULT);
        return -1;
    }
    THEIRS.set(theirs);
    0
}

/// Whether a caught call, which returns to an address, is for the program's handler of SIGSYS.
pub fn is_theirs(at: usize) -> bool {
    let (start, (len, selector)) = THEIRS.get();
    if selector & IS_ON == 0 || at.wrapping_sub(start) < len {
        return false;
    }
    let selector = (selector & !IS_ON) as *const u8;
    // SAFETY: any byte of the program's is a value.
    selector.is_null() || unsafe { access::read(selector) } != Some(0)
}

/// Disables the net for the calling thread.
pub fn step_back() {
    // SAFETY: takes no pointers.
    unsafe { own!(libc::SYS_prctl, SET_DISPATCH, DISPATCH_OFF, 0usize, 0usize, 0usize) };
    selector::set_armed(false);
}
