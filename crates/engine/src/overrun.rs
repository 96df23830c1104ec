//! Two pages come in with one read, where who touches the first is likely to go on in the second
//! ([`folioswap_core::policy::overrun`]). A help and never a duty: what fails here is counted, done again for the page that
//! was touched alone, and reported from there.

use std::io::IoSliceMut;

use folioswap_core::{Access, Locked, Order, PIECE, Phase, SlotId, State};

use crate::checksum;
use crate::engine::Engine;
use crate::failing::Trouble;
use crate::frames::Prepared;
use crate::stopwatch::Stopwatch;

impl Engine {
    /// Brings the page of an access in, and the one after it, if it is missing too, lies next to it on the device, and is
    /// likely to be touched next. `false`: nothing has changed.
    pub fn read_both(&self, locked: &mut Locked<'_>, access: Access, watch: &mut Stopwatch<'_>) -> bool {
        let page = access.page.page_in_block();
        let Some(slot) = self.slots_of_both(locked, page) else { return false };
        // Memory is not read but copied, a page at a time; and a device that fails is asked for no more than is needed.
        if !self.overruns.wants_next(access) || self.space.memory(slot).is_some() || self.space.is_failing(slot) {
            return false;
        }
        let Some(mut both) = self.two_frames() else { return false };
        watch.long_part(Phase::Frame);
        let mut pieces = both.each_mut().map(|prepared| IoSliceMut::new(prepared.bytes_mut()));
        let read = self.space.read_pieces(slot, &mut pieces);
        let right = |at: usize| checksum::verify(locked, page + at, both[at].bytes());
        let read = read.map_err(Trouble::Read).and_then(|()| Trouble::unless(right(0) && right(1)));
        watch.lap(Phase::Read);
        if let Err(trouble) = read {
            self.note_trouble(slot, &trouble, false);
            both.into_iter().for_each(|prepared| self.release_frame(prepared.into_frame()));
            return false;
        }
        self.stats.swap_ra.add(1);
        for (at, prepared) in both.into_iter().enumerate() {
            self.map_read(locked, page + at, prepared.into_frame(), watch);
        }
        true
    }

    /// Where a page of a block in pages lies, if the next one lies behind it and each can be verified by itself.
    fn slots_of_both(&self, locked: &Locked<'_>, page: usize) -> Option<SlotId> {
        if locked.order() != Order::PAGE || page + 1 == locked.nr_folios() || locked.is_sealed(page + 1) {
            return None;
        }
        let (State::Swapped(slot), State::Swapped(next)) = (locked.state(page), locked.state(page + 1)) else {
            return None;
        };
        let by_pages = [page, page + 1].iter().all(|page| locked.piece_hash(page / PIECE.nr_pages()).is_none());
        (self.space.follows(next, slot, 1) && by_pages).then_some(slot)
    }

    /// Frames for two pages, while there are some to spare.
    fn two_frames(&self) -> Option<[Prepared<'_>; 2]> {
        let take = || {
            let taken = self.try_take_frame(Order::PAGE, self.zones.watermarks().min)?;
            Some(self.prepare(taken, Order::PAGE))
        };
        let first = take()?;
        match take() {
            Some(second) => Some([first, second]),
            None => {
                self.release_frame(first.into_frame());
                None
            }
        }
    }
}
