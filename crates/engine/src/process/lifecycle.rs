//! Flags shared by an arena's threads (a fork is in progress, the arena is stopping), and the
//! forks that have descendants.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use folioswap_sys::descendants::{Descendants, Tie};

use crate::process::fatal;
use crate::process::wakeup::Gate;

/// Stands for a fork of which it cannot be known when its descendants are gone.
const FOR_GOOD: u64 = 0;

/// The flags of an arena.
pub(crate) struct Lifecycle {
    gate: Gate,
    stopping: AtomicBool,
    nr_forks: AtomicU64,
    /// Made early: when the program forks it may have used all descriptors.
    descendants: Descendants,
}

impl Lifecycle {
    pub fn new(descendants: Descendants) -> Self {
        Lifecycle { gate: Gate::default(), stopping: AtomicBool::new(false), nr_forks: AtomicU64::new(0), descendants }
    }

    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Stops the arena. Its threads see that when they are next woken.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Gives a fork its number, and what tells when its descendants are gone.
    pub fn begin_fork(&self) -> (u64, Option<Tie>) {
        let number = self.nr_forks.fetch_add(1, Ordering::Relaxed) + 1;
        match self.descendants.tie(number) {
            Ok(tie) => (number, Some(tie)),
            Err(error) => {
                fatal::say(&format!("slots that a child may read are kept for good: {error}"));
                (FOR_GOOD, None)
            }
        }
    }

    /// Whether the descendants of a fork are gone.
    pub fn is_over(&self, fork: u64) -> bool {
        fork != FOR_GOOD && self.descendants.have_ended(fork).unwrap_or(false)
    }

    /// In a forked child: it has no descendants yet.
    ///
    /// # Errors
    /// EMFILE and the like.
    pub fn begin_child(&self) -> io::Result<()> {
        self.descendants.renew()
    }
}
