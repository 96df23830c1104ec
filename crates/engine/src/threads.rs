//! The engine's own threads: all signals blocked, and marked, so that a face knows them from the program's.

use std::cell::Cell;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::engine::Engine;
use crate::error::Error;

thread_local! {
    static INTERNAL: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one of the engine's own. Such a thread must not be given managed memory.
#[must_use]
pub fn internal_thread() -> bool {
    INTERNAL.get()
}

/// A running thread.
pub(crate) struct Thread(JoinHandle<()>);

impl Thread {
    pub fn join(self) {
        // A thread that panicked has aborted the process.
        let _ = self.0.join();
    }
}

pub(crate) fn spawn(
    job: &'static str,
    engine: &Arc<Engine>,
    body: impl FnOnce(&Engine) + Send + 'static,
) -> Result<Thread, Error> {
    let engine = Arc::clone(engine);
    let blocked = folioswap_sys::signals::block_all();
    let spawned = std::thread::Builder::new()
        .name(format!("folioswap-{job}").chars().take(15).collect())
        .stack_size(256 << 10)
        .spawn(move || {
            INTERNAL.set(true);
            body(&engine);
        });
    drop(blocked);
    spawned.map(Thread).map_err(Error::system("starting a thread"))
}
