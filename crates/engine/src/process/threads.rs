//! The engine's own threads. They block all signals, and have their own table of descriptors, by which a face tells
//! them from the program's threads.

use std::sync::{Arc, Once};
use std::thread::JoinHandle;

use folioswap_sys::own_table;

use crate::config::error::Error;
use crate::process::fatal;

/// Whether the calling thread is one of the engine's own. Such a thread must not be given managed memory.
#[must_use]
pub fn internal_thread() -> bool {
    own_table::inside()
}

/// A running thread.
pub(crate) struct Thread(JoinHandle<()>);

impl Thread {
    pub fn join(self) {
        // A thread that panicked has aborted the process.
        let _ = self.0.join();
    }
}

pub(crate) fn spawn<T: Send + Sync + 'static>(
    job: &'static str,
    of: &Arc<T>,
    body: impl FnOnce(&T) + Send + 'static,
) -> Result<Thread, Error> {
    say_panics();
    let of = Arc::clone(of);
    let spawned = own_table::spawn(&format!("folioswap-{job}"), 256 << 10, move || body(&of));
    spawned.map(Thread).map_err(Error::system("starting a thread"))
}

/// Prints panics of these threads, whose own table has no standard error, on the program's standard error.
fn say_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |about| {
            if internal_thread() {
                fatal::say(&about.to_string());
            } else {
                before(about);
            }
        }));
    });
}
