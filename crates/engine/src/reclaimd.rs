//! The reclaim thread: keeps free frames and clean folios between the watermarks, with several writes in flight.
//! It sleeps while there are enough, and an idle arena costs no CPU.

use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::fatal::AbortOnPanic;
use crate::reclaim::{Laundered, Outgoing};
use crate::transfer::{Direction, Transfers};

/// Folios kept unmapped ahead of their write, as a share of the budget's blocks: the time they have to be referenced.
const LAUNDRY_SHARE: usize = 32;

/// How often, while there is something to reclaim, the share of huge pages is looked at.
const MEASURE_EVERY: Duration = Duration::from_millis(500);

type Writes<'t> = Transfers<Outgoing<'t>>;

/// What a step of the thread came to.
enum Step {
    Progress,
    Stuck,
}

/// The thread's body; returns when the arena stops.
pub(crate) fn run(engine: &Engine) {
    let _abort = AbortOnPanic("reclaim");
    let thread = folioswap_sys::signals::thread_id();
    let mut writes = Writes::new();
    let mut measured = Instant::now();
    while !engine.stopping() {
        let seen = engine.reclaim_wanted.now();
        reclaim(engine, &mut writes, thread);
        if measured.elapsed() > MEASURE_EVERY {
            // For the statistics alone; a kernel that cannot tell (before 6.7) leaves them without this number.
            let _ = engine.measure();
            measured = Instant::now();
        }
        if !engine.stopping() {
            engine.reclaim_wanted.wait(seen);
        }
    }
    while writes.nr_in_flight() > 0 {
        finish(engine, &mut writes, 1);
    }
}

/// Reclaims until as many frames are to be had as the high watermark asks for, or nothing more can be done.
fn reclaim<'e>(engine: &'e Engine, writes: &mut Writes<'e>, thread: u32) {
    let mut stuck = 0;
    while !engine.stopping() {
        let pass = match engine.gate.try_enter(thread) {
            Some(pass) => pass,
            None => {
                // Whoever closes the gate waits for those inside, and they may wait for a folio that is being written.
                while writes.nr_in_flight() > 0 {
                    finish(engine, writes, 1);
                }
                engine.gate.enter(thread)
            }
        };
        give_back_surplus(engine);
        let target = engine.zone.watermarks().high + engine.excess();
        let coming = engine.zone.available() + writes.nr_in_flight();
        let step = if coming < target && writes.has_room() { reclaim_one(engine, writes) } else { Step::Stuck };
        drop(pass);
        match step {
            Step::Progress => {
                stuck = 0;
                finish(engine, writes, 0);
            }
            Step::Stuck if writes.nr_in_flight() > 0 => finish(engine, writes, 1),
            Step::Stuck if coming >= target || stuck > 3 => return,
            Step::Stuck => {
                stuck += 1;
                std::thread::yield_now();
            }
        }
    }
}

/// Unmaps ahead, and cleans the oldest folio of the laundry.
fn reclaim_one<'e>(engine: &'e Engine, writes: &mut Writes<'e>) -> Step {
    let counts = engine.zone.counts();
    let mut progress = false;
    if counts.laundry < (counts.limit / LAUNDRY_SHARE).max(2) {
        progress = engine.unmap_oldest();
    }
    match engine.launder_oldest() {
        Laundered::Clean => Step::Progress,
        Laundered::Write(outgoing) => {
            match engine.space.extent(outgoing.slot) {
                Some(extent) if writes.asynchronous() => {
                    let home = engine.frames.home(outgoing.frame);
                    writes.start(Direction::Write, extent, home, engine.folio_bytes(), outgoing);
                }
                _ => {
                    engine.write_now(outgoing);
                }
            }
            Step::Progress
        }
        Laundered::NoSlot | Laundered::Nothing => {
            if progress {
                Step::Progress
            } else {
                Step::Stuck
            }
        }
    }
}

fn finish<'e>(engine: &'e Engine, writes: &mut Writes<'e>, min: usize) {
    writes.finish(min, |outgoing, written| {
        engine.finish_write(outgoing, written);
    });
}

/// Gives memory back to the kernel after the budget was made smaller: free frames first, then clean folios' frames.
fn give_back_surplus(engine: &Engine) {
    let clean = || (engine.excess() > 0).then(|| engine.steal_standby()).flatten();
    while let Some(frame) = engine.zone.take_surplus().or_else(clean) {
        engine.frames.unpopulate(frame);
        engine.zone.give_unpopulated(frame);
        engine.frame_freed.signal();
    }
}
