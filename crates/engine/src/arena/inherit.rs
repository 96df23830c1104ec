//! Forked children of a program that uses arenas as a library: they go on with copies of all arenas that are to be
//! inherited ([`Arena::inherit`]).
//!
//! One set of `pthread_atfork` handlers serves all arenas. Before the fork it locks their heaps, then brings each
//! engine to rest, in the order in which the arenas were added. Meanwhile the forking thread blocks all signals. In the
//! child it makes each arena the child's own before any code of the program runs; if that fails the child ends with a
//! message, because what is missing would read as zero.
//!
//! Handlers that the program registers later find all memory in place, before the fork and behind it, and may wait for
//! threads that touch it: theirs run before these in the first case, and after them in the others.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use folioswap_sys::c_thread::{self, Uncancelled};
use folioswap_sys::signals;

use crate::arena::fork::Forking;
use crate::arena::heap::{self, Held, Inner};
use crate::arena::{Arena, Running};
use crate::config::error::Error;
use crate::process::fatal;

/// The arenas with which forked children go on.
static INHERITED: Mutex<Vec<Weak<Running>>> = Mutex::new(Vec::new());

fn inherited() -> MutexGuard<'static, Vec<Weak<Running>>> {
    INHERITED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Arena {
    /// Lets children of `fork` go on with a copy of this arena: the same memory at the same addresses, and a budget and
    /// swap of their own. Without it, a child that touches the arena's memory ends by SIGSEGV. A fork then waits until
    /// the engine rests. Children of raw `clone`, `vfork` and posix_spawn are not affected.
    ///
    /// Handlers of `pthread_atfork` that touch the memory, or wait for threads that do, must be registered later than
    /// [`register_fork_handlers`] is called, which this calls otherwise.
    ///
    /// # Errors
    /// As [`register_fork_handlers`].
    pub fn inherit(&self) -> Result<(), Error> {
        register_fork_handlers()?;
        let mut inherited = inherited();
        inherited.retain(|arena| arena.strong_count() > 0);
        inherited.push(Arc::downgrade(&self.running));
        Ok(())
    }
}

/// Registers the handlers that make [`Arena::inherit`] work, if they are not registered yet. They allocate: the global
/// allocator must work in handlers that are registered now.
///
/// # Errors
/// [`Error::System`]: the handlers cannot be registered.
pub fn register_fork_handlers() -> Result<(), Error> {
    static REGISTERED: Once = Once::new();
    let mut failed = 0;
    REGISTERED.call_once(|| {
        // SAFETY: the three functions live as long as the process; a library that holds them is never unloaded,
        // because its threads run its code.
        failed = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    match failed {
        0 => Ok(()),
        number => Err(Error::system("preparing for forks")(std::io::Error::from_raw_os_error(number))),
    }
}

/// A fork under way. The guards borrow from what `kept` keeps alive, so they come before it.
struct Fork {
    forking: Vec<Forking<'static>>,
    heaps: Vec<Held<'static>>,
    listed: Listed,
    kept: Kept,
    blocked: (signals::Blocked, Uncancelled),
}

/// The lists, locked: what is added during a fork would not be at rest.
type Listed = (MutexGuard<'static, Vec<Weak<Running>>>, MutexGuard<'static, Vec<Weak<Inner>>>);

/// Boxed, so that they stay where they are.
struct Kept(Box<[Arena]>, Box<[Arc<Inner>]>);

thread_local! {
    /// Between the handlers. Never dropped with the thread, so it needs no destructor.
    static FORK: Cell<Option<ManuallyDrop<Fork>>> = const { Cell::new(None) };
}

unsafe extern "C" fn before() {
    let blocked = (signals::block_all(), c_thread::uncancelled());
    let (inherited, listed) = (inherited(), heap::heaps());
    let arenas = inherited.iter().filter_map(Weak::upgrade).map(|running| Arena { running });
    let kept = Kept(arenas.collect(), listed.iter().filter_map(Weak::upgrade).collect());
    // SAFETY: the boxes keep their content where it is, and `Fork` drops or forgets the borrows before it drops them.
    let (arenas, heaps): (&'static [Arena], &'static [Arc<Inner>]) =
        unsafe { (&*std::ptr::from_ref(&*kept.0), &*std::ptr::from_ref(&*kept.1)) };
    let heaps = heaps.iter().map(|heap| heap.hold()).collect();
    let forking = arenas.iter().map(|arena| arena.prepare_fork(|| ()).0).collect();
    FORK.set(Some(ManuallyDrop::new(Fork { forking, heaps, listed: (inherited, listed), kept, blocked })));
}

unsafe extern "C" fn in_parent() {
    let Some(fork) = FORK.take() else { return };
    let Fork { forking, heaps, listed, kept, blocked } = ManuallyDrop::into_inner(fork);
    forking.into_iter().for_each(Forking::parent);
    end(heaps, listed, kept, blocked);
}

unsafe extern "C" fn in_child() {
    let Some(fork) = FORK.take() else { return };
    let Fork { forking, heaps, listed, kept, blocked } = ManuallyDrop::into_inner(fork);
    if let Err(error) = Forking::children(forking) {
        fatal::die(&format!(
            "process {}, forked from one that uses folioswap, cannot have its memory: {error}",
            std::process::id()
        ));
    }
    end(heaps, listed, kept, blocked);
}

/// Gives up everything, in the order that the borrows need. The last owner of an arena may be dropped here.
fn end(heaps: Vec<Held<'static>>, listed: Listed, kept: Kept, blocked: (signals::Blocked, Uncancelled)) {
    drop(heaps);
    drop(listed);
    drop(blocked);
    drop(kept);
}
