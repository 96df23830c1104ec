//! Giving the space of emptied clusters back to the file system, by the reclaim thread when it has nothing else to do.
//!
//! A cluster that is used again soon would have been punched and reserved for nothing, so it is done only when more is
//! free than is used, and has been for a moment. Then all of it goes, a few clusters at a time.

use std::time::{Duration, Instant};

use crate::engine::Engine;

/// How long much has to be free.
const AFTER: Duration = Duration::from_millis(500);

/// Clusters given back between two looks at whether frames are short: a few milliseconds.
const BATCH: usize = 16;

/// What the reclaim thread knows of it.
#[derive(Default)]
pub(crate) struct Discards {
    /// Since when much is free.
    since: Option<Instant>,
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
    /// Gives some back if it is time to.
    pub fn step(&mut self, engine: &Engine) -> Next {
        let waited = self.since.map(|since| since.elapsed());
        match waited {
            Some(waited) if waited >= AFTER => {
                if engine.space.discard(BATCH) {
                    return Next::GoOn;
                }
            }
            _ if engine.space.discards_due() => {
                self.since.get_or_insert_with(Instant::now);
                return Next::SleepFor(AFTER.saturating_sub(waited.unwrap_or_default()));
            }
            None => return Next::Sleep,
            Some(_) => {}
        }
        // All is given back, or used again.
        self.since = None;
        engine.space.forget_discards();
        if engine.space.discards_due() { Next::GoOn } else { Next::Sleep }
    }
}
