//! The slots of one swap device, allocated in aligned runs of any order. This file grows the device, frees and removes;
//! `allocation` allocates, `cluster_table` knows where each cluster is, and `isolate` serves compaction.
//!
//! **Invariants.** Those of `cluster_table`; [`Clusters::verify`] checks all of them.
//!
//! **Locking.** In this order, each optional: `shape` (growth, removal, isolation), one CPU's record, one cluster, one
//! set of lists.

use super::allocation::{Allocation, Cpu};
use super::cluster::Cluster;
use super::cluster_link::ClusterState;
use super::cluster_table::{ClusterTable, Kind};
use crate::id::{ClusterId, CpuId, SlotId};
use crate::order::Order;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use std::ops::Range;

/// Callback for runs that are freed.
pub type OnFree = Box<dyn Fn(SlotId, Order) + Send + Sync>;

/// One CPU's record, aligned to avoid false sharing.
#[repr(align(128))]
struct CpuRecord(Mutex<Cpu>);

/// The slots of one device. Every call is safe from any thread.
///
/// The device is divided into clusters of 512 slots. A cluster serves one order at a time, so that the alignment of one
/// order leaves no gaps between the runs of another. Each CPU has a current cluster per order and takes the next run of
/// it: what one CPU writes is contiguous, and CPUs do not interleave. Clusters are listed in the set of the CPU that
/// held them last, so a CPU that reuses its own clusters shares no cache line with another. A set is locked only when a
/// cluster is obtained, released, stops being full, becomes empty, or gets a free run of its order. A rotational device
/// uses neither current clusters nor lists: it hands out single slots by a circular scan.
pub struct Clusters {
    pub(super) table: ClusterTable,
    max_slots: usize,
    nr_slots: AtomicU64,
    cpus: Box<[CpuRecord]>,
    /// Whether the device is being removed. Held while it grows and while removal begins or ends.
    pub(super) shape: Mutex<bool>,
    told: Option<OnFree>,
}

impl Clusters {
    /// The most slots that a device can have: 16 TiB.
    pub const MAX_SLOTS: u64 = 1 << 32;

    /// Bytes of metadata per cluster.
    pub const RECORD_BYTES: usize = size_of::<Cluster>();

    /// A device that can grow to `max_slots` and has no slots yet, for `nr_cpus` CPUs (CPUs beyond that share their
    /// records). With `wants_discard`, an emptied cluster waits for [`Clusters::take_discards`] before it is used
    /// again. Allocates 24 bytes per 64 GiB and less than 1 KiB per CPU.
    pub fn new(max_slots: usize, nr_cpus: usize, wants_discard: bool) -> Self {
        Clusters::with_cluster_order(max_slots, nr_cpus, wants_discard, Order::HUGE)
    }

    /// The same with clusters of another order. Tests and models try small ones exhaustively.
    pub fn with_cluster_order(max_slots: usize, nr_cpus: usize, wants_discard: bool, cluster_order: Order) -> Self {
        Clusters::with_kind(max_slots, nr_cpus, Kind::Clustered { wants_discard }, cluster_order)
    }

    /// A device whose seeks are expensive: single slots only, each the next free one after the last, for all CPUs.
    /// Larger orders fail, so the caller splits.
    pub fn rotational(max_slots: usize) -> Self {
        Clusters::with_kind(max_slots, 1, Kind::Rotational, Order::HUGE)
    }

    /// Whether it ever hands out runs of this order. A rotational device hands out single slots only.
    pub fn serves(&self, order: Order) -> bool {
        order == Order::PAGE || self.table.kind != Kind::Rotational
    }

    fn with_kind(max_slots: usize, nr_cpus: usize, kind: Kind, cluster_order: Order) -> Self {
        assert!(max_slots as u64 <= Clusters::MAX_SLOTS, "the number of a slot fits 32 bits");
        assert!((1..1 << 16).contains(&nr_cpus), "somebody allocates, and not too many");
        Clusters {
            table: ClusterTable::new(kind, cluster_order, max_slots, nr_cpus),
            max_slots,
            nr_slots: AtomicU64::new(0),
            cpus: (0..nr_cpus).map(|index| CpuRecord(Mutex::new(Cpu::new(index as u16)))).collect(),
            shape: Mutex::new(false),
            told: None,
        }
    }

    /// Grows the device to `nr_slots` in all; does nothing if it has as many. The new slots are free. Panics above
    /// `max_slots`. Allocates memory; existing clusters do not move.
    pub fn grow(&self, nr_slots: usize) {
        assert!(nr_slots <= self.max_slots, "a device grows no larger than it said");
        let _shape = lock(&self.shape);
        let old_slots = self.nr_slots();
        if nr_slots <= old_slots {
            return;
        }
        let size = self.table.cluster_slots();
        let (old_clusters, nr_clusters) = (old_slots.div_ceil(size), nr_slots.div_ceil(size));
        self.table.make(nr_clusters);
        // Store the size before a new slot can be handed out, so that freeing it finds it within the device. Searches
        // pass over the clusters that have no slots yet.
        self.nr_slots.store(nr_slots as u64, Ordering::Release);
        for index in old_slots / size..nr_clusters {
            let limit = (nr_slots - index * size).min(size);
            self.table.extend(ClusterId::from_index(index), limit, index >= old_clusters);
        }
    }

    /// Frees a run, all of what was handed out or any aligned part of it; bad slots in it stay taken. Panics when a
    /// slot of it is not taken. Locks one cluster, and a set of lists if the cluster was full, becomes empty, or gets a
    /// free run of its order.
    pub fn free(&self, slot: SlotId, order: Order) {
        let (id, offset) = self.locate(slot, order);
        self.tell_freed(&[(slot, order)]);
        self.table.give(id, self.table.cluster(id).lock(), std::iter::once((offset, order)));
    }

    /// Like [`Clusters::free`], but only if there is no callback and the cluster's lock is free; may wait for a set of
    /// lists, as an allocation does. Returns whether the run was freed.
    pub fn try_free(&self, slot: SlotId, order: Order) -> bool {
        let (id, offset) = self.locate(slot, order);
        if self.told.is_some() {
            return false;
        }
        let Some(cluster) = self.table.cluster(id).try_lock() else { return false };
        self.table.give(id, cluster, std::iter::once((offset, order)));
        true
    }

    /// Frees several runs. Consecutive runs in one cluster cost one lock, so sorted runs are cheapest.
    pub fn free_all(&self, runs: &[(SlotId, Order)]) {
        for runs in runs.chunk_by(|a, b| self.table.locate(a.0).0 == self.table.locate(b.0).0) {
            self.tell_freed(runs);
            let id = self.table.locate(runs[0].0).0;
            let offsets = runs.iter().map(|&(slot, order)| (self.locate(slot, order).1, order));
            self.table.give(id, self.table.cluster(id).lock(), offsets);
        }
    }

    /// A run of 2^k free slots, aligned to its size; `None` if none is found or the device is being removed. Usually
    /// takes two uncontended locks; the opener of `allocation` has the worst case.
    pub fn allocate(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        let index = cpu.index();
        // Most callers pass a number in range, and a division would take as long as the rest of this function.
        let index = if index < self.cpus.len() { index } else { index % self.cpus.len() };
        let mut cpu = lock(&self.cpus[index].0);
        if cpu.removing {
            return None;
        }
        Allocation { table: &self.table, nr_slots: &self.nr_slots, cpu: &mut cpu, order }.take()
    }

    /// Registers a callback for each freed run. It runs before the run can be handed out again and under no lock of the
    /// clusters; a cache of freed slots may hold one of its own.
    pub fn on_free(&mut self, told: OnFree) {
        self.told = Some(told);
    }

    fn tell_freed(&self, runs: &[(SlotId, Order)]) {
        if let Some(told) = &self.told {
            runs.iter().for_each(|&(slot, order)| told(slot, order));
        }
    }

    /// Marks taken slots bad: they are never handed out again, even when freed, and stay counted as used. Panics when a
    /// slot of the run is not taken.
    pub fn mark_bad(&self, slot: SlotId, order: Order) {
        let (id, offset) = self.locate(slot, order);
        self.table.cluster(id).lock().spoil(offset, order);
    }

    /// Up to `max` emptied clusters for the device to discard; none of their slots is handed out before
    /// [`Clusters::discarded`]. Allocates the vector; locks the sets that have some, one after the other.
    pub fn take_discards(&self, max: usize) -> Vec<ClusterId> {
        self.table.take_discards(max)
    }

    /// Emptied clusters that wait for their discard.
    pub fn nr_awaiting(&self) -> usize {
        self.table.nr_in(ClusterState::Awaiting)
    }

    /// Records that the device has discarded a cluster (or will not), so it may be handed out again. Panics unless
    /// [`Clusters::take_discards`] returned it.
    pub fn discarded(&self, id: ClusterId) {
        self.table.discarded(id);
    }

    /// The slots of a cluster; the last one of a device may have fewer.
    pub fn slots_of(&self, id: ClusterId) -> Range<SlotId> {
        let first = id.index() * self.table.cluster_slots();
        SlotId::from_index(first)..SlotId::from_index(first + self.table.cluster(id).lock().limit())
    }

    /// From the return of this until [`Clusters::cancel_removal`] nothing is handed out, not even by racing calls.
    /// Frees still work. Waits for each CPU's allocation in progress.
    pub fn begin_removal(&self) {
        let mut shape = lock(&self.shape);
        *shape = true;
        for record in &self.cpus {
            let mut cpu = lock(&record.0);
            cpu.removing = true;
            for current in std::mem::take(&mut cpu.current).into_iter().flatten() {
                self.table.release(current.cluster, &mut self.table.cluster(current.cluster).lock(), true);
            }
        }
    }

    /// Permits allocation again.
    pub fn cancel_removal(&self) {
        let mut shape = lock(&self.shape);
        *shape = false;
        self.cpus.iter().for_each(|record| lock(&record.0).removing = false);
    }

    /// A bit for each slot: whether it is in use. Locks one cluster at a time.
    pub fn bits_in_use(&self) -> Vec<u64> {
        let clusters = (0..self.nr_clusters()).map(ClusterId::from_index);
        let words = self.table.cluster_slots().div_ceil(u64::BITS as usize);
        clusters.flat_map(|id| self.table.cluster(id).lock().bits().into_iter().take(words)).collect()
    }

    /// Slots of the device, taken or not.
    pub fn nr_slots(&self) -> usize {
        self.nr_slots.load(Ordering::Acquire) as usize
    }

    /// How many clusters the device has. It may grow.
    pub fn nr_clusters(&self) -> usize {
        self.nr_slots().div_ceil(self.table.cluster_slots())
    }

    /// Slots that are taken or bad. Reads 16 counters, so the sum is approximate while other threads allocate and free.
    pub fn nr_used(&self) -> usize {
        self.table.nr_used()
    }

    /// Bytes of memory for this and the existing clusters.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.cpus) + self.table.bytes()
    }

    fn locate(&self, slot: SlotId, order: Order) -> (ClusterId, usize) {
        let is_within = slot.index() + order.nr_pages() <= self.nr_slots();
        assert!(order <= self.table.cluster_order && is_within, "{slot:?} is no run");
        assert!(slot.index() & (order.nr_pages() - 1) == 0, "{slot:?} is not aligned to its order");
        self.table.locate(slot)
    }

    /// Checks every invariant; for tests. Holds every CPU's lock, which nothing else does, and so stops allocation.
    pub fn verify(&self) {
        let shape = lock(&self.shape);
        let cpus: Vec<_> = self.cpus.iter().map(|record| lock(&record.0)).collect();
        let mut holders = vec![0; self.nr_clusters()];
        for cpu in &cpus {
            assert_eq!(cpu.removing, *shape, "removal is known to all");
            cpu.current.iter().flatten().for_each(|current| holders[current.cluster.index()] += 1);
        }
        for (index, &holders) in holders.iter().enumerate() {
            let size = self.table.cluster_slots();
            let limit = (self.nr_slots() - index * size).min(size);
            self.table.verify(ClusterId::from_index(index), limit, holders);
        }
        (0..=self.table.unused_set()).for_each(|set| self.table.lists(set).verify());
    }
}
