//! The free runs that compaction took out of a space, by order.
//!
//! Invariants:
//! - the lists are the only count of runs and units, so no path that adds or takes can leave a separate count stale;
//! - runs do not overlap, and each is on the list of its order;
//! - there are at most [`Isolated::capacity`] units, allocated at the start: nothing allocates later.

use super::space::Units;
use crate::id::UnitId;
use crate::order::{MAX_ORDER, NR_ORDERS, Order};
use std::collections::VecDeque;

/// Isolated free runs.
#[derive(Debug)]
pub struct Isolated {
    /// By order; the run isolated first is in front.
    lists: [VecDeque<UnitId>; NR_ORDERS],
    capacity: usize,
}

impl Isolated {
    /// An empty set with room for this many units. Allocates 8 bytes per unit.
    pub fn with_capacity(nr_units: usize) -> Isolated {
        Isolated { lists: std::array::from_fn(|k| VecDeque::with_capacity(nr_units >> k)), capacity: nr_units }
    }

    /// Units that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Units of all runs.
    pub fn nr_units(&self) -> usize {
        self.lists.iter().enumerate().map(|(k, list)| list.len() << k).sum()
    }

    /// How many runs of this order there are.
    pub fn nr_runs(&self, order: Order) -> usize {
        self.lists[usize::from(order.exponent())].len()
    }

    /// Adds a run, to be used after the others of its order. Panics when there is no room for it.
    pub fn add(&mut self, run: Units) {
        self.check_room(run);
        self.list_mut(run.order).push_back(run.first);
    }

    /// Returns a run that was taken and not used; it is used next of its order.
    pub fn give_back(&mut self, run: Units) {
        self.check_room(run);
        self.list_mut(run.order).push_front(run.first);
    }

    /// Takes a run of exactly this order.
    pub fn take(&mut self, order: Order) -> Option<UnitId> {
        self.list_mut(order).pop_front()
    }

    /// Takes a run of this order, or else the first part of the smallest larger one. Its other parts stay.
    pub fn take_splitting(&mut self, order: Order) -> Option<UnitId> {
        let mut larger = (order.exponent()..=MAX_ORDER).filter_map(Order::new);
        let found = larger.find(|&larger| self.nr_runs(larger) > 0)?;
        let first = self.take(found)?;
        for rest in (order.exponent()..found.exponent()).filter_map(Order::new) {
            self.give_back(Units { first: first.plus(rest.nr_pages()), order: rest });
        }
        Some(first)
    }

    /// Takes out every run for which `goes` returns true, and calls `each` with it.
    pub fn drain(&mut self, goes: impl Fn(Units) -> bool, mut each: impl FnMut(Units)) {
        for (k, list) in (0..).zip(&mut self.lists) {
            let order = Order::new(k).expect("there is a list for each order");
            list.retain(|&first| {
                let run = Units { first, order };
                let leaves = goes(run);
                if leaves {
                    each(run);
                }
                !leaves
            });
        }
    }

    fn check_room(&self, run: Units) {
        assert!(self.nr_units() + run.nr_units() <= self.capacity, "more is isolated than there is room for");
    }

    fn list_mut(&mut self, order: Order) -> &mut VecDeque<UnitId> {
        &mut self.lists[usize::from(order.exponent())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u32, k: u8) -> Units {
        Units { first: UnitId::new(first), order: Order::new(k).unwrap() }
    }

    fn nr_runs(isolated: &Isolated) -> [usize; NR_ORDERS] {
        std::array::from_fn(|k| isolated.nr_runs(Order::new(k as u8).unwrap()))
    }

    #[test]
    fn a_larger_run_is_split_and_its_rest_kept_by_order() {
        let mut isolated = Isolated::with_capacity(64);
        isolated.add(run(32, 5));
        assert_eq!(isolated.take(Order::PAGE), None);
        assert_eq!(isolated.take_splitting(Order::new(2).unwrap()), Some(UnitId::new(32)));
        assert_eq!((nr_runs(&isolated), isolated.nr_units()), ([0, 0, 1, 1, 1, 0, 0, 0, 0, 0], 28));
        // The smallest sufficient run, and no smaller one.
        assert_eq!(isolated.take_splitting(Order::new(2).unwrap()), Some(UnitId::new(36)));
        assert_eq!(isolated.take_splitting(Order::new(5).unwrap()), None);
        assert_eq!(isolated.take_splitting(Order::new(4).unwrap()), Some(UnitId::new(48)));
        assert_eq!((nr_runs(&isolated), isolated.nr_units()), ([0, 0, 0, 1, 0, 0, 0, 0, 0, 0], 8));
    }

    #[test]
    fn what_came_first_goes_first_and_what_was_not_used_goes_next() {
        let mut isolated = Isolated::with_capacity(4);
        [run(9, 0), run(5, 0), run(3, 0)].into_iter().for_each(|run| isolated.add(run));
        let first = isolated.take(Order::PAGE).unwrap();
        assert_eq!(first, UnitId::new(9));
        isolated.give_back(run(9, 0));
        let order: Vec<_> = std::iter::from_fn(|| isolated.take(Order::PAGE)).map(UnitId::get).collect();
        assert_eq!(order, [9, 5, 3]);
    }

    #[test]
    fn what_is_drained_is_gone() {
        let mut isolated = Isolated::with_capacity(16);
        [run(0, 0), run(2, 1), run(8, 3)].into_iter().for_each(|run| isolated.add(run));
        let mut drained = Vec::new();
        isolated.drain(|run| run.first.get() < 8, |run| drained.push(run));
        assert_eq!((drained, isolated.nr_units()), (vec![run(0, 0), run(2, 1)], 8));
        assert_eq!(nr_runs(&isolated)[3], 1);
    }

    #[test]
    #[should_panic(expected = "than there is room for")]
    fn the_room_is_bounded() {
        let mut isolated = Isolated::with_capacity(4);
        isolated.add(run(0, 2));
        isolated.add(run(4, 0));
    }
}
