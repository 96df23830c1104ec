//! Faults resolved by the thread that has them, in its SIGBUS handler.
//!
//! One handler serves all arenas of the process. It finds the arena by the address; a fault that is in none goes on to
//! whoever was installed before. The list of arenas is written only while one is built or dropped, by threads that
//! touch no managed memory meanwhile, so a handler never waits for its own thread. It runs on a stack of the engine's:
//! what a thread has for its signals is too small.

use std::sync::{Arc, RwLock};

use folioswap_sys::{fault_stack, sigbus, signals};

use crate::engine::Engine;
use crate::error::Error;

static ENGINES: RwLock<Vec<Arc<Engine>>> = RwLock::new(Vec::new());

/// Has the faults of an arena resolved by the threads that have them.
pub(crate) fn attach(engine: &Arc<Engine>) -> Result<(), Error> {
    ENGINES.write().expect("nothing panics under this lock").push(Arc::clone(engine));
    sigbus::install(on_sigbus).map_err(Error::system("installing the SIGBUS handler"))
}

pub(crate) fn detach(engine: &Arc<Engine>) {
    ENGINES.write().expect("nothing panics under this lock").retain(|other| !Arc::ptr_eq(other, engine));
}

fn on_sigbus(addr: usize, _write: bool) -> sigbus::Handled {
    if fault_stack::call(resolve, addr) { sigbus::Handled::Yes } else { sigbus::Handled::No }
}

extern "C" fn resolve(addr: usize) -> bool {
    let engine = {
        let engines = ENGINES.read().expect("nothing panics under this lock");
        engines.iter().find(|engine| engine.contains(addr)).cloned()
    };
    engine.is_some_and(|engine| super::resolve(&engine, addr, signals::thread_id()))
}
