//! fork: the child keeps what was in RAM, as ordinary memory, and manages nothing.
//!
//! The engine is paused and both heaps are locked around the fork. posix_spawn, system, popen and vfork do not run
//! these handlers and need not: their children share the parent's memory until they exec.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap::RawSpace;

use crate::alloc::heap::{ORDINARY, PRIVATE};
use crate::calls::dispatch;
use crate::export::{export, real};
use crate::faults::threads;
use crate::map::{known, mapping};
use crate::real::kernel;
use crate::state::{self, Phase};
use crate::{ending, guard};

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
    // SAFETY: the three functions live as long as the process, so no library handle is needed to remove them.
    if unsafe { REGISTER.get()(Some(before), Some(parent), Some(child), null_mut()) } != 0 {
        state::say("forked children will not find their memory: there was none to note what they need");
    }
}

export! {
    fn __register_atfork(prepare: Handler, parent: Handler, child: Handler, library: *mut c_void) -> c_int {
        self::prepare();
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { REGISTER.get()(prepare, parent, child, library) }
    }
}

/// What the child must not inherit as it is: memory that is wiped in it, and memory that it does not get. Only the
/// forking thread writes these.
static WIPED: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());
static NOT_FORKED: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

fn take(ranges: &Mutex<Vec<Range<usize>>>) -> Vec<Range<usize>> {
    std::mem::take(&mut ranges.lock().expect("nothing panics under this lock"))
}

/// In the child: wipes memory with `MADV_WIPEONFORK`, and unmaps memory with `MADV_DONTFORK`.
fn set_apart(space: &RawSpace) {
    for range in take(&NOT_FORKED) {
        space.not_inherited(range.clone());
        // SAFETY: managed addresses, which belong to the child alone.
        unsafe { kernel!(libc::SYS_munmap, range.start, range.len()) };
    }
    for range in take(&WIPED) {
        space.not_inherited(range.clone());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: as above.
        unsafe { mapping::kernel_mmap(range.start as *mut c_void, range.len(), mapping::PLAIN, flags, -1, 0) };
    }
}

extern "C" fn before() {
    let _guard = guard::enter();
    if let Some(space) = state::space() {
        space.fork_prepare();
        *WIPED.lock().expect("nothing panics under this lock") = known::wiped().iter().collect();
        *NOT_FORKED.lock().expect("nothing panics under this lock") = known::not_forked().iter().collect();
        ending::before_fork(space);
        ORDINARY.acquire();
        PRIVATE.acquire();
    }
}

extern "C" fn parent() {
    let _guard = guard::enter();
    if let Some(space) = state::space() {
        PRIVATE.free_lock();
        ORDINARY.free_lock();
        space.fork_parent();
    }
}

extern "C" fn child() {
    let _guard = guard::enter();
    dispatch::forget();
    if let Some(space) = state::space() {
        PRIVATE.free_lock();
        ORDINARY.free_lock();
        threads::forget_others();
        space.fork_child();
        set_apart(space);
        state::set_phase(Phase::Child);
    }
}
