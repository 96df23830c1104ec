//! The concurrent parts under a model checker, which tries every interleaving up to a bound of preemptions:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p folioswap-core --test loom`.
//!
//! Sleeping is modelled by a condition variable with the futex's rule (sleep only while the word has the expected
//! value, compared under the same lock that wakers take); a lost wake-up shows as a deadlock, which loom reports.
#![cfg(loom)]

use folioswap_core::{FolioId, FolioTable, FrameId, List, Order, Park, SlotId, State, Zone};
use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

struct Futex {
    guard: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    fn new() -> Futex {
        Futex { guard: Mutex::new(()), woken: Condvar::new() }
    }
}

impl Park for Futex {
    fn wait(&self, word: &AtomicU32, expected: u32) {
        let guard = self.guard.lock().unwrap();
        if word.load(Ordering::Relaxed) == expected {
            drop(self.woken.wait(guard).unwrap());
        }
    }

    fn wake_all(&self, _word: &AtomicU32) {
        drop(self.guard.lock().unwrap());
        self.woken.notify_all();
    }
}

struct World {
    table: FolioTable,
    park: Futex,
    /// Guarded by the lock of the folio, so neither load nor store orders anything.
    guarded: AtomicUsize,
}

const FOLIO: FolioId = FolioId::new(0);

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

fn world() -> Arc<World> {
    let table = FolioTable::new(1);
    table.ensure(FOLIO..FolioId::new(1));
    Arc::new(World { table, park: Futex::new(), guarded: AtomicUsize::new(0) })
}

impl World {
    /// Adds one to the guarded number in two steps, which only the lock makes one.
    fn count(&self) {
        let seen = self.guarded.load(Ordering::Relaxed);
        thread::yield_now();
        self.guarded.store(seen + 1, Ordering::Relaxed);
    }
}

#[test]
fn one_holder_at_a_time_and_nobody_sleeps_for_ever() {
    check(|| {
        let world = world();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let locked = world.table.lock(FOLIO, &world.park);
                    world.count();
                    drop(locked);
                })
            })
            .collect();
        let locked = world.table.lock(FOLIO, &world.park);
        world.count();
        drop(locked);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(world.guarded.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn who_tries_in_vain_unlocks_nothing() {
    check(|| {
        let world = world();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let locked = world.table.try_lock(FOLIO, &world.park);
                    if locked.is_some() {
                        world.count();
                    }
                    locked.is_some()
                })
            })
            .collect();
        let locked = world.table.lock(FOLIO, &world.park);
        world.count();
        drop(locked);
        let got = others.into_iter().filter_map(|other| other.join().unwrap().then_some(())).count();
        assert_eq!(world.guarded.load(Ordering::Relaxed), 1 + got);
    });
}

#[test]
fn who_waits_for_a_lock_sees_what_was_done_under_it() {
    check(|| {
        let world = world();
        let mut locked = world.table.lock(FOLIO, &world.park);
        let waiter = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.table.wait_unlocked(FOLIO, &world.park);
                assert_eq!(world.guarded.load(Ordering::Relaxed), 1);
                assert_eq!(world.table.peek(FOLIO).state, State::Resident(FrameId::new(7)));
            })
        };
        world.count();
        locked.set(State::Resident(FrameId::new(7)));
        drop(locked);
        waiter.join().unwrap();
    });
}

#[test]
fn two_waiters_and_two_holders_all_go_on() {
    check(|| {
        let world = world();
        let locked = world.table.lock(FOLIO, &world.park);
        let waiter = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.table.wait_unlocked(FOLIO, &world.park))
        };
        let holder = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.table.lock(FOLIO, &world.park).set_pinned(true))
        };
        drop(locked);
        waiter.join().unwrap();
        holder.join().unwrap();
        assert!(world.table.peek(FOLIO).pinned);
    });
}

#[test]
fn a_lock_laid_down_is_taken_up_by_another_thread() {
    check(|| {
        let world = world();
        let mut locked = world.table.lock(FOLIO, &world.park);
        locked.set(State::Standby(FrameId::new(1)));
        world.count();
        let folio = locked.into_raw();
        let completion = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let mut locked = world.table.locked_from_raw(folio, &world.park);
                assert_eq!(locked.state(), State::Standby(FrameId::new(1)));
                world.count();
                locked.set(State::Swapped(SlotId::new(2)));
            })
        };
        let locked = world.table.lock(FOLIO, &world.park);
        assert_eq!(locked.state(), State::Swapped(SlotId::new(2)));
        assert_eq!(world.guarded.load(Ordering::Relaxed), 2);
        drop(locked);
        completion.join().unwrap();
    });
}

#[test]
fn a_peek_never_mixes_two_states() {
    check(|| {
        let world = world();
        world.table.lock(FOLIO, &world.park).set(State::Swapped(SlotId::new(1)));
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let mut locked = world.table.lock(FOLIO, &world.park);
                locked.set(State::Resident(FrameId::new(2)));
                locked.set(State::Swapped(SlotId::new(3)));
            })
        };
        let peek = world.table.peek(FOLIO);
        let known = [State::Swapped(SlotId::new(1)), State::Resident(FrameId::new(2)), State::Swapped(SlotId::new(3))];
        assert!(known.contains(&peek.state) || (peek.locked && peek.state == State::Empty), "{peek:?}");
        writer.join().unwrap();
    });
}

#[test]
fn a_block_is_taken_by_one_thread_only() {
    check(|| {
        let zone = Arc::new(Zone::new(Order::HUGE, 2));
        zone.set_limit(2);
        let holders = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let use_one = |zone: &Zone, holders: &[AtomicUsize; 2]| {
            let Some(taken) = zone.take(0) else { return };
            let holder = &holders[taken.frame.index()];
            assert_eq!(holder.fetch_add(1, Ordering::Relaxed), 0, "one block for two threads");
            zone.set_owner(taken.frame, FOLIO, None);
            zone.insert(taken.frame, List::Standby);
            holder.fetch_sub(1, Ordering::Relaxed);
            zone.give(taken.frame);
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let (zone, holders) = (Arc::clone(&zone), Arc::clone(&holders));
                thread::spawn(move || use_one(&zone, &holders))
            })
            .collect();
        use_one(&zone, &holders);
        others.into_iter().for_each(|other| other.join().unwrap());
        let counts = zone.counts();
        assert_eq!((counts.in_use, counts.free), (0, 2));
        zone.verify();
    });
}
