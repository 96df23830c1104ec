//! The way out of RAM: inactive tail -> unmap to the laundry -> hash -> slots from the swap space -> device writes ->
//! standby -> frames free.
//!
//! Folios on the *inactive* list are mapped, except those read ahead and not touched yet. Folios in the *laundry* are
//! unmapped and may be dirty; a fault there counts as a reference and saves the write. Folios on *standby* are clean,
//! and their frames can be taken. Whole blocks and smaller folios have separate lists; the older tail is reclaimed
//! first. Reclaim threads keep several writes in flight, direct reclaim one.
//!
//! A folio's hash is noted before it is written. A dirty folio therefore gives up its old slots first, and a failed
//! write leaves it without slots.

use std::ops::Range;

use folioswap_core::{
    BLOCK_PAGES, BLOCK_PIECES, BlockId, FrameId, List, Order, PAGE_SIZE, PIECE, Size, SlotId, State, Wish, Zone,
};

use crate::block::Block;
use crate::device::checksum;
use crate::engine::Engine;
use crate::memory::map_error::MapError;
use crate::memory::oldest::{OldestFolios, older_class};
use crate::process::cpu::current_cpu;
use crate::process::fatal;
use crate::reclaim::in_parts;
use crate::reclaim::kept;

use crate::reclaim::write_out::{self, Batch, Outgoing};

/// Small folios of the laundry examined for one batch.
const MOST_WASHED: usize = 128;

/// Most small folios unmapped at once.
const UNMAP_BATCH: usize = 32;

/// Result of a look at the oldest folios in the laundry.
pub(crate) enum Laundered<'t> {
    /// Something was gained: folios were clean or zero, or copies were given up for their slots.
    Clean,
    /// These must be written first.
    Write(Outgoing<'t>),
    /// There are no slots for them.
    NoSlot,
    /// No folio of the laundry is available now.
    Nothing,
}

/// Result of washing one folio of the laundry.
pub(crate) enum Washed {
    /// Done: zero, unchanged, or written in parts.
    Clean,
    /// Must be written to these slots.
    Dirty(SlotId),
    /// No slots: the content stays in RAM.
    NoSlot,
    /// Look again: the block was split because there was no run of slots.
    Again,
}

impl Washed {
    /// Writes a whole block in parts of this order or less.
    pub fn in_parts(engine: &Engine, block: &mut Block<'_>, most: Order) -> Washed {
        if in_parts::write(engine, block, most) { Washed::Clean } else { Washed::NoSlot }
    }
}

/// Unmaps folios at a zone's inactive tail, into the laundry: one whole block, or a batch of small folios.
pub(crate) fn unmap_oldest(engine: &Engine, zone: &Zone, only: Option<Size>) -> bool {
    for size in [Size::Whole, Size::Small] {
        zone.balance(size);
    }
    if only.is_none() && engine.ram().take_soon() {
        divide_oldest_whole(engine, zone);
    }
    let Some(size) = only.or_else(|| older_class(zone, List::Inactive)) else { return false };
    let most = if size == Size::Whole { 1 } else { UNMAP_BATCH };
    let mut oldest = OldestFolios::new(|id| engine.try_lock(id), zone, size, List::Inactive);
    let mut done = 0;
    while done < most
        && let Some((block, index, _)) = oldest.next()
    {
        done += usize::from(unmap_victim(engine, block, index));
    }
    done > 0
}

/// Divides a zone's oldest whole block where it is. Its pages leave RAM one by one then: those that are not used first,
/// in place of others that are.
fn divide_oldest_whole(engine: &Engine, zone: &Zone) {
    let mut oldest = OldestFolios::new(|id| engine.try_lock(id), zone, Size::Whole, List::Inactive);
    if let Some((block, index, _)) = oldest.next()
        && matches!(block.state(index), State::Resident(_))
        && engine.policy().may_divide(block)
    {
        block.history.doubt();
        block.split_to(Order::PAGE);
    }
}

/// Moves a mapped folio, or one of the inactive list, to the laundry, unmapped. `false`: it has to stay.
fn unmap_victim(engine: &Engine, block: &mut Block<'_>, index: usize) -> bool {
    match block.state(index) {
        State::Resident(frame) if block.pinned => {
            engine.ram().zone(frame).remove(frame);
            false
        }
        State::Resident(frame) => match block.unmap_to_laundry(index) {
            Ok(()) => true,
            Err(MapError::Missing) => {
                set_aside(engine, block, index);
                false
            }
            Err(_)
                if block.order() > Order::PAGE
                    && (block.is_waited_on(index) || is_partly_locked(engine, block, index)) =>
            {
                // The rest of it may leave.
                block.split_to(if block.order() > PIECE { PIECE } else { Order::PAGE });
                true
            }
            Err(_) => {
                engine.stats().busy_victims.add(1);
                engine.ram().put(frame, List::Active);
                false
            }
        },
        State::Standby(frame) => {
            // Read ahead, and not touched.
            engine.ram().put(frame, List::Laundry);
            true
        }
        State::Empty | State::Swapped(_) => false,
    }
}

/// Whether the program has locked a part of a folio.
fn is_partly_locked(engine: &Engine, block: &Block<'_>, index: usize) -> bool {
    let addr = engine.table().addr(block.name(index));
    engine.table().is_partly_locked(&(addr..addr + block.order().bytes()))
}

/// Pins a block whose pages the program dropped in a way that the engine does not see. It stays in RAM permanently.
fn set_aside(engine: &Engine, block: &mut Block<'_>, index: usize) {
    let frame = block.frame(index);
    fatal::say("a folio has missing pages: the program dropped them by a system call of its own; it stays in RAM");
    block.pinned = true;
    engine.ram().zone(frame).remove(frame);
}

/// Washes the oldest folios of a zone's laundry.
pub(crate) fn launder_oldest<'e>(engine: &'e Engine, zone: &Zone, only: Option<Size>) -> Laundered<'e> {
    match only.or_else(|| older_class(zone, List::Laundry)) {
        Some(Size::Whole) => launder_whole(engine, zone),
        Some(Size::Small) => launder_small(engine, zone),
        None => Laundered::Nothing,
    }
}

fn launder_whole<'e>(engine: &'e Engine, zone: &Zone) -> Laundered<'e> {
    let mut found = Laundered::Nothing;
    let mut may_shed = true;
    let mut oldest = OldestFolios::new(|id| engine.try_lock(id), zone, Size::Whole, List::Laundry);
    while let Some((block, _, frame)) = oldest.next() {
        match wash(engine, block, 0) {
            Washed::Clean | Washed::Again => return Laundered::Clean,
            Washed::Dirty(slot) => {
                let Some(block) = oldest.into_locked() else { unreachable!("its block is locked") };
                return Laundered::Write(Outgoing::whole(block, slot));
            }
            Washed::NoSlot if std::mem::take(&mut may_shed) && kept::shed_copies(engine) => return Laundered::Clean,
            // Folios behind it may be clean or zero, and need no slot.
            Washed::NoSlot => {
                found = Laundered::NoSlot;
                zone.rotate(frame, List::Laundry);
            }
        }
    }
    found
}

/// Washes small folios until there is a batch of dirty ones, in contiguous slots, to write.
fn launder_small<'e>(engine: &'e Engine, zone: &Zone) -> Laundered<'e> {
    let mut batch: Option<Batch<'_>> = None;
    let (mut cleaned, mut no_slot, mut may_shed) = (false, false, true);
    let mut oldest = OldestFolios::new(|id| engine.try_lock(id), zone, Size::Small, List::Laundry).over(MOST_WASHED);
    while let Some((block, index, frame)) = oldest.next() {
        match wash(engine, block, index) {
            Washed::Clean => cleaned = true,
            Washed::Again => {}
            Washed::NoSlot if std::mem::take(&mut may_shed) && kept::shed_copies(engine) => {}
            Washed::NoSlot => {
                no_slot = true;
                zone.rotate(frame, List::Laundry);
            }
            Washed::Dirty(slot) if engine.swap().at(slot).takes_folios() => {
                cleaned |= block.write_one(index, slot);
            }
            Washed::Dirty(slot) => {
                let batch = batch.get_or_insert_with(|| Batch::new(engine, slot, block.order()));
                if !batch.push(engine, block, index, slot) {
                    // Its slots do not follow the batch's, as at the end of a cluster: write it alone.
                    block.write_one(index, slot);
                    break;
                }
                if !batch.has_room() {
                    break;
                }
            }
        }
    }
    match (batch, cleaned, no_slot) {
        (Some(batch), ..) => Laundered::Write(Outgoing::Small(batch)),
        (None, true, _) => Laundered::Clean,
        (None, false, true) => Laundered::NoSlot,
        (None, false, false) => Laundered::Nothing,
    }
}

/// Finds out whether a folio of the laundry is clean. Takes a dirty one off the list and returns the slots to write
/// it to.
fn wash(engine: &Engine, block: &mut Block<'_>, index: usize) -> Washed {
    let (frame, order) = (block.frame(index), block.order());
    if order == Order::HUGE
        && let Some(washed) = wash_dropped(engine, block)
    {
        return washed;
    }
    // SAFETY: the block is locked and the folio is in the laundry, so its content is at home. Its frames are freed,
    // or it is split, only after the last use of `bytes`.
    let bytes = unsafe { engine.ram().frames().bytes_at_home(frame, order) };
    if checksum::is_zero(bytes) {
        engine.stats().zero_folios_dropped.add(1);
        block.release_slot(index);
        engine.ram().release(frame);
        block.folio_mut(index).set_empty();
        return Washed::Clean;
    }
    let page = index * order.nr_pages();
    let kept = block.folio(index).slot();
    if order == Order::HUGE
        && kept.is_none()
        && engine.policy().order_of(block).is_none()
        && block.wish != Wish::Whole
        && uses_few(bytes)
    {
        return Washed::in_parts(engine, block, PIECE);
    }
    // With a device in memory, comparing a page is enough to find most dirty folios; the store hashes them as it
    // copies.
    let surely_dirty = kept
        .and_then(|slot| engine.swap().memory(slot))
        .is_some_and(|memory| memory.bytes(PAGE_SIZE) != &bytes[..PAGE_SIZE]);
    let mut hashed = false;
    if kept.is_some() && !surely_dirty {
        if checksum::note(block, page, bytes) {
            engine.stats().clean_folios_dropped.add(1);
            engine.ram().put(frame, List::Clean);
            engine.ram().frame_freed().signal();
            return Washed::Clean;
        }
        hashed = true;
    }
    // The old slots no longer match the noted hashes.
    block.folio_mut(index).set_slot(None);
    let Some(slot) = slot_for(engine, frame, order, kept) else {
        return split_for_slots(engine, block);
    };
    if order == Order::HUGE
        && engine.swap().memory(slot).is_none()
        && engine.policy().comes_back_by_pages(block, engine.ram())
    {
        checksum::note_pages(block, page, bytes);
    } else if !hashed && engine.swap().memory(slot).is_none() {
        checksum::note(block, page, bytes);
    }
    engine.ram().zone(frame).remove(frame);
    Washed::Dirty(slot)
}

/// Slots for the folio in `frame`. A whole block is written to its old slots if possible. Small folios go next to
/// other folios that are written now, in one batch. Slots that must not be written are given up.
fn slot_for(engine: &Engine, frame: FrameId, order: Order, mut kept: Option<SlotId>) -> Option<SlotId> {
    if let Some(slot) = kept.filter(|&slot| !engine.swap().at(slot).may_write_again(order)) {
        engine.swap().free_slots(slot, order);
        kept = None;
    }
    let Some(kept) = kept else { return engine.allocate_near(frame, order) };
    if order == Order::HUGE {
        return Some(slot_for_again(engine, frame, kept));
    }
    match engine.allocate_near(frame, order) {
        Some(slot) => {
            engine.swap().free_slots(kept, order);
            Some(slot)
        }
        None => Some(kept),
    }
}

/// Slots for a whole block that has some already: the same ones, unless they are on another node's device and this
/// node's has room.
fn slot_for_again(engine: &Engine, frame: FrameId, kept: SlotId) -> SlotId {
    let (node, home) = (engine.ram().node_of(frame), engine.swap().at(kept).home);
    if node.is_none() || home.is_none() || home == node {
        return kept;
    }
    match engine.allocate_near(frame, Order::HUGE) {
        Some(slot) if engine.swap().at(slot).home == node => {
            engine.swap().free_slots(kept, Order::HUGE);
            slot
        }
        other => {
            other.inspect(|&slot| engine.swap().put_back_slots(slot, Order::HUGE));
            kept
        }
    }
}

/// Falls back when there is no run of slots for a folio: it leaves RAM in the largest parts that fit.
fn split_for_slots(engine: &Engine, block: &mut Block<'_>) -> Washed {
    let order = block.order();
    engine.stats().swpout_fallback.add(order, 1);
    engine.swap().want_whole_clusters(order);
    if order == Order::HUGE {
        engine.stats().thp_swpout_fallback.add(1);
    }
    let smaller = order.exponent().checked_sub(1).and_then(Order::new);
    match smaller {
        Some(smaller) if order == Order::HUGE => Washed::in_parts(engine, block, smaller),
        Some(_) => split_to_fit(engine, block),
        None => Washed::NoSlot,
    }
}

/// Splits the folios of a split block to the size of the largest run of slots left.
pub(crate) fn split_to_fit(engine: &Engine, block: &mut Block<'_>) -> Washed {
    let cpu = current_cpu();
    let fits = (0..block.order().exponent()).rev().filter_map(Order::new).find(|&smaller| {
        engine.swap().allocate(cpu, smaller).inspect(|&slot| engine.swap().put_back_slots(slot, smaller)).is_some()
    });
    let Some(smaller) = fits else { return Washed::NoSlot };
    block.split_to(smaller);
    Washed::Again
}

/// Reclaims frames for a folio of this order on this thread, in this CPU's zone or else in another. `false`:
/// nothing could be done.
pub(crate) fn reclaim_directly(engine: &Engine, order: Order) -> bool {
    engine.ram().reclaim_wanted().signal();
    let only = (order == Order::HUGE).then_some(Size::Whole);
    engine.ram().zones().near(current_cpu()).any(|zone| reclaim_directly_in(engine, zone, only))
}

fn reclaim_directly_in(engine: &Engine, zone: &Zone, only: Option<Size>) -> bool {
    for _ in 0..4 {
        match launder_oldest(engine, zone, only) {
            Laundered::Clean => return true,
            Laundered::Write(outgoing) => return write_out::write_now(engine, outgoing),
            Laundered::NoSlot | Laundered::Nothing => {
                if !unmap_oldest(engine, zone, only) {
                    return false;
                }
            }
        }
    }
    false
}

/// Reclaims the folios that lie within these pages of a block now, as advice. Waits for whoever works on the block. A
/// folio that is mapped, and in part beyond the pages, is split. Busy ones stay.
pub(crate) fn evict(engine: &Engine, id: BlockId, pages: &Range<usize>) {
    let mut block = engine.lock(id);
    if block.pinned {
        return;
    }
    let is_cut = |block: &Block<'_>, edge: usize| {
        let nr_pages = block.order().nr_pages();
        !edge.is_multiple_of(nr_pages) && matches!(block.state(edge / nr_pages), State::Resident(_))
    };
    while is_cut(&block, pages.start) || is_cut(&block, pages.end) {
        block.split_to(if block.order() > PIECE { PIECE } else { Order::PAGE });
    }
    let nr_pages = block.order().nr_pages();
    for index in pages.start.div_ceil(nr_pages)..pages.end / nr_pages {
        match block.state(index) {
            State::Resident(_) if block.unmap_to_laundry(index).is_err() => {
                engine.stats().busy_victims.add(1);
            }
            // Read ahead, and not touched.
            State::Standby(frame) if engine.ram().zone(frame).list(frame) == Some(List::Inactive) => {
                engine.ram().put(frame, List::Laundry);
            }
            _ => {}
        }
    }
    write_block(engine, &mut block);
}

/// Unmaps and washes one folio now, unless it is busy. Returns the slots to write it to if it is dirty.
pub(crate) fn wash_now(engine: &Engine, block: &mut Block<'_>, index: usize) -> Option<SlotId> {
    let frame = block.folio(index).frame()?;
    let is_young = || engine.ram().zone(frame).list(frame) == Some(List::Inactive); // read ahead, and not touched
    if (matches!(block.state(index), State::Resident(_)) || is_young()) && !unmap_victim(engine, block, index) {
        return None;
    }
    if engine.ram().zone(frame).list(frame) != Some(List::Laundry) {
        return None;
    }
    loop {
        match wash(engine, block, index) {
            Washed::Dirty(slot) => return Some(slot),
            Washed::NoSlot if kept::shed_copies(engine) => {}
            Washed::Clean | Washed::NoSlot | Washed::Again => return None,
        }
    }
}

/// Writes a block's folios in the laundry, in batches, as long as there are slots.
fn write_block(engine: &Engine, block: &mut Block<'_>) {
    let mut batch: Option<Batch<'_>> = None;
    let mut index = 0;
    while index < block.nr_folios() {
        let in_laundry = matches!(block.state(index), State::Standby(frame)
            if engine.ram().zone(frame).list(frame) == Some(List::Laundry));
        match in_laundry.then(|| wash(engine, block, index)) {
            None | Some(Washed::Clean) => index += 1,
            Some(Washed::Dirty(slot)) => {
                write_out::send(engine, &mut batch, block, index, slot);
                index += 1;
            }
            Some(Washed::Again) => index = 0,
            Some(Washed::NoSlot) if kept::shed_copies(engine) => {}
            Some(Washed::NoSlot) => break,
        }
    }
    if let Some(rest) = batch {
        write_out::write_batch(engine, rest, |engine, written| write_out::settle_beside(engine, block, written));
    }
}

/// Writes a block of the laundry in parts if some of its pages were dropped and are still zero. `None`: no page or
/// every page is.
fn wash_dropped(engine: &Engine, block: &mut Block<'_>) -> Option<Washed> {
    let dropped: Vec<usize> = block.take_dropped()?.collect();
    let bytes = engine.ram().frames().at_home(block, 0);
    let zero = |page: &usize| checksum::is_zero(&bytes[page * PAGE_SIZE..(page + 1) * PAGE_SIZE]);
    let empty: Vec<usize> = dropped.into_iter().filter(zero).collect();
    let mut in_pieces = empty.chunk_by(|a, b| a / PIECE.nr_pages() == b / PIECE.nr_pages());
    let pieces_only = in_pieces.all(|pages| pages.len() == PIECE.nr_pages());
    if empty.is_empty() || empty.len() == BLOCK_PAGES {
        return None;
    }
    Some(Washed::in_parts(engine, block, if pieces_only { PIECE } else { Order::PAGE }))
}

/// Whether more than half of a block's pieces are zeros: its first touch made all of it, and the program uses little.
fn uses_few(bytes: &[u8]) -> bool {
    bytes.chunks(PIECE.bytes()).filter(|piece| checksum::is_zero(piece)).count() > BLOCK_PIECES / 2
}
