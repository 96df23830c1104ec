//! What an arena's threads tell each other: that a fork is in progress, that the process has forked, and that the arena
//! ends.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::wakeup::Gate;

/// The signals of an arena.
#[derive(Default)]
pub(crate) struct Signals {
    gate: Gate,
    stopping: AtomicBool,
    has_forked: AtomicBool,
}

impl Signals {
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Whether the arena ends.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The arena ends. Its threads see that when they are next woken.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether this process has forked a child that inherited some of its folios.
    pub fn has_forked(&self) -> bool {
        self.has_forked.load(Ordering::Relaxed)
    }

    pub fn note_fork(&self) {
        self.has_forked.store(true, Ordering::Relaxed);
    }
}
