//! What the program has given rseq: the kernel writes there whenever it has interrupted the thread.

use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;

use crate::ground::state;
use crate::memory::resident;

/// What rseq is given to end its use, and the bytes of the first version's structure.
const UNREGISTERS: usize = 1;
const LEAST_BYTES: u32 = 32;

static_tls! {
    /// What the program has given rseq for this thread: address and length.
    static RSEQ: (usize, usize) = "folioswap_rseq";
}

/// Holds what the calling thread has given rseq in RAM, in direct mode. Again in a forked child, whose thread goes on
/// with it, and once it is adopted.
pub fn hold() {
    let (addr, len) = RSEQ.get();
    if state::direct() {
        resident::hold(addr, len);
    }
}

/// Notes a call of rseq, and holds what it is given.
pub fn note(addr: usize, len: usize, flags: usize) {
    RSEQ.set(if flags & UNREGISTERS == 0 { (addr, (len as u32).max(LEAST_BYTES) as usize) } else { (0, 0) });
    hold();
}
