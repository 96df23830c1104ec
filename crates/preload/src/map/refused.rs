//! What a limit of addresses refuses to the program because of the engine's share. Programs seldom say why they end
//! then.

use std::sync::atomic::{AtomicBool, Ordering};

use folioswap::Bytes;
use folioswap_sys::{memory, own_calls, resident};

use crate::ground::{guard, heap, state};

/// Called when the kernel has refused more memory to the program (ENOMEM). Says once if it would have had it without
/// the engine.
pub fn note(len: usize) {
    static WAS_SAID: AtomicBool = AtomicBool::new(false);
    // A filter may kill who opens a file.
    if state::space().is_none() || own_calls::is_used() {
        return;
    }
    let _guard = guard::enter();
    state::keeping_errno(|| {
        let Some((limit, mapped)) = memory::address_limit().zip(resident::mapped_bytes()) else { return };
        let taken = (memory::reserved_bytes() + heap::reserved_bytes()) as u64;
        let wanted = mapped.saturating_add(len as u64);
        if wanted > limit && wanted - taken <= limit && !WAS_SAID.swap(true, Ordering::Relaxed) {
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
