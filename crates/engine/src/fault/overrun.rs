//! Reads two pages at once when the thread that touches the first is likely to continue in the second
//! ([`folioswap_core::policy::overrun`]). This is optional: a failure is counted, the touched page is read again alone,
//! and errors are reported from there.

use std::io::IoSliceMut;

use folioswap_core::{Access, Locked, Order, PIECE, Phase, SlotId, State};

use crate::device::checksum;
use crate::engine::Engine;
use crate::memory::frames::Prepared;
use crate::process::stopwatch::Stopwatch;
use crate::swap::health::Trouble;

impl Engine {
    /// Brings in the accessed page and the next one, if that is swapped out too, lies in the next slot, and is likely
    /// to be touched next. `false`: nothing has changed.
    pub fn read_both(&self, locked: &mut Locked<'_>, access: Access, watch: &mut Stopwatch<'_>) -> bool {
        let page = access.page.page_in_block();
        let Some(slot) = self.slots_of_both(locked, page) else { return false };
        // A device in memory copies page by page anyway, and a failing device is asked for no more than necessary.
        if !self.policy().wants_next(access) || self.swap().memory(slot).is_some() || self.swap().is_failing(slot) {
            return false;
        }
        let Some(mut both) = self.two_frames() else { return false };
        watch.long_part(Phase::Frame);
        let mut pieces = both.each_mut().map(|prepared| IoSliceMut::new(prepared.bytes_mut()));
        let read = self.swap().read_pieces(slot, &mut pieces);
        let right = |at: usize| checksum::verify(locked, page + at, both[at].bytes());
        let read = read.map_err(Trouble::Read).and_then(|()| Trouble::unless(right(0) && right(1)));
        watch.lap(Phase::Read);
        if let Err(trouble) = read {
            self.swap().note_trouble(slot, &trouble, false);
            both.into_iter().for_each(|prepared| self.ram().release(prepared.into_frame()));
            return false;
        }
        self.stats().swap_ra.add(1);
        for (at, prepared) in both.into_iter().enumerate() {
            self.map_read(locked, page + at, prepared.into_frame(), watch);
        }
        true
    }

    /// The slot of a page of a block in pages, if the next page lies in the next slot and both can be verified alone.
    fn slots_of_both(&self, locked: &Locked<'_>, page: usize) -> Option<SlotId> {
        if locked.order() != Order::PAGE || page + 1 == locked.nr_folios() || locked.is_sealed(page + 1) {
            return None;
        }
        let (State::Swapped(slot), State::Swapped(next)) = (locked.state(page), locked.state(page + 1)) else {
            return None;
        };
        let by_pages = [page, page + 1].iter().all(|page| locked.piece_hash(page / PIECE.nr_pages()).is_none());
        (self.swap().follows(next, slot, 1) && by_pages).then_some(slot)
    }

    /// Frames for two pages, if there are frames to spare.
    fn two_frames(&self) -> Option<[Prepared<'_>; 2]> {
        let take = || {
            let taken = self.ram().try_take(self.table(), Order::PAGE, self.ram().zones().watermarks().min)?;
            Some(self.ram().prepare(taken, Order::PAGE))
        };
        let first = take()?;
        match take() {
            Some(second) => Some([first, second]),
            None => {
                self.ram().release(first.into_frame());
                None
            }
        }
    }
}
