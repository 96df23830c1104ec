//! The pageblocks of a zone, for those who take and free them whole or empty them: compaction, and reclaim, which gives
//! their memory back. A pageblock is named by its first frame. `isolate` takes free runs out of pageblocks.
//!
//! **Locking.** The zone's mutex, for a walk over one pageblock's heads or 64 pageblocks. No code of the caller runs
//! under it.

use super::buddy::{BLOCK, Memory, PageblockId, Taken};
use super::frames::Frames;
use super::lists::FrameState;
use crate::id::{FolioId, FrameId};
use crate::order::Order;
use crate::packed::Packed;
use crate::sync::{Mutex, MutexGuard, lock};

/// Pageblocks that one call of [`Pageblocks::emptiest`] examines.
pub(super) const SCAN_LIMIT: usize = 64;

/// The pageblocks of a zone.
#[derive(Copy, Clone)]
pub struct Pageblocks<'z> {
    frames: &'z Mutex<Frames>,
}

impl<'z> Pageblocks<'z> {
    pub(super) fn of(frames: &'z Mutex<Frames>) -> Pageblocks<'z> {
        Pageblocks { frames }
    }

    pub(super) fn lock(self) -> MutexGuard<'z, Frames> {
        lock(self.frames)
    }

    /// The most that the zone can ever have.
    pub fn nr_max(self) -> usize {
        self.lock().buddy.nr_blocks_max
    }

    /// Those that were used at least once; all others are free and without memory.
    pub fn nr_used(self) -> usize {
        self.lock().buddy.blocks.len()
    }

    /// How many frames of a pageblock are taken by smaller folios; `None` when there are none.
    pub fn nr_taken_in_parts(self, block: FrameId) -> Option<usize> {
        let frames = self.lock();
        let in_parts = frames.records.get(block)?.order < Order::HUGE;
        in_parts.then(|| usize::from(frames.buddy.block(block.get()).nr_taken)).filter(|&nr| nr > 0)
    }

    /// The same for a pageblock that is worth emptying while frames are being freed: at most half of it is taken, and
    /// nothing of it was freed since the tick before the last ([`Pageblocks::tick`]).
    pub fn nr_taken_in_calm(self, block: FrameId) -> Option<usize> {
        let nr_taken = self.nr_taken_in_parts(block)?;
        let frames = self.lock();
        let since = frames.buddy.now.wrapping_sub(frames.buddy.block(block.get()).given_at);
        (nr_taken <= BLOCK / 2 && since > 1).then_some(nr_taken)
    }

    /// Advances the clock of [`Pageblocks::nr_taken_in_calm`].
    pub fn tick(self) {
        let frames = &mut *self.lock();
        frames.buddy.now = frames.buddy.now.wrapping_add(1);
    }

    /// Takes a pageblock without memory if the limit permits populating it. The caller gives it a huge page and frees
    /// it. It counts as [`Memory::Huge`].
    pub fn take_absent(self) -> Option<FrameId> {
        let frames = &mut *self.lock();
        if frames.absent() < BLOCK {
            return None;
        }
        frames.buddy.take_whole(&mut frames.records, &[Memory::Absent]).map(|taken| taken.frame)
    }

    /// Takes a wholly free pageblock with small pages, for the caller to make it huge and free it.
    pub fn take_divided(self) -> Option<Taken> {
        let frames = &mut *self.lock();
        let room = frames.limit.saturating_sub(frames.buddy.taken + frames.buddy.isolated) >= BLOCK;
        if room { frames.buddy.take_whole(&mut frames.records, &[Memory::Small]) } else { None }
    }

    /// Takes a wholly free pageblock beyond the limit, one with small pages before one with a huge page. The caller
    /// gives its memory back to the kernel and then calls [`Pageblocks::give_unpopulated`]. `None` when nothing is
    /// beyond the limit or no pageblock is wholly free.
    pub fn take_surplus(self) -> Option<FrameId> {
        let frames = &mut *self.lock();
        if frames.surplus() == 0 {
            return None;
        }
        frames.buddy.take_coldest(&mut frames.records).map(FrameId::new)
    }

    /// Frees a pageblock without memory: a taken one, or one from [`Pageblocks::take_surplus`]. Whole pageblocks only.
    pub fn give_unpopulated(self, frame: FrameId) {
        let frames = &mut *self.lock();
        if frames.records[frame.get()].place != FrameState::Leaving {
            frames.disown(frame);
        }
        frames.buddy.give_absent(&mut frames.records, frame.get());
    }

    /// The pageblock with small pages that has the fewest frames taken among the next 64, to empty it. Pageblocks that
    /// are wholly free or taken as a whole do not count. `None` if there is none among the 64; the next call examines
    /// the next ones.
    pub fn emptiest(self) -> Option<FrameId> {
        let frames = &mut *self.lock();
        let blocks = &frames.buddy.blocks;
        let nr_looked = blocks.len().min(SCAN_LIMIT);
        let looked = (frames.cursor..frames.cursor + nr_looked).map(|at| at % blocks.len());
        let divided = looked.filter(|&at| {
            let block = blocks[at];
            let first = frames.buddy.id_of(at).first_frame();
            block.memory == Memory::Small
                && block.nr_taken > 0
                && ((block.nr_taken as usize) < BLOCK || frames.records[first].order < Order::HUGE)
        });
        let found = divided.min_by_key(|&at| blocks[at].nr_taken);
        frames.cursor = (frames.cursor + nr_looked) % blocks.len().max(1);
        found.map(|at| FrameId::new(frames.buddy.id_of(at).first_frame()))
    }

    /// Calls of [`Pageblocks::emptiest`] that cover every pageblock once.
    pub fn nr_looks(self) -> usize {
        self.lock().buddy.blocks.len().div_ceil(SCAN_LIMIT)
    }

    /// Calls `each` with the first frame, owner and order of every owned folio in a pageblock, in frame order, from a
    /// snapshot. No lock is held during the calls. The snapshot takes 3 KiB of stack.
    pub fn folios_in(self, block: FrameId, each: &mut dyn FnMut(FrameId, FolioId, Order)) {
        assert!(block.index().is_multiple_of(BLOCK), "{block:?} is not the first frame of a pageblock");
        let mut owners = [Packed::NONE; BLOCK];
        let mut orders = [Order::PAGE; BLOCK];
        {
            let frames = self.lock();
            if block.get() >= frames.records.end() {
                return;
            }
            let mut at = 0;
            while at < BLOCK {
                let record = &frames.records[block.get() + at as u32];
                assert!(record.place != FrameState::Inner, "runs and folios lie next to each other");
                (owners[at], orders[at]) = (record.owner, record.order);
                at += record.order.nr_pages();
            }
        }
        for (at, owner) in owners.into_iter().enumerate() {
            if let Some(owner) = owner.get() {
                each(FrameId::new(block.get() + at as u32), FolioId::new(owner), orders[at]);
            }
        }
    }

    /// The first frame, owner and order of every owned folio, looked up one at a time. A folio that comes or goes
    /// meanwhile may be missed. No lock is held between two items.
    pub fn all_folios(self) -> impl Iterator<Item = (FrameId, FolioId, Order)> + use<'z> {
        let mut next = self.lock().buddy.id_of(0).first_frame();
        std::iter::from_fn(move || {
            loop {
                // One lock hold scans at most one pageblock.
                let frames = self.lock();
                if next >= frames.records.end() {
                    return None;
                }
                let end = PageblockId::of(next).first_frame() + BLOCK as u32;
                while next < end {
                    let Some((head, &record)) = frames.head_from(next) else {
                        next = end;
                        break;
                    };
                    next = head + record.order.nr_pages() as u32;
                    if let Some(owner) = record.owner.get() {
                        return Some((FrameId::new(head), FolioId::new(owner), record.order));
                    }
                }
            }
        })
    }
}
