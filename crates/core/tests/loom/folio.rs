//! Blocks of the folio table: locking, waiting and trying.

use folioswap_core::{BlockId, FolioTable, FrameId, Order, SlotId, State};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::{BLOCK, HALF, OTHER, beside, check, check_within};

struct World {
    table: FolioTable,
    /// Guarded by the block's lock, so its loads and stores are relaxed.
    guarded: AtomicUsize,
}

fn world() -> Arc<World> {
    let table = FolioTable::new(2);
    table.ensure(BLOCK..BlockId::new(2));
    Arc::new(World { table, guarded: AtomicUsize::new(0) })
}

impl World {
    /// Increments the guarded number in two steps, which only the lock makes atomic.
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
        let hold = |world: &World| {
            let _locked = world.table.lock(BLOCK);
            world.count();
        };
        let others = [(); 2].map(|()| beside(&world, hold));
        hold(&world);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(world.guarded.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn two_threads_change_one_block_and_both_changes_stay() {
    check_within(4, || {
        let world = world();
        let splits = beside(&world, |world| {
            let mut locked = world.table.lock(BLOCK);
            let before = locked.state(0);
            locked.split(HALF);
            locked.folio_mut(1).set_in_ram(FrameId::new(256), true);
            before
        });
        let first = {
            let mut locked = world.table.lock(BLOCK);
            locked.folio_mut(0).set_slot(Some(SlotId::new(512)));
            locked.order()
        };
        let before = splits.join().unwrap();
        let locked = world.table.lock(BLOCK);
        // The whole folio's slot becomes the first half's; the second half has a slot only if it was set before the
        // split.
        assert_eq!((locked.order(), locked.state(0)), (HALF, State::Swapped(SlotId::new(512))));
        assert_eq!(locked.state(1), State::Resident(FrameId::new(256)));
        assert_eq!(before != State::Empty, first == Order::HUGE, "each saw what came before it");
        assert_eq!(locked.folio(1).slot(), (first == Order::HUGE).then_some(SlotId::new(768)));
    });
}

#[test]
fn a_held_block_is_not_had_by_trying_and_its_neighbour_is() {
    check(|| {
        let world = world();
        let mut locked = world.table.lock(BLOCK);
        let tries = beside(&world, |world| {
            assert!(world.table.try_lock(BLOCK).is_none(), "somebody holds it");
            assert!(world.table.try_lock(OTHER).is_some(), "nobody holds it");
        });
        locked.pinned = true;
        tries.join().unwrap();
        drop(locked);
        assert!(world.table.try_lock(BLOCK).is_some_and(|locked| locked.pinned));
    });
}

#[test]
fn who_tries_in_vain_unlocks_nothing() {
    check(|| {
        let world = world();
        let tries = |world: &World| {
            let locked = world.table.try_lock(BLOCK);
            if locked.is_some() {
                world.count();
            }
            usize::from(locked.is_some())
        };
        let others = [(); 2].map(|()| beside(&world, tries));
        let locked = world.table.lock(BLOCK);
        world.count();
        drop(locked);
        let got: usize = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert_eq!(world.guarded.load(Ordering::Relaxed), 1 + got);
    });
}

#[test]
fn two_who_hold_a_block_and_try_the_others_both_go_on() {
    check_within(4, || {
        let world = world();
        let both = |world: &World, first, second| {
            let mut own = world.table.lock(first);
            own.left_at += 1;
            let Some(mut other) = world.table.try_lock(second) else { return false };
            (own.left_at, other.left_at) = (own.left_at + 1, other.left_at + 1);
            true
        };
        let crossed = beside(&world, move |world| both(world, OTHER, BLOCK));
        let nr_both = [both(&world, BLOCK, OTHER), crossed.join().unwrap()].into_iter().filter(|&got| got).count();
        let sum: u32 = [BLOCK, OTHER].map(|block| world.table.lock(block).left_at).iter().sum();
        assert_eq!(sum as usize, 2 + 2 * nr_both);
    });
}

#[test]
fn what_moves_is_in_one_of_two_blocks() {
    check_within(4, || {
        let world = world();
        world.table.lock(BLOCK).folio_mut(0).set_slot(Some(SlotId::new(7)));
        let moves = beside(&world, |world| {
            let mut source = world.table.lock(BLOCK);
            let Some(mut target) = world.table.try_lock(OTHER) else { return false };
            target.put(source.take());
            true
        });
        // A thread that holds the source sees the content there, or finds that it has moved.
        let source = world.table.lock(BLOCK);
        if source.is_empty() {
            assert_eq!(world.table.lock(OTHER).state(0), State::Swapped(SlotId::new(7)));
        } else {
            assert!(world.table.try_lock(OTHER).is_none_or(|target| target.is_empty()));
        }
        drop(source);
        let moved = moves.join().unwrap();
        assert_eq!([BLOCK, OTHER].map(|block| world.table.lock(block).is_empty()), [moved, !moved]);
    });
}
