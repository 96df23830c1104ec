//! Discards: the background thread gives the space of emptied clusters back to the file system.
//!
//! Discarding a cluster that is reused soon would be wasted work. So discards begin when more slots are free than used
//! and this has lasted for a while. They end when it is no longer so; a few clusters are discarded at a time.

use std::time::{Duration, Instant};

use folioswap_sys::signals;

use crate::process::wakeup::{Gate, Pass};
use crate::swap::devices::Devices;

/// How long most of the space must have been free.
const DISCARD_DELAY: Duration = Duration::from_millis(500);

/// Clusters discarded before the thread checks for other work: ext4 on a virtual disk takes 2 to 5 ms per cluster.
const BATCH: usize = 4;

/// State of the thread's discards.
#[derive(Default)]
pub(crate) enum Discards {
    /// Nothing is to be discarded.
    #[default]
    None,
    /// Most of the space has been free since this moment.
    Since(Instant),
    /// It was free for long enough: discards are in progress.
    Giving,
}

/// What the thread does next.
pub(crate) enum Next {
    /// Sleep until it is woken.
    Sleep,
    /// The same, but for this long at most.
    SleepFor(Duration),
    /// Continue at once.
    GoOn,
}

impl Discards {
    /// Discards a few clusters if it is time to. For a thread that is outside the fork gate.
    pub fn step(&mut self, devices: &Devices, gate: &Gate) -> Next {
        let enter = || Some(gate.enter(signals::thread_id()));
        match self {
            Discards::Giving if discard(devices, BATCH, &enter) => return Next::GoOn,
            Discards::None | Discards::Since(_) if are_due(devices) => {
                let waited = match self {
                    Discards::Since(since) => since.elapsed(),
                    _ => {
                        *self = Discards::Since(Instant::now());
                        Duration::ZERO
                    }
                };
                if waited < DISCARD_DELAY {
                    return Next::SleepFor(DISCARD_DELAY - waited);
                }
                *self = Discards::Giving;
                return Next::GoOn;
            }
            _ => {}
        }
        // All was discarded, or is used again.
        *self = Discards::None;
        Next::Sleep
    }
}

/// Whether a device has enough emptied clusters to give some back.
fn are_due(devices: &Devices) -> bool {
    devices.each().any(|(_, attached)| attached.discards_due())
}

/// Gives up to `most` emptied clusters back on each device that has more of them than clusters in use. `false`: no
/// device has. `enter` passes the fork gate.
fn discard<'g>(devices: &Devices, most: usize, enter: &dyn Fn() -> Option<Pass<'g>>) -> bool {
    let mut any = false;
    for (id, attached) in devices.each().filter(|(_, attached)| attached.nr_spare() > 0) {
        attached.discard(most, enter);
        let _inside = enter();
        devices.availability.freed(id);
        any = true;
    }
    any
}
