//! The process before the engine runs: the settings with which it is to start, and when it does.
//!
//! **Locking.** [`waiting`] is held while the engine is built, so that other threads wait for it.

use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};

use folioswap::{Error, RunSettings, SharedCounters};

use crate::ground::lock::{Lock, Locked};
use crate::ground::state::{self, Phase};
use crate::ground::{counters, guard};

/// Starts the engine.
pub type Begin = fn(RunSettings) -> Result<(), Error>;

/// The settings until the engine starts, and what starts it with them.
type Settings = Option<(RunSettings, Begin)>;

static WAITING: Lock<Settings> = Lock::new(None);

/// [`WAITING`], locked.
pub type Waiting = Locked<Settings>;

pub fn waiting() -> Waiting {
    WAITING.lock()
}

/// The process that waits: not a child that shares its memory until it executes a program.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// From here on the process waits for the engine, which `begin` starts.
pub fn wait(settings: RunSettings, begin: Begin) {
    *waiting() = Some((settings, begin));
    note_process();
    state::set_phase(Phase::Waiting);
}

/// Notes which process waits, also in a forked child: it waits as its parent did.
pub fn note_process() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
}

/// Starts the engine, unless it was started. The caller is the process's only thread, but for those of the C library's.
pub fn begin_now(waiting: &mut Waiting) -> Result<(), Error> {
    waiting.take().map_or(Ok(()), |(settings, begin)| begin(settings))
}

/// Called before something for which the engine must run: starts it, unless it runs or is not wanted. If that fails,
/// says so, and the program goes on without it.
pub fn now() {
    if state::phase() != Phase::Waiting || guard::inside() || !is_own_process() {
        return;
    }
    let _guard = guard::enter();
    state::keeping_errno(|| {
        let begun = begin_now(&mut waiting());
        if let Err(error) = begun {
            pass(&error);
        }
    });
}

/// The program goes on without the engine, which says why.
pub fn pass(why: &dyn Display) {
    state::set_phase(Phase::Passing);
    counters::note_unpaged();
    state::say(&format!("note: the memory of process {} is not paged: {why}", std::process::id()));
}

/// The same, where the engine has not tried to start.
pub fn never_with(settings: &RunSettings, why: &dyn Display) {
    counters::of(settings).into_iter().for_each(counters::note_in);
    pass(why);
}

/// Called after something with which the engine cannot run: if it has not started, it never does.
pub fn never(why: &str) {
    if state::phase() == Phase::Waiting && !guard::inside() {
        let _guard = guard::enter();
        state::keeping_errno(|| {
            counters().into_iter().for_each(counters::note_in);
            pass(&why);
        });
    }
}

/// Whether this is the process that has the memory: not a child that shares it until it executes a program.
pub fn is_own_process() -> bool {
    guard::own_process() == PROCESS.load(Ordering::Relaxed)
}

/// The counters of the run, of which the engine does not know yet. `None`: it is not to have them, or the command has
/// ended, and nobody would print them.
pub fn counters() -> Option<&'static SharedCounters> {
    let _guard = guard::enter();
    waiting().as_ref().and_then(|(settings, _)| counters::of(settings))
}
