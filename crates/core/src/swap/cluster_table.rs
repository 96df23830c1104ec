//! The clusters of a device: on which list of which set ([`super::cluster_lists`]) each of them is, and how many of
//! their slots are taken.
//!
//! **Invariants.** A cluster with free slots is on exactly one list, or held by a CPU, or being discarded; a full one
//! is held or off the lists. It is on a list of empty clusters exactly when no slot is taken, and on a fragmented list
//! only while it has no aligned run of its order. No slot of a cluster being discarded is taken. A rotational device
//! leaves its clusters where they were put first.
//!
//! **Locking.** One cluster, then one set of lists; never two sets. A cluster's order, bits, counts and home change
//! under its lock. Its place changes under that lock and its home's set lock, except that a list's first cluster is
//! claimed under the set's lock alone: it is then the claimer's.

use super::cluster::{Chunks, Cluster, Fill, Held, MAX_CLUSTER_SLOTS};
use super::cluster_link::ClusterState;
use super::cluster_lists::{Lists, Set};
use crate::id::{ClusterId, SlotId};
use crate::order::Order;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Stripes of the count of taken slots, chosen by cluster, since CPUs work in different clusters.
#[cfg(not(loom))]
const NR_STRIPES: usize = 16;
/// Stripes of the count of taken slots.
#[cfg(loom)]
const NR_STRIPES: usize = 1;

/// How a device uses its clusters.
#[derive(Copy, Clone, Eq, PartialEq)]
pub(super) enum Kind {
    Clustered { wants_discard: bool },
    Rotational,
}

/// A counter, aligned to avoid false sharing.
#[repr(align(128))]
struct Stripe(AtomicU64);

/// All clusters of a device.
pub(super) struct ClusterTable {
    pub(super) kind: Kind,
    pub(super) cluster_order: Order,
    chunks: Chunks,
    used: [Stripe; NR_STRIPES],
    /// One for each CPU, and a last one for clusters that no CPU has held.
    pub(super) sets: Box<[Set]>,
    /// The set that discards were last taken from, so that every set gets its turn.
    discards_from: AtomicU32,
}

impl ClusterTable {
    /// Room for clusters of this order with up to `max_slots` slots; none exists yet.
    pub(super) fn new(kind: Kind, cluster_order: Order, max_slots: usize, nr_cpus: usize) -> ClusterTable {
        assert!(cluster_order.nr_pages() <= MAX_CLUSTER_SLOTS);
        ClusterTable {
            kind,
            cluster_order,
            chunks: Chunks::new(max_slots.div_ceil(cluster_order.nr_pages())),
            used: std::array::from_fn(|_| Stripe(AtomicU64::new(0))),
            sets: (0..=nr_cpus).map(|_| Set::new()).collect(),
            discards_from: AtomicU32::new(0),
        }
    }

    /// The set of clusters that no CPU has held.
    pub(super) fn unused_set(&self) -> u16 {
        self.sets.len() as u16 - 1
    }

    /// Makes the first `nr_clusters` clusters, where they do not exist yet.
    pub(super) fn make(&self, nr_clusters: usize) {
        self.chunks.make(nr_clusters, self.unused_set());
    }

    pub(super) fn cluster(&self, id: ClusterId) -> &Cluster {
        self.chunks.get(id)
    }

    /// The slots of a cluster, but for the last one of the device.
    pub(super) fn cluster_slots(&self) -> usize {
        self.cluster_order.nr_pages()
    }

    /// The cluster of a slot, and the slot's offset in it.
    pub(super) fn locate(&self, slot: SlotId) -> (ClusterId, usize) {
        let offset = slot.index() & (self.cluster_slots() - 1);
        (ClusterId::from_index(slot.index() >> self.cluster_order.exponent()), offset)
    }

    /// Takes a free run of a locked cluster.
    pub(super) fn take(&self, id: ClusterId, cluster: &mut Held<'_>, offset: usize, order: Order) -> SlotId {
        cluster.take(offset, order);
        self.stripe(id).fetch_add(order.nr_pages() as u64, Ordering::Relaxed);
        SlotId::from_index((id.index() << self.cluster_order.exponent()) | offset)
    }

    /// Frees runs of one cluster, given by their offsets.
    pub(super) fn give(
        &self,
        id: ClusterId,
        mut cluster: Held<'_>,
        runs: impl Iterator<Item = (usize, Order)> + Clone,
    ) {
        let nr_freed = cluster.give(runs.clone());
        if nr_freed == 0 {
            return;
        }
        self.stripe(id).fetch_sub(nr_freed as u64, Ordering::Relaxed);
        if !cluster.held && self.kind != Kind::Rotational && cluster.fill_changed(runs.map(|(offset, _)| offset)) {
            self.settle(id, &mut cluster);
        }
    }

    fn stripe(&self, id: ClusterId) -> &AtomicU64 {
        &self.used[id.index() % NR_STRIPES].0
    }

    /// Slots that are taken or bad. Reads 16 counters, so the sum is approximate while other threads allocate and free.
    pub(super) fn nr_used(&self) -> usize {
        self.used.iter().map(|stripe| stripe.0.load(Ordering::Relaxed) as usize).sum()
    }

    /// Makes a cluster longer. `is_new`: it had no slots.
    pub(super) fn extend(&self, id: ClusterId, limit: usize, is_new: bool) {
        let mut cluster = self.cluster(id).lock();
        cluster.extend(limit);
        if is_new {
            cluster.listed = Fill::Empty;
            self.lists(cluster.home).put(id, ClusterState::Free);
        } else if !cluster.held && self.kind != Kind::Rotational {
            self.settle(id, &mut cluster);
        }
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

    /// Clusters in this place. Locks the sets that have some.
    pub(super) fn nr_in(&self, place: ClusterState) -> usize {
        self.sets_from(0, place).map(|set| self.lists(set).len(place)).sum()
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

    /// Takes up to `max` emptied clusters to be discarded. Allocates the vector; locks the sets that have some, one
    /// after the other.
    pub(super) fn take_discards(&self, max: usize) -> Vec<ClusterId> {
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

    pub(super) fn discarded(&self, id: ClusterId) {
        let mut cluster = self.cluster(id).lock();
        let mut lists = self.lists(cluster.home);
        assert_eq!(lists.place(id), ClusterState::Discarding, "{id:?} was not taken to be discarded");
        cluster.set_discarded();
        lists.put(id, ClusterState::Free);
    }

    /// Bytes of memory for the lists and the existing clusters.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.sets) + self.chunks.bytes()
    }

    /// Checks a cluster of which `limit` slots exist and that `nr_holders` CPUs hold. [`Lists::verify`] checks the
    /// lists.
    pub(super) fn verify(&self, id: ClusterId, limit: usize, nr_holders: usize) {
        let cluster = self.cluster(id).lock();
        cluster.verify();
        assert_eq!(cluster.limit(), limit);
        if self.kind == Kind::Rotational {
            return;
        }
        let lists = self.lists(cluster.home);
        lists.verify_linked(id);
        let place = lists.place(id);
        assert_eq!(nr_holders, usize::from(cluster.held), "{id:?} is one CPU's or nobody's");
        let (fill, expected) = self.place_for(&cluster);
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
