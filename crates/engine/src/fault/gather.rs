//! Gathers a split block: its parts, from RAM and from the device, become one folio again.

use folioswap_core::{
    Ahead, BLOCK_PAGES, BLOCK_PIECES, Folio, List, Order, PAGE_SIZE, PIECE, Phase, SlotId, State, Taken,
};

use crate::block::{Block, SlotRun};
use crate::device::checksum;
use crate::engine::Engine;
use crate::process::stopwatch::Stopwatch;
use crate::swap::health::SwapInError;

/// Brings all of a split block that is not pinned into RAM as one folio, maps it and puts it on `list`. `taken`: what
/// could be had for it. `false`: there are no frames, or a part is in use; folios that are in RAM stay there.
///
/// # Errors
/// When the device cannot return the content.
pub(crate) async fn gather(
    engine: &Engine,
    block: &mut Block<'_>,
    taken: Option<Taken>,
    list: List,
    watch: &mut Stopwatch,
) -> Result<bool, SwapInError> {
    let Some(taken) = taken else {
        engine.stats().swpin_fallback.add(Order::HUGE, 1);
        engine.compactor().want_whole();
        return Ok(false);
    };
    let mut whole = engine.ram().prepare(taken, Order::HUGE);
    watch.long_part(Phase::Frame);
    let collected = collect(engine, block, whole.bytes_mut()).await;
    watch.lap(Phase::Read);
    match collected {
        Ok(true) => {}
        not_all => {
            engine.ram().release(whole.into_frame());
            return not_all;
        }
    }
    let run = slots_in_one_run(engine, block).filter(|&slot| engine.swap().at(slot).keeps_copies());
    let known = run.map(|_| known_pieces(block, whole.bytes()));
    let whole = whole.into_frame();
    let nr_untouched = block.folios().iter().filter(|folio| folio.ahead == Ahead::Neighbour).count();
    engine.ram().neighbours().withdraw(block.id(), nr_untouched);
    for index in 0..block.nr_folios() {
        if let Some(frame) = block.folio(index).frame() {
            engine.ram().release(frame);
        }
        if run.is_none() {
            block.release_slot(index);
        }
    }
    watch.lap(if run.is_some() { Phase::Read } else { Phase::Free });
    block.join();
    block.folio_mut(0).set_slot(run);
    for (piece, hash) in known.iter().flatten().enumerate() {
        if let Some(hash) = *hash {
            block.set_piece_hash(piece, hash);
        }
    }
    engine.ram().zone(whole).set_owner(whole, block.name(0));
    block.map(0, whole, list);
    block.note_copy(0);
    engine.policy().note_swap_in(block, 0, engine.ram());
    Ok(true)
}

/// The first slot of the run to which the block was once written whole, if all of its parts still have their places
/// there.
fn slots_in_one_run(engine: &Engine, block: &Block<'_>) -> Option<SlotId> {
    let first = block.folio(0).slot().filter(|slot| slot.index().is_multiple_of(BLOCK_PAGES))?;
    let nr_pages = block.order().nr_pages();
    let in_place = |(index, folio): (usize, &Folio)| {
        folio.slot().is_some_and(|slot| engine.swap().devices().follows(slot, first, index * nr_pages))
    };
    block.folios().iter().enumerate().all(in_place).then_some(first)
}

/// The hashes of those pieces whose slots hold the same bytes as the gathered block.
fn known_pieces(block: &Block<'_>, bytes: &[u8]) -> [Option<u128>; BLOCK_PIECES] {
    std::array::from_fn(|piece| {
        let bytes = &bytes[piece * PIECE.bytes()..(piece + 1) * PIECE.bytes()];
        checksum::is_noted(block, piece * PIECE.nr_pages(), bytes)
            .then(|| block.piece_hash(piece).unwrap_or_else(|| checksum::hash(block.key(), bytes)))
    })
}

/// Copies and reads all parts of a block into a huge page. `false`: a part is in use.
async fn collect(engine: &Engine, block: &mut Block<'_>, bytes: &mut [u8]) -> Result<bool, SwapInError> {
    let order = block.order();
    let mut swapped: Vec<SlotRun> = Vec::new();
    for index in 0..block.nr_folios() {
        let (start, end) = (index * order.nr_pages(), (index + 1) * order.nr_pages());
        let part = &mut bytes[start * PAGE_SIZE..end * PAGE_SIZE];
        if matches!(block.state(index), State::Resident(_)) && block.unmap_to_laundry(index).is_err() {
            engine.stats().busy_victims.add(1);
            return Ok(false);
        }
        match block.state(index) {
            State::Empty => part.fill(0),
            State::Standby(_) => part.copy_from_slice(engine.ram().frames().at_home(block, index)),
            State::Swapped(slot) => match swapped.last_mut() {
                Some(run)
                    if run.pages.end == start && engine.swap().devices().follows(slot, run.slot, run.pages.len()) =>
                {
                    run.pages.end = end
                }
                _ => swapped.push(SlotRun { slot, pages: start..end }),
            },
            State::Resident(_) => unreachable!("it was just unmapped"),
        }
    }
    for run in &swapped {
        let part = &mut bytes[run.pages.start * PAGE_SIZE..run.pages.end * PAGE_SIZE];
        run.read(block, part).await?;
        engine.stats().swapped_in_bytes.add(part.len() as u64);
    }
    if !swapped.is_empty() {
        engine.stats().swapped_in_folios.add(1);
        engine.stats().swpin.add(Order::HUGE, 1);
    }
    Ok(true)
}
