//! fork, for faces: the child goes on with an arena of its own. See [`crate::manage::fork`].
//!
//! A child often does nothing but start a program. So only what every child needs is made at once: a userfaultfd, swap
//! of its own, and the threads that every arena has at first ([`super::crew`]).

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use folioswap_core::BlockId;
use folioswap_sys::hidden_numbers;
use folioswap_sys::uffd::Delivery;

use super::{Arena, Running};
use crate::config::error::Error;
use crate::config::fault_mode::FaultMode;
use crate::device;
use crate::fault::holds;
use crate::manage::fork::{self, Resting};
use crate::process::threads::Thread;

/// An arena at rest while its process forks. Ends with one of its methods in each process.
pub struct Forking<'a> {
    running: &'a Arc<Running>,
    resting: Resting<'a>,
    threads: MutexGuard<'a, Vec<Thread>>,
    holds: MutexGuard<'a, HashMap<BlockId, u32>>,
}

impl Arena {
    /// To be called before fork, in the thread that forks: the arena's threads rest, and children get its memory. The
    /// calling thread has blocked all signals, and touches little: what it touches must come in. `lock` takes locks of
    /// the caller's, while the faults of their holders do not wait yet, but no thread changes what is managed any more.
    #[must_use]
    pub fn prepare_fork<L>(&self, lock: impl FnOnce() -> L) -> (Forking<'_>, L) {
        let engine = &self.running.engine;
        let unchanged = fork::keep_unchanged(engine);
        let locks = lock();
        let threads = self.running.crew.threads();
        let resting = fork::rest(engine, unchanged);
        (Forking { running: &self.running, resting, threads, holds: engine.holds().pause() }, locks)
    }
}

impl Forking<'_> {
    /// To be called after fork in the parent, also if fork failed. The arena goes on.
    pub fn parent(self) {
        self.resting.go_on();
    }

    /// To be called after fork in the child, before it touches any managed memory. The arena goes on in it, with the
    /// same budget and with swap of its own.
    ///
    /// # Errors
    /// The kernel's, and those of starting threads. The child has not its memory, and must end.
    pub fn child(self) -> Result<(), Error> {
        Forking::children(vec![self])
    }

    /// [`Forking::child`] for all arenas that go on: a child closes every other descriptor of its parent's engines.
    ///
    /// # Errors
    /// As [`Forking::child`], for any of them.
    pub(super) fn children(all: Vec<Forking<'_>>) -> Result<(), Error> {
        let kept: Vec<_> = all.iter().flat_map(|forking| forking.resting.kept_in_child()).collect();
        hidden_numbers::settle_in_child(&kept);
        all.into_iter().try_for_each(Forking::go_on_in_child)
    }

    fn go_on_in_child(self) -> Result<(), Error> {
        let Forking { running, resting, threads, mut holds } = self;
        let _raised = hidden_numbers::raise_limit(); // there is no other thread
        let held: Vec<_> = holds.drain().map(|(block, _)| block).collect();
        drop(holds);
        running.pid.store(std::process::id(), Ordering::Relaxed);
        let delivery = match running.mode {
            FaultMode::Monitor => Delivery::Monitor,
            FaultMode::Auto | FaultMode::Direct => Delivery::Sigbus,
        };
        resting.go_on_in_child(delivery).map_err(Error::system("going on in a forked child"))?;
        running.crew.begin_in_child(threads, || {
            held.into_iter().for_each(|block| holds::unpin(&running.engine, block)); // other threads held them
            running.open_own_swap()
        })
    }
}

impl Running {
    /// In a forked child: opens devices like its parent's in place of those that are files. Returns why some could not
    /// be opened: many children never need any.
    fn open_own_swap(&self) -> Vec<Error> {
        let swap = self.engine.swap();
        let mut opened: Vec<_> = self.wanted.iter().filter_map(device::open_in_child).collect();
        if self.wanted.is_empty() {
            match device::open_defaults(&self.directory) {
                Ok(devices) => opened.extend(devices.into_iter().map(Ok)),
                Err(error) => opened.push(Err(error)),
            }
        }
        opened.into_iter().filter_map(|device| device.and_then(|device| swap.devices().add(device)).err()).collect()
    }
}
