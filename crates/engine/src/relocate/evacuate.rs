//! Evacuation of failing devices, by the background thread, folio by folio as in a removal.
//!
//! Readable content goes to other devices or to free RAM; folios in RAM give up their copies. Unreadable content stays;
//! the readable parts of a large folio are split off. When nothing is left there, the device is detached. Until then
//! steps are repeated with growing pauses, because there may be room elsewhere by then, or the device may have
//! recovered. A thread that touches unreadable content tries to read it too, and is told of the loss.
//!
//! A step ends early when somebody wants to add or remove a device: one may be added because this one fails.

use std::time::{Duration, Instant};

use folioswap_core::{BLOCK_PAGES, DeviceId, PIECE, State};
use folioswap_sys::signals;

use crate::block::{Block, SlotRun};
use crate::engine::Engine;
use crate::relocate::remove::{self, FAILURES, Stuck};
use crate::swap::block::Buffer;

/// The pause after the first step. It is doubled with each step.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// When the next step is due.
#[derive(Default)]
pub(crate) struct Evacuation {
    /// The pause after the next step, and when that step is due. `None`: no device is failing.
    next: Option<(Duration, Instant)>,
}

impl Evacuation {
    /// Takes a step if one is due. It is due at once if another device is failing, or there is more room. Returns how
    /// long there is nothing to do; `None`: until a device fails.
    pub fn step(&mut self, engine: &Engine) -> Option<Duration> {
        if engine.swap().slot_work().take_evacuation() {
            self.next = Some((FIRST_PAUSE, Instant::now()));
        }
        let (pause, due) = self.next?;
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        let any_left = empty_failing_devices(engine);
        end_lost_elsewhere(engine);
        self.next = any_left.then(|| ((pause * 2).min(LONGEST_PAUSE), Instant::now() + pause));
        any_left.then_some(pause)
    }
}

/// Moves readable content away from each failing device, and detaches those that are empty. Returns whether any are
/// left.
fn empty_failing_devices(engine: &Engine) -> bool {
    let Some(_alone) = engine.swap().devices().try_changing() else { return true };
    let mut any_left = false;
    for device in engine.swap().devices().failing_devices() {
        {
            let _pass = engine.gate().enter(signals::thread_id());
            engine.swap().devices().begin_removal(device);
        }
        if engine.swap().devices().device(device).nr_used() > 0 {
            walk_failing(engine, device);
            engine.ram().reclaim_wanted().signal(); // settles what is being written there
        }
        if engine.swap().devices().device(device).nr_used() == 0 {
            engine.swap().devices().detach(device);
        } else {
            any_left = true;
        }
    }
    any_left
}

fn walk_failing(engine: &Engine, device: DeviceId) {
    let mut buffer = Buffer::new();
    let is_over = || engine.stopping() || engine.swap().devices().is_change_wanted();
    // Ends early if there is no room left.
    let _ = engine.each_block_in_use(is_over, |id| {
        let mut block = engine.lock(id);
        remove::free_copies(engine, &mut block, device)?;
        carry_readable(engine, &mut block, device, &mut buffer)
    });
}

/// Moves the readable content of a block that is only on the device.
fn carry_readable(engine: &Engine, block: &mut Block<'_>, device: DeviceId, buffer: &mut Buffer) -> Result<(), Stuck> {
    let (mut page, mut alone_until, mut failures) = (0, 0, 0);
    while let Some(mut run) = SlotRun::next(block, page, device) {
        let order = block.order();
        if run.pages.start < alone_until {
            run.pages.end = run.pages.start + order.nr_pages();
        }
        page = run.pages.start;
        match remove::carry_run(engine, block, &run, buffer) {
            Ok(true) => failures = 0,
            Ok(false) if failures == FAILURES => return Err(Stuck::Full),
            Ok(false) => failures += 1,
            // A part of it may be readable.
            Err(Stuck::Lost(_)) if run.pages.len() > order.nr_pages() => alone_until = run.pages.end,
            Err(Stuck::Lost(_)) if order > PIECE => block.split_to(PIECE),
            Err(Stuck::Lost(_)) => page = run.pages.end,
            Err(stuck) => return Err(stuck),
        }
    }
    Ok(())
}

/// Ends the loss of all pages that are no longer on a failing device.
fn end_lost_elsewhere(engine: &Engine) {
    let lost = {
        let _pass = engine.gate().enter(signals::thread_id());
        engine.lost().blocks()
    };
    for id in lost {
        let _pass = engine.gate().enter(signals::thread_id());
        let block = engine.lock(id);
        for page in 0..BLOCK_PAGES {
            let is_lost = match block.state(block.index_of(page)) {
                State::Swapped(slot) => engine.swap().at(slot).health.is_failing(),
                State::Resident(_) | State::Standby(_) | State::Empty => false,
            };
            if !is_lost {
                block.end_lost(page..page + 1);
            }
        }
    }
}
