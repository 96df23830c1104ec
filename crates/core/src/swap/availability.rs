//! Which swap device each NUMA node uses next: one list of available devices per node, sorted by priority as seen from
//! there.
//!
//! **Invariant.** A device is on all lists or on none. It is on none while it is full (from [`Availability::filled`]
//! until a slot is freed) and while it is being removed.
//!
//! **Full devices.** The thread that finds a device full takes it off the lists; the thread that frees a slot puts it
//! back. Each writes its own state, passes a fence (in `filled` and `freed`) and reads the other's state; the former
//! does so by trying the device again. So no free slot is left on an unlisted device.
//!
//! **Locking.** `records`, then one list at a time; otherwise both are leaves. A first device that shares its priority
//! with no other is read without the lock, as a hint. What a fault calls allocates nothing.

use crate::id::{DeviceId, NodeId};
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, fence, lock};
use std::fmt;

/// The most walks of one call, if devices are listed meanwhile.
const MOST_WALKS: usize = 4;

/// The value of [`List::alone`] if the list is empty or its first devices share a priority.
const NOBODY: u32 = u32::MAX;

/// A device's priority. Devices of higher priority are used first.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct Priority(i32);

impl Priority {
    /// The highest priority that a user can give.
    pub const MAX: Priority = Priority(32_767);

    /// The priority of an automatic device as seen from its own node.
    const OWN_NODE: Priority = Priority(-1);

    /// The first automatic priority.
    const FIRST_AUTOMATIC: Priority = Priority(-2);

    /// A priority from the user: 0 to [`Priority::MAX`].
    pub const fn given(number: u32) -> Option<Priority> {
        if number <= Priority::MAX.0 as u32 { Some(Priority(number as i32)) } else { None }
    }

    /// Whether the user gave it.
    pub const fn is_given(self) -> bool {
        self.0 >= 0
    }

    /// Its number.
    pub const fn get(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The result of trying a device.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Attempt<T> {
    /// A place was found.
    Placed(T),
    /// No room for this order, or the device is being removed: try others.
    NoRun,
    /// No room for any order: the device leaves the lists.
    Full,
}

/// A device as the lists know it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Listed {
    /// The device.
    pub device: DeviceId,
    /// Given by the user or automatic.
    pub priority: Priority,
    /// Its NUMA node, if known.
    pub node: Option<NodeId>,
}

impl Listed {
    fn priority_from(&self, node: NodeId) -> Priority {
        let is_near = !self.priority.is_given() && self.node == Some(node);
        if is_near { Priority::OWN_NODE } else { self.priority }
    }
}

struct Record {
    listed: Listed,
    /// Sequence number; among equal priorities, devices added earlier come first.
    nr_before: u64,
    is_leaving: bool,
}

struct Records {
    /// Indexed by device number.
    devices: Vec<Option<Record>>,
    nr_added: u64,
}

impl Records {
    fn find(&mut self, device: DeviceId) -> Option<&mut Record> {
        self.devices.get_mut(device.index())?.as_mut()
    }

    fn get(&mut self, device: DeviceId) -> &mut Record {
        self.find(device).expect("a device that was added")
    }

    /// One below the lowest priority, and at most the first automatic one.
    fn next_automatic(&self) -> Priority {
        let lowest = self.devices.iter().flatten().map(|record| record.listed.priority).min();
        lowest.map_or(Priority::FIRST_AUTOMATIC, |lowest| Priority(lowest.0 - 1).min(Priority::FIRST_AUTOMATIC))
    }
}

#[derive(Copy, Clone)]
struct Candidate {
    priority: Priority,
    device: DeviceId,
}

/// A node's list, aligned to avoid false sharing.
#[repr(align(128))]
struct List {
    /// The first device, if no other has its priority.
    alone: AtomicU32,
    places: Mutex<Vec<Candidate>>,
}

impl List {
    /// Inserts a device behind its equals.
    fn insert(&self, place: Candidate) {
        let mut places = lock(&self.places);
        debug_assert!(places.iter().all(|other| other.device != place.device), "on a list once");
        let at = places.partition_point(|other| other.priority >= place.priority);
        places.insert(at, place);
        self.publish(&places);
    }

    fn take_out(&self, device: DeviceId) {
        let mut places = lock(&self.places);
        places.retain(|place| place.device != device);
        self.publish(&places);
    }

    fn publish(&self, places: &[Candidate]) {
        let alone = match places {
            [first] => first.device.get(),
            [first, second, ..] if first.priority > second.priority => first.device.get(),
            _ => NOBODY,
        };
        self.alone.store(alone, Ordering::Release);
    }

    /// The first untried device. It moves behind its equals, so that equals take turns.
    fn next(&self, tried: &mut u64) -> Option<DeviceId> {
        let alone = self.alone.load(Ordering::Acquire);
        if *tried == 0 && alone != NOBODY {
            *tried = 1 << alone;
            return Some(DeviceId::new(alone));
        }
        let mut places = lock(&self.places);
        let at = places.iter().position(|place| *tried >> place.device.index() & 1 == 0)?;
        let Candidate { priority, device } = places[at];
        let nr_equal = places[at..].iter().take_while(|place| place.priority == priority).count();
        places[at..at + nr_equal].rotate_left(1);
        *tried |= 1 << device.index();
        Some(device)
    }
}

/// The device lists of all nodes. Every call is safe from any thread.
///
/// A priority given by the user is 0 or more and the same from every node. Other devices get -2, -3, -4 and so on as
/// they are added; a device counts as -1 on its own node and is used there before the other automatic ones. Among
/// equals a device moves to the end each time it is used, on each list independently. When an automatic device is
/// removed, later ones move up by one; that does not change their order.
pub struct Availability {
    lists: Box<[List]>,
    records: Mutex<Records>,
    /// Indexed by device number: it was taken off the lists because no slot was free.
    full: Box<[AtomicBool]>,
    /// How often a device was put on the lists; wraps.
    nr_comings: AtomicU32,
}

impl Availability {
    /// No device yet, for nodes with numbers below `nr_nodes` and devices with numbers below `max_devices`, at most 64.
    pub fn new(nr_nodes: usize, max_devices: usize) -> Self {
        assert!(nr_nodes > 0 && max_devices <= u64::BITS as usize, "a node, and a bit for each device");
        let list = |_| List { alone: AtomicU32::new(NOBODY), places: Mutex::new(Vec::with_capacity(max_devices)) };
        let devices = (0..max_devices).map(|_| None).collect();
        Availability {
            lists: (0..nr_nodes).map(list).collect(),
            records: Mutex::new(Records { devices, nr_added: 0 }),
            full: (0..max_devices).map(|_| AtomicBool::new(false)).collect(),
            nr_comings: AtomicU32::new(0),
        }
    }

    /// Adds a device to all lists. Panics if it was added before, or if the given priority is not a user's.
    pub fn add(&self, device: DeviceId, given: Option<Priority>, node: Option<NodeId>) {
        assert!(given.is_none_or(Priority::is_given), "the system's priorities are its own");
        let mut records = lock(&self.records);
        assert!(records.devices[device.index()].is_none(), "a device is added once");
        let priority = given.unwrap_or_else(|| records.next_automatic());
        let (listed, nr_before) = (Listed { device, priority, node }, records.nr_added);
        records.nr_added += 1;
        records.devices[device.index()] = Some(Record { listed, nr_before, is_leaving: false });
        self.full[device.index()].store(false, Ordering::Relaxed);
        self.put_on_lists(listed);
    }

    /// Takes a device off all lists until [`Availability::cancel_removal`] or [`Availability::remove`].
    pub fn begin_removal(&self, device: DeviceId) {
        let mut records = lock(&self.records);
        let record = records.get(device);
        assert!(!record.is_leaving, "a device is removed by one at a time");
        record.is_leaving = true;
        self.take_off_lists(device);
    }

    /// Cancels a removal; the device keeps its priority.
    pub fn cancel_removal(&self, device: DeviceId) {
        let mut records = lock(&self.records);
        let record = records.get(device);
        assert!(record.is_leaving, "what was begun");
        record.is_leaving = false;
        if !self.full[device.index()].load(Ordering::Relaxed) {
            self.put_on_lists(record.listed);
        }
    }

    /// Ends a removal. Later automatic devices move up.
    pub fn remove(&self, device: DeviceId) {
        let mut records = lock(&self.records);
        assert!(records.get(device).is_leaving, "a removal is begun before it ends");
        let gone = records.devices[device.index()].take().map(|record| record.listed.priority);
        for record in records.devices.iter_mut().flatten() {
            let priority = &mut record.listed.priority;
            if gone.is_some_and(|gone| !gone.is_given() && *priority < gone) {
                priority.0 += 1;
            }
        }
        // Order and ties stay the same: no priority moves to -1 or becomes equal to another's.
        for (index, list) in self.lists.iter().enumerate() {
            let mut places = lock(&list.places);
            for place in places.iter_mut() {
                let listed = records.get(place.device).listed;
                place.priority = listed.priority_from(NodeId::from_index(index));
            }
        }
    }

    /// Takes a full device off the lists. The caller then tries it once more, and calls [`Availability::freed`] if that
    /// finds a slot; [`Availability::place`] does so.
    pub fn filled(&self, device: DeviceId) {
        let mut records = lock(&self.records);
        let Some(record) = records.find(device) else { return };
        if !self.full[device.index()].swap(true, Ordering::Relaxed) && !record.is_leaving {
            self.take_off_lists(device);
        }
        drop(records);
        fence(Ordering::SeqCst); // the mark before the last try
    }

    /// Puts the device back on the lists after a free. Costs a fence and a load if it was not full.
    pub fn freed(&self, device: DeviceId) {
        fence(Ordering::SeqCst); // the free before the look at the mark
        if self.full[device.index()].load(Ordering::Relaxed) {
            self.refill(device);
        }
    }

    #[cold]
    fn refill(&self, device: DeviceId) {
        let mut records = lock(&self.records);
        let Some(record) = records.find(device) else { return };
        if self.full[device.index()].swap(false, Ordering::Relaxed) && !record.is_leaving {
            self.put_on_lists(record.listed);
        }
    }

    /// Tries devices in the order of the node's list, each once, until one has a place. No lock is held during an
    /// attempt; each step takes the first untried device from the list as it is then. A device may be removed after it
    /// was found: the attempt there fails. If nothing was found and a device was listed meanwhile, starts over, with at
    /// most four walks in all.
    pub fn place<T>(&self, node: NodeId, mut attempt: impl FnMut(DeviceId) -> Attempt<T>) -> Option<T> {
        let list = &self.lists[node.index()];
        for _ in 0..MOST_WALKS {
            let seen = self.nr_comings.load(Ordering::Acquire);
            let mut tried = 0;
            while let Some(device) = list.next(&mut tried) {
                match attempt(device) {
                    Attempt::Placed(place) => return Some(place),
                    Attempt::NoRun => {}
                    Attempt::Full => {
                        self.filled(device);
                        match attempt(device) {
                            Attempt::Full => {}
                            other => {
                                self.freed(device);
                                if let Attempt::Placed(place) = other {
                                    return Some(place);
                                }
                            }
                        }
                    }
                }
            }
            if self.nr_comings.load(Ordering::Acquire) == seen {
                break;
            }
        }
        None
    }

    /// All devices, available or not, by falling priority and then in the order in which they were added.
    pub fn devices(&self) -> Vec<Listed> {
        let records = lock(&self.records);
        let mut devices: Vec<_> =
            records.devices.iter().flatten().map(|record| (record.listed, record.nr_before)).collect();
        devices.sort_by_key(|&(listed, nr_before)| (std::cmp::Reverse(listed.priority), nr_before));
        devices.into_iter().map(|(listed, _)| listed).collect()
    }

    /// A node's list, in the order in which its devices would be tried now.
    pub fn seen_from(&self, node: NodeId) -> Vec<DeviceId> {
        lock(&self.lists[node.index()].places).iter().map(|place| place.device).collect()
    }

    fn put_on_lists(&self, listed: Listed) {
        for (index, list) in self.lists.iter().enumerate() {
            let priority = listed.priority_from(NodeId::from_index(index));
            list.insert(Candidate { priority, device: listed.device });
        }
        self.nr_comings.fetch_add(1, Ordering::AcqRel);
    }

    fn take_off_lists(&self, device: DeviceId) {
        self.lists.iter().for_each(|list| list.take_out(device));
    }

    /// Checks every invariant; for tests. Panics at the first inconsistency.
    pub fn verify(&self) {
        let mut records = lock(&self.records);
        let mut automatic: Vec<i32> = Vec::new();
        for device in (0..self.full.len()).map(DeviceId::from_index) {
            let is_full = self.full[device.index()].load(Ordering::Relaxed);
            let Some(record) = records.find(device) else { continue };
            let is_available = !record.is_leaving && !is_full;
            automatic.extend((!record.listed.priority.is_given()).then_some(record.listed.priority.0));
            for list in &self.lists {
                let nr = lock(&list.places).iter().filter(|place| place.device == device).count();
                assert_eq!(nr, usize::from(is_available), "{device:?} is on all lists or on none");
            }
        }
        automatic.sort_unstable_by(|a, b| b.cmp(a));
        assert!(automatic.iter().zip((i32::MIN..=-2).rev()).all(|(a, b)| *a == b), "-2, -3, ...: {automatic:?}");
        for (index, list) in self.lists.iter().enumerate() {
            self.verify_list(&mut records, NodeId::from_index(index), list);
        }
    }

    fn verify_list(&self, records: &mut MutexGuard<'_, Records>, node: NodeId, list: &List) {
        let places = lock(&list.places);
        assert!(places.is_sorted_by(|a, b| a.priority >= b.priority), "in order");
        for place in places.iter() {
            assert_eq!(place.priority, records.get(place.device).listed.priority_from(node));
        }
        let is_alone = places.get(1).is_none_or(|second| second.priority < places[0].priority);
        let alone = places.first().filter(|_| is_alone).map_or(NOBODY, |first| first.device.get());
        assert_eq!(list.alone.load(Ordering::Relaxed), alone, "the hint");
    }
}
