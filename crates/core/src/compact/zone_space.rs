//! A zone of frames as a compaction space: units are frames, blocks are pageblocks. The engine moves the content.
//!
//! A wholly free pageblock counts as free whatever memory it has: the engine makes one with small pages huge again.

use super::space::{Migrated, Mode, Move, Space, Units};
use crate::frame::{Pageblocks, Paused, Zone};
use crate::id::{FolioId, FrameId, SpaceBlockId, UnitId};
use crate::order::Order;

/// Moves the content of folios between frames.
pub trait Mover {
    /// Folios of one pageblock are about to move into these isolated frames.
    fn prepare(&self, _places: &mut dyn Iterator<Item = (FrameId, Order)>) {}

    /// No folio will move to a place that was prepared.
    fn forgo(&self, _place: FrameId, _order: Order) {}

    /// The moves out of a pageblock are over. The implementation frees what is isolated in it
    /// ([`Pageblocks::take_emptied`], [`Zone::put_back`]).
    fn finish(&self, _block: FrameId) {}

    /// Moves a folio from `from` to the isolated frames at `to`. Locks the folio's entry ([`Mode::Async`]: gives up if
    /// that would block), checks that the folio still occupies `from` with this order, moves the content and tells the
    /// zone ([`Zone::occupy`]). Then frees `from` ([`Zone::give`]) or isolates it until the block is finished
    /// ([`Zone::isolate_left`]). Unless it returns [`Migrated::Moved`], `to` is still isolated.
    fn migrate(&self, folio: FolioId, from: FrameId, order: Order, to: FrameId, mode: Mode) -> Migrated;

    /// Splits a folio into single pages, as [`Zone::split`] does with its frames. Returns whether that was done.
    fn split(&self, folio: FolioId, from: FrameId, order: Order) -> bool;
}

/// A zone and the mover of its folios. No CPU lists frames while this lives: a listed frame would keep its pageblock
/// from becoming whole, whether it was listed before the run or freed during it.
pub struct ZoneSpace<'a, M> {
    zone: &'a Zone,
    pageblocks: Pageblocks<'a>,
    _paused: Paused<'a>,
    mover: &'a M,
    nr_enough: usize,
    only_calm: bool,
}

impl<'a, M: Mover> ZoneSpace<'a, M> {
    /// Compaction of this zone is done when `nr_enough` runs of the wanted order are free.
    pub fn new(zone: &'a Zone, mover: &'a M, nr_enough: usize) -> Self {
        ZoneSpace {
            zone,
            pageblocks: zone.pageblocks(),
            _paused: zone.pause_cpus(),
            mover,
            nr_enough,
            only_calm: false,
        }
    }

    /// Empties only [calm](Pageblocks::nr_taken_in_calm) pageblocks, and does not count it as a failure if there is
    /// none.
    pub fn only_calm(self) -> Self {
        ZoneSpace { only_calm: true, ..self }
    }

    fn frame_of(&self, unit: UnitId) -> FrameId {
        self.zone.first_frame().plus(unit.index())
    }

    fn units(&self, frame: FrameId, order: Order) -> Units {
        Units { first: UnitId::new(frame.get() - self.zone.first_frame().get()), order }
    }

    fn first_frame(&self, block: SpaceBlockId) -> FrameId {
        self.frame_of(block.first_unit(Order::HUGE))
    }

    /// The folio that occupies exactly these frames.
    fn folio(&self, at: Units) -> Option<FolioId> {
        let frame = self.frame_of(at.first);
        self.zone.owner(frame).filter(|_| self.zone.order(frame) == Some(at.order))
    }
}

impl<M: Mover> Space for ZoneSpace<'_, M> {
    fn block_order(&self) -> Order {
        Order::HUGE
    }

    fn nr_blocks(&self) -> usize {
        self.pageblocks.nr_used()
    }

    fn has_free(&self, order: Order) -> bool {
        self.zone.free_runs(order) >= self.nr_enough
    }

    fn has_none(&self, order: Order) -> bool {
        !self.only_calm && self.zone.free_runs(order) == 0
    }

    fn occupied(&self, block: SpaceBlockId) -> Option<usize> {
        let block = self.first_frame(block);
        if self.only_calm { self.pageblocks.nr_taken_in_calm(block) } else { self.pageblocks.nr_taken_in_parts(block) }
    }

    fn movable(&self, block: SpaceBlockId, each: &mut dyn FnMut(Units)) {
        self.pageblocks.folios_in(self.first_frame(block), &mut |frame, _, order| each(self.units(frame, order)));
    }

    fn isolate(&self, block: SpaceBlockId, enough: usize, each: &mut dyn FnMut(Units)) -> usize {
        self.pageblocks.isolate_in(self.first_frame(block), enough, &mut |frame, order| each(self.units(frame, order)))
    }

    fn isolate_listed(&self, least: Order, most: Order, from: SpaceBlockId) -> Option<Units> {
        self.pageblocks
            .isolate_listed(least, most, self.first_frame(from))
            .map(|(frame, order)| self.units(frame, order))
    }

    fn put_back(&self, run: Units) {
        self.zone.put_back(self.frame_of(run.first), run.order);
    }

    fn prepare(&self, moves: &[Move]) {
        let places = &mut moves.iter().map(|planned| (self.frame_of(planned.to), planned.folio.order));
        self.mover.prepare(places);
    }

    fn forgo(&self, place: Units) {
        self.mover.forgo(self.frame_of(place.first), place.order);
    }

    fn finish(&self, block: SpaceBlockId) {
        self.mover.finish(self.first_frame(block));
    }

    /// Preparations would have to be undone.
    fn stops_within_blocks(&self) -> bool {
        false
    }

    fn migrate(&self, folio: Units, to: UnitId, mode: Mode) -> Migrated {
        let Some(owner) = self.folio(folio) else { return Migrated::Gone };
        self.mover.migrate(owner, self.frame_of(folio.first), folio.order, self.frame_of(to), mode)
    }

    fn split(&self, folio: Units) -> bool {
        // An owner may split more than this folio; other folios of the block are then single frames already.
        let is_split = || self.zone.order(self.frame_of(folio.first)) == Some(Order::PAGE);
        match self.folio(folio) {
            Some(owner) => self.mover.split(owner, self.frame_of(folio.first), folio.order),
            None => is_split(),
        }
    }
}
