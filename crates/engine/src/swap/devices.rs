//! The swap devices of an arena, which come and go. A slot's number is its device's index and its number there.
//!
//! `core::swap::Availability` has them by priority, for each NUMA node. The index of a removed device is reused once no
//! slot of it is in use.
//!
//! **Locking.** A read lock per device is held during each call, I/O included. The write lock only adds a device, or
//! removes one that is unused, so waits are short. `changes` is taken first, and held for a whole removal, or for a run
//! of compaction, which gives way.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use folioswap_core::{Attempt, Availability, Clusters, CpuId, DeviceId, Listed, Order, SlotId};

use crate::config::error::Error;
use crate::config::limits::MAX_DEVICES;
use crate::device::Opened;
use crate::device::topology::Topology;
use crate::process::shared_stats::SharedCounters;
use crate::swap::attached::{Attached, Layout};

/// A place for a device, on its own cache lines.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct DeviceEntry(pub(super) RwLock<Option<Attached>>);

impl DeviceEntry {
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Option<Attached>> {
        self.0.read().expect("nothing panics under this lock")
    }

    fn set(&self, attached: Option<Attached>) -> Option<Attached> {
        // A signal handler that touched managed memory now would wait for this thread.
        let _blocked = folioswap_sys::signals::block_all();
        std::mem::replace(&mut *self.0.write().expect("nothing panics under this lock"), attached)
    }
}

/// A device in use. It stays while this is held.
pub(crate) struct InUse<'s>(RwLockReadGuard<'s, Option<Attached>>);

impl std::ops::Deref for InUse<'_> {
    type Target = Attached;

    fn deref(&self) -> &Attached {
        self.0.as_ref().expect("it was seen to be in use")
    }
}

pub(crate) struct Devices {
    pub(super) entries: Box<[DeviceEntry]>,
    /// Places from this index on never had a device.
    pub(super) nr_places: AtomicUsize,
    pub(super) availability: Availability,
    topology: Topology,
    changes: Mutex<()>,
    /// Threads that wait to add or remove a device.
    pub(super) nr_changing: AtomicUsize,
    layout: Layout,
    compresses: AtomicBool,
    /// Shared I/O counters of devices. `None`: each device has its own.
    shared: Option<&'static SharedCounters>,
}

impl Devices {
    /// Without a topology, uses that of the machine.
    pub fn new(
        devices: Vec<Opened>,
        mut layout: Layout,
        topology: Option<Topology>,
        shared: Option<&'static SharedCounters>,
    ) -> Self {
        let topology = topology.unwrap_or_else(Topology::of_machine);
        layout.most_slots = layout.most_slots.min(1 << layout.device_shift);
        let empty = Devices {
            entries: (0..MAX_DEVICES).map(|_| DeviceEntry::default()).collect(),
            nr_places: AtomicUsize::new(0),
            availability: Availability::new(topology.nr_numbers(), MAX_DEVICES),
            topology,
            changes: Mutex::new(()),
            nr_changing: AtomicUsize::new(0),
            layout,
            compresses: AtomicBool::new(false),
            shared,
        };
        for device in devices {
            empty.add(device).expect("the builder has counted the devices");
        }
        empty
    }

    /// Adds a device.
    ///
    /// # Errors
    /// [`Error::TooManyDevices`].
    pub fn add(&self, opened: Opened) -> Result<(), Error> {
        let Opened { device, priority, node } = opened;
        let _alone = self.changing();
        let free = self.entries.iter().position(|place| place.read().is_none());
        let free = free.ok_or(Error::TooManyDevices(MAX_DEVICES))?;
        self.compresses.fetch_or(device.compresses(), Ordering::Relaxed);
        let name = device.name();
        let taken = |name: &str| self.find(name).is_some();
        let others = (2..).map(|number| format!("{name}#{number}"));
        let name = std::iter::once(name.clone()).chain(others).find(|name| !taken(name)).unwrap_or_default();
        let mut attached = Attached::new(device, name, self.layout, self.shared);
        attached.home = node.filter(|_| priority.is_none());
        self.entries[free].set(Some(attached));
        self.nr_places.fetch_max(free + 1, Ordering::Release);
        let _blocked = folioswap_sys::signals::block_all(); // as in `DeviceEntry::set`
        self.availability.add(DeviceId::from_index(free), priority, node);
        Ok(())
    }

    /// The NUMA nodes of devices and CPUs.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Waits until no other thread adds or removes devices, and keeps others from it.
    pub fn changing(&self) -> MutexGuard<'_, ()> {
        self.nr_changing.fetch_add(1, Ordering::SeqCst);
        let alone = self.changes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.nr_changing.fetch_sub(1, Ordering::SeqCst);
        alone
    }

    /// Keeps others from adding and removing devices, unless one is doing so. The caller gives way as soon as
    /// [`Devices::is_change_wanted`].
    pub fn try_changing(&self) -> Option<MutexGuard<'_, ()>> {
        self.changes.try_lock().ok()
    }

    /// Whether a thread waits to add or remove a device.
    pub fn is_change_wanted(&self) -> bool {
        self.nr_changing.load(Ordering::SeqCst) > 0
    }

    /// The device with a name. Those of a parent have none here.
    pub fn find(&self, name: &str) -> Option<DeviceId> {
        let mut named = self.each().filter(|(_, attached)| attached.name == name && !attached.is_foreign());
        named.next().map(|(id, _)| id)
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (DeviceId, InUse<'_>)> {
        let ids = (0..self.nr_places.load(Ordering::Acquire)).map(DeviceId::from_index);
        ids.filter_map(|id| Some((id, self.get(id)?)))
    }

    pub fn get(&self, id: DeviceId) -> Option<InUse<'_>> {
        Some(self.entries[id.index()].read()).filter(|entry| entry.is_some()).map(InUse)
    }

    /// The same, for a caller that keeps it from being removed.
    pub fn device(&self, id: DeviceId) -> InUse<'_> {
        self.get(id).expect("the caller keeps it from being removed")
    }

    pub(super) fn within(&self, slot: SlotId) -> SlotId {
        SlotId::new(slot.get() & ((1 << self.layout.device_shift) - 1))
    }

    pub fn device_of(&self, slot: SlotId) -> DeviceId {
        DeviceId::new((slot.get() >> self.layout.device_shift) as u32)
    }

    pub fn slot_on(&self, id: DeviceId, within: SlotId) -> SlotId {
        SlotId::new(u64::from(id.get()) << self.layout.device_shift | within.get())
    }

    /// A slot's number on this device. `None` if it is on another device.
    pub fn slot_within(&self, id: DeviceId, slot: SlotId) -> Option<SlotId> {
        (self.device_of(slot) == id).then(|| self.within(slot))
    }

    /// Whether `slot` is `nr_slots` after `first` on the same device, so that one read or write can reach both. The
    /// number alone is not enough, because a device's last slot may be followed by the first slot of the next device.
    pub fn follows(&self, slot: SlotId, first: SlotId, nr_slots: usize) -> bool {
        slot.index() == first.index() + nr_slots && self.device_of(slot) == self.device_of(first)
    }

    /// The next device on which a large folio may find no run of slots in spite of free room. See
    /// [`Attached::has_scattered_room`].
    pub fn next_scattered(&self, after: Option<DeviceId>) -> Option<DeviceId> {
        let others = self.each().filter(|&(id, _)| after.is_none_or(|after| id > after));
        others.filter(|(_, attached)| attached.has_scattered_room()).map(|(id, _)| id).next()
    }

    /// Passes a device's clusters to `look`. The caller keeps the device from being removed.
    pub fn clusters<T>(&self, id: DeviceId, look: impl FnOnce(&Clusters) -> T) -> T {
        let seen = look(&self.device(id).clusters);
        self.availability.freed(id); // isolated clusters may be back
        seen
    }

    /// Allocates on one device, which may have been removed meanwhile.
    pub(super) fn allocate_on(&self, id: DeviceId, cpu: CpuId, order: Order) -> Attempt<SlotId> {
        let Some(attached) = self.get(id) else { return Attempt::NoRun };
        match attached.allocate(cpu, order) {
            Some(slot) => Attempt::Placed(self.slot_on(id, slot)),
            None if attached.has_none_left(order) => Attempt::Full,
            None => Attempt::NoRun,
        }
    }

    /// Frees all pending slots. What was freed before this call is free after it.
    pub(super) fn flush(&self) {
        self.each().for_each(|(_, attached)| _ = attached.flush());
    }

    /// Stops handing out slots of the device. A failing device may be in this state already.
    pub fn begin_removal(&self, id: DeviceId) {
        if self.device(id).begin_removal() {
            self.availability.begin_removal(id);
        }
    }

    /// Hands out its slots again, unless it is failing.
    pub fn cancel_removal(&self, id: DeviceId) {
        if !self.device(id).health.is_failing() {
            self.device(id).cancel_removal();
            self.availability.cancel_removal(id);
        }
    }

    pub fn failing_devices(&self) -> Vec<DeviceId> {
        self.each().filter(|(_, attached)| attached.health.is_failing()).map(|(id, _)| id).collect()
    }

    /// Closes an unused device that is being removed.
    pub fn detach(&self, id: DeviceId) {
        assert_eq!(self.device(id).nr_used(), 0, "a device is in use until its last slot is free");
        {
            let _blocked = folioswap_sys::signals::block_all();
            self.availability.remove(id);
        }
        let attached = self.entries[id.index()].set(None);
        drop(attached); // closes it, under no lock
        let compresses = self.each().any(|(_, attached)| attached.device.compresses());
        self.compresses.store(compresses, Ordering::Relaxed);
    }

    /// Whether there is a device that compresses, so that writes take CPU time.
    pub fn compresses(&self) -> bool {
        self.compresses.load(Ordering::Relaxed)
    }

    pub(super) fn compresses_on(&self, id: DeviceId) -> bool {
        self.get(id).is_some_and(|attached| attached.device.compresses())
    }

    /// Whether more than `eighths` eighths of a device's memory are in use, for devices whose memory is what fills up.
    pub fn is_filled(&self, id: DeviceId, eighths: u64) -> bool {
        let memory = self.get(id).and_then(|attached| attached.device.memory_use());
        memory.is_some_and(|memory| memory.kept_bytes > memory.limit_bytes / 8 * eighths)
    }

    /// Devices that compress, each with the devices behind it: those of lower priority that do not compress.
    pub fn fronts(&self) -> Vec<(DeviceId, Vec<DeviceId>)> {
        let listed = {
            let _blocked = folioswap_sys::signals::block_all();
            self.availability.devices()
        };
        let behind = |front: &Listed| {
            let lower = listed.iter().filter(|other| other.priority < front.priority).map(|other| other.device);
            lower.filter(|&other| !self.compresses_on(other)).collect::<Vec<_>>()
        };
        let fronts = listed.iter().filter(|front| self.compresses_on(front.device));
        fronts.map(|front| (front.device, behind(front))).filter(|(_, behind)| !behind.is_empty()).collect()
    }
}
