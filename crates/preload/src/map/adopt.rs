//! Room in the budget, and the memory that is managed once it runs out.
//!
//! Until then the program's mappings are the kernel's alone: their first touches cost what they cost without this
//! library. All of them together fit into the budget, so nothing has to leave RAM. When one comes that does not fit,
//! all are *adopted*: they are managed from then on, with their content.
//!
//! In direct mode a call that another thread is in must not find its buffer managed half way. So adoption comes before
//! the program has another thread: at the engine's start.

use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use folioswap::{RawSpace, Wish};
use folioswap_sys::fault_stack;

use crate::alloc::malloc;
use crate::faults::signal_stack;
use crate::map::listed::{self, Listed};
use crate::map::{known, mapping};
use crate::state::{self, Phase};
use crate::{guard, start};

/// How much is adopted at a time. Threads that touch what is missing there, and those that map, wait for that.
const PART_BYTES: usize = 32 << 20;

/// Flags of mappings that can be adopted: those of access, noreserve, accounted, huge pages or none, softdirty. All
/// others (locked, a userfaultfd of the program's, kept from children, merged, sealed) stay the kernel's.
const PLAIN: [&str; 11] = ["rd", "wr", "ex", "mr", "mw", "me", "nr", "ac", "hg", "nh", "sd"];

static ROOM_BYTES: AtomicUsize = AtomicUsize::new(0);
static HAS_ADOPTED: AtomicBool = AtomicBool::new(false);

/// Sets how much the program may map before any of it is managed. `eager`: all new memory is, but for the ordinary
/// share.
pub fn prepare(room_bytes: usize, eager: bool) {
    ROOM_BYTES.store(room_bytes, Ordering::Relaxed);
    HAS_ADOPTED.store(eager, Ordering::Relaxed);
}

/// Whether all that is to be managed is.
pub fn has_adopted() -> bool {
    HAS_ADOPTED.load(Ordering::Relaxed)
}

/// Whether what the program has may be managed later, and all that the kernel does with it now must hold then.
pub fn is_pending() -> bool {
    state::may_manage() && !has_adopted()
}

/// Whether a new mapping need not be managed: there is room, or, later, it is small and fits into the program's
/// ordinary share.
pub fn has_room(bytes: usize) -> bool {
    match has_adopted() {
        true => bytes < mapping::BLOCK_BYTES && malloc::has_share(bytes),
        false => known::ordinary_bytes().saturating_add(bytes) <= ROOM_BYTES.load(Ordering::Relaxed),
    }
}

/// Called before new memory: if there is no room for it, starts the engine, and adopts what there is.
pub fn make_room(bytes: usize) {
    let may_change = !has_adopted() || state::phase() == Phase::Waiting;
    if may_change && !has_room(bytes) {
        now();
    }
}

/// Starts the engine, and adopts what there is. Called before what would make that impossible.
pub fn now() {
    start::now();
    if let Some(space) = state::space().filter(|_| !has_adopted() && !guard::inside()) {
        let _guard = guard::enter();
        // The program's stack may lie in what is adopted.
        state::keeping_errno(|| fault_stack::run(|| all(space)));
    }
}

/// Held while a mapping goes or moves, so that it is not adopted meanwhile. Called under a guard, and before the
/// engine's locks.
pub fn hold() -> Option<MutexGuard<'static, ()>> {
    (!has_adopted() && state::phase() == Phase::Managed).then(known::beginning)
}

/// Adopts all mappings that can be. Others stay in the ordinary share. Called under a guard.
pub fn all(space: &RawSpace) {
    let candidates: Vec<_> = known::ordinary().iter().collect();
    // In direct mode the C library's own calls and starts of threads cannot bear that what another allocator has given
    // it is managed.
    let may_be = !(space.is_locked() || state::direct() && malloc::is_anothers());
    let listed = if may_be && !candidates.is_empty() { listed::with_flags() } else { Some(Vec::new()) };
    let Some(listed) = listed else {
        state::say("what the program has mapped before is not managed: its mappings cannot be listed");
        return HAS_ADOPTED.store(true, Ordering::SeqCst);
    };
    for mapping in listed.iter().filter(|mapping| is_plain(mapping)) {
        for candidate in &candidates {
            let range = mapping.range.start.max(candidate.start)..mapping.range.end.min(candidate.end);
            adopt(space, &range, mapping);
        }
    }
    if state::direct() {
        signal_stack::hold_current();
    }
    HAS_ADOPTED.store(true, Ordering::SeqCst);
}

fn is_plain(mapping: &Listed) -> bool {
    mapping.flags.iter().all(|flag| PLAIN.contains(&flag.as_str()))
}

/// Adopts a mapping from its start on. The kernel maps downwards, so what is older often lies higher: it leaves RAM
/// last, which is best for programs that go through their memory again and again.
fn adopt(space: &RawSpace, range: &Range<usize>, mapping: &Listed) {
    let mut start = range.start;
    while start < range.end {
        let end = (start + PART_BYTES).next_multiple_of(mapping::BLOCK_BYTES).min(range.end);
        let _beginning = known::beginning();
        let parts = known::ordinary().parts(&(start..end)); // without what has gone or moved since
        for part in parts {
            // SAFETY: private anonymous memory of the program's, which stays mapped while this lock is held.
            match unsafe { space.adopt(&part) } {
                Ok(()) => known::take_ordinary(part.clone()),
                Err(error) => mapping::note_unmanaged(Err(error)),
            }
            if mapping.flags.iter().any(|flag| flag == "nh") {
                space.wish(part.start, part.len(), Wish::Pages);
            }
        }
        start = end;
    }
}
