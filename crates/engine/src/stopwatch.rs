//! What a fault spends its time on: one reading of the clock where one phase ends and the next begins.
//!
//! A stopwatch is handed along with the fault. What is done for nobody who waits (readahead) has one that stands still.

use folioswap_core::{FaultTimes, Phase};
use folioswap_sys::clock::{Clock, Moment};

/// The phases of one fault so far.
pub(crate) struct Stopwatch<'c> {
    clock: Option<&'c Clock>,
    last: Option<Moment>,
    times: FaultTimes,
}

impl<'c> Stopwatch<'c> {
    /// The fault begins.
    pub fn start(clock: &'c Clock) -> Self {
        Stopwatch { clock: Some(clock), last: Some(clock.now()), times: FaultTimes::default() }
    }

    /// One that measures nothing.
    pub fn still() -> Self {
        Stopwatch { clock: None, last: None, times: FaultTimes::default() }
    }

    /// The time since the last lap, or the start, was spent on this phase. A phase may have several laps.
    pub fn lap(&mut self, phase: Phase) {
        if let (Some(clock), Some(last)) = (self.clock, self.last) {
            let now = clock.now();
            self.times.add(phase, clock.ns_between(last, now));
            self.last = Some(now);
        }
    }

    /// The fault ends with this phase: what it spent on each.
    pub fn stop(mut self, phase: Phase) -> FaultTimes {
        self.lap(phase);
        self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn laps_add_up_to_the_whole() {
        let clock = Clock::new();
        let spin = |us| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(us) {}
        };
        let begun = clock.now();
        let mut watch = Stopwatch::start(&clock);
        for (phase, us) in [(Phase::Table, 100), (Phase::Frame, 300), (Phase::Reclaim, 700), (Phase::Frame, 200)] {
            spin(us);
            watch.lap(phase);
        }
        spin(50);
        let times = watch.stop(Phase::Map);
        let whole_ns = clock.ns_between(begun, clock.now());
        assert!(times.total_ns() <= whole_ns && times.total_ns() >= 1_349_000, "{times:?} of {whole_ns}");
        assert!(times.get(Phase::Frame) >= 499_000 && times.get(Phase::Map) >= 49_000, "{times:?}");
        assert_eq!((times.get(Phase::Read), times.get(Phase::Free)), (0, 0), "they did not occur");
        assert_eq!(Stopwatch::still().stop(Phase::Map), FaultTimes::default());
    }
}
