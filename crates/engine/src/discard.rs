//! Giving the space of emptied clusters back to the file system, by the thread that frees slots.
//!
//! A cluster that is used again soon would have been punched and reserved for nothing, so it is done only when more is
//! free than is used, and has been for a moment. Then it goes until that is no longer so, a few clusters at a time.

use std::time::{Duration, Instant};

use folioswap_sys::signals;

use crate::engine::Engine;

/// How long much has to be free.
const AFTER: Duration = Duration::from_millis(500);

/// Clusters given back between two looks at what else there is to free: ext4 on a virtual disk takes 2 to 5 ms for each.
const BATCH: usize = 4;

/// What the thread knows of it.
#[derive(Default)]
pub(crate) enum Discards {
    /// Nothing is to be given back.
    #[default]
    None,
    /// Much is free, since then.
    Since(Instant),
    /// It was free for long enough.
    Giving,
}

/// What the thread may do next.
pub(crate) enum Next {
    /// Sleep until it is woken.
    Sleep,
    /// The same, for so long at most.
    SleepFor(Duration),
    /// Come back at once.
    GoOn,
}

impl Discards {
    /// Gives some back if it is time to. For a thread that is outside the fork gate.
    pub fn step(&mut self, engine: &Engine) -> Next {
        let enter = || Some(engine.gate.enter(signals::thread_id()));
        match self {
            Discards::Giving if engine.space.discard(BATCH, &enter) => return Next::GoOn,
            Discards::None | Discards::Since(_) if engine.space.discards_due() => {
                let waited = match self {
                    Discards::Since(since) => since.elapsed(),
                    _ => {
                        *self = Discards::Since(Instant::now());
                        Duration::ZERO
                    }
                };
                if waited < AFTER {
                    return Next::SleepFor(AFTER - waited);
                }
                *self = Discards::Giving;
                return Next::GoOn;
            }
            _ => {}
        }
        // It was given back, or is used again.
        *self = Discards::None;
        Next::Sleep
    }
}
