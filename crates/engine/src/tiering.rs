//! Compressed RAM in front of other devices: what has not been wanted for longest goes on to them.
//!
//! A device that compresses is the *front* of all others that come after it by priority. Once seven eighths of its memory
//! are in use, a thread writes the folios that left RAM first to those, until it is three quarters: so what leaves
//! RAM finds place in front, and what comes back soon is still there. A folio goes as what it is, whole, and is checked on the
//! way; its entry names the old slots until it has arrived, and whoever wants it meanwhile waits for this folio alone.
//!
//! How long ago a block left RAM is noted in its entry ([`Block::left_at`](folioswap_core::Block)), in pages that have left since; one
//! walk of the table finds the oldest. While the others have no room, nothing is tried until a while later.
//!
//! **Locking.** As removal: a block's lock for each block, and nobody removes a device meanwhile. Who wants to waits for one folio
//! at most.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use folioswap_core::{BlockId, DeviceId, Locked, Order, PIECE, SlotId, State};
use folioswap_sys::signals;

use crate::checksum;
use crate::engine::{Engine, current_cpu};
use crate::fatal::AbortOnPanic;
use crate::removal::Buffer;

/// In eighths of the front's memory: from when on it is relieved, and until when.
const HIGH: u64 = 7;
const LOW: u64 = 6;

/// Blocks that one walk of the table chooses.
const CHOSEN: usize = 256;

/// When to try again to write to devices that had no room, or took nothing: twice as late each time.
const AGAIN: Duration = Duration::from_millis(100);
const MOST_AGAIN: Duration = Duration::from_secs(10);

/// The thread's body; returns when the arena stops. `buffer` was there before the arena was, when memory could still be refused.
pub(crate) fn run(engine: &Engine, mut buffer: Buffer) {
    let _abort = AbortOnPanic("tiering");
    let mut pause = AGAIN;
    while !engine.stopping() {
        let seen = engine.front_filled.now();
        let relieved = engine.relieve_fronts(&mut buffer);
        if engine.stopping() {
            return;
        }
        if relieved {
            pause = AGAIN;
            engine.wants_relief.store(true, Ordering::SeqCst);
            engine.front_filled.wait(seen);
        } else {
            // Nobody tells of what fills it meanwhile: there is no room for it.
            engine.wants_relief.store(false, Ordering::SeqCst);
            engine.front_filled.wait_for(seen, pause);
            pause = (2 * pause).min(MOST_AGAIN);
        }
    }
}

/// Pieces that were noted as one are noted by their pages. Or else the first page of each that is wanted would have all of it
/// read.
fn note_pieces_by_pages(locked: &mut Locked<'_>, first_page: usize, bytes: &[u8]) {
    for (index, piece) in bytes.chunks(PIECE.bytes()).enumerate() {
        let page = first_page + index * PIECE.nr_pages();
        if locked.piece_hash(page / PIECE.nr_pages()).is_some() {
            checksum::note_pages(locked, page, piece);
        }
    }
}

impl Engine {
    /// A folio was written; the thread is told when its device has become a front that is to be relieved.
    pub fn note_filling(&self, slot: SlotId) {
        let is_front = self.space.compresses() && self.wants_relief.load(Ordering::Relaxed);
        if is_front && self.space.is_filled(self.space.device_of(slot), HIGH) {
            self.front_filled.signal();
        }
    }

    /// Writes the oldest folios of each full front to devices behind it; `false` when some should have gone and could not.
    fn relieve_fronts(&self, buffer: &mut Buffer) -> bool {
        let Some(_alone) = self.space.try_changing() else { return false };
        let mut done = true;
        for (front, behind) in self.space.fronts() {
            if !self.space.is_filled(front, HIGH) {
                continue;
            }
            while self.space.is_filled(front, LOW) {
                let oldest = self.oldest_blocks_on(front);
                let mut any = false;
                for block in oldest {
                    if self.stopping() || self.space.is_change_wanted() {
                        return false;
                    }
                    any |= self.write_back(block, front, &behind, buffer);
                    if !self.space.is_filled(front, LOW) {
                        break;
                    }
                }
                if !any {
                    done = false;
                    break;
                }
            }
        }
        done
    }

    /// The blocks with folios on this device alone that left RAM first, the first of all first.
    fn oldest_blocks_on(&self, device: DeviceId) -> Vec<BlockId> {
        let now = self.nr_evictions.load(Ordering::Relaxed);
        let mut found = Vec::new();
        for index in self.addresses.in_use().into_iter().flatten() {
            let block = BlockId::from_index(index);
            if self.stopping() || self.space.is_change_wanted() {
                return Vec::new();
            }
            if !self.table.has(block) {
                continue;
            }
            let _blocked = signals::block_all();
            let _pass = self.gate.enter(signals::thread_id());
            let Some(locked) = self.try_lock(block) else { continue };
            if self.next_run(&locked, 0, device).is_some() {
                found.push((now.wrapping_sub(locked.left_at), block));
            }
        }
        let most = CHOSEN.min(found.len());
        if most < found.len() {
            found.select_nth_unstable_by_key(most, |&(age, _)| std::cmp::Reverse(age));
            found.truncate(most);
        }
        found.sort_unstable_by_key(|&(age, _)| std::cmp::Reverse(age));
        found.into_iter().map(|(_, block)| block).collect()
    }

    /// Writes what a block has on one device alone to others. Says whether any of it went.
    fn write_back(&self, block: BlockId, front: DeviceId, behind: &[DeviceId], buffer: &mut Buffer) -> bool {
        let _blocked = signals::block_all();
        let _pass = self.gate.enter(signals::thread_id());
        let Some(mut locked) = self.try_lock(block) else { return false };
        let (mut page, mut any) = (0, false);
        while let Some(mut run) = self.next_run(&locked, page, front) {
            let order = locked.order();
            let nr_folios = run.pages.len() >> order.exponent();
            let place = || self.space.allocate_on_one(behind, current_cpu(), order);
            let places: Vec<SlotId> = (0..nr_folios).map_while(|_| place()).collect();
            if places.is_empty() {
                // No room for it in one piece: in smaller ones, as it would have gone there from RAM.
                let smaller = (0..order.exponent()).rev().filter_map(Order::new);
                let Some(fits) = smaller.into_iter().find(|&smaller| self.fits_behind(behind, smaller)) else { break };
                self.split_block(&mut locked, fits);
                continue;
            }
            run.pages.end = run.pages.start + (places.len() << order.exponent());
            page = run.pages.end;
            let bytes = buffer.pages(run.pages.len());
            if self.read_run_alone(&mut locked, &run, bytes).is_err() {
                // Whoever wants it will be told.
                places.into_iter().for_each(|slot| self.put_back_slots(slot, order));
                continue;
            }
            if order >= PIECE && self.comes_back_by_pages(&locked) {
                note_pieces_by_pages(&mut locked, run.pages.start, bytes);
            }
            if self.put_elsewhere(&mut locked, run.pages.start, bytes, &places) {
                any = true;
                self.count_written_back(&locked, run.pages, front);
            }
        }
        drop(locked);
        self.space.flush_device(front); // what was given up there is free now
        any
    }

    fn fits_behind(&self, behind: &[DeviceId], order: Order) -> bool {
        let slot = self.space.allocate_on_one(behind, current_cpu(), order);
        slot.inspect(|&slot| self.put_back_slots(slot, order)).is_some()
    }

    fn count_written_back(&self, locked: &Locked<'_>, pages: Range<usize>, front: DeviceId) {
        let folios = locked.index_of(pages.start)..=locked.index_of(pages.end - 1);
        let has_gone = |index: &usize| match locked.state(*index) {
            State::Swapped(slot) => self.space.device_of(slot) != front,
            _ => false,
        };
        self.stats.written_back_bytes.add((folios.filter(has_gone).count() * locked.order().bytes()) as u64);
    }
}
