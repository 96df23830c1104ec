//! The counters of the run, which its processes share.

use std::sync::OnceLock;

use folioswap::{RunSettings, SharedCounters, open_shared_stats};

static COUNTERS: OnceLock<&'static SharedCounters> = OnceLock::new();

/// Sets where this process is recorded.
pub fn note_in(counters: &'static SharedCounters) {
    let _ = COUNTERS.set(counters);
}

/// Where it is recorded.
pub fn get() -> Option<&'static SharedCounters> {
    COUNTERS.get().copied()
}

/// Notes that this process says why its memory is not paged.
pub fn note_unpaged() {
    if let Some(counters) = COUNTERS.get() {
        counters.note_unpaged(std::process::id());
    }
}

/// The counters that the settings name.
pub fn of(settings: &RunSettings) -> Option<&'static SharedCounters> {
    settings.stats.as_ref().and_then(|place| open_shared_stats(place).ok())
}
