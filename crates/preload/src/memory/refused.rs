//! What a limit of addresses or of data refuses to the program because of the engine's share. Programs seldom say why
//! they end then.

use std::sync::atomic::{AtomicU32, Ordering};

use folioswap::Bytes;
use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{memory, own_calls, resident, static_tls};

use crate::ground::{guard, heap, state};

/// Of which limits nothing is to be said any more, by their numbers.
static SILENT: AtomicU32 = AtomicU32::new(0);

/// The program has set a limit of its own, to which the engine's share was added.
pub fn be_silent(limit: u32) {
    SILENT.fetch_or(1 << limit, Ordering::Relaxed);
}

static_tls! {
    /// Whether the program's heap asks for memory: it may do with less. And the least that the kernel has refused to it
    /// for its last block.
    static WITHIN_HEAP: (bool, usize) = "folioswap_within_heap";
}

/// Has the program's heap allocate. That it gets no memory is not noted.
pub fn within_heap<R>(allocate: impl FnOnce() -> R) -> R {
    WITHIN_HEAP.set((true, 0));
    let allocated = allocate();
    WITHIN_HEAP.set((false, WITHIN_HEAP.get().1));
    allocated
}

/// What the kernel has refused to the program's heap for its last block: it asks for more than that needs.
pub fn to_heap() -> usize {
    WITHIN_HEAP.get().1
}

/// Whether so much more memory would be beyond a limit.
pub fn is_beyond(len: usize) -> bool {
    let is_beyond = |limit: Option<u64>, used: fn() -> Option<u64>| {
        limit.is_some_and(|limit| used().is_none_or(|used| used.saturating_add(len as u64) > limit))
    };
    is_beyond(memory::address_limit(), resident::mapped_bytes) || is_beyond(memory::data_limit(), resident::data_bytes)
}

/// Called when the kernel has refused more memory to the program (ENOMEM). Says once if it would have had it without
/// the engine.
pub fn note(len: usize) {
    match WITHIN_HEAP.get() {
        (true, least) => WITHIN_HEAP.set((true, if least == 0 { len } else { len.min(least) })),
        _ => note_of(len, len),
    }
}

/// The same for a block that the heap could not have, as the kernel has refused it `asked` bytes.
pub fn note_of(len: usize, asked: usize) {
    // A seccomp filter may kill the process for opening a file.
    if state::space().is_none() || own_calls::is_used() {
        return;
    }
    let _guard = guard::enter();
    state::keeping_errno(|| {
        if let Some(limit) = memory::address_limit() {
            let taken = memory::reserved_bytes() + heap::reserved_bytes();
            note_limit((libc::RLIMIT_AS, limit), resident::mapped_bytes(), taken as u64, (len, asked));
        }
        if let Some(limit) = memory::data_limit() {
            let taken = memory::writable_bytes() + heap::opened_bytes();
            note_limit((libc::RLIMIT_DATA, limit), resident::data_bytes(), taken as u64, (len, asked));
        }
    });
}

/// The same for one limit. `used`: what counts in it, of which the engine has `taken`.
fn note_limit((number, limit): (u32, u64), used: Option<u64>, taken: u64, (len, asked): (usize, usize)) {
    let Some(used) = used else { return };
    let with = |len: usize| used.saturating_add(len as u64);
    let is_silent = || SILENT.fetch_or(1 << number, Ordering::Relaxed) >> number & 1 == 1;
    if with(asked) > limit && with(len).saturating_sub(taken) <= limit && !is_silent() {
        let what = if number == libc::RLIMIT_AS { "addresses (ulimit -v)" } else { "data (ulimit -d)" };
        state::say(&format!(
            "note: the limit of {what}, {}, refuses {} to process {}, since folioswap takes {}: raise it, or lower \
             --memory",
            Bytes(limit),
            Bytes(len as u64),
            std::process::id(),
            Bytes(taken)
        ));
    }
}
