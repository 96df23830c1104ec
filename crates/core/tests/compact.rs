//! Compaction of a simulated space: what each path does, and that nothing is lost whatever happens. A failure prints
//! its seed.
#![cfg(not(loom))]

mod seeded;
mod simulated;

use folioswap_core::Order;
use folioswap_core::compact::{CompactCounters, Compaction, Mode, Outcome, Report, Request, Space, Stage};
use seeded::Seed;
use simulated::{Simulated, Trouble, order, units};

const BLOCK: usize = 16;
const BLOCK_ORDER: Order = Order::new(4).unwrap();
const STAGES: [Stage; 3] = [Stage::Split, Stage::Whole, Stage::WholeSplitting];

fn whole_block(stage: Stage) -> Request {
    Request { wanted: Some(BLOCK_ORDER), mode: Mode::Async, stage }
}

fn everything(stage: Stage) -> Request {
    Request { wanted: None, mode: Mode::Sync, stage }
}

fn compact(space: &Simulated, request: Request) -> Report {
    Compaction::new(space.nr_blocks(), BLOCK_ORDER).run(space, request, &mut || false)
}

/// Two blocks: the first holds the folio to be moved, the second provides free runs for it.
fn two_blocks() -> Simulated {
    Simulated::new(2, BLOCK_ORDER, 0)
}

#[test]
fn folios_move_from_the_low_end_to_the_high_end() {
    let space = Simulated::new(3, BLOCK_ORDER, 0);
    for block in 0..3 {
        space.put(units(block * BLOCK, 2), false);
        space.put(units(block * BLOCK + 8, 0), false);
    }
    let report = compact(&space, everything(Stage::WholeSplitting));
    assert_eq!((report.outcome, space.nr_free_blocks()), (Outcome::Met, 2));
    assert!(space.firsts().iter().all(|&first| first >= 2 * BLOCK), "{:?}", space.firsts());
    let counters = report.counters;
    assert_eq!((counters.pgmigrate_success, counters.pgmigrate_fail), (10, 0));
    assert_eq!((counters.compact_stall, counters.compact_success, counters.compact_fail), (0, 0, 0));
    space.verify();
}

#[test]
fn a_larger_run_is_split_where_none_has_the_order_of_the_folio() {
    for (stage, outcome) in [(Stage::Whole, Outcome::Met), (Stage::WholeSplitting, Outcome::Free)] {
        let space = two_blocks();
        space.put(units(0, 1), false);
        space.put(units(BLOCK, 3), false);
        let report = compact(&space, whole_block(stage));
        assert_eq!((report.outcome, space.nr_free_blocks()), (outcome, usize::from(outcome == Outcome::Free)));
        assert_eq!(report.counters.pgmigrate_success > 0, outcome == Outcome::Free, "{stage:?}");
        assert_eq!(space.nr_isolated(), 0);
        space.verify();
    }
}

/// Guards against a separate count of isolated units that the fast path does not update: such a count would stay zero
/// here, and nothing would be moved.
#[test]
fn what_only_the_fast_path_supplies_is_used() {
    for stage in STAGES {
        let space = Simulated::new(4, BLOCK_ORDER, 1);
        space.only_listed.set(true);
        for at in [0, 2, 5, 8] {
            space.put(units(at, 0), false);
        }
        for block in 1..4 {
            // Free runs of order 0 between them, and larger runs behind them.
            for at in [0, 2, 4, 6, 8] {
                space.put(units(block * BLOCK + at, 0), false);
            }
        }
        let mut compaction = Compaction::new(space.nr_blocks(), BLOCK_ORDER);
        let report = compaction.run(&space, whole_block(stage), &mut || false);
        assert_eq!((report.outcome, report.counters.pgmigrate_success), (Outcome::Free, 4), "{stage:?}");
        assert_eq!(space.nr_isolated(), 0);
        space.verify();
    }
}

#[test]
fn a_pinned_folio_spoils_its_block_and_the_others_stay() {
    let space = Simulated::new(4, BLOCK_ORDER, 0);
    space.put(units(0, 1), true);
    space.put(units(8, 0), false);
    for block in 1..4 {
        space.put(units(block * BLOCK, 2), false);
    }
    let mut compaction = Compaction::new(space.nr_blocks(), BLOCK_ORDER);
    let report = compaction.run(&space, whole_block(Stage::WholeSplitting), &mut || false);
    assert_eq!((report.outcome, report.counters.pgmigrate_fail), (Outcome::Free, 0), "it was never tried");
    assert!(space.firsts().contains(&8), "nothing is copied out of a block that stays in use");
    assert_eq!(report.counters.pgmigrate_success, 4);
    // A request for the whole space moves what can be moved.
    compaction.run(&space, everything(Stage::WholeSplitting), &mut || false);
    assert!(!space.firsts().contains(&8));
    space.verify();
}

#[test]
fn of_two_blocks_the_emptier_one_is_emptied() {
    let space = Simulated::new(3, BLOCK_ORDER, 0);
    space.put(units(0, 3), false);
    for block in 1..3 {
        space.put(units(block * BLOCK, 1), false);
        space.put(units(block * BLOCK + 8, block), false);
    }
    let report = compact(&space, whole_block(Stage::WholeSplitting));
    assert_eq!((report.outcome, report.counters.pgmigrate_success), (Outcome::Free, 4));
    assert!(space.firsts().contains(&0));
}

#[test]
fn folios_of_the_wanted_order_stay() {
    let space = two_blocks();
    space.put(units(0, 2), false);
    space.put(units(4, 1), false);
    space.put(units(8, 3), false);
    for at in [0, 4, 8, 12] {
        space.put(units(BLOCK + at, 1), false);
    }
    let wanted = Request { wanted: Some(order(2)), mode: Mode::Async, stage: Stage::WholeSplitting };
    let report = compact(&space, wanted);
    assert_eq!((report.outcome, report.counters.pgmigrate_success), (Outcome::Free, 2));
    assert!([0, 8].iter().all(|first| space.firsts().contains(first)));
    space.verify();
}

#[test]
fn failures_put_off_the_next_runs_and_success_ends_that() {
    let space = two_blocks();
    space.put(units(0, 0), true);
    space.put(units(BLOCK, 0), true);
    let mut compaction = Compaction::new(space.nr_blocks(), BLOCK_ORDER);
    let mut run = || compaction.run(&space, whole_block(Stage::WholeSplitting), &mut || false);
    let outcomes: Vec<_> = (0..7).map(|_| run().outcome).collect();
    use Outcome::{Deferred, Met};
    assert_eq!(outcomes, [Met, Deferred, Met, Deferred, Deferred, Deferred, Met]);
    space.free(0);
    let report = run();
    assert_eq!((report.outcome, report.counters), (Outcome::Free, Default::default()), "nothing was to be done");
}

#[test]
fn who_is_told_to_stop_leaves_nothing_isolated_and_goes_on_where_it_was() {
    let space = Simulated::new(8, BLOCK_ORDER, 0);
    for block in 0..8 {
        for at in [0, 5, 10] {
            space.put(units(block * BLOCK + at, 0), false);
        }
    }
    let mut compaction = Compaction::new(space.nr_blocks(), BLOCK_ORDER);
    for nr_runs in 1.. {
        let mut nr_asked = 0;
        let report = compaction.run(&space, whole_block(Stage::WholeSplitting), &mut || {
            nr_asked += 1;
            nr_asked > 4
        });
        assert_eq!(space.nr_isolated(), 0);
        space.verify();
        if report.outcome == Outcome::Free {
            break;
        }
        assert_eq!(report.outcome, Outcome::Stopped);
        assert!(report.counters.pgmigrate_success <= 4 && nr_runs < 32, "each run goes on a little");
    }
}

#[test]
fn small_runs_that_pile_up_make_room_for_larger_ones() {
    let space = Simulated::new(16, BLOCK_ORDER, 0);
    for (block, k) in [(0, 3), (1, 3), (2, 3), (3, 3), (4, 2), (5, 3), (10, 3), (11, 3)] {
        space.put(units(block * BLOCK, k), false);
    }
    for at in (12 * BLOCK..16 * BLOCK).step_by(2) {
        space.put(units(at, 0), false);
    }
    // The first four folios find only single units, until no more fit; then the fast path provides larger runs.
    space.only_scanned.set(true);
    let mut compaction = Compaction::new(space.nr_blocks(), BLOCK_ORDER);
    compaction.run(&space, everything(Stage::WholeSplitting), &mut || {
        space.only_scanned.set(space.only_scanned.get() && space.nr_isolated() < 2 * BLOCK);
        false
    });
    assert!(!space.only_scanned.get());
    assert_eq!([4, 5].map(|block| space.firsts().contains(&(block * BLOCK))), [false; 2]);
    space.verify();
}

/// One run in a space where operations fail now and then. Stops at random, so that any state can be the last.
fn troubled_run(space: &Simulated, compaction: &mut Compaction, stage: Stage) -> CompactCounters {
    let wanted = [None, Some(BLOCK_ORDER), Some(order(1 + space.below(3)))][space.below(3)];
    let mode = [Mode::Async, Mode::Sync][space.below(2)];
    let (patience, before, mut nr_asked) = (space.below(400), space.nr_copied.get(), 0);
    let report = compaction.run(space, Request { wanted, mode, stage }, &mut || {
        // After every step.
        space.verify();
        assert!(space.nr_isolated() <= 2 * BLOCK + BLOCK / 2);
        nr_asked += 1;
        nr_asked > patience
    });
    assert_eq!(space.nr_isolated(), 0, "what was isolated is back");
    space.verify();
    let counters = report.counters;
    assert_eq!(counters.pgmigrate_success as usize, space.nr_copied.get() - before);
    assert_eq!(counters.compact_stall, counters.compact_success + counters.compact_fail);
    assert!(counters.compact_isolated <= counters.compact_free_scanned + counters.compact_migrate_scanned);
    assert!(wanted.is_some() || report.outcome != Outcome::Free);
    counters
}

#[test]
fn nothing_is_lost_and_nothing_is_there_twice() {
    let (mut nr_moved, mut nr_failed) = (0, 0);
    for seed in 0..90 {
        let _seed = Seed(seed);
        let stage = STAGES[seed as usize % 3];
        let space = Simulated::new(3 + seed as usize % 10, BLOCK_ORDER, seed);
        space.scatter(&[0, 0, 1, 2, 3], 20);
        space.trouble.set(match seed % 4 {
            0 => Trouble::default(),
            1 => Trouble { busy: 4, ..Trouble::default() },
            2 => Trouble { busy: 10, gone: 10, others: 0 },
            _ => Trouble { busy: 10, gone: 20, others: 5 },
        });
        space.only_scanned.set(space.below(3) == 0);
        let mut compaction = Compaction::new(space.nr_blocks(), BLOCK_ORDER);
        for _ in 0..12 {
            let counters = troubled_run(&space, &mut compaction, stage);
            nr_moved += counters.pgmigrate_success;
            nr_failed += counters.pgmigrate_fail;
        }
    }
    assert!(nr_moved > 1000 && nr_failed > 100, "too little was tried: {nr_moved}, {nr_failed}");
}

#[test]
fn a_quiet_space_is_packed_as_far_as_its_folios_allow() {
    let mut nr_missed = 0;
    for seed in 0..60 {
        let _seed = Seed(seed);
        let space = Simulated::new(16, BLOCK_ORDER, seed);
        space.scatter(&[0, 1, 2, 3], 0);
        let nr_occupied = space.nr_occupied();
        let mut compaction = Compaction::new(space.nr_blocks(), BLOCK_ORDER);
        for _ in 0..4 {
            compaction.run(&space, everything(Stage::WholeSplitting), &mut || false);
        }
        let best = 16 - nr_occupied.div_ceil(BLOCK);
        nr_missed += best - space.nr_free_blocks();
        assert_eq!(space.nr_occupied(), nr_occupied);
        space.verify();
    }
    // Mixed orders do not always fit together. Of 4000 spaces a quarter missed one block and more, a third on average.
    assert!(nr_missed < 60, "{nr_missed} blocks of 60 spaces");
}
