//! Content that a program gives up, in memory that stays managed.

use std::ops::Range;

use folioswap_core::{BLOCK_BYTES, BlockId, PAGE_SIZE, State};

use crate::arena::advice;
use crate::compact::compactd;
use crate::engine::Engine;
use crate::memory::table::{blocks_of, pages_in};

/// Makes bytes read as zero. Frees the slots of dropped pages and the frames of dropped folios.
///
/// # Safety
/// Nobody relies on the content of these bytes.
pub(crate) unsafe fn discard(engine: &Engine, range: Range<usize>) {
    let (up, down) = (range.start.next_multiple_of(BLOCK_BYTES), range.end / BLOCK_BYTES * BLOCK_BYTES);
    let (parts, whole) = match up <= down {
        true => ([range.start..up, down..range.end], up / BLOCK_BYTES..down / BLOCK_BYTES),
        false => ([range, 0..0], 0..0), // all within one block
    };
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        // SAFETY: the caller's promise: nobody relies on this content.
        unsafe { discard_part(engine, part) }
    }
    if !whole.is_empty() {
        advice::each_block_of(engine, whole, |block| engine.lock(block).drop_block());
    }
    let _inside = engine.enter();
    compactd::look_for_whole(engine);
}

/// The same for a part of one block.
///
/// # Safety
/// Nobody relies on the content of these bytes.
unsafe fn discard_part(engine: &Engine, part: Range<usize>) {
    let id = engine.table().page_at(part.start).block();
    let base = engine.table().block_addr(id);
    // The whole pages of the part.
    let inner = part.start.next_multiple_of(PAGE_SIZE)..part.end / PAGE_SIZE * PAGE_SIZE;
    if inner.is_empty() {
        // SAFETY: the caller's promise: nobody relies on this content.
        return unsafe { zero(engine, part) };
    }
    let pages = (inner.start - base) / PAGE_SIZE..(inner.end - base) / PAGE_SIZE;
    {
        let _inside = engine.enter(); // a signal handler might touch this block
        let mut block = engine.lock(id);
        for mapped in block.drop_pages(pages) {
            block.zero_mapped(mapped);
        }
    }
    for edge in [part.start..inner.start, inner.end..part.end] {
        if !edge.is_empty() {
            // SAFETY: the caller's promise: nobody relies on this content.
            unsafe { zero(engine, edge) };
        }
    }
}

/// Zeroes bytes of one block. Pages that read as zero already are left alone.
///
/// # Safety
/// Nobody relies on the content of these bytes.
unsafe fn zero(engine: &Engine, part: Range<usize>) {
    let mut start = part.start;
    while start < part.end {
        let end = part.end.min((start + 1).next_multiple_of(PAGE_SIZE));
        let page = engine.table().page_at(start);
        let empty = {
            let _inside = engine.enter(); // a signal handler might touch this block
            let block = engine.lock(page.block());
            block.state(block.index_of(page.page_in_block())) == State::Empty
        };
        if !empty {
            // SAFETY: the bytes lie in mapped managed memory, and nobody relies on them (the caller's promise). The
            // touch brings a missing folio in as any other touch does; no lock is held here.
            unsafe { std::ptr::write_bytes(start as *mut u8, 0, end - start) }
        }
        start = end;
    }
}

/// Drops whole folios in a range. Other content may be dropped later or never.
pub(crate) fn offer(engine: &Engine, range: &Range<usize>) {
    let _inside = engine.enter(); // a signal handler might touch one of these
    for id in blocks_of(range).map(BlockId::from_index) {
        let pages = pages_in(id, range);
        if engine.table().is_open(id) {
            let mut block = engine.lock(id);
            let nr_pages = block.order().nr_pages();
            let whole = pages.start.next_multiple_of(nr_pages)..pages.end / nr_pages * nr_pages;
            if !whole.is_empty() {
                block.drop_pages(whole);
            }
        }
    }
    compactd::look_for_whole(engine);
}
