//! Defers requests after failures: each failure doubles the number of requests until the next one is served.
//!
//! A failed order defers larger orders too, since a free run of order k implies runs of all smaller orders. Smaller
//! orders are not deferred.

use crate::order::{MAX_ORDER, Order};

/// At most one request in 2^6 is served.
const MAX_SHIFT: u8 = 6;

/// The deferral of one space.
#[derive(Debug)]
pub(super) struct Deferral {
    /// One request in 2^shift is served.
    shift: u8,
    /// Requests since the last failure.
    considered: u32,
    /// The exponent of the smallest order that failed; `MAX_ORDER + 1` if none did.
    failed_from: u8,
}

impl Deferral {
    pub(super) fn new() -> Deferral {
        Deferral { shift: 0, considered: 0, failed_from: MAX_ORDER + 1 }
    }

    /// Whether to skip a request for this order. Counts it.
    pub(super) fn defers(&mut self, order: Order) -> bool {
        if order.exponent() < self.failed_from {
            return false;
        }
        self.considered = (self.considered + 1).min(1 << self.shift);
        self.considered < 1 << self.shift
    }

    /// A run for this order failed: doubles the deferral.
    pub(super) fn failed(&mut self, order: Order) {
        self.considered = 0;
        self.shift = (self.shift + 1).min(MAX_SHIFT);
        self.failed_from = self.failed_from.min(order.exponent());
    }

    /// A run for this order succeeded: no order up to it is deferred any more, and larger ones start from the shortest
    /// deferral.
    pub(super) fn succeeded(&mut self, order: Order) {
        (self.considered, self.shift) = (0, 0);
        self.failed_from = self.failed_from.max(order.exponent() + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests skipped until one is served.
    fn nr_deferred(deferral: &mut Deferral, order: Order) -> usize {
        (0..).take_while(|_| deferral.defers(order)).count()
    }

    #[test]
    fn each_failure_doubles_the_wait_up_to_a_bound() {
        let mut deferral = Deferral::new();
        assert_eq!(nr_deferred(&mut deferral, Order::HUGE), 0);
        for expected in [1, 3, 7, 15, 31, 63, 63] {
            deferral.failed(Order::HUGE);
            assert_eq!(nr_deferred(&mut deferral, Order::HUGE), expected);
        }
        deferral.succeeded(Order::HUGE);
        assert_eq!(nr_deferred(&mut deferral, Order::HUGE), 0);
        deferral.failed(Order::HUGE);
        assert_eq!(nr_deferred(&mut deferral, Order::HUGE), 1);
    }

    #[test]
    fn a_failure_defers_its_order_and_larger_ones_only() {
        let [small, large] = [3, 5].map(|k| Order::new(k).unwrap());
        let mut deferral = Deferral::new();
        deferral.failed(large);
        assert!(!deferral.defers(small));
        assert!(deferral.defers(Order::HUGE));
        deferral.failed(small);
        deferral.succeeded(small);
        deferral.failed(large);
        assert!(!deferral.defers(small) && deferral.defers(large));
    }
}
