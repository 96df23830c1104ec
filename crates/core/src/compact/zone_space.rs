//! A zone of frames as a space. Its units are frames, its blocks pageblocks; moving the content is the engine's.
//!
//! A pageblock counts as free in whole whatever memory it has: the engine makes one with small pages huge again.

use super::space::{Migrated, Mode, Move, Space, Units};
use crate::frame::{Paused, Zone};
use crate::id::{FolioId, FrameId, SpaceBlockId, UnitId};
use crate::order::Order;

/// Who can move the content of folios between frames.
pub trait Mover {
    /// Folios of one pageblock are about to move into these isolated frames.
    fn prepare(&self, _places: &mut dyn Iterator<Item = (FrameId, Order)>) {}

    /// No folio moves to a place that was prepared.
    fn forgo(&self, _place: FrameId, _order: Order) {}

    /// The moves out of a pageblock are over. What became isolated in it is to be free ([`Zone::take_emptied`],
    /// [`Zone::put_back`]).
    fn finish(&self, _block: FrameId) {}

    /// Moves a folio that was in `from` to `to`, which is isolated. Locks the folio's entry ([`Mode::Async`]: gives up if
    /// that would wait), looks whether it still occupies `from` with this order, moves the content, tells the zone
    /// ([`Zone::occupy`]) and frees `from` ([`Zone::give`]), or isolates it until the block is finished
    /// ([`Zone::isolate_left`]). Unless it returns [`Migrated::Moved`], `to` is still isolated.
    fn migrate(&self, folio: FolioId, from: FrameId, order: Order, to: FrameId, mode: Mode) -> Migrated;

    /// Makes single pages of a folio, as [`Zone::split`] does of its frames. Says whether that was done.
    fn split(&self, folio: FolioId, from: FrameId, order: Order) -> bool;
}

/// A zone and who moves its folios. While it lives no CPU keeps free frames: one that was listed would keep its pageblock
/// from becoming whole, whether it was so before the run or is given back during it.
pub struct ZoneSpace<'a, M> {
    zone: &'a Zone,
    _paused: Paused<'a>,
    mover: &'a M,
    nr_enough: usize,
    only_calm: bool,
}

impl<'a, M: Mover> ZoneSpace<'a, M> {
    /// Compaction of this zone is for `nr_enough` free runs of whichever order it will want.
    pub fn new(zone: &'a Zone, mover: &'a M, nr_enough: usize) -> Self {
        ZoneSpace { zone, _paused: zone.pause_cpus(), mover, nr_enough, only_calm: false }
    }

    /// Empties only pageblocks that are [calm](Zone::nr_taken_in_calm), and is not counted as a failure when there is none.
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
        self.zone.nr_pageblocks()
    }

    fn has_free(&self, order: Order) -> bool {
        self.zone.free_runs(order) >= self.nr_enough
    }

    fn has_none(&self, order: Order) -> bool {
        !self.only_calm && self.zone.free_runs(order) == 0
    }

    fn occupied(&self, block: SpaceBlockId) -> Option<usize> {
        let block = self.first_frame(block);
        if self.only_calm { self.zone.nr_taken_in_calm(block) } else { self.zone.nr_taken_in_parts(block) }
    }

    fn movable(&self, block: SpaceBlockId, each: &mut dyn FnMut(Units)) {
        self.zone.folios_in(self.first_frame(block), &mut |frame, _, order| each(self.units(frame, order)));
    }

    fn isolate(&self, block: SpaceBlockId, enough: usize, each: &mut dyn FnMut(Units)) -> usize {
        self.zone.isolate_in(self.first_frame(block), enough, &mut |frame, order| each(self.units(frame, order)))
    }

    fn isolate_listed(&self, least: Order, most: Order, from: SpaceBlockId) -> Option<Units> {
        self.zone.isolate_listed(least, most, self.first_frame(from)).map(|(frame, order)| self.units(frame, order))
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

    /// What was prepared would have to be undone.
    fn stops_within_blocks(&self) -> bool {
        false
    }

    fn migrate(&self, folio: Units, to: UnitId, mode: Mode) -> Migrated {
        let Some(owner) = self.folio(folio) else { return Migrated::Gone };
        self.mover.migrate(owner, self.frame_of(folio.first), folio.order, self.frame_of(to), mode)
    }

    fn split(&self, folio: Units) -> bool {
        // An owner may split more than this folio, and others of the block then are single frames already.
        let is_split = || self.zone.order(self.frame_of(folio.first)) == Some(Order::PAGE);
        match self.folio(folio) {
            Some(owner) => self.mover.split(owner, self.frame_of(folio.first), folio.order),
            None => is_split(),
        }
    }
}
