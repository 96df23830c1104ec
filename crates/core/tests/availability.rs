//! The order in which devices are used: a table for four nodes, and random calls against a plain list that is sorted
//! each time. A failure prints its seed.
#![cfg(not(loom))]

mod seeded;

use fastrand::Rng;
use folioswap_core::*;
use seeded::Seed;

const MAX_DEVICES: usize = 8;

fn device(number: usize) -> DeviceId {
    DeviceId::from_index(number)
}

fn node(number: usize) -> NodeId {
    NodeId::from_index(number)
}

fn given(number: u32) -> Option<Priority> {
    Some(Priority::given(number).unwrap())
}

/// A node's list as letters: A is device 0.
fn list(devices: &Availability, from: usize) -> String {
    devices.verify();
    devices.seen_from(node(from)).into_iter().map(|device| (b'A' + device.index() as u8) as char).collect()
}

fn lists(devices: &Availability, nr_nodes: usize) -> Vec<String> {
    (0..nr_nodes).map(|from| list(devices, from)).collect()
}

/// Each device's letter and priority, in the order of use.
fn numbers(devices: &Availability) -> Vec<(char, i32)> {
    let letter = |listed: &Listed| (b'A' + listed.device.index() as u8) as char;
    devices.devices().iter().map(|listed| (letter(listed), listed.priority.get())).collect()
}

/// A, B, C and D on nodes 0, 1, 2 and 3, added in this order.
fn four() -> Availability {
    let devices = Availability::new(4, MAX_DEVICES);
    (0..4).for_each(|number| devices.add(device(number), None, Some(node(number))));
    devices
}

fn remove(devices: &Availability, number: usize) {
    devices.begin_removal(device(number));
    devices.remove(device(number));
}

/// The device that is used if the first one tried has a place.
fn used(devices: &Availability, from: usize) -> usize {
    devices.place(node(from), |device| Attempt::Placed(device.index())).unwrap()
}

/// The devices tried when none has a place.
fn tried(devices: &Availability, from: usize) -> Vec<usize> {
    let mut tried = Vec::new();
    let none = devices.place(node(from), |device| {
        tried.push(device.index());
        Attempt::<()>::NoRun
    });
    assert_eq!(none, None);
    tried
}

#[test]
fn four_devices_on_four_nodes() {
    let devices = four();
    assert_eq!(lists(&devices, 4), ["ABCD", "BACD", "CABD", "DABC"]);
    assert_eq!(numbers(&devices), [('A', -2), ('B', -3), ('C', -4), ('D', -5)]);
    // Using them changes nothing, because no two are equal.
    assert_eq!([0, 1, 2, 3].map(|from| used(&devices, from)), [0, 1, 2, 3]);
    assert_eq!(tried(&devices, 2), [2, 0, 1, 3]);
    assert_eq!(lists(&devices, 4), ["ABCD", "BACD", "CABD", "DABC"]);
}

#[test]
fn a_full_device_is_on_no_list_until_a_slot_is_freed() {
    let devices = four();
    devices.filled(device(2));
    assert_eq!(lists(&devices, 4), ["ABD", "BAD", "ABD", "DAB"]);
    devices.filled(device(2));
    devices.filled(device(0));
    assert_eq!(lists(&devices, 4), ["BD", "BD", "BD", "DB"]);
    devices.freed(device(1));
    devices.freed(device(0));
    assert_eq!(lists(&devices, 4), ["ABD", "BAD", "ABD", "DAB"]);
    devices.freed(device(2));
    assert_eq!(lists(&devices, 4), ["ABCD", "BACD", "CABD", "DABC"]);
    assert_eq!(numbers(&devices), [('A', -2), ('B', -3), ('C', -4), ('D', -5)]);
}

#[test]
fn those_after_a_removed_device_move_up_and_the_next_continues_from_there() {
    let devices = four();
    devices.begin_removal(device(1));
    assert_eq!(lists(&devices, 4), ["ACD", "ACD", "CAD", "DAC"]);
    devices.cancel_removal(device(1));
    assert_eq!(lists(&devices, 4), ["ABCD", "BACD", "CABD", "DABC"]);
    remove(&devices, 1);
    assert_eq!(lists(&devices, 4), ["ACD", "ACD", "CAD", "DAC"]);
    assert_eq!(numbers(&devices), [('A', -2), ('C', -3), ('D', -4)]);
    devices.add(device(1), None, Some(node(1)));
    assert_eq!(lists(&devices, 4), ["ACDB", "BACD", "CADB", "DACB"]);
    assert_eq!(numbers(&devices), [('A', -2), ('C', -3), ('D', -4), ('B', -5)]);
    (0..4).for_each(|number| remove(&devices, number));
    assert_eq!(lists(&devices, 4), ["", "", "", ""]);
    devices.add(device(3), None, None);
    assert_eq!(numbers(&devices), [('D', -2)]);
}

#[test]
fn a_full_device_that_is_removed_or_stays() {
    let devices = four();
    devices.filled(device(0));
    devices.begin_removal(device(0));
    devices.cancel_removal(device(0));
    assert_eq!(list(&devices, 0), "BCD", "it is as full as before");
    devices.begin_removal(device(0));
    devices.freed(device(0));
    assert_eq!(list(&devices, 0), "BCD", "it is on its way out");
    devices.cancel_removal(device(0));
    assert_eq!(list(&devices, 0), "ABCD");
    remove(&devices, 0);
    devices.filled(device(0));
    devices.freed(device(0));
    assert_eq!(list(&devices, 0), "BCD", "late words on a device that has gone");
}

#[test]
fn a_given_priority_is_the_same_from_every_node() {
    let devices = Availability::new(2, MAX_DEVICES);
    devices.add(device(0), None, Some(node(0)));
    devices.add(device(1), given(0), Some(node(0)));
    devices.add(device(2), None, Some(node(1)));
    devices.add(device(3), given(32_767), Some(node(1)));
    assert_eq!(lists(&devices, 2), ["DBAC", "DBCA"]);
    devices.add(device(4), None, None); // on no node: promoted nowhere
    assert_eq!(lists(&devices, 2), ["DBACE", "DBCAE"]);
    assert_eq!(numbers(&devices), [('D', 32_767), ('B', 0), ('A', -2), ('C', -3), ('E', -4)]);
    remove(&devices, 1);
    assert_eq!(numbers(&devices), [('D', 32_767), ('A', -2), ('C', -3), ('E', -4)], "it had a number of its own");
    assert_eq!(Priority::given(32_768), None);
}

#[test]
fn equals_take_turns_on_each_list_by_itself() {
    let devices = Availability::new(2, MAX_DEVICES);
    (0..3).for_each(|number| devices.add(device(number), given(5), None));
    devices.add(device(3), given(4), None);
    assert_eq!([(); 4].map(|()| used(&devices, 0)), [0, 1, 2, 0]);
    assert_eq!(lists(&devices, 2), ["BCAD", "ABCD"]);
    // If none of the equals has a place, each is tried once, then lower ones.
    assert_eq!(tried(&devices, 0), [1, 2, 0, 3]);
    assert_eq!(lists(&devices, 2), ["BCAD", "ABCD"]);
    devices.filled(device(2));
    devices.freed(device(2));
    assert_eq!(lists(&devices, 2), ["BACD", "ABCD"], "who comes back comes last");
    // Two devices on one node are equals there and only there.
    let devices = Availability::new(2, MAX_DEVICES);
    (0..3).for_each(|number| devices.add(device(number), None, Some(node(usize::from(number > 0)))));
    assert_eq!([(); 3].map(|()| used(&devices, 1)), [1, 2, 1]);
    assert_eq!([(); 3].map(|()| used(&devices, 0)), [0, 0, 0]);
}

#[test]
fn what_changes_during_a_walk() {
    let devices = Availability::new(1, MAX_DEVICES);
    (0..3).for_each(|number| devices.add(device(number), None, None));
    // One device is removed and one is added: the rest is tried, then everything once more.
    let mut tried = Vec::new();
    let none = devices.place(node(0), |at| {
        tried.push(at.index());
        if tried.len() == 1 {
            remove(&devices, 1);
            devices.add(device(4), given(9), None);
        }
        Attempt::<()>::NoRun
    });
    assert_eq!((none, tried), (None, vec![0, 4, 2, 4, 0, 2]));
    // A full device leaves the lists and is tried once more after that.
    let mut tried = Vec::new();
    let found = devices.place(node(0), |at| {
        tried.push(at.index());
        if at == device(4) { Attempt::Full } else { Attempt::Placed(()) }
    });
    assert_eq!((found, tried), (Some(()), vec![4, 4, 0]));
    assert_eq!(list(&devices, 0), "AC");
    // Devices that keep coming back do not keep a walk going forever.
    let mut nr_tried = 0;
    let none = devices.place(node(0), |at| {
        nr_tried += 1;
        devices.filled(at);
        devices.freed(at);
        Attempt::<()>::NoRun
    });
    assert!(none.is_none() && nr_tried <= 16, "{nr_tried}");
}

const NR_NODES: usize = 3;

/// A plain model of a device.
#[derive(Clone)]
struct Plain {
    number: usize,
    given: Option<u32>,
    node: Option<usize>,
    is_full: bool,
    is_leaving: bool,
    /// When it was put on each node's list, or was last used from it.
    since: [u64; NR_NODES],
}

/// Devices in the order in which they were added.
#[derive(Default)]
struct Model {
    devices: Vec<Plain>,
    now: u64,
}

impl Model {
    fn get(&mut self, number: usize) -> &mut Plain {
        self.devices.iter_mut().find(|device| device.number == number).unwrap()
    }

    fn priority(&self, of: &Plain) -> i32 {
        let automatic = self.devices.iter().filter(|device| device.given.is_none());
        let nr_before = automatic.take_while(|device| device.number != of.number).count();
        of.given.map_or(-2 - nr_before as i32, |given| given as i32)
    }

    fn list(&self, from: usize) -> Vec<usize> {
        let seen = |device: &Plain| match device.given {
            None if device.node == Some(from) => -1,
            _ => self.priority(device),
        };
        let mut list: Vec<_> = self.devices.iter().filter(|device| !device.is_full && !device.is_leaving).collect();
        list.sort_by_key(|device| (-seen(device), device.since[from]));
        list.into_iter().map(|device| device.number).collect()
    }

    fn come(&mut self, number: usize) {
        self.now += 1;
        let now = self.now;
        self.get(number).since = [now; NR_NODES];
    }

    /// Tries devices until the `nr_tries`th.
    fn walk(&mut self, from: usize, nr_tries: usize) -> Vec<usize> {
        let tried: Vec<_> = self.list(from).into_iter().take(nr_tries).collect();
        for &number in &tried {
            self.now += 1;
            self.get(number).since[from] = self.now;
        }
        tried
    }
}

fn step(random: &mut Rng, real: &Availability, model: &mut Model) {
    let number = random.usize(..MAX_DEVICES);
    let id = device(number);
    let there = model.devices.iter().find(|device| device.number == number).cloned();
    let Some(plain) = there else {
        let (priority, at) = (random.usize(..2) == 0, random.usize(..NR_NODES + 1));
        let (priority, at) = (priority.then(|| random.usize(..3) as u32), (at < NR_NODES).then_some(at));
        real.add(id, priority.and_then(given), at.map(node));
        let (is_full, is_leaving, since) = (false, false, [0; NR_NODES]);
        model.devices.push(Plain { number, given: priority, node: at, is_full, is_leaving, since });
        return model.come(number);
    };
    match random.usize(..10) {
        0 | 1 => {
            real.filled(id);
            model.get(number).is_full = true;
        }
        2 | 3 => {
            real.freed(id);
            model.get(number).is_full = false;
            if plain.is_full && !plain.is_leaving {
                model.come(number);
            }
        }
        4 if !plain.is_leaving => {
            real.begin_removal(id);
            model.get(number).is_leaving = true;
        }
        5 if plain.is_leaving => {
            real.cancel_removal(id);
            model.get(number).is_leaving = false;
            if !plain.is_full {
                model.come(number);
            }
        }
        6 if plain.is_leaving => {
            real.remove(id);
            model.devices.retain(|device| device.number != number);
        }
        _ => {
            let (from, nr_tries) = (random.usize(..NR_NODES), 1 + random.usize(..4));
            let mut tried = Vec::new();
            real.place(node(from), |device| {
                tried.push(device.index());
                if tried.len() == nr_tries { Attempt::Placed(()) } else { Attempt::NoRun }
            });
            assert_eq!(tried, model.walk(from, nr_tries));
        }
    }
}

#[test]
fn lists_are_as_a_plain_list_sorted_each_time() {
    // To run one seed: SEED=17 cargo test --test availability.
    let one = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in one.map_or(0..300, |seed: u64| seed..seed + 1) {
        let _seed = Seed(seed);
        let mut random = seeded::rng(seed);
        let (real, mut model) = (Availability::new(NR_NODES, MAX_DEVICES), Model::default());
        for _ in 0..300 {
            step(&mut random, &real, &mut model);
            real.verify();
            for from in 0..NR_NODES {
                let seen: Vec<_> = real.seen_from(node(from)).into_iter().map(DeviceId::index).collect();
                assert_eq!(seen, model.list(from));
            }
            for listed in real.devices() {
                let plain = model.get(listed.device.index()).clone();
                assert_eq!(listed.priority.get(), model.priority(&plain));
            }
        }
    }
}
