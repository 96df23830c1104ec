//! What compaction asks of a space.
//!
//! Every unit of a space is in one of three states: *free*, in the space's own lists; *occupied*, by a folio or by
//! somebody who just took it; *isolated*, taken out of the free lists by compaction and nobody's. Isolating, putting
//! back and migrating are the only ways to and from the third.

use crate::id::{SpaceBlockId, UnitId};
use crate::order::Order;

/// 2^k units, aligned, within a block: a free run, or a folio's place.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Units {
    /// The first of them.
    pub first: UnitId,
    /// How many.
    pub order: Order,
}

impl Units {
    /// How many units these are.
    pub const fn nr_units(self) -> usize {
        self.order.nr_pages()
    }
}

/// A folio, and the isolated run of its order, or part of one, to which it is to move.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Move {
    /// Where it was named.
    pub folio: Units,
    /// The first of the units to which it moves.
    pub to: UnitId,
}

impl Move {
    /// The units to which it moves.
    pub const fn place(&self) -> Units {
        Units { first: self.to, order: self.folio.order }
    }
}

/// Whether a move waits for a folio that is busy.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Mode {
    /// It never does: for the background, and for a thread that needs the units now.
    Async,
    /// It does: for whoever asked for compaction and waits for it.
    Sync,
}

/// What came of moving a folio.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Migrated {
    /// It occupies the run it was to go to; where it was is free, at the latest when its block is finished.
    Moved,
    /// It is in use in a way that forbids it. It stays, and the run is isolated still.
    Busy,
    /// It is not there any more: freed, moved by another, or of another order. The run is isolated still.
    Gone,
    /// Looked at again under its lock, moving it makes no sense or will never do. It stays, and the run is isolated still.
    Unsuited,
}

/// Units in blocks, in which folios can be moved. Others take and free units during every call and between calls.
pub trait Space {
    /// The order of a block. Free runs and folios lie within one.
    fn block_order(&self) -> Order;

    /// How many blocks there are. It may grow.
    fn nr_blocks(&self) -> usize;

    /// Whether enough runs of this order or a larger one are free, so that nothing needs to be done for it.
    fn has_free(&self, order: Order) -> bool;

    /// Whether not a single run of this order or a larger one is free: it will not be tried again so soon.
    fn has_none(&self, order: Order) -> bool {
        !self.has_free(order)
    }

    /// How many units of a block are occupied; nothing when emptying it is out of the question: there is nothing in
    /// it, or one folio fills it.
    fn occupied(&self, block: SpaceBlockId) -> Option<usize>;

    /// Names the folios of a block that could be moved, as they were at some moment.
    fn movable(&self, block: SpaceBlockId, each: &mut dyn FnMut(Units));

    /// Isolates free runs of a block, each as large as can be, from its first unit on until they have `enough` units or
    /// more together, and names them. A wholly free block stays as it is. Returns how many units it looked at.
    fn isolate(&self, block: SpaceBlockId, enough: usize, each: &mut dyn FnMut(Units)) -> usize;

    /// The fast path: isolates a free run of one of these orders, the smaller the better, in this block or a higher one,
    /// that the space finds in its lists without a scan. A wholly free block stays as it is.
    fn isolate_listed(&self, least: Order, most: Order, from: SpaceBlockId) -> Option<Units>;

    /// Makes isolated units free: a run as it was isolated, or any aligned part of one.
    fn put_back(&self, run: Units);

    /// Folios of one block are about to move to these places: what it takes to make room there may cost less for all of them
    /// together. Each is then moved to, or else forgone.
    fn prepare(&self, _moves: &[Move]) {}

    /// No folio has moved to a place that was prepared, nor will any: it is an isolated run like others.
    fn forgo(&self, _place: Units) {}

    /// The moves out of a block that was prepared are over.
    fn finish(&self, _block: SpaceBlockId) {}

    /// Whether a run may be told to stop between two folios of a block; else it is through with the block first.
    fn stops_within_blocks(&self) -> bool {
        true
    }

    /// Moves a folio whole to an isolated run of its order, or part of one. Decides under the folio's lock whether it
    /// still is where it was named and worth moving.
    fn migrate(&self, folio: Units, to: UnitId, mode: Mode) -> Migrated;

    /// Makes single units of a folio; for [`Stage::Split`](super::Stage::Split). Says whether that was done.
    fn split(&self, folio: Units) -> bool;
}
