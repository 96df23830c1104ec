//! What is to be read ahead. Signal handlers note it, so that never allocates. The queue's lock is a leaf.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;

use folioswap_core::{BlockId, CpuId};

use crate::process::wakeup::Event;

/// Most windows that wait to be read. Further ones are dropped.
const QUEUE: usize = 256;

/// Blocks to be read. In the marker's block, the folio that the stream meets first stays unmapped.
#[derive(Clone)]
pub(crate) struct Window {
    pub blocks: Range<BlockId>,
    pub marker: Option<BlockId>,
    /// The program has asked for it, so it is no guess.
    pub is_asked: bool,
    pub backward: bool,
    /// The CPU on which they will be used.
    pub cpu: CpuId,
}

pub(crate) struct ReadQueue {
    windows: Mutex<VecDeque<Window>>,
    pushed: Event,
}

impl ReadQueue {
    pub fn new() -> Self {
        ReadQueue { windows: Mutex::new(VecDeque::with_capacity(QUEUE)), pushed: Event::default() }
    }

    /// Requests a window. Never allocates, because signal handlers call it.
    pub fn push(&self, window: Window) {
        let mut windows = self.windows.lock().expect("nothing panics under this lock");
        if windows.len() < QUEUE {
            windows.push_back(window);
            drop(windows);
            self.pushed.signal();
        }
    }

    pub fn pop(&self) -> Option<Window> {
        self.windows.lock().expect("nothing panics under this lock").pop_front()
    }

    /// To be read before the queue is looked at, and given to the wait that follows.
    pub fn now(&self) -> u32 {
        self.pushed.now()
    }

    /// Waits for a window, unless one was requested since `seen`.
    pub fn wait(&self, seen: u32) {
        self.pushed.wait(seen);
    }

    /// Wakes the thread to see that the arena stops.
    pub fn wake(&self) {
        self.pushed.signal();
    }
}
