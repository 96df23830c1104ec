//! Compaction of the frames: small folios are moved together until whole pageblocks are free.
//!
//! The thread makes whole pageblocks of free frames that a program has given back, and makes them huge again, so that a
//! fault finds a huge page. What is about to be given back need not be moved: while a program is at it, the thread only
//! empties pageblocks at most half full that it has passed by. While whole folios find no place ([`Engine::want_whole`]) it has some pageblocks kept for
//! them, for which reclaim frees frames. A fault that finds none compacts for itself, as far as that needs no wait for a
//! folio's lock. It sleeps while nothing becomes free and nothing is wanted: an idle arena costs no CPU.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use folioswap_core::compact::{CompactCounters, Compaction, Mode, Outcome, Report, Request, Stage, ZoneSpace};
use folioswap_core::{BLOCK_PAGES, List, Memory, Order, Size, Taken, Zone};

use crate::engine::{Engine, current_cpu};
use crate::exchange::{Costs, Means, Moving};
use crate::fatal::AbortOnPanic;
use crate::supply::older_class;
use crate::wakeup::Event;

/// Free frames beyond a whole block that there have to be: those that the free scanner has isolated at one time.
const SLACK: usize = Order::HUGE.nr_pages() / 2;

/// Frames are being freed until none was for so long, which a tick of the zone takes at least then.
const CALM: Duration = Duration::from_millis(2);

/// While they are, pauses are so many times as long as looking around in vain before them.
const PAUSES: u32 = 9;

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

/// What a run of compaction is for.
#[derive(Copy, Clone, Eq, PartialEq)]
enum Run {
    /// A stock of whole pageblocks, while frames are being freed.
    InCalm,
    /// The same, at other times.
    Ahead,
    /// A fault that waits.
    Direct,
    /// Whoever asked for it: all of RAM.
    Explicit,
}

/// How far compaction of a zone has come. What runs in calm pageblocks have passed over is not looked through.
struct Progress {
    in_calm: Compaction,
    everywhere: Compaction,
}

/// Compaction of one arena's frames.
pub(crate) struct Compactor {
    /// By zone. One run at a time in each.
    states: Vec<Mutex<Progress>>,
    /// Whole folios find no place.
    pub wanted: Event,
    /// Faults that wait for a place, or for their turn.
    nr_waiting: AtomicUsize,
    /// Runs that were asked for, and wait for busy folios.
    nr_explicit: AtomicUsize,
    /// None: it is off. For measurement.
    stage: Option<Stage>,
    /// None: whichever costs less. For measurement.
    pub means: Option<Means>,
    pub costs: Costs,
}

impl Compactor {
    pub fn new(zones: &[Zone], stage: Option<Stage>, means: Option<Means>) -> Self {
        let compaction = |zone: &Zone| Compaction::new(zone.nr_frames_max() / BLOCK_PAGES, Order::HUGE);
        let state = |zone| Mutex::new(Progress { in_calm: compaction(zone), everywhere: compaction(zone) });
        Compactor {
            states: zones.iter().map(state).collect(),
            wanted: Event::default(),
            nr_waiting: AtomicUsize::new(0),
            nr_explicit: AtomicUsize::new(0),
            stage,
            means,
            costs: Costs::default(),
        }
    }

    fn state(&self, zone: usize) -> MutexGuard<'_, Progress> {
        self.states[zone].lock().expect("nothing panics under this lock")
    }
}

/// The thread's body; returns when the arena stops.
pub(crate) fn run(engine: &Engine) {
    let _abort = AbortOnPanic("compaction");
    let thread = folioswap_sys::signals::thread_id();
    let (mut wanted_last, mut failed_last): (Option<Instant>, Option<Instant>) = (None, None);
    let mut seen = engine.compactor.wanted.now();
    while !engine.stopping() {
        let before = std::mem::replace(&mut seen, engine.compactor.wanted.now());
        let begun = Instant::now();
        let pass = engine.gate.enter(thread);
        engine.zones.all().iter().for_each(Zone::tick);
        engine.stats.compact_daemon_wake.add(1);
        if engine.whole_wanted.swap(0, Ordering::Relaxed) > 0 {
            wanted_last = Some(begun);
            engine.zones.keep_whole((engine.budget_blocks() / KEPT_WHOLE_SHARE).max(1));
            engine.reclaim_wanted.signal();
        } else if wanted_last.is_some_and(|last| last.elapsed() > DEMAND_LASTS) {
            wanted_last = None;
            engine.zones.keep_whole(0);
        }
        let only_calm = wanted_last.is_none() && seen != before;
        let resting = failed_last.and_then(|last: Instant| REST.checked_sub(last.elapsed()));
        let mut is_done = true;
        if resting.is_none() {
            // Each zone, whatever comes of the others.
            for zone in engine.zones.all() {
                is_done &= engine.compact_ahead(zone, only_calm);
            }
            failed_last = (!is_done && !only_calm).then(Instant::now);
        }
        drop(pass);
        match wanted_last {
            _ if engine.stopping() => {} // it may have begun before `seen`
            Some(_) => engine.compactor.wanted.wait_for(seen, AGAIN),
            None if only_calm => {
                engine.pause(if is_done { CALM } else { (begun.elapsed() * PAUSES).clamp(CALM, REST) })
            }
            None => match resting {
                Some(rest) => engine.compactor.wanted.wait_for(seen, rest), // what was freed meanwhile was not looked at
                None => engine.compactor.wanted.wait(seen),
            },
        }
    }
}

impl Engine {
    /// Moves small folios of a zone together until `nr_enough` pageblocks are wholly free; without a wanted order, as many as can
    /// be. `stop` is asked before each block. A direct run takes the pageblock that it has made before another
    /// run can begin: who waits for its turn would take it, and this thread would have to wait once more.
    fn compact_frames(
        &self,
        zone: &Zone,
        run: Run,
        nr_enough: usize,
        mut stop: impl FnMut() -> bool,
    ) -> Option<(Report, Option<Taken>)> {
        let stage = self.compactor.stage?;
        let _blocked = folioswap_sys::signals::block_all(); // a handler's fault might want to compact too
        if zone.counts().limit <= Order::HUGE.nr_pages() + SLACK {
            return None;
        }
        let mut progress = self.compactor.state(self.zones.index_of(zone.first_frame()));
        while zone.counts().free < Order::HUGE.nr_pages() + SLACK {
            if !self.evict_standby_of(zone, Order::PAGE) {
                return None;
            }
        }
        let moving = Moving::new(self, zone, run == Run::Direct);
        let space = ZoneSpace::new(zone, &moving, nr_enough);
        let space = if run == Run::InCalm { space.only_calm() } else { space };
        let stop = &mut || self.stopping() || self.gate.is_closed() || stop();
        let (wanted, mode) = match run {
            Run::Explicit => (None, Mode::Sync),
            Run::InCalm | Run::Ahead | Run::Direct => (Some(Order::HUGE), Mode::Async),
        };
        let compaction = if run == Run::InCalm { &mut progress.in_calm } else { &mut progress.everywhere };
        let report = compaction.run(&space, Request { wanted, mode, stage }, stop);
        let taken = if run == Run::Direct { self.take_now_in(zone, Order::HUGE) } else { None };
        drop(progress);
        self.count_compaction(&report.counters);
        if report.outcome == Outcome::Free && taken.is_none() {
            self.frame_freed.signal();
        }
        Some((report, taken))
    }

    /// Sleeps, unless whole folios are wanted.
    fn pause(&self, pause: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < pause && !self.stopping() && self.whole_wanted.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(CALM);
        }
    }

    /// Pageblocks of a zone that should be wholly free: those that are kept, and most of the frames that are free anyway,
    /// unless all folios are small.
    fn compaction_goal(&self, zone: &Zone) -> usize {
        let kept = zone.kept_whole();
        if kept == 0 && self.fixed_order.is_some_and(|order| order < Order::HUGE) {
            return 0;
        }
        let spare = zone.counts().free.saturating_sub(zone.watermarks().high);
        kept.max(spare / Order::HUGE.nr_pages() * 3 / 4)
    }

    /// Frames have become free that were not asked for: there may be whole pageblocks to be made of them.
    pub fn look_for_whole(&self) {
        let _blocked = folioswap_sys::signals::block_all(); // a handler's fault might need a zone
        let lacks_whole = |zone: &Zone| zone.free_runs(Order::HUGE) < self.compaction_goal(zone);
        if self.compactor.stage.is_some() && self.zones.all().iter().any(lacks_whole) {
            self.compactor.wanted.signal();
        }
    }

    /// Makes as many pageblocks wholly free as should be, one by one: who waits for one comes first. `false` when no more
    /// could be made.
    fn compact_ahead(&self, zone: &Zone, only_calm: bool) -> bool {
        let run = if only_calm { Run::InCalm } else { Run::Ahead };
        loop {
            if !only_calm {
                zone.drain(); // what CPUs keep is in no free run
            }
            self.make_huge_again(zone);
            let nr_free = zone.free_runs(Order::HUGE);
            if nr_free >= self.compaction_goal(zone) {
                return true;
            }
            let stop = || self.compactor.nr_waiting.load(Ordering::Relaxed) > 0;
            let report = self.compact_frames(zone, run, nr_free + 1, stop);
            match report.map(|(report, _)| report.outcome) {
                Some(Outcome::Free) => {}
                Some(Outcome::Stopped) if stop() => {}
                // Too few frames are free, and small folios are the colder ones.
                None if run == Run::Ahead
                    && older_class(zone, List::Inactive) == Some(Size::Small)
                    && self.empty_a_pageblock_of(zone) => {}
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
        let compact = |zone| self.compact_frames(zone, Run::Explicit, 0, || false);
        let zones = self.zones.all().iter().filter(|zone| zone.counts().limit > Order::HUGE.nr_pages() + SLACK);
        let reports: Vec<_> = zones.map(compact).collect();
        self.compactor.nr_explicit.fetch_sub(1, Ordering::SeqCst);
        reports.iter().all(|run| run.is_some_and(|(report, _)| report.outcome == Outcome::Met))
    }

    /// A pageblock for a fault of a whole folio that finds no place.
    pub fn compact_directly(&self) -> Option<Taken> {
        self.want_whole();
        self.compactor.nr_waiting.fetch_add(1, Ordering::SeqCst);
        // A run that was asked for may wait for the very block that is locked here.
        let goes = self.compactor.nr_explicit.load(Ordering::SeqCst) == 0;
        let compact = |zone| {
            let (Report { counters, .. }, taken) = self.compact_frames(zone, Run::Direct, 1, || false)?;
            self.stats.compact_stall.add(counters.compact_stall);
            self.stats.compact_success.add(counters.compact_success);
            self.stats.compact_fail.add(counters.compact_fail);
            taken
        };
        let taken = if goes { self.zones.near(current_cpu()).find_map(compact) } else { None };
        self.compactor.nr_waiting.fetch_sub(1, Ordering::SeqCst);
        taken
    }

    /// Gives huge pages to pageblocks of a zone that are wholly free and have small ones.
    fn make_huge_again(&self, zone: &Zone) {
        while !self.stopping() && !self.gate.is_closed() {
            let Some(taken) = zone.take_divided() else { return };
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

#[cfg(test)]
mod tests {
    use crate::advise::Advice;
    use crate::arena::Arena;
    use crate::device::DeviceSpec;
    use crate::exchange::Means;
    use crate::fault::FaultMode;
    use folioswap_core::{BlockId, Order, PAGE_SIZE};

    #[test]
    fn a_fault_gets_the_pageblock_that_it_has_made() {
        // Nothing is compacted ahead where all folios are small.
        let device = DeviceSpec::Ram { size: 64 << 20 };
        let builder = Arena::builder().memory(64 << 20).address_space(1 << 30).device(device).folio(Order::PAGE);
        let arena = builder.build().unwrap();
        let engine = arena.engine();
        let mut region = arena.map(60 << 20).unwrap();
        region.chunks_mut(PAGE_SIZE).for_each(|page| page[0] = 1);
        for page in (0..region.len() / PAGE_SIZE).step_by(2) {
            region.advise(page * PAGE_SIZE..(page + 1) * PAGE_SIZE, Advice::DontNeed);
        }
        // Pageblocks that were never used first.
        while engine.zones.all()[0].free_runs(Order::HUGE) > 0 {
            let taken = engine.try_take_frame(Order::HUGE, 0).unwrap();
            engine.prepare(taken, Order::PAGE);
        }
        let taken = engine.compact_directly().expect("half of all frames are free");
        assert_eq!((taken.order, engine.zones.counts().isolated), (Order::HUGE, 0));
        assert_eq!(arena.stats().compact_fail, 0);
        let prepared = engine.prepare(taken, Order::HUGE);
        engine.release_frame(prepared.into_frame());
        engine.zones.verify();
        let is_right = |(index, page): (usize, &[u8])| page[0] == (index % 2) as u8;
        assert!(region.chunks(PAGE_SIZE).enumerate().all(is_right));
    }

    #[test]
    fn a_pageblock_that_could_not_be_emptied_has_all_its_memory_again() {
        let device = DeviceSpec::Ram { size: 64 << 20 };
        let builder = Arena::builder().memory(64 << 20).address_space(1 << 30).device(device).folio(Order::PAGE);
        let arena = builder.faults(FaultMode::Direct).compaction_means(Some(Means::Exchange)).build().unwrap();
        let engine = arena.engine();
        // Each pageblock has pages of both, of which every other is dropped.
        let mut regions = [0, 1].map(|_| arena.map(28 << 20).unwrap());
        let nr_pages = regions[0].len() / PAGE_SIZE;
        for page in 0..nr_pages {
            regions.iter_mut().for_each(|region| region[page * PAGE_SIZE] = page as u8);
        }
        for page in (0..nr_pages).step_by(2) {
            let bytes = page * PAGE_SIZE..(page + 1) * PAGE_SIZE;
            regions.iter_mut().for_each(|region| region.advise(bytes.clone(), Advice::DontNeed));
        }
        while engine.zones.all()[0].free_runs(Order::HUGE) > 0 {
            let taken = engine.try_take_frame(Order::HUGE, 0).unwrap();
            engine.prepare(taken, Order::PAGE);
        }
        // Nothing of one of them can be moved.
        let first = engine.page_at(regions[0].as_ptr() as usize).block();
        let last = engine.page_at(regions[0].as_ptr() as usize + regions[0].len() - 1).block();
        let held: Vec<_> =
            (first.index()..=last.index()).map(|index| engine.lock(BlockId::from_index(index))).collect();
        let taken: Vec<_> = std::iter::from_fn(|| engine.compact_directly()).take(64).collect();
        let stats = arena.stats();
        assert!(taken.len() < 64 && stats.pgmigrate_fail > 0 && stats.pgmigrate_success > 0, "{stats:?}");
        assert_eq!(engine.zones.counts().isolated, 0);
        taken.into_iter().for_each(|taken| engine.release_frame(engine.prepare(taken, Order::HUGE).into_frame()));
        drop(held);
        // Every free frame is used, each of which has memory.
        let mut more = arena.map(60 << 20).unwrap();
        more.chunks_mut(PAGE_SIZE).for_each(|page| page.fill(7));
        assert!(more.chunks(PAGE_SIZE).all(|page| page.iter().all(|&byte| byte == 7)));
        for page in 0..nr_pages {
            let expected = if page % 2 == 0 { 0 } else { page as u8 };
            assert!(regions.iter().all(|region| region[page * PAGE_SIZE] == expected), "page {page}");
        }
        engine.zones.verify();
    }
}
