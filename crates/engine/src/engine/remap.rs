//! Managed memory moves to other addresses, as by mremap: the kernel moves the mapping, and the engine the content.
//!
//! The content is lifted out of the table first, so nothing is mapped while the kernel moves the mapping. Then the
//! kernel no longer reports its faults, so the memory is taken over anew, even where it was if the move fails. Whole
//! blocks whose place in a block stays the same are moved as they are, all other pages one by one. Threads that touch
//! either place meanwhile wait for the end: pages are sealed, or their blocks closed, until their content is back.

use std::io;
use std::ops::Range;

use folioswap_core::{BLOCK_PAGES, Block, BlockId, FrameId, List, Locked, Order, PAGE_SIZE, PIECE, SlotId, State};
use folioswap_sys::signals;

use super::Engine;
use super::manage::{blocks_of, pages_in};
use crate::process::fatal;

/// How often a page is unmapped that the kernel uses for a moment.
const TRIES: usize = 100;

/// What was lifted out of a block.
enum Lifted {
    /// All of it.
    Block(Box<Block>),
    /// Pages, by their addresses in units of a page.
    Pages(Vec<(usize, Content)>),
}

/// The content of a page.
enum Content {
    Ram(FrameId),
    Swapped(SlotId, Option<u128>),
}

/// How memory moves to other addresses.
#[derive(Debug)]
pub struct Relocation<'a> {
    /// Where it is.
    pub from: Range<usize>,
    /// Where it will be. If this is shorter, the rest of the content is dropped.
    pub to: Range<usize>,
    /// The parts of `to` of which the content is dropped.
    pub replaced: &'a [Range<usize>],
    /// The old mapping stays, empty.
    pub keeps_old: bool,
}

/// Where parts of `from` are after a move. If the last one reaches the end, what has grown belongs to it.
fn at_target(parts: &[Range<usize>], from: &Range<usize>, to: &Range<usize>) -> Vec<Range<usize>> {
    let at = |addr: usize| to.start + (addr - from.start);
    let moved = |part: &Range<usize>| at(part.start)..if part.end == from.end { to.end } else { at(part.end) };
    parts.iter().map(moved).collect()
}

impl Engine {
    /// Moves the content of managed memory. `away` moves the mappings to a place that nobody uses. Then what they
    /// replace is dropped, and `there` moves them from that place to `to`; if it fails, `back` moves them back. `None`:
    /// some content is in use and cannot move now, and nothing has changed.
    ///
    /// # Safety
    /// Nobody relies on the content of `replaced`. After `there` has succeeded, what was managed is private anonymous
    /// memory at `to`.
    pub unsafe fn relocate(
        &self,
        ranges: Relocation<'_>,
        away: impl FnOnce() -> io::Result<()>,
        there: impl FnOnce() -> io::Result<()>,
        back: impl FnOnce(),
    ) -> Option<io::Result<()>> {
        let Relocation { from, to, replaced, keeps_old } = ranges;
        let _blocked = signals::block_all(); // a signal handler might touch the range, and would wait for this thread
        let _changing = self.table.changing();
        let parts = self.managed_parts(from.clone());
        let kept = from.start..from.end.min(from.start + to.len());
        let (kept_parts, rest) = (self.managed_parts(kept.clone()), self.managed_parts(kept.end..from.end));
        let alike = from.start % Order::HUGE.bytes() == to.start % Order::HUGE.bytes();
        if parts.iter().any(|part| self.has_pinned(part)) {
            return None;
        }
        let open = |parts: &[Range<usize>]| parts.iter().for_each(|part| self.open(part, None));
        let Some(lifted) = self.lift_all(&kept_parts, alike) else {
            open(&parts);
            return None;
        };
        let Some(lifted_rest) = self.lift_all(&rest, alike) else {
            self.lower_all(lifted, 0);
            open(&parts);
            return None;
        };
        let moved = away().and_then(|()| {
            let lost: Vec<_> = replaced.iter().flat_map(|part| self.managed_parts(part.clone())).collect();
            replaced.iter().for_each(|part| self.forget_all(part));
            there().inspect_err(|_| {
                back();
                // SAFETY: their content is dropped. If the kernel has unmapped them, nothing is there to be managed.
                lost.into_iter().for_each(|part| _ = unsafe { self.manage_now(part, None) });
            })
        });
        if moved.is_err() {
            self.take_over_moved(&parts); // the kernel may have moved it away and back
            self.lower_all(lifted, 0);
            self.lower_all(lifted_rest, 0);
            open(&parts);
            return Some(moved);
        }
        let distance = to.start as isize - from.start as isize;
        let new_parts = at_target(&kept_parts, &kept, &to);
        self.take_over_moved(&new_parts);
        self.lower_all(lifted, distance / PAGE_SIZE as isize);
        self.lower_all(lifted_rest, 0);
        open(&new_parts);
        self.forget_all(&(kept.end..from.end));
        if keeps_old {
            open(&parts);
        } else {
            self.close_sealed(&from);
        }
        Some(moved)
    }

    /// Whether content of a range is not to leave RAM.
    fn has_pinned(&self, range: &Range<usize>) -> bool {
        let mut blocks = blocks_of(range).map(BlockId::from_index).filter(|&block| self.table.has(block));
        blocks.any(|block| {
            let locked = self.table.lock(block);
            locked.pinned && !locked.is_empty()
        })
    }

    /// Takes memory over that the kernel has moved.
    fn take_over_moved(&self, parts: &[Range<usize>]) {
        for part in parts {
            // SAFETY: managed before, and nothing is present: all of it was lifted.
            if let Err(error) = unsafe { self.take_over(part) } {
                fatal::die(&format!("memory at {:#x} that was moved cannot be managed: {error}", part.start));
            }
        }
    }

    /// Takes the content of ranges out of the table. Their blocks are closed if they were never touched, else sealed.
    /// `None`: some of it is in use, and all content is back.
    fn lift_all(&self, parts: &[Range<usize>], alike: bool) -> Option<Vec<(BlockId, Lifted)>> {
        let mut lifted = Vec::new();
        for part in parts {
            for block in self.close_untouched(part) {
                let Some(content) = self.lift(block, pages_in(block, part), alike) else {
                    self.lower_all(lifted, 0);
                    return None;
                };
                lifted.push((block, content));
            }
        }
        Some(lifted)
    }

    /// Takes the content of pages out of the table, and seals them. `None`: some of it is in use.
    fn lift(&self, block: BlockId, pages: Range<usize>, alike: bool) -> Option<Lifted> {
        let _pass = self.gate().enter(signals::thread_id());
        let mut locked = self.table.lock(block);
        let is_whole = alike && pages.len() == BLOCK_PAGES && !locked.has_sealed();
        self.end_lost(&locked, pages.clone()); // reads of lost pages are tried again at the new address
        if locked.is_empty() {
            locked.set_sealed(pages, true);
            return Some(Lifted::Pages(Vec::new()));
        }
        if locked.pinned {
            return None;
        }
        if is_whole {
            self.unmap_all(&mut locked, pages.clone())?;
            for index in 0..locked.nr_folios() {
                self.take_off_list(&mut locked, index);
            }
            let content = locked.take();
            locked.set_sealed(pages, true);
            return Some(Lifted::Block(Box::new(content)));
        }
        self.split_to_pages(&mut locked)?;
        self.unmap_all(&mut locked, pages.clone())?;
        for page in pages.clone() {
            let piece = page / PIECE.nr_pages();
            let is_out = |page: usize| matches!(locked.state(page), State::Swapped(_));
            if is_out(page) && is_out(piece * PIECE.nr_pages()) && locked.piece_hash(piece).is_some() {
                self.hash_pages(&mut locked, page, &mut []).ok()?;
            }
        }
        let lift = |page: usize| {
            let content = match locked.state(page) {
                State::Standby(frame) => {
                    self.release_slot(&mut locked, page);
                    self.take_off_list(&mut locked, page);
                    Content::Ram(frame)
                }
                State::Swapped(slot) => Content::Swapped(slot, locked.page_hash(page)),
                State::Empty | State::Resident(_) => return None,
            };
            locked.folio_mut(page).set_empty();
            Some((block.page(page).index(), content))
        };
        let lifted = pages.clone().filter_map(lift).collect();
        locked.set_sealed(pages, true);
        Some(Lifted::Pages(lifted))
    }

    /// Makes the folios of a block single pages. `None`: the block is one folio in RAM that cannot be divided now.
    fn split_to_pages(&self, locked: &mut Locked<'_>) -> Option<()> {
        if locked.order() == Order::HUGE && locked.folio(0).frame().is_some() {
            return self.divide_whole(locked, Order::PAGE).then_some(());
        }
        if locked.order() > Order::PAGE {
            self.split_block(locked, Order::PAGE);
        }
        Some(())
    }

    fn unmap_all(&self, locked: &mut Locked<'_>, pages: Range<usize>) -> Option<()> {
        for index in locked.index_of(pages.start)..=locked.index_of(pages.end - 1) {
            let is_mapped = |locked: &Locked<'_>| matches!(locked.state(index), State::Resident(_));
            if is_mapped(locked) && !(0..TRIES).any(|_| self.unmap_to_laundry(locked, index).is_ok()) {
                return None;
            }
        }
        Some(())
    }

    /// Takes a folio at home off its list, so that nobody looks for it where it was. Its write no longer counts.
    fn take_off_list(&self, locked: &mut Locked<'_>, index: usize) {
        if let Some(frame) = locked.folio(index).frame() {
            if locked.folio(index).writing_to().is_some() {
                locked.folio_mut(index).cancel_write();
            }
            self.ram.put(frame, List::Laundry);
            self.ram.zone(frame).remove(frame);
        }
    }

    /// Puts lifted content into the table, this many pages further on.
    fn lower_all(&self, lifted: Vec<(BlockId, Lifted)>, distance: isize) {
        for (block, content) in lifted {
            let _pass = self.gate().enter(signals::thread_id());
            match content {
                Lifted::Block(content) => {
                    let blocks = distance / BLOCK_PAGES as isize;
                    let mut locked = self.table.lock(BlockId::from_index(block.index().wrapping_add_signed(blocks)));
                    locked.put(*content);
                    for index in 0..locked.nr_folios() {
                        if let Some(frame) = locked.folio(index).frame() {
                            self.ram.zone(frame).insert_for(locked.name(index), frame, List::Laundry);
                        }
                    }
                }
                Lifted::Pages(pages) => {
                    for (page, content) in pages {
                        self.lower(page.wrapping_add_signed(distance), content);
                    }
                }
            }
        }
    }

    fn lower(&self, page: usize, content: Content) {
        let (block, page) = (BlockId::from_index(page / BLOCK_PAGES), page % BLOCK_PAGES);
        let mut locked = self.table.lock(block);
        if locked.is_empty() {
            locked.join();
            locked.split(Order::PAGE);
        } else if self.split_to_pages(&mut locked).is_none() {
            fatal::die("a block in use as one huge page is in the way of memory that was moved there");
        }
        match content {
            Content::Ram(frame) => {
                locked.folio_mut(page).set_in_ram(frame, false);
                self.ram.zone(frame).insert_for(locked.name(page), frame, List::Laundry);
            }
            Content::Swapped(slot, hash) => {
                locked.folio_mut(page).set_slot(Some(slot));
                if let Some(hash) = hash {
                    locked.set_page_hash(page, hash);
                }
            }
        }
    }
}
