//! Room in the budget, and the memory that is managed once it runs out.
//!
//! Until then the program's mappings are the kernel's alone: their first touches cost what they cost without this
//! library. All of them together fit into the budget, so nothing has to leave RAM. When one comes that does not fit,
//! all are *adopted*: they are managed from then on, with their content.
//!
//! In direct mode a call that another thread is in must not find its buffer managed half way. So adoption comes before
//! the program has another thread: at the engine's start.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use folioswap::{Advice, RawSpace};
use folioswap_sys::fault_stack;

use crate::faults::{cleared, rseq, signal_stack};
use crate::ground::lock::Locked;
use crate::ground::state::{self, Phase};
use crate::ground::{c_library, guard, selector, waiting};
use crate::map::listed::{self, Listed};
use crate::map::managed;
use crate::memory::{known, pages};

/// How much is adopted at a time. Threads that touch what is missing there, and those that map, wait for that.
const PART_BYTES: usize = 32 << 20;

/// Flags of mappings that can be adopted: those of access, noreserve, accounted, huge pages or none, kept from
/// children, left out of core dumps, read in order or at random, softdirty. All others stay the kernel's: locked, wiped
/// in children, merged, sealed, with guards, a userfaultfd of the program's; and kinds that are not private anonymous
/// memory, or that the kernel grows or drops by itself.
const PLAIN: [&str; 15] = ["rd", "wr", "ex", "mr", "mw", "me", "nr", "ac", "hg", "nh", "dc", "dd", "sr", "rr", "sd"];

/// From this size on, memory is adopted before the program has the kernel do something with it that forbids that.
const LEAST_KEPT_BYTES: usize = 1 << 20;

static ROOM_BYTES: AtomicUsize = AtomicUsize::new(0);

/// What is done with new memory.
static WHEN: AtomicU8 = AtomicU8::new(LATER);
/// It is the kernel's alone, and adopted once there is no room.
const LATER: u8 = 0;
/// It is managed at once, and what there was before is just being adopted.
const ADOPTING: u8 = 1;
/// It is managed at once, but for the ordinary share.
const AT_ONCE: u8 = 2;

/// Sets how much the program may map before any of it is managed. `eager`: all new memory is, but for the ordinary
/// share.
pub fn prepare(room_bytes: usize, eager: bool) {
    ROOM_BYTES.store(room_bytes, Ordering::Relaxed);
    WHEN.store(if eager { AT_ONCE } else { LATER }, Ordering::SeqCst);
}

/// In a forked child: no other thread adopts.
pub fn begin_child() {
    let _ = WHEN.compare_exchange(ADOPTING, LATER, Ordering::SeqCst, Ordering::SeqCst);
}

/// Whether new memory is not managed as long as there is room.
pub fn is_later() -> bool {
    WHEN.load(Ordering::SeqCst) == LATER
}

/// Whether what the program has may be managed later, and all that the kernel does with it now must hold then.
pub fn is_pending() -> bool {
    state::may_manage() && WHEN.load(Ordering::SeqCst) != AT_ONCE
}

/// Whether a new mapping need not be managed: there is room, or, later, it is small and fits into the program's
/// ordinary share.
pub fn has_room(bytes: usize) -> bool {
    match is_later() {
        true => known::ordinary_bytes().saturating_add(bytes) <= ROOM_BYTES.load(Ordering::Relaxed),
        false => bytes < folioswap::BLOCK_BYTES && known::has_share(bytes),
    }
}

/// Whether there is no room for new memory, and can be.
pub fn lacks_room(bytes: usize) -> bool {
    let may_change = is_later() || state::phase() == Phase::Waiting;
    may_change && !has_room(bytes) && pages::are_possible(&(0..bytes))
}

/// Called before new memory: if there is no room for it, starts the engine, and adopts what there is.
pub fn make_room(bytes: usize) {
    if lacks_room(bytes) {
        now();
    }
}

/// Starts the engine, and adopts what there is. Called before what would make that impossible.
pub fn now() {
    waiting::now();
    if let Some(space) = state::space().filter(|_| is_later() && !guard::inside()) {
        let _guard = guard::enter();
        // The program's stack may lie in what is adopted.
        state::keeping_errno(|| selector::with_net_open(|| fault_stack::run(|| all(space))));
    }
}

/// Called before the program has the kernel do something with memory that keeps it from being adopted: much of it is
/// adopted first.
pub fn before_keeping(range: &Range<usize>) {
    if is_pending() && range.len() >= LEAST_KEPT_BYTES && known::ordinary().overlaps(range) {
        now();
    }
}

/// Held while a mapping goes, moves or loses its content, so that it does not begin to be managed meanwhile, together
/// with its neighbours. Not beside a userfaultfd of the program's: such a call of one thread may wait for one of
/// another. Called under a guard, and before the engine's locks.
pub fn hold() -> Option<Locked<()>> {
    (state::phase() == Phase::Managed && (is_pending() || !known::has_userfaultfd())).then(known::beginning)
}

/// The same, once what is known of the mapping is forgotten: from then on only what is adopted begins there.
pub fn hold_forgotten(held: Option<Locked<()>>) -> Option<Locked<()>> {
    held.filter(|_| is_pending())
}

/// Adopts all mappings that can be. Others stay in the ordinary share. Called under a guard. Does nothing while another
/// thread does this.
pub fn all(space: &RawSpace) {
    if WHEN.swap(ADOPTING, Ordering::SeqCst) == ADOPTING {
        return;
    }
    // In direct mode the C library's own calls and starts of threads cannot bear that what another allocator has given
    // it is managed.
    if !(space.is_locked() || state::direct() && c_library::has_other_malloc()) {
        let seen = adopt_other_than(space, &[]);
        adopt_other_than(space, &seen); // what other threads have mapped as there still seemed to be room
    }
    cleared::hold_adopted();
    rseq::hold();
    signal_stack::hold_set();
    WHEN.store(AT_ONCE, Ordering::SeqCst);
}

/// Adopts mappings but those that were seen before. Returns those that were there.
fn adopt_other_than(space: &RawSpace, seen: &[Range<usize>]) -> Vec<Range<usize>> {
    let beginning = known::beginning(); // what moves just now is in no set
    let candidates: Vec<_> = known::ordinary().iter().collect();
    drop(beginning);
    if candidates.iter().all(|candidate| seen.contains(candidate)) {
        return candidates;
    }
    let Some(listed) = listed::with_flags() else {
        state::say("what the program has mapped before is not managed: its mappings cannot be listed");
        return candidates;
    };
    for mapping in listed.iter().filter(|mapping| is_plain(mapping)) {
        for candidate in &candidates {
            let range = mapping.range.start.max(candidate.start)..mapping.range.end.min(candidate.end);
            adopt(space, &range, mapping);
        }
    }
    candidates
}

/// Has the engine manage memory of which it is not known whether it holds anything.
pub fn as_it_is(space: &RawSpace, range: &Range<usize>) {
    for start in range.clone().step_by(PART_BYTES) {
        // SAFETY: private anonymous memory of the program's, about which this call is.
        let adopted = unsafe { space.adopt(&(start..range.end.min(start + PART_BYTES))) };
        managed::note_unmanaged(adopted);
    }
}

fn is_plain(mapping: &Listed) -> bool {
    mapping.flags.iter().all(|flag| PLAIN.contains(&flag.as_str()))
}

/// Adopts a mapping from its start on. The kernel maps downwards, so what is older often lies higher: it leaves RAM
/// last, which is best for programs that go through their memory again and again.
fn adopt(space: &RawSpace, range: &Range<usize>, mapping: &Listed) {
    let mut start = range.start;
    while start < range.end {
        let end = (start + PART_BYTES).next_multiple_of(folioswap::BLOCK_BYTES).min(range.end);
        let _beginning = known::beginning();
        let parts = known::ordinary().parts(&(start..end)); // without what has gone or moved since
        for part in parts {
            // SAFETY: private anonymous memory of the program's, which stays mapped while this lock is held.
            match unsafe { space.adopt(&part) } {
                Ok(()) => {
                    known::take_ordinary(part.clone());
                    if !known::has_memory_file() {
                        known::take_neighbours(&part).into_iter().for_each(|part| managed::manage(space, part));
                    }
                }
                Err(error) => managed::note_unmanaged(Err(error)),
            }
            let is = |name: &str| mapping.flags.iter().any(|flag| flag == name);
            if is("nh") {
                space.advise(part.start, part.len(), Advice::NoHugePage);
            }
            if is("dc") {
                known::not_forked().add(part); // the engine keeps managed memory from children itself
            }
        }
        start = end;
    }
}
