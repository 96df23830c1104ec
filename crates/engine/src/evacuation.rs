//! Emptying a device that is failing: by the thread that moves slots, in the background, folio by folio as a removal does.
//!
//! What can be read goes to other devices, or to RAM that is free; what is in RAM gives up its copy. What cannot be read
//! stays, alone: from a large folio the parts that can be are split off. When nothing is left there the device is gone;
//! till then it is tried again, after longer and longer pauses, since room may have been made elsewhere, or the device
//! may have come to itself. Whoever touches what is left there tries to read it too, and is told.
//!
//! A step ends early when somebody wants to add or remove a device: one may be added because this one fails.

use std::time::{Duration, Instant};

use folioswap_core::{BlockId, DeviceId, Locked, PIECE};
use folioswap_sys::signals;

use crate::engine::Engine;
use crate::removal::{Buffer, FAILURES, Stuck};

/// The pause after the first step, doubled with each.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// When failing devices are looked at again.
#[derive(Default)]
pub(crate) struct Evacuation {
    /// The pause after the next step, and when that is due; none: no device is failing.
    next: Option<(Duration, Instant)>,
}

impl Evacuation {
    /// Begins anew at once: one more device is failing, or there is more room.
    pub fn begin(&mut self) {
        self.next = Some((FIRST_PAUSE, Instant::now()));
    }

    /// Takes a step if one is due. Says for how long there is nothing to do; none: until a device fails.
    pub fn step(&mut self, engine: &Engine) -> Option<Duration> {
        let (pause, due) = self.next?;
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        let any_left = engine.empty_failing_devices();
        engine.end_lost_elsewhere();
        self.next = any_left.then(|| ((pause * 2).min(LONGEST_PAUSE), Instant::now() + pause));
        any_left.then_some(pause)
    }
}

impl Engine {
    /// Moves what can be read away from each failing device, and ends those that are empty. Says whether some are left.
    fn empty_failing_devices(&self) -> bool {
        let Some(_alone) = self.space.try_changing() else { return true };
        let mut any_left = false;
        for device in self.space.failing_devices() {
            {
                let _pass = self.gate.enter(signals::thread_id());
                self.space.begin_removal(device);
            }
            if !self.space.is_unused(device) {
                self.walk_failing(device);
                self.reclaim_wanted.signal(); // what is being written there settles
            }
            if self.space.is_unused(device) {
                self.space.detach(device);
            } else {
                any_left = true;
            }
        }
        any_left
    }

    fn walk_failing(&self, device: DeviceId) {
        let mut buffer = Buffer::new();
        for index in self.addresses.in_use().into_iter().flatten() {
            if self.stopping() || self.space.is_change_wanted() {
                return;
            }
            let block = BlockId::from_index(index);
            if !self.table.has(block) {
                continue;
            }
            let _pass = self.gate.enter(signals::thread_id());
            let mut locked = self.lock(block);
            let moved = self.free_copies(&mut locked, device);
            if moved.and_then(|()| self.carry_readable(&mut locked, device, &mut buffer)).is_err() {
                return; // there is no room
            }
        }
    }

    /// Carries all of a block away that is on the device only and can be read.
    fn carry_readable(&self, locked: &mut Locked<'_>, device: DeviceId, buffer: &mut Buffer) -> Result<(), Stuck> {
        let (mut page, mut alone_until, mut failures) = (0, 0, 0);
        while let Some(mut run) = self.next_run(locked, page, device) {
            let order = locked.order();
            if run.pages.start < alone_until {
                run.pages.end = run.pages.start + order.nr_pages();
            }
            page = run.pages.start;
            match self.carry_run(locked, &run, buffer) {
                Ok(true) => failures = 0,
                Ok(false) if failures == FAILURES => return Err(Stuck::Full),
                Ok(false) => failures += 1,
                // A part of it may be readable.
                Err(Stuck::Lost(_)) if run.pages.len() > order.nr_pages() => alone_until = run.pages.end,
                Err(Stuck::Lost(_)) if order > PIECE => self.split_block(locked, PIECE),
                Err(Stuck::Lost(_)) => page = run.pages.end,
                Err(stuck) => return Err(stuck),
            }
        }
        Ok(())
    }
}
