//! The background thread frees slots, so that faults and unmaps need not.
//!
//! A freed slot goes to its cluster at once if that is cheap (`attached`). Others are collected in batches per CPU and
//! device (`core::swap::SlotCache`). A full batch wakes the thread, which gives it to the clusters. A free that still
//! finds its batch full empties it itself, so nothing waits for the thread. The thread also discards emptied clusters
//! (`discard`), so any free wakes it if it sleeps. Then it is *on watch*: it flushes all batches every
//! [`FLUSH_INTERVAL`], and sleeps once nothing was freed in between; while slots that were freed are held for
//! descendants of a fork, it looks after them every [`FORK_POLL_INTERVAL`].
//!
//! **Locking.** The thread holds the fork gate while it frees, so no batch or cluster is locked during a fork. It waits
//! for the disk outside the gate. A forked child starts its own when memory first runs short; frees work without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use folioswap_sys::signals;

use crate::process::lifecycle::Lifecycle;
use crate::process::wakeup::Event;
use crate::swap::discard::{Discards, Next};
use crate::swap::space::SwapSpace;

/// Interval between flushes of batches that do not fill. A freed slot waits for at most twice as long.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// Interval between looks at whether the descendants of forks that hold slots are gone.
const FORK_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What wakes the thread.
pub(crate) struct Freeing {
    background: Arc<Event>,
    /// It will look at all batches again without being woken, or it frees nothing.
    pub on_watch: AtomicBool,
}

impl Freeing {
    /// `synchronous`: the thread frees nothing.
    pub fn new(synchronous: bool, background: Arc<Event>) -> Self {
        Freeing { background, on_watch: AtomicBool::new(synchronous) }
    }

    pub fn wake(&self) {
        self.background.signal();
    }

    /// Whether the caller must wake the thread to look at what was just freed. Only one caller gets `true` per watch.
    pub fn begin_watch(&self) -> bool {
        // Pairs with the fence in `sweep`: the sweep sees what was freed, or this load sees that the
        // watch has ended.
        fence(Ordering::SeqCst);
        !self.on_watch.load(Ordering::Relaxed) && !self.on_watch.swap(true, Ordering::SeqCst)
    }
}

/// The thread's state of this work.
pub(crate) struct Freer {
    discards: Discards,
    /// When all batches were last flushed, or the watch began.
    swept: Instant,
    /// When it last looked whether descendants are gone.
    looked: Instant,
    is_idle: bool,
}

impl Freer {
    pub fn new() -> Self {
        Freer { discards: Discards::default(), swept: Instant::now(), looked: Instant::now(), is_idle: true }
    }

    /// Frees what is due. Returns how long there is nothing to do; `None`: until the thread is woken.
    pub fn step(&mut self, space: &SwapSpace, lifecycle: &Lifecycle) -> Option<Duration> {
        let gate = lifecycle.gate();
        let pass = gate.enter(signals::thread_id());
        free_full(space);
        if space.devices().has_freed_held() && self.looked.elapsed() >= FORK_POLL_INTERVAL {
            self.looked = Instant::now();
            space.devices().end_held(|fork| lifecycle.is_over(fork));
        }
        let awaits_descendants = space.devices().has_freed_held();
        if std::mem::replace(&mut self.is_idle, false) {
            self.swept = Instant::now(); // woken: the watch begins
        } else if self.swept.elapsed() >= FLUSH_INTERVAL {
            self.swept = Instant::now();
            self.is_idle = !sweep(space);
        }
        drop(pass);
        let watch = match (self.is_idle, awaits_descendants) {
            (false, _) => Some(FLUSH_INTERVAL.saturating_sub(self.swept.elapsed())),
            (true, true) => Some(FORK_POLL_INTERVAL),
            (true, false) => None,
        };
        match self.discards.step(space.devices(), gate) {
            Next::GoOn => Some(Duration::ZERO),
            Next::Sleep => watch,
            Next::SleepFor(limit) => Some(watch.map_or(limit, |watch| watch.min(limit))),
        }
    }
}

/// Flushes all batches. `false`: there was nothing, and the next free wakes the thread.
fn sweep(space: &SwapSpace) -> bool {
    space.freeing().on_watch.store(false, Ordering::SeqCst);
    fence(Ordering::SeqCst); // pairs with the fence in `begin_watch`
    let any = space.devices().each().fold(false, |any, (_, attached)| attached.sweep() | any);
    if any {
        space.freeing().on_watch.store(true, Ordering::SeqCst);
    }
    any
}

/// Frees the batches of pending slots that are full.
fn free_full(space: &SwapSpace) {
    space.devices().each().for_each(|(_, attached)| attached.free_full());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::arena::tuning::Tuning;
    use crate::device::DeviceSpec;
    use crate::engine::Engine;
    use crate::process::wakeup::comes_true;
    use crate::swap::attached::Frees;
    use folioswap_core::{CpuId, DeviceId, Freed, Order, SlotId};

    const DEVICE: DeviceId = DeviceId::new(0);
    const CPU: CpuId = CpuId::new(0);

    fn arena(frees: Frees) -> Arena {
        let builder = Arena::builder().memory(16 << 20).device(DeviceSpec::Ram { size: 64 << 20 });
        at_work(builder.tuning(Tuning { frees, ..Tuning::default() }).build().unwrap())
    }

    /// The thread starts when memory first runs short.
    fn at_work(arena: Arena) -> Arena {
        arena.engine().ram().reclaim_wanted().signal();
        arena
    }

    /// Allocates `nr_slots` single slots.
    fn in_use(engine: &Engine, nr_slots: usize) -> Vec<SlotId> {
        (0..nr_slots).map(|_| engine.swap().allocate(CPU, Order::PAGE).unwrap()).collect()
    }

    fn nr_used(engine: &Engine) -> usize {
        engine.swap().devices().clusters(DEVICE, |clusters| clusters.nr_used())
    }

    #[test]
    fn what_does_not_fill_a_batch_is_freed_and_the_thread_sleeps_again() {
        let arena = arena(Frees::Collected);
        let engine = arena.engine();
        for _ in 0..2 {
            in_use(engine, 3).into_iter().for_each(|slot| engine.swap().free_slots(slot, Order::PAGE));
            comes_true("nobody frees what lies in a batch", || nr_used(engine) == 0);
            comes_true("the thread stays on watch", || !engine.swap().freeing().on_watch.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn a_full_batch_is_given_back_without_waiting_for_another_free() {
        let arena = arena(Frees::Collected);
        let engine = arena.engine();
        let slots = in_use(engine, 64);
        // Nothing wakes the thread here: the test frees on its own.
        let freed: Vec<_> = slots.iter().map(|&slot| engine.swap().at(slot).free(CPU, Order::PAGE)).collect();
        assert_eq!((freed[62], freed[63], nr_used(engine)), (Freed::Collected, Freed::Filled, 64));
        free_full(engine.swap());
        assert_eq!(nr_used(engine), 0);
    }

    #[test]
    fn emptied_space_is_given_back_once_it_is_more_than_what_is_used_by_frees_that_empty_nothing() {
        let arena = at_work(Arena::builder().memory(16 << 20).build().unwrap());
        let engine = arena.engine();
        let whole: Vec<_> = (0..145).map(|_| engine.swap().allocate(CPU, Order::HUGE).unwrap()).collect();
        let sleeps =
            || comes_true("the thread stays on watch", || !engine.swap().freeing().on_watch.load(Ordering::SeqCst));
        engine.swap().put_back_slots(engine.swap().allocate(CPU, Order::PAGE).unwrap(), Order::PAGE);
        sleeps();
        whole[..70].iter().for_each(|&slot| engine.swap().free_slots(slot, Order::HUGE));
        sleeps();
        let before = arena.devices()[0].reserved_bytes;
        whole[70..]
            .iter()
            .for_each(|slot| (0..100).for_each(|page| engine.swap().free_slots(slot.plus(page), Order::PAGE)));
        comes_true("nobody looks at what may be given back", || arena.devices()[0].reserved_bytes < before);
    }

    #[test]
    fn counts_are_exact_when_they_are_read() {
        for frees in [Frees::Cheapest, Frees::Collected, Frees::Synchronous] {
            let arena = arena(frees);
            let engine = arena.engine();
            let slots = in_use(engine, 500);
            for (at, &slot) in slots.iter().enumerate() {
                engine.swap().free_slots(slot, Order::PAGE);
                if at % 7 == 0 {
                    assert_eq!(arena.devices()[0].used_bytes, 4096 * (499 - at) as u64);
                }
            }
            let _ = arena.stats();
            assert_eq!((nr_used(engine), engine.swap().devices().device(DEVICE).nr_on_their_way()), (0, 0));
        }
    }

    #[test]
    fn frees_go_on_where_there_is_no_thread_as_in_a_child() {
        let arena = arena(Frees::Collected);
        let engine = arena.engine();
        let slots = in_use(engine, 5000);
        // As during a fork: the thread is outside the gate and holds no lock.
        engine.gate().close(signals::thread_id());
        slots.iter().for_each(|&slot| engine.swap().free_slots(slot, Order::PAGE));
        let nr_left = nr_used(engine);
        assert_eq!(
            (nr_left, nr_left <= 64 * folioswap_sys::cpu::nr_cpus()),
            (engine.swap().devices().device(DEVICE).nr_on_their_way(), true)
        );
        assert!((0..16 << 10).all(|_| engine.swap().allocate(CPU, Order::PAGE).is_some()), "all of the device");
        engine.gate().open();
    }
}
