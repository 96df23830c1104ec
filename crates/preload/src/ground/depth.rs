//! How often a thread has entered code of the engine or of this library (`guard`).

use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;

static_tls! {
    static DEPTH: u32 = "folioswap_depth";
}

/// Counts an entry.
pub fn enter() {
    DEPTH.set(DEPTH.get() + 1);
}

/// Counts the end of one.
pub fn leave() {
    DEPTH.set(DEPTH.get() - 1);
}

/// Whether this thread is running code of the engine or of this library.
pub fn inside() -> bool {
    DEPTH.get() > 0 || folioswap::internal_thread()
}
