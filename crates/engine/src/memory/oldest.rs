//! A walk over the oldest folios of a list, for whoever takes them off it.

use std::borrow::Borrow;

use folioswap_core::{BlockId, FrameId, List, Locked, Oldest, Size, Zone};

/// Folios examined in most walks. Busy ones are skipped, never waited for.
pub(crate) const SCAN: usize = 64;

/// The oldest folios of a list of a zone, each in its locked block. One block is locked at a time.
pub(crate) struct OldestFolios<'z, G, L> {
    try_lock: L,
    zone: &'z Zone,
    size: Size,
    list: List,
    nr_left: usize,
    held: Option<G>,
}

impl<'e, 'z, G: Borrow<Locked<'e>>, L: Fn(BlockId) -> Option<G>> OldestFolios<'z, G, L> {
    /// A walk over at most [`SCAN`] folios. `try_lock` locks a block that nobody holds.
    pub fn new(try_lock: L, zone: &'z Zone, size: Size, list: List) -> Self {
        OldestFolios { try_lock, zone, size, list, nr_left: SCAN, held: None }
    }

    /// The same walk over more folios.
    pub fn over(self, nr_folios: usize) -> Self {
        OldestFolios { nr_left: nr_folios, ..self }
    }

    /// The next folio: its locked block, its index there, and its first frame. It comes again if it stays the oldest of
    /// the list.
    pub fn next(&mut self) -> Option<(&mut G, usize, FrameId)> {
        let (index, frame) = self.find()?;
        self.held.as_mut().map(|locked| (locked, index, frame))
    }

    fn find(&mut self) -> Option<(usize, FrameId)> {
        while let Some(nr_left) = self.nr_left.checked_sub(1) {
            self.nr_left = nr_left;
            let oldest = self.zone.oldest(self.size, self.list)?;
            if self.held.as_ref().is_none_or(|held| held.borrow().id() != oldest.folio.block()) {
                drop(self.held.take());
                self.held = (self.try_lock)(oldest.folio.block());
            }
            match &self.held {
                Some(held) if self.is_there(held.borrow(), &oldest) => {
                    return Some((held.borrow().index_of(oldest.folio.page_in_block()), oldest.frame));
                }
                Some(_) => {} // it has just left the list
                None => self.zone.rotate(oldest.frame, self.list),
            }
        }
        None
    }

    /// The block of the last folio, still locked.
    pub fn into_locked(self) -> Option<G> {
        self.held
    }

    /// Whether a folio that was found before its block was locked is still there.
    fn is_there(&self, locked: &Locked<'e>, oldest: &Oldest) -> bool {
        locked.order() == oldest.order
            && locked.folio(locked.index_of(oldest.folio.page_in_block())).frame() == Some(oldest.frame)
            && self.zone.list(oldest.frame) == Some(self.list)
    }
}

/// The class whose oldest folio on a list of a zone is older.
pub(crate) fn older_class(zone: &Zone, list: List) -> Option<Size> {
    match (zone.oldest(Size::Whole, list), zone.oldest(Size::Small, list)) {
        (Some(whole), Some(small)) => Some(if small.age > whole.age { Size::Small } else { Size::Whole }),
        (Some(_), None) => Some(Size::Whole),
        (None, Some(_)) => Some(Size::Small),
        (None, None) => None,
    }
}
