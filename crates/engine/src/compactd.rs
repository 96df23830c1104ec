//! Compaction of the frames: small folios are moved together until whole pageblocks are free.
//!
//! The thread makes whole pageblocks of free frames that a program has given back, and makes them huge again, so that a
//! fault finds a huge page. While whole folios find no place ([`Engine::want_whole`]) it has some pageblocks kept for
//! them, for which reclaim frees frames. A fault that finds none compacts for itself, as far as that needs no wait for a
//! folio's lock. It sleeps while nothing becomes free and nothing is wanted: an idle arena costs no CPU.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use folioswap_core::compact::{CompactCounters, Compaction, Mode, Outcome, Report, Request, Stage, ZoneSpace};
use folioswap_core::{List, Memory, Order, Size};

use crate::engine::Engine;
use crate::fatal::AbortOnPanic;
use crate::wakeup::Event;

/// Free frames beyond a whole block that there have to be: those that the free scanner has isolated at one time.
const SLACK: usize = Order::HUGE.nr_pages() / 2;

/// Frames are being freed until none was for so long ...
const CALM: Duration = Duration::from_millis(2);

/// ... or as many times that.
const CALMING_MAX: usize = 20;

/// How long the thread leaves compaction to faults before it looks again whether they are through.
const POLITE: Duration = Duration::from_micros(100);

/// Pageblocks kept wholly free while whole folios find no place, as a share of the budget.
const KEPT_WHOLE_SHARE: usize = 16;

/// For how long after the last one.
const DEMAND_LASTS: Duration = Duration::from_secs(1);

/// How long the thread leaves it after it could make no more.
const REST: Duration = Duration::from_millis(100);

/// When to look again meanwhile: frames become free without a word.
const AGAIN: Duration = Duration::from_millis(10);

/// Compaction of one arena's frames.
pub(crate) struct Compactor {
    /// One run at a time.
    state: Mutex<Compaction>,
    /// Whole folios find no place.
    pub wanted: Event,
    /// Faults that wait for a place, or for their turn.
    nr_waiting: AtomicUsize,
    /// Runs that were asked for, and wait for busy folios.
    nr_explicit: AtomicUsize,
    /// None: it is off. For measurement.
    stage: Option<Stage>,
}

impl Compactor {
    pub fn new(nr_pageblocks: usize, stage: Option<Stage>) -> Self {
        Compactor {
            state: Mutex::new(Compaction::new(nr_pageblocks, Order::HUGE)),
            wanted: Event::default(),
            nr_waiting: AtomicUsize::new(0),
            nr_explicit: AtomicUsize::new(0),
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
    let (mut wanted_last, mut failed_last): (Option<Instant>, Option<Instant>) = (None, None);
    while !engine.stopping() {
        let seen = engine.calm();
        let pass = engine.gate.enter(thread);
        engine.stats.compact_daemon_wake.add(1);
        if engine.whole_wanted.swap(0, Ordering::Relaxed) > 0 {
            wanted_last = Some(Instant::now());
            engine.zone.keep_whole((engine.budget_blocks() / KEPT_WHOLE_SHARE).max(1));
            engine.reclaim_wanted.signal();
        } else if wanted_last.is_some_and(|last| last.elapsed() > DEMAND_LASTS) {
            wanted_last = None;
            engine.zone.keep_whole(0);
        }
        if failed_last.is_none_or(|last: Instant| last.elapsed() > REST) {
            failed_last = (!engine.compact_ahead()).then(Instant::now);
        }
        drop(pass);
        match wanted_last {
            _ if engine.stopping() => {} // it may have begun before `seen`
            Some(_) => engine.compactor.wanted.wait_for(seen, AGAIN),
            None => engine.compactor.wanted.wait(seen),
        }
    }
}

impl Engine {
    /// Moves small folios together until `nr_enough` pageblocks are wholly free; without a wanted order, as many as can
    /// be. `stop` is asked before each folio and each block.
    pub fn compact_frames(
        &self,
        wanted: Option<Order>,
        mode: Mode,
        nr_enough: usize,
        mut stop: impl FnMut() -> bool,
    ) -> Option<Report> {
        let stage = self.compactor.stage?;
        let _blocked = folioswap_sys::signals::block_all(); // a handler's fault might want to compact too
        let mut state = self.compactor.state();
        while self.zone.counts().free < Order::HUGE.nr_pages() + SLACK {
            if !self.evict_standby(Order::PAGE) {
                return None;
            }
        }
        let space = ZoneSpace::new(&self.zone, self, nr_enough);
        let stop = &mut || self.stopping() || self.gate.is_closed() || stop();
        let report = state.run(&space, Request { wanted, mode, stage }, stop);
        drop(state);
        self.count_compaction(&report.counters);
        if report.outcome == Outcome::Free {
            self.frame_freed.signal();
        }
        Some(report)
    }

    /// Waits while more and more frames become free, and no whole folio is wanted: what is about to be dropped need not
    /// be moved. Returns what the event was last.
    fn calm(&self) -> u32 {
        let mut seen = self.compactor.wanted.now();
        for _ in 0..CALMING_MAX {
            if self.whole_wanted.load(Ordering::Relaxed) > 0 || self.stopping() {
                break;
            }
            std::thread::sleep(CALM);
            let before = std::mem::replace(&mut seen, self.compactor.wanted.now());
            if seen == before {
                break;
            }
        }
        seen
    }

    /// Pageblocks that should be wholly free: those that are kept, and most of the frames that are free anyway, unless
    /// all folios are small.
    fn compaction_goal(&self) -> usize {
        let kept = self.zone.kept_whole();
        if kept == 0 && self.fixed_order.is_some_and(|order| order < Order::HUGE) {
            return 0;
        }
        let spare = self.zone.counts().free.saturating_sub(self.zone.watermarks().high);
        kept.max(spare / Order::HUGE.nr_pages() * 3 / 4)
    }

    /// Frames have become free that were not asked for: there may be whole pageblocks to be made of them.
    pub fn look_for_whole(&self) {
        if self.compactor.stage.is_some() && self.zone.free_runs(Order::HUGE) < self.compaction_goal() {
            self.compactor.wanted.signal();
        }
    }

    /// Makes as many pageblocks wholly free as should be, one by one: who waits for one comes first. `false` when no more
    /// could be made.
    fn compact_ahead(&self) -> bool {
        loop {
            self.zone.drain(); // what CPUs keep is in no free run
            self.make_huge_again();
            let nr_free = self.zone.free_runs(Order::HUGE);
            if nr_free >= self.compaction_goal() {
                return true;
            }
            let stop = || self.compactor.nr_waiting.load(Ordering::Relaxed) > 0;
            let report = self.compact_frames(Some(Order::HUGE), Mode::Async, nr_free + 1, stop);
            match report.map(|report| report.outcome) {
                Some(Outcome::Free) => {}
                Some(Outcome::Stopped) if stop() => {}
                // Too few frames are free, and small folios are the colder ones.
                None if self.older_class(List::Inactive) == Some(Size::Small) && self.empty_a_pageblock() => {}
                _ => return false,
            }
            while stop() && !self.stopping() && !self.gate.is_closed() {
                std::thread::sleep(POLITE);
            }
        }
    }

    /// Compacts all of RAM, and waits for busy folios a little. Faults do without compaction meanwhile. Says whether all
    /// was looked through.
    pub fn compact_all(&self) -> bool {
        self.compactor.nr_explicit.fetch_add(1, Ordering::SeqCst);
        while self.compactor.nr_waiting.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(POLITE); // faults that did not see it
        }
        let report = self.compact_frames(None, Mode::Sync, 0, || false);
        self.compactor.nr_explicit.fetch_sub(1, Ordering::SeqCst);
        report.is_some_and(|report| report.outcome == Outcome::Met)
    }

    /// On behalf of a fault of a whole folio that finds no place. Says whether there was one a moment ago.
    pub fn compact_directly(&self) -> bool {
        self.want_whole();
        self.compactor.nr_waiting.fetch_add(1, Ordering::SeqCst);
        // A run that was asked for may wait for the very block that is locked here.
        let goes = self.compactor.nr_explicit.load(Ordering::SeqCst) == 0;
        let report = goes.then(|| self.compact_frames(Some(Order::HUGE), Mode::Async, 1, || false)).flatten();
        self.compactor.nr_waiting.fetch_sub(1, Ordering::SeqCst);
        let Some(Report { outcome, counters }) = report else { return false };
        self.stats.compact_stall.add(counters.compact_stall);
        self.stats.compact_success.add(counters.compact_success);
        self.stats.compact_fail.add(counters.compact_fail);
        outcome == Outcome::Free
    }

    /// Gives huge pages to pageblocks that are wholly free and have small ones.
    fn make_huge_again(&self) {
        while !self.stopping() && !self.gate.is_closed() {
            let Some(taken) = self.zone.take_divided() else { return };
            debug_assert_eq!(taken.memory, Memory::Small);
            if self.try_make_huge(taken) {
                self.release_frame(taken.frame);
                continue;
            }
            return; // the kernel has no huge page now: again when there is something to be compacted
        }
    }

    fn count_compaction(&self, counters: &CompactCounters) {
        let stats = &self.stats;
        for (stat, number) in [
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
