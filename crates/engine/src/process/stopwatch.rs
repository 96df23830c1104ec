//! Measures a fault. Faults drawn at random, and long parts of others, are timed by phase, with one clock reading where
//! a phase ends. In all other faults the clock is read only at the beginning and the end.
//!
//! A stopwatch is passed along with the fault. Work for which nobody waits (readahead) has one that stands still.

use folioswap_core::{FaultTimes, Phase, is_drawn};
use folioswap_sys::clock::Moment;

/// The time of one fault so far. Public for `bench latency`, which measures its cost.
pub struct Stopwatch {
    running: Option<Running>,
    times: FaultTimes,
}

struct Running {
    last: Moment,
    /// Laps are timed.
    in_phases: bool,
    /// Laps were skipped since the last clock reading.
    passed_over: bool,
}

impl Running {
    fn since_last(&mut self) -> u64 {
        let last = std::mem::replace(&mut self.last, Moment::now());
        last.ns_until(self.last)
    }
}

impl Stopwatch {
    /// Begins a fault. Whether its phases are timed is drawn at random.
    pub fn start() -> Self {
        let last = Moment::now();
        Stopwatch::begun(last, is_drawn(last.reading()))
    }

    fn begun(last: Moment, drawn: bool) -> Self {
        let running = Some(Running { last, in_phases: drawn, passed_over: false });
        Stopwatch { running, times: FaultTimes::new(drawn) }
    }

    /// A stopwatch that measures nothing.
    pub fn still() -> Self {
        Stopwatch { running: None, times: FaultTimes::default() }
    }

    /// Begins a long part of the fault, for which the cost of the clock does not matter: phases are timed from here on.
    /// The time until now counts for the phase `before`, unless laps were skipped.
    pub fn long_part(&mut self, before: Phase) {
        if let Some(running) = &mut self.running {
            running.in_phases = true;
            if std::mem::take(&mut running.passed_over) {
                self.times.add_uncut(running.since_last());
                return;
            }
        }
        self.lap(before);
    }

    /// Counts the time since the last lap, or the start, for this phase. A phase may have several laps.
    #[inline]
    pub fn lap(&mut self, phase: Phase) {
        if let Some(running) = &mut self.running {
            if running.in_phases {
                self.times.add(phase, running.since_last());
            } else {
                running.passed_over = true;
            }
        }
    }

    /// Ends the fault with this phase. Returns its times, by phase where those were timed.
    pub fn stop(&mut self, phase: Phase) -> &FaultTimes {
        match &mut self.running {
            Some(running) if !running.in_phases => self.times.add_uncut(running.since_last()),
            _ => self.lap(phase),
        }
        &self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use folioswap_core::PHASES_OF_ONE_IN;
    use std::time::{Duration, Instant};

    const LAPS: [(Phase, u64); 4] =
        [(Phase::Table, 100), (Phase::Frame, 300), (Phase::Reclaim, 700), (Phase::Frame, 200)];

    fn spin(us: u64) {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(us) {}
    }

    /// The times of a fault with these laps and 50 us after them, and an upper bound of its length. A long part begins
    /// after `long` laps.
    fn timed(drawn: bool, long: Option<usize>) -> (FaultTimes, u64) {
        let begun = Moment::now();
        let mut watch = Stopwatch::begun(Moment::now(), drawn);
        for (index, (phase, us)) in LAPS.into_iter().enumerate() {
            if long == Some(index) {
                watch.long_part(Phase::Table);
            }
            spin(us);
            watch.lap(phase);
        }
        spin(50);
        let times = *watch.stop(Phase::Map);
        (times, begun.ns_until(Moment::now()))
    }

    #[test]
    fn laps_add_up_to_the_whole() {
        for (drawn, long) in [(true, None), (false, Some(0))] {
            let (times, whole_ns) = timed(drawn, long);
            assert!(times.total_ns() <= whole_ns && times.total_ns() >= 1_349_000, "{times:?} of {whole_ns}");
            assert!(times.get(Phase::Frame) >= 499_000 && times.get(Phase::Map) >= 49_000, "{times:?}");
            assert_eq!((times.get(Phase::Read), times.get(Phase::Free)), (0, 0), "they did not occur");
            assert_eq!(Phase::ALL.map(|phase| times.get(phase)).iter().sum::<u64>(), times.total_ns());
            assert!(times.longest().is_some() && times.is_drawn() == drawn, "{times:?}");
        }
        assert_eq!(*Stopwatch::still().stop(Phase::Map), FaultTimes::default());
    }

    #[test]
    fn without_phases_the_whole_is_timed() {
        let (times, whole_ns) = timed(false, None);
        assert!(times.total_ns() <= whole_ns && times.total_ns() >= 1_349_000, "{times:?} of {whole_ns}");
        assert_eq!(Phase::ALL.map(|phase| times.get(phase)), [0; Phase::NR]);
        assert_eq!((times.longest(), times.is_drawn()), (None, false));
    }

    #[test]
    fn from_a_long_part_on_phases_are_timed() {
        let (times, whole_ns) = timed(false, Some(2));
        assert!(times.total_ns() <= whole_ns && times.total_ns() >= 1_349_000, "{times:?} of {whole_ns}");
        assert!(times.get(Phase::Reclaim) >= 699_000 && times.get(Phase::Frame) >= 199_000, "{times:?}");
        assert_eq!(times.get(Phase::Table), 0, "what was before is not known");
    }

    #[test]
    fn some_are_drawn() {
        let drawn = (0..50_000).filter(|_| Stopwatch::start().stop(Phase::Map).is_drawn()).count() as u64;
        let expected = 50_000 / PHASES_OF_ONE_IN;
        assert!((expected / 2..expected * 2).contains(&drawn), "{drawn}, not about {expected}");
    }
}
