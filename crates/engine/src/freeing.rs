//! Freeing slots off the path of who has no use for them any more.
//!
//! What a fault or a drop frees collects in batches, one for each CPU and device (`core::swap::SlotCache`). Who fills one
//! wakes the thread here, which gives it to the clusters; or does that itself, whichever has taken less time lately
//! ([`Costs`]): to wake a thread takes 1 to 20 us, to give back 64 single slots of an idle device 1 to 3. A free that still
//! finds the batch full gives it back itself, so nothing waits for the thread. It also gives the space of emptied clusters back to
//! the file system (`discard`).
//!
//! A batch that does not fill is not left lying: the first free wakes the thread, which from then on is *on watch*. It
//! gives back all batches every [`SITTING`], until it finds that nobody has freed anything since; then it sleeps until
//! it is woken, and costs no CPU. Woken, it does not take the CPU from who woke it: that one has a fault to end.
//!
//! **Locking.** The thread goes by the fork gate: no batch and no cluster is locked by it, or half given back, while this
//! process forks; only the disk is waited for outside of it. A child has no such thread; what is freed there goes the way that it goes without one.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use folioswap_core::{CpuId, Freed, Order, SlotId};
use folioswap_sys::signals;

use crate::discard::{Discards, Next};
use crate::engine::{Engine, current_cpu};
use crate::fatal::AbortOnPanic;
use crate::wakeup::Event;

/// How long freed slots lie in a batch that does not fill, twice that at most.
const SITTING: Duration = Duration::from_millis(100);

/// How often the way that has taken longer is tried again.
const TRIED_ONE_IN: u32 = 32;

/// What a single try may count at most, in ns: who measured was stopped for longer than that.
const MOST_NS: u64 = 100_000;

/// What it has taken lately to be rid of a full batch, in ns: moving averages, which racing updates may miss.
#[derive(Default)]
struct Costs {
    telling: AtomicU32,
    giving: AtomicU32,
    nr_chosen: AtomicU32,
}

impl Costs {
    /// Whether the thread is to be told.
    fn choose_telling(&self) -> bool {
        let is_cheaper = self.telling.load(Ordering::Relaxed) <= self.giving.load(Ordering::Relaxed);
        let tries_other = self.nr_chosen.fetch_add(1, Ordering::Relaxed) % TRIED_ONE_IN == TRIED_ONE_IN - 1;
        is_cheaper != tries_other
    }

    fn note(&self, telling: bool, ns: u64) {
        let average = if telling { &self.telling } else { &self.giving };
        let before = average.load(Ordering::Relaxed);
        average.store((before * 7 + ns.min(MOST_NS) as u32) / 8, Ordering::Relaxed);
    }
}

/// What wakes the thread.
pub(crate) struct Freeing {
    pub wanted: Event,
    costs: Costs,
    /// The thread will look at all batches again without being woken, or there is none.
    on_watch: AtomicBool,
}

impl Freeing {
    /// `synchronous`: there is no thread.
    pub fn new(synchronous: bool) -> Self {
        Freeing { wanted: Event::default(), costs: Costs::default(), on_watch: AtomicBool::new(synchronous) }
    }

    /// Whether the thread has to be woken to look at what was just freed: once, and not while it is on watch.
    fn begin_watch(&self) -> bool {
        !self.on_watch.load(Ordering::Relaxed) && !self.on_watch.swap(true, Ordering::SeqCst)
    }
}

/// The thread's body; returns when the arena stops.
pub(crate) fn run(engine: &Engine) {
    let _abort = AbortOnPanic("freeing");
    folioswap_sys::cpu::wait_for_turns();
    let thread = signals::thread_id();
    let mut discards = Discards::default();
    let mut swept = Instant::now();
    while !engine.stopping() {
        let seen = engine.freeing.wanted.now();
        let pass = engine.gate.enter(thread);
        engine.space.free_full();
        let is_idle = swept.elapsed() >= SITTING && {
            swept = Instant::now();
            !engine.sweep_slots()
        };
        drop(pass);
        let next = discards.step(engine);
        let watch = (!is_idle).then(|| SITTING.saturating_sub(swept.elapsed()));
        let limit = match next {
            Next::GoOn => continue,
            Next::Sleep => watch,
            Next::SleepFor(limit) => Some(watch.map_or(limit, |watch| watch.min(limit))),
        };
        match limit {
            _ if engine.stopping() => {} // it may have begun before `seen`
            Some(limit) => engine.freeing.wanted.wait_for(seen, limit),
            None => {
                engine.freeing.wanted.wait(seen);
                swept = Instant::now();
            }
        }
    }
}

impl Engine {
    /// Gives slots back that nothing is in any more: soon, see the module. Allocates nothing.
    pub fn free_slots(&self, slot: SlotId, order: Order) {
        let cpu = current_cpu();
        let is_full = self.space.free(cpu, slot, order) == Freed::Filled;
        if self.freeing.begin_watch() {
            self.freeing.wanted.signal();
        } else if is_full {
            self.end_full_batch(cpu, slot);
        }
    }

    /// This CPU has filled its batch of the device of this slot.
    fn end_full_batch(&self, cpu: CpuId, slot: SlotId) {
        let (costs, begun) = (&self.freeing.costs, self.clock.now());
        let telling = costs.choose_telling();
        if telling {
            self.freeing.wanted.signal();
        } else {
            self.space.free_own(cpu, slot);
        }
        costs.note(telling, self.clock.ns_between(begun, self.clock.now()));
    }

    /// Gives slots back at once that were handed out and not used: who comes next is to find them.
    pub fn put_back_slots(&self, slot: SlotId, order: Order) {
        self.space.free_now(slot, order);
        if self.freeing.begin_watch() {
            self.freeing.wanted.signal();
        }
    }

    /// All that was freed before this is free after it. For threads of the program, outside of all locks.
    pub fn flush_slots(&self) {
        // A handler that ran now might fault, and wait for what this thread has locked.
        let _blocked = signals::block_all();
        let _pass = self.gate.enter(signals::thread_id());
        self.space.flush();
    }

    /// Gives all batches back; `false` when there was nothing. Then whoever frees from now on wakes the thread.
    fn sweep_slots(&self) -> bool {
        self.freeing.on_watch.store(false, Ordering::SeqCst);
        // After that store: what is freed too late for this finds it.
        let any = self.space.sweep();
        if any {
            self.freeing.on_watch.store(true, Ordering::SeqCst);
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::device::DeviceSpec;
    use crate::wakeup::comes_true;
    use folioswap_core::DeviceId;

    const DEVICE: DeviceId = DeviceId::new(0);
    const CPU: CpuId = CpuId::new(0);

    fn arena(synchronous: bool) -> Arena {
        let builder =
            Arena::builder().memory(16 << 20).address_space(1 << 30).device(DeviceSpec::Ram { size: 64 << 20 });
        builder.synchronous_freeing(synchronous).build().unwrap()
    }

    /// So many single slots in use.
    fn in_use(engine: &Engine, nr_slots: usize) -> Vec<SlotId> {
        (0..nr_slots).map(|_| engine.space.allocate(CPU, Order::PAGE).unwrap()).collect()
    }

    fn nr_used(engine: &Engine) -> usize {
        engine.space.clusters(DEVICE, |clusters| clusters.nr_used())
    }

    #[test]
    fn what_does_not_fill_a_batch_is_freed_and_the_thread_sleeps_again() {
        let arena = arena(false);
        let engine = arena.engine();
        for _ in 0..2 {
            in_use(engine, 3).into_iter().for_each(|slot| engine.free_slots(slot, Order::PAGE));
            comes_true("nobody frees what lies in a batch", || nr_used(engine) == 0);
            comes_true("the thread stays on watch", || !engine.freeing.on_watch.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn a_full_batch_is_given_back_without_waiting_for_another_free() {
        let arena = arena(false);
        let engine = arena.engine();
        let slots = in_use(engine, 64);
        // Nobody wakes the thread, and it sleeps: what is done is done here.
        let freed: Vec<_> = slots.iter().map(|&slot| engine.space.free(CPU, slot, Order::PAGE)).collect();
        assert_eq!((freed[62], freed[63], nr_used(engine)), (Freed::Collected, Freed::Filled, 64));
        engine.space.free_full();
        assert_eq!(nr_used(engine), 0);
    }

    #[test]
    fn the_way_that_takes_less_time_is_taken_and_the_other_tried_again() {
        let costs = Costs::default();
        for (telling_ns, giving_ns) in [(5_000, 1_000), (1_000, 20_000), (900_000, 2_000)] {
            for _ in 0..1000 {
                let telling = costs.choose_telling();
                costs.note(telling, if telling { telling_ns } else { giving_ns });
            }
            let told = (0..320).filter(|_| costs.choose_telling()).count();
            assert_eq!(told, if telling_ns < giving_ns { 310 } else { 10 }, "{telling_ns}, {giving_ns}");
        }
    }

    #[test]
    fn counts_are_exact_when_they_are_read() {
        for synchronous in [false, true] {
            let arena = arena(synchronous);
            let engine = arena.engine();
            let slots = in_use(engine, 500);
            for (at, &slot) in slots.iter().enumerate() {
                engine.free_slots(slot, Order::PAGE);
                if at % 7 == 0 {
                    assert_eq!(arena.devices()[0].used_bytes, 4096 * (499 - at) as u64);
                }
            }
            let _ = arena.stats();
            assert_eq!((nr_used(engine), engine.space.nr_on_their_way(DEVICE)), (0, 0));
        }
    }

    #[test]
    fn frees_go_on_where_there_is_no_thread_as_in_a_child() {
        let arena = arena(false);
        let engine = arena.engine();
        let slots = in_use(engine, 5000);
        // As while a process forks: the thread is kept outside, and has nothing locked.
        engine.gate.close(signals::thread_id());
        slots.iter().for_each(|&slot| engine.free_slots(slot, Order::PAGE));
        let nr_left = nr_used(engine);
        assert_eq!(
            (nr_left, nr_left <= 64 * folioswap_sys::cpu::nr_cpus()),
            (engine.space.nr_on_their_way(DEVICE), true)
        );
        assert!((0..16 << 10).all(|_| engine.space.allocate(CPU, Order::PAGE).is_some()), "all of the device");
        engine.gate.open();
    }
}
