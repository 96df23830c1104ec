//! Gives small folios new homes: how compaction empties a pageblock without touching the program's memory.
//!
//! A mapped folio has nothing at home. The free page of its new home moves to the old one, or both homes' pages are
//! exchanged with the kernel ([`super::exchange`]); the old home is then the free frame. No byte is copied, no mapping
//! changes, and the program may use the folio meanwhile. An unmapped folio's pages are at home: they move to the new
//! home if it is empty, and are copied otherwise.
//!
use folioswap_core::compact::{Migrated, Mode, Mover};
use folioswap_core::{FolioId, FrameId, Order, State};
use folioswap_sys::futex;

use crate::block::Block;
use crate::compact::exchange::Moving;

/// Attempts of a synchronous move to lock and move a folio before it gives up. Without a bound, two threads that each
/// hold a lock that the other wants would wait forever.
const LOOKS: usize = 200;

impl Mover for Moving<'_> {
    fn prepare(&self, places: &mut dyn Iterator<Item = (FrameId, Order)>) {
        self.begin(places);
    }

    fn forgo(&self, place: FrameId, order: Order) {
        // SAFETY: isolated by this run, and no folio moved there.
        unsafe { self.restore(place, order) };
    }

    fn finish(&self, block: FrameId) {
        self.end(block);
    }

    fn migrate(&self, folio: FolioId, from: FrameId, order: Order, to: FrameId, mode: Mode) -> Migrated {
        let nr_looks = if mode == Mode::Sync { LOOKS } else { 1 };
        for look in 0..nr_looks {
            let block = self.engine.try_lock(folio.block());
            match block.map(|mut block| self.rehome(&mut block, folio, from, order, to)) {
                Some(done) if done != Migrated::Busy => return done,
                _ if look + 1 < nr_looks => futex::sleep(std::time::Duration::from_micros(20)),
                _ => {}
            }
        }
        Migrated::Busy
    }

    fn split(&self, folio: FolioId, from: FrameId, order: Order) -> bool {
        let Some(mut block) = self.engine.try_lock(folio.block()) else { return false };
        let goes = block.order() == order && order < Order::HUGE && occupies(&block, folio, from) && !block.pinned;
        if goes {
            block.split_to(Order::PAGE);
        }
        goes
    }
}

/// Whether a folio of a locked block is in these frames.
fn occupies(block: &Block<'_>, folio: FolioId, frame: FrameId) -> bool {
    block.folio(block.index_of(folio.page_in_block())).frame() == Some(frame)
}

impl Moving<'_> {
    fn rehome(&self, block: &mut Block<'_>, folio: FolioId, from: FrameId, order: Order, to: FrameId) -> Migrated {
        let engine = self.engine;
        if block.order() != order {
            return Migrated::Unsuited; // parts of it may still be there
        }
        if !occupies(block, folio, from) {
            return Migrated::Gone;
        }
        let index = block.index_of(folio.page_in_block());
        if block.folio(index).writing_to().is_some() {
            return Migrated::Busy; // its frames identify the write
        }
        // Mapped folios are not touched, so pinned ones may be moved too.
        let is_mapped = matches!(block.state(index), State::Resident(_));
        let (old, new) = (engine.ram().frames().home(from), engine.ram().frames().home(to));
        let done = match (is_mapped, self.exchanges()) {
            (true, true) => Ok(()),
            // SAFETY: homes of the folio, whose block is locked, and of frames that this run has isolated.
            (true, false) => unsafe { engine.ram().mapper().move_home(old, new, order.bytes()) },
            // SAFETY: as above.
            (false, true) => unsafe { engine.ram().mapper().move_home(new, old, order.bytes()) },
            (false, false) => {
                // SAFETY: the block is locked and the folio is unmapped, so its content is at home. `to` was isolated
                // by this run, is free, and has memory, since nothing is exchanged.
                unsafe { engine.ram().frames().copy_home(to, from, order) };
                engine.stats().compact_copied_bytes.add(order.bytes() as u64);
                Ok(())
            }
        };
        if done.is_err() {
            return Migrated::Busy;
        }
        block.folio_mut(index).set_in_ram(to, is_mapped);
        engine.ram().zone(to).occupy(to, from);
        block.note_copy(index);
        if self.exchanges() {
            engine.ram().zone(from).isolate_left(from); // without memory
        } else {
            engine.ram().zone(from).give(from); // the number of free frames does not change
        }
        Migrated::Moved
    }
}
