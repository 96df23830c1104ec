//! Compaction: moves folios together so that whole blocks become free, in any space.
//!
//! A *space* is units in blocks, each unit free, occupied by a folio, or isolated ([`Space`]). A zone of frames is one
//! ([`ZoneSpace`]), the slots of a swap device are another, and tests simulate a third.
//!
//! Two scanners walk it towards each other. The *migrate scanner* comes from the low end and names the folios of a block
//! that is to become free; the *free scanner* comes from the high end and isolates free runs for them to move to. They
//! stop when they meet, when a run of the wanted order is free, or when they are told to. Between runs of a
//! [`Compaction`] their positions stay, so that the next one goes on where the last one stopped.
//!
//! A folio moves whole, into an isolated run of its order, or else of a larger one, whose rest stays isolated. Isolated
//! runs are kept by order ([`Isolated`]) and none outlives the run that isolated it.
//!
//! Inside: `space` has what a space must do; `isolated` the runs by order; `hints` the positions and which blocks to
//! pass over; `deferral` when not to try at all; `scan` the scanners; `zone_space` the zone as a space.
//!
//! **Locking.** None here: a [`Compaction`] is used by one thread at a time. The space is used by others meanwhile, and
//! every answer it gives may be old by the time the next question is asked; only isolated runs are the caller's own.

mod counters;
mod deferral;
mod hints;
mod isolated;
mod scan;
mod space;
mod zone_space;

pub use counters::CompactCounters;
pub use isolated::Isolated;
pub use scan::Compaction;
pub use space::{Migrated, Mode, Move, Space, Units};
pub use zone_space::{Mover, ZoneSpace};

use crate::order::Order;

/// What compaction does with folios that are larger than a unit. For measurement; the last is the one to use.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum Stage {
    /// Every folio is split into single units before these are moved.
    Split,
    /// Folios move whole, into free runs of exactly their order.
    Whole,
    /// Folios move whole, and larger free runs are split for them.
    #[default]
    WholeSplitting,
}

/// What one run of compaction is for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Request {
    /// The order of which a run shall be free. Without one, the whole space is compacted.
    pub wanted: Option<Order>,
    /// Whether to wait for busy folios.
    pub mode: Mode,
    /// What to do with large folios.
    pub stage: Stage,
}

/// How a run of compaction ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Outcome {
    /// A run of the wanted order is free.
    Free,
    /// The scanners met: with a wanted order a failure, without one all there was to do.
    Met,
    /// It was told to stop.
    Stopped,
    /// Nothing was tried, because too many runs before it have failed.
    Deferred,
}

/// What one run of compaction came to.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// What it did.
    pub counters: CompactCounters,
}
