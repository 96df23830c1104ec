//! Compaction's view of [`Clusters`]: which clusters are worth emptying, and free runs for folios to move to.
//!
//! An isolated run is taken like any other: no other caller gets its slots, and [`Clusters::free`] puts it back. Slots
//! need no third state, and the invariants of `cluster_table` for taken slots apply.
//!
//! **Locking.** Isolating holds `shape`, so that nothing is taken from a device that is being removed, and the
//! cluster's lock. Clusters that a CPU holds are neither emptied nor isolated from.

use super::cluster_link::ClusterState;
use super::cluster_table::Kind;
use super::clusters::Clusters;
use crate::id::{ClusterId, SlotId};
use crate::order::Order;
use crate::sync::lock;

impl Clusters {
    /// Clusters without taken slots that can be handed out whole. Locks the sets that have some.
    pub fn nr_whole_free(&self) -> usize {
        self.table.nr_in(ClusterState::Free) + self.table.nr_in(ClusterState::Awaiting)
    }

    /// How many slots are taken in a cluster that is worth emptying. `None` if a CPU holds it, if it is empty, if one
    /// folio fills it, or if it cannot become whole: the short one at the end of the device, or one with bad slots.
    pub fn nr_taken_in_parts(&self, id: ClusterId) -> Option<usize> {
        let cluster = self.table.cluster(id).lock();
        let nr_taken = cluster.nr_used();
        let can_be_whole = cluster.limit() == self.table.cluster_slots() && cluster.is_sound();
        let is_one_folio = cluster.order == self.table.cluster_order && nr_taken == cluster.limit();
        let in_parts = nr_taken > 0 && !is_one_folio;
        (self.table.kind != Kind::Rotational && !cluster.held && can_be_whole && in_parts).then_some(nr_taken)
    }

    /// Takes free runs of a cluster, each as large as possible, from its first slot on until they have `enough` slots
    /// together, and calls `each` with them under the cluster's lock. Skips a cluster that is empty or full or that a
    /// CPU holds. Returns how many slots it examined.
    pub fn isolate_in(&self, id: ClusterId, enough: usize, each: &mut dyn FnMut(SlotId, Order)) -> usize {
        let removing = lock(&self.shape);
        let mut cluster = self.table.cluster(id).lock();
        let has_parts = cluster.nr_used() > 0 && cluster.nr_used() < cluster.limit();
        if *removing || self.table.kind == Kind::Rotational || cluster.held || !has_parts {
            return 0;
        }
        let (mut nr_taken, mut from) = (0, 0);
        while nr_taken < enough
            && let Some(offset) = cluster.find(from, Order::PAGE)
        {
            let order = cluster.largest_free_at(offset);
            each(self.table.take(id, &mut cluster, offset, order), order);
            nr_taken += order.nr_pages();
            from = offset + order.nr_pages();
        }
        self.table.settle(id, &mut cluster);
        if nr_taken < enough { cluster.limit() } else { from }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::id::CpuId;

    const CPU: CpuId = CpuId::new(0);

    fn isolate(clusters: &Clusters, id: u32, enough: usize) -> (Vec<(usize, u8)>, usize) {
        let mut runs = Vec::new();
        let nr_scanned = clusters
            .isolate_in(ClusterId::new(id), enough, &mut |slot, order| runs.push((slot.index(), order.exponent())));
        (runs, nr_scanned)
    }

    /// Three clusters; the first two are taken as single slots and no CPU holds them.
    fn two_full() -> Clusters {
        let clusters = Clusters::new(3 * 512, 1, false);
        clusters.grow(3 * 512);
        assert!((0..2 * 512).all(|slot| clusters.allocate(CPU, Order::PAGE).map(SlotId::index) == Some(slot)));
        clusters
    }

    #[test]
    fn free_runs_are_taken_as_large_as_can_be_and_put_back_by_a_free() {
        let clusters = two_full();
        for slot in (64..128).chain(131..135) {
            clusters.free(SlotId::from_index(slot), Order::PAGE);
        }
        assert_eq!(isolate(&clusters, 0, 65), (vec![(64, 6), (131, 0)], 132));
        clusters.verify();
        assert_eq!(isolate(&clusters, 0, 512), (vec![(132, 1), (134, 0)], 512));
        clusters.verify();
        assert_eq!(isolate(&clusters, 0, 1), (vec![], 0), "nothing is left");
        assert_eq!(clusters.nr_used(), 2 * 512);
        clusters.free(SlotId::new(64), Order::new(6).unwrap());
        clusters.verify();
        assert_eq!(isolate(&clusters, 0, 1), (vec![(64, 6)], 128));
    }

    #[test]
    fn what_is_whole_or_a_cpus_is_left_alone() {
        let clusters = two_full();
        assert_eq!((clusters.nr_clusters(), clusters.nr_whole_free()), (3, 1));
        let in_parts = |id| clusters.nr_taken_in_parts(ClusterId::new(id));
        assert_eq!((in_parts(0), in_parts(2)), (Some(512), None));
        assert_eq!(isolate(&clusters, 2, 512), (vec![], 0));
        let huge = clusters.allocate(CPU, Order::HUGE).unwrap();
        assert_eq!((in_parts(2), clusters.nr_whole_free()), (None, 0), "one folio fills it");
        clusters.free(huge, Order::new(8).unwrap());
        assert_eq!(in_parts(2), Some(256));
        clusters.free(SlotId::new(7), Order::PAGE);
        assert_eq!((in_parts(0), clusters.allocate(CPU, Order::PAGE)), (Some(511), Some(SlotId::new(7))));
        clusters.free(SlotId::new(7), Order::PAGE);
        assert_eq!((in_parts(0), isolate(&clusters, 0, 1)), (None, (vec![], 0)), "a CPU takes from it");
        clusters.mark_bad(SlotId::new(600), Order::PAGE);
        assert_eq!(in_parts(1), None, "it cannot become whole");
        clusters.verify();
    }

    #[test]
    fn nothing_is_isolated_of_a_device_that_is_being_removed() {
        let clusters = two_full();
        clusters.free(SlotId::new(3), Order::PAGE);
        clusters.begin_removal();
        assert_eq!(isolate(&clusters, 0, 1), (vec![], 0));
        clusters.cancel_removal();
        assert_eq!(isolate(&clusters, 0, 1), (vec![(3, 0)], 4));
    }
}
