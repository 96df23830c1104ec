//! Paces the thread that compacts frames: what it does in a turn, and how long it waits for the next.
//!
//! - *Demand*: a whole folio found no contiguous frames in the last second. Pageblocks are kept free for such folios,
//!   and the thread looks often, because frames are freed without waking it.
//! - *Freeing*: frames were freed since the last turn. Only calm pageblocks are worth the work.
//! - After a turn in which nothing could be made, the thread rests.

use std::time::{Duration, Instant};

/// While frames are being freed, the pause after a turn that made nothing is this many times as long as the turn.
const PAUSES: u32 = 9;

/// How long demand lasts after the last whole folio that found no place.
const DEMAND_LASTS: Duration = Duration::from_secs(1);

/// Rest after a turn that made nothing. Also the longest pause while frames are being freed.
const REST: Duration = Duration::from_millis(100);

/// Pause between two turns while there is demand.
const AGAIN: Duration = Duration::from_millis(10);

/// The pace of one thread. The caller reads the clock.
#[derive(Debug, Default)]
pub struct Pacing {
    wanted_last: Option<Instant>,
    failed_last: Option<Instant>,
}

/// One turn of the thread.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct Turn {
    /// How demand has changed.
    pub demand: Demand,
    /// Compact calm pageblocks only.
    pub only_calm: bool,
    /// Do not compact: rest for this long.
    pub rest: Option<Duration>,
    begun: Instant,
}

/// A change of demand for whole folios.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub enum Demand {
    /// A whole folio found no place: keep pageblocks free.
    Fresh,
    /// No change.
    Same,
    /// It has ended: keep none.
    Over,
}

/// The wait after a turn.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub enum Pause {
    /// Until whole folios are wanted, for this long at most. Freed frames do not end it.
    Asleep(Duration),
    /// Until the thread is woken, for this long at most if there is a limit.
    Waiting(Option<Duration>),
}

impl Pacing {
    /// The shortest pause while frames are being freed: freeing has stopped once no frame was freed for this long.
    pub const CALM: Duration = Duration::from_millis(2);

    /// Begins a turn. `is_wanted`: a whole folio found no place since the last turn. `is_freeing`: frames were freed
    /// since.
    pub fn begin(&mut self, now: Instant, is_wanted: bool, is_freeing: bool) -> Turn {
        let demand = match self.wanted_last {
            _ if is_wanted => Demand::Fresh,
            Some(last) if now.duration_since(last) > DEMAND_LASTS => Demand::Over,
            _ => Demand::Same,
        };
        match demand {
            Demand::Fresh => self.wanted_last = Some(now),
            Demand::Over => self.wanted_last = None,
            Demand::Same => {}
        }
        let only_calm = self.wanted_last.is_none() && is_freeing;
        let rest = self.failed_last.and_then(|last| REST.checked_sub(now.duration_since(last)));
        Turn { demand, only_calm, rest, begun: now }
    }

    /// Ends a turn. `is_done`: as many pageblocks are free as should be, or the thread rested.
    pub fn end(&mut self, turn: Turn, now: Instant, is_done: bool) -> Pause {
        if turn.rest.is_none() {
            self.failed_last = (!is_done && !turn.only_calm).then_some(now);
        }
        if self.wanted_last.is_some() {
            return Pause::Waiting(Some(AGAIN));
        }
        match turn.only_calm {
            true if is_done => Pause::Asleep(Self::CALM),
            true => Pause::Asleep((now.duration_since(turn.begun) * PAUSES).clamp(Self::CALM, REST)),
            false => Pause::Waiting(turn.rest),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A turn that takes a millisecond.
    fn turn(pacing: &mut Pacing, now: Instant, wanted: bool, freeing: bool, is_done: bool) -> (Turn, Pause) {
        let turn = pacing.begin(now, wanted, freeing);
        let is_done = is_done || turn.rest.is_some();
        (turn, pacing.end(turn, now + MS, is_done))
    }

    #[test]
    fn without_demand_the_thread_sleeps_until_it_is_woken() {
        let (turn, pause) = turn(&mut Pacing::default(), Instant::now(), false, false, true);
        assert_eq!((turn.demand, turn.only_calm, turn.rest), (Demand::Same, false, None));
        assert_eq!(pause, Pause::Waiting(None));
    }

    #[test]
    fn while_frames_are_freed_a_turn_in_vain_is_followed_by_a_longer_pause() {
        let (mut pacing, now) = (Pacing::default(), Instant::now());
        let (first, pause) = turn(&mut pacing, now, false, true, true);
        assert!(first.only_calm && pause == Pause::Asleep(Pacing::CALM));
        let (_, pause) = turn(&mut pacing, now, false, true, false);
        assert_eq!(pause, Pause::Asleep(9 * MS));
        let (next, _) = turn(&mut pacing, now + 10 * MS, false, false, true);
        assert_eq!(next.rest, None, "only turns that looked everywhere are followed by a rest");
    }

    #[test]
    fn demand_lasts_for_a_second() {
        let (mut pacing, now) = (Pacing::default(), Instant::now());
        let (first, pause) = turn(&mut pacing, now, true, true, true);
        assert_eq!((first.demand, first.only_calm, pause), (Demand::Fresh, false, Pause::Waiting(Some(AGAIN))));
        let (later, pause) = turn(&mut pacing, now + 999 * MS, false, true, true);
        assert_eq!((later.demand, later.only_calm, pause), (Demand::Same, false, Pause::Waiting(Some(AGAIN))));
        let (last, pause) = turn(&mut pacing, now + 1001 * MS, false, true, true);
        assert_eq!((last.demand, last.only_calm, pause), (Demand::Over, true, Pause::Asleep(Pacing::CALM)));
    }

    #[test]
    fn the_thread_rests_after_a_turn_in_vain() {
        let (mut pacing, now) = (Pacing::default(), Instant::now());
        assert_eq!(turn(&mut pacing, now, false, false, false).1, Pause::Waiting(None));
        let (resting, pause) = turn(&mut pacing, now + 41 * MS, false, false, true);
        assert_eq!((resting.rest, pause), (Some(60 * MS), Pause::Waiting(Some(60 * MS))));
        assert_eq!(turn(&mut pacing, now + 102 * MS, false, false, true).0.rest, None);
    }
}
