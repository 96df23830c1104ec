//! The reclaim threads, one per zone. Each keeps its zone's free frames and clean folios between the watermarks, with
//! several writes in flight, and sleeps while there are enough, so an idle arena costs no CPU. A slow device of one
//! node does not delay the other zones.
//!
//! A device that compresses needs CPU time for each write. If there is one, the threads get *companions*, one for each
//! further CPU ([`MOST_THREADS`] threads in all). Each companion starts at a lower watermark than the one before.

use std::time::{Duration, Instant};

use folioswap_core::{FolioId, FrameId, List, Order, Watermarks, Zone};

use crate::block::Block;
use crate::engine::Engine;
use crate::process::fatal::EndOnPanic;
use crate::reclaim::evict::{self, Laundered};
use crate::reclaim::write_out::{self, Batch, Outgoing};
use crate::swap::transfer::{Direction, Transfers};

/// Share of the budget kept unmapped ahead of writing. These folios can still be referenced before they are written.
const LAUNDRY_SHARE: usize = 32;

/// The largest share of a zone that is freed for faults that wait.
const AWAITED_SHARE: usize = 8;

/// How often the share of huge pages is measured while there is something to reclaim.
const MEASURE_EVERY: Duration = Duration::from_millis(500);

type Writes<'t> = Transfers<Outgoing<'t>>;

/// Pause before a retry when the blocks of written folios are locked by others.
const UNSETTLED: Duration = Duration::from_millis(1);

/// Pause before another look for holds that are over.
const STUCK: Duration = Duration::from_millis(100);

/// Most threads that compress at once.
const MOST_THREADS: usize = 16;

/// Result of one step of the thread.
enum Step {
    Progress,
    Stuck,
}

#[derive(Copy, Clone)]
pub(crate) struct ReclaimThread {
    zone: usize,
    /// 0, or the number of the companion.
    companion: usize,
}

impl ReclaimThread {
    pub const FIRST: ReclaimThread = ReclaimThread { zone: 0, companion: 0 };

    pub fn of_zones(nr_zones: usize) -> impl Iterator<Item = ReclaimThread> {
        (0..nr_zones).map(|zone| ReclaimThread { zone, companion: 0 })
    }

    /// Companions for devices that compress, spread over the zones in turn.
    pub fn of_companions(nr_zones: usize, nr_cpus: usize) -> impl Iterator<Item = ReclaimThread> {
        let companion = move |number: usize| ReclaimThread { zone: number % nr_zones, companion: number / nr_zones };
        (nr_zones..nr_cpus.min(MOST_THREADS)).map(companion)
    }

    fn is_companion(self) -> bool {
        self.companion > 0
    }

    /// Whether this thread does the work that one thread does for all.
    fn is_first(self) -> bool {
        self.zone == 0 && !self.is_companion()
    }
}

/// The thread's body. Returns when the arena stops.
pub(crate) fn run(engine: &Engine, place: ReclaimThread, has_begun: impl FnOnce()) {
    let _end = EndOnPanic("reclaim");
    let thread = folioswap_sys::signals::thread_id();
    let mut writes = Writes::new();
    has_begun();
    let mut measured = Instant::now();
    while !engine.stopping() {
        let seen = engine.ram().reclaim_wanted().now();
        let is_stuck = reclaim(engine, &mut writes, thread, place) && !place.is_companion();
        if is_stuck && engine.ram().demand().let_go() {
            continue;
        }
        if place.is_first() && measured.elapsed() > MEASURE_EVERY {
            // For the statistics only. Kernels before 6.7 cannot measure this.
            let _ = engine.measure();
            measured = Instant::now();
        }
        let unsettled = engine.gate().try_enter(thread).is_none_or(|_pass| write_out::settle_rest(engine));
        match unsettled {
            _ if engine.stopping() => {}
            true => engine.ram().reclaim_wanted().wait_for(seen, UNSETTLED),
            false if is_stuck => engine.ram().reclaim_wanted().wait_for(seen, STUCK),
            false => engine.ram().reclaim_wanted().wait(seen),
        }
    }
    while writes.nr_in_flight() > 0 {
        finish(engine, &mut writes, true);
    }
}

/// Reclaims until the zone has as many frames available as the high watermark and those that faults wait for, or
/// nothing more can be done. Returns whether it has fewer.
fn reclaim<'e>(engine: &'e Engine, writes: &mut Writes<'e>, thread: u32, place: ReclaimThread) -> bool {
    let zone = &engine.ram().zones().all()[place.zone];
    let mut stuck = 0;
    let mut looks_at_stock = place.is_first();
    while !engine.stopping() {
        let pass = match engine.gate().try_enter(thread) {
            Some(pass) => pass,
            None => {
                // The thread that closes the gate waits for those inside, and they may wait for a folio that is being
                // written.
                while writes.nr_in_flight() > 0 {
                    finish(engine, writes, true);
                }
                engine.gate().enter(thread)
            }
        };
        if std::mem::take(&mut looks_at_stock) && are_frames_short(engine) && engine.ram().stock().is_idle() {
            engine.ram().give_stock_back();
        }
        let gave_back = !place.is_companion() && give_back_surplus(engine, zone);
        write_out::settle_rest(engine);
        let counts = zone.counts();
        let awaited =
            engine.ram().demand().nr_awaited().min((counts.limit / AWAITED_SHARE).max(Order::HUGE.nr_pages()));
        let Watermarks { low, high, .. } = counts.watermarks;
        let mark = high - (high - low) * place.companion / MOST_THREADS + awaited;
        let is_short = counts.shortage(mark) > in_flight_pages(writes);
        let step = if is_short && writes.has_room() { reclaim_one(engine, zone, writes, place) } else { Step::Stuck };
        drop(pass);
        match step {
            _ if gave_back => finish(engine, writes, false),
            Step::Progress => {
                stuck = 0;
                finish(engine, writes, false);
            }
            Step::Stuck if writes.nr_in_flight() > 0 => finish(engine, writes, true),
            Step::Stuck if !is_short || stuck > 3 => return is_short,
            Step::Stuck => {
                stuck += 1;
                folioswap_sys::cpu::yield_now();
            }
        }
    }
    false
}

/// Whether a zone has fewer frames available than its high watermark.
fn are_frames_short(engine: &Engine) -> bool {
    let mut counts = engine.ram().zones().all().iter().map(Zone::counts);
    counts.any(|counts| counts.shortage(counts.watermarks.high) > 0)
}

/// Unmaps folios ahead, and cleans the oldest folios of the laundry.
fn reclaim_one<'e>(engine: &'e Engine, zone: &Zone, writes: &mut Writes<'e>, place: ReclaimThread) -> Step {
    let counts = zone.counts();
    let mut progress = false;
    if counts.lists.laundry < (counts.limit / LAUNDRY_SHARE).max(2 * Order::HUGE.nr_pages()) {
        progress = evict::unmap_oldest(engine, zone, None);
    }
    match evict::launder_oldest(engine, zone, None) {
        Laundered::Clean => Step::Progress,
        Laundered::Write(outgoing) => {
            match engine.swap().extent(outgoing.slot()) {
                // A companion writes synchronously: otherwise it would keep buffers for which others wait, while it
                // waits for one itself.
                Some(extent) if writes.asynchronous() && !place.is_companion() => {
                    let (addr, len) = outgoing.memory(engine);
                    engine.writeback().transfers().begin();
                    // SAFETY: `outgoing` keeps its memory present and to itself until it is dropped: a folio at home
                    // whose block it has locked, or its own buffer. Its slots stay allocated, so the device is not
                    // removed and the descriptor stays open.
                    unsafe { writes.start(Direction::Write, extent, addr, len, outgoing) };
                    Step::Progress
                }
                _ if write_out::write_now(engine, outgoing) => Step::Progress,
                _ => Step::Stuck,
            }
        }
        Laundered::NoSlot | Laundered::Nothing if progress => Step::Progress,
        Laundered::NoSlot | Laundered::Nothing => Step::Stuck,
    }
}

/// Pages that become clean when the writes in flight end.
fn in_flight_pages(writes: &Writes<'_>) -> usize {
    writes.jobs().map(Outgoing::nr_pages).sum()
}

/// Puts folios on standby whose writes have ended. With `wait`, waits for one write if none has ended yet.
fn finish<'e>(engine: &'e Engine, writes: &mut Writes<'e>, mut wait: bool) {
    while let Some((outgoing, written)) = writes.finish(wait) {
        write_out::finish_write(engine, outgoing, written);
        engine.writeback().transfers().end();
        wait = false;
    }
}

/// Gives memory back to the kernel after the budget was lowered: free pageblocks first, then those of clean folios,
/// then those with the fewest small folios. Returns whether folios have left one of the last kind, so that there is
/// more to do.
fn give_back_surplus(engine: &Engine, zone: &Zone) -> bool {
    while zone.counts().surplus > 0 {
        engine.ram().give_stock_back();
        zone.drain();
        while let Some(pageblock) = zone.pageblocks().take_surplus() {
            // SAFETY: the zone has just handed out the whole pageblock, so nobody else uses it.
            unsafe { engine.ram().backing().unpopulate(pageblock) };
            engine.ram().release_unpopulated(pageblock);
            engine.ram().frame_freed().signal();
        }
        if zone.counts().surplus == 0 {
            break;
        }
        if !engine.ram().evict_standby_of(engine.table(), zone, Order::HUGE)
            && !engine.ram().evict_standby_of(engine.table(), zone, Order::PAGE)
        {
            return (0..zone.pageblocks().nr_looks()).any(|_| empty_a_pageblock_of(engine, zone));
        }
    }
    false
}

/// Evicts all small folios of one pageblock of a zone, because the budget was lowered or whole folios are wanted.
/// Returns whether any left.
pub(crate) fn empty_a_pageblock_of(engine: &Engine, zone: &Zone) -> bool {
    zone.drain();
    let Some(pageblock) = zone.pageblocks().emptiest() else { return false };
    let mut folios = Vec::new();
    zone.pageblocks().folios_in(pageblock, &mut |frame, folio, order| folios.push((frame, folio, order)));
    let mut batch: Option<Batch<'_>> = None;
    for &(frame, folio, order) in &folios {
        if let Some((mut block, index)) = lock_if_there(engine, frame, folio, order)
            && let Some(slot) = evict::wash_now(engine, &mut block, index)
        {
            write_out::send(engine, &mut batch, &mut block, index, slot);
        }
    }
    if let Some(rest) = batch {
        write_out::write_now(engine, Outgoing::Small(rest));
    }
    write_out::settle_rest(engine);
    let mut any = false;
    for (frame, folio, order) in folios {
        if let Some((mut block, index)) = lock_if_there(engine, frame, folio, order)
            && engine.ram().zone(frame).list(frame) == Some(List::Clean)
        {
            engine.ram().leave(&mut block, index);
            any = true;
        }
    }
    any
}

/// Locks the block of a folio that was found in these frames, if nobody holds it and the folio is still there.
fn lock_if_there<'e>(engine: &'e Engine, frame: FrameId, folio: FolioId, order: Order) -> Option<(Block<'e>, usize)> {
    let block = engine.try_lock(folio.block())?;
    let index = block.index_of(folio.page_in_block());
    (block.order() == order && block.folio(index).frame() == Some(frame)).then_some((block, index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_zone_has_a_thread_and_the_further_cpus_are_its_companions_by_turns() {
        let numbers = |places: &mut dyn Iterator<Item = ReclaimThread>| {
            places.map(|place| (place.zone, place.companion)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&mut ReclaimThread::of_zones(2)), [(0, 0), (1, 0)]);
        assert_eq!(numbers(&mut ReclaimThread::of_companions(2, 5)), [(0, 1), (1, 1), (0, 2)]);
        assert_eq!(numbers(&mut ReclaimThread::of_companions(1, 3)), [(0, 1), (0, 2)]);
        assert_eq!(ReclaimThread::of_companions(1, 64).count(), MOST_THREADS - 1);
        assert_eq!(numbers(&mut ReclaimThread::of_companions(4, 2)), []);
    }
}
