//! The state of each cluster of a device: the lists that allocation takes clusters from, and the states off the lists.
//! Each CPU has a set of lists, so that CPUs that reuse their own clusters do not contend, and one more set holds
//! unused clusters. A cluster's `home` is the set that it belongs to.
//!
//! **Invariants.** A cluster has one [`ClusterState`]. It is on that state's list in its home's set, and on no other
//! list. A bit of `filled` is set exactly while the list of that number is not empty.
//!
//! **Locking.** One mutex per [`Set`], a leaf, taken with at most one cluster locked. It guards the links of the
//! clusters whose home it is. The links are atomic only so that they can be written through a shared reference. Only
//! claiming the first cluster of a list and taking discards move a cluster without its lock; every other thread leaves
//! a claimed cluster where it is. `filled` is written under the lock and read without it: a hint that lets searches
//! skip sets.

use super::cluster::Chunks;
use super::cluster_link::{ClusterState, Link, NONE, NR_LISTS};
use crate::id::ClusterId;
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, lock};

#[derive(Copy, Clone)]
struct Ends {
    first: u32,
    last: u32,
    len: u32,
}

/// The result of claiming a given cluster.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Claim {
    /// The caller has claimed it.
    Mine,
    /// Another CPU has claimed it.
    Others,
    /// The device is discarding it.
    Discarding,
}

/// One set of lists, aligned to avoid false sharing.
#[repr(align(128))]
pub(super) struct Set {
    ends: Mutex<[Ends; NR_LISTS]>,
    filled: AtomicU32,
}

impl Set {
    /// A set of empty lists.
    pub(super) fn new() -> Set {
        let empty = Ends { first: NONE, last: NONE, len: 0 };
        Set { ends: Mutex::new([empty; NR_LISTS]), filled: AtomicU32::new(0) }
    }

    /// Locks it. `clusters` are those of the device.
    pub(super) fn lock<'a>(&'a self, clusters: &'a Chunks) -> Lists<'a> {
        Lists { ends: lock(&self.ends), filled: &self.filled, clusters }
    }

    /// One bit per list that was not empty; may be stale.
    pub(super) fn filled(&self) -> u32 {
        self.filled.load(Ordering::Relaxed)
    }
}

/// A locked set.
pub(super) struct Lists<'a> {
    ends: MutexGuard<'a, [Ends; NR_LISTS]>,
    filled: &'a AtomicU32,
    clusters: &'a Chunks,
}

impl Lists<'_> {
    fn link(&self, cluster: u32) -> &Link {
        &self.clusters.get(ClusterId::new(cluster)).link
    }

    /// The place of a cluster of this set.
    pub(super) fn place(&self, cluster: ClusterId) -> ClusterState {
        self.link(cluster.get()).state()
    }

    pub(super) fn len(&self, place: ClusterState) -> usize {
        place.list().map_or(0, |list| self.ends[list].len as usize)
    }

    fn set_len(&mut self, list: usize, len: u32) {
        let old = std::mem::replace(&mut self.ends[list].len, len);
        if (old == 0) != (len == 0) {
            self.filled.store(self.filled.load(Ordering::Relaxed) ^ 1 << list, Ordering::Relaxed);
        }
    }

    /// Moves a cluster to the end of the list of a place.
    pub(super) fn put(&mut self, cluster: ClusterId, place: ClusterState) {
        self.unlink(cluster);
        self.link(cluster.get()).set_state(place);
        let Some(list) = place.list() else { return };
        let last = std::mem::replace(&mut self.ends[list].last, cluster.get());
        match last {
            NONE => self.ends[list].first = cluster.get(),
            _ => self.link(last).set_next(cluster.get()),
        }
        self.link(cluster.get()).set_prev(last);
        self.set_len(list, self.ends[list].len + 1);
    }

    /// Moves a cluster to the start of a list, to be claimed next: it is still in the cache of the CPU that emptied it,
    /// and reusing emptied clusters first keeps the used part of the device short.
    pub(super) fn put_first(&mut self, cluster: ClusterId, place: ClusterState) {
        self.unlink(cluster);
        self.link(cluster.get()).set_state(place);
        let Some(list) = place.list() else { return };
        let first = std::mem::replace(&mut self.ends[list].first, cluster.get());
        match first {
            NONE => self.ends[list].last = cluster.get(),
            _ => self.link(first).set_prev(cluster.get()),
        }
        self.link(cluster.get()).set_next(first);
        self.set_len(list, self.ends[list].len + 1);
    }

    fn unlink(&mut self, cluster: ClusterId) {
        let link = self.link(cluster.get());
        let (prev, next) = (link.prev(), link.next());
        let Some(list) = link.state().list() else {
            assert!(prev == NONE && next == NONE, "a cluster off the lists has no neighbours");
            return;
        };
        link.set_prev(NONE);
        link.set_next(NONE);
        match prev {
            NONE => self.ends[list].first = next,
            _ => self.link(prev).set_next(next),
        }
        match next {
            NONE => self.ends[list].last = prev,
            _ => self.link(next).set_prev(prev),
        }
        self.set_len(list, self.ends[list].len - 1);
    }

    /// Moves the first cluster of one place to another.
    pub(super) fn shift(&mut self, from: ClusterState, to: ClusterState) -> Option<ClusterId> {
        let first = from.list().map(|list| self.ends[list].first).filter(|&first| first != NONE)?;
        self.put(ClusterId::new(first), to);
        Some(ClusterId::new(first))
    }

    pub(super) fn claim_first(&mut self, place: ClusterState) -> Option<(ClusterId, ClusterState)> {
        Some((self.shift(place, ClusterState::Off)?, place))
    }

    /// Claims the first cluster of a place that passes. Examines up to `nr_looks`; those that fail go to the end of the
    /// list, so the next call examines others.
    pub(super) fn claim_if(
        &mut self,
        place: ClusterState,
        nr_looks: usize,
        passes: impl Fn(ClusterId) -> bool,
    ) -> Option<(ClusterId, ClusterState)> {
        let list = place.list()?;
        for _ in 0..nr_looks.min(self.len(place)) {
            let first = ClusterId::new(self.ends[list].first);
            if passes(first) {
                self.put(first, ClusterState::Off);
                return Some((first, place));
            }
            if self.ends[list].len > 1 {
                self.put(first, place);
            }
        }
        None
    }

    /// Claims this cluster. It has free slots, and the caller holds its lock and has seen that no CPU holds it.
    pub(super) fn claim(&mut self, cluster: ClusterId) -> Claim {
        match self.place(cluster) {
            ClusterState::Off => Claim::Others,
            ClusterState::Discarding => Claim::Discarding,
            _ => {
                self.put(cluster, ClusterState::Off);
                Claim::Mine
            }
        }
    }

    /// Checks that each list links exactly the clusters of its place.
    pub(super) fn verify(&self) {
        for (list, ends) in self.ends.iter().enumerate() {
            let (mut at, mut prev) = (ends.first, NONE);
            for _ in 0..ends.len {
                let link = self.link(at);
                assert!(link.state().list() == Some(list) && link.prev() == prev, "a list runs through a stranger");
                (prev, at) = (at, link.next());
            }
            assert!(at == NONE && ends.last == prev, "a list has an end");
            let bit = self.filled.load(Ordering::Relaxed) >> list & 1;
            assert_eq!(bit != 0, ends.len > 0, "a list with clusters has its bit set");
        }
    }

    /// Checks that a cluster of this set is linked on the list of its place; [`Lists::verify`] follows the links to
    /// both ends.
    pub(super) fn verify_linked(&self, cluster: ClusterId) {
        let link = self.link(cluster.get());
        let Some(list) = link.state().list() else { return };
        let before = if link.prev() == NONE { self.ends[list].first } else { self.link(link.prev()).next() };
        let after = if link.next() == NONE { self.ends[list].last } else { self.link(link.next()).prev() };
        assert!(before == cluster.get() && after == cluster.get(), "a cluster is on the list of its place");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::order::Order;

    /// This many clusters, all of them free and in the set.
    fn all_free(set: &Set, nr_clusters: u32) -> Chunks {
        let clusters = Chunks::new(nr_clusters as usize);
        clusters.make(nr_clusters as usize, 0);
        (0..nr_clusters).for_each(|index| set.lock(&clusters).put(ClusterId::new(index), ClusterState::Free));
        clusters
    }

    #[test]
    fn a_cluster_is_in_one_place() {
        let set = Set::new();
        let clusters = all_free(&set, 3);
        let mut lists = set.lock(&clusters);
        let room = ClusterState::Room(Order::HUGE);
        let [a, b, c] = [0, 1, 2].map(ClusterId::new);
        assert_eq!((lists.len(ClusterState::Free), lists.len(ClusterState::Off)), (3, 0));
        assert_eq!(set.filled(), ClusterState::Free.bit());
        [a, b, c].into_iter().for_each(|cluster| lists.verify_linked(cluster));
        assert_eq!(
            (lists.claim_first(ClusterState::Awaiting), lists.claim_first(ClusterState::Free)),
            (None, Some((a, ClusterState::Free)))
        );
        assert_eq!((lists.claim(b), lists.claim(b)), (Claim::Mine, Claim::Others));
        lists.verify();
        [b, a, c].into_iter().for_each(|cluster| lists.put(cluster, room));
        lists.put(a, ClusterState::Off);
        lists.verify();
        assert_eq!(lists.shift(room, ClusterState::Discarding), Some(b));
        assert_eq!(lists.claim(b), Claim::Discarding);
        assert_eq!((lists.shift(room, ClusterState::Free), lists.shift(room, ClusterState::Free)), (Some(c), None));
        lists.put_first(a, ClusterState::Free);
        lists.verify();
        lists.put_first(a, room);
        lists.put_first(b, ClusterState::Free);
        lists.verify();
        assert_eq!((lists.shift(ClusterState::Free, room), lists.shift(ClusterState::Free, room)), (Some(b), Some(c)));
        lists.verify();
    }

    #[test]
    fn a_look_goes_on_where_the_last_one_ended() {
        let set = Set::new();
        let clusters = all_free(&set, 4);
        let mut lists = set.lock(&clusters);
        assert_eq!(lists.claim_if(ClusterState::Free, 2, |cluster| cluster.index() == 3), None);
        assert_eq!(
            lists.claim_if(ClusterState::Free, 2, |cluster| cluster.index() == 3),
            Some((ClusterId::new(3), ClusterState::Free))
        );
        assert_eq!(lists.claim_if(ClusterState::Free, 9, |_| false), None);
        lists.verify();
        assert_eq!(lists.claim_if(ClusterState::Free, 1, |_| true), Some((ClusterId::new(0), ClusterState::Free)));
        assert_eq!(lists.claim_if(ClusterState::Awaiting, 1, |_| true), None);
        lists.verify();
    }
}
