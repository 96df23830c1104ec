//! The end of a process: what it had in RAM is noted for `run`, which says what was not managed.
//!
//! Called as the last destructors are, by `exit` and the return from `main`. A process that ends in another way (`_exit`, a signal,
//! exec) is not noted; the kernel tells `run` of the largest.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use folioswap::{ProcessMemory, RawSpace, SharedCounters};
use folioswap_sys::resident::Resident;

use crate::guard;
use crate::state::{self, Phase};

/// Memory that it is worth looking at the whole for.
const LARGE: usize = 8 << 20;

static COUNTERS: OnceLock<&'static SharedCounters> = OnceLock::new();

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Has the end noted there.
pub fn note_in(counters: &'static SharedCounters) {
    let _ = COUNTERS.set(counters);
}

/// The most that was not managed so far, and the shared memory of it.
static OUTSIDE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// What a child inherits of managed memory.
static INHERITED: AtomicU64 = AtomicU64::new(0);

/// Looks at what is in RAM now.
fn look(managed: u64) -> Option<Resident> {
    let resident = Resident::now()?;
    let outside = (resident.anonymous + resident.shared).saturating_sub(managed);
    if OUTSIDE[0].fetch_max(outside, Ordering::Relaxed) < outside {
        OUTSIDE[1].store(resident.shared, Ordering::Relaxed);
    }
    Some(resident)
}

/// Managed memory in RAM; in a forked child what it has inherited, most of which is one with its parent's.
fn managed() -> u64 {
    state::space().map_or(INHERITED.load(Ordering::Relaxed), |space| space.resident_bytes())
}

/// Before a fork, while the engine is at rest.
pub fn before_fork(space: &RawSpace) {
    INHERITED.store(space.resident_bytes(), Ordering::Relaxed);
}

/// Before memory is given back that is not managed: at the end it will not be seen any more.
pub fn before_unmapping(len: usize) {
    if len >= LARGE && COUNTERS.get().is_some() && !guard::inside() {
        let _guard = guard::enter();
        look(managed());
    }
}

extern "C" fn end() {
    let (Some(counters), Phase::Managed | Phase::Child) = (COUNTERS.get(), state::phase()) else { return };
    let _guard = guard::enter();
    let managed = managed();
    let Some(Resident { peak, .. }) = look(managed) else { return };
    let [outside, shared] = [0, 1].map(|at: usize| OUTSIDE[at].load(Ordering::Relaxed));
    let mut name = [0; 16];
    let comm = std::fs::read("/proc/self/comm").unwrap_or_default();
    name.iter_mut().zip(comm.trim_ascii_end().iter().take(15)).for_each(|(place, byte)| *place = *byte);
    let (pid, is_forked) = (std::process::id().into(), state::phase() == Phase::Child);
    counters.note_end(&ProcessMemory { pid, name, peak, managed, outside, shared, is_forked });
}
