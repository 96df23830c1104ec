//! Compaction: moves folios together so that whole blocks become free, in any space.
//!
//! A *space* ([`Space`]) consists of units in blocks; each unit is free, occupied by a folio, or isolated. A zone of
//! frames is one ([`ZoneSpace`]), the slots of a swap device another. The *migrate scanner* walks up from the low end
//! and empties blocks. The *free scanner* walks down from the high end and isolates free runs as targets
//! ([`Isolated`]). A run ends when the scanners meet, when a run of the wanted order is free, or on request; the next
//! run of the [`Compaction`] continues at their positions.
//!
//! A folio moves whole, into an isolated run of its order or a part of a larger one. No run stays isolated after
//! compaction ends.
//!
//! **Locking.** None: one thread at a time uses a [`Compaction`]. Other threads use the space meanwhile, so any answer
//! of the space may be stale; only isolated runs belong to the caller.

mod counters;
mod deferral;
mod hints;
mod isolated;
mod pacing;
mod scan;
mod space;
mod zone_space;

pub use counters::CompactCounters;
pub use isolated::Isolated;
pub use pacing::{Demand, Pacing, Pause, Turn};
pub use scan::Compaction;
pub use space::{Migrated, Mode, Move, Space, Units};
pub use zone_space::{Mover, ZoneSpace};

use crate::order::Order;

/// How compaction treats folios larger than a unit. The first two stages exist for measurement; use the last.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum Stage {
    /// Every folio is split into single units before they are moved.
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
    /// The order of the wanted free run. `None` compacts the whole space.
    pub wanted: Option<Order>,
    /// Whether to wait for busy folios.
    pub mode: Mode,
    /// How to treat large folios.
    pub stage: Stage,
}

/// How a run of compaction ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Outcome {
    /// A run of the wanted order is free.
    Free,
    /// The scanners met: a failure if an order was wanted, else completion.
    Met,
    /// It was told to stop.
    Stopped,
    /// Nothing was tried, because previous runs failed.
    Deferred,
}

/// The result of one run of compaction.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// What it did.
    pub counters: CompactCounters,
}
