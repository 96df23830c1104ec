//! What a limit of addresses or of data refuses to the program because of the engine's share. Programs seldom say why
//! they end then.

use std::sync::atomic::{AtomicBool, Ordering};

use folioswap::Bytes;
use folioswap_sys::{memory, own_calls, resident};

use crate::ground::{guard, heap, state};

/// Nothing is to be said any more.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// The program has set a limit of its own, to which the engine's share was added.
pub fn be_silent() {
    IS_SILENT.store(true, Ordering::Relaxed);
}

/// Called when the kernel has refused more memory to the program (ENOMEM). Says once if it would have had it without
/// the engine.
pub fn note(len: usize) {
    // A seccomp filter may kill the process for opening a file.
    if state::space().is_none() || IS_SILENT.load(Ordering::Relaxed) || own_calls::is_used() {
        return;
    }
    let _guard = guard::enter();
    state::keeping_errno(|| {
        if let Some(limit) = memory::address_limit() {
            let taken = memory::reserved_bytes() + heap::reserved_bytes();
            note_limit("addresses (ulimit -v)", limit, resident::mapped_bytes(), taken as u64, len as u64);
        }
        if let Some(limit) = memory::data_limit() {
            let taken = memory::writable_bytes() + heap::opened_bytes();
            note_limit("data (ulimit -d)", limit, resident::data_bytes(), taken as u64, len as u64);
        }
    });
}

/// The same for one limit. `used`: what counts in it, of which the engine has `taken`.
fn note_limit(what: &str, limit: u64, used: Option<u64>, taken: u64, len: u64) {
    let Some(wanted) = used.map(|used| used.saturating_add(len)) else { return };
    if wanted > limit && wanted.saturating_sub(taken) <= limit && !IS_SILENT.swap(true, Ordering::Relaxed) {
        state::say(&format!(
            "note: the limit of {what}, {}, refuses {} to process {}, since folioswap takes {}: raise it, or lower --memory",
            Bytes(limit),
            Bytes(len),
            std::process::id(),
            Bytes(taken)
        ));
    }
}
