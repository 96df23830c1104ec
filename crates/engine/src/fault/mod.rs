//! Delivery of faults: on the faulting thread ([`direct`]) or on threads of the engine ([`monitor`]).

pub(crate) mod device_faults;
pub(crate) mod direct;
pub(crate) mod gather;
pub(crate) mod lost;
pub(crate) mod lost_pages;
pub(crate) mod monitor;
pub(crate) mod policy;
pub(crate) mod read_queue;
pub(crate) mod readahead;
pub(crate) mod swap_in;
pub(crate) mod take;

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use folioswap_sys::uffd::Userfaultfd;

use crate::engine::Engine;
use crate::fault::device_faults::DeviceFaults;
use crate::fault::lost_pages::Lost;
use crate::fault::read_queue::{ReadQueue, Window};
use crate::process::fatal;
use crate::swap::health::SwapInError;

/// Consecutive faults of one page whose folio is in RAM, before the program is ended.
const MOST_REPEATS: u32 = 100_000;

/// Faults of an arena that are being resolved.
pub(crate) struct Faults {
    uffd: Arc<Userfaultfd>,
    lost: Lost,
    reads: ReadQueue,
    /// Held by the monitor thread that polls for the next fault instead of sleeping.
    on_watch: Mutex<()>,
    device_faults: DeviceFaults,
    /// How long a thread waits for a frame before it looks for the cause.
    patience: Duration,
    /// 1 + the count of freed frames at the last message about waiting for devices: each stall is reported once.
    stall_said: AtomicU64,
}

impl Faults {
    pub fn new(uffd: Arc<Userfaultfd>, patience: Duration) -> Self {
        Faults {
            uffd,
            lost: Lost::default(),
            reads: ReadQueue::new(),
            on_watch: Mutex::default(),
            device_faults: DeviceFaults::default(),
            patience,
            stall_said: AtomicU64::new(0),
        }
    }

    /// Requests a window of readahead. Never allocates, because signal handlers call it.
    pub fn read_ahead(&self, window: Window) {
        self.reads.push(window);
    }

    /// Whether a stall was reported.
    #[cfg(test)]
    pub fn has_said_stall(&self) -> bool {
        self.stall_said.load(std::sync::atomic::Ordering::SeqCst) > 0
    }

    /// Wakes the readahead thread to see that the arena stops.
    pub fn wake_readahead(&self) {
        self.reads.wake();
    }
}

thread_local! {
    /// The page that this thread last found present, and how often in a row.
    static LAST: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

/// Resolves the fault at `addr`. Returns `false` if the content is lost; the reason is printed to standard error.
pub(crate) fn resolve(engine: &Engine, addr: usize, thread: u32) -> bool {
    let resolved = engine.fault(engine.gate().enter(thread), engine.table().page_at(addr), thread);
    outcome(engine, resolved, addr, thread)
}

/// Evaluates the result of a fault. Ends the program if the page keeps faulting though its folio is in RAM.
fn outcome(engine: &Engine, resolved: Result<bool, SwapInError>, addr: usize, thread: u32) -> bool {
    match resolved {
        Ok(was_absent) => {
            let (page, (last, repeats)) = (engine.table().addr(engine.table().page_at(addr)), LAST.get());
            match was_absent {
                true => LAST.set((0, 0)),
                false if last != page => LAST.set((page, 1)),
                false if repeats < MOST_REPEATS => LAST.set((page, repeats + 1)),
                false => fatal::die(&format!(
                    "the page at {page:#x} is missing though its folio is in RAM: the program dropped it by a way that folioswap does not see"
                )),
            }
            true
        }
        Err(error) => {
            if error.is_news {
                fatal::say(&format!("{error}; thread {thread} gets SIGBUS, or EFAULT from its system call"));
            }
            false
        }
    }
}
