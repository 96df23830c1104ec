//! Where each cluster of a device belongs: the lists that allocation takes clusters from, and the states off them.
//!
//! **Invariants.** A cluster has one [`Place`], and is on the list of that place and no other, or on none. Links are
//! kept here and not in the clusters, so that one lock guards all of it.
//!
//! **Locking.** One mutex around [`Lists`], taken with at most one cluster's lock held and never the other way round;
//! nothing is locked under it. Only the steps that begin from a list (claiming its first cluster, taking discards) move
//! a cluster without that cluster's lock, and then it is theirs: everybody else leaves a claimed cluster where it is.

use crate::id::ClusterId;
use crate::order::{MAX_ORDER, Order};

const NR_ORDERS: usize = MAX_ORDER as usize + 1;
const NR_LISTS: usize = 2 + 2 * NR_ORDERS;
/// No cluster.
const NONE: u32 = u32::MAX;

/// Where a cluster belongs.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Place {
    /// On no list: every slot is taken, or a CPU has it or is about to. The cluster itself knows which.
    Off,
    /// On no list: the device is discarding it.
    Discarding,
    /// Empty, to be had.
    Free,
    /// Empty, to be discarded.
    Awaiting,
    /// Serves this order; an aligned run of it is free.
    Room(Order),
    /// Serves this order; slots are free, but no aligned run of it.
    Fragmented(Order),
}

impl Place {
    fn list(self) -> Option<usize> {
        match self {
            Place::Off | Place::Discarding => None,
            Place::Free => Some(0),
            Place::Awaiting => Some(1),
            Place::Room(order) => Some(2 + usize::from(order.exponent())),
            Place::Fragmented(order) => Some(2 + NR_ORDERS + usize::from(order.exponent())),
        }
    }
}

struct Link {
    prev: u32,
    next: u32,
    place: Place,
}

#[derive(Copy, Clone)]
struct Ends {
    first: u32,
    last: u32,
    len: u32,
}

/// What came of the wish to claim a certain cluster.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Claim {
    /// It is the caller's.
    Mine,
    /// Another CPU is about to have it.
    Others,
    /// The device is discarding it.
    Discarding,
}

/// The lists of one device.
pub(super) struct Lists {
    links: Vec<Link>,
    ends: [Ends; NR_LISTS],
}

impl Lists {
    /// Lists for up to so many clusters, none of them there yet. Reserves 12 bytes for each.
    pub(super) fn new(max_clusters: usize) -> Lists {
        let empty = Ends { first: NONE, last: NONE, len: 0 };
        Lists { links: Vec::with_capacity(max_clusters), ends: [empty; NR_LISTS] }
    }

    /// Adds the next cluster, at the end of the free list.
    pub(super) fn add(&mut self) {
        let cluster = ClusterId::from_index(self.links.len());
        self.links.push(Link { prev: NONE, next: NONE, place: Place::Off });
        self.put(cluster, Place::Free);
    }

    /// Where a cluster belongs.
    pub(super) fn place(&self, cluster: ClusterId) -> Place {
        self.links[cluster.index()].place
    }

    /// Clusters on the list of this place.
    pub(super) fn len(&self, place: Place) -> usize {
        place.list().map_or(0, |list| self.ends[list].len as usize)
    }

    /// Bytes of memory for the clusters that are there.
    pub(super) fn bytes(&self) -> usize {
        self.links.len() * size_of::<Link>()
    }

    /// Moves a cluster to the end of the list of a place.
    pub(super) fn put(&mut self, cluster: ClusterId, place: Place) {
        self.unlink(cluster);
        self.links[cluster.index()].place = place;
        let Some(list) = place.list() else { return };
        let last = std::mem::replace(&mut self.ends[list].last, cluster.get());
        match last {
            NONE => self.ends[list].first = cluster.get(),
            _ => self.links[last as usize].next = cluster.get(),
        }
        self.links[cluster.index()].prev = last;
        self.ends[list].len += 1;
    }

    /// Moves a cluster to the start of the list of a place, to be the next that is claimed: it is in the cache of the
    /// CPU that just emptied it, and a device whose emptied clusters are used again first stays short.
    pub(super) fn put_first(&mut self, cluster: ClusterId, place: Place) {
        self.unlink(cluster);
        self.links[cluster.index()].place = place;
        let Some(list) = place.list() else { return };
        let first = std::mem::replace(&mut self.ends[list].first, cluster.get());
        match first {
            NONE => self.ends[list].last = cluster.get(),
            _ => self.links[first as usize].prev = cluster.get(),
        }
        self.links[cluster.index()].next = first;
        self.ends[list].len += 1;
    }

    fn unlink(&mut self, cluster: ClusterId) {
        let Link { prev, next, place } = self.links[cluster.index()];
        let Some(list) = place.list() else {
            assert!(prev == NONE && next == NONE, "a cluster off the lists has no neighbours");
            return;
        };
        match prev {
            NONE => self.ends[list].first = next,
            _ => self.links[prev as usize].next = next,
        }
        match next {
            NONE => self.ends[list].last = prev,
            _ => self.links[next as usize].prev = prev,
        }
        self.ends[list].len -= 1;
        let link = &mut self.links[cluster.index()];
        (link.prev, link.next) = (NONE, NONE);
    }

    /// Moves the first cluster of one place to another.
    pub(super) fn shift(&mut self, from: Place, to: Place) -> Option<ClusterId> {
        let first = from.list().map(|list| self.ends[list].first).filter(|&first| first != NONE)?;
        self.put(ClusterId::new(first), to);
        Some(ClusterId::new(first))
    }

    /// Claims the first cluster of the first of these places that has one, and says which place that was.
    pub(super) fn claim_first(&mut self, places: impl IntoIterator<Item = Place>) -> Option<(ClusterId, Place)> {
        places.into_iter().find_map(|place| Some((self.shift(place, Place::Off)?, place)))
    }

    /// Claims the first cluster of a place that passes. Looks at `nr_looks` of them; those that do not pass go to the
    /// end of the list, so the next look is at others.
    pub(super) fn claim_if(
        &mut self,
        place: Place,
        nr_looks: usize,
        passes: impl Fn(ClusterId) -> bool,
    ) -> Option<(ClusterId, Place)> {
        let list = place.list()?;
        for _ in 0..nr_looks.min(self.len(place)) {
            let first = ClusterId::new(self.ends[list].first);
            if passes(first) {
                self.put(first, Place::Off);
                return Some((first, place));
            }
            if self.ends[list].len > 1 {
                self.put(first, place);
            }
        }
        None
    }

    /// Claims this cluster, which has free slots and whose lock is held by the caller, who saw that no CPU has it.
    pub(super) fn claim(&mut self, cluster: ClusterId) -> Claim {
        match self.place(cluster) {
            Place::Off => Claim::Others,
            Place::Discarding => Claim::Discarding,
            _ => {
                self.put(cluster, Place::Off);
                Claim::Mine
            }
        }
    }

    /// Checks that each list runs through the clusters of its place and through nothing else.
    pub(super) fn verify(&self) {
        let mut nr_listed = 0;
        for (list, ends) in self.ends.iter().enumerate() {
            let (mut at, mut prev) = (ends.first, NONE);
            for _ in 0..ends.len {
                let link = &self.links[at as usize];
                assert!(link.place.list() == Some(list) && link.prev == prev, "a list runs through a stranger");
                (prev, at) = (at, link.next);
            }
            assert!(at == NONE && ends.last == prev, "a list has an end");
            nr_listed += ends.len as usize;
        }
        let with_list = self.links.iter().filter(|link| link.place.list().is_some()).count();
        assert_eq!(nr_listed, with_list, "a cluster is on the list of its place");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_in_one_place() {
        let mut lists = Lists::new(3);
        (0..3).for_each(|_| lists.add());
        let room = Place::Room(Order::HUGE);
        let [a, b, c] = [0, 1, 2].map(ClusterId::new);
        assert_eq!((lists.len(Place::Free), lists.len(Place::Off)), (3, 0));
        assert_eq!(lists.claim_first([Place::Awaiting, Place::Free]), Some((a, Place::Free)));
        assert_eq!((lists.claim(b), lists.claim(b)), (Claim::Mine, Claim::Others));
        lists.verify();
        [b, a, c].into_iter().for_each(|cluster| lists.put(cluster, room));
        lists.put(a, Place::Off);
        lists.verify();
        assert_eq!(lists.shift(room, Place::Discarding), Some(b));
        assert_eq!(lists.claim(b), Claim::Discarding);
        assert_eq!((lists.shift(room, Place::Free), lists.shift(room, Place::Free)), (Some(c), None));
        lists.put_first(a, Place::Free);
        lists.verify();
        lists.put_first(a, room);
        lists.put_first(b, Place::Free);
        lists.verify();
        assert_eq!((lists.shift(Place::Free, room), lists.shift(Place::Free, room)), (Some(b), Some(c)));
        lists.verify();
    }

    #[test]
    fn a_look_goes_on_where_the_last_one_ended() {
        let mut lists = Lists::new(4);
        (0..4).for_each(|_| lists.add());
        assert_eq!(lists.claim_if(Place::Free, 2, |cluster| cluster.index() == 3), None);
        assert_eq!(
            lists.claim_if(Place::Free, 2, |cluster| cluster.index() == 3),
            Some((ClusterId::new(3), Place::Free))
        );
        assert_eq!(lists.claim_if(Place::Free, 9, |_| false), None);
        lists.verify();
        assert_eq!(lists.claim_if(Place::Free, 1, |_| true), Some((ClusterId::new(0), Place::Free)));
        assert_eq!(lists.claim_if(Place::Awaiting, 1, |_| true), None);
        lists.verify();
    }
}
