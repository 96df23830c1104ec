//! fork: the child is managed too (`folioswap::Forking`).
//!
//! The engine rests, and the locks of this library are the forking thread's. In the child the handler below runs before
//! any code of the program and of its libraries. Until then managed memory must not be touched there: what is missing
//! would read as zero. So signals are blocked, and what the C library touches is brought in first: its streams, whose
//! locks it resets, and the stack.
//!
//! posix_spawn, system, popen and vfork do not run these handlers and need not: their children share the parent's
//! memory until they exec.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap::{Arena, ExitStatus, Forking, RangeSet, RawSpace, Waited};
use folioswap_sys::{c_thread, fault_stack, signals};

use crate::alloc::huge;
use crate::calls::{aio, mirrored};
use crate::faults::{caught, cleared, net, only_thread, ours, rseq, signal_stack, threads};
use crate::ground::export::{export, real};
use crate::ground::lock::Locked;
use crate::ground::real::kernel;
use crate::ground::state::{self, Phase};
use crate::ground::{guard, heap, selector, waiting};
use crate::map::{adopt, advice, footprint, managed, ring_places};
use crate::memory::{known, resident};

type Handler = Option<extern "C" fn()>;

real!(REGISTER = c"__register_atfork": fn(Handler, Handler, Handler, *mut c_void) -> c_int);

/// Registers the fork handlers below, before all others, even those of libraries whose constructors run earlier. The
/// first registered handler runs last before a fork, and first after it. So other handlers, which may allocate or wait
/// for their own threads, find the engine running.
pub fn prepare() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::SeqCst) {
        return;
    }
    let _guard = guard::enter();
    // SAFETY: the three functions live as long as the process, so no library handle is needed to remove them.
    if unsafe { REGISTER.get()(Some(before), Some(parent), Some(child), null_mut()) } != 0 {
        state::say("forked children will not find their memory: no memory");
    }
}

export! {
    fn __register_atfork(prepare: Handler, parent: Handler, child: Handler, library: *mut c_void) -> c_int {
        self::prepare();
        // The C library reads its list of handlers in the child before the first of them has run.
        let _guard = guard::enter();
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { REGISTER.get()(prepare, parent, child, library) }
    }
}

/// Around a fork: the engine at rest, and the guard that blocks signals.
struct Fork {
    /// `None`: the engine has not started.
    resting: Option<Resting>,
    _waiting: waiting::Waiting,
    /// The C library's streams are locked, too.
    has_streams: bool,
    /// The next part of the stack. In the child nothing is counted any more.
    stack: Option<Waited>,
    _guard: guard::Guard,
}

/// The engine at rest, and the locks of this library.
struct Resting {
    forking: Forking<'static>,
    thread: u32,
    /// Before all of the engine's locks: who has these may wait for it.
    _words: cleared::Words,
    _one: mirrored::One,
    _ending: only_thread::Ending,
    _beginning: Locked<()>,
    _leaves: Leaves,
}

/// Locks under which nobody waits, but where the stack is managed, and its fault does.
struct Leaves {
    _known: [Locked<RangeSet>; known::NR_SETS],
    _blocks: huge::Blocks,
    _stacks: (threads::Stacks, signal_stack::LockedStacks),
    _requests: aio::LockedRequests,
    _key: threads::Key,
}

impl Resting {
    /// Gives the locks up. Returns the engine at rest, and the forking thread.
    fn unlock(self) -> (Forking<'static>, u32) {
        (self.forking, self.thread)
    }
}

thread_local! {
    /// Between the handlers: a box, or null. Thread-local storage is scarce under an auditor of the loader.
    static FORK: Cell<*mut Fork> = const { Cell::new(null_mut()) };
}

/// What the first handler has left. Its box is to be freed once the heaps are released.
fn take() -> Option<Box<Fork>> {
    let fork = FORK.replace(null_mut());
    // SAFETY: from a box, and nobody else has it any more.
    (!fork.is_null()).then(|| unsafe { Box::from_raw(fork) })
}

fn rest(arena: &'static Arena, has_streams: bool) -> Resting {
    if has_streams {
        streams::lock();
    }
    let (words, one, ending) = (cleared::words(), mirrored::one(), only_thread::ending());
    let beginning = known::beginning();
    let (forking, leaves) = arena.prepare_fork(|| Leaves {
        _known: known::all(),
        _blocks: huge::blocks(),
        _stacks: (threads::stacks(), signal_stack::stacks()),
        _requests: aio::requests(),
        _key: threads::key(),
    });
    Resting {
        forking,
        thread: signals::thread_id(),
        _words: words,
        _one: one,
        _ending: ending,
        _beginning: beginning,
        _leaves: leaves,
    }
}

extern "C" fn before() {
    rest_before(true);
}

/// The program's stack may be small.
fn on_a_large_stack<R>(work: impl FnOnce() -> R) -> R {
    selector::with_net_open(|| fault_stack::run(work))
}

fn rest_before(has_streams: bool) {
    let guard = guard::enter();
    if state::phase() == Phase::Early {
        return;
    }
    if known::has_userfaultfd() {
        threads::wait_for_starting(); // the kernel may wait for one of them, which would wait for a lock
    }
    let waiting = waiting::waiting(); // no other thread starts the engine meanwhile
    let stack = resident::keep_stack();
    let resting = state::arena().map(|arena| on_a_large_stack(|| rest(arena, has_streams)));
    if resting.is_some() && has_streams {
        streams::touch();
    }
    let fork = Fork { resting, _waiting: waiting, has_streams, stack, _guard: guard };
    FORK.set(Box::into_raw(Box::new(fork)));
    // Last, because who has another of these locks may allocate.
    heap::acquire_for_fork();
}

extern "C" fn parent() {
    let Some(fork) = take() else { return };
    heap::release_after_fork();
    let Fork { resting, _waiting: waiting, has_streams, stack: _stack, _guard: guard } = *fork;
    if let Some(resting) = resting {
        resting.unlock().0.parent();
        if has_streams {
            streams::unlock();
        }
    }
    drop(waiting);
    drop(guard);
}

/// Gives a child its memory.
fn go_on(resting: Resting, has_streams: bool) {
    let (forking, thread) = resting.unlock();
    if has_streams {
        streams::unlock_in_child();
    }
    if let Err(error) = forking.child() {
        state::end(
            ExitStatus::OutOfMemory,
            &format!("process {}, forked from a managed one, cannot have its memory: {error}", std::process::id()),
        );
    }
    threads::begin_child(thread);
    cleared::begin_child();
    rseq::hold();
    signal_stack::begin_child();
    signal_stack::hold_set();
    footprint::begin_child();
    known::locked().remove(0..usize::MAX); // the kernel locks nothing for a child
    if let Some(space) = state::space() {
        set_apart(space);
    }
}

extern "C" fn child() {
    guard::begin_child();
    let Some(fork) = take() else { return };
    heap::release_in_child();
    net::forget();
    caught::begin_child();
    adopt::begin_child();
    ring_places::begin_child();
    waiting::note_process();
    let Fork { resting, _waiting: waiting, has_streams, stack, _guard: guard } = *fork;
    std::mem::forget(stack);
    drop(waiting);
    if let Some(resting) = resting {
        on_a_large_stack(|| go_on(resting, has_streams));
    }
    drop(guard);
    if ours::has_ours() {
        net::arm();
    }
}

/// Runs the handlers around a call that makes a child, for which the C library runs none. The child returns here, too,
/// with zero. Such calls may be made in signal handlers, where the C library's locks may be anyone's: they stay as they
/// are.
pub fn around(call: impl FnOnce() -> isize) -> isize {
    state::keeping_errno(|| rest_before(false));
    let result = call();
    state::keeping_errno(|| {
        if result == 0 {
            c_thread::is_alone();
            child();
        } else {
            parent();
        }
    });
    result
}

/// In the child: wipes memory with `MADV_WIPEONFORK`, and unmaps memory with `MADV_DONTFORK`.
fn set_apart(space: &RawSpace) {
    let take = |set: Locked<RangeSet>| set.iter().collect::<Vec<_>>();
    for range in take(known::not_forked()) {
        // The kernel has kept the rest from the child. Something else may be there by now.
        for part in space.managed_parts(range.clone()) {
            // SAFETY: the program wants this memory not to be in children.
            unsafe { space.forget(part.clone(), || kernel!(libc::SYS_munmap, part.start, part.len())) };
        }
        known::forget(&range);
    }
    for range in take(known::wiped()) {
        // In the kernel, guards go with the content.
        for part in known::guarded().remove(range.clone()) {
            // SAFETY: the program wants this memory to be zeroed in children.
            unsafe { kernel!(libc::SYS_madvise, part.start, part.len(), advice::MADV_GUARD_REMOVE) };
            managed::manage(space, part);
        }
        // The kernel has wiped the rest.
        for part in space.managed_parts(range) {
            // SAFETY: as above.
            unsafe { space.discard(part.start, part.len()) };
        }
    }
}

/// The C library's list of streams.
mod streams {
    use super::*;

    type File = *mut u8;

    real!(LOCK = c"_IO_list_lock": fn() -> ());
    real!(UNLOCK = c"_IO_list_unlock": fn() -> ());
    real!(RESET = c"_IO_list_resetlock": fn() -> ());
    real!(BEGIN = c"_IO_iter_begin": fn() -> File);
    real!(END = c"_IO_iter_end": fn() -> File);
    real!(NEXT = c"_IO_iter_next": fn(File) -> File);

    /// Where a stream has the address of its lock (`struct _IO_FILE`, part of glibc's ABI).
    const LOCK_FIELD: usize = 0x88;

    pub fn lock() {
        // SAFETY: takes no arguments. The lock is recursive.
        unsafe { LOCK.get()() }
    }

    pub fn unlock() {
        // SAFETY: this thread has locked it.
        unsafe { UNLOCK.get()() }
    }

    pub fn unlock_in_child() {
        // SAFETY: there is no other thread.
        unsafe { RESET.get()() }
    }

    /// Brings all streams and their locks in.
    pub fn touch() {
        // SAFETY: the list is locked. Its streams are valid, and their locks too, if they have any.
        unsafe {
            let mut stream = BEGIN.get()();
            while stream != END.get()() {
                let lock = stream.add(LOCK_FIELD).cast::<*const u8>().read_volatile();
                if !lock.is_null() {
                    lock.read_volatile();
                }
                stream = NEXT.get()(stream);
            }
        }
    }
}
