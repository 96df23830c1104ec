//! The lists of available devices: walks during removals, and while devices fill up and get free slots.

use folioswap_core::{Attempt, Availability, DeviceId, NodeId, Priority};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::{beside, check_within};

const A: DeviceId = DeviceId::new(0);
const B: DeviceId = DeviceId::new(1);
const NODE: NodeId = NodeId::new(0);

/// Devices with a number of free slots each, which hand out none while being removed.
struct World {
    lists: Availability,
    nr_free: [AtomicUsize; 2],
    leaving: [AtomicBool; 2],
}

/// Devices A and B with these free slots. B follows A or has the same priority.
fn world(nr_free: [usize; 2], are_equal: bool) -> Arc<World> {
    let lists = Availability::new(1, 2);
    let priority = are_equal.then(|| Priority::given(1).unwrap());
    lists.add(A, priority, None);
    lists.add(B, priority, None);
    let (nr_free, leaving) = (nr_free.map(AtomicUsize::new), [(); 2].map(|()| AtomicBool::new(false)));
    Arc::new(World { lists, nr_free, leaving })
}

impl World {
    /// The counts are relaxed: only the fences of the lists make them visible.
    fn attempt(&self, device: DeviceId) -> Attempt<DeviceId> {
        let one_less = |nr_free: usize| nr_free.checked_sub(1);
        let nr_free = &self.nr_free[device.index()];
        if self.leaving[device.index()].load(Ordering::SeqCst) {
            return Attempt::NoRun;
        }
        match nr_free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(_) => Attempt::Placed(device),
            Err(_) => Attempt::Full,
        }
    }

    fn place(&self) -> Option<DeviceId> {
        self.lists.place(NODE, |device| self.attempt(device))
    }

    fn free(&self, device: DeviceId) {
        self.nr_free[device.index()].fetch_add(1, Ordering::Relaxed);
        self.lists.freed(device);
    }

    fn begin_removal(&self, device: DeviceId) {
        self.leaving[device.index()].store(true, Ordering::SeqCst);
        self.lists.begin_removal(device);
    }

    fn cancel_removal(&self, device: DeviceId) {
        self.leaving[device.index()].store(false, Ordering::SeqCst);
        self.lists.cancel_removal(device);
    }
}

#[test]
fn a_slot_that_is_freed_while_its_device_fills_is_found() {
    check_within(3, || {
        let world = world([0, 0], false);
        let frees = beside(&world, |world| world.free(A));
        let found = world.place();
        frees.join().unwrap();
        world.lists.verify();
        let found = found.or_else(|| world.place());
        assert_eq!(found, Some(A), "a free slot on a device that is on no list");
        assert_eq!(world.place(), None);
    });
}

#[test]
fn two_fill_a_device_and_one_frees() {
    check_within(3, || {
        let world = world([1, 0], true);
        let others = [
            beside(&world, World::place),
            beside(&world, |world| {
                let found = world.place();
                found.inspect(|&device| world.free(device));
                None
            }),
        ];
        let mut nr_found = usize::from(world.place().is_some());
        nr_found += others.map(|other| usize::from(other.join().unwrap().is_some())).iter().sum::<usize>();
        world.lists.verify();
        nr_found += usize::from(world.place().is_some());
        assert_eq!(nr_found, 1, "one slot, one owner, and it is not lost");
    });
}

#[test]
fn a_walk_finds_the_other_device_while_one_is_removed() {
    check_within(3, || {
        let world = world([1, 1], false);
        let removes = beside(&world, |world| {
            world.begin_removal(A);
            world.lists.remove(A);
        });
        assert!(world.place().is_some(), "B has room all along");
        removes.join().unwrap();
        world.lists.verify();
        assert_eq!(world.lists.seen_from(NODE), [B]);
        assert_eq!(world.lists.devices()[0].priority.get(), -2);
    });
}

#[test]
fn a_removal_that_is_given_up_leaves_the_device_in_use() {
    check_within(3, || {
        let world = world([1, 0], true);
        let removes = beside(&world, |world| {
            world.begin_removal(A);
            world.cancel_removal(A);
        });
        let found = world.place();
        removes.join().unwrap();
        world.lists.verify();
        assert_eq!(found.or_else(|| world.place()), Some(A));
    });
}

#[test]
fn one_fills_and_one_frees_while_it_is_removed_and_stays() {
    check_within(3, || {
        let world = world([0, 1], false);
        let removes = beside(&world, |world| {
            world.begin_removal(A);
            world.cancel_removal(A);
        });
        let frees = beside(&world, |world| world.free(A));
        let found = world.place().expect("B has room all along");
        [removes, frees].into_iter().for_each(|other| other.join().unwrap());
        world.lists.verify();
        let expected = if found == A { B } else { A };
        assert_eq!(world.place(), Some(expected));
    });
}
