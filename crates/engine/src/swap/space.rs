//! The swap space: the slots of an arena's devices, in one range of numbers. A device's begin at `index << 32`.
//!
//! `core::swap::Availability` chooses the device: each NUMA node has a list by priority, and the next device is tried
//! when one has no place for the whole folio. Small folios of a CPU stay on one device for a cluster's worth of slots,
//! so they are written together. The index of a removed device is reused once no slot of it is in use.
//!
//! **Locking.** A read lock per device is held during each call, I/O included. The write lock only adds a device, or
//! removes one that is unused, so waits are short. `changes` is taken first, and held for a whole removal, or for a run
//! of compaction, which gives way.

pub mod fronts;
pub mod io;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard};

use folioswap_core::{
    Attempt, Availability, Clusters, CpuId, DeviceId, DeviceIo, Freed, Listed, NodeId, Order, Priority, SlotId, Stats,
};

use folioswap_sys::descriptor::Descriptor;
use folioswap_sys::hidden_numbers::KeptNumber;

use crate::config::error::Error;
use crate::config::limits::MAX_DEVICES;
use crate::device::topology::Topology;
use crate::device::{MemoryUse, Opened};
use crate::process::fatal;
use crate::process::shared_stats::{SharedCounters, StatsHome};
use crate::process::wakeup::{Event, Pass};
use crate::swap::attached::{Attached, Frees, Layout};
use crate::swap::freeing::Freeing;
use crate::swap::health::{DeviceErrors, DeviceState, Trouble};
use crate::swap::slot_work::SlotWork;
use crate::swap::space::fronts::Relief;

/// A snapshot of a swap device of an arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, for [`Arena::remove_device`](crate::Arena::remove_device).
    pub name: String,
    /// Bytes of slots in use, including copies of folios that are in RAM.
    pub used_bytes: u64,
    /// Bytes reserved for its slots: disk space, or the part of a block device or RAM in use so far.
    pub reserved_bytes: u64,
    /// The most bytes it can hold. `None`: limited by the file system only.
    pub size_bytes: Option<u64>,
    /// Memory use of compressed RAM. Its other sizes count slots, of which there are many times more than fit in its
    /// memory.
    pub memory: Option<MemoryUse>,
    /// Devices of higher priority are used first. The system chooses negative ones, and such a device comes before all
    /// others of negative priority on its own node.
    pub priority: Priority,
    /// Its NUMA node, if known.
    pub node: Option<NodeId>,
    /// I/O counts and times. Processes that share their counters are counted together.
    pub io: DeviceIo,
    /// Whether folios are written to it.
    pub state: DeviceState,
    /// How often it failed.
    pub errors: DeviceErrors,
}

/// A place for a device, on its own cache lines.
#[repr(align(128))]
#[derive(Default)]
struct DeviceEntry(RwLock<Option<Attached>>);

impl DeviceEntry {
    fn read(&self) -> RwLockReadGuard<'_, Option<Attached>> {
        self.0.read().expect("nothing panics under this lock")
    }

    fn set(&self, attached: Option<Attached>) -> Option<Attached> {
        // A signal handler that touched managed memory now would wait for this thread.
        let _blocked = folioswap_sys::signals::block_all();
        std::mem::replace(&mut *self.0.write().expect("nothing panics under this lock"), attached)
    }
}

/// The device that takes one CPU's small folios: its number, how many more slots go there, and the node for which it
/// was chosen, since CPUs may share a record. On its own cache lines. Updates may race if the thread changes CPU; then
/// a few folios go elsewhere.
#[repr(align(128))]
#[derive(Default)]
struct Recent(AtomicU64);

impl Recent {
    /// Bits for the number of slots.
    const SHIFT: u32 = 16;

    /// The part of a record without the number of slots.
    fn head(node: NodeId, device: DeviceId) -> u64 {
        (u64::from(node.get()) << 32 | u64::from(device.get())) << Self::SHIFT
    }

    /// The device, if this node may take `nr_slots` more slots there.
    fn take(&self, node: NodeId, nr_slots: usize) -> Option<DeviceId> {
        let seen = self.0.load(Ordering::Relaxed);
        let left = (seen & ((1 << Self::SHIFT) - 1)).checked_sub(nr_slots as u64)?;
        let device = DeviceId::new((seen >> Self::SHIFT) as u32);
        if seen >> Self::SHIFT << Self::SHIFT != Self::head(node, device) {
            return None;
        }
        self.0.store(Self::head(node, device) | left, Ordering::Relaxed);
        Some(device)
    }

    /// Begins a cluster's worth of slots, of which `nr_slots` are taken.
    fn begin(&self, node: NodeId, device: DeviceId, nr_slots: usize) {
        let left = Order::HUGE.nr_pages().saturating_sub(nr_slots) as u64;
        self.0.store(Self::head(node, device) | left, Ordering::Relaxed);
    }
}

/// A slot's number on its device. The device stays while this is held.
struct At<'s> {
    place: RwLockReadGuard<'s, Option<Attached>>,
    within: SlotId,
}

impl std::ops::Deref for At<'_> {
    type Target = Attached;

    fn deref(&self) -> &Attached {
        self.place.as_ref().expect("a slot that is in use has a device")
    }
}

/// All devices of an arena.
pub(crate) struct SwapSpace {
    devices: Box<[DeviceEntry]>,
    /// Places from this index on never had a device.
    nr_places: AtomicUsize,
    availability: Availability,
    topology: Topology,
    /// By CPU.
    recent: Box<[Recent]>,
    changes: Mutex<()>,
    /// Threads that wait to add or remove a device.
    nr_changing: AtomicUsize,
    layout: Layout,
    /// Whether a device compresses.
    compresses: AtomicBool,
    /// Threads that are writing to such a device.
    nr_compressing: AtomicUsize,
    /// Shared I/O counters of devices. `None`: each device has its own.
    shared: Option<&'static SharedCounters>,
    /// When the background thread is woken to free slots.
    freeing: Freeing,
    /// What the background thread is wanted for.
    slot_work: SlotWork,
    /// The thread that relieves fronts.
    relief: Relief,
    stats: Arc<StatsHome>,
}

impl SwapSpace {
    /// Without a topology, uses that of the machine.
    pub fn new(
        devices: Vec<Opened>,
        mut layout: Layout,
        topology: Option<Topology>,
        compacts: bool,
        background: Arc<Event>,
        stats: Arc<StatsHome>,
    ) -> Self {
        let topology = topology.unwrap_or_else(Topology::of_machine);
        layout.most_slots = layout.most_slots.min(1 << layout.device_shift);
        let entries = (0..MAX_DEVICES).map(|_| DeviceEntry::default()).collect();
        let space = SwapSpace {
            devices: entries,
            nr_places: AtomicUsize::new(0),
            availability: Availability::new(topology.nr_numbers(), MAX_DEVICES),
            topology,
            recent: (0..layout.nr_cpus).map(|_| Recent::default()).collect(),
            changes: Mutex::new(()),
            nr_changing: AtomicUsize::new(0),
            layout,
            compresses: AtomicBool::new(false),
            nr_compressing: AtomicUsize::new(0),
            shared: stats.shared(),
            freeing: Freeing::new(layout.frees == Frees::Synchronous, Arc::clone(&background)),
            slot_work: SlotWork::new(compacts, background),
            relief: Relief::default(),
            stats,
        };
        for device in devices {
            assert!(space.add(device), "the builder has counted the devices");
        }
        space
    }

    pub fn freeing(&self) -> &Freeing {
        &self.freeing
    }

    pub fn slot_work(&self) -> &SlotWork {
        &self.slot_work
    }

    pub fn relief(&self) -> &Relief {
        &self.relief
    }

    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Adds a device. `false`: there are too many.
    pub fn add(&self, opened: Opened) -> bool {
        let Opened { device, priority, node } = opened;
        let _alone = self.changing();
        let Some(free) = self.devices.iter().position(|place| place.read().is_none()) else { return false };
        self.compresses.fetch_or(device.compresses(), Ordering::Relaxed);
        let name = device.name();
        let taken = |name: &str| self.find(name).is_some();
        let others = (2..).map(|number| format!("{name}#{number}"));
        let name = std::iter::once(name.clone()).chain(others).find(|name| !taken(name)).unwrap_or_default();
        let mut attached = Attached::new(device, name, self.layout, self.shared);
        attached.home = node.filter(|_| priority.is_none());
        self.devices[free].set(Some(attached));
        self.nr_places.fetch_max(free + 1, Ordering::Release);
        let _blocked = folioswap_sys::signals::block_all(); // as in `DeviceEntry::set`
        self.availability.add(DeviceId::from_index(free), priority, node);
        true
    }

    /// As [`SwapSpace::add`].
    ///
    /// # Errors
    /// [`Error::TooManyDevices`].
    pub fn add_or_refuse(&self, opened: Opened) -> Result<(), Error> {
        if self.add(opened) { Ok(()) } else { Err(Error::TooManyDevices(MAX_DEVICES)) }
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
    /// [`SwapSpace::is_change_wanted`].
    pub fn try_changing(&self) -> Option<MutexGuard<'_, ()>> {
        self.changes.try_lock().ok()
    }

    /// Whether a thread waits to add or remove a device.
    pub fn is_change_wanted(&self) -> bool {
        self.nr_changing.load(Ordering::SeqCst) > 0
    }

    /// The next device on which a large folio may find no run of slots in spite of free room. See
    /// [`Attached::has_scattered_room`].
    pub fn next_scattered(&self, after: Option<DeviceId>) -> Option<DeviceId> {
        let passes = |id: DeviceId| after.is_none_or(|after| id > after);
        self.each(|id, attached| (passes(id) && attached.has_scattered_room()).then_some(id))
    }

    /// Passes a device's clusters to `look`. The caller keeps the device from being removed.
    pub fn clusters<T>(&self, id: DeviceId, look: impl FnOnce(&Clusters) -> T) -> T {
        let seen = self.device(id, |attached| look(&attached.clusters));
        self.availability.freed(id); // isolated clusters may be back
        seen
    }

    /// A slot of a device by its number there.
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

    /// The device with a name. Those of a parent have none here.
    pub fn find(&self, name: &str) -> Option<DeviceId> {
        self.each(|id, attached| (attached.name == name && !attached.is_foreign()).then_some(id))
    }

    /// Calls `look` with each device until it returns a value.
    fn each<T>(&self, mut look: impl FnMut(DeviceId, &Attached) -> Option<T>) -> Option<T> {
        let places = &self.devices[..self.nr_places.load(Ordering::Acquire)];
        places.iter().enumerate().find_map(|(index, place)| look(DeviceId::from_index(index), place.read().as_ref()?))
    }

    /// The most memory that devices in memory may use, plain or compressed.
    pub fn most_bytes_in_ram(&self) -> u64 {
        let mut sum = 0;
        self.each(|_, attached| {
            let device = &attached.device;
            let plain = device.memory().and_then(|_| device.limit_bytes());
            sum += plain.or(device.memory_use().map(|memory| memory.limit_bytes)).unwrap_or(0);
            None::<()>
        });
        sum
    }

    /// As [`SwapSpace::each`], for one device.
    fn device<T>(&self, id: DeviceId, look: impl FnOnce(&Attached) -> T) -> T {
        look(self.devices[id.index()].read().as_ref().expect("the caller keeps it from being removed"))
    }

    /// Stops handing out slots of the device. A failing device may be in this state already.
    pub fn begin_removal(&self, id: DeviceId) {
        if self.device(id, Attached::begin_removal) {
            self.availability.begin_removal(id);
        }
    }

    /// Hands out its slots again, unless it is failing.
    pub fn cancel_removal(&self, id: DeviceId) {
        if !self.is_device_failing(id) {
            self.device(id, Attached::cancel_removal);
            self.availability.cancel_removal(id);
        }
    }

    /// The devices that are failing.
    pub fn failing_devices(&self) -> Vec<DeviceId> {
        let mut failing = Vec::new();
        self.each(|id, attached| {
            failing.extend(attached.health.is_failing().then_some(id));
            None::<()>
        });
        failing
    }

    /// Whether a device is failing. The caller keeps it from being removed.
    pub fn is_device_failing(&self, id: DeviceId) -> bool {
        self.device(id, |attached| attached.health.is_failing())
    }

    /// Whether the slot's device is failing.
    pub fn is_failing(&self, slot: SlotId) -> bool {
        self.at(slot).health.is_failing()
    }

    /// Counts a failure of the slot's device. See [`Health::note`](crate::swap::health::Health::note).
    pub fn note_failure(&self, slot: SlotId, trouble: &Trouble, again: bool) -> Option<String> {
        let at = self.at(slot);
        at.figures.failed(trouble.kind());
        at.health.note(trouble, again)
    }

    /// Notes the success of a write that bypassed the device's own calls.
    pub fn note_written(&self, slot: SlotId) {
        self.at(slot).health.wrote();
    }

    /// Whether a device that is being removed holds nothing. Slots freed there are free at once.
    pub fn is_unused(&self, id: DeviceId) -> bool {
        self.device(id, |attached| attached.nr_used() == 0)
    }

    /// Closes an unused device that is being removed.
    pub fn detach(&self, id: DeviceId) {
        assert!(self.is_unused(id), "a device is in use until its last slot is free");
        {
            let _blocked = folioswap_sys::signals::block_all();
            self.availability.remove(id);
        }
        let attached = self.devices[id.index()].set(None);
        drop(attached); // closes it, under no lock
        let compresses = self.each(|_, attached| attached.device.compresses().then_some(())).is_some();
        self.compresses.store(compresses, Ordering::Relaxed);
    }

    /// The device of a slot.
    pub fn device_of(&self, slot: SlotId) -> DeviceId {
        DeviceId::new((slot.get() >> self.layout.device_shift) as u32)
    }

    /// Whether slots in use may be written once more: their device is not being removed, failing, or a parent's, and no
    /// forked child may read them.
    pub fn may_write_again(&self, slot: SlotId, order: Order) -> bool {
        let at = self.at(slot);
        at.may_write_again(at.within, order)
    }

    /// The NUMA node that prefers the slot's device because it is on that node. `None` if the node is unknown or a
    /// priority was set.
    pub fn home_of(&self, slot: SlotId) -> Option<NodeId> {
        self.at(slot).home
    }

    /// As [`SwapSpace::allocate_for`], for the CPU's node.
    pub fn allocate(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        self.allocate_for(self.topology.node_of(cpu), cpu, order)
    }

    /// Allocates 2^k contiguous slots, near those last handed out on this CPU, on the first device of the node's list
    /// that has them. Returns the first slot, or `None` if no device has them.
    pub fn allocate_for(&self, node: NodeId, cpu: CpuId, order: Order) -> Option<SlotId> {
        let (nr_slots, recent) = (order.nr_pages(), &self.recent[cpu.index() % self.recent.len()]);
        if let Some(device) = recent.take(node, nr_slots)
            && let Attempt::Placed(slot) = self.allocate_on(device, cpu, order)
        {
            return Some(slot);
        }
        let mut has_room_before = false;
        let slot = self.availability.place(node, |device| {
            let attempt = self.allocate_on(device, cpu, order);
            has_room_before |= matches!(attempt, Attempt::NoRun);
            attempt
        })?;
        // An earlier device without a run of this order still comes first for smaller folios.
        if order < Order::HUGE && !has_room_before {
            recent.begin(node, self.device_of(slot), nr_slots);
        }
        Some(slot)
    }

    /// Allocates on one device, which may have been removed meanwhile.
    fn allocate_on(&self, id: DeviceId, cpu: CpuId, order: Order) -> Attempt<SlotId> {
        let place = self.devices[id.index()].read();
        let Some(attached) = place.as_ref() else { return Attempt::NoRun };
        match attached.allocate(cpu, order) {
            Some(slot) => Attempt::Placed(self.slot_on(id, slot)),
            None if attached.has_none_left(order) => Attempt::Full,
            None => Attempt::NoRun,
        }
    }

    /// Frees slots, possibly later: all that were handed out at once, or an aligned part of them.
    pub(super) fn free(&self, cpu: CpuId, slot: SlotId, order: Order) -> Freed {
        let freed = {
            let at = self.at(slot);
            at.free(cpu, at.within, order)
        };
        self.availability.freed(self.device_of(slot));
        freed
    }

    /// As [`SwapSpace::free`], at once, for slots that were handed out and not used.
    pub(super) fn free_now(&self, slot: SlotId, order: Order) {
        {
            let at = self.at(slot);
            at.free_now(at.within, order);
        }
        self.availability.freed(self.device_of(slot));
    }

    /// Frees all pending slots. What was freed before this call is free after it.
    pub(super) fn flush(&self) {
        self.each(|_, attached| {
            attached.flush();
            None::<()>
        });
    }

    /// As [`SwapSpace::flush`], for one device. The caller keeps it from being removed.
    pub fn flush_device(&self, id: DeviceId) {
        self.device(id, Attached::flush);
    }

    /// Pending slots of a device. The caller keeps it from being removed.
    pub fn nr_on_their_way(&self, id: DeviceId) -> usize {
        self.device(id, Attached::nr_on_their_way)
    }

    /// As [`SwapSpace::flush`], for the freeing thread before it sleeps until it is woken. Returns whether any slots
    /// were pending.
    pub(super) fn sweep(&self) -> bool {
        let mut any = false;
        self.each(|_, attached| {
            any |= attached.sweep();
            None::<()>
        });
        any
    }

    /// Frees the batches of pending slots that are full.
    pub(super) fn free_full(&self) {
        self.each(|_, attached| {
            attached.free_full();
            None::<()>
        });
    }

    /// Notes that a folio of this order found no run of slots.
    pub fn want_whole_clusters(&self, order: Order) {
        self.slot_work.want_runs(order, || self.next_scattered(None).is_some());
    }

    /// Takes slots out of use permanently after a failed write.
    pub fn mark_bad(&self, slot: SlotId, order: Order) {
        let at = self.at(slot);
        at.mark_bad(at.within, order);
    }

    /// Whether a folio that was read back should keep its slots: only while its device has plenty of room.
    pub fn keeps_copies(&self, slot: SlotId) -> bool {
        let attached = self.at(slot);
        !attached.is_leaving() && attached.has_plenty()
    }

    pub fn device_name(&self, slot: SlotId) -> String {
        self.at(slot).name.clone()
    }

    /// Whether a device has enough emptied clusters to give some back.
    pub(super) fn discards_due(&self) -> bool {
        self.each(|_, attached| attached.discards_due().then_some(())).is_some()
    }

    /// Gives up to `most` emptied clusters back on each device that has more of them than clusters in use. `false`: no
    /// device has. `enter` passes the fork gate.
    pub(super) fn discard<'g>(&self, most: usize, enter: &dyn Fn() -> Option<Pass<'g>>) -> bool {
        let mut any = false;
        self.each(|id, attached| {
            if attached.nr_spare() > 0 {
                attached.discard(most, enter);
                let _inside = enter();
                self.availability.freed(id);
                any = true;
            }
            None::<()>
        });
        any
    }

    /// Before a fork: holds what is in use on files for that fork, and lets the child have what is in memory.
    pub fn share_with_child(&self, fork: u64) {
        self.share_again(fork);
        self.each(|_, attached| {
            self.let_child_have(attached, true);
            if let Some(Err(error)) = attached.device.descriptor().map(Descriptor::be_inherited) {
                fatal::say(&format!("swap {}: a child will not find what is there: {error}", attached.name));
            }
            None::<()>
        });
    }

    /// Holds for a fork what has come to be in use on files since [`SwapSpace::share_with_child`].
    pub fn share_again(&self, fork: u64) {
        self.each(|_, attached| {
            if attached.is_shared_with_children() {
                attached.hold_for(fork);
            }
            None::<()>
        });
    }

    /// After a fork: keeps what is in memory from children that are not managed.
    pub fn end_sharing(&self) {
        self.each(|_, attached| {
            self.let_child_have(attached, false);
            None::<()>
        });
    }

    fn let_child_have(&self, attached: &Attached, have: bool) {
        if let Err(error) = attached.device.let_children_have(have) {
            let done = if have { "a child cannot have its content" } else { "other children may get its content" };
            fatal::say(&format!("swap {}: {done}: {error}", attached.name));
        }
    }

    /// Whether slots were freed that forks hold.
    pub fn has_freed_held(&self) -> bool {
        self.each(|_, attached| attached.held.any_freed().then_some(())).is_some()
    }

    /// Frees the slots that were held for forks whose descendants are gone.
    pub fn end_held(&self, is_over: impl Fn(u64) -> bool) {
        self.each(|id, attached| {
            if attached.held.any() {
                let over: Vec<_> = attached.held.forks().into_iter().filter(|&fork| is_over(fork)).collect();
                if !over.is_empty() {
                    attached.end_held(|fork| over.contains(&fork));
                    self.availability.freed(id);
                }
            }
            None::<()>
        });
    }

    /// In a forked child: drops its parent's devices that are not in use, which would fill the places of devices within
    /// a few generations. Returns the descriptors of the others.
    pub fn kept_in_child(&self) -> Vec<KeptNumber> {
        let ids = (0..self.nr_places.load(Ordering::Acquire)).map(DeviceId::from_index);
        ids.for_each(|id| self.drop_unused_file(id));
        let mut kept = Vec::new();
        self.each(|_, attached| {
            kept.extend(attached.device.descriptor().map(Descriptor::kept_number));
            None::<()>
        });
        kept
    }

    /// In a forked child, whose descriptors are settled: the parent's devices are only read from now on.
    pub fn enter_child(&self) {
        self.nr_changing.store(0, Ordering::Relaxed);
        self.each(|_, attached| {
            attached.device.descriptor()?;
            attached.become_foreign();
            attached.held.end(|_| true, |_, _| ());
            None::<()>
        });
    }

    /// In a forked child: drops a device of the parent's in a file, unless it is in use, or a thread of the parent's
    /// was removing it or looking at it.
    fn drop_unused_file(&self, id: DeviceId) {
        let Ok(mut place) = self.devices[id.index()].0.try_write() else { return };
        let is_unused = |attached: &Attached| {
            attached.device.descriptor().is_some() && attached.nr_used() == 0 && !attached.is_leaving()
        };
        if place.as_ref().is_some_and(is_unused) {
            let _blocked = folioswap_sys::signals::block_all(); // as in `DeviceEntry::set`
            self.availability.begin_removal(id);
            self.availability.remove(id);
            *place = None;
        }
    }

    /// In a forked child: lets the engine's threads read the parent's devices.
    pub fn keep_in_child(&self) {
        self.each(|_, attached| {
            if let Some(Err(error)) = attached.device.descriptor().map(Descriptor::keep_in_child) {
                fatal::say(&format!(
                    "swap {}: what was there when this process was forked is lost: {error}",
                    attached.name
                ));
            }
            None::<()>
        });
    }

    /// All devices, by descending priority, then by age. Exact after a flush.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let _blocked = folioswap_sys::signals::block_all(); // as in `DeviceEntry::set`
        let listed = self.availability.devices();
        let info = |listed: Listed| {
            let place = self.devices[listed.device.index()].read();
            let attached = place.as_ref()?; // it may have been removed meanwhile
            Some(DeviceInfo {
                name: attached.name.clone(),
                used_bytes: attached.used_bytes(),
                reserved_bytes: attached.reserved_bytes(),
                size_bytes: attached.device.limit_bytes(),
                memory: attached.device.memory_use(),
                priority: listed.priority,
                node: listed.node,
                io: attached.figures.snapshot(),
                state: attached.state(),
                errors: attached.health.errors(),
            })
        };
        listed.into_iter().filter_map(info).collect()
    }

    pub fn metadata_bytes(&self) -> usize {
        let mut sum = 0;
        self.each(|_, attached| {
            sum += attached.metadata_bytes();
            None::<()>
        });
        sum
    }

    /// Says in one line which devices are full.
    pub fn describe_full(&self) -> String {
        let shown = |device: DeviceInfo| match device.state {
            DeviceState::Failing => format!("{}, which is failing", device.name),
            DeviceState::InUse | DeviceState::Leaving => device.name,
        };
        let names: Vec<_> = self.devices().into_iter().map(shown).collect();
        if names.is_empty() { "there is no swap".into() } else { format!("swap is full ({})", names.join(", ")) }
    }

    /// Describes the I/O in flight, by device. `None` if there is none. Devices that compress do not count, because
    /// only other threads can hold them up.
    pub fn describe_in_flight(&self) -> Option<String> {
        let mut described = Vec::new();
        self.each(|_, attached| {
            let nr = if attached.device.compresses() { 0 } else { attached.figures.in_flight() };
            described.extend((nr > 0).then(|| format!("{} (reads and writes under way: {nr})", attached.name)));
            None::<()>
        });
        (!described.is_empty()).then(|| described.join(", "))
    }

    fn at(&self, slot: SlotId) -> At<'_> {
        let place = self.devices[self.device_of(slot).index()].read();
        At { place, within: self.within(slot) }
    }

    fn within(&self, slot: SlotId) -> SlotId {
        SlotId::new(slot.get() & ((1 << self.layout.device_shift) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{self, SwapDevice};
    use crate::swap::attached::{DEVICE_SHIFT, Frees};

    /// The nodes of `text`, and devices as for `--swap`.
    fn space(text: &str, devices: &[&str]) -> SwapSpace {
        let topology: Topology = text.parse().unwrap();
        let open = |text: &&str| device::open(&text.parse::<SwapDevice>().unwrap(), &topology).unwrap();
        let devices = devices.iter().map(open).collect();
        let layout = Layout {
            most_slots: 1 << 20,
            device_shift: DEVICE_SHIFT,
            nr_cpus: 4,
            rotational: None,
            frees: Frees::Cheapest,
        };
        let stats = Arc::new(StatsHome::Own(crate::process::shared_stats::of_its_own()));
        SwapSpace::new(devices, layout, Some(topology), true, Arc::default(), stats)
    }

    const TWO: &str = "node 0 cpus 0,2\nnode 1 cpus 1,3\ndevice ram:6M node 1";

    fn allocate(space: &SwapSpace, cpu: u32, order: Order) -> Option<(usize, SlotId)> {
        let slot = space.allocate(CpuId::new(cpu), order)?;
        Some((space.device_of(slot).index(), slot))
    }

    fn devices_of(space: &SwapSpace, cpu: u32, order: Order, nr: usize) -> Vec<usize> {
        (0..nr).map_while(|_| allocate(space, cpu, order)).map(|(device, _)| device).collect()
    }

    #[test]
    fn each_node_uses_its_own_device_first() {
        let space = space(TWO, &["ram:4M,node=0", "ram:6M"]);
        assert_eq!(devices_of(&space, 3, Order::HUGE, 1), [1]);
        assert_eq!(devices_of(&space, 0, Order::PAGE, 3), [0, 0, 0]);
        // A whole folio goes to the next device before it is split. Then there is no room until something is freed.
        assert_eq!(devices_of(&space, 2, Order::HUGE, 9), [0, 1, 1]);
        assert_eq!(devices_of(&space, 1, Order::PAGE, 600), [0; 509]);
        assert_eq!(devices_of(&space, 1, Order::PAGE, 1), []);
        let infos = space.devices();
        let shown: Vec<_> = infos.iter().map(|info| (info.priority.get(), info.node.map(NodeId::get))).collect();
        assert_eq!(shown, [(-2, Some(0)), (-3, Some(1))]);
    }

    #[test]
    fn what_is_freed_on_a_full_device_is_found() {
        let space = space("node 0", &["ram:2M", "ram:2M"]);
        let all: Vec<_> = (0..1024).map_while(|_| allocate(&space, 0, Order::PAGE)).collect();
        assert!(all.len() == 1024 && allocate(&space, 0, Order::PAGE).is_none());
        for (device, slot) in [all[1000], all[7]] {
            let _ = space.free(CpuId::new(1), slot, Order::PAGE);
            assert_eq!(allocate(&space, 0, Order::PAGE), Some((device, slot)));
            assert_eq!(allocate(&space, 0, Order::PAGE), None);
        }
        space.free_now(all[1000].1, Order::PAGE);
        assert_eq!(allocate(&space, 0, Order::PAGE), Some(all[1000]));
    }

    #[test]
    fn equals_take_turns_a_cluster_at_a_time() {
        let space = space("node 0", &["ram:8M,prio=1", "ram:8M,prio=1", "ram:8M"]);
        assert_eq!(devices_of(&space, 0, Order::HUGE, 4), [0, 1, 0, 1]);
        let small = devices_of(&space, 0, Order::PAGE, 1024);
        assert_eq!(
            small.chunks(512).map(|chunk| (chunk[0], chunk.iter().all(|at| *at == chunk[0]))).collect::<Vec<_>>(),
            [(0, true), (1, true)]
        );
        assert_eq!(devices_of(&space, 0, Order::HUGE, 9), [0, 1, 2, 2, 2, 2], "the lower one when these are full");
    }

    #[test]
    fn a_device_that_is_removed_is_used_no_more() {
        let space = space(TWO, &["ram:4M,node=0", "ram:6M", "ram:8M"]);
        let (_, slot) = allocate(&space, 0, Order::PAGE).unwrap();
        let device = DeviceId::new(0);
        space.begin_removal(device);
        assert_eq!(devices_of(&space, 0, Order::PAGE, 1), [1]);
        space.cancel_removal(device);
        assert_eq!(devices_of(&space, 0, Order::HUGE, 1), [0]);
        space.begin_removal(device);
        space.free_now(slot, Order::PAGE);
        space.free_now(slot.plus(512), Order::HUGE);
        space.detach(device);
        let priorities: Vec<_> = space.devices().iter().map(|info| info.priority.get()).collect();
        assert_eq!(priorities, [-2, -3]);
        assert_eq!(devices_of(&space, 0, Order::HUGE, 9), [1, 1, 2, 2, 2, 2]);
    }
}
