//! How [`Clusters`] allocates a run. It tries, in this order: the CPU's current cluster; a cluster of this order that
//! the CPU held last and a quarter of which is free ([`MAX_CLUSTERS_TRIED`] of them per call); a free cluster; any
//! cluster of the order with an aligned hole; one that awaits its discard. For each kind the CPU's own set comes first,
//! then unused clusters, then other CPUs' sets.
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
use super::clusters::{Clusters, Cpu, Current, Kind};
use crate::id::{ClusterId, CpuId, SlotId};
use crate::order::{MAX_ORDER, Order};
use crate::sync::Ordering;

/// Clusters of an order that a claim examines for one that this CPU held last and a quarter of which is free, before it
/// takes a free cluster.
const MAX_CLUSTERS_TRIED: usize = 4;

/// The most clusters that a call claims.
const CLAIMS: usize = 20;

impl Clusters {
    /// A run of 2^k free slots, aligned to its size; `None` if none is found or the device is being removed. Usually
    /// takes two uncontended locks; the opener of `clusters_take` has the worst case.
    pub fn allocate(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        let mut cpu = self.record(cpu);
        if cpu.removing {
            return None;
        }
        let found = match self.kind {
            Kind::Rotational => self.take_next(&mut cpu, order),
            Kind::Clustered { .. } if order > self.cluster_order => None,
            Kind::Clustered { .. } => self.take_current(&mut cpu, order).or_else(|| self.take_other(&mut cpu, order)),
        };
        if found.is_none() {
            cpu.count_failure(order);
        }
        found
    }

    /// The next run of the current cluster, if any.
    fn take_current(&self, cpu: &mut Cpu, order: Order) -> Option<SlotId> {
        let current = cpu.current[usize::from(order.exponent())]?;
        self.take_held(cpu, current, &mut self.cluster(current.cluster).lock(), order)
    }

    /// The next run of a cluster that this CPU holds. Releases the cluster at its end, or when a run of a fresh one was
    /// stolen: another cluster gives contiguous runs.
    fn take_held(&self, cpu: &mut Cpu, current: Current, cluster: &mut Held<'_>, order: Order) -> Option<SlotId> {
        let Current { cluster: id, next, fresh } = current;
        let found = cluster.find(next, order).filter(|&offset| !fresh || offset == next);
        let end = found.map_or(cluster.limit(), |offset| offset + order.nr_pages());
        let slot = found.map(|offset| self.take_at(id, cluster, offset, order));
        let goes_on = end + order.nr_pages() <= cluster.limit();
        cpu.current[usize::from(order.exponent())] = goes_on.then_some(Current { next: end, ..current });
        if !goes_on {
            self.release(id, cluster, found.is_some());
        }
        slot
    }

    pub(super) fn take_at(&self, id: ClusterId, cluster: &mut Held<'_>, offset: usize, order: Order) -> SlotId {
        cluster.take(offset, order);
        self.stripe(id).fetch_add(order.nr_pages() as u64, Ordering::Relaxed);
        SlotId::from_index((id.index() << self.cluster_order.exponent()) | offset)
    }

    /// A run from a cluster that becomes the CPU's current one, or, for a single slot, from anywhere.
    fn take_other(&self, cpu: &mut Cpu, order: Order) -> Option<SlotId> {
        for _ in 0..CLAIMS {
            let Some((id, from)) = self.claim_for(cpu.index, order) else { break };
            let mut cluster = self.cluster(id).lock();
            let current = begin(id, &mut cluster, cpu.index, from, order);
            if let Some(slot) = self.take_held(cpu, current, &mut cluster, order) {
                return Some(slot);
            }
        }
        if order == Order::PAGE { self.steal(cpu) } else { None }
    }

    fn claim_for(&self, cpu: u16, order: Order) -> Option<(ClusterId, ClusterState)> {
        let room = ClusterState::Room(order);
        // Prefer a free cluster to one that another CPU held last: that CPU still frees slots there, and the two would
        // contend.
        let is_roomy = |id| 4 * self.cluster(id).room() >= self.cluster_slots();
        let mut lists = self.lists(cpu);
        let found =
            lists.claim_if(room, MAX_CLUSTERS_TRIED, is_roomy).or_else(|| lists.claim_first(ClusterState::Free));
        drop(lists);
        found.or_else(|| self.claim_anywhere(cpu, order))
    }

    fn claim_anywhere(&self, cpu: u16, order: Order) -> Option<(ClusterId, ClusterState)> {
        let own = [ClusterState::Free, ClusterState::Room(order), ClusterState::Awaiting];
        // Single slots may break other orders when nothing else is left. Small orders first: large runs are worth more.
        let others = (1..=MAX_ORDER).filter(|_| order == Order::PAGE).filter_map(Order::new);
        let others = others.flat_map(|order| [ClusterState::Fragmented, ClusterState::Room].map(|place| place(order)));
        let filled = self.sets.iter().fold(0, |filled, set| filled | set.filled());
        let mut places = own.into_iter().chain(others).filter(|place| filled & place.bit() != 0);
        let unused = self.sets.len() as u16 - 1;
        places.find_map(|place| {
            let first =
                [cpu, unused].into_iter().filter(|&set| self.sets[usize::from(set)].filled() & place.bit() != 0);
            first.chain(self.sets_from(cpu + 1, place)).find_map(|set| self.lists(set).claim_first(place))
        })
    }

    /// Any free slot of the device.
    fn steal(&self, cpu: &mut Cpu) -> Option<SlotId> {
        self.search(cpu, |cpu, id, cluster, from| {
            if !cluster.held {
                // Not in the head of the match: the guard would live through it, and `release` takes the same lock.
                let claim = self.lists(cluster.home).claim(id);
                match claim {
                    Claim::Discarding => return None,
                    // Another thread is about to lock it; a slot may still be taken from it.
                    Claim::Others => {}
                    Claim::Mine => {
                        let current = begin(id, cluster, cpu.index, ClusterState::Off, Order::PAGE);
                        return self.take_held(cpu, current, cluster, Order::PAGE);
                    }
                }
            }
            let offset = cluster.find(from, Order::PAGE)?;
            cpu.search = (id.index(), offset + 1);
            Some(self.take_at(id, cluster, offset, Order::PAGE))
        })
    }

    /// The next free slot after the last one handed out, circularly.
    fn take_next(&self, cpu: &mut Cpu, order: Order) -> Option<SlotId> {
        if order != Order::PAGE {
            return None;
        }
        self.search(cpu, |cpu, id, cluster, from| {
            let offset = cluster.find(from, Order::PAGE)?;
            cpu.search = (id.index(), offset + 1);
            Some(self.take_at(id, cluster, offset, Order::PAGE))
        })
    }

    /// Calls `take` with each cluster that has room, locked, and the offset to begin at: once around the device from
    /// where this CPU's last search ended.
    fn search(
        &self,
        cpu: &mut Cpu,
        mut take: impl FnMut(&mut Cpu, ClusterId, &mut Held<'_>, usize) -> Option<SlotId>,
    ) -> Option<SlotId> {
        let nr_slots = self.nr_slots();
        if self.nr_used() >= nr_slots {
            return None;
        }
        let nr_clusters = nr_slots.div_ceil(self.cluster_slots());
        let (first, offset) = cpu.search;
        // The first cluster comes twice: from the offset on at the start, and as a whole at the end.
        for step in 0..=nr_clusters {
            let index = if first + step < nr_clusters { first + step } else { first + step - nr_clusters };
            let id = ClusterId::from_index(index);
            if self.cluster(id).room() > 0 {
                let from = if step == 0 { offset } else { 0 };
                let mut cluster = self.cluster(id).lock();
                let has_room = cluster.nr_used() < cluster.limit();
                let found = if has_room { take(cpu, id, &mut cluster, from) } else { None };
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }
}

/// Makes a cluster that this CPU has claimed its current one.
fn begin(id: ClusterId, cluster: &mut Held<'_>, cpu: u16, from: ClusterState, order: Order) -> Current {
    assert!(!cluster.held, "a cluster is one CPU's only");
    cluster.held = true;
    cluster.home = cpu;
    let fresh = cluster.nr_used() == 0;
    if fresh || matches!(from, ClusterState::Free | ClusterState::Awaiting) {
        cluster.order = order;
    }
    Current { cluster: id, next: 0, fresh }
}
