//! Decides what a thread does when it gets no frames for a folio.
//!
//! It looks again if frames were freed after it looked, takes a smaller folio if the free frames are scattered, and
//! reclaims otherwise. It is patient while any frame is freed.

use std::time::{Duration, Instant};

use super::counts::Contiguity;
use super::zones::Zones;
use crate::order::Order;

/// How long a thread waits for a whole pageblock, up to its next look, while most frames in use are those of small
/// folios, which leave RAM one by one.
const WHOLE_PATIENCE: Duration = Duration::from_millis(2);

/// The time between two looks counts for this at most: the process may have been stopped meanwhile.
const MOST_COUNTED: Duration = Duration::from_secs(5);

/// How often a thread looks again at frames that were freed after it looked. Others may take them first.
const MOST_LATE: usize = 64;

/// One thread's attempts to get frames.
#[derive(Debug)]
pub struct Shortage {
    order: Order,
    /// The count of freed frames before the last attempt.
    freed: u32,
    /// Frames were freed between the last two attempts.
    progress: bool,
    nr_late: usize,
    /// Since when this thread has waited.
    begun: Option<Instant>,
    /// Since when no frame was freed, later by what does not count.
    since: Option<Instant>,
    /// When this thread last looked.
    looked: Option<Instant>,
}

/// What to do after a failed attempt.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub enum Miss {
    /// Look again: frames were freed after this thread looked.
    Late,
    /// Take a smaller folio: there are enough frames, but they are not contiguous.
    Scattered,
    /// Reclaim frames.
    Short {
        /// A new wait begins.
        is_first: bool,
        /// No frame has been freed for so long that the thread should look for the cause.
        is_long: bool,
    },
}

impl Shortage {
    /// No attempt yet.
    pub fn new(order: Order) -> Self {
        Shortage { order, freed: 0, progress: false, nr_late: 0, begun: None, since: None, looked: None }
    }

    /// To be called before each attempt, with the count of freed frames.
    pub fn attempt(&mut self, freed: u32) {
        self.progress |= freed != self.freed;
        self.freed = freed;
    }

    /// The count of freed frames before the last attempt.
    pub fn freed(&self) -> u32 {
        self.freed
    }

    /// Decides after a failed attempt. Reads the zones' counts, and locks a zone for a moment.
    pub fn missed(&mut self, zones: &Zones, now: Instant, patience: Duration) -> Miss {
        let contiguity = zones.contiguity(self.order);
        if contiguity == Contiguity::Run && self.nr_late < MOST_LATE {
            self.nr_late += 1;
            return Miss::Late;
        }
        if self.are_scattered(zones, contiguity) || self.waits_in_vain(zones, now) {
            return Miss::Scattered;
        }
        let between = self.looked.replace(now).map_or(Duration::ZERO, |looked| now.duration_since(looked));
        self.since = self.since.map(|since| since + between.saturating_sub(MOST_COUNTED));
        if std::mem::take(&mut self.progress) {
            self.since = self.since.map(|_| now); // other threads took the frames
        }
        let is_first = self.since.is_none();
        let is_long = now.duration_since(*self.since.get_or_insert(now)) > patience;
        if is_long {
            self.since = None;
        }
        Miss::Short { is_first, is_long }
    }

    /// Whether the folio is whole, and has waited for long enough while most frames are those of small ones.
    fn waits_in_vain(&mut self, zones: &Zones, now: Instant) -> bool {
        let begun = *self.begun.get_or_insert(now);
        let are_most_small = || {
            let counts = zones.counts();
            counts.small.in_use() * 2 > counts.lists.in_use()
        };
        self.order == Order::HUGE && now.duration_since(begun) > WHOLE_PATIENCE && are_most_small()
    }

    /// Whether there are enough frames for the folio, but not contiguous ones. `contiguity` is a snapshot of one
    /// moment. More frames may have been freed since this thread got none, which is no reason to split a folio.
    fn are_scattered(&self, zones: &Zones, contiguity: Contiguity) -> bool {
        if self.order == Order::PAGE {
            return false;
        }
        let counts = zones.counts();
        let wanted = counts.watermarks.low.max(self.order.nr_pages());
        match contiguity {
            Contiguity::Pieces => counts.available() >= wanted,
            // Frames of small clean folios are scattered too.
            Contiguity::Few => self.order == Order::HUGE && counts.small.clean >= wanted,
            Contiguity::Run => false,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::List;
    use crate::id::{BlockId, FrameId};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A zone of four pageblocks, all of it taken in runs of this order.
    fn taken(order: Order) -> (Zones, Vec<FrameId>) {
        let zones = Zones::new(4, 1, 1, Box::new([0]));
        zones.set_limit(4 * Order::HUGE.nr_pages());
        let zone = &zones.all()[0];
        let take = || zone.take(order, 0);
        let frames = std::iter::from_fn(|| {
            let taken = take()?;
            Some(if taken.order == order { taken.frame } else { zone.carve(taken.frame, order) })
        });
        let frames = frames.collect();
        (zones, frames)
    }

    fn short(is_first: bool, is_long: bool) -> Miss {
        Miss::Short { is_first, is_long }
    }

    #[test]
    fn without_progress_the_thread_looks_for_the_cause_and_begins_anew() {
        let (zones, _) = taken(Order::HUGE);
        let begun = Instant::now();
        let mut shortage = Shortage::new(Order::HUGE);
        let mut seen = (0, 7);
        let mut missed = |after_s: u64, freed: u32| {
            let (last_s, last_freed) = std::mem::replace(&mut seen, (after_s, freed));
            let mut look = |at_s, freed| {
                shortage.attempt(freed);
                shortage.missed(&zones, begun + Duration::from_secs(at_s), PATIENCE)
            };
            (last_s + 1..after_s).for_each(|at_s| _ = look(at_s, last_freed));
            look(after_s, freed)
        };
        assert_eq!([missed(0, 7), missed(19, 7)], [short(true, false), short(false, false)]);
        assert_eq!(missed(21, 7), short(false, true));
        assert_eq!([missed(22, 7), missed(41, 8)], [short(true, false), short(false, false)]);
        assert_eq!(missed(60, 8), short(false, false), "a frame was freed at 41 s");
        assert_eq!(missed(62, 8), short(false, true));
    }

    #[test]
    fn the_time_for_which_the_process_is_stopped_does_not_count() {
        let (zones, _) = taken(Order::PAGE);
        let begun = Instant::now();
        let mut shortage = Shortage::new(Order::PAGE);
        let mut missed = |after_s: u64| shortage.missed(&zones, begun + Duration::from_secs(after_s), PATIENCE);
        assert_eq!([missed(0), missed(100)], [short(true, false), short(false, false)]);
        assert!((101..=115).all(|at_s| missed(at_s) == short(false, false)));
        assert_eq!([missed(116), missed(117)], [short(false, true), short(true, false)]);
    }

    #[test]
    fn frames_in_pieces_are_for_smaller_folios() {
        let (zones, frames) = taken(Order::PAGE);
        frames.iter().step_by(2).for_each(|&frame| zones.of(frame).give(frame));
        let piece = Order::new(4).expect("an order");
        for order in [piece, Order::HUGE] {
            let mut shortage = Shortage::new(order);
            assert_eq!(shortage.missed(&zones, Instant::now(), PATIENCE), Miss::Scattered, "{order}");
        }
    }

    #[test]
    fn a_whole_folio_waits_for_a_moment_only_among_small_ones() {
        let begun = Instant::now();
        let missed = |order, wanted| {
            let (zones, frames) = taken(order);
            let zone = &zones.all()[0];
            for (block, &frame) in frames.iter().enumerate() {
                zone.insert_for(BlockId::from_index(block).page(0), frame, List::Inactive);
            }
            let mut shortage = Shortage::new(wanted);
            [0, 1, 3, 4].map(|ms| shortage.missed(&zones, begun + Duration::from_millis(ms), PATIENCE))
        };
        let [first, waits] = [short(true, false), short(false, false)];
        assert_eq!(missed(Order::PAGE, Order::HUGE), [first, waits, Miss::Scattered, Miss::Scattered]);
        assert_eq!(missed(Order::HUGE, Order::HUGE), [first, waits, waits, waits], "whole ones leave whole");
        assert_eq!(missed(Order::PAGE, Order::PAGE), [first, waits, waits, waits]);
    }

    #[test]
    fn what_was_freed_too_late_is_looked_at_a_few_times() {
        let (zones, frames) = taken(Order::PAGE);
        zones.of(frames[0]).give(frames[0]);
        let mut shortage = Shortage::new(Order::PAGE);
        let mut missed = || shortage.missed(&zones, Instant::now(), PATIENCE);
        assert!((0..MOST_LATE).all(|_| missed() == Miss::Late));
        assert_eq!(missed(), short(true, false));
    }
}
