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

use folioswap_core::{BLOCK_PAGES, BlockId, Locked, Order, PAGE_SIZE, PIECE, State};
use folioswap_sys::{memory, signals};

use super::Engine;
use crate::memory::mapper::{MapError, patiently};
use crate::process::fatal;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = Order::HUGE.bytes();

/// Content of new pages.
static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// The blocks that a range of addresses overlaps.
pub(crate) fn blocks_of(range: &Range<usize>) -> Range<usize> {
    range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}

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

/// The pages of a block, counted from its start, that lie in a range of addresses.
pub(crate) fn pages_in(block: BlockId, range: &Range<usize>) -> Range<usize> {
    let base = block.offset_bytes();
    let (start, end) = (range.start.max(base), range.end.min(base + BLOCK_BYTES));
    (start - base) / PAGE_SIZE..(end - base).div_ceil(PAGE_SIZE)
}

impl Engine {
    /// Manages private anonymous memory from now on, and drops what is present: other threads may touch the memory
    /// before the call that made it has returned. `order`: of its folios, if that is fixed.
    ///
    /// # Errors
    /// EINVAL: it is of another kind. ENOMEM: too many mappings, or a limit of locked memory.
    ///
    /// # Safety
    /// The range is whole pages of private anonymous memory. Nobody relies on their content, and none is managed.
    pub unsafe fn manage(&self, range: Range<usize>, order: Option<Order>) -> io::Result<()> {
        let _blocked = signals::block_all(); // a signal handler might touch another part of one of the blocks
        let _changing = self.table.changing();
        // SAFETY: the caller's promise.
        unsafe { self.manage_now(range, order) }
    }

    /// As [`Engine::manage`], for a caller that changes what is managed.
    ///
    /// # Safety
    /// As [`Engine::manage`].
    pub unsafe fn manage_now(&self, range: Range<usize>, order: Option<Order>) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.take_over(&range)? };
        self.open(&range, order);
        Ok(())
    }

    /// Has the kernel report the faults of new memory, and drops what is present. Threads that touch it wait for the
    /// end of the change. It may get content before it is opened ([`Engine::open`]).
    ///
    /// # Errors
    /// As [`Engine::manage`]. The memory is as it was, but for its content.
    ///
    /// # Safety
    /// As [`Engine::manage`].
    pub unsafe fn take_over(&self, range: &Range<usize>) -> io::Result<()> {
        if self.table.possible(range.clone()) != *range {
            return Err(io::Error::from_raw_os_error(libc::EINVAL)); // the table has no entries for it
        }
        self.close_for_change(range);
        // SAFETY: the caller's promise.
        unsafe { self.register(range) }.inspect_err(|error| {
            // Another userfaultfd has a part, and none is registered now. Before Linux 6.16 this would end that one's.
            if error.raw_os_error() != Some(libc::EBUSY) {
                let _ = self.faults.uffd().unregister(range.start, range.len());
            }
            let _ = memory::dofork(range.start, range.len());
        })
    }

    /// Makes entries for a range that is not managed. Its blocks stay closed, but for those of which a part is managed.
    pub fn close_for_change(&self, range: &Range<usize>) {
        for block in self.close_untouched(range) {
            let _pass = self.gate().enter(signals::thread_id());
            let mut locked = self.table.lock(block);
            if !self.table.is_open(block) {
                self.drop_block(&mut locked);
                locked.reset_advice();
                self.table.close(block); // known from now on
            }
        }
    }

    /// # Safety
    /// As [`Engine::manage`].
    unsafe fn register(&self, range: &Range<usize>) -> io::Result<()> {
        let (addr, len) = (range.start, range.len());
        memory::dontfork(addr, len)?;
        if self.ram.frames().is_locked() {
            memory::lock_on_fault(addr, len)?;
        }
        // Without this the kernel makes a table of small pages before it reports a fault, and a huge page moved there
        // is split.
        memory::advise_hugepage(addr, len)?;
        self.faults.uffd().register(addr, len)?;
        // SAFETY: nobody relies on the content (the caller's promise).
        unsafe { self.ram.frames().drop_memory(addr, len)? };
        self.make_anon_vma(range)
    }

    /// Opens pages that were taken over or sealed. `order`: of their folios, if that is fixed.
    pub fn open(&self, range: &Range<usize>, order: Option<Order>) {
        if range.is_empty() {
            return;
        }
        let whole = whole_blocks_of(range);
        let mut others = edges_of(range, &whole);
        others.extend(if order.is_none() { self.table.open_untouched(whole) } else { vec![whole] });
        for block in others.into_iter().flatten().map(BlockId::from_index) {
            let _pass = self.gate().enter(signals::thread_id());
            let mut locked = self.table.lock(block);
            let pages = pages_in(block, range);
            if !self.table.is_open(block) && pages.len() < BLOCK_PAGES {
                locked.set_sealed(0..BLOCK_PAGES, true);
            }
            if locked.has_sealed() {
                locked.set_sealed(pages, false);
                self.isolate(&mut locked);
            }
            if order.is_some() {
                locked.fixed_order = order;
            }
            self.table.open(block);
        }
        self.table.note_in_use(blocks_of(range));
    }

    /// Gives the mapping of new memory its `anon_vma`, by a page that is dropped at once. Later changes of protection
    /// divide the mapping. Parts with different `anon_vma`s could not be merged again, and a folio across two of them
    /// could not be moved.
    fn make_anon_vma(&self, range: &Range<usize>) -> io::Result<()> {
        // In a whole block, which is dropped whole: a table of small pages left there would split huge pages.
        let block = range.start.next_multiple_of(BLOCK_BYTES);
        if block + BLOCK_BYTES > range.end {
            return Ok(());
        }
        // SAFETY: pages that nobody touches yet (the caller's promise). The source is a static of one page.
        unsafe { self.faults.uffd().copy(block, ZEROS.as_ptr() as usize, PAGE_SIZE) }.map_err(io::Error::other)?;
        // SAFETY: as above.
        unsafe { self.ram.frames().drop_memory(block, BLOCK_BYTES) }
    }

    /// Drops the content of pages and no longer manages them. Then calls `replace`, which unmaps or replaces them, with
    /// the parts that were managed; threads that touch them wait for that. Pages that are not managed are skipped.
    ///
    /// # Safety
    /// Nobody relies on the content of the range.
    pub unsafe fn forget<R>(&self, range: Range<usize>, replace: impl FnOnce(&[Range<usize>]) -> R) -> R {
        let _blocked = signals::block_all(); // a signal handler might touch the range, and would wait for this thread
        let _changing = self.table.changing();
        let managed = self.managed_parts(range.clone());
        self.forget_all(&range);
        replace(&managed)
    }

    /// As [`Engine::forget`], for a caller that changes what is managed.
    pub fn forget_all(&self, range: &Range<usize>) {
        if range.is_empty() {
            return;
        }
        let blocks = blocks_of(range);
        self.policy.forget_streams(BlockId::from_index(blocks.start)..BlockId::from_index(blocks.end));
        for block in self.close_untouched(range) {
            if self.table.is_open(block) {
                self.forget_in(block, pages_in(block, range));
            }
        }
        self.look_for_whole();
    }

    /// The parts of a range that are managed, in order.
    pub fn managed_parts(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let _pass = self.gate().enter(signals::thread_id()); // TiB take milliseconds
        self.managed_parts_inside(range)
    }

    /// The same for blocks, inside the gate.
    pub fn managed_in(&self, blocks: Range<usize>) -> Vec<Range<usize>> {
        self.managed_parts_inside(blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES)
    }

    fn managed_parts_inside(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let range = self.table().possible(range);
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
            let block = BlockId::from_index(next);
            let base = self.table().block_addr(block);
            if let Some((end, is_open)) = self.table().untouched(next..blocks.end) {
                if is_open {
                    add(base.max(range.start)..range.end.min(end * BLOCK_BYTES));
                }
                next = end;
                continue;
            }
            next += 1;
            let locked = self.table().lock(block);
            if !self.table().is_open(block) {
                continue;
            }
            let pages = pages_in(block, &range);
            let at = |page: usize| (base + page * PAGE_SIZE).clamp(range.start, range.end);
            if !locked.has_sealed() {
                add(at(pages.start)..at(pages.end));
                continue;
            }
            pages.filter(|&page| !locked.is_sealed(page)).for_each(|page| add(at(page)..at(page + 1)));
        }
        parts
    }

    /// Closes the blocks of a range that were never touched. Returns the other blocks, which have entries.
    pub fn close_untouched(&self, range: &Range<usize>) -> Vec<BlockId> {
        let whole = whole_blocks_of(range);
        let edges = edges_of(range, &whole);
        let others: Vec<_> = edges.into_iter().chain(self.table.close_untouched(whole)).collect();
        others.iter().for_each(|blocks| self.table.ensure(blocks.clone()));
        others.into_iter().flatten().map(BlockId::from_index).collect()
    }

    /// Closes the blocks of which no page is managed.
    pub fn close_sealed(&self, range: &Range<usize>) {
        for block in blocks_of(range).map(BlockId::from_index).filter(|&block| self.table.is_open(block)) {
            let mut locked = self.table.lock(block);
            if (0..BLOCK_PAGES).all(|page| locked.is_sealed(page)) {
                self.table.close(block);
                locked.reset_advice();
            }
        }
    }

    fn forget_in(&self, block: BlockId, pages: Range<usize>) {
        let _pass = self.gate().enter(signals::thread_id());
        let mut locked = self.table.lock(block);
        if pages.is_empty() {
            return;
        }
        let is_last = (0..BLOCK_PAGES).all(|page| pages.contains(&page) || locked.is_sealed(page));
        if is_last {
            self.table.close(block);
            self.drop_block(&mut locked);
            locked.reset_advice();
            return;
        }
        locked.set_sealed(pages.clone(), true);
        self.isolate(&mut locked); // so each folio goes as a whole or stays
        self.drop_pages(&mut locked, pages);
    }

    /// Drops pages of a block. Whole folios are dropped, and swapped ones are split for that. Pages of larger folios in
    /// RAM are zeroed in place if unmapped. Those of mapped folios are returned for the caller to zero.
    pub fn drop_pages(&self, locked: &mut Locked<'_>, pages: Range<usize>) -> Vec<Range<usize>> {
        let mut mapped = Vec::new();
        let mut page = pages.start;
        while page < pages.end {
            let nr_pages = locked.order().nr_pages();
            let index = locked.index_of(page);
            let folio = index * nr_pages..(index + 1) * nr_pages;
            let part = page..pages.end.min(folio.end);
            match locked.state(index) {
                State::Empty => {}
                _ if part == folio => {
                    if locked.order() < PIECE {
                        self.keep_checkable(locked, page, &pages);
                    }
                    self.drop_content(locked, index);
                }
                State::Swapped(_) => {
                    let aligned = |order: Order| {
                        part.start.is_multiple_of(order.nr_pages()) && part.end.is_multiple_of(order.nr_pages())
                    };
                    let order = if locked.order() > PIECE && aligned(PIECE) { PIECE } else { Order::PAGE };
                    self.split_block(locked, order);
                    continue;
                }
                State::Standby(_) => {
                    self.note_dropped(locked, &part);
                    self.spoil(locked, index);
                    let bytes = self.ram.frames().at_home_mut(locked, index);
                    bytes[(part.start - folio.start) * PAGE_SIZE..(part.end - folio.start) * PAGE_SIZE].fill(0);
                }
                // At home it can be zeroed whatever its protection.
                State::Resident(_) if !locked.pinned && self.unmap_to_laundry(locked, index).is_ok() => continue,
                State::Resident(_) => {
                    self.note_dropped(locked, &part);
                    mapped.push(part.clone());
                }
            }
            page = part.end;
        }
        mapped
    }

    /// Zeroes pages of a mapped folio whatever their protection: they go, as the kernel lets them go, and others come.
    pub fn zero_mapped(&self, locked: &mut Locked<'_>, pages: Range<usize>) {
        let (addr, len) = (self.table.addr(locked.id().page(pages.start)), pages.len() * PAGE_SIZE);
        locked.small_table = true;
        // SAFETY: mapped pages of a locked block, whose content nobody needs. A thread that touches them waits.
        let dropped = unsafe { memory::dontneed(addr, len).or_else(|_| memory::dontneed_locked(addr, len)) };
        if let Err(error) = dropped {
            fatal::die(&format!("locked memory cannot be dropped: {error}"));
        }
        for at in (addr..addr + len).step_by(PAGE_SIZE) {
            // SAFETY: as above. The source is a static of one page.
            let copy = || unsafe { self.faults.uffd().copy(at, ZEROS.as_ptr() as usize, PAGE_SIZE) };
            patiently("zeroed", || copy().map_err(MapError::from));
        }
    }

    fn note_dropped(&self, locked: &mut Locked<'_>, part: &Range<usize>) {
        if locked.order() == Order::HUGE {
            locked.note_dropped(part.clone());
        }
    }

    /// Prepares for dropping a page whose piece has one hash: hashes the remaining pages of the piece one by one, so
    /// that they can be verified when they come back.
    fn keep_checkable(&self, locked: &mut Locked<'_>, page: usize, dropped: &Range<usize>) {
        let first = page / PIECE.nr_pages() * PIECE.nr_pages();
        let piece = first..first + PIECE.nr_pages();
        if locked.piece_hash(page / PIECE.nr_pages()).is_none() {
            return;
        }
        let all_go = dropped.start <= piece.start && piece.end <= dropped.end;
        if !all_go && let Err(error) = self.hash_pages(locked, page, &mut []) {
            fatal::say(&error.to_string());
        }
        if all_go || locked.piece_hash(page / PIECE.nr_pages()).is_some() {
            locked.forget_hashes(piece); // after a failed read the rest cannot be verified
        }
    }

    /// Makes the folios of a block so small that each is sealed as a whole or not at all.
    pub fn isolate(&self, locked: &mut Locked<'_>) {
        let order = locked.sealed_order();
        if locked.is_empty() {
            locked.join(); // divided at the first touch
        } else if order < locked.order() {
            self.divide(locked, order);
        }
    }

    /// Splits a block, whatever it is.
    pub fn divide(&self, locked: &mut Locked<'_>, order: Order) {
        if locked.order() == Order::HUGE && locked.folio(0).frame().is_some() {
            self.divide_whole(locked, order);
        } else {
            self.split_block(locked, order);
        }
    }
}
