//! Faults that may wait for a device, so that they never occupy all monitor threads.

use std::collections::VecDeque;
use std::sync::Mutex;

/// Threads that may wait for a device at the same time.
pub(crate) const NR_WAITING: usize = 8;

/// A fault to be resolved.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    pub addr: usize,
    pub thread: u32,
}

/// Faults that may wait for a device, or for reclaim to write to one before a frame is free. At most [`NR_WAITING`] of
/// them are resolved at a time, each by the thread that read it. A thread that reads a further one queues it here, and
/// the resolving threads take it from the queue when they are done.
#[derive(Default)]
pub(crate) struct DeviceFaults(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    nr_resolving: usize,
    queue: VecDeque<Fault>,
}

impl DeviceFaults {
    /// Whether the calling thread resolves this fault, and must then call [`DeviceFaults::next`]. If not, the fault was
    /// queued.
    pub fn begin(&self, fault: Fault) -> bool {
        let mut waiting = self.0.lock().expect("nothing panics under this lock");
        if waiting.nr_resolving == NR_WAITING {
            waiting.queue.push_back(fault);
            return false;
        }
        waiting.nr_resolving += 1;
        true
    }

    /// The next queued fault for a thread that has resolved one. `None` ends its turn.
    pub fn next(&self) -> Option<Fault> {
        let mut waiting = self.0.lock().expect("nothing panics under this lock");
        let next = waiting.queue.pop_front();
        if next.is_none() {
            waiting.nr_resolving -= 1;
        }
        next
    }
}
