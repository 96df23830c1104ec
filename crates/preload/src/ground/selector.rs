//! Each thread's selector: whether the net of `calls::dispatch` is closed. While it is open, no system call is caught.

use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;

/// Values of a selector.
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

static_tls! {
    static ARMED: bool = "folioswap_armed";
}

// The selector is a byte in each thread's TLS that the kernel reads.
std::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".hidden folioswap_selector",
    ".globl folioswap_selector",
    "folioswap_selector: .zero 1",
    ".popsection",
);

/// The calling thread's selector.
pub fn at() -> *mut u8 {
    let at: *mut u8;
    // SAFETY: reads the thread pointer, and the selector's offset from it.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + folioswap_selector@GOTTPOFF]",
            at = out(reg) at,
            options(nostack, readonly),
        );
    }
    at
}

/// Whether the calling thread has the net.
pub fn is_armed() -> bool {
    ARMED.get()
}

/// Notes whether the calling thread has the net.
pub fn set_armed(armed: bool) {
    ARMED.set(armed);
}

/// Closes the net of the calling thread.
pub fn close() {
    // SAFETY: this thread's own byte.
    unsafe { *at() = BLOCK };
}

/// Opens the net of the calling thread until it is closed again.
pub fn open() {
    // SAFETY: this thread's own byte.
    unsafe { *at() = ALLOW };
}

/// Makes a call of this library's own from outside the C library. It must not raise a signal whose handler is the
/// program's.
pub fn unseen<R>(call: impl FnOnce() -> R) -> R {
    if ARMED.get() { with_net_open(call) } else { call() }
}

/// Runs `work` with the net open. For a handler's code that has left the alternate stack: the kernel would put the next
/// signal's frame over those of the handler. Even the vDSO makes system calls where the clock source is not the TSC.
pub fn with_net_open<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: this thread's own byte. What interrupts this leaves it as it was.
    let before = unsafe { at().replace(ALLOW) };
    let result = work();
    // SAFETY: as above.
    unsafe { *at() = before };
    result
}
