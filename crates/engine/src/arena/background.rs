//! The thread for work that nobody waits for: it keeps zeroed pageblocks in stock, frees slots and discards emptied
//! clusters, compacts frames and slots, and empties failing devices. While it is busy with one, or a device holds it
//! up, the others wait: a fault clears its pageblock itself, and a free that finds its batch full empties it.
//!
//! It runs as SCHED_BATCH, so that it does not preempt the thread that wakes it.

use crate::compact::compactd::FrameCompactor;
use crate::compact::slots::SlotCompactor;
use crate::engine::Engine;
use crate::memory::zeroed;
use crate::process::fatal::EndOnPanic;
use crate::process::threads::Starting;
use crate::relocate::evacuate::Evacuation;
use crate::swap::attached::Frees;
use crate::swap::free::Freer;

/// The thread's body. Returns when the arena stops.
pub(super) fn run(engine: &Engine, frees: Frees, starting: Starting) {
    let _end = EndOnPanic("background");
    folioswap_sys::cpu::run_as_batch();
    let wanted = engine.ram().demand().background();
    let mut freer = (frees != Frees::Synchronous).then(Freer::new);
    let (mut slots, mut evacuation) = (SlotCompactor::default(), Evacuation::default());
    let mut frames = FrameCompactor::new();
    drop(starting);
    while !engine.stopping() {
        let seen = wanted.now();
        zeroed::fill(engine.ram(), engine.table(), engine.lifecycle());
        let freeing = freer.as_mut().and_then(|freer| freer.step(engine.swap(), engine.lifecycle()));
        let pauses = [freeing, slots.step(engine), evacuation.step(engine), frames.step(engine)];
        match pauses.into_iter().flatten().min() {
            _ if engine.stopping() => {} // the stop may have been signalled before `seen` was read
            Some(pause) => wanted.wait_for(seen, pause),
            None => wanted.wait(seen),
        }
    }
}
