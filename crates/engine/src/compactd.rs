//! Compaction of the frames: small folios are moved together until whole pageblocks are free.
//!
//! The thread works while whole folios are wanted and find no place ([`Engine::want_whole`]): it keeps as many pageblocks
//! wholly free as the zone keeps for them, and makes what it has emptied huge again, so that a fault finds a huge page.
//! A fault that finds none compacts for itself, as far as that needs no wait for a folio. Nothing is moved while no whole
//! folio is wanted, and nothing while there are not enough free frames to make a whole block of.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use folioswap_core::compact::{CompactCounters, Compaction, Mode, Outcome, Request, Stage, ZoneSpace};
use folioswap_core::{BLOCK_PIECES, Memory, Order, PIECE};

use crate::engine::Engine;
use crate::fatal::AbortOnPanic;
use crate::wakeup::Event;

/// Free frames beyond a whole block that there have to be: those that the free scanner has isolated at one time.
const SLACK: usize = Order::HUGE.nr_pages() / 2;

/// Compaction of one arena's frames.
pub(crate) struct Compactor {
    /// One run at a time.
    state: Mutex<Compaction>,
    /// Whole folios find no place.
    pub wanted: Event,
    /// Faults that wait for a place, or for their turn.
    nr_waiting: AtomicUsize,
    /// None: it is off. For measurement.
    stage: Option<Stage>,
}

impl Compactor {
    pub fn new(nr_pageblocks: usize, stage: Option<Stage>) -> Self {
        Compactor {
            state: Mutex::new(Compaction::new(nr_pageblocks, Order::HUGE)),
            wanted: Event::default(),
            nr_waiting: AtomicUsize::new(0),
            stage,
        }
    }

    fn state(&self) -> MutexGuard<'_, Compaction> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

/// The thread's body; returns when the arena stops.
pub(crate) fn run(engine: &Engine) {
    let _abort = AbortOnPanic("compaction");
    let thread = folioswap_sys::signals::thread_id();
    while !engine.stopping() {
        let seen = engine.compactor.wanted.now();
        let pass = engine.gate.enter(thread);
        engine.stats.compact_daemon_wake.add(1);
        engine.compact_ahead();
        drop(pass);
        engine.compactor.wanted.wait(seen);
    }
}

impl Engine {
    /// Moves small folios together until `nr_enough` pageblocks are wholly free; without a wanted order, as many as can
    /// be.
    pub fn compact_frames(&self, wanted: Option<Order>, mode: Mode, nr_enough: usize) -> Option<Outcome> {
        let stage = self.compactor.stage?;
        let mut state = self.compactor.state();
        while self.zone.counts().free < Order::HUGE.nr_pages() + SLACK {
            if !self.evict_standby(Order::PAGE) {
                return None;
            }
        }
        let mut run = |wanted, nr_enough| {
            let space = ZoneSpace::new(&self.zone, self, nr_enough);
            let stop = &mut || self.stopping() || self.gate.is_closed();
            let report = state.run(&space, Request { wanted, mode, stage }, stop);
            self.count_compaction(&report.counters);
            report.outcome
        };
        let mut outcome = run(wanted, nr_enough);
        if outcome == Outcome::Met && wanted == Some(Order::HUGE) {
            // Free frames there are, but none in a row for the folios of some size.
            let nr_pieces = self.zone.free_runs(PIECE) + BLOCK_PIECES;
            if run(Some(PIECE), nr_pieces) == Outcome::Free {
                outcome = run(wanted, nr_enough);
            }
        }
        drop(state);
        if outcome == Outcome::Free {
            self.frame_freed.signal();
        }
        Some(outcome)
    }

    /// Makes as many pageblocks wholly free as are to be kept, one by one: who waits for one comes first.
    fn compact_ahead(&self) {
        loop {
            self.make_huge_again();
            let nr_free = self.zone.free_runs(Order::HUGE);
            if nr_free >= self.zone.kept_whole()
                || self.compact_frames(Some(Order::HUGE), Mode::Async, nr_free + 1) != Some(Outcome::Free)
            {
                return;
            }
            while self.compactor.nr_waiting.load(Ordering::Relaxed) > 0 && !self.stopping() {
                std::thread::yield_now();
            }
        }
    }

    /// On behalf of a fault of a whole folio that finds no place. Says whether there was one a moment ago.
    pub fn compact_directly(&self) -> bool {
        self.want_whole();
        self.compactor.nr_waiting.fetch_add(1, Ordering::Relaxed);
        let outcome = self.compact_frames(Some(Order::HUGE), Mode::Async, 1);
        self.compactor.nr_waiting.fetch_sub(1, Ordering::Relaxed);
        outcome == Some(Outcome::Free)
    }

    /// Gives huge pages to pageblocks that are wholly free and have small ones.
    fn make_huge_again(&self) {
        while !self.stopping() && !self.gate.is_closed() {
            let Some(taken) = self.zone.take_divided() else { return };
            debug_assert_eq!(taken.memory, Memory::Small);
            let frame = self.prepare(taken, Order::HUGE);
            self.release_frame(frame);
        }
    }

    fn count_compaction(&self, counters: &CompactCounters) {
        let stats = &self.stats;
        for (stat, number) in [
            (&stats.compact_stall, counters.compact_stall),
            (&stats.compact_success, counters.compact_success),
            (&stats.compact_fail, counters.compact_fail),
            (&stats.compact_isolated, counters.compact_isolated),
            (&stats.compact_migrate_scanned, counters.compact_migrate_scanned),
            (&stats.compact_free_scanned, counters.compact_free_scanned),
            (&stats.pgmigrate_success, counters.pgmigrate_success),
            (&stats.pgmigrate_fail, counters.pgmigrate_fail),
        ] {
            stat.add(number);
        }
    }
}
