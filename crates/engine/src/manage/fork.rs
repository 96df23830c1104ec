//! fork: the child is managed too. It has what its parent had at that moment: from RAM copy-on-write, from swap by
//! reading its parent's devices.
//!
//! The child's memory holds a copy of the whole engine. So a fork brings the engine to rest: nobody is inside the gate,
//! no transfer is under way, and the locks that threads hold outside the gate are the forking thread's. All managed
//! memory, which is kept from the children of other forks (`MADV_DONTFORK`), is let through together with the frames'
//! homes (`MADV_DOFORK`). Slots on files that are in use stay as they are until all descendants are gone (`swap/held`);
//! devices in memory are copied.
//!
//! The child gets a userfaultfd of its own for the same addresses before any of its own code runs. Its folio table,
//! zones and lists go on as they are. Pages that it shares with its parent are copied when they are written, or when
//! they leave RAM: the kernel does not move shared pages.

use std::io;
use std::ops::Range;
use std::sync::MutexGuard;

use folioswap_sys::descendants::Tie;
use folioswap_sys::descriptor::Descriptor;
use folioswap_sys::hidden_numbers::KeptNumber;
use folioswap_sys::uffd::Delivery;
use folioswap_sys::{hidden_numbers, kept, memory, signals};

use crate::engine::Engine;
use crate::manage::pages;
use crate::process::fatal;
use crate::reclaim::write_out;
use crate::relocate::remove;

/// What the kernel's madvise says of a range of which a part is not mapped. It has changed the rest.
const UNMAPPED: i32 = libc::ENOMEM;

pub(crate) struct Resting<'e> {
    engine: &'e Engine,
    _unchanged: Unchanged<'e>,
    managed: Vec<Range<usize>>,
    tie: Option<Tie>,
    fork: u64,
}

/// Other threads do not change devices and what is managed.
pub(crate) struct Unchanged<'e>(#[expect(dead_code, reason = "held")] [MutexGuard<'e, ()>; 2]);

/// Keeps other threads from changing these. After many forks, first takes what is left on the devices of this process's
/// ancestors to its own, so that the child has places for its devices.
pub(crate) fn keep_unchanged(engine: &Engine) -> Unchanged<'_> {
    let devices = engine.swap().devices().changing();
    if engine.swap().devices().lacks_places_for_child() {
        remove::remove_foreign(engine);
    }
    Unchanged([devices, engine.table().changing()])
}

/// Brings the engine to rest. The calling thread is the one that forks; its own faults are still resolved.
pub(crate) fn rest<'e>(engine: &'e Engine, unchanged: Unchanged<'e>) -> Resting<'e> {
    engine.gate().close(signals::thread_id());
    engine.uffd().wake_late(true); // else this thread might go on before a monitor has let go of its locks
    engine.writeback().transfers().wait();
    write_out::settle_rest(engine);
    engine.swap().devices().end_held(|fork| engine.lifecycle().is_over(fork));
    let (fork, tie) = engine.lifecycle().begin_fork();
    engine.swap().devices().share_with_child(fork);
    for descriptor in kept::all() {
        let _ = descriptor.be_inherited(); // a child that needs it says so
    }
    let managed: Vec<_> =
        engine.table().in_use().into_iter().flat_map(|blocks| pages::managed_in(engine, blocks)).collect();
    let resting = Resting { engine, _unchanged: unchanged, managed, tie, fork };
    let refused = resting.each_range(memory::dofork);
    if let Some(error) = refused {
        fatal::say(&format!("a child will lack a part of its memory: {error}"));
    }
    hidden_numbers::child_settles(true);
    resting
}

impl Resting<'_> {
    /// Calls `change` with each range of managed memory and of homes. What the kernel refuses, because there are too
    /// many mappings, is not mapped in the child. Returns the reason, unless it is that the program has unmapped a part
    /// by a way that is not seen.
    fn each_range(&self, change: impl Fn(usize, usize) -> io::Result<()>) -> Option<io::Error> {
        let homes = self.engine.ram().frames().all();
        let refused = self.managed.iter().chain([&homes]).map(|range| change(range.start, range.len()));
        let refused: Vec<_> = refused.filter_map(Result::err).collect(); // all ranges are changed
        let is_told = |error: &io::Error| error.raw_os_error() != Some(UNMAPPED);
        refused.into_iter().find(is_told)
    }

    /// In the parent, or when there is no child: the engine goes on.
    pub fn go_on(self) {
        let engine = self.engine;
        if engine.gate().was_used_by_closer() {
            // A fault may have written something after what was shared first.
            engine.swap().devices().share_again(self.fork);
        }
        hidden_numbers::child_settles(false);
        self.each_range(memory::dontfork);
        engine.swap().devices().end_sharing();
        engine.uffd().wake_late(false);
        engine.ram().mapper().note_fork();
        drop(self.tie);
        engine.gate().open();
    }

    /// In the child, before any of its code: what this engine keeps of its parent's descriptors. To be settled for all
    /// engines at once.
    pub fn kept_in_child(&self) -> Vec<KeptNumber> {
        let mut kept = self.engine.swap().devices().kept_in_child();
        kept.extend(kept::all().map(Descriptor::kept_number));
        kept
    }

    /// In the child, whose descriptors are settled, before any of its code: makes the copy of the engine the child's
    /// own. Its threads are yet to be started.
    ///
    /// # Errors
    /// The kernel's. The child cannot go on.
    pub fn go_on_in_child(mut self, delivery: Delivery) -> io::Result<()> {
        let engine = self.engine;
        engine.gate().inherit(signals::thread_id());
        std::mem::forget(self.tie.take());
        engine.swap().devices().enter_child();
        for descriptor in kept::all() {
            let _ = descriptor.keep_in_child(); // what needs it says so
        }
        engine.swap().devices().keep_in_child();
        self.renew(delivery)?;
        self.each_range(memory::dontfork);
        engine.swap().devices().end_sharing();
        engine.table().forget_locked();
        engine.forget_threads();
        engine.policy().forget();
        engine.ram().neighbours().forget();
        engine.ram().backing().forget_lock();
        engine.ram().demand().forget_waiters();
        engine.ram().mapper().note_fork();
        engine.uffd().wake_late(false);
        engine.gate().open();
        Ok(())
    }

    fn renew(&self, delivery: Delivery) -> io::Result<()> {
        let engine = self.engine;
        engine.uffd().renew(delivery)?;
        engine.ram().mapper().pagemap().renew()?;
        engine.lifecycle().begin_child()?;
        for range in engine.ram().backing().registered().chain(self.managed.iter().cloned()) {
            engine.uffd().register(range.start, range.len())?;
        }
        Ok(())
    }
}
