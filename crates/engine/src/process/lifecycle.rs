//! Flags shared by an arena's threads: a fork is in progress, the process has forked, the arena is stopping.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::wakeup::Gate;

/// The flags of an arena.
#[derive(Default)]
pub(crate) struct Lifecycle {
    gate: Gate,
    stopping: AtomicBool,
    has_forked: AtomicBool,
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

    pub fn note_fork(&self) {
        self.has_forked.store(true, Ordering::Relaxed);
    }
}
