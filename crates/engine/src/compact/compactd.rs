//! Compaction of frames: moves small folios together until whole pageblocks are free.
//!
//! The background thread makes whole pageblocks of frames that a program has freed, and gives them huge pages, so that
//! a fault finds a huge page. Folios that are about to be freed need not be moved: while a program frees memory, the
//! thread only empties pageblocks that are at most half full and that the freeing has passed by. While whole folios
//! find no place (`Compactor::want_whole`), some free pageblocks are kept for them, and reclaim frees frames for that.
//! A fault that finds none compacts directly, but never waits for another folio's lock. The thread sleeps while nothing
//! is freed and no pageblock is wanted, so an idle arena costs no CPU.

use std::time::{Duration, Instant};

use folioswap_core::compact::{CompactCounters, Demand, Mode, Outcome, Pacing, Pause, Report, Request, ZoneSpace};
use folioswap_core::{List, Memory, Order, Size, Taken, Zone};

use crate::compact::exchange::Moving;
use crate::engine::Engine;
use crate::memory::oldest::older_class;
use crate::process::cpu::current_cpu;
use crate::reclaim::reclaimd;

/// Free frames needed beyond a whole pageblock: those that the free scanner isolates at one time.
const SLACK: usize = Order::HUGE.nr_pages() / 2;

/// How long the thread pauses for compaction by faults before it checks again whether they are done.
const POLITE: Duration = Duration::from_micros(100);

/// Divisor of the budget for the pageblocks kept free while whole folios find no place. Small budgets have none to
/// spare.
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

/// Compaction by the background thread, a turn at a time.
pub(crate) struct FrameCompactor {
    pacing: Pacing,
    /// How often it had been woken when the last turn began.
    seen: u32,
    /// What follows that turn, and since when.
    pause: Pause,
    since: Instant,
}

impl FrameCompactor {
    pub fn new() -> Self {
        let pause = Pause::Waiting(Some(Duration::ZERO));
        FrameCompactor { pacing: Pacing::default(), seen: 0, pause, since: Instant::now() }
    }

    /// Does a turn, if it is time for one. Returns when the next is due, if no wake-up comes before.
    pub fn step(&mut self, engine: &Engine) -> Option<Duration> {
        if let Err(left) = self.is_due(engine) {
            return left;
        }
        engine.compactor().sleep(false);
        let before = std::mem::replace(&mut self.seen, engine.compactor().nr_woken());
        let pass = engine.gate().enter(folioswap_sys::signals::thread_id());
        engine.ram().zones().all().iter().for_each(|zone| zone.pageblocks().tick());
        engine.stats().compact_daemon_wake.add(1);
        let is_wanted = engine.compactor().take_whole_wanted();
        let turn = self.pacing.begin(Instant::now(), is_wanted, self.seen != before);
        keep_pageblocks_for(engine, turn.demand);
        let mut is_done = true;
        if turn.rest.is_none() {
            // Every zone is compacted, even if another one failed.
            for zone in engine.ram().zones().all() {
                is_done &= compact_ahead(engine, zone, turn.only_calm);
            }
        }
        drop(pass);
        self.since = Instant::now();
        self.pause = self.pacing.end(turn, self.since, is_done);
        engine.compactor().sleep(matches!(self.pause, Pause::Asleep(_)));
        self.is_due(engine).err().unwrap_or(Some(Duration::ZERO))
    }

    /// Whether the pause is over; else what is left of it.
    fn is_due(&self, engine: &Engine) -> Result<(), Option<Duration>> {
        let (is_woken, limit) = match self.pause {
            Pause::Asleep(limit) => (engine.compactor().is_whole_wanted(), Some(limit)),
            Pause::Waiting(limit) => (engine.compactor().nr_woken() != self.seen, limit),
        };
        let left = limit.map(|limit| limit.saturating_sub(self.since.elapsed()));
        if is_woken || left == Some(Duration::ZERO) { Ok(()) } else { Err(left) }
    }
}

/// Keeps some pageblocks free while whole folios find no place.
fn keep_pageblocks_for(engine: &Engine, demand: Demand) {
    match demand {
        Demand::Fresh => {
            engine.ram().zones().keep_whole(engine.ram().budget_blocks() / KEPT_WHOLE_SHARE);
            engine.ram().reclaim_wanted().signal();
        }
        Demand::Over => engine.ram().zones().keep_whole(0),
        Demand::Same => {}
    }
}

/// Moves small folios of a zone together until `nr_enough` pageblocks are wholly free; an explicit run moves as
/// many as it can. `stop` is called before each block. A direct run takes its pageblock under the lock of the run:
/// otherwise the next waiter would take it, and this thread would have to wait again.
fn compact_frames(
    engine: &Engine,
    zone: &Zone,
    run: Purpose,
    nr_enough: usize,
    mut stop: impl FnMut() -> bool,
) -> Option<(Report, Option<Taken>)> {
    let stage = engine.compactor().stage()?;
    let _blocked = folioswap_sys::signals::block_all(); // a handler's fault might compact too
    if zone.counts().limit <= Order::HUGE.nr_pages() + SLACK {
        return None;
    }
    let mut progress = engine.compactor().state(engine.ram().zones().index_of(zone.first_frame()));
    while zone.counts().free < Order::HUGE.nr_pages() + SLACK {
        if !engine.ram().evict_standby_of(engine.table(), zone, Order::PAGE) {
            return None;
        }
    }
    let moving = Moving::new(engine, zone, run == Purpose::Direct);
    let space = ZoneSpace::new(zone, &moving, nr_enough);
    let space = if run == Purpose::InCalm { space.only_calm() } else { space };
    let stop = &mut || engine.stopping() || engine.gate().is_closed() || stop();
    let (wanted, mode) = match run {
        Purpose::Explicit => (None, Mode::Sync),
        Purpose::InCalm | Purpose::Ahead | Purpose::Direct => (Some(Order::HUGE), Mode::Async),
    };
    let compaction = if run == Purpose::InCalm { &mut progress.in_calm } else { &mut progress.everywhere };
    let report = compaction.run(&space, Request { wanted, mode, stage }, stop);
    let taken = if run == Purpose::Direct { engine.ram().take_now_in(zone, Order::HUGE) } else { None };
    drop(progress);
    count_compaction(engine, &report.counters);
    if report.outcome == Outcome::Free && taken.is_none() {
        engine.ram().frame_freed().signal();
    }
    Some((report, taken))
}

/// Pageblocks of a zone that should be wholly free: those that are kept, and three quarters of those that the free
/// frames above the high watermark could fill. If all folios are small, only those that are kept.
fn compaction_goal(engine: &Engine, zone: &Zone) -> usize {
    let counts = zone.counts();
    let kept = counts.kept_whole / Order::HUGE.nr_pages();
    if kept == 0 && engine.policy().fixed_order().is_some_and(|order| order < Order::HUGE) {
        return 0;
    }
    let spare = counts.free.saturating_sub(counts.watermarks.high);
    kept.max(spare / Order::HUGE.nr_pages() * 3 / 4)
}

/// To be called after frames were freed: wakes the thread if it can make whole pageblocks of them.
pub(crate) fn look_for_whole(engine: &Engine) {
    let _blocked = folioswap_sys::signals::block_all(); // a handler's fault might lock a zone
    let lacks_whole = |zone: &Zone| zone.free_runs(Order::HUGE) < compaction_goal(engine, zone);
    if engine.compactor().stage().is_some() && engine.ram().zones().all().iter().any(lacks_whole) {
        engine.compactor().wake();
    }
}

/// Makes as many pageblocks wholly free as should be, one at a time, so that waiting faults get their turn in
/// between. `false`: no more could be made.
fn compact_ahead(engine: &Engine, zone: &Zone, only_calm: bool) -> bool {
    let run = if only_calm { Purpose::InCalm } else { Purpose::Ahead };
    loop {
        if !only_calm {
            zone.drain(); // frames in per-CPU lists are in no free run
        }
        make_huge_again(engine, zone);
        let nr_free = zone.free_runs(Order::HUGE);
        if nr_free >= compaction_goal(engine, zone) {
            return true;
        }
        let stop = || engine.compactor().has_direct();
        let report = compact_frames(engine, zone, run, nr_free + 1, stop);
        match report.map(|(report, _)| report.outcome) {
            Some(Outcome::Free) => {}
            Some(Outcome::Stopped) if stop() => {}
            // Too few frames are free, and small folios are colder than whole ones: reclaim them.
            None if run == Purpose::Ahead
                && older_class(zone, List::Inactive) == Some(Size::Small)
                && reclaimd::empty_a_pageblock_of(engine, zone) => {}
            _ => return false,
        }
        while stop() && !engine.stopping() && !engine.gate().is_closed() {
            folioswap_sys::futex::sleep(POLITE);
        }
    }
}

/// Compacts all of RAM, and waits a little for busy folios. Faults go without compaction meanwhile. Returns whether
/// all zones were scanned to the end.
pub(crate) fn compact_all(engine: &Engine) -> bool {
    engine.compactor().begin_explicit();
    while engine.compactor().has_direct() {
        folioswap_sys::futex::sleep(POLITE); // faults that began before
    }
    let compact = |zone| compact_frames(engine, zone, Purpose::Explicit, 0, || false);
    let zones = engine.ram().zones().all().iter().filter(|zone| zone.counts().limit > Order::HUGE.nr_pages() + SLACK);
    let reports: Vec<_> = zones.map(compact).collect();
    engine.compactor().end_explicit();
    reports.iter().all(|run| run.is_some_and(|(report, _)| report.outcome == Outcome::Met))
}

/// Makes a free pageblock for a fault of a whole folio that finds no place.
pub(crate) fn compact_directly(engine: &Engine) -> Option<Taken> {
    engine.compactor().want_whole();
    let goes = engine.compactor().begin_direct();
    let compact = |zone| {
        let (Report { counters, .. }, taken) = compact_frames(engine, zone, Purpose::Direct, 1, || false)?;
        engine.stats().compact_stall.add(counters.compact_stall);
        engine.stats().compact_success.add(counters.compact_success);
        engine.stats().compact_fail.add(counters.compact_fail);
        taken
    };
    let taken = if goes { engine.ram().zones().near(current_cpu()).find_map(compact) } else { None };
    engine.compactor().end_direct();
    taken
}

/// Gives huge pages to wholly free pageblocks of a zone that have small pages.
fn make_huge_again(engine: &Engine, zone: &Zone) {
    while !engine.stopping() && !engine.gate().is_closed() {
        let Some(taken) = zone.pageblocks().take_divided() else { return };
        debug_assert_eq!(taken.memory, Memory::Small);
        if engine.ram().try_make_huge(taken) {
            engine.ram().release(taken.frame);
            continue;
        }
        return; // the kernel has no huge page now; tried again at the next compaction
    }
}

fn count_compaction(engine: &Engine, counters: &CompactCounters) {
    let stats = engine.stats();
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

#[cfg(test)]
mod tests {
    use super::compact_directly;
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
        let taken = compact_directly(engine).expect("half of all frames are free");
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
        let taken: Vec<_> = std::iter::from_fn(|| compact_directly(engine)).take(64).collect();
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
