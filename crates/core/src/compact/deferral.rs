//! When not to try: after each failure twice as many requests pass before the next one is served.
//!
//! An order that failed stands for the larger ones too, since what has a run of order k has one of every smaller order;
//! smaller orders are not deferred by it.

use crate::order::{MAX_ORDER, Order};

/// At most 2^6 requests go by between two runs.
const MAX_SHIFT: u8 = 6;

/// The deferral of one space.
#[derive(Debug)]
pub(super) struct Deferral {
    /// Requests are served one in 2^shift.
    shift: u8,
    /// Requests since the last failure.
    considered: u32,
    /// The exponent of the smallest order that failed; beyond the largest when none did.
    failed_from: u8,
}

impl Deferral {
    pub(super) fn new() -> Deferral {
        Deferral { shift: 0, considered: 0, failed_from: MAX_ORDER + 1 }
    }

    /// Whether a request for this order is to be passed over. Counts it.
    pub(super) fn defers(&mut self, order: Order) -> bool {
        if order.exponent() < self.failed_from {
            return false;
        }
        self.considered = (self.considered + 1).min(1 << self.shift);
        self.considered < 1 << self.shift
    }

    /// A run for this order failed: the next one is deferred twice as long.
    pub(super) fn failed(&mut self, order: Order) {
        self.considered = 0;
        self.shift = (self.shift + 1).min(MAX_SHIFT);
        self.failed_from = self.failed_from.min(order.exponent());
    }

    /// A run for this order succeeded: nothing up to it is deferred any more, and what is larger no longer than at first.
    pub(super) fn succeeded(&mut self, order: Order) {
        (self.considered, self.shift) = (0, 0);
        self.failed_from = self.failed_from.max(order.exponent() + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests passed over until one is served.
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
