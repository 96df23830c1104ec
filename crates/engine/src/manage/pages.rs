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

use folioswap_core::{BLOCK_PAGES, BlockId, Order, PAGE_SIZE};
use folioswap_sys::{memory, signals};

use crate::engine::Engine;

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
        let _changing = self.table().changing();
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
        if self.table().possible(range.clone()) != *range {
            return Err(io::Error::from_raw_os_error(libc::EINVAL)); // the table has no entries for it
        }
        self.close_for_change(range);
        // SAFETY: the caller's promise.
        unsafe { self.register(range) }.inspect_err(|error| {
            // Another userfaultfd has a part, and none is registered now. Before Linux 6.16 this would end that one's.
            if error.raw_os_error() != Some(libc::EBUSY) {
                let _ = self.faults().uffd().unregister(range.start, range.len());
            }
            let _ = memory::dofork(range.start, range.len());
        })
    }

    /// Makes entries for a range that is not managed. Its blocks stay closed, but for those of which a part is managed.
    pub fn close_for_change(&self, range: &Range<usize>) {
        for block in self.close_untouched(range) {
            let _pass = self.gate().enter(signals::thread_id());
            let mut locked = self.lock(block);
            if !self.table().is_open(block) {
                locked.drop_block();
                locked.forget_tenant();
                self.table().close(block); // known from now on
            }
        }
    }

    /// # Safety
    /// As [`Engine::manage`].
    unsafe fn register(&self, range: &Range<usize>) -> io::Result<()> {
        let (addr, len) = (range.start, range.len());
        memory::dontfork(addr, len)?;
        if self.ram().frames().is_locked() {
            memory::lock_on_fault(addr, len)?;
        }
        // Without this the kernel makes a table of small pages before it reports a fault, and a huge page moved there
        // is split.
        memory::advise_hugepage(addr, len)?;
        self.faults().uffd().register(addr, len)?;
        // SAFETY: nobody relies on the content (the caller's promise).
        unsafe { self.ram().frames().drop_memory(addr, len)? };
        self.make_anon_vma(range)
    }

    /// Opens pages that were taken over or sealed. `order`: of their folios, if that is fixed.
    pub fn open(&self, range: &Range<usize>, order: Option<Order>) {
        if range.is_empty() {
            return;
        }
        let whole = whole_blocks_of(range);
        let mut others = edges_of(range, &whole);
        others.extend(if order.is_none() { self.table().open_untouched(whole) } else { vec![whole] });
        for block in others.into_iter().flatten().map(BlockId::from_index) {
            let _pass = self.gate().enter(signals::thread_id());
            let mut locked = self.lock(block);
            let pages = pages_in(block, range);
            if !self.table().is_open(block) && pages.len() < BLOCK_PAGES {
                locked.set_sealed(0..BLOCK_PAGES, true);
            }
            if locked.has_sealed() {
                locked.set_sealed(pages, false);
                locked.isolate();
            }
            if order.is_some() {
                locked.fixed_order = order;
            }
            self.table().open(block);
        }
        self.table().note_in_use(blocks_of(range));
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
        unsafe { self.faults().uffd().copy(block, ZEROS.as_ptr() as usize, PAGE_SIZE) }.map_err(io::Error::other)?;
        // SAFETY: as above.
        unsafe { self.ram().frames().drop_memory(block, BLOCK_BYTES) }
    }

    /// Drops the content of pages and no longer manages them. Then calls `replace`, which unmaps or replaces them, with
    /// the parts that were managed; threads that touch them wait for that. Pages that are not managed are skipped.
    ///
    /// # Safety
    /// Nobody relies on the content of the range.
    pub unsafe fn forget<R>(&self, range: Range<usize>, replace: impl FnOnce(&[Range<usize>]) -> R) -> R {
        let _blocked = signals::block_all(); // a signal handler might touch the range, and would wait for this thread
        let _changing = self.table().changing();
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
        self.policy().forget_streams(BlockId::from_index(blocks.start)..BlockId::from_index(blocks.end));
        for block in self.close_untouched(range) {
            if self.table().is_open(block) {
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
            let locked = self.lock(block);
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
        let others: Vec<_> = edges.into_iter().chain(self.table().close_untouched(whole)).collect();
        others.iter().for_each(|blocks| self.table().ensure(blocks.clone()));
        others.into_iter().flatten().map(BlockId::from_index).collect()
    }

    /// Closes the blocks of which no page is managed.
    pub fn close_sealed(&self, range: &Range<usize>) {
        for block in blocks_of(range).map(BlockId::from_index).filter(|&block| self.table().is_open(block)) {
            let mut locked = self.lock(block);
            if (0..BLOCK_PAGES).all(|page| locked.is_sealed(page)) {
                self.table().close(block);
                locked.forget_tenant();
            }
        }
    }

    fn forget_in(&self, block: BlockId, pages: Range<usize>) {
        let _pass = self.gate().enter(signals::thread_id());
        let mut locked = self.lock(block);
        if pages.is_empty() {
            return;
        }
        let is_last = (0..BLOCK_PAGES).all(|page| pages.contains(&page) || locked.is_sealed(page));
        if is_last {
            self.table().close(block);
            locked.drop_block();
            locked.forget_tenant();
            return;
        }
        locked.set_sealed(pages.clone(), true);
        locked.isolate(); // so each folio goes as a whole or stays
        locked.drop_pages(pages);
    }
}
