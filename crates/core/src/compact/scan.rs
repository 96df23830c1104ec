//! The two scanners, and a run of compaction.
//!
//! Invariants:
//! - no folio moves to its own block or a lower one, so compaction never refills a block that it emptied;
//! - when [`Compaction::run`] returns, every isolated run is occupied by a folio or free again;
//! - at most 2.5 blocks of units are isolated at a time, not counting the places planned for the folios of one block.
//!
//! **Locking.** None: see [`super::Space`] for what other threads may do meanwhile.

use super::deferral::Deferral;
use super::hints::{FULL, Hints, Round};
use super::isolated::Isolated;
use super::space::{Migrated, Mode, Move, Space, Units};
use super::{CompactCounters, Outcome, Report, Request, Stage};
use crate::id::{SpaceBlockId, UnitId};
use crate::order::Order;
use std::cmp::Reverse;
use std::ops::ControlFlow::{self, Break, Continue};

/// Compaction of one space, with its state between runs.
#[derive(Debug)]
pub struct Compaction {
    hints: Hints,
    deferral: Deferral,
    isolated: Isolated,
    /// The folios of the block that is being emptied, and their targets.
    batch: Vec<Units>,
    moves: Vec<Move>,
}

impl Compaction {
    /// Compaction of a space of this many blocks of this order. Allocates everything that runs need (24 KiB for blocks
    /// of 512 units, plus 2 bits per block), until the space outgrows that.
    pub fn new(nr_blocks: usize, block_order: Order) -> Compaction {
        let block_units = block_order.nr_pages();
        Compaction {
            hints: Hints::new(nr_blocks),
            deferral: Deferral::new(),
            isolated: Isolated::with_capacity(3 * block_units + block_units / 2),
            batch: Vec::with_capacity(block_units),
            moves: Vec::with_capacity(block_units),
        }
    }

    /// Compacts until a run of the wanted order is free, the scanners meet, or `stop` returns true. `stop` is called
    /// before each block, and before each folio where the space [allows that](Space::stops_within_blocks). After
    /// failures, requests for the order are skipped for a while.
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
        let first = scan.first_round();
        let mut outcome = scan.run(first);
        let mut counters = scan.counters;
        if let Some(order) = request.wanted {
            // Runs that were put back may have merged.
            if outcome != Outcome::Free && space.has_free(order) {
                outcome = Outcome::Free;
            }
            counters.compact_stall = 1;
            counters.compact_success = u64::from(outcome == Outcome::Free);
            counters.compact_fail = 1 - counters.compact_success;
            match outcome {
                Outcome::Free => self.deferral.succeeded(order),
                Outcome::Met if space.has_none(order) => self.deferral.failed(order),
                Outcome::Met | Outcome::Stopped | Outcome::Deferred => {}
            }
        }
        Report { outcome, counters }
    }
}

/// How often a busy folio is tried: most are busy only during a fault, and the other folios of the block take longer.
const PASSES: usize = 3;

/// Busy folios of a block that are retried; with more of them the block will be busy again anyway.
const BUSY_MAX: usize = 32;

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
    /// Lets the scanners meet repeatedly, each time admitting fuller blocks, until the whole space was scanned with all
    /// blocks admitted.
    fn run(&mut self, mut round: Round) -> Outcome {
        loop {
            let ended = self.until_they_meet(round.fullest);
            self.put_back_where(|_| true);
            let hints = &mut self.state.hints;
            if let Break(outcome) = ended {
                // The next run examines the blocks again where free units are left.
                hints.target_end = hints.target_end.max(self.highest.map_or(hints.target_end, SpaceBlockId::next));
                // After a success, the next run continues here with equally full blocks, and scans the whole space
                // before it gives up.
                let whole = round.whole && outcome == Outcome::Stopped;
                hints.unfinished = Some(Round { whole, ..round });
                return outcome;
            }
            hints.reset(self.space.nr_blocks());
            self.highest = None;
            if !round.whole {
                (round.whole, round.fullest) = (true, self.first_fullest());
            } else if round.fullest == FULL {
                return Outcome::Met;
            } else {
                round.fullest += 1;
            }
        }
    }

    /// The round to begin with: the last run's, if that was for the same order and unfinished, or a new one. If a whole
    /// block is wanted, any block will do, so the emptiest come first: they cost the least copying.
    fn first_round(&mut self) -> Round {
        let (hints, wanted) = (&mut self.state.hints, self.request.wanted);
        if wanted.is_none() || !hints.fit(self.space.nr_blocks()) {
            hints.reset(self.space.nr_blocks());
        }
        let unfinished = hints.unfinished.take().filter(|round| round.wanted == wanted);
        let (whole, fullest) = (hints.at_ends(), self.first_fullest());
        unfinished.unwrap_or(Round { wanted, whole, fullest })
    }

    fn first_fullest(&self) -> usize {
        if self.wants_a_block() { 1 } else { FULL }
    }

    /// Whether emptying a block is useless unless all its folios leave.
    fn wants_a_block(&self) -> bool {
        self.request.wanted == Some(self.space.block_order())
    }

    /// Whether one folio that stays makes the others stay. A sync run has already waited for each busy folio, so it
    /// keeps whatever it achieved.
    fn wants_all_of_a_block(&self) -> bool {
        self.wants_a_block() && self.request.mode == Mode::Async
    }

    /// The migrate scanner. Empties blocks that are occupied to at most `fullest` eighths.
    fn until_they_meet(&mut self, fullest: usize) -> ControlFlow<Outcome> {
        while self.state.hints.source < self.state.hints.target_end {
            if (self.stop)() {
                return Break(Outcome::Stopped);
            }
            let block = self.state.hints.source;
            if !self.state.hints.no_source.contains(block)
                && let Some(nr_occupied) = self.space.occupied(block)
                && nr_occupied * FULL <= self.space.block_order().nr_pages() * fullest
            {
                self.empty(block, nr_occupied)?;
            }
            self.state.hints.source = block.next();
        }
        Continue(())
    }

    /// Moves what can be moved out of a block.
    fn empty(&mut self, block: SpaceBlockId, nr_occupied: usize) -> ControlFlow<Outcome> {
        // The fast path may have isolated runs here, because it looks further down than the free scanner.
        let block_order = self.space.block_order();
        self.put_back_where(|run| run.first.block(block_order) <= block);

        let mut moves = std::mem::take(&mut self.state.moves);
        let mut ended = Continue(());
        let planned = self.plan(block, nr_occupied, &mut moves);
        if planned {
            self.space.prepare(&moves);
            ended = self.carry_out(block, &mut moves);
            moves.iter().for_each(|planned| self.forgo(planned));
            self.space.finish(block);
        } else {
            moves.iter().for_each(|planned| self.state.isolated.give_back(planned.place()));
            self.state.hints.no_source.insert(block);
        }
        moves.clear();
        self.state.moves = moves;
        if planned && ended.is_continue() && self.is_done() { Break(Outcome::Free) } else { ended }
    }

    /// Chooses the folios of a block to move and a place for each. `false`: there is none, or starting is useless.
    fn plan(&mut self, block: SpaceBlockId, nr_occupied: usize, moves: &mut Vec<Move>) -> bool {
        let mut batch = std::mem::take(&mut self.state.batch);
        let wanted = self.request.wanted;
        self.space.movable(block, &mut |folio| {
            // A folio as large as the wanted run would need one to move to.
            if wanted.is_none_or(|order| folio.order < order) {
                batch.push(folio);
            }
        });
        self.counters.compact_migrate_scanned += self.space.block_order().nr_pages() as u64;
        if self.request.stage == Stage::Split {
            self.split_all(&mut batch);
        }
        let mut nr_left = batch.iter().map(|folio| folio.nr_units()).sum::<usize>();
        let all_or_none = self.wants_all_of_a_block();
        let mut goes = !all_or_none || nr_left >= nr_occupied;
        if goes {
            self.counters.compact_isolated += nr_left as u64;
            // The largest first: they need whole runs.
            batch.sort_unstable_by_key(|folio| (Reverse(folio.order), folio.first));
            for &folio in &batch {
                match self.place_for(folio, nr_left) {
                    Some(to) => moves.push(Move { folio, to }),
                    None if all_or_none => {
                        goes = false;
                        break;
                    }
                    None => {}
                }
                nr_left -= folio.nr_units();
            }
        }
        batch.clear();
        self.state.batch = batch;
        moves.reverse(); // made from the end, largest first: if one stays, no smaller one was copied for nothing
        goes && !moves.is_empty()
    }

    /// Splits folios into single units; drops those that cannot be split.
    fn split_all(&mut self, batch: &mut Vec<Units>) {
        for at in (0..batch.len()).rev() {
            if batch[at].order == Order::PAGE {
                continue;
            }
            let folio = batch.swap_remove(at);
            if self.space.split(folio) {
                let units = (0..folio.nr_units()).map(|at| folio.first.plus(at));
                batch.extend(units.map(|first| Units { first, order: Order::PAGE }));
            } else {
                self.counters.pgmigrate_fail += folio.nr_units() as u64;
            }
        }
    }

    /// Moves the folios of a block to their prepared places, and retries busy ones after the others. Leaves in `moves`
    /// those that were not made.
    fn carry_out(&mut self, block: SpaceBlockId, moves: &mut Vec<Move>) -> ControlFlow<Outcome> {
        let mut any_left_it = false;
        for pass in 1..=PASSES {
            let mut nr_busy = 0;
            for at in (0..moves.len()).rev() {
                if self.space.stops_within_blocks() && (self.stop)() {
                    return Break(Outcome::Stopped);
                }
                let planned = moves[at];
                let nr_units = planned.folio.nr_units() as u64;
                match self.space.migrate(planned.folio, planned.to, self.request.mode) {
                    Migrated::Moved => {
                        self.counters.pgmigrate_success += nr_units;
                        moves.swap_remove(at);
                        any_left_it = true;
                    }
                    Migrated::Gone => {
                        self.counters.pgmigrate_fail += nr_units;
                        self.forgo(&moves.swap_remove(at));
                        any_left_it = true;
                    }
                    Migrated::Busy if pass < PASSES && nr_busy < BUSY_MAX => {
                        nr_busy += 1;
                        continue;
                    }
                    failed => {
                        if failed == Migrated::Busy {
                            self.counters.pgmigrate_fail += nr_units;
                        }
                        if self.wants_all_of_a_block() {
                            self.state.hints.no_source.insert(block);
                            return Continue(());
                        }
                        self.forgo(&moves.swap_remove(at));
                        continue;
                    }
                }
                if self.is_done() {
                    return Break(Outcome::Free);
                }
            }
        }
        if !any_left_it {
            self.state.hints.no_source.insert(block);
        }
        Continue(())
    }

    /// Cancels a planned move.
    fn forgo(&mut self, planned: &Move) {
        self.space.forgo(planned.place());
        self.state.isolated.give_back(planned.place());
    }

    /// Whether the wanted run is free.
    fn is_done(&self) -> bool {
        self.request.wanted.is_some_and(|order| self.space.has_free(order))
    }

    /// An isolated run for a folio; isolates more, once, if there is none.
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

    /// The free scanner. Isolates about what the block still needs, and at least what this folio needs.
    fn isolate_more(&mut self, folio: Units, nr_left: usize) {
        let at_most = 2 * self.space.block_order().nr_pages();
        if self.state.isolated.nr_units() + folio.nr_units() > at_most {
            // They did not fit this folio, and leave no room for runs that might.
            self.put_back_where(|_| true);
        }
        let largest = match self.request.stage {
            Stage::Whole => folio.order,
            Stage::Split | Stage::WholeSplitting => self.space.block_order(),
        };
        // Not right above the migrate scanner, where blocks will be emptied soon.
        if let Some(run) = self.space.isolate_listed(folio.order, largest, self.state.hints.middle()) {
            self.counters.compact_free_scanned += run.nr_units() as u64;
            self.counters.compact_isolated += run.nr_units() as u64;
            self.state.isolated.add(run);
            return;
        }
        let goal = (self.state.isolated.nr_units() + folio.nr_units()).max(nr_left).min(at_most);
        while self.state.isolated.nr_units() < goal
            && let Some(block) = self.state.hints.next_target(self.state.hints.source)
        {
            if self.state.hints.no_target.contains(block) || self.isolate_in(block, goal) {
                self.state.hints.target_end = block;
            }
        }
    }

    /// Isolates runs of a block until `goal` units are isolated in all. Returns whether the free scanner is done with
    /// the block.
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

    /// Puts isolated runs back into the space.
    fn put_back_where(&mut self, goes: impl Fn(Units) -> bool) {
        let (space, block_order, highest) = (self.space, self.space.block_order(), &mut self.highest);
        self.state.isolated.drain(goes, |run| {
            space.put_back(run);
            *highest = (*highest).max(Some(run.first.block(block_order)));
        });
    }
}
