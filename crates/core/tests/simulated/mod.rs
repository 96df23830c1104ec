//! A simulated space of small blocks that stores each unit's state and content separately, and the tests' random
//! numbers.
//!
//! It scans every unit for every query, so that it is obviously correct. It behaves like a space under load: folios are
//! busy, pinned or gone when they are to be moved, and units are taken and freed between any two calls.
#![allow(dead_code, reason = "each test file uses a part of this")]

use fastrand::Rng;
use folioswap_core::compact::{Migrated, Mode, Space, Units};
use folioswap_core::{Order, SpaceBlockId, UnitId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

pub fn order(k: usize) -> Order {
    Order::new(k as u8).unwrap()
}

pub fn units(first: usize, k: usize) -> Units {
    Units { first: UnitId::from_index(first), order: order(k) }
}

/// True once in `bound` times; never for 0.
pub fn one_in(random: &mut Rng, bound: usize) -> bool {
    bound > 0 && random.usize(..bound) == 0
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Unit {
    Free,
    /// Content that no other unit has.
    Occupied(u64),
    Isolated,
}

#[derive(Clone, Debug)]
struct Folio {
    order: Order,
    pinned: bool,
    content: Vec<u64>,
}

struct State {
    all: Vec<Unit>,
    folios: BTreeMap<usize, Folio>,
    next_content: u64,
    random: Rng,
}

/// How often something goes wrong: one time in this many; never when 0.
#[derive(Copy, Clone, Default)]
pub struct Trouble {
    /// A folio is busy.
    pub busy: usize,
    /// A folio is freed right before it is to move.
    pub gone: usize,
    /// Another thread takes or frees a folio between two calls.
    pub others: usize,
}

pub struct Simulated {
    block_order: Order,
    state: RefCell<State>,
    pub trouble: Cell<Trouble>,
    /// The scan of blocks finds nothing; only the fast path does.
    pub only_listed: Cell<bool>,
    /// The fast path finds nothing.
    pub only_scanned: Cell<bool>,
    pub nr_copied: Cell<usize>,
}

impl Simulated {
    pub fn new(nr_blocks: usize, block_order: Order, seed: u64) -> Simulated {
        let state = State {
            all: vec![Unit::Free; nr_blocks * block_order.nr_pages()],
            folios: BTreeMap::new(),
            next_content: 0,
            random: crate::seeded::rng(seed),
        };
        Simulated {
            block_order,
            state: RefCell::new(state),
            trouble: Cell::default(),
            only_listed: Cell::new(false),
            only_scanned: Cell::new(false),
            nr_copied: Cell::new(0),
        }
    }

    /// Puts a folio on free units.
    pub fn put(&self, at: Units, pinned: bool) {
        let state = &mut *self.state.borrow_mut();
        let range = at.first.index()..at.first.index() + at.nr_units();
        assert!(state.all[range.clone()].iter().all(|&unit| unit == Unit::Free), "{at:?} is not free");
        let content: Vec<_> = (state.next_content..).take(at.nr_units()).collect();
        state.next_content += at.nr_units() as u64;
        for (index, &content) in range.zip(&content) {
            state.all[index] = Unit::Occupied(content);
        }
        state.folios.insert(at.first.index(), Folio { order: at.order, pinned, content });
    }

    /// Frees the folio that begins here.
    pub fn free(&self, first: usize) {
        let state = &mut *self.state.borrow_mut();
        let folio = state.folios.remove(&first).unwrap();
        state.all[first..first + folio.order.nr_pages()].fill(Unit::Free);
    }

    /// Puts a folio of this order in a random free place, if there is one.
    pub fn put_somewhere(&self, k: usize, pinned: bool) -> bool {
        let places: Vec<_> = (0..self.len()).step_by(1 << k).filter(|&at| self.is_free(units(at, k))).collect();
        if places.is_empty() {
            return false;
        }
        let at = places[self.below(places.len())];
        self.put(units(at, k), pinned);
        true
    }

    /// Fills the space with folios of these orders, then frees each with a chance of one half.
    pub fn scatter(&self, orders: &[usize], pinned_one_in: usize) {
        let mut misses = 0;
        while misses < 8 {
            let k = orders[self.below(orders.len())];
            let pinned = one_in(&mut self.state.borrow_mut().random, pinned_one_in);
            misses += usize::from(!self.put_somewhere(k, pinned));
        }
        let firsts: Vec<_> = self.state.borrow().folios.keys().copied().collect();
        for first in firsts {
            if self.below(2) == 0 {
                self.free(first);
            }
        }
    }

    pub fn below(&self, bound: usize) -> usize {
        self.state.borrow_mut().random.usize(..bound)
    }

    pub fn len(&self) -> usize {
        self.state.borrow().all.len()
    }

    pub fn nr_isolated(&self) -> usize {
        self.state.borrow().all.iter().filter(|&&unit| unit == Unit::Isolated).count()
    }

    pub fn nr_occupied(&self) -> usize {
        self.state.borrow().folios.values().map(|folio| folio.order.nr_pages()).sum()
    }

    pub fn nr_free_blocks(&self) -> usize {
        (0..self.len()).step_by(self.block_order.nr_pages()).filter(|&at| self.is_free(self.block_at(at))).count()
    }

    pub fn firsts(&self) -> Vec<usize> {
        self.state.borrow().folios.keys().copied().collect()
    }

    /// Checks that every occupied unit belongs to one folio, and that each folio has its content.
    pub fn verify(&self) {
        let state = self.state.borrow();
        let mut nr_occupied = 0;
        for (&first, folio) in &state.folios {
            for (at, &content) in (first..).zip(&folio.content) {
                assert_eq!(state.all[at], Unit::Occupied(content), "unit {at} of the folio at {first}");
            }
            nr_occupied += folio.content.len();
        }
        let occupied = state.all.iter().filter(|unit| matches!(unit, Unit::Occupied(_))).count();
        assert_eq!(occupied, nr_occupied, "a unit is occupied by nobody");
    }

    fn block_at(&self, at: usize) -> Units {
        Units { first: UnitId::from_index(at), order: self.block_order }
    }

    fn is_free(&self, at: Units) -> bool {
        self.state.borrow().all[at.first.index()..][..at.nr_units()].iter().all(|&unit| unit == Unit::Free)
    }

    /// The largest free runs of a block that is not wholly free.
    fn runs(&self, block: SpaceBlockId) -> Vec<Units> {
        let mut found = Vec::new();
        let first = block.first_unit(self.block_order).index();
        if !self.is_free(self.block_at(first)) {
            self.runs_within(first, usize::from(self.block_order.exponent()), &mut found);
        }
        found
    }

    fn runs_within(&self, first: usize, k: usize, found: &mut Vec<Units>) {
        if self.is_free(units(first, k)) {
            found.push(units(first, k));
        } else if k > 0 {
            self.runs_within(first, k - 1, found);
            self.runs_within(first + (1 << (k - 1)), k - 1, found);
        }
    }

    fn isolate_run(&self, run: Units) {
        assert!(self.is_free(run));
        self.state.borrow_mut().all[run.first.index()..][..run.nr_units()].fill(Unit::Isolated);
    }

    /// Simulates other threads.
    fn meddle(&self) {
        let others = self.trouble.get().others;
        if !one_in(&mut self.state.borrow_mut().random, others) {
            return;
        }
        let firsts = self.firsts();
        if self.below(2) == 0 && !firsts.is_empty() {
            self.free(firsts[self.below(firsts.len())]);
        } else {
            self.put_somewhere(self.below(usize::from(self.block_order.exponent())), false);
        }
    }
}

impl Space for Simulated {
    fn block_order(&self) -> Order {
        self.block_order
    }

    fn nr_blocks(&self) -> usize {
        self.len() / self.block_order.nr_pages()
    }

    fn has_free(&self, order: Order) -> bool {
        self.meddle();
        let k = usize::from(order.exponent());
        (0..self.len()).step_by(1 << k).any(|at| self.is_free(units(at, k)))
    }

    fn occupied(&self, block: SpaceBlockId) -> Option<usize> {
        self.meddle();
        let first = block.first_unit(self.block_order).index();
        let state = self.state.borrow();
        if state.folios.get(&first).is_some_and(|folio| folio.order == self.block_order) {
            return None;
        }
        let units = &state.all[first..first + self.block_order.nr_pages()];
        Some(units.iter().filter(|unit| matches!(unit, Unit::Occupied(_))).count()).filter(|&nr| nr > 0)
    }

    fn movable(&self, block: SpaceBlockId, each: &mut dyn FnMut(Units)) {
        let first = block.first_unit(self.block_order).index();
        for (&at, folio) in self.state.borrow().folios.range(first..first + self.block_order.nr_pages()) {
            each(units(at, usize::from(folio.order.exponent())));
        }
    }

    fn isolate(&self, block: SpaceBlockId, enough: usize, each: &mut dyn FnMut(Units)) -> usize {
        self.meddle();
        let mut nr_units = 0;
        let runs = if self.only_listed.get() { Vec::new() } else { self.runs(block) };
        for run in runs {
            if nr_units >= enough {
                return run.first.index() - block.first_unit(self.block_order).index();
            }
            self.isolate_run(run);
            nr_units += run.nr_units();
            each(run);
        }
        self.block_order.nr_pages()
    }

    fn isolate_listed(&self, least: Order, most: Order, from: SpaceBlockId) -> Option<Units> {
        self.meddle();
        if self.only_scanned.get() {
            return None;
        }
        let blocks = (from.index()..self.nr_blocks()).map(SpaceBlockId::from_index);
        let runs = blocks.flat_map(|block| self.runs(block));
        let run = runs.filter(|run| (least..=most).contains(&run.order)).min_by_key(|run| run.order)?;
        self.isolate_run(run);
        Some(run)
    }

    fn put_back(&self, run: Units) {
        let units = &mut self.state.borrow_mut().all[run.first.index()..][..run.nr_units()];
        assert!(units.iter().all(|&unit| unit == Unit::Isolated), "{run:?} is put back");
        units.fill(Unit::Free);
    }

    fn migrate(&self, at: Units, to: UnitId, _mode: Mode) -> Migrated {
        self.meddle();
        let Trouble { busy, gone, .. } = self.trouble.get();
        let first = at.first.index();
        let is_here = self.state.borrow().folios.get(&first).is_some_and(|folio| folio.order == at.order);
        if is_here && one_in(&mut self.state.borrow_mut().random, gone) {
            self.free(first);
            return Migrated::Gone;
        }
        if !is_here {
            return Migrated::Gone;
        }
        let state = &mut *self.state.borrow_mut();
        if state.folios[&first].pinned {
            return Migrated::Unsuited;
        }
        if one_in(&mut state.random, busy) {
            return Migrated::Busy;
        }
        let target = to.index()..to.index() + at.nr_units();
        assert!(state.all[target.clone()].iter().all(|&unit| unit == Unit::Isolated), "{at:?} moves to {to:?}");
        assert!(to.index().is_multiple_of(at.nr_units()), "{at:?} moves to {to:?}");
        assert!(to.block(self.block_order) > at.first.block(self.block_order), "{at:?} moves down to {to:?}");
        state.all.copy_within(first..first + at.nr_units(), to.index());
        state.all[first..first + at.nr_units()].fill(Unit::Free);
        let folio = state.folios.remove(&first).unwrap();
        state.folios.insert(to.index(), folio);
        self.nr_copied.set(self.nr_copied.get() + at.nr_units());
        Migrated::Moved
    }

    fn split(&self, at: Units) -> bool {
        let state = &mut *self.state.borrow_mut();
        let first = at.first.index();
        let Some(folio) = state.folios.get(&first).filter(|folio| folio.order == at.order && !folio.pinned).cloned()
        else {
            return false;
        };
        for (at, content) in (first..).zip(folio.content) {
            state.folios.insert(at, Folio { order: Order::PAGE, pinned: false, content: vec![content] });
        }
        true
    }
}
