//! The slots of one swap device, allocated in aligned runs of any order. This file grows the device, frees, discards
//! and removes; `clusters_take` allocates, and `isolate` serves compaction.
//!
//! **Invariants.** A cluster with free slots is on exactly one list, or held by a CPU, or being discarded; a full one
//! is held or off the lists. It is on a list of empty clusters exactly when no slot is taken, and on a fragmented list
//! only while it has no aligned run of its order. No slot of a cluster being discarded is taken. [`Clusters::verify`]
//! checks all of it.
//!
//! **Locking.** In this order, each optional: `shape` (growth, removal, isolation), one CPU's record, one cluster, one
//! set of lists; never two sets. A cluster's order, bits, counts and home change under its lock. Its place changes
//! under that lock and its home's set lock, except that a list's first cluster is claimed under the set's lock alone:
//! it is then the claimer's.

use super::cluster::{Chunks, Cluster, Fill, Held, MAX_CLUSTER_SLOTS};
use super::cluster_link::ClusterState;
use super::cluster_lists::{Lists, Set};
use crate::id::{ClusterId, CpuId, SlotId};
use crate::order::{MAX_ORDER, Order};
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock};
use std::ops::Range;

pub(super) const NR_ORDERS: usize = MAX_ORDER as usize + 1;

/// Stripes of the count of taken slots, chosen by cluster, since CPUs work in different clusters.
#[cfg(not(loom))]
const NR_STRIPES: usize = 16;
/// Stripes of the count of taken slots.
#[cfg(loom)]
const NR_STRIPES: usize = 1;

/// Callback for runs that are freed.
pub type OnFree = Box<dyn Fn(SlotId, Order) + Send + Sync>;

/// A counter, aligned to avoid false sharing.
#[repr(align(128))]
struct Stripe(AtomicU64);

/// A cluster that a CPU takes runs from.
#[derive(Copy, Clone, Debug)]
pub(super) struct Current {
    pub(super) cluster: ClusterId,
    /// Where the search for the next run begins, in slots from the start of the cluster.
    pub(super) next: usize,
    /// It was empty when the CPU got it: the next run is free unless another CPU steals it.
    pub(super) fresh: bool,
}

/// What a CPU's lock guards.
pub(super) struct Cpu {
    pub(super) index: u16,
    pub(super) current: [Option<Current>; NR_ORDERS],
    /// Where the last search of the whole device found a slot.
    pub(super) search: (usize, usize),
    pub(super) removing: bool,
    failures: [u64; NR_ORDERS],
}

/// One CPU's record, aligned to avoid false sharing.
#[repr(align(128))]
struct CpuRecord(Mutex<Cpu>);

#[derive(Copy, Clone, Eq, PartialEq)]
pub(super) enum Kind {
    Clustered { wants_discard: bool },
    Rotational,
}

/// The slots of one device. Every call is safe from any thread.
///
/// The device is divided into clusters of 512 slots. A cluster serves one order at a time, so that the alignment of one
/// order leaves no gaps between the runs of another. Each CPU has a current cluster per order and takes the next run of
/// it: what one CPU writes is contiguous, and CPUs do not interleave. Clusters are listed in the set of the CPU that
/// held them last, so a CPU that reuses its own clusters shares no cache line with another. A set is locked only when a
/// cluster is obtained, released, stops being full, becomes empty, or gets a free run of its order. A rotational device
/// uses neither current clusters nor lists: it hands out single slots by a circular scan.
pub struct Clusters {
    pub(super) kind: Kind,
    pub(super) cluster_order: Order,
    max_slots: usize,
    chunks: Chunks,
    nr_slots: AtomicU64,
    used: [Stripe; NR_STRIPES],
    cpus: Box<[CpuRecord]>,
    /// One for each CPU, and a last one for clusters that no CPU has held.
    pub(super) sets: Box<[Set]>,
    /// The set that discards were last taken from, so that every set gets its turn.
    discards_from: AtomicU32,
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
        order == Order::PAGE || self.kind != Kind::Rotational
    }

    fn with_kind(max_slots: usize, nr_cpus: usize, kind: Kind, cluster_order: Order) -> Self {
        assert!(max_slots as u64 <= Clusters::MAX_SLOTS, "the number of a slot fits 32 bits");
        assert!((1..1 << 16).contains(&nr_cpus), "somebody allocates, and not too many");
        let max_clusters = max_slots.div_ceil(cluster_order.nr_pages());
        let cpu = |index| Cpu {
            index,
            current: [None; NR_ORDERS],
            search: (0, 0),
            removing: false,
            failures: [0; NR_ORDERS],
        };
        Clusters {
            kind,
            cluster_order,
            max_slots,
            chunks: Chunks::new(max_clusters),
            nr_slots: AtomicU64::new(0),
            used: std::array::from_fn(|_| Stripe(AtomicU64::new(0))),
            cpus: (0..nr_cpus).map(|index| CpuRecord(Mutex::new(cpu(index as u16)))).collect(),
            sets: (0..=nr_cpus).map(|_| Set::new()).collect(),
            discards_from: AtomicU32::new(0),
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
        let size = self.cluster_slots();
        let (old_clusters, nr_clusters) = (old_slots.div_ceil(size), nr_slots.div_ceil(size));
        self.chunks.make(nr_clusters, self.cpus.len() as u16);
        // Store the size before a new slot can be handed out, so that freeing it finds it within the device. Searches
        // pass over the clusters that have no slots yet.
        self.nr_slots.store(nr_slots as u64, Ordering::Release);
        for index in old_slots / size..nr_clusters {
            let id = ClusterId::from_index(index);
            let mut cluster = self.cluster(id).lock();
            cluster.extend((nr_slots - index * size).min(size));
            if index >= old_clusters {
                cluster.listed = Fill::Empty;
                self.lists(cluster.home).put(id, ClusterState::Free);
            } else if !cluster.held && self.kind != Kind::Rotational {
                self.settle(id, &mut cluster);
            }
        }
    }

    /// Frees a run, all of what was handed out or any aligned part of it; bad slots in it stay taken. Panics when a
    /// slot of it is not taken. Locks one cluster, and a set of lists if the cluster was full, becomes empty, or gets a
    /// free run of its order.
    pub fn free(&self, slot: SlotId, order: Order) {
        let (id, offset) = self.locate(slot, order);
        self.tell_freed(&[(slot, order)]);
        self.give(id, self.cluster(id).lock(), offset, order);
    }

    /// Like [`Clusters::free`], but only if there is no callback and the cluster's lock is free; may wait for a set of
    /// lists, as an allocation does. Returns whether the run was freed.
    pub fn try_free(&self, slot: SlotId, order: Order) -> bool {
        let (id, offset) = self.locate(slot, order);
        if self.told.is_some() {
            return false;
        }
        self.cluster(id).try_lock().map(|cluster| self.give(id, cluster, offset, order)).is_some()
    }

    fn give(&self, id: ClusterId, mut cluster: Held<'_>, offset: usize, order: Order) {
        let nr_freed = cluster.give(offset, order);
        if nr_freed == 0 {
            return;
        }
        self.stripe(id).fetch_sub(nr_freed as u64, Ordering::Relaxed);
        if !cluster.held && self.kind != Kind::Rotational && cluster.fill_changed(std::iter::once(offset)) {
            self.settle(id, &mut cluster);
        }
    }

    /// Frees several runs. Consecutive runs in one cluster cost one lock, so sorted runs are cheapest.
    pub fn free_all(&self, mut runs: &[(SlotId, Order)]) {
        let cluster_of = |slot: SlotId| slot.index() >> self.cluster_order.exponent();
        while let Some(&(first, _)) = runs.first() {
            let others = runs.iter().position(|&(slot, _)| cluster_of(slot) != cluster_of(first));
            let (here, after) = runs.split_at(others.unwrap_or(runs.len()));
            self.tell_freed(here);
            self.free_in(ClusterId::from_index(cluster_of(first)), here);
            runs = after;
        }
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

    /// Frees runs of one cluster.
    fn free_in(&self, id: ClusterId, runs: &[(SlotId, Order)]) {
        let mut cluster = self.cluster(id).lock();
        let nr_freed = cluster.give_all(runs.iter().map(|&(slot, order)| (self.locate(slot, order).1, order)));
        if nr_freed == 0 {
            return;
        }
        self.stripe(id).fetch_sub(nr_freed as u64, Ordering::Relaxed);
        let is_listed = !cluster.held && self.kind != Kind::Rotational;
        let offsets = runs.iter().map(|&(slot, _)| slot.index() & (self.cluster_slots() - 1));
        if is_listed && cluster.fill_changed(offsets) {
            self.settle(id, &mut cluster);
        }
    }

    /// Marks taken slots bad: they are never handed out again, even when freed, and stay counted as used. Panics when a
    /// slot of the run is not taken.
    pub fn mark_bad(&self, slot: SlotId, order: Order) {
        let (id, offset) = self.locate(slot, order);
        self.cluster(id).lock().spoil(offset, order);
    }

    /// Puts a cluster that no CPU holds on the list for its fill, unless another thread has claimed it.
    pub(super) fn settle(&self, id: ClusterId, cluster: &mut Held<'_>) {
        debug_assert!(!cluster.held);
        let (fill, place) = self.place_for(cluster);
        let mut lists = self.lists(cluster.home);
        let now = lists.place(id);
        // Off the lists but not full: a thread has claimed it and is about to lock it.
        let is_claimed = now == ClusterState::Off && cluster.listed != Fill::Full;
        if is_claimed || now == ClusterState::Discarding || now == place {
            return;
        }
        cluster.listed = fill;
        match place {
            ClusterState::Free => lists.put_first(id, place),
            _ => lists.put(id, place),
        }
    }

    /// Releases a CPU's cluster to the list for its fill.
    pub(super) fn release(&self, id: ClusterId, cluster: &mut Held<'_>, was_of_use: bool) {
        assert!(cluster.held, "a CPU lets go of what it holds");
        let (fill, place) = self.place_for(cluster);
        cluster.held = false;
        cluster.listed = fill;
        if place == ClusterState::Off {
            return;
        }
        let mut lists = self.lists(cluster.home);
        assert_eq!(lists.place(id), ClusterState::Off, "a cluster that a CPU holds is nowhere else");
        match place {
            ClusterState::Free if was_of_use => lists.put_first(id, place),
            _ => lists.put(id, place),
        }
    }

    fn place_for(&self, cluster: &Held<'_>) -> (Fill, ClusterState) {
        let wants_discard = self.kind == Kind::Clustered { wants_discard: true };
        let fill = cluster.fill();
        let place = match fill {
            Fill::Empty if wants_discard && cluster.is_written() => ClusterState::Awaiting,
            Fill::Empty => ClusterState::Free,
            Fill::Room => ClusterState::Room(cluster.order),
            Fill::Fragmented => ClusterState::Fragmented(cluster.order),
            Fill::Full => ClusterState::Off,
        };
        (fill, place)
    }

    /// Up to `max` emptied clusters for the device to discard; none of their slots is handed out before
    /// [`Clusters::discarded`]. Allocates the vector; locks the sets that have some, one after the other.
    pub fn take_discards(&self, max: usize) -> Vec<ClusterId> {
        let mut taken = Vec::new();
        let last = self.discards_from.load(Ordering::Relaxed);
        for set in self.sets_from((last as u16).wrapping_add(1), ClusterState::Awaiting) {
            if taken.len() >= max {
                break;
            }
            let mut lists = self.lists(set);
            let nr_taken = lists.len(ClusterState::Awaiting).min(max - taken.len());
            taken.extend((0..nr_taken).map_while(|_| lists.shift(ClusterState::Awaiting, ClusterState::Discarding)));
            self.discards_from.store(u32::from(set), Ordering::Relaxed);
        }
        taken
    }

    /// Emptied clusters that wait for their discard.
    pub fn nr_awaiting(&self) -> usize {
        self.nr_listed(ClusterState::Awaiting)
    }

    /// Records that the device has discarded a cluster (or will not), so it may be handed out again. Panics unless
    /// [`Clusters::take_discards`] returned it.
    pub fn discarded(&self, id: ClusterId) {
        let mut cluster = self.cluster(id).lock();
        let mut lists = self.lists(cluster.home);
        assert_eq!(lists.place(id), ClusterState::Discarding, "{id:?} was not taken to be discarded");
        cluster.set_discarded();
        lists.put(id, ClusterState::Free);
    }

    /// The slots of a cluster; the last one of a device may have fewer.
    pub fn slots_of(&self, id: ClusterId) -> Range<SlotId> {
        let first = id.index() * self.cluster_slots();
        SlotId::from_index(first)..SlotId::from_index(first + self.cluster(id).lock().limit())
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
                self.release(current.cluster, &mut self.cluster(current.cluster).lock(), true);
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
        let clusters = (0..self.nr_slots().div_ceil(self.cluster_slots())).map(ClusterId::from_index);
        let words = self.cluster_slots().div_ceil(u64::BITS as usize);
        clusters.flat_map(|id| self.cluster(id).lock().bits().into_iter().take(words)).collect()
    }

    /// Slots of the device, taken or not.
    pub fn nr_slots(&self) -> usize {
        self.nr_slots.load(Ordering::Acquire) as usize
    }

    /// Slots that are taken or bad. Reads 16 counters, so the sum is approximate while other threads allocate and free.
    pub fn nr_used(&self) -> usize {
        self.used.iter().map(|stripe| stripe.0.load(Ordering::Relaxed) as usize).sum()
    }

    /// Failed allocations of this order since the start, without those refused because of a removal. Locks each CPU's
    /// record in turn.
    pub fn failures(&self, order: Order) -> u64 {
        self.cpus.iter().map(|record| lock(&record.0).failures[usize::from(order.exponent())]).sum()
    }

    /// Clusters that serve this order and have free slots, but no aligned run of it. Does not count current clusters.
    pub fn fragments(&self, order: Order) -> usize {
        self.nr_listed(ClusterState::Fragmented(order))
    }

    pub(super) fn nr_listed(&self, place: ClusterState) -> usize {
        self.sets_from(0, place).map(|set| self.lists(set).len(place)).sum()
    }

    /// Bytes of memory for this and the existing clusters.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.cpus) + size_of_val(&*self.sets) + self.chunks.bytes()
    }

    pub(super) fn record(&self, cpu: CpuId) -> MutexGuard<'_, Cpu> {
        let index = cpu.index();
        // Most callers pass a number in range, and a division would take as long as the rest of this function.
        let index = if index < self.cpus.len() { index } else { index % self.cpus.len() };
        lock(&self.cpus[index].0)
    }

    /// Locks a set of lists.
    pub(super) fn lists(&self, set: u16) -> Lists<'_> {
        self.sets[usize::from(set)].lock(&self.chunks)
    }

    /// The sets, from `first` on and around the end, whose list of this place was not empty; may be stale.
    pub(super) fn sets_from(&self, first: u16, place: ClusterState) -> impl Iterator<Item = u16> {
        let (before, from) = self.sets.split_at(usize::from(first).min(self.sets.len()));
        let indices = (self.sets.len() - from.len()..self.sets.len()).chain(0..before.len());
        let sets = from.iter().chain(before).zip(indices);
        sets.filter(move |(set, _)| set.filled() & place.bit() != 0).map(|(_, index)| index as u16)
    }

    pub(super) fn cluster_slots(&self) -> usize {
        self.cluster_order.nr_pages()
    }

    pub(super) fn cluster(&self, id: ClusterId) -> &Cluster {
        self.chunks.get(id)
    }

    pub(super) fn stripe(&self, id: ClusterId) -> &AtomicU64 {
        &self.used[id.index() % NR_STRIPES].0
    }

    fn locate(&self, slot: SlotId, order: Order) -> (ClusterId, usize) {
        assert!(
            order <= self.cluster_order && slot.index() + order.nr_pages() <= self.nr_slots(),
            "{slot:?} is no run"
        );
        assert!(slot.index() & (order.nr_pages() - 1) == 0, "{slot:?} is not aligned to its order");
        let offset = slot.index() & (self.cluster_slots() - 1);
        (ClusterId::from_index(slot.index() >> self.cluster_order.exponent()), offset)
    }

    /// Checks every invariant; for tests. Holds every CPU's lock, which nothing else does, and so stops allocation.
    pub fn verify(&self) {
        let shape = lock(&self.shape);
        let cpus: Vec<_> = self.cpus.iter().map(|record| lock(&record.0)).collect();
        let nr_clusters = self.nr_slots().div_ceil(self.cluster_slots());
        let mut holders = vec![0; nr_clusters];
        for cpu in &cpus {
            assert_eq!(cpu.removing, *shape, "removal is known to all");
            cpu.current.iter().flatten().for_each(|current| holders[current.cluster.index()] += 1);
        }
        for (index, &holders) in holders.iter().enumerate() {
            let id = ClusterId::from_index(index);
            let cluster = self.cluster(id).lock();
            cluster.verify();
            assert_eq!(cluster.limit(), (self.nr_slots() - index * self.cluster_slots()).min(self.cluster_slots()));
            if self.kind != Kind::Rotational {
                self.verify_place(id, &cluster, holders);
            }
        }
        (0..self.sets.len()).for_each(|set| self.lists(set as u16).verify());
        assert!(MAX_CLUSTER_SLOTS >= self.cluster_slots());
    }

    fn verify_place(&self, id: ClusterId, cluster: &Held<'_>, nr_holders: usize) {
        let lists = self.lists(cluster.home);
        lists.verify_linked(id);
        let place = lists.place(id);
        assert_eq!(nr_holders, usize::from(cluster.held), "{id:?} is one CPU's or nobody's");
        let (fill, expected) = self.place_for(cluster);
        if cluster.held {
            assert_eq!(place, ClusterState::Off, "{id:?} is a CPU's and on no list");
        } else {
            assert_eq!(cluster.listed, fill, "{id:?} knows what the lists know");
            let empty = fill == Fill::Empty
                && matches!(place, ClusterState::Free | ClusterState::Awaiting | ClusterState::Discarding);
            assert!(empty || place == expected, "{id:?}: {fill:?} is in {place:?}");
        }
    }
}

impl Cpu {
    /// Counts a failed allocation.
    pub(super) fn count_failure(&mut self, order: Order) {
        self.failures[usize::from(order.exponent())] += 1;
    }
}

impl std::fmt::Debug for Clusters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clusters").field("nr_slots", &self.nr_slots()).field("nr_used", &self.nr_used()).finish()
    }
}
