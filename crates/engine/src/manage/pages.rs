//! Memory is managed where it lies: pages become managed, and are given up again.
//!
//! The kernel keeps the address space. Whoever maps or unmaps memory makes the kernel's own call, and tells the engine
//! what became private anonymous memory and what is about to go. Pages of a block that are not managed are *sealed*:
//! nothing is mapped there. A folio is sealed as a whole or not at all.
//!
//! **Locking.** One thread at a time changes what is managed (`Table::changing`). The sealed bits of a block change
//! under its lock.

use std::io;
use std::ops::Range;

use folioswap_core::{BLOCK_BYTES, BLOCK_PAGES, BlockId, Order, PAGE_SIZE, State};
use folioswap_sys::{memory, signals};

use crate::compact::compactd;
use crate::engine::Engine;
use crate::memory::table::{blocks_of, pages_in};

/// The blocks that lie in a range of addresses completely. May be empty at the end of the first one.
fn whole_blocks_of(range: &Range<usize>) -> Range<usize> {
    let first = range.start.div_ceil(BLOCK_BYTES).min(blocks_of(range).end);
    first..(range.end / BLOCK_BYTES).max(first)
}

/// The blocks that lie in a range of addresses in part. `whole`: the others.
fn edges_of(range: &Range<usize>, whole: &Range<usize>) -> Vec<Range<usize>> {
    let blocks = blocks_of(range);
    vec![blocks.start..whole.start, whole.end..blocks.end]
}

/// Manages private anonymous memory from now on, and drops what is present: other threads may touch the memory
/// before the call that made it has returned. `order`: of its folios, if that is fixed.
///
/// # Errors
/// EINVAL: it is of another kind. ENOMEM: too many mappings, or a limit of locked memory.
///
/// # Safety
/// The range is whole pages of private anonymous memory. Nobody relies on their content, and none is managed.
pub(crate) unsafe fn manage(engine: &Engine, range: Range<usize>, order: Option<Order>) -> io::Result<()> {
    let _blocked = signals::block_all(); // a signal handler might touch another part of one of the blocks
    let _changing = engine.table().changing();
    // SAFETY: the caller's promise.
    unsafe { manage_now(engine, range, order) }
}

/// As [`manage`], for a caller that changes what is managed.
///
/// # Safety
/// As [`manage`].
pub(crate) unsafe fn manage_now(engine: &Engine, range: Range<usize>, order: Option<Order>) -> io::Result<()> {
    // SAFETY: the caller's promise.
    unsafe { take_over(engine, &range)? };
    open(engine, &range, order);
    Ok(())
}

/// Has the kernel report the faults of new memory, and drops what is present. Threads that touch it wait for the
/// end of the change. It may get content before it is opened ([`open`]).
///
/// # Errors
/// As [`manage`]. The memory is as it was, but for its content.
///
/// # Safety
/// As [`manage`].
unsafe fn take_over(engine: &Engine, range: &Range<usize>) -> io::Result<()> {
    if engine.table().possible(range.clone()) != *range {
        return Err(io::Error::from_raw_os_error(libc::EINVAL)); // the table has no entries for it
    }
    close_for_change(engine, range);
    // SAFETY: the caller's promise.
    unsafe { register(engine, range) }.inspect_err(|error| {
        // Another userfaultfd has a part, and none is registered now. Before Linux 6.16 this would end that one's.
        if error.raw_os_error() != Some(libc::EBUSY) {
            let _ = engine.uffd().unregister(range.start, range.len());
        }
        leave_to_kernel(range.start, range.len());
    })
}

/// Makes entries for a range that is not managed. Its blocks stay closed, but for those of which a part is managed.
pub(crate) fn close_for_change(engine: &Engine, range: &Range<usize>) {
    for id in close_untouched(engine, range) {
        let _pass = engine.gate().enter(signals::thread_id());
        let mut block = engine.lock(id);
        if !engine.table().is_open(id) {
            block.drop_block();
            block.reset_advice();
            engine.table().close(id); // known from now on
        }
    }
}

/// # Safety
/// As [`manage`].
unsafe fn register(engine: &Engine, range: &Range<usize>) -> io::Result<()> {
    let (addr, len) = (range.start, range.len());
    memory::dontfork(addr, len)?;
    if engine.ram().frames().is_locked() {
        memory::lock_on_fault(addr, len)?;
    }
    advise(engine, addr, len)?;
    engine.uffd().register(addr, len)?;
    // SAFETY: nobody relies on the content (the caller's promise).
    unsafe { engine.ram().mapper().discard(addr, len)? };
    make_anon_vma(engine, range)
}

/// Advises the kernel on memory whose faults it is to report. Where it may make no huge page, a touch makes a table of
/// small pages first. A huge page that is moved there is split, unless the table is dropped
/// ([`Mapper::drops_tables`](crate::memory::mapper::Mapper::drops_tables)).
pub(super) fn advise(engine: &Engine, addr: usize, len: usize) -> io::Result<()> {
    match engine.ram().mapper().drops_tables() {
        true => memory::advise_nohugepage(addr, len),
        false => memory::advise_hugepage(addr, len),
    }
}

/// Leaves memory to the kernel: it may make huge pages again, and children get it.
pub(crate) fn leave_to_kernel(addr: usize, len: usize) {
    let _ = memory::advise_hugepage(addr, len);
    let _ = memory::dofork(addr, len);
}

/// Opens pages that were taken over or sealed. `order`: of their folios, if that is fixed.
pub(crate) fn open(engine: &Engine, range: &Range<usize>, order: Option<Order>) {
    if range.is_empty() {
        return;
    }
    let whole = whole_blocks_of(range);
    let mut others = edges_of(range, &whole);
    others.extend(if order.is_none() { engine.table().open_untouched(whole) } else { vec![whole] });
    for id in others.into_iter().flatten().map(BlockId::from_index) {
        let _pass = engine.gate().enter(signals::thread_id());
        let mut block = engine.lock(id);
        let pages = pages_in(id, range);
        if !engine.table().is_open(id) && pages.len() < BLOCK_PAGES {
            block.set_sealed(0..BLOCK_PAGES, true);
        }
        if block.has_sealed() {
            block.set_sealed(pages, false);
            block.isolate();
        }
        if order.is_some() {
            block.fixed_order = order;
        }
        engine.table().open(id);
    }
    engine.table().note_in_use(blocks_of(range));
}

/// Gives the mapping of new memory its `anon_vma`, by a page that is dropped at once. Later changes of protection
/// divide the mapping. Parts with different `anon_vma`s could not be merged again, and a folio across two of them
/// could not be moved.
fn make_anon_vma(engine: &Engine, range: &Range<usize>) -> io::Result<()> {
    // In a whole block, which is dropped whole: a table of small pages left there would split huge pages.
    let block = range.start.next_multiple_of(BLOCK_BYTES);
    if block + BLOCK_BYTES > range.end {
        return Ok(());
    }
    // SAFETY: pages that nobody touches yet (the caller's promise).
    unsafe { engine.ram().mapper().fill(block, PAGE_SIZE) }.map_err(io::Error::other)?;
    // SAFETY: as above.
    unsafe { engine.ram().mapper().discard(block, BLOCK_BYTES) }.map_err(io::Error::from)
}

/// Drops the content of pages and no longer manages them. Then calls `replace`, which unmaps or replaces them, with
/// the parts that were managed; threads that touch them wait for that. Pages that are not managed are skipped.
///
/// # Safety
/// Nobody relies on the content of the range.
pub(crate) unsafe fn unmanage<R>(
    engine: &Engine,
    range: Range<usize>,
    replace: impl FnOnce(&[Range<usize>]) -> R,
) -> R {
    let _blocked = signals::block_all(); // a signal handler might touch the range, and would wait for this thread
    let _changing = engine.table().changing();
    let managed = managed_parts(engine, range.clone());
    unmanage_all(engine, &range);
    replace(&managed)
}

/// As [`unmanage`], for a caller that changes what is managed.
fn unmanage_all(engine: &Engine, range: &Range<usize>) {
    if range.is_empty() {
        return;
    }
    let blocks = blocks_of(range);
    engine.policy().forget_streams(BlockId::from_index(blocks.start)..BlockId::from_index(blocks.end));
    for block in close_untouched(engine, range) {
        if engine.table().is_open(block) {
            unmanage_in(engine, block, pages_in(block, range));
        }
    }
    compactd::look_for_whole(engine);
}

/// The parts of a range that are managed, in order.
pub(crate) fn managed_parts(engine: &Engine, range: Range<usize>) -> Vec<Range<usize>> {
    let _pass = engine.gate().enter(signals::thread_id()); // TiB take milliseconds
    managed_parts_inside(engine, range)
}

/// The same for blocks, inside the gate.
pub(crate) fn managed_in(engine: &Engine, blocks: Range<usize>) -> Vec<Range<usize>> {
    managed_parts_inside(engine, blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES)
}

fn managed_parts_inside(engine: &Engine, range: Range<usize>) -> Vec<Range<usize>> {
    let range = engine.table().possible(range);
    let mut parts: Vec<Range<usize>> = Vec::new();
    if range.is_empty() {
        return parts;
    }
    let mut add = |part: Range<usize>| match parts.last_mut() {
        Some(last) if last.end == part.start => last.end = part.end,
        _ => parts.push(part),
    };
    let blocks = blocks_of(&range);
    let mut next = blocks.start;
    while next < blocks.end {
        let id = BlockId::from_index(next);
        let base = engine.table().block_addr(id);
        if let Some((end, is_open)) = engine.table().untouched(next..blocks.end) {
            if is_open {
                add(base.max(range.start)..range.end.min(end * BLOCK_BYTES));
            }
            next = end;
            continue;
        }
        next += 1;
        let block = engine.lock(id);
        if !engine.table().is_open(id) {
            continue;
        }
        let pages = pages_in(id, &range);
        let at = |page: usize| (base + page * PAGE_SIZE).clamp(range.start, range.end);
        if !block.has_sealed() {
            add(at(pages.start)..at(pages.end));
            continue;
        }
        pages.filter(|&page| !block.is_sealed(page)).for_each(|page| add(at(page)..at(page + 1)));
    }
    parts
}

/// The parts of a range with content, in RAM or not, in the first block that has some. Empty: there is none.
pub(crate) fn first_filled(engine: &Engine, range: Range<usize>) -> Vec<Range<usize>> {
    let _pass = engine.gate().enter(signals::thread_id());
    let range = engine.table().possible(range);
    let mut parts: Vec<Range<usize>> = Vec::new();
    let blocks = if range.is_empty() { 0..0 } else { blocks_of(&range) };
    let mut next = blocks.start;
    while next < blocks.end && parts.is_empty() {
        if let Some((end, _)) = engine.table().untouched(next..blocks.end) {
            next = end;
            continue;
        }
        let id = BlockId::from_index(next);
        next += 1;
        if !engine.table().is_open(id) {
            continue;
        }
        let block = engine.lock(id);
        let is_filled = |&page: &usize| !block.is_sealed(page) && block.state(block.index_of(page)) != State::Empty;
        for page in pages_in(id, &range).filter(is_filled) {
            let start = engine.table().block_addr(id) + page * PAGE_SIZE;
            match parts.last_mut() {
                Some(last) if last.end == start => last.end += PAGE_SIZE,
                _ => parts.push(start..start + PAGE_SIZE),
            }
        }
    }
    parts
}

/// Closes the blocks of a range that were never touched. Returns the other blocks, which have entries.
pub(crate) fn close_untouched(engine: &Engine, range: &Range<usize>) -> Vec<BlockId> {
    let whole = whole_blocks_of(range);
    let edges = edges_of(range, &whole);
    let others: Vec<_> = edges.into_iter().chain(engine.table().close_untouched(whole)).collect();
    others.iter().for_each(|blocks| engine.table().ensure(blocks.clone()));
    others.into_iter().flatten().map(BlockId::from_index).collect()
}

/// Closes the blocks of which no page is managed.
pub(crate) fn close_sealed(engine: &Engine, range: &Range<usize>) {
    for id in blocks_of(range).map(BlockId::from_index).filter(|&id| engine.table().is_open(id)) {
        let mut block = engine.lock(id);
        if (0..BLOCK_PAGES).all(|page| block.is_sealed(page)) {
            engine.table().close(id);
            block.reset_advice();
        }
    }
}

fn unmanage_in(engine: &Engine, id: BlockId, pages: Range<usize>) {
    let _pass = engine.gate().enter(signals::thread_id());
    let mut block = engine.lock(id);
    if pages.is_empty() {
        return;
    }
    let is_last = (0..BLOCK_PAGES).all(|page| pages.contains(&page) || block.is_sealed(page));
    if is_last {
        engine.table().close(id);
        block.drop_block();
        block.reset_advice();
        return;
    }
    block.set_sealed(pages.clone(), true);
    block.isolate(); // so each folio goes as a whole or stays
    block.drop_pages(pages);
}
