//! The two scanners, and a run of them.
//!
//! Invariants:
//! - no folio moves to its own block or a lower one, so what was emptied stays empty of what compaction moves;
//! - every isolated run is a folio's place or free again when [`Compaction::run`] returns;
//! - at most two blocks' worth of units and a half is isolated at a time.
//!
//! **Locking.** None: see [`super::Space`] for what others may do meanwhile.

use super::deferral::Deferral;
use super::hints::Hints;
use super::isolated::Isolated;
use super::space::{Migrated, Mode, Space, Units};
use super::{CompactCounters, Outcome, Report, Request, Stage};
use crate::id::{SpaceBlockId, UnitId};
use crate::order::Order;
use std::cmp::Reverse;
use std::ops::ControlFlow::{self, Break, Continue};

/// Compaction of one space: what is remembered between its runs.
#[derive(Debug)]
pub struct Compaction {
    hints: Hints,
    deferral: Deferral,
    isolated: Isolated,
    /// The folios of the block that is being emptied.
    batch: Vec<Units>,
}

impl Compaction {
    /// Compaction of a space whose blocks have this order. Allocates what runs need (24 KiB for blocks of 512 units); they
    /// allocate only 2 bits for each block when the space has grown.
    pub fn new(block_order: Order) -> Compaction {
        let block_units = block_order.nr_pages();
        Compaction {
            hints: Hints::new(),
            deferral: Deferral::new(),
            isolated: Isolated::with_capacity(2 * block_units + block_units / 2),
            batch: Vec::with_capacity(block_units),
        }
    }

    /// Compacts until a run of the wanted order is free, the scanners meet, or `stop` says so, which is asked before each
    /// folio and each block. A run that begins in the middle of the space goes round once.
    pub fn run<S: Space>(&mut self, space: &S, request: Request, stop: &mut dyn FnMut() -> bool) -> Report {
        let counters = CompactCounters::default();
        if let Some(order) = request.wanted {
            if space.has_free(order) {
                return Report { outcome: Outcome::Free, counters };
            }
            if self.deferral.defers(order) {
                return Report { outcome: Outcome::Deferred, counters };
            }
        }
        let mut scan = Scan { state: self, space, request, stop, counters, highest: None };
        let mut outcome = scan.run();
        let mut counters = scan.counters;
        if let Some(order) = request.wanted {
            // What was put back may have joined.
            if outcome != Outcome::Free && space.has_free(order) {
                outcome = Outcome::Free;
            }
            counters.compact_stall = 1;
            counters.compact_success = u64::from(outcome == Outcome::Free);
            counters.compact_fail = 1 - counters.compact_success;
            match outcome {
                Outcome::Free => self.deferral.succeeded(order),
                Outcome::Met => self.deferral.failed(order),
                Outcome::Stopped | Outcome::Deferred => {}
            }
        }
        Report { outcome, counters }
    }
}

/// One run.
struct Scan<'a, S> {
    state: &'a mut Compaction,
    space: &'a S,
    request: Request,
    stop: &'a mut dyn FnMut() -> bool,
    counters: CompactCounters,
    /// The highest block to which an isolated run went back unused.
    highest: Option<SpaceBlockId>,
}

impl<S: Space> Scan<'_, S> {
    fn run(&mut self) -> Outcome {
        let nr_blocks = self.space.nr_blocks();
        if self.request.wanted.is_none() || !self.state.hints.fit(nr_blocks) {
            self.state.hints.reset(nr_blocks);
        }
        loop {
            let whole_space = self.state.hints.at_ends();
            let ended = self.until_they_meet();
            self.put_back_where(|_| true);
            match ended {
                Break(outcome) => {
                    // The next run looks again where free units are left.
                    let hints = &mut self.state.hints;
                    hints.target_end = hints.target_end.max(self.highest.map_or(hints.target_end, SpaceBlockId::next));
                    return outcome;
                }
                Continue(()) => {
                    self.state.hints.reset(nr_blocks);
                    self.highest = None;
                }
            }
            if whole_space {
                return Outcome::Met;
            }
        }
    }

    /// The migrate scanner.
    fn until_they_meet(&mut self) -> ControlFlow<Outcome> {
        while self.state.hints.source < self.state.hints.target_end {
            if (self.stop)() {
                return Break(Outcome::Stopped);
            }
            let block = self.state.hints.source;
            if !self.state.hints.no_source.contains(block)
                && let Some(nr_occupied) = self.space.occupied(block)
            {
                self.empty(block, nr_occupied)?;
            }
            self.state.hints.source = block.next();
        }
        Continue(())
    }

    /// Moves what can be moved out of a block.
    fn empty(&mut self, block: SpaceBlockId, nr_occupied: usize) -> ControlFlow<Outcome> {
        // The fast path may have found some here: it looks further down than the free scanner.
        let block_order = self.space.block_order();
        self.put_back_where(|run| run.first.block(block_order) <= block);

        let mut batch = std::mem::take(&mut self.state.batch);
        let wanted = self.request.wanted;
        self.space.movable(block, &mut |folio| {
            // What is as large as the wanted run would need one to go to.
            if wanted.is_none_or(|order| folio.order < order) {
                batch.push(folio);
            }
        });
        self.counters.compact_migrate_scanned += block_order.nr_pages() as u64;
        let ended = self.move_all(block, &mut batch, nr_occupied);
        batch.clear();
        self.state.batch = batch;
        ended
    }

    fn move_all(&mut self, block: SpaceBlockId, batch: &mut [Units], nr_occupied: usize) -> ControlFlow<Outcome> {
        let mut nr_left = batch.iter().map(|folio| folio.nr_units()).sum::<usize>();
        let all_or_none = self.wants_all_of_a_block();
        if all_or_none && nr_left < nr_occupied {
            self.state.hints.no_source.insert(block);
            return Continue(());
        }
        self.counters.compact_isolated += nr_left as u64;
        // The largest first: they find a place while runs are whole, and if not, nothing was copied in vain.
        batch.sort_unstable_by_key(|folio| (Reverse(folio.order), folio.first));
        let mut nr_emptied = 0;
        for &folio in &*batch {
            if (self.stop)() {
                return Break(Outcome::Stopped);
            }
            if self.clear(folio, nr_left) {
                nr_emptied += 1;
                if self.request.wanted.is_some_and(|order| self.space.has_free(order)) {
                    return Break(Outcome::Free);
                }
            } else if all_or_none {
                nr_emptied = 0;
                break;
            }
            nr_left -= folio.nr_units();
        }
        if nr_emptied == 0 {
            self.state.hints.no_source.insert(block);
        }
        Continue(())
    }

    /// Whether a block of which one folio stays is of no use, so that the others should stay as well. Who waits for busy
    /// folios has done all that can be done for each, and takes what comes of it.
    fn wants_all_of_a_block(&self) -> bool {
        self.request.mode == Mode::Async && self.request.wanted == Some(self.space.block_order())
    }

    /// Says whether a folio no longer is where it was. `nr_left` units of its block, its own among them, are still to go.
    fn clear(&mut self, folio: Units, nr_left: usize) -> bool {
        if self.request.stage != Stage::Split || folio.order == Order::PAGE {
            return self.move_one(folio, nr_left);
        }
        if !self.space.split(folio) {
            self.counters.pgmigrate_fail += folio.nr_units() as u64;
            return false;
        }
        let mut all = true;
        for at in 0..folio.nr_units() {
            all &= self.move_one(Units { first: folio.first.plus(at), order: Order::PAGE }, nr_left - at);
            if !all && self.wants_all_of_a_block() {
                break;
            }
        }
        all
    }

    fn move_one(&mut self, folio: Units, nr_left: usize) -> bool {
        let Some(to) = self.place_for(folio, nr_left) else { return false };
        let migrated = self.space.migrate(folio, to, self.request.mode);
        let nr_units = folio.nr_units() as u64;
        match migrated {
            Migrated::Moved => {
                self.counters.pgmigrate_success += nr_units;
                return true;
            }
            Migrated::Busy | Migrated::Gone => self.counters.pgmigrate_fail += nr_units,
            Migrated::Unsuited => {}
        }
        self.state.isolated.give_back(Units { first: to, order: folio.order });
        migrated == Migrated::Gone
    }

    /// A run for a folio, from those that are isolated; if there is none, more are isolated, once.
    fn place_for(&mut self, folio: Units, nr_left: usize) -> Option<UnitId> {
        self.take(folio.order).or_else(|| {
            self.isolate_more(folio, nr_left);
            self.take(folio.order)
        })
    }

    fn take(&mut self, order: Order) -> Option<UnitId> {
        match self.request.stage {
            Stage::Whole => self.state.isolated.take(order),
            Stage::Split | Stage::WholeSplitting => self.state.isolated.take_splitting(order),
        }
    }

    /// The free scanner. Isolates about as much as the block still needs, and at least what this folio needs.
    fn isolate_more(&mut self, folio: Units, nr_left: usize) {
        let most = match self.request.stage {
            Stage::Whole => folio.order,
            Stage::Split | Stage::WholeSplitting => self.space.block_order(),
        };
        // Not right behind the migrate scanner, where blocks are next to be emptied themselves.
        if let Some(run) = self.space.isolate_listed(folio.order, most, self.state.hints.middle()) {
            self.counters.compact_free_scanned += run.nr_units() as u64;
            self.counters.compact_isolated += run.nr_units() as u64;
            self.state.isolated.add(run);
            return;
        }
        let scanned_at_most = 2 * self.space.block_order().nr_pages();
        if self.state.isolated.nr_units() + folio.nr_units() > scanned_at_most {
            // They did not help this folio, and leave no room for what might.
            self.put_back_where(|run| run.order < folio.order);
        }
        let goal = (self.state.isolated.nr_units() + folio.nr_units()).max(nr_left).min(scanned_at_most);
        while self.state.isolated.nr_units() < goal
            && let Some(block) = self.state.hints.next_target(self.state.hints.source)
        {
            if self.state.hints.no_target.contains(block) || self.isolate_in(block, goal) {
                self.state.hints.target_end = block;
            }
        }
    }

    /// Isolates runs of a block up to a number of units in all. Says whether the free scanner is through with the block.
    fn isolate_in(&mut self, block: SpaceBlockId, goal: usize) -> bool {
        let isolated = &mut self.state.isolated;
        let before = isolated.nr_units();
        let nr_scanned = self.space.isolate(block, goal - before, &mut |run| isolated.add(run));
        let nr_new = isolated.nr_units() - before;
        self.counters.compact_free_scanned += nr_scanned as u64;
        self.counters.compact_isolated += nr_new as u64;
        if nr_new == 0 {
            self.state.hints.no_target.insert(block);
        }
        before + nr_new < goal
    }

    /// Gives isolated runs back to the space.
    fn put_back_where(&mut self, goes: impl Fn(Units) -> bool) {
        let (space, block_order, highest) = (self.space, self.space.block_order(), &mut self.highest);
        self.state.isolated.drain(goes, |run| {
            space.put_back(run);
            *highest = (*highest).max(Some(run.first.block(block_order)));
        });
    }
}
