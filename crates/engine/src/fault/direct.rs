//! Direct mode: the faulting thread resolves its fault in its SIGBUS handler.
//!
//! One handler serves all arenas of the process. It finds the arena by the fault address; a fault outside all arenas
//! goes on to the handler that was installed before. Under `run` that one handler is preload's, which is there from
//! the beginning and asks [`RawSpace::on_fault`](crate::RawSpace::on_fault); this one is not installed then.
//! The list of arenas is written only while an arena is built or dropped. The threads that do this touch no managed
//! memory meanwhile, so a handler never waits for its own thread. The handler runs on a stack of the engine: a thread's
//! signal stack is too small.

use std::sync::{Arc, RwLock};

use folioswap_sys::{fault_stack, sigbus, signals};

use crate::config::error::Error;
use crate::engine::Engine;
use crate::fault::resolve;

static ENGINES: RwLock<Vec<Arc<Engine>>> = RwLock::new(Vec::new());

/// Resolves faults of this arena on the faulting threads from now on.
pub(crate) fn attach(engine: &Arc<Engine>) -> Result<(), Error> {
    let _blocked = signals::block_all(); // a handler's fault asks for the list
    ENGINES.write().expect("nothing panics under this lock").push(Arc::clone(engine));
    if sigbus::is_fronted(libc::SIGBUS) {
        return Ok(());
    }
    sigbus::install(on_sigbus).map_err(Error::system("installing the SIGBUS handler"))
}

/// Calls `change`, which may change the action for SIGBUS, as if there were no handler of the engine's: what it finds
/// and leaves there is the action behind that handler. The faults of other threads are not resolved meanwhile, so it
/// must be short. For language runtimes with a handler of their own.
///
/// # Errors
/// The kernel's.
pub fn behind_sigbus<R>(change: impl FnOnce() -> R) -> Result<R, Error> {
    sigbus::behind(change).map_err(Error::system("changing the SIGBUS handler"))
}

pub(crate) fn detach(engine: &Arc<Engine>) {
    let _blocked = signals::block_all();
    ENGINES.write().expect("nothing panics under this lock").retain(|other| !Arc::ptr_eq(other, engine));
}

fn on_sigbus(addr: usize, _write: bool) -> sigbus::Handled {
    if fault_stack::call(on_other_stack, addr) { sigbus::Handled::Yes } else { sigbus::Handled::No }
}

extern "C" fn on_other_stack(addr: usize) -> bool {
    let engine = {
        let engines = ENGINES.read().expect("nothing panics under this lock");
        let is_in_use = |engine: &&Arc<Engine>| {
            engine.table().contains(addr) && engine.table().is_open(engine.table().page_at(addr).block())
        };
        // Else the fault may have been reported before the addresses were given up.
        let found =
            engines.iter().find(is_in_use).or_else(|| engines.iter().find(|engine| engine.table().contains(addr)));
        found.cloned()
    };
    engine.is_some_and(|engine| resolve::resolve(&engine, addr, signals::thread_id()))
}
