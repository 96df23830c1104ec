//! The slots of one swap device, handed out in aligned runs of any order.
//!
//! The device is cut into clusters of 512 slots. A cluster serves one order at a time, so that the alignment of one
//! order leaves no gaps among the runs of another. Each CPU has a current cluster for each order and takes the next
//! run of it, so that what one CPU writes lies together and two CPUs never interleave. `clusters_take` has that part, and
//! `isolate` what compaction takes; here is what both work on: growing, freeing, discarding, removal.
//!
//! **Invariants.** A cluster with free slots is on exactly one list, or a CPU's, or being discarded; a full one is a
//! CPU's or nowhere. A cluster is on a list of empty clusters exactly when none of its slots is taken, and on the list
//! of fragmented clusters of its order only while it has no aligned run of it. No slot of a cluster that is being
//! discarded is taken. [`Clusters::verify`] checks all of it.
//!
//! There is a set of lists for each CPU and one for clusters that nobody had yet. A cluster belongs to the set of the
//! CPU that has it or had it last, so a CPU that uses its own clusters again shares no cache line with another.
//!
//! **Locking.** In this order, each optional: `shape` (growing and removal, and isolating), one CPU's record, one cluster, one set of
//! lists. Nothing is locked under lists, so never two sets at once. `allocate` holds its CPU's lock all along: so once
//! removal has been written into a CPU's record under that lock, that CPU hands out nothing. A set's lock is taken when
//! a cluster is obtained, let go of, ceases to be full or becomes empty, and when the free slots of one become of use
//! to its order, and not otherwise. A cluster's order, bits, count and home change under its lock; its place on the
//! lists changes under that and the lock of its home's set, but for a cluster that somebody claims from the head of a
//! list under the set's lock alone: from then on it is the claimer's, and others who come to the lists with it find
//! that and leave it. Its home changes when the claimer, who has locked it by then, makes it a CPU's.
//!
//! A rotational device has no current clusters and no lists in use: order 0 only, by a scan that goes round.

use super::cluster::{Chunks, Cluster, Fill, Held, MAX_CLUSTER_SLOTS};
use super::cluster_lists::{Lists, Place, Set};
use crate::id::{ClusterId, CpuId, SlotId};
use crate::order::{MAX_ORDER, Order};
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock};
use std::ops::Range;

pub(super) const NR_ORDERS: usize = MAX_ORDER as usize + 1;

/// Counters that the count of taken slots is spread over, by cluster: CPUs work in different clusters.
#[cfg(not(loom))]
const NR_STRIPES: usize = 16;
/// Counters that the count of taken slots is spread over.
#[cfg(loom)]
const NR_STRIPES: usize = 1;

/// Who is told of runs that are given back.
pub type OnFree = Box<dyn Fn(SlotId, Order) + Send + Sync>;

/// A counter on cache lines of its own.
#[repr(align(128))]
struct Stripe(AtomicU64);

/// A cluster that a CPU takes runs from.
#[derive(Copy, Clone, Debug)]
pub(super) struct Current {
    pub(super) cluster: ClusterId,
    /// Where the next run is looked for, in slots from the start of the cluster.
    pub(super) next: usize,
    /// It was empty when the CPU got it: unless somebody steals, the next run is free.
    pub(super) fresh: bool,
}

/// What a CPU's lock guards.
pub(super) struct Cpu {
    pub(super) index: u16,
    pub(super) current: [Option<Current>; NR_ORDERS],
    /// Where the last search of the whole device found something.
    pub(super) search: (usize, usize),
    pub(super) removing: bool,
    failures: [u64; NR_ORDERS],
}

/// One CPU's record, on cache lines of its own.
#[repr(align(128))]
struct CpuRecord(Mutex<Cpu>);

#[derive(Copy, Clone, Eq, PartialEq)]
pub(super) enum Kind {
    Clustered { wants_discard: bool },
    Rotational,
}

/// The slots of one device. See the module for how it works; every call is safe from any thread.
pub struct Clusters {
    pub(super) kind: Kind,
    pub(super) cluster_order: Order,
    max_slots: usize,
    chunks: Chunks,
    nr_slots: AtomicU64,
    used: [Stripe; NR_STRIPES],
    cpus: Box<[CpuRecord]>,
    /// One for each CPU, and the last one for clusters that nobody had yet.
    pub(super) sets: Box<[Set]>,
    /// The set that discards were last taken from, so that all come to their turn.
    discards_from: AtomicU32,
    /// Whether the device is being removed. Held while it grows and while removal begins or ends.
    pub(super) shape: Mutex<bool>,
    told: Option<OnFree>,
}

impl Clusters {
    /// The most slots that a device has: 16 TiB of them.
    pub const MAX_SLOTS: u64 = 1 << 32;

    /// Bytes that are known of a cluster.
    pub const RECORD_BYTES: usize = size_of::<Cluster>();

    /// The slots of a device that can grow to `max_slots` and has none yet, for `nr_cpus` CPUs (others share their
    /// records). `wants_discard`: an emptied cluster waits for [`Clusters::take_discards`] before it is used again.
    /// Allocates 24 bytes for each 64 GiB and less than 1 KiB for each CPU.
    pub fn new(max_slots: usize, nr_cpus: usize, wants_discard: bool) -> Self {
        Clusters::with_cluster_order(max_slots, nr_cpus, wants_discard, Order::HUGE)
    }

    /// The same with clusters of another order, for tests and models: small ones can be tried exhaustively.
    pub fn with_cluster_order(max_slots: usize, nr_cpus: usize, wants_discard: bool, cluster_order: Order) -> Self {
        Clusters::with_kind(max_slots, nr_cpus, Kind::Clustered { wants_discard }, cluster_order)
    }

    /// The slots of a device whose seeks are dear: single slots only, each the next free one after the last, whoever
    /// asks. Larger orders fail, so the caller splits.
    pub fn rotational(max_slots: usize) -> Self {
        Clusters::with_kind(max_slots, 1, Kind::Rotational, Order::HUGE)
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

    /// Makes the device `nr_slots` long in all; does nothing when it is as long already. The new slots are free.
    /// Panics above the `max_slots` it was made with. Allocates memory; clusters that are there stay where they are.
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
        // Before a new slot can be handed out, so that freeing it finds it within the device; what lies between the
        // old end and the new one has no slots yet and is passed over by searches.
        self.nr_slots.store(nr_slots as u64, Ordering::Release);
        for index in old_slots / size..nr_clusters {
            let id = ClusterId::from_index(index);
            let mut cluster = self.cluster(id).lock();
            cluster.extend((nr_slots - index * size).min(size));
            if index >= old_clusters {
                cluster.listed = Fill::Empty;
                self.lists(cluster.home).put(id, Place::Free);
            } else if !cluster.held && self.kind != Kind::Rotational {
                self.settle(id, &mut cluster);
            }
        }
    }

    /// Gives back a run, all of what was handed out or any aligned part of it; bad slots among it stay taken. Panics
    /// when a slot of it is not taken. Locks one cluster, and the lists when that was full, becomes empty, or becomes
    /// of use to its order again.
    pub fn free(&self, slot: SlotId, order: Order) {
        let (id, offset) = self.locate(slot, order);
        self.tell_freed(&[(slot, order)]);
        self.give(id, self.cluster(id).lock(), offset, order);
    }

    /// The same where it costs little: nobody is to be told, and nobody else has the cluster locked (for the lists it may
    /// have to wait, as an allocation does). Says whether it was done.
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

    /// The same for several runs. Those that follow each other in one cluster cost one lock: sorted, they are cheapest.
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

    /// From now on `told` is called with each run that is given back, before anybody else can have it, under no lock of
    /// the clusters; a cache of freed slots may hold one of its own.
    pub fn on_free(&mut self, told: OnFree) {
        self.told = Some(told);
    }

    fn tell_freed(&self, runs: &[(SlotId, Order)]) {
        if let Some(told) = &self.told {
            runs.iter().for_each(|&(slot, order)| told(slot, order));
        }
    }

    /// Gives back runs of one cluster.
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

    /// Says that taken slots cannot be relied on: they are never handed out again, even when they are freed, and stay
    /// counted as used. Panics when a slot of the run is not taken.
    pub fn mark_bad(&self, slot: SlotId, order: Order) {
        let (id, offset) = self.locate(slot, order);
        self.cluster(id).lock().spoil(offset, order);
    }

    /// Puts a cluster that no CPU holds where its fill says, unless somebody else has it in hand.
    pub(super) fn settle(&self, id: ClusterId, cluster: &mut Held<'_>) {
        debug_assert!(!cluster.held);
        let (fill, place) = self.place_for(cluster);
        let mut lists = self.lists(cluster.home);
        let now = lists.place(id);
        // Off the lists and not for being full: somebody has claimed it and is about to lock it.
        let is_claimed = now == Place::Off && cluster.listed != Fill::Full;
        if is_claimed || now == Place::Discarding || now == place {
            return;
        }
        cluster.listed = fill;
        match place {
            Place::Free => lists.put_first(id, place),
            _ => lists.put(id, place),
        }
    }

    /// Puts a cluster that a CPU lets go of where its fill says; last, if it was of no use.
    pub(super) fn release(&self, id: ClusterId, cluster: &mut Held<'_>, was_of_use: bool) {
        assert!(cluster.held, "a CPU lets go of what it holds");
        let (fill, place) = self.place_for(cluster);
        cluster.held = false;
        cluster.listed = fill;
        if place == Place::Off {
            return;
        }
        let mut lists = self.lists(cluster.home);
        assert_eq!(lists.place(id), Place::Off, "a cluster that a CPU holds is nowhere else");
        match place {
            Place::Free if was_of_use => lists.put_first(id, place),
            _ => lists.put(id, place),
        }
    }

    fn place_for(&self, cluster: &Held<'_>) -> (Fill, Place) {
        let wants_discard = self.kind == Kind::Clustered { wants_discard: true };
        let fill = cluster.fill();
        let place = match fill {
            Fill::Empty if wants_discard && cluster.is_written() => Place::Awaiting,
            Fill::Empty => Place::Free,
            Fill::Room => Place::Room(cluster.order),
            Fill::Fragmented => Place::Fragmented(cluster.order),
            Fill::Full => Place::Off,
        };
        (fill, place)
    }

    /// Up to `max` emptied clusters for the device to discard; none of their slots is handed out before
    /// [`Clusters::discarded`]. Allocates the vector; locks the sets that have some, one after the other.
    pub fn take_discards(&self, max: usize) -> Vec<ClusterId> {
        let mut taken = Vec::new();
        let last = self.discards_from.load(Ordering::Relaxed);
        for set in self.sets_from((last as u16).wrapping_add(1), Place::Awaiting) {
            if taken.len() >= max {
                break;
            }
            let mut lists = self.lists(set);
            let nr_taken = lists.len(Place::Awaiting).min(max - taken.len());
            taken.extend((0..nr_taken).map_while(|_| lists.shift(Place::Awaiting, Place::Discarding)));
            self.discards_from.store(u32::from(set), Ordering::Relaxed);
        }
        taken
    }

    /// Emptied clusters that await their discard.
    pub fn nr_awaiting(&self) -> usize {
        self.nr_listed(Place::Awaiting)
    }

    /// Says that the device has discarded a cluster (or will not): it may be handed out again. Panics when the cluster
    /// was not taken for that.
    pub fn discarded(&self, id: ClusterId) {
        let mut cluster = self.cluster(id).lock();
        let mut lists = self.lists(cluster.home);
        assert_eq!(lists.place(id), Place::Discarding, "{id:?} was not taken to be discarded");
        cluster.set_discarded();
        lists.put(id, Place::Free);
    }

    /// The slots of a cluster; fewer than others have in the last one of a device.
    pub fn slots_of(&self, id: ClusterId) -> Range<SlotId> {
        let first = id.index() * self.cluster_slots();
        SlotId::from_index(first)..SlotId::from_index(first + self.cluster(id).lock().limit())
    }

    /// From when this returns until [`Clusters::cancel_removal`], nothing is handed out, racing calls included. Frees
    /// go on. Waits for each CPU's allocation in progress.
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

    /// Slots are handed out again.
    pub fn cancel_removal(&self) {
        let mut shape = lock(&self.shape);
        *shape = false;
        self.cpus.iter().for_each(|record| lock(&record.0).removing = false);
    }

    /// Slots of the device, taken or not.
    pub fn nr_slots(&self) -> usize {
        self.nr_slots.load(Ordering::Acquire) as usize
    }

    /// Slots that are taken or bad. Reads 16 counters; a sum over a moment while others allocate and free.
    pub fn nr_used(&self) -> usize {
        self.used.iter().map(|stripe| stripe.0.load(Ordering::Relaxed) as usize).sum()
    }

    /// Allocations of this order that failed for want of slots, since the start. Those that removal refused are not
    /// counted. Locks each CPU's record in turn.
    pub fn failures(&self, order: Order) -> u64 {
        self.cpus.iter().map(|record| lock(&record.0).failures[usize::from(order.exponent())]).sum()
    }

    /// Clusters that serve this order and have free slots, but no aligned run of it. CPUs' current ones not counted.
    pub fn fragments(&self, order: Order) -> usize {
        self.nr_listed(Place::Fragmented(order))
    }

    pub(super) fn nr_listed(&self, place: Place) -> usize {
        self.sets_from(0, place).map(|set| self.lists(set).len(place)).sum()
    }

    /// Bytes of memory that this takes, for the clusters that were made so far.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.cpus) + size_of_val(&*self.sets) + self.chunks.bytes()
    }

    pub(super) fn record(&self, cpu: CpuId) -> MutexGuard<'_, Cpu> {
        let index = cpu.index();
        // Most callers know how many there are, and a division takes as long as the rest of this.
        let index = if index < self.cpus.len() { index } else { index % self.cpus.len() };
        lock(&self.cpus[index].0)
    }

    /// Locks a set of lists.
    pub(super) fn lists(&self, set: u16) -> Lists<'_> {
        self.sets[usize::from(set)].lock(&self.chunks)
    }

    /// The sets, from this one on and round the end, whose list of this place had a cluster a moment ago.
    pub(super) fn sets_from(&self, first: u16, place: Place) -> impl Iterator<Item = u16> {
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

    /// Checks everything against everything; for tests. Stops allocation while it runs, so it holds every CPU's lock,
    /// which nobody else does.
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
            assert_eq!(place, Place::Off, "{id:?} is a CPU's and on no list");
        } else {
            assert_eq!(cluster.listed, fill, "{id:?} knows what the lists know");
            let empty = fill == Fill::Empty && matches!(place, Place::Free | Place::Awaiting | Place::Discarding);
            assert!(empty || place == expected, "{id:?}: {fill:?} is in {place:?}");
        }
    }
}

impl Cpu {
    /// Counts an allocation that failed.
    pub(super) fn count_failure(&mut self, order: Order) {
        self.failures[usize::from(order.exponent())] += 1;
    }
}

impl std::fmt::Debug for Clusters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clusters").field("nr_slots", &self.nr_slots()).field("nr_used", &self.nr_used()).finish()
    }
}
