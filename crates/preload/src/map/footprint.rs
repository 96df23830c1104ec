//! What a process has in RAM beside its managed memory, so that `run` can report it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use folioswap::{ProcessMemory, RawSpace};
use folioswap_sys::resident::{Resident, Unseen};
use folioswap_sys::{fault_stack, own_calls, own_table, pagemap};

use crate::ground::heap::{Heap, ORDINARY, PRIVATE};
use crate::ground::real::own;
use crate::ground::state::{self, Phase};
use crate::ground::{counters, guard, waiting};
use crate::map::adopt;
use crate::memory::known;

/// How much is unmapped between two looks at the process's memory.
const LARGE: usize = 8 << 20;

/// Memory in RAM from which on a process is recorded that has run without the engine. `run` has nothing to say of less.
const LITTLE: u64 = 16 << 20;

/// The highest unmanaged memory seen so far, and in it the shared memory, private pages of files, and memory of
/// threads.
static OUTSIDE: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Whether the process was recorded at its end.
static IS_RECORDED: AtomicBool = AtomicBool::new(false);

/// Samples what is in RAM now.
fn look(managed: u64) -> Option<Resident> {
    /// The unmanaged memory when the list of mappings was last read, which takes long.
    static LISTED: AtomicU64 = AtomicU64::new(0);
    let resident = Resident::now()?;
    // There is room for it, or it is in the budget; and the engine's records.
    let in_ram = |heap: &'static Heap| own_table::briefly(|| pagemap::resident_bytes(heap.span())).unwrap_or(0);
    let kept = match adopt::is_later() {
        true => known::ordinary_bytes(),
        false => known::share_with(in_ram(&ORDINARY) as usize),
    };
    let others = managed + kept as u64 + in_ram(&PRIVATE);
    let outside = (resident.anonymous + resident.shared).saturating_sub(others);
    if OUTSIDE[0].fetch_max(outside, Ordering::Relaxed) < outside {
        OUTSIDE[1].store(resident.shared, Ordering::Relaxed);
        let listed = LISTED.load(Ordering::Relaxed);
        if outside > LITTLE.max(listed + listed / 2) {
            LISTED.store(outside, Ordering::Relaxed);
            let unseen = Unseen::of("self").unwrap_or_default();
            OUTSIDE[2].store(unseen.of_files, Ordering::Relaxed);
            // What goes meanwhile is mostly stacks of threads that end together.
            let gone = resident.anonymous.saturating_sub(Resident::now()?.anonymous);
            OUTSIDE[3].store(unseen.of_threads + gone, Ordering::Relaxed);
        }
    }
    Some(resident)
}

/// Called before a thread ends, with which its stack and thread-local data go. Looks once in a while.
pub fn before_thread_ends() {
    const PAUSE_MS: u64 = 16;
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    if !matches!(state::phase(), Phase::Managed | Phase::Waiting) || own_calls::is_used() {
        return;
    }
    let mut time = std::mem::MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: fills in the structure, which is valid as zeros, too.
    let time = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, time.as_mut_ptr());
        time.assume_init()
    };
    let turn = (time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000) / PAUSE_MS;
    if LOOKED.swap(turn, Ordering::Relaxed) != turn {
        let _guard = guard::enter();
        state::keeping_errno(|| fault_stack::run_if_small(|| look(managed())));
    }
}

/// Managed memory in RAM.
fn managed() -> u64 {
    state::space().map_or(0, RawSpace::resident_bytes)
}

/// Called in a forked child: what was seen is its parent's.
pub fn begin_child() {
    OUTSIDE.iter().for_each(|seen| seen.store(0, Ordering::Relaxed));
    IS_RECORDED.store(false, Ordering::Relaxed);
}

/// Called before unmanaged memory of the program's is unmapped, which would not be seen at the end.
pub fn before_unmapping(len: usize) {
    static UNMAPPED: AtomicUsize = AtomicUsize::new(0);
    if counters::get().is_some() && !own_calls::is_used() && UNMAPPED.fetch_add(len, Ordering::Relaxed) + len >= LARGE {
        UNMAPPED.store(0, Ordering::Relaxed);
        let _guard = guard::enter();
        fault_stack::run_if_small(|| look(managed()));
    }
}

/// Records the memory now: soon the program's filter may refuse to open files.
pub fn before_filter() {
    if !own_calls::is_used() {
        record();
    }
}

/// The most memory that this process had in RAM.
fn peak() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the structure, which is valid as zeros, too.
    unsafe {
        own!(libc::SYS_getrusage, libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init().ru_maxrss as u64 * 1024
    }
}

/// Called at the end of the process, by its destructors.
pub fn at_end() {
    if !IS_RECORDED.swap(true, Ordering::Relaxed) {
        record();
    }
}

/// Called where the process ends without its destructors, perhaps after them. Many small children do.
pub fn at_sudden_end() {
    if waiting::is_own_process() && peak() > LITTLE {
        at_end();
    }
}

fn record() {
    if state::phase() == Phase::Waiting
        && peak() > LITTLE
        && let Some(counters) = waiting::counters()
    {
        counters::note_in(counters);
    }
    let (Some(counters), Phase::Managed | Phase::Waiting) = (counters::get(), state::phase()) else { return };
    if own_calls::is_used() {
        return; // recorded before
    }
    let _guard = guard::enter();
    let managed = managed();
    let Some(Resident { peak, .. }) = look(managed) else { return };
    let [outside, shared, of_files, of_threads] = OUTSIDE.each_ref().map(|seen| seen.load(Ordering::Relaxed));
    let mut name = [0; 16];
    let comm = own_table::briefly(|| std::fs::read("/proc/self/comm")).unwrap_or_default();
    name.iter_mut().zip(comm.trim_ascii_end().iter().take(15)).for_each(|(place, byte)| *place = *byte);
    let pid = std::process::id().into();
    counters.note_end(&ProcessMemory { pid, name, peak, managed, outside, shared, of_files, of_threads });
}
