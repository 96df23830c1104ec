//! What a limit of addresses refuses to the program because of the engine's share. Programs seldom say why they end
//! then.

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
        let Some(limit) = memory::address_limit() else { return };
        let Some(mapped) = resident::mapped_bytes() else { return };
        let taken = (memory::reserved_bytes() + heap::reserved_bytes()) as u64;
        let wanted = mapped.saturating_add(len as u64);
        if wanted > limit && wanted.saturating_sub(taken) <= limit && !IS_SILENT.swap(true, Ordering::Relaxed) {
            state::say(&format!(
                "note: the limit of addresses (ulimit -v), {}, refuses {} to process {}, since folioswap takes {}: raise it, or lower --memory",
                Bytes(limit),
                Bytes(len as u64),
                std::process::id(),
                Bytes(taken)
            ));
        }
    });
}
