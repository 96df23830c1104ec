//! The engine's own threads. They block all signals, and have their own table of descriptors, by which a face tells
//! them from the program's threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) use folioswap_sys::seat::Thread;
use folioswap_sys::{futex, own_table, seat};

use crate::config::error::Error;
use crate::process::fatal;

/// Whether the calling thread is one of the engine's own. Such a thread must not be given managed memory.
#[must_use]
pub fn internal_thread() -> bool {
    own_table::inside()
}

/// A thread is being started. It drops this once it has all that it makes at its start: from then on, neither it nor
/// the C library takes memory for that.
pub(crate) struct Starting(());

impl Starting {
    fn note() -> Self {
        NR_SPAWNED.fetch_add(1, Ordering::SeqCst);
        Starting(())
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        NR_BEGUN.fetch_add(1, Ordering::SeqCst);
    }
}

pub(crate) fn spawn<T: Send + Sync + 'static>(
    job: &'static str,
    of: &Arc<T>,
    body: impl FnOnce(&T, Starting) + Send + 'static,
) -> Result<Thread, Error> {
    fatal::end_on_own_panics();
    let (of, starting) = (Arc::clone(of), Starting::note());
    let spawned = own_table::spawn(&format!("folioswap-{job}"), 256 << 10, move || {
        // For a thread's first block an allocator may want a lock that others hold while they wait for a fault.
        drop(std::hint::black_box(Box::new(0u8)));
        body(&of, starting);
    });
    spawned.map_err(Error::system("starting a thread"))
}

static NR_SPAWNED: AtomicUsize = AtomicUsize::new(0);
static NR_BEGUN: AtomicUsize = AtomicUsize::new(0);

/// Whether all threads that were spawned are through with their start.
pub(crate) fn have_begun() -> bool {
    NR_BEGUN.load(Ordering::SeqCst) >= NR_SPAWNED.load(Ordering::SeqCst)
}

/// In a forked child: its parent's threads are not here.
pub(crate) fn begin_child() {
    NR_BEGUN.store(NR_SPAWNED.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// The longest wait for threads to begin.
const PATIENCE: Duration = Duration::from_millis(100);

/// Waits until the threads that are being started are known.
pub fn wait_for_starting() {
    let begun = Instant::now();
    while !have_begun() && begun.elapsed() < PATIENCE {
        futex::sleep(Duration::from_micros(50));
    }
}

/// Whether a thread of this process, by its id, is one of the engine's own. Waits for those that are being started.
#[must_use]
pub fn is_internal(thread: u32) -> bool {
    wait_for_starting();
    seat::has(thread)
}
