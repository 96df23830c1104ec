//! Flags shared by an arena's threads: a fork is in progress, the process has forked, the arena is stopping.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::wakeup::Gate;

/// The flags of an arena.
#[derive(Default)]
pub(crate) struct Lifecycle {
    gate: Gate,
    stopping: AtomicBool,
    has_forked: AtomicBool,
    /// Addresses that the child of a fork in progress inherits.
    inherited: Mutex<Vec<Range<usize>>>,
}

impl Lifecycle {
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Whether the arena is stopping.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Stops the arena. Its threads see that when they are next woken.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether this process has forked a child that inherited some of its folios.
    pub fn has_forked(&self) -> bool {
        self.has_forked.load(Ordering::Relaxed)
    }

    /// Notes addresses that the child of a fork in progress inherits.
    pub fn note_inherited(&self, addresses: Range<usize>) {
        self.inherited.lock().expect("nothing panics under this lock").push(addresses);
    }

    /// Takes what was noted.
    pub fn take_inherited(&self) -> Vec<Range<usize>> {
        std::mem::take(&mut *self.inherited.lock().expect("nothing panics under this lock"))
    }

    pub fn note_fork(&self) {
        self.has_forked.store(true, Ordering::Relaxed);
    }
}
