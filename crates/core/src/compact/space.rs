//! The interface of a space to compaction.
//!
//! A unit is *free* (in the space's own lists), *occupied* (by a folio, or by a thread that just took it) or *isolated*
//! (taken out of the free lists by compaction, without owner). Only isolating, putting back and migrating enter or
//! leave the third state.

use crate::id::{SpaceBlockId, UnitId};
use crate::order::Order;

/// 2^k units, aligned, within a block: a free run, or a folio's place.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Units {
    /// The first unit.
    pub first: UnitId,
    /// How many units.
    pub order: Order,
}

impl Units {
    /// How many units these are.
    pub const fn nr_units(self) -> usize {
        self.order.nr_pages()
    }
}

/// A folio, and the isolated run of its order (or part of a run) to which it is to move.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Move {
    /// Where the folio was found.
    pub folio: Units,
    /// The first unit of its target.
    pub to: UnitId,
}

impl Move {
    /// The units to which it moves.
    pub const fn place(&self) -> Units {
        Units { first: self.to, order: self.folio.order }
    }
}

/// Whether a move waits for a busy folio.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Mode {
    /// It does not: for background work, and for a thread that needs the units now.
    Async,
    /// It does: for a caller that requested compaction and waits for it.
    Sync,
}

/// The result of moving a folio.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Migrated {
    /// It occupies its target. Its old place is free, at the latest when its block is finished.
    Moved,
    /// Its present use forbids the move. It stays, and the target is still isolated.
    Busy,
    /// It is no longer there: freed, moved, or of another order. The target is still isolated.
    Gone,
    /// Checked under its lock, moving it is useless or impossible. It stays, and the target is still isolated.
    Unsuited,
}

/// Units in blocks, in which folios can be moved. Other threads take and free units during and between all calls.
pub trait Space {
    /// The order of a block. Free runs and folios lie within one block.
    fn block_order(&self) -> Order;

    /// How many blocks there are. It may grow.
    fn nr_blocks(&self) -> usize;

    /// Whether enough runs of this order or larger are free, so that there is nothing to do.
    fn has_free(&self, order: Order) -> bool;

    /// Whether no run of this order or larger is free. A failed request for the order is then deferred.
    fn has_none(&self, order: Order) -> bool {
        !self.has_free(order)
    }

    /// How many units of a block are occupied; `None` when there is no point in emptying it, because it is empty or one
    /// folio fills it.
    fn occupied(&self, block: SpaceBlockId) -> Option<usize>;

    /// Calls `each` with the movable folios of a block, as of some moment.
    fn movable(&self, block: SpaceBlockId, each: &mut dyn FnMut(Units));

    /// Isolates free runs of a block, each as large as possible, from its first unit on until they have `enough` units
    /// together, and calls `each` with them. Skips a wholly free block. Returns how many units it examined.
    fn isolate(&self, block: SpaceBlockId, enough: usize, each: &mut dyn FnMut(Units)) -> usize;

    /// The fast path: isolates a free run of an order from `least` to `most`, the smaller the better, in the block
    /// `from` or a higher one, from the space's lists without a scan. Skips a wholly free block.
    fn isolate_listed(&self, least: Order, most: Order, from: SpaceBlockId) -> Option<Units>;

    /// Frees isolated units: a run as it was isolated, or any aligned part of one.
    fn put_back(&self, run: Units);

    /// Announces the moves of one block, because making room for all of them together may cost less. Each place is then
    /// either moved to or forgone.
    fn prepare(&self, _moves: &[Move]) {}

    /// No folio will move to this prepared place; it is an ordinary isolated run again.
    fn forgo(&self, _place: Units) {}

    /// The moves out of a prepared block are over.
    fn finish(&self, _block: SpaceBlockId) {}

    /// Whether a run may stop between two folios of a block; otherwise it finishes the block first.
    fn stops_within_blocks(&self) -> bool {
        true
    }

    /// Moves a folio whole to an isolated run of its order, or part of one. Decides under the folio's lock whether it
    /// is still there and worth moving.
    fn migrate(&self, folio: Units, to: UnitId, mode: Mode) -> Migrated;

    /// Splits a folio into single units, for [`Stage::Split`](super::Stage::Split). Returns whether that was done.
    fn split(&self, folio: Units) -> bool;
}
