//! A cluster's state, and its neighbours on the list of that state ([`super::cluster_lists`]).

use crate::order::{MAX_ORDER, Order};
use crate::sync::{AtomicU32, Ordering};

const NR_ORDERS: usize = MAX_ORDER as usize + 1;
pub(super) const NR_LISTS: usize = 2 + 2 * NR_ORDERS;
const _: () = assert!(NR_LISTS <= 32, "a list has its bit");
pub(super) const NONE: u32 = u32::MAX;

/// Where a cluster belongs.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum ClusterState {
    /// On no list: full, or a CPU has claimed it. The cluster itself knows which.
    Off,
    /// On no list: the device is discarding it.
    Discarding,
    /// Empty and ready to use.
    Free,
    /// Empty, waiting for its discard.
    Awaiting,
    /// Serves this order; an aligned run of it is free.
    Room(Order),
    /// Serves this order; slots are free, but no aligned run of it.
    Fragmented(Order),
}

impl ClusterState {
    pub(super) fn list(self) -> Option<usize> {
        match self {
            ClusterState::Off | ClusterState::Discarding => None,
            ClusterState::Free => Some(0),
            ClusterState::Awaiting => Some(1),
            ClusterState::Room(order) => Some(2 + usize::from(order.exponent())),
            ClusterState::Fragmented(order) => Some(2 + NR_ORDERS + usize::from(order.exponent())),
        }
    }

    /// The bit of its list in `filled` of its set.
    pub(super) fn bit(self) -> u32 {
        self.list().map_or(0, |list| 1 << list)
    }

    fn code(self) -> u32 {
        match self {
            ClusterState::Off => NR_LISTS as u32,
            ClusterState::Discarding => NR_LISTS as u32 + 1,
            _ => self.list().map_or(NONE, |list| list as u32),
        }
    }

    fn from_code(code: u32) -> ClusterState {
        let order = |first: usize| Order::new((code as usize - first) as u8).expect("a list has an order");
        match code as usize {
            0 => ClusterState::Free,
            1 => ClusterState::Awaiting,
            2.. if (code as usize) < 2 + NR_ORDERS => ClusterState::Room(order(2)),
            2.. if (code as usize) < NR_LISTS => ClusterState::Fragmented(order(2 + NR_ORDERS)),
            NR_LISTS => ClusterState::Off,
            _ => ClusterState::Discarding,
        }
    }
}

/// A cluster's neighbours on its list, and its state. Ordered by the lock of its home's set.
pub(super) struct Link {
    prev: AtomicU32,
    next: AtomicU32,
    state: AtomicU32,
}

impl Link {
    /// The link of a cluster on no list.
    pub(super) fn new() -> Link {
        let word = |value| AtomicU32::new(value);
        Link { prev: word(NONE), next: word(NONE), state: word(ClusterState::Off.code()) }
    }

    pub(super) fn prev(&self) -> u32 {
        self.prev.load(Ordering::Relaxed)
    }

    pub(super) fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    pub(super) fn state(&self) -> ClusterState {
        ClusterState::from_code(self.state.load(Ordering::Relaxed))
    }

    pub(super) fn set_prev(&self, cluster: u32) {
        self.prev.store(cluster, Ordering::Relaxed);
    }

    pub(super) fn set_next(&self, cluster: u32) {
        self.next.store(cluster, Ordering::Relaxed);
    }

    pub(super) fn set_state(&self, state: ClusterState) {
        self.state.store(state.code(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_a_code() {
        let orders = (0..=MAX_ORDER).filter_map(Order::new);
        let with_order = orders.flat_map(|order| [ClusterState::Room(order), ClusterState::Fragmented(order)]);
        for state in [ClusterState::Off, ClusterState::Discarding, ClusterState::Free, ClusterState::Awaiting]
            .into_iter()
            .chain(with_order)
        {
            assert_eq!(ClusterState::from_code(state.code()), state);
        }
    }
}
