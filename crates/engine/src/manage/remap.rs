//! Managed memory moves to other addresses, as by mremap: the kernel moves the mapping with the pages that are mapped,
//! the engine moves its entries.
//!
//! The entries are lifted out of the table before the kernel's call and put back at the new place after it. Folios that
//! are mapped stay so: the kernel moves their pages, pinned and locked ones too. It does not report the faults of what
//! has moved, so that is registered anew, and pages that others made there meanwhile are dropped.
//! Content that the call replaces is lifted too: if the kernel refuses, it is still there. Whole blocks whose place in
//! a block stays the same keep their folios, all others become pages. Threads that touch what is missing at either
//! place wait for the end: pages are sealed, or their blocks closed, until their content is back.

use std::io;
use std::ops::Range;

use folioswap_core::{BLOCK_BYTES, BLOCK_PAGES, BlockId, Entry, FrameId, List, Order, PAGE_SIZE, PIECE, SlotId, State};
use folioswap_sys::{memory, signals};

use crate::block::Block;
use crate::compact::compactd;
use crate::engine::Engine;
use crate::manage::pages;
use crate::memory::table::{blocks_of, pages_in};
use crate::process::fatal;
use crate::process::turns::asleep;

/// The entries of a managed range, out of the table.
struct Lifted {
    part: Range<usize>,
    blocks: Vec<(BlockId, Entries)>,
}

enum Entries {
    Block(Box<Entry>),
    /// Those of pages, by their addresses in units of a page.
    Pages(Vec<(usize, Content)>),
}

#[derive(Clone, Copy)]
enum Content {
    Mapped(FrameId),
    Standby(FrameId),
    Swapped(SlotId, Option<u128>),
}

/// Why entries are lifted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// They move, to the same place in a block if `alike`.
    Move { alike: bool },
    /// Their content is likely to be dropped.
    Drop,
}

/// How memory moves to other addresses.
#[derive(Debug)]
pub struct Relocation<'a> {
    /// Where it is.
    pub from: Range<usize>,
    /// Its length afterwards. If that is less, the rest of the content is dropped. If it is more, what has grown is
    /// managed where the last page is.
    pub new_len: usize,
    /// Whether its place in a block of 2 MiB will be the same.
    pub alike: bool,
    /// The parts of the target whose mappings are replaced.
    pub replaced: &'a [Range<usize>],
    /// The old mapping stays, empty.
    pub keeps_old: bool,
}

/// Moves managed memory. `call` moves the mappings, and returns where they are now. If it fails, everything is as
/// it was, but for what the kernel has unmapped.
///
/// # Errors
/// Those of `call`. EIO, before the call: content on a device could not be read.
///
/// # Safety
/// If `call` succeeds, nobody relies on the content of `replaced`, and what was managed is private anonymous memory
/// at the new place.
pub(crate) unsafe fn relocate(
    engine: &Engine,
    ranges: Relocation<'_>,
    call: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    let Relocation { from, new_len, alike, replaced, keeps_old } = ranges;
    let _blocked = signals::block_all(); // a signal handler might touch the range, and would wait for this thread
    let _changing = engine.table().changing();
    let kept = from.start..from.end.min(from.start + new_len);
    let tail = kept.end..from.end;
    let is_locked = !kept.is_empty() && engine.table().has_locked(&(kept.end - PAGE_SIZE..kept.end));
    let lost = replaced.iter().chain([&tail]).flat_map(|part| pages::managed_parts(engine, part.clone())).collect();
    let mut moving = Vec::new();
    for part in pages::managed_parts(engine, kept.clone()) {
        if let Err(error) = lift_part(engine, part, Purpose::Move { alike }, &mut moving) {
            moving.into_iter().for_each(|lifted| lower(engine, lifted, 0, 0));
            return Err(error);
        }
    }
    let going = lift_lost(engine, lost);
    // The kernel may merge what it moves with a neighbour. If that was registered, it would no longer be.
    let uffd = engine.uffd();
    let unregistered = moving.iter().try_for_each(|lifted| uffd.unregister(lifted.part.start, lifted.part.len()));
    let moved = unregistered.map_err(io::Error::from).and_then(|()| call());
    let Ok(at) = moved else {
        moving.into_iter().for_each(|lifted| lower(engine, lifted, 0, 0)); // it may have been moved away and back
        put_back(engine, going);
        return moved;
    };
    discard_all(engine, going);
    move_locks(engine, &from, &kept, at);
    let mut more = new_len.saturating_sub(from.len());
    if is_locked && more > 0 {
        // The kernel has filled what grew. It is not managed, so children get it from the kernel.
        pages::leave_to_kernel(at + from.len(), more);
        more = 0;
    }
    let old_parts: Vec<_> = moving.iter().map(|lifted| lifted.part.clone()).collect();
    for lifted in moving {
        let more = if lifted.part.end == kept.end { more } else { 0 };
        lower(engine, lifted, at as isize - from.start as isize, more);
    }
    if keeps_old {
        let empty = |part| Lifted { part, blocks: Vec::new() };
        old_parts.into_iter().for_each(|part| lower(engine, empty(part), 0, 0));
    } else {
        pages::close_sealed(engine, &from);
    }
    compactd::look_for_whole(engine);
    moved
}

/// Drops the content of a range and no longer manages it, if `call` succeeds, which unmaps or replaces it. It is given
/// the parts that were managed. If it fails, everything is as it was, but for what the kernel has unmapped.
///
/// # Errors
/// That of `call`.
///
/// # Safety
/// If `call` succeeds, nobody relies on the content of the range.
pub(crate) unsafe fn replace<R, E>(
    engine: &Engine,
    range: &Range<usize>,
    call: impl FnOnce(&[Range<usize>]) -> Result<R, E>,
) -> Result<R, E> {
    let _blocked = signals::block_all(); // a signal handler might touch the range, and would wait for this thread
    let _changing = engine.table().changing();
    let lost = pages::managed_parts(engine, range.clone());
    let going = lift_lost(engine, lost.clone());
    let done = call(&lost);
    match &done {
        Ok(_) => discard_all(engine, going),
        Err(_) => put_back(engine, going),
    }
    compactd::look_for_whole(engine);
    done
}

/// Lifts managed parts whose content is likely to be dropped.
fn lift_lost(engine: &Engine, parts: Vec<Range<usize>>) -> Vec<Lifted> {
    let mut going = Vec::new();
    for part in parts {
        let _ = lift_part(engine, part, Purpose::Drop, &mut going); // needs no device
    }
    going
}

/// The kernel has refused a call: what was lifted is put back, unless its mapping has gone nevertheless.
fn put_back(engine: &Engine, going: Vec<Lifted>) {
    for lifted in going {
        let is_there = memory::is_mapped(lifted.part.clone());
        if is_there { lower(engine, lifted, 0, 0) } else { discard(engine, lifted) }
    }
}

fn discard_all(engine: &Engine, going: Vec<Lifted>) {
    for lifted in going {
        engine.table().note_unlocked(lifted.part.clone());
        discard(engine, lifted);
    }
}

/// Notes that what was locked in RAM is so at its new place.
fn move_locks(engine: &Engine, from: &Range<usize>, kept: &Range<usize>, at: usize) {
    for part in engine.table().note_unlocked(from.clone()) {
        let (start, end) = (part.start, part.end.min(kept.end));
        if start < end {
            engine.table().note_locked(at + (start - from.start)..at + (end - from.start), usize::MAX);
        }
    }
}

/// Takes the entries of a part out of the table, and adds them to `all`. Its blocks are closed if they were never
/// touched, else sealed. If a device cannot be read, the entries of the part stay.
fn lift_part(engine: &Engine, part: Range<usize>, purpose: Purpose, all: &mut Vec<Lifted>) -> io::Result<()> {
    let blocks = blocks_of(&part);
    engine.policy().forget_streams(BlockId::from_index(blocks.start)..BlockId::from_index(blocks.end));
    let mut lifted = Lifted { part, blocks: Vec::new() };
    for block in pages::close_untouched(engine, &lifted.part) {
        match lift(engine, block, pages_in(block, &lifted.part), purpose) {
            Some(entries) => lifted.blocks.push((block, entries)),
            None => {
                put_back_some(engine, lifted);
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
        }
    }
    lifted.blocks.sort_by_key(|&(block, _)| block);
    all.push(lifted);
    Ok(())
}

/// Puts back the blocks of a part that were lifted. The others are as they were, but that some are closed.
fn put_back_some(engine: &Engine, lifted: Lifted) {
    let part = lifted.part;
    for (block, entries) in lifted.blocks {
        let (addr, pages) = (engine.table().block_addr(block), pages_in(block, &part));
        let of_block = addr + pages.start * PAGE_SIZE..addr + pages.end * PAGE_SIZE;
        lower(engine, Lifted { part: of_block, blocks: vec![(block, entries)] }, 0, 0);
    }
    pages::open(engine, &part, None);
}

/// Takes the entries of pages out of the table, and seals the pages. `None`: a device cannot be read.
fn lift(engine: &Engine, id: BlockId, pages: Range<usize>, purpose: Purpose) -> Option<Entries> {
    let _pass = engine.gate().enter(signals::thread_id());
    let mut block = engine.lock(id);
    block.end_lost(pages.clone()); // reads of lost pages are tried again at the new address
    if block.is_empty() {
        block.set_sealed(pages, true);
        block.isolate(); // a fault that waits for a frame may have divided it
        return Some(Entries::Pages(Vec::new()));
    }
    let is_whole = pages.len() == BLOCK_PAGES && !block.has_sealed();
    if is_whole && purpose != (Purpose::Move { alike: false }) {
        unmap_before(&mut block, pages.clone(), purpose);
        (0..block.nr_folios()).for_each(|index| take_off_list(engine, &mut block, index));
        let mut content = block.take();
        content.pinned &= purpose == Purpose::Drop; // what holds these addresses does not follow
        block.set_sealed(pages, true);
        return Some(Entries::Block(Box::new(content)));
    }
    if block.order() > Order::PAGE {
        block.divide(Order::PAGE);
    }
    unmap_before(&mut block, pages.clone(), purpose);
    for page in pages.clone() {
        let piece = page / PIECE.nr_pages();
        let is_out = |page: usize| matches!(block.state(page), State::Swapped(_));
        let has_one_hash = is_out(page) && is_out(piece * PIECE.nr_pages()) && block.piece_hash(piece).is_some();
        if has_one_hash && asleep(block.hash_pages(page, &mut [])).is_err() {
            if purpose != Purpose::Drop {
                return None;
            }
            block.forget_hashes(piece * PIECE.nr_pages()..(piece + 1) * PIECE.nr_pages());
        }
    }
    let lift = |page: usize| {
        let content = match block.state(page) {
            State::Resident(frame) | State::Standby(frame) => {
                let is_mapped = matches!(block.state(page), State::Resident(_));
                block.release_slot(page);
                take_off_list(engine, &mut block, page);
                if is_mapped { Content::Mapped(frame) } else { Content::Standby(frame) }
            }
            State::Swapped(slot) => Content::Swapped(slot, block.page_hash(page)),
            State::Empty => return None,
        };
        block.folio_mut(page).set_empty();
        Some((id.page(page).index(), content))
    };
    let lifted = pages.clone().filter_map(lift).collect();
    block.set_sealed(pages, true);
    Some(Entries::Pages(lifted))
}

/// Moves mapped folios home before they are lifted, where that is better. What goes need not, but its frames keep
/// their pages then.
fn unmap_before(block: &mut Block<'_>, pages: Range<usize>, purpose: Purpose) {
    if purpose == Purpose::Drop && !block.pinned {
        for index in block.index_of(pages.start)..=block.index_of(pages.end - 1) {
            if matches!(block.state(index), State::Resident(_)) {
                let _ = block.unmap_to_laundry(index); // in use: it goes with its mapping
            }
        }
    }
}

/// Takes a folio off its list, so that nobody looks for it where it was. Its write no longer counts.
fn take_off_list(engine: &Engine, block: &mut Block<'_>, index: usize) {
    if let Some(frame) = block.folio(index).frame() {
        block.folio_mut(index).cancel_write();
        engine.ram().zone(frame).remove(frame);
    }
}

/// Puts a folio on a list again that was taken off.
fn put_on_list(engine: &Engine, block: &Block<'_>, index: usize) {
    let Some(frame) = block.folio(index).frame() else { return };
    let is_mapped = matches!(block.state(index), State::Resident(_));
    let zone = engine.ram().zone(frame);
    zone.insert_for(block.name(index), frame, if is_mapped { List::Active } else { List::Laundry });
    if is_mapped && block.pinned {
        zone.remove(frame);
    }
}

/// Puts lifted entries into the table, this many bytes further on, and manages their addresses, of which there are
/// `more` at the end.
fn lower(engine: &Engine, lifted: Lifted, distance: isize, more: usize) {
    let at = |addr: usize| addr.wrapping_add_signed(distance);
    let part = at(lifted.part.start)..at(lifted.part.end) + more;
    pages::close_for_change(engine, &part);
    let uffd = engine.uffd();
    if let Err(error) = uffd.register(part.start, part.len()) {
        fatal::die(&format!("memory at {:#x} that was moved cannot be managed: {error}", part.start));
    }
    // Before the table has the entries: from then on a fault may bring a page in.
    drop_missing(engine, &lifted, &part, at);
    for (id, entries) in lifted.blocks {
        let _pass = engine.gate().enter(signals::thread_id());
        match entries {
            Entries::Block(content) => {
                let addr = at(engine.table().block_addr(id));
                let mut block = lock_target(engine, BlockId::from_index(addr / BLOCK_BYTES));
                block.put(*content);
                (0..block.nr_folios()).for_each(|index| put_on_list(engine, &block, index));
            }
            Entries::Pages(pages) => {
                for (page, content) in pages {
                    lower_page(engine, at(page * PAGE_SIZE) / PAGE_SIZE, content);
                }
            }
        }
    }
    pages::open(engine, &part, None);
}

/// Drops what others made where no folio is mapped, before the faults of `part` were reported. `at`: where lifted
/// memory is now.
fn drop_missing(engine: &Engine, lifted: &Lifted, part: &Range<usize>, at: impl Fn(usize) -> usize) {
    let mut end = part.start; // of what is dropped or mapped
    let mut pass_by = |mapped: Range<usize>| {
        let missing = end..mapped.start;
        end = mapped.end;
        if missing.is_empty() {
            return;
        }
        // SAFETY: pages that are not mapped; threads that touch them wait.
        if let Err(error) = unsafe { engine.ram().mapper().discard(missing.start, missing.len()) } {
            fatal::die(&format!("memory at {:#x} that was moved cannot be managed: {error}", missing.start));
        }
    };
    for (block, entries) in &lifted.blocks {
        match entries {
            Entries::Block(content) => {
                let (addr, bytes) = (at(engine.table().block_addr(*block)), content.order().bytes());
                let is_mapped = |&index: &usize| matches!(content.state(index), State::Resident(_));
                let mapped = (0..content.nr_folios()).filter(is_mapped).map(|index| addr + index * bytes);
                mapped.for_each(|start| pass_by(start..start + bytes));
            }
            Entries::Pages(pages) => {
                let is_mapped = |(_, content): &&(usize, Content)| matches!(content, Content::Mapped(_));
                let mapped = pages.iter().filter(is_mapped).map(|&(page, _)| at(page * PAGE_SIZE));
                mapped.for_each(|start| pass_by(start..start + PAGE_SIZE));
            }
        }
    }
    pass_by(part.end..part.end);
}

/// Locks a block into which entries are put. A closed one is sealed until it is opened: what others map there
/// meanwhile would be dropped with what is missing, or reach over pages that are not registered yet.
fn lock_target(engine: &Engine, id: BlockId) -> Block<'_> {
    let mut block = engine.lock(id);
    if !engine.table().is_open(id) {
        block.set_sealed(0..BLOCK_PAGES, true);
    }
    block
}

fn lower_page(engine: &Engine, page: usize, content: Content) {
    let (id, page) = (BlockId::from_index(page / BLOCK_PAGES), page % BLOCK_PAGES);
    let mut block = lock_target(engine, id);
    if block.is_empty() {
        block.join();
        block.split(Order::PAGE);
    } else {
        if block.order() > Order::PAGE {
            block.divide(Order::PAGE);
        }
    }
    match content {
        Content::Mapped(frame) | Content::Standby(frame) => {
            block.folio_mut(page).set_in_ram(frame, matches!(content, Content::Mapped(_)));
            put_on_list(engine, &block, page);
        }
        Content::Swapped(slot, hash) => {
            block.folio_mut(page).set_slot(Some(slot));
            if let Some(hash) = hash {
                block.set_page_hash(page, hash);
            }
        }
    }
}

/// Frees the frames and slots of lifted entries whose mapping has gone, with the pages that were mapped there.
fn discard(engine: &Engine, lifted: Lifted) {
    for (id, entries) in lifted.blocks {
        let _pass = engine.gate().enter(signals::thread_id());
        match entries {
            Entries::Block(content) => {
                for index in 0..content.nr_folios() {
                    discard_folio(engine, content.state(index), content.folio(index).slot(), content.order());
                }
            }
            Entries::Pages(pages) => {
                for (_, content) in pages {
                    let (state, slot) = match content {
                        Content::Mapped(frame) => (State::Resident(frame), None),
                        Content::Standby(frame) => (State::Standby(frame), None),
                        Content::Swapped(slot, _) => (State::Swapped(slot), Some(slot)),
                    };
                    discard_folio(engine, state, slot, Order::PAGE);
                }
            }
        }
        let mut block = engine.lock(id);
        if block.is_empty() {
            block.join();
        }
    }
    pages::close_sealed(engine, &lifted.part);
}

fn discard_folio(engine: &Engine, state: State, slot: Option<SlotId>, order: Order) {
    match state {
        State::Resident(frame) => engine.free_lost(frame, order),
        State::Standby(frame) => engine.ram().release(frame),
        State::Empty | State::Swapped(_) => {}
    }
    if let Some(slot) = slot {
        engine.swap().free_slots(slot, order);
    }
}
