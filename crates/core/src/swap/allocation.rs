//! How a CPU allocates a run of slots. It tries, in this order: its current cluster; a cluster of this order that it
//! held last and a quarter of which is free ([`MAX_CLUSTERS_TRIED`] of them per call); a free cluster; any cluster of
//! the order with an aligned hole; one that awaits its discard. For each kind the CPU's own set comes first, then
//! unused clusters, then other CPUs' sets.
//!
//! Listed clusters with room are known to have a run, so a claimed one fails only if another CPU stole from it or if it
//! is the short last one. After [`CLAIMS`] of those the call gives up: a larger order fails, and the caller splits.
//!
//! Order 0 then takes a cluster of another order, and at last steals from any cluster, even one that a CPU holds, in a
//! circular search. That reads one word per cluster at worst, and nothing if the count says that all slots are taken.
//! It finds every slot that was free, and not being discarded, during the whole call.

use super::cluster::Held;
use super::cluster_link::ClusterState;
use super::cluster_lists::Claim;
use super::cluster_table::{ClusterTable, Kind};
use crate::id::{ClusterId, SlotId};
use crate::order::{MAX_ORDER, Order};
use crate::sync::{AtomicU64, Ordering};

const NR_ORDERS: usize = MAX_ORDER as usize + 1;

/// Clusters of an order that a claim examines for one that this CPU held last and a quarter of which is free, before it
/// takes a free cluster.
const MAX_CLUSTERS_TRIED: usize = 4;

/// The most clusters that a call claims.
const CLAIMS: usize = 20;

/// A cluster that a CPU takes runs from.
#[derive(Copy, Clone, Debug)]
pub(super) struct Current {
    pub(super) cluster: ClusterId,
    /// Where the search for the next run begins, in slots from the start of the cluster.
    next: usize,
    /// It was empty when the CPU got it: the next run is free unless another CPU steals it.
    fresh: bool,
}

/// What is kept for a CPU, under its lock.
pub(super) struct Cpu {
    index: u16,
    pub(super) current: [Option<Current>; NR_ORDERS],
    /// Where the last search of the whole device found a slot.
    search: (usize, usize),
    /// The device is being removed.
    pub(super) removing: bool,
}

impl Cpu {
    pub(super) fn new(index: u16) -> Cpu {
        Cpu { index, current: [None; NR_ORDERS], search: (0, 0), removing: false }
    }
}

/// An allocation of 2^order slots by a CPU.
pub(super) struct Allocation<'c> {
    pub(super) table: &'c ClusterTable,
    /// Slots of the device.
    pub(super) nr_slots: &'c AtomicU64,
    pub(super) cpu: &'c mut Cpu,
    pub(super) order: Order,
}

impl Allocation<'_> {
    pub(super) fn take(mut self) -> Option<SlotId> {
        match self.table.kind {
            Kind::Rotational => self.take_next(),
            Kind::Clustered { .. } if self.order > self.table.cluster_order => None,
            Kind::Clustered { .. } => self.take_current().or_else(|| self.take_other()),
        }
    }

    /// The next run of the current cluster, if any.
    fn take_current(&mut self) -> Option<SlotId> {
        let current = self.cpu.current[usize::from(self.order.exponent())]?;
        self.take_held(current, &mut self.table.cluster(current.cluster).lock())
    }

    /// The next run of a cluster that this CPU holds. Releases the cluster at its end, or when a run of a fresh one was
    /// stolen: another cluster gives contiguous runs.
    fn take_held(&mut self, current: Current, cluster: &mut Held<'_>) -> Option<SlotId> {
        let (Current { cluster: id, next, fresh }, order) = (current, self.order);
        let found = cluster.find(next, order).filter(|&offset| !fresh || offset == next);
        let end = found.map_or(cluster.limit(), |offset| offset + order.nr_pages());
        let slot = found.map(|offset| self.table.take(id, cluster, offset, order));
        let goes_on = end + order.nr_pages() <= cluster.limit();
        self.cpu.current[usize::from(order.exponent())] = goes_on.then_some(Current { next: end, ..current });
        if !goes_on {
            self.table.release(id, cluster, found.is_some());
        }
        slot
    }

    /// A run from a cluster that becomes the CPU's current one, or, for a single slot, from anywhere.
    fn take_other(&mut self) -> Option<SlotId> {
        for _ in 0..CLAIMS {
            let Some((id, from)) = self.claim() else { break };
            let mut cluster = self.table.cluster(id).lock();
            let current = self.begin(id, &mut cluster, from);
            if let Some(slot) = self.take_held(current, &mut cluster) {
                return Some(slot);
            }
        }
        if self.order == Order::PAGE { self.steal() } else { None }
    }

    /// Makes a cluster that this CPU has claimed its current one.
    fn begin(&self, id: ClusterId, cluster: &mut Held<'_>, from: ClusterState) -> Current {
        assert!(!cluster.held, "a cluster is one CPU's only");
        cluster.held = true;
        cluster.home = self.cpu.index;
        let fresh = cluster.nr_used() == 0;
        if fresh || matches!(from, ClusterState::Free | ClusterState::Awaiting) {
            cluster.order = self.order;
        }
        Current { cluster: id, next: 0, fresh }
    }

    /// Claims a cluster to take runs from.
    fn claim(&self) -> Option<(ClusterId, ClusterState)> {
        let room = ClusterState::Room(self.order);
        // Prefer a free cluster to one that another CPU held last: that CPU still frees slots there, and the two would
        // contend.
        let is_roomy = |id| 4 * self.table.cluster(id).room() >= self.table.cluster_slots();
        let mut lists = self.table.lists(self.cpu.index);
        let found =
            lists.claim_if(room, MAX_CLUSTERS_TRIED, is_roomy).or_else(|| lists.claim_first(ClusterState::Free));
        drop(lists);
        found.or_else(|| self.claim_anywhere())
    }

    fn claim_anywhere(&self) -> Option<(ClusterId, ClusterState)> {
        let (table, cpu, order) = (self.table, self.cpu.index, self.order);
        let own = [ClusterState::Free, ClusterState::Room(order), ClusterState::Awaiting];
        // Single slots may break other orders when nothing else is left. Small orders first: large runs are worth more.
        let others = (1..=MAX_ORDER).filter(|_| order == Order::PAGE).filter_map(Order::new);
        let others = others.flat_map(|order| [ClusterState::Fragmented, ClusterState::Room].map(|place| place(order)));
        let is_filled = |set: u16, place: ClusterState| table.sets[usize::from(set)].filled() & place.bit() != 0;
        let filled = table.sets.iter().fold(0, |filled, set| filled | set.filled());
        let mut places = own.into_iter().chain(others).filter(|place| filled & place.bit() != 0);
        places.find_map(|place| {
            let first = [cpu, table.unused_set()].into_iter().filter(|&set| is_filled(set, place));
            first.chain(table.sets_from(cpu + 1, place)).find_map(|set| table.lists(set).claim_first(place))
        })
    }

    /// Any free slot of the device.
    fn steal(&mut self) -> Option<SlotId> {
        self.search(|this, id, cluster, from| {
            if !cluster.held {
                // Not in the head of the match: the guard would live through it, and `release` takes the same lock.
                let claim = this.table.lists(cluster.home).claim(id);
                match claim {
                    Claim::Discarding => return None,
                    // Another thread is about to lock it; a slot may still be taken from it.
                    Claim::Others => {}
                    Claim::Mine => {
                        let current = this.begin(id, cluster, ClusterState::Off);
                        return this.take_held(current, cluster);
                    }
                }
            }
            this.take_from(id, cluster, from)
        })
    }

    /// The next free slot after the last one handed out, circularly.
    fn take_next(&mut self) -> Option<SlotId> {
        if self.order == Order::PAGE { self.search(Self::take_from) } else { None }
    }

    /// A single slot of a cluster, at or after an offset.
    fn take_from(&mut self, id: ClusterId, cluster: &mut Held<'_>, from: usize) -> Option<SlotId> {
        let offset = cluster.find(from, Order::PAGE)?;
        self.cpu.search = (id.index(), offset + 1);
        Some(self.table.take(id, cluster, offset, Order::PAGE))
    }

    /// Calls `take` with each cluster that has room, locked, and the offset to begin at: once around the device from
    /// where this CPU's last search ended.
    fn search(
        &mut self,
        mut take: impl FnMut(&mut Self, ClusterId, &mut Held<'_>, usize) -> Option<SlotId>,
    ) -> Option<SlotId> {
        let (table, nr_slots) = (self.table, self.nr_slots.load(Ordering::Acquire) as usize);
        if table.nr_used() >= nr_slots {
            return None;
        }
        let nr_clusters = nr_slots.div_ceil(table.cluster_slots());
        let (first, offset) = self.cpu.search;
        // The first cluster comes twice: from the offset on at the start, and as a whole at the end.
        for step in 0..=nr_clusters {
            let index = if first + step < nr_clusters { first + step } else { first + step - nr_clusters };
            let id = ClusterId::from_index(index);
            if table.cluster(id).room() > 0 {
                let from = if step == 0 { offset } else { 0 };
                let mut cluster = table.cluster(id).lock();
                let has_room = cluster.nr_used() < cluster.limit();
                let found = if has_room { take(self, id, &mut cluster, from) } else { None };
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }
}
