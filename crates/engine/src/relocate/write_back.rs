//! Writeback from compressed RAM to the devices behind it.
//!
//! A device that compresses is the *front* of the other devices of lower priority. When seven eighths of its memory are
//! in use, a thread moves the folios that left RAM first to those devices, until three quarters are in use. A block's
//! entry notes when it left RAM, by the count of evicted pages ([`Entry::left_at`](folioswap_core::Entry)).
//!
//! **Invariant.** A folio is verified on the way, and its entry names the old slots until the new ones hold it.
//!
//! **Locking.** One block's lock at a time. No device is removed meanwhile. A thread that wants that, or a fault, waits
//! for one block at most.

use std::convert::Infallible;
use std::ops::Range;
use std::time::Duration;

use folioswap_core::{BlockId, DeviceId, Order, PIECE, SlotId, State};

use crate::block::{Block, SlotRun};
use crate::device::checksum;
use crate::engine::Engine;
use crate::process::cpu::current_cpu;
use crate::process::fatal::EndOnPanic;
use crate::process::turns::asleep;
use crate::swap::block::Buffer;
use crate::swap::relief::HIGH;

/// Eighths of the front's memory at which writeback ends.
const LOW: u64 = 6;

/// Most blocks chosen in one walk of the table.
const CHOSEN: usize = 256;

/// Pause before another attempt to write to devices that were full or failed, doubled each time up to `MOST_AGAIN`.
const AGAIN: Duration = Duration::from_millis(100);
const MOST_AGAIN: Duration = Duration::from_secs(10);

/// The thread's body. Returns when the arena stops. `buffer` was allocated before the arena, when failure could still
/// be reported.
pub(crate) fn run(engine: &Engine, mut buffer: Buffer) {
    let _end = EndOnPanic("tiering");
    let mut pause = AGAIN;
    while !engine.stopping() {
        let seen = engine.swap().relief().now();
        let relieved = relieve_fronts(engine, &mut buffer);
        if engine.stopping() {
            return;
        }
        if relieved {
            pause = AGAIN;
            engine.swap().relief().wait(seen);
        } else {
            engine.swap().relief().pause(seen, pause);
            pause = (2 * pause).min(MOST_AGAIN);
        }
    }
}

/// Gives each page its own hash in pieces that have one hash. Otherwise a fault on one page would have to read its
/// whole piece.
fn note_pieces_by_pages(block: &mut Block<'_>, first_page: usize, bytes: &[u8]) {
    for (index, piece) in bytes.chunks(PIECE.bytes()).enumerate() {
        let page = first_page + index * PIECE.nr_pages();
        if block.piece_hash(page / PIECE.nr_pages()).is_some() {
            checksum::note_pages(block, page, piece);
        }
    }
}

/// Writes the oldest folios of each full front to devices behind it. `false`: not all could be moved.
fn relieve_fronts(engine: &Engine, buffer: &mut Buffer) -> bool {
    let Some(_alone) = engine.swap().devices().try_changing() else { return false };
    let mut done = true;
    for (front, behind) in engine.swap().devices().fronts() {
        if !engine.swap().devices().is_filled(front, HIGH) {
            continue;
        }
        while engine.swap().devices().is_filled(front, LOW) {
            let oldest = oldest_blocks_on(engine, front);
            let mut any = false;
            for block in oldest {
                if engine.stopping() || engine.swap().devices().is_change_wanted() {
                    return false;
                }
                any |= write_back(engine, block, front, &behind, buffer);
                if !engine.swap().devices().is_filled(front, LOW) {
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

/// The blocks with folios on this device only that left RAM first, oldest first.
fn oldest_blocks_on(engine: &Engine, device: DeviceId) -> Vec<BlockId> {
    let now = engine.ram().nr_evictions();
    let mut found = Vec::new();
    let is_over = || engine.stopping() || engine.swap().devices().is_change_wanted();
    let walked = engine.each_block_in_use(is_over, |id| {
        if let Some(block) = engine.try_lock(id)
            && SlotRun::next(&block, 0, device).is_some()
        {
            found.push((now.wrapping_sub(block.left_at), id));
        }
        Ok::<_, Infallible>(())
    });
    if walked != Ok(true) {
        return Vec::new();
    }
    let most = CHOSEN.min(found.len());
    if most < found.len() {
        found.select_nth_unstable_by_key(most, |&(age, _)| std::cmp::Reverse(age));
        found.truncate(most);
    }
    found.sort_unstable_by_key(|&(age, _)| std::cmp::Reverse(age));
    found.into_iter().map(|(_, id)| id).collect()
}

/// Writes a block's folios that are only on the front to devices behind it. Returns whether any moved.
fn write_back(engine: &Engine, id: BlockId, front: DeviceId, behind: &[DeviceId], buffer: &mut Buffer) -> bool {
    let _inside = engine.enter();
    let Some(mut block) = engine.try_lock(id) else { return false };
    let (mut page, mut any) = (0, false);
    while let Some(mut run) = SlotRun::next(&block, page, front) {
        let order = block.order();
        let nr_folios = run.pages.len() >> order.exponent();
        let place = || engine.swap().allocate_on_one(behind, current_cpu(), order);
        let places: Vec<SlotId> = (0..nr_folios).map_while(|_| place()).collect();
        if places.is_empty() {
            // No room in one piece: move it in smaller ones, as from RAM.
            let smaller = (0..order.exponent()).rev().filter_map(Order::new);
            let Some(fits) = smaller.into_iter().find(|&smaller| fits_behind(engine, behind, smaller)) else { break };
            block.split_to(fits);
            continue;
        }
        run.pages.end = run.pages.start + (places.len() << order.exponent());
        page = run.pages.end;
        let bytes = buffer.pages(run.pages.len());
        if asleep(run.read_alone(&mut block, bytes)).is_err() {
            // A thread that needs it will get the error.
            places.into_iter().for_each(|slot| engine.swap().put_back_slots(slot, order));
            continue;
        }
        if order >= PIECE && engine.policy().comes_back_by_pages(&block, engine.ram()) {
            note_pieces_by_pages(&mut block, run.pages.start, bytes);
        }
        if block.put_elsewhere(run.pages.start, bytes, &places) {
            any = true;
            count_written_back(engine, &block, run.pages, front);
        }
    }
    drop(block);
    engine.swap().devices().device(front).flush(); // its old slots are free now
    any
}

fn fits_behind(engine: &Engine, behind: &[DeviceId], order: Order) -> bool {
    let slot = engine.swap().allocate_on_one(behind, current_cpu(), order);
    slot.inspect(|&slot| engine.swap().put_back_slots(slot, order)).is_some()
}

fn count_written_back(engine: &Engine, block: &Block<'_>, pages: Range<usize>, front: DeviceId) {
    let folios = block.index_of(pages.start)..=block.index_of(pages.end - 1);
    let has_gone = |index: &usize| match block.state(*index) {
        State::Swapped(slot) => engine.swap().devices().device_of(slot) != front,
        _ => false,
    };
    engine.stats().written_back_bytes.add((folios.filter(has_gone).count() * block.order().bytes()) as u64);
}
