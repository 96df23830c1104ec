//! Compaction of frames: moves small folios together until whole pageblocks are free.
//!
//! The thread makes whole pageblocks of frames that a program has freed, and gives them huge pages, so that a fault
//! finds a huge page. Folios that are about to be freed need not be moved: while a program frees memory, the thread
//! only empties pageblocks that are at most half full and that the freeing has passed by. While whole folios find no
//! place (`Compactor::want_whole`), some free pageblocks are kept for them, and reclaim frees frames for that. A fault
//! that finds none compacts directly, but never waits for another folio's lock. The thread sleeps while nothing is
//! freed and no pageblock is wanted, so an idle arena costs no CPU.

use std::time::{Duration, Instant};

use folioswap_core::compact::{CompactCounters, Demand, Mode, Outcome, Pacing, Pause, Report, Request, ZoneSpace};
use folioswap_core::{List, Memory, Order, Size, Taken, Zone};

use crate::compact::exchange::Moving;
use crate::engine::Engine;
use crate::memory::oldest::older_class;
use crate::process::cpu::current_cpu;
use crate::process::fatal::EndOnPanic;

/// Free frames needed beyond a whole pageblock: those that the free scanner isolates at one time.
const SLACK: usize = Order::HUGE.nr_pages() / 2;

/// How long the thread pauses for compaction by faults before it checks again whether they are done.
const POLITE: Duration = Duration::from_micros(100);

/// Divisor of the budget for the pageblocks kept free while whole folios find no place.
const KEPT_WHOLE_SHARE: usize = 16;

/// Purpose of a run of compaction.
#[derive(Copy, Clone, Eq, PartialEq)]
enum Purpose {
    /// Makes free pageblocks in advance while frames are being freed: only of calm pageblocks, which freeing has passed
    /// by.
    InCalm,
    /// Makes free pageblocks in advance at other times.
    Ahead,
    /// For a fault that waits.
    Direct,
    /// On request: all of RAM.
    Explicit,
}

/// The thread's body. Returns when the arena stops.
pub(crate) fn run(engine: &Engine) {
    let _end = EndOnPanic("compaction");
    let thread = folioswap_sys::signals::thread_id();
    let mut pacing = Pacing::default();
    let mut seen = engine.compactor().wanted().now();
    while !engine.stopping() {
        let before = std::mem::replace(&mut seen, engine.compactor().wanted().now());
        let pass = engine.gate().enter(thread);
        engine.ram().zones().all().iter().for_each(Zone::tick);
        engine.stats().compact_daemon_wake.add(1);
        let turn = pacing.begin(Instant::now(), engine.compactor().take_whole_wanted(), seen != before);
        engine.keep_pageblocks_for(turn.demand);
        let mut is_done = true;
        if turn.rest.is_none() {
            // Every zone is compacted, even if another one failed.
            for zone in engine.ram().zones().all() {
                is_done &= engine.compact_ahead(zone, turn.only_calm);
            }
        }
        drop(pass);
        match pacing.end(turn, Instant::now(), is_done) {
            _ if engine.stopping() => {} // the stop may have been signalled before `seen` was read
            Pause::Asleep(pause) => engine.pause(pause),
            Pause::Waiting(Some(limit)) => engine.compactor().wanted().wait_for(seen, limit),
            Pause::Waiting(None) => engine.compactor().wanted().wait(seen),
        }
    }
}

impl Engine {
    /// Keeps some pageblocks free while whole folios find no place.
    fn keep_pageblocks_for(&self, demand: Demand) {
        match demand {
            Demand::Fresh => {
                self.ram().zones().keep_whole((self.ram().budget_blocks() / KEPT_WHOLE_SHARE).max(1));
                self.ram().reclaim_wanted().signal();
            }
            Demand::Over => self.ram().zones().keep_whole(0),
            Demand::Same => {}
        }
    }

    /// Moves small folios of a zone together until `nr_enough` pageblocks are wholly free; an explicit run moves as
    /// many as it can. `stop` is called before each block. A direct run takes its pageblock under the lock of the run:
    /// otherwise the next waiter would take it, and this thread would have to wait again.
    fn compact_frames(
        &self,
        zone: &Zone,
        run: Purpose,
        nr_enough: usize,
        mut stop: impl FnMut() -> bool,
    ) -> Option<(Report, Option<Taken>)> {
        let stage = self.compactor().stage()?;
        let _blocked = folioswap_sys::signals::block_all(); // a handler's fault might compact too
        if zone.counts().limit <= Order::HUGE.nr_pages() + SLACK {
            return None;
        }
        let mut progress = self.compactor().state(self.ram().zones().index_of(zone.first_frame()));
        while zone.counts().free < Order::HUGE.nr_pages() + SLACK {
            if !self.ram().evict_standby_of(self.table(), zone, Order::PAGE) {
                return None;
            }
        }
        let moving = Moving::new(self, zone, run == Purpose::Direct);
        let space = ZoneSpace::new(zone, &moving, nr_enough);
        let space = if run == Purpose::InCalm { space.only_calm() } else { space };
        let stop = &mut || self.stopping() || self.gate().is_closed() || stop();
        let (wanted, mode) = match run {
            Purpose::Explicit => (None, Mode::Sync),
            Purpose::InCalm | Purpose::Ahead | Purpose::Direct => (Some(Order::HUGE), Mode::Async),
        };
        let compaction = if run == Purpose::InCalm { &mut progress.in_calm } else { &mut progress.everywhere };
        let report = compaction.run(&space, Request { wanted, mode, stage }, stop);
        let taken = if run == Purpose::Direct { self.ram().take_now_in(zone, Order::HUGE) } else { None };
        drop(progress);
        self.count_compaction(&report.counters);
        if report.outcome == Outcome::Free && taken.is_none() {
            self.ram().frame_freed().signal();
        }
        Some((report, taken))
    }

    /// Sleeps until whole folios are wanted, for `pause` at most.
    fn pause(&self, pause: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < pause && !self.stopping() && !self.compactor().is_whole_wanted() {
            folioswap_sys::futex::sleep(Pacing::CALM);
        }
    }

    /// Pageblocks of a zone that should be wholly free: those that are kept, and three quarters of those that the free
    /// frames above the high watermark could fill. If all folios are small, only those that are kept.
    fn compaction_goal(&self, zone: &Zone) -> usize {
        let kept = zone.kept_whole();
        if kept == 0 && self.policy().fixed_order().is_some_and(|order| order < Order::HUGE) {
            return 0;
        }
        let spare = zone.counts().free.saturating_sub(zone.watermarks().high);
        kept.max(spare / Order::HUGE.nr_pages() * 3 / 4)
    }

    /// To be called after frames were freed: wakes the thread if it can make whole pageblocks of them.
    pub fn look_for_whole(&self) {
        let _blocked = folioswap_sys::signals::block_all(); // a handler's fault might lock a zone
        let lacks_whole = |zone: &Zone| zone.free_runs(Order::HUGE) < self.compaction_goal(zone);
        if self.compactor().stage().is_some() && self.ram().zones().all().iter().any(lacks_whole) {
            self.compactor().wanted().signal();
        }
    }

    /// Makes as many pageblocks wholly free as should be, one at a time, so that waiting faults get their turn in
    /// between. `false`: no more could be made.
    fn compact_ahead(&self, zone: &Zone, only_calm: bool) -> bool {
        let run = if only_calm { Purpose::InCalm } else { Purpose::Ahead };
        loop {
            if !only_calm {
                zone.drain(); // frames in per-CPU lists are in no free run
            }
            self.make_huge_again(zone);
            let nr_free = zone.free_runs(Order::HUGE);
            if nr_free >= self.compaction_goal(zone) {
                return true;
            }
            let stop = || self.compactor().has_direct();
            let report = self.compact_frames(zone, run, nr_free + 1, stop);
            match report.map(|(report, _)| report.outcome) {
                Some(Outcome::Free) => {}
                Some(Outcome::Stopped) if stop() => {}
                // Too few frames are free, and small folios are colder than whole ones: reclaim them.
                None if run == Purpose::Ahead
                    && older_class(zone, List::Inactive) == Some(Size::Small)
                    && self.empty_a_pageblock_of(zone) => {}
                _ => return false,
            }
            while stop() && !self.stopping() && !self.gate().is_closed() {
                folioswap_sys::futex::sleep(POLITE);
            }
        }
    }

    /// Compacts all of RAM, and waits a little for busy folios. Faults go without compaction meanwhile. Returns whether
    /// all zones were scanned to the end.
    pub fn compact_all(&self) -> bool {
        self.compactor().begin_explicit();
        while self.compactor().has_direct() {
            folioswap_sys::futex::sleep(POLITE); // faults that began before
        }
        let compact = |zone| self.compact_frames(zone, Purpose::Explicit, 0, || false);
        let zones = self.ram().zones().all().iter().filter(|zone| zone.counts().limit > Order::HUGE.nr_pages() + SLACK);
        let reports: Vec<_> = zones.map(compact).collect();
        self.compactor().end_explicit();
        reports.iter().all(|run| run.is_some_and(|(report, _)| report.outcome == Outcome::Met))
    }

    /// Makes a free pageblock for a fault of a whole folio that finds no place.
    pub fn compact_directly(&self) -> Option<Taken> {
        self.compactor().want_whole();
        let goes = self.compactor().begin_direct();
        let compact = |zone| {
            let (Report { counters, .. }, taken) = self.compact_frames(zone, Purpose::Direct, 1, || false)?;
            self.stats().compact_stall.add(counters.compact_stall);
            self.stats().compact_success.add(counters.compact_success);
            self.stats().compact_fail.add(counters.compact_fail);
            taken
        };
        let taken = if goes { self.ram().zones().near(current_cpu()).find_map(compact) } else { None };
        self.compactor().end_direct();
        taken
    }

    /// Gives huge pages to wholly free pageblocks of a zone that have small pages.
    fn make_huge_again(&self, zone: &Zone) {
        while !self.stopping() && !self.gate().is_closed() {
            let Some(taken) = zone.take_divided() else { return };
            debug_assert_eq!(taken.memory, Memory::Small);
            if self.ram().try_make_huge(taken) {
                self.ram().release(taken.frame);
                continue;
            }
            return; // the kernel has no huge page now; tried again at the next compaction
        }
    }

    fn count_compaction(&self, counters: &CompactCounters) {
        let stats = self.stats();
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
    use crate::arena::Arena;
    use crate::arena::advice::Advice;
    use crate::config::fault_mode::FaultMode;
    use crate::device::DeviceSpec;
    use folioswap_core::{BlockId, Order, PAGE_SIZE};

    #[test]
    fn a_fault_gets_the_pageblock_that_it_has_made() {
        // With small folios only, nothing is compacted in advance.
        let device = DeviceSpec::Ram { size: 64 << 20 };
        let builder = Arena::builder().memory(64 << 20).device(device).folio(Order::PAGE);
        let arena = builder.build().unwrap();
        let engine = arena.engine();
        let mut region = arena.map(60 << 20).unwrap();
        region.chunks_mut(PAGE_SIZE).for_each(|page| page[0] = 1);
        for page in (0..region.len() / PAGE_SIZE).step_by(2) {
            region.advise(page * PAGE_SIZE..(page + 1) * PAGE_SIZE, Advice::DontNeed);
        }
        // Use up the pageblocks that were never used.
        while engine.ram().zones().all()[0].free_runs(Order::HUGE) > 0 {
            let taken = engine.ram().try_take(engine.table(), Order::HUGE, 0).unwrap();
            engine.ram().prepare(taken, Order::PAGE);
        }
        let taken = engine.compact_directly().expect("half of all frames are free");
        assert_eq!((taken.order, engine.ram().zones().counts().isolated), (Order::HUGE, 0));
        assert_eq!(arena.stats().compact_fail, 0);
        let prepared = engine.ram().prepare(taken, Order::HUGE);
        engine.ram().release(prepared.into_frame());
        engine.ram().zones().verify();
        let is_right = |(index, page): (usize, &[u8])| page[0] == (index % 2) as u8;
        assert!(region.chunks(PAGE_SIZE).enumerate().all(is_right));
    }

    #[test]
    fn a_pageblock_that_could_not_be_emptied_has_all_its_memory_again() {
        let device = DeviceSpec::Ram { size: 64 << 20 };
        let builder = Arena::builder().memory(64 << 20).device(device).folio(Order::PAGE);
        let arena = builder.faults(FaultMode::Direct).build().unwrap();
        let engine = arena.engine();
        // Each pageblock has pages of both regions; every other page is dropped.
        let mut regions = [0, 1].map(|_| arena.map(28 << 20).unwrap());
        let nr_pages = regions[0].len() / PAGE_SIZE;
        for page in 0..nr_pages {
            regions.iter_mut().for_each(|region| region[page * PAGE_SIZE] = page as u8);
        }
        for page in (0..nr_pages).step_by(2) {
            let bytes = page * PAGE_SIZE..(page + 1) * PAGE_SIZE;
            regions.iter_mut().for_each(|region| region.advise(bytes.clone(), Advice::DontNeed));
        }
        while engine.ram().zones().all()[0].free_runs(Order::HUGE) > 0 {
            let taken = engine.ram().try_take(engine.table(), Order::HUGE, 0).unwrap();
            engine.ram().prepare(taken, Order::PAGE);
        }
        // No page of the first region can be moved.
        let first = engine.table().page_at(regions[0].as_ptr() as usize).block();
        let last = engine.table().page_at(regions[0].as_ptr() as usize + regions[0].len() - 1).block();
        let held: Vec<_> =
            (first.index()..=last.index()).map(|index| engine.lock(BlockId::from_index(index))).collect();
        let taken: Vec<_> = std::iter::from_fn(|| engine.compact_directly()).take(64).collect();
        let stats = arena.stats();
        assert!(taken.len() < 64 && stats.pgmigrate_fail > 0 && stats.pgmigrate_success > 0, "{stats:?}");
        assert_eq!(engine.ram().zones().counts().isolated, 0);
        taken.into_iter().for_each(|taken| engine.ram().release(engine.ram().prepare(taken, Order::HUGE).into_frame()));
        drop(held);
        // Use every free frame: each must have memory.
        let mut more = arena.map(60 << 20).unwrap();
        more.chunks_mut(PAGE_SIZE).for_each(|page| page.fill(7));
        assert!(more.chunks(PAGE_SIZE).all(|page| page.iter().all(|&byte| byte == 7)));
        for page in 0..nr_pages {
            let expected = if page % 2 == 0 { 0 } else { page as u8 };
            assert!(regions.iter().all(|region| region[page * PAGE_SIZE] == expected), "page {page}");
        }
        engine.ram().zones().verify();
    }
}
