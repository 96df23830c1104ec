//! What is believed of blocks that nothing is known of, by the votes of others.

use crate::order::{Order, PIECE};

/// Votes that flip the belief, and the most that are kept; of streams fewer, because probes hold them up.
pub(super) const FLIP: i32 = 8;
const VOTES_MAX: i32 = 24;
const STREAMS_FLIP: i32 = 4;
const STREAMS_MAX: i32 = 8;
/// One block in this many is a sample: while little is known, once whole blocks have proved right, and once all kept
/// votes say dense.
const SAMPLE_EVERY: [u32; 3] = [1, 8, 64];
const PROBE_EVERY: [u32; 3] = [1, 32, 256];

/// Votes of what came back by pages. Above zero: dense; below: sparse.
#[derive(Copy, Clone, Debug)]
pub(super) struct Belief {
    pub votes: i32,
    pub is_sparse: bool,
    /// Blocks that came back whole since the last sample.
    unseen: u32,
    /// Votes that flip it, the most, and how seldom samples are.
    flip: i32,
    max: i32,
    every: [u32; 3],
}

impl Belief {
    pub const ALL: Belief =
        Belief { votes: 0, is_sparse: false, unseen: 0, flip: FLIP, max: VOTES_MAX, every: SAMPLE_EVERY };
    pub const STREAMS: Belief = Belief { flip: STREAMS_FLIP, max: STREAMS_MAX, every: PROBE_EVERY, ..Belief::ALL };

    pub fn vote(&mut self, dense: bool) {
        // A dense block was often voted sparse before, for a lifetime in which it was not touched.
        self.votes = if dense { self.votes + 2 } else { self.votes.min(self.votes / 2) - 1 };
        self.votes = self.votes.clamp(-self.max, self.max);
        if self.votes <= -self.flip {
            self.is_sparse = true;
        } else if self.votes >= self.flip {
            self.is_sparse = false;
        }
    }

    /// How a sample comes back. While whole blocks are trusted, nothing but samples shows how many pages are used.
    pub fn order_of_sample(&self) -> Order {
        if self.votes >= self.flip { Order::PAGE } else { PIECE }
    }

    /// Whether the block that comes back whole now is to be a sample.
    pub fn wants_sample(&mut self) -> bool {
        self.unseen += 1;
        let [first, later, sure] = self.every;
        let every = match self.votes {
            votes if votes == self.max => sure,
            votes if votes >= self.flip => later,
            _ => first,
        };
        let wants = self.unseen >= every;
        if wants {
            self.unseen = 0;
        }
        wants
    }
}
