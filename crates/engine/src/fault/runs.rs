//! Reads folios of a split block, several in one request: rows, the blocks of streams, and the neighbours of a touched
//! page ([`Neighbours`](folioswap_core::Neighbours)).

use std::io::{self, IoSliceMut};
use std::ops::Range;

use folioswap_core::{Ahead, CpuId, FrameId, List, Order, PAGE_SIZE, PIECE, SlotId, State, Taken};

use crate::block::Block;
use crate::device::checksum;
use crate::engine::Engine;
use crate::memory::frames::{Prepared, SCRATCH_PAGES};
use crate::process::cpu::current_cpu;
use crate::process::stopwatch::Stopwatch;
use crate::process::turns::Waits;
use crate::swap::health::{SwapInError, Trouble};
use crate::swap::space::SwapSpace;

/// Which of the folios that come in together stay unmapped.
#[derive(Copy, Clone)]
pub enum Arrival {
    /// None.
    Mapped,
    /// This one, the marker of a window.
    Marked(usize),
    /// All but this one, which was touched.
    Around(usize),
}

/// A folio that is about to be read from its slots.
struct Part<'t> {
    slot: SlotId,
    index: usize,
    prepared: Prepared<'t>,
}

/// Slots that are read for nothing, so that one request reads what lies on both sides: that takes less time than
/// another request.
const MOST_GAP: usize = 16;

/// How far the slots of neighbours may lie apart: one slot between two is read for nothing.
const NEAR: usize = 2;

/// Folios that one request reads, in the order of their slots. With gaps between them they are read by way of scratch
/// memory.
#[derive(Default)]
struct Run<'t> {
    parts: Vec<Part<'t>>,
    /// Slots from the first folio's first one to the last one's last.
    nr_slots: usize,
    has_gaps: bool,
}

impl<'t> Run<'t> {
    /// Whether a folio of `nr_pages` pages at `slot` can be read with these. Gaps may be read from a file only: other
    /// devices know which slots are in use.
    fn reaches(&self, slot: SlotId, nr_pages: usize, swap: &SwapSpace) -> bool {
        let Some(first) = self.parts.first().map(|part| part.slot) else { return false };
        let Some(gap) = slot.index().checked_sub(first.index() + self.nr_slots) else { return false };
        let is_near = match self.has_gaps || gap > 0 {
            true => gap <= MOST_GAP && self.nr_slots + gap + nr_pages <= SCRATCH_PAGES && swap.extent(first).is_some(),
            false => true,
        };
        is_near && swap.devices().follows(slot, first, self.nr_slots + gap)
    }

    fn push(&mut self, part: Part<'t>) {
        let first = self.parts.first().map_or(part.slot, |first| first.slot);
        let at = part.slot.index() - first.index();
        self.has_gaps |= at > self.nr_slots;
        self.nr_slots = at + part.prepared.bytes().len() / PAGE_SIZE;
        self.parts.push(part);
    }

    /// Reads all of them.
    async fn read(&mut self, engine: &Engine, waits: Waits<'_>) -> io::Result<()> {
        let first = self.parts[0].slot;
        if !self.has_gaps {
            let mut pieces: Vec<_> =
                self.parts.iter_mut().map(|part| IoSliceMut::new(part.prepared.bytes_mut())).collect();
            return engine.swap().read_pieces(first, &mut pieces, waits).await;
        }
        let mut scratch = engine.ram().frames().scratch(waits).await;
        let read = &mut scratch.bytes_mut()[..self.nr_slots * PAGE_SIZE];
        engine.swap().read_pieces(first, &mut [IoSliceMut::new(read)], waits).await?;
        for part in &mut self.parts {
            let (at, bytes) = ((part.slot.index() - first.index()) * PAGE_SIZE, part.prepared.bytes_mut());
            bytes.copy_from_slice(&read[at..at + bytes.len()]);
        }
        Ok(())
    }
}

/// Swaps in those of a split block's given folios that are on the device, each as a folio of its own. Folios that
/// are contiguous on the device are read in one request. Takes only frames that can be spared, near `cpu`. The
/// marker of a window stays unmapped.
///
/// # Errors
/// When the device cannot return the content.
pub(crate) async fn read_parts(
    engine: &Engine,
    block: &mut Block<'_>,
    folios: impl Iterator<Item = usize>,
    arrival: Arrival,
    cpu: CpuId,
) -> Result<(), SwapInError> {
    let order = block.order();
    let mut swapped = Vec::new();
    for index in folios {
        let (page, State::Swapped(slot)) = (index * order.nr_pages(), block.state(index)) else { continue };
        if block.is_sealed(page) {
            continue;
        }
        if order < PIECE && block.piece_hash(page / PIECE.nr_pages()).is_some() {
            block.hash_pages(page / PIECE.nr_pages() * PIECE.nr_pages(), &mut []).await?;
        }
        swapped.push((slot, index));
    }
    swapped.sort_unstable();
    let mut run = Run::default();
    for (slot, index) in swapped {
        let Some(prepared) = spare_frame(engine, order, cpu) else { break };
        if !run.reaches(slot, order.nr_pages(), engine.swap())
            && let Err(error) = read_run(engine, block, std::mem::take(&mut run), arrival).await
        {
            engine.ram().release(prepared.into_frame());
            return Err(error);
        }
        run.push(Part { slot, index, prepared });
    }
    read_run(engine, block, run, arrival).await
}

/// Swaps in a page of a block split into pages, and those of its group that come in the same request. Takes only
/// frames that can be spared.
///
/// # Errors
/// When the device cannot return the content.
pub(crate) async fn read_around(
    engine: &Engine,
    block: &mut Block<'_>,
    page: usize,
    group: Range<usize>,
) -> Result<(), SwapInError> {
    let mut swapped: Vec<_> = group
        .filter(|&index| !block.is_sealed(index))
        .filter_map(|index| match block.state(index) {
            State::Swapped(slot) => Some((slot, index)),
            _ => None,
        })
        .collect();
    swapped.sort_unstable();
    let are_near = |&(a, _): &(SlotId, usize), &(b, _): &(SlotId, usize)| {
        let distance = b.index() - a.index();
        distance <= NEAR && engine.swap().devices().follows(b, a, distance)
    };
    let mut runs = swapped.chunk_by(are_near);
    let Some(near) = runs.find(|run| run.iter().any(|&(_, index)| index == page)) else { return Ok(()) };
    let spare = || spare_frame(engine, Order::PAGE, current_cpu());
    let mut own = spare(); // the touched page's comes first
    let mut run = Run::default();
    for &(slot, index) in near {
        let prepared = if index == page { own.take() } else { spare() };
        if let Some(prepared) = prepared {
            run.push(Part { slot, index, prepared });
        }
    }
    let nr_neighbours = run.parts.len().saturating_sub(1);
    engine.ram().neighbours().read(block.id(), nr_neighbours, engine.ram().budget_pages());
    read_run(engine, block, run, Arrival::Around(page)).await
}

/// Frames for a folio that is read ahead, if they can be spared.
pub(super) fn take_spare(engine: &Engine, order: Order, cpu: CpuId) -> Option<Taken> {
    engine.ram().try_take_near(engine.table(), cpu, order, engine.ram().zones().counts().watermarks.min)
}

/// The same with memory.
pub(super) fn spare_frame(engine: &Engine, order: Order, cpu: CpuId) -> Option<Prepared<'_>> {
    take_spare(engine, order, cpu).map(|taken| engine.ram().prepare(taken, order))
}

/// Reads the folios of a run. `false`: they are to be read one by one. A group lies within one piece. So if this
/// has one hash, all of the run is of it.
///
/// # Errors
/// The device cannot return a piece with one hash. It was tried again.
async fn fill(engine: &Engine, block: &mut Block<'_>, run: &mut Run<'_>) -> Result<bool, SwapInError> {
    let order = block.order();
    let page = run.parts[0].index * order.nr_pages();
    if order < PIECE && block.piece_hash(page / PIECE.nr_pages()).is_some() {
        let bring = |read: &[u8]| {
            for part in &mut run.parts {
                let bytes = part.prepared.bytes_mut();
                let at = part.index * order.nr_pages() % PIECE.nr_pages() * PAGE_SIZE;
                bytes.copy_from_slice(&read[at..][..bytes.len()]);
            }
        };
        return block.read_piece(page, bring).await.map(|()| true);
    }
    let read = run.read(engine, block.waits()).await;
    let is_read = read.is_ok();
    if let Err(error) = read
        && !run.has_gaps
    {
        engine.swap().note_trouble(run.parts[0].slot, &Trouble::Read(error), false);
    }
    Ok(is_read)
}

async fn read_run(
    engine: &Engine,
    block: &mut Block<'_>,
    mut run: Run<'_>,
    arrival: Arrival,
) -> Result<(), SwapInError> {
    if run.parts.is_empty() {
        return Ok(());
    }
    let order = block.order();
    let is_read = match fill(engine, block, &mut run).await {
        Ok(is_read) => is_read,
        Err(error) => {
            run.parts.into_iter().for_each(|part| engine.ram().release(part.prepared.into_frame()));
            return Err(error);
        }
    };
    let mut result = Ok(());
    for Part { slot, index, mut prepared } in run.parts {
        let bytes = prepared.bytes_mut();
        if !is_read || !checksum::verify(block, index * order.nr_pages(), bytes) {
            // One unreadable folio must not lose the others: read each alone.
            let read = block.read_folio(index, slot, bytes, &mut Stopwatch::still()).await;
            if read.is_err() {
                engine.ram().release(prepared.into_frame());
                result = read;
                continue;
            }
        }
        let frame = prepared.into_frame();
        let ahead = match arrival {
            Arrival::Around(touched) if touched != index => Ahead::Neighbour,
            Arrival::Marked(marker) if marker == index => Ahead::Marker,
            _ => Ahead::No,
        };
        admit(engine, block, index, frame, ahead);
    }
    result
}

/// Puts a folio in RAM that was read ahead into these frames, and maps it unless its first access is to fault.
pub(super) fn admit(engine: &Engine, block: &mut Block<'_>, index: usize, frame: FrameId, ahead: Ahead) {
    if ahead != Ahead::Neighbour {
        engine.policy().note_swap_in(block, index, engine.ram());
    }
    engine.ram().zone(frame).set_owner(frame, block.name(index));
    engine.count_swap_in(block.order());
    engine.stats().readahead_folios.add(1);
    block.folio_mut(index).ahead = ahead;
    block.end_lost(block.pages_of(index)); // it could be read this time
    if ahead != Ahead::No {
        block.folio_mut(index).set_in_ram(frame, false);
        block.note_copy(index);
        // As young as the rest of its window: on standby it would be evicted next, before it is ever touched.
        engine.ram().put(frame, List::Inactive);
    } else {
        block.map(index, frame, List::Inactive);
        block.settle_slot(index, &mut Stopwatch::still());
    }
}
