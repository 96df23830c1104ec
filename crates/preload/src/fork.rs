//! fork: the child keeps what was in RAM, as ordinary memory, and manages nothing.
//!
//! Around the fork the engine pauses and both heaps are at rest. posix_spawn, system, popen and vfork do not come
//! through here, and need not: their children share the parent's memory until they exec.

use crate::heap::{ORDINARY, PRIVATE};
use crate::state::{self, Phase};
use crate::{guard, threads};

/// Has the functions below called around each fork.
pub fn prepare() {
    if let Err(error) = folioswap_sys::fork::at_fork(before, parent, child) {
        state::say(&format!("forked children will not find their memory: {error}"));
    }
}

extern "C" fn before() {
    let _guard = guard::enter();
    if let Some(space) = state::space() {
        space.fork_prepare();
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
    if let Some(space) = state::space() {
        PRIVATE.free_lock();
        ORDINARY.free_lock();
        threads::forget_others();
        space.fork_child();
        state::set_phase(Phase::Child);
    }
}
