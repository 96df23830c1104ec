//! The swap space: the slots of an arena's devices, in one range of numbers. A device's begin at `index << 32`.
//!
//! The next device of a node's list is tried when one has no place for the whole folio. Small folios of a CPU stay on
//! one device for a cluster's worth of slots, so they are written together.

pub mod io;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use folioswap_core::{Attempt, CpuId, DeviceId, Freed, NodeId, Order, SlotId, Stats};
use folioswap_sys::signals;

use crate::device::topology::Topology;
use crate::device::{Opened, Refusal};
use crate::process::cpu::current_cpu;
use crate::process::shared_stats::StatsHome;
use crate::process::wakeup::{Event, Gate};
use crate::swap::attached::{Frees, Layout};
use crate::swap::device_slot::DeviceSlot;
use crate::swap::devices::Devices;
use crate::swap::free::Freeing;
use crate::swap::relief::{HIGH, Relief};
use crate::swap::slot_work::SlotWork;

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

/// The slots of all devices, and what they hold.
pub(crate) struct SwapSpace {
    devices: Devices,
    /// By CPU.
    recent: Box<[Recent]>,
    /// Threads that are writing to a device that compresses.
    nr_compressing: AtomicUsize,
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
        layout: Layout,
        topology: Option<Topology>,
        compacts: bool,
        background: Arc<Event>,
        stats: Arc<StatsHome>,
    ) -> Self {
        SwapSpace {
            devices: Devices::new(devices, layout, topology, stats.shared()),
            recent: (0..layout.nr_cpus).map(|_| Recent::default()).collect(),
            nr_compressing: AtomicUsize::new(0),
            freeing: Freeing::new(layout.frees == Frees::Synchronous, Arc::clone(&background)),
            slot_work: SlotWork::new(compacts, background),
            relief: Relief::default(),
            stats,
        }
    }

    pub fn devices(&self) -> &Devices {
        &self.devices
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

    pub fn at(&self, slot: SlotId) -> DeviceSlot<'_> {
        let attached = self.devices.device(self.devices.device_of(slot));
        DeviceSlot { attached, within: self.devices.within(slot) }
    }

    /// Whether a thread is writing to a device that compresses.
    pub fn is_compressing(&self) -> bool {
        self.nr_compressing.load(Ordering::Relaxed) > 0
    }

    /// As [`SwapSpace::allocate_for`], for the CPU's node.
    pub fn allocate(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        self.allocate_for(self.devices.topology().node_of(cpu), cpu, order)
    }

    /// Allocates 2^k contiguous slots, near those last handed out on this CPU, on the first device of the node's list
    /// that has them. Returns the first slot, or `None` if no device has them.
    pub fn allocate_for(&self, node: NodeId, cpu: CpuId, order: Order) -> Option<SlotId> {
        let (nr_slots, recent) = (order.nr_pages(), &self.recent[cpu.index() % self.recent.len()]);
        if let Some(device) = recent.take(node, nr_slots)
            && let Attempt::Placed(slot) = self.devices.allocate_on(device, cpu, order)
        {
            return Some(slot);
        }
        let mut has_room_before = false;
        let slot = self.devices.availability.place(node, |device| {
            let attempt = self.devices.allocate_on(device, cpu, order);
            has_room_before |= matches!(attempt, Attempt::NoRun);
            attempt
        })?;
        // An earlier device without a run of this order still comes first for smaller folios.
        if order < Order::HUGE && !has_room_before {
            recent.begin(node, self.devices.device_of(slot), nr_slots);
        }
        Some(slot)
    }

    /// As [`SwapSpace::allocate`], on the first of these devices that has a place.
    pub fn allocate_on_one(&self, devices: &[DeviceId], cpu: CpuId, order: Order) -> Option<SlotId> {
        devices.iter().find_map(|&device| match self.devices.allocate_on(device, cpu, order) {
            Attempt::Placed(slot) => Some(slot),
            Attempt::NoRun | Attempt::Full => None,
        })
    }

    /// As [`SwapSpace::allocate`], on another device, for a folio that `refused_by` has refused.
    pub(super) fn allocate_after(
        &self,
        refused_by: DeviceId,
        refusal: Refusal,
        cpu: CpuId,
        order: Order,
    ) -> Option<SlotId> {
        self.devices.availability.place(self.devices.topology().node_of(cpu), |device| {
            let refuses =
                device == refused_by || refusal == Refusal::Incompressible && self.devices.compresses_on(device);
            if refuses { Attempt::NoRun } else { self.devices.allocate_on(device, cpu, order) }
        })
    }

    /// Wakes the thread if a written folio has filled a front.
    pub fn note_filling(&self, slot: SlotId) {
        let is_front = self.devices.compresses() && self.relief.is_wanted();
        if is_front && self.devices.is_filled(self.devices.device_of(slot), HIGH) {
            self.relief.wake();
        }
    }

    /// Frees slots; they may be collected in a batch first. Does not allocate.
    pub fn free_slots(&self, slot: SlotId, order: Order) {
        let freed = self.at(slot).free(current_cpu(), order);
        self.devices.availability.freed(self.devices.device_of(slot));
        if self.freeing.begin_watch() | (freed == Freed::Filled) {
            self.freeing.wake();
        }
    }

    /// Returns unused slots at once, so that the next allocation finds them.
    pub fn put_back_slots(&self, slot: SlotId, order: Order) {
        self.at(slot).free_now(order);
        self.devices.availability.freed(self.devices.device_of(slot));
        if self.freeing.begin_watch() {
            self.freeing.wake();
        }
    }

    /// Frees all slots in batches, so that all earlier frees have taken effect. For threads of the program, with no
    /// lock held.
    pub fn flush_slots(&self, gate: &Gate) {
        // A signal handler that ran now might fault, and wait for a lock that this thread holds.
        let _blocked = signals::block_all();
        let _pass = gate.enter(signals::thread_id());
        self.devices.flush();
    }

    /// Notes that a folio of this order found no run of slots.
    pub fn want_whole_clusters(&self, order: Order) {
        self.slot_work.want_runs(order, || self.devices.next_scattered(None).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{self, SwapDevice};
    use crate::swap::attached::DEVICE_SHIFT;
    use crate::swap::info;

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
        Some((space.devices().device_of(slot).index(), slot))
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
        let infos = info::all(space.devices());
        let shown: Vec<_> = infos.iter().map(|info| (info.priority.get(), info.node.map(NodeId::get))).collect();
        assert_eq!(shown, [(-2, Some(0)), (-3, Some(1))]);
    }

    #[test]
    fn what_is_freed_on_a_full_device_is_found() {
        let space = space("node 0", &["ram:2M", "ram:2M"]);
        let all: Vec<_> = (0..1024).map_while(|_| allocate(&space, 0, Order::PAGE)).collect();
        assert!(all.len() == 1024 && allocate(&space, 0, Order::PAGE).is_none());
        for (device, slot) in [all[1000], all[7]] {
            space.free_slots(slot, Order::PAGE);
            assert_eq!(allocate(&space, 0, Order::PAGE), Some((device, slot)));
            assert_eq!(allocate(&space, 0, Order::PAGE), None);
        }
        space.put_back_slots(all[1000].1, Order::PAGE);
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
        space.devices().begin_removal(device);
        assert_eq!(devices_of(&space, 0, Order::PAGE, 1), [1]);
        space.devices().cancel_removal(device);
        assert_eq!(devices_of(&space, 0, Order::HUGE, 1), [0]);
        space.devices().begin_removal(device);
        space.put_back_slots(slot, Order::PAGE);
        space.put_back_slots(slot.plus(512), Order::HUGE);
        space.devices().detach(device);
        let priorities: Vec<_> = info::all(space.devices()).iter().map(|info| info.priority.get()).collect();
        assert_eq!(priorities, [-2, -3]);
        assert_eq!(devices_of(&space, 0, Order::HUGE, 9), [1, 1, 2, 2, 2, 2]);
    }
}
