//! Managed memory by address, in pages, as the memory calls of a C library see it. For faces that stand in for those
//! calls; programs use [`Region`](crate::Region).
//!
//! Addresses are handed out in blocks of 2 MiB, and this module handles parts of blocks. A block's addresses are free
//! again once all of its pages are unmapped. Until then its unmapped pages are sealed ([`super::sealing`]). If the
//! block is in use as one piece and cannot be divided, they read as zero.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use folioswap_core::{BLOCK_PAGES, BlockId, FolioId, List, Locked, Order, PAGE_SIZE, PIECE, State, Wish};
use folioswap_sys::{memory, signals};

use crate::arena::sealing::WholeFolio;
use crate::config::error::Error;
use crate::config::fault_mode::FaultMode;
use crate::config::folio_size::FolioSize;
use crate::engine::Engine;

/// Bytes of a block.
const BLOCK_BYTES: usize = Order::HUGE.bytes();

/// The unmapped pages of a block that is not wholly unmapped, one bit per page.
type Holes = [u64; 8];

/// Access to an arena's memory by address. Cheap to clone.
#[derive(Clone)]
pub struct RawSpace {
    engine: Arc<Engine>,
    mode: FaultMode,
    partial: Arc<Mutex<HashMap<BlockId, Holes>>>,
    holds: Arc<Mutex<HashMap<BlockId, u32>>>,
}

impl RawSpace {
    pub(crate) fn new(engine: Arc<Engine>, mode: FaultMode) -> Self {
        RawSpace { engine, mode, partial: Arc::default(), holds: Arc::default() }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether all pages of a range of the span are mapped.
    #[must_use]
    pub fn is_mapped(&self, addr: usize, len: usize) -> bool {
        let partial = self.partial.lock().expect("nothing panics under this lock");
        self.covering(addr, len).map(BlockId::from_index).all(|block| {
            let holes = partial.get(&block);
            let is_hole = |page: usize| holes.is_some_and(|holes| holes[page / 64] >> (page % 64) & 1 == 1);
            self.engine.table().is_open(block) && !self.pages_of(block, addr..addr + len).any(is_hole)
        })
    }

    /// Whether at least one page of the block at an address is mapped.
    #[must_use]
    pub fn is_open(&self, addr: usize) -> bool {
        self.engine.table().is_open(self.block_at(addr))
    }

    /// Whether the address is managed memory, mapped now or not.
    #[must_use]
    pub fn contains(&self, addr: usize) -> bool {
        self.engine.table().contains(addr)
    }

    /// All addresses that are or may become managed memory.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.engine.table().span()
    }

    /// Bytes of RAM that the engine uses: managed memory, frames without content, and the most that swap devices in
    /// memory may use.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        (self.engine.ram().zones().populated() * PAGE_SIZE) as u64 + self.engine.swap().most_bytes_in_ram()
    }

    /// The budget in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.engine.ram().budget_bytes()
    }

    /// Whether the budget, and with it all addresses of [`RawSpace::span`], is locked in RAM.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.engine.ram().frames().is_locked()
    }

    /// How faults are delivered: [`FaultMode::Direct`] or [`FaultMode::Monitor`].
    #[must_use]
    pub fn mode(&self) -> FaultMode {
        self.mode
    }

    /// Maps `len` bytes of zeroed, readable and writable memory, aligned to 2 MiB. `len` is rounded up to whole blocks
    /// of that size.
    ///
    /// # Errors
    /// [`Error::BadLength`], [`Error::OutOfAddressSpace`], or the kernel's error.
    pub fn map(&self, len: usize) -> Result<usize, Error> {
        self.map_with(len, FolioSize::Auto)
    }

    /// As [`RawSpace::map`], with a folio size of its own. `Auto` means the arena's.
    ///
    /// # Errors
    /// As [`RawSpace::map`].
    pub fn map_with(&self, len: usize, folio: FolioSize) -> Result<usize, Error> {
        if len == 0 {
            return Err(Error::BadLength(len));
        }
        let count = len.div_ceil(BLOCK_BYTES);
        let blocks = self
            .engine
            .table()
            .addresses()
            .allocate(count)
            .ok_or(Error::OutOfAddressSpace(self.span().len() as u64))?;
        self.open(blocks.clone())?;
        for index in blocks.clone() {
            self.engine.table().lock(BlockId::from_index(index)).fixed_order = folio.order();
        }
        Ok(self.addr(blocks.start))
    }

    /// Makes newly allocated addresses usable. After an error they are free again.
    fn open(&self, blocks: Range<usize>) -> Result<(), Error> {
        self.forget_holes(&blocks);
        let opened = self.engine.table().open(blocks.clone()).map_err(Error::system("mapping a region"));
        opened.inspect_err(|_| self.engine.table().addresses().free(blocks))
    }

    fn forget_holes(&self, blocks: &Range<usize>) {
        let mut partial = self.partial.lock().expect("nothing panics under this lock");
        partial.retain(|block, _| !blocks.contains(&block.index()));
    }

    /// Maps zeroed pages at given addresses and replaces whatever was there, as `MAP_FIXED` does.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Safety
    /// Nobody relies on the content of these pages.
    pub unsafe fn map_at(&self, addr: usize, len: usize) -> Result<(), Error> {
        for claimed in self.engine.table().addresses().claim(self.covering(addr, len)) {
            self.open(claimed.clone())?;
            for block in [claimed.start, claimed.end - 1].map(BlockId::from_index) {
                // All pages of a new block are holes, except those filled below.
                let mut partial = self.partial.lock().expect("nothing panics under this lock");
                partial.insert(block, [u64::MAX; BLOCK_PAGES / 64]);
                drop(partial);
                self.seal_holes(block, 0..BLOCK_PAGES);
            }
        }
        // SAFETY: the caller's promise: nobody relies on the content of these pages.
        unsafe { self.discard(addr, len) };
        for index in self.covering(addr, len) {
            let block = BlockId::from_index(index);
            let pages = self.pages_of(block, addr..addr + len);
            self.engine.unseal(block, pages).map_err(Error::system("mapping pages"))?;
        }
        let mut partial = self.partial.lock().expect("nothing panics under this lock");
        for index in self.covering(addr, len) {
            let block = BlockId::from_index(index);
            if let Some(holes) = partial.get_mut(&block) {
                for page in self.pages_of(block, addr..addr + len) {
                    holes[page / 64] &= !(1 << (page % 64));
                }
                if holes.iter().all(|&word| word == 0) {
                    partial.remove(&block);
                }
            }
        }
        Ok(())
    }

    /// Takes away access to the unmapped pages of a block that has mapped ones.
    fn seal_holes(&self, block: BlockId, pages: Range<usize>) {
        // If this fails, they read as zero.
        if let Err(error) = self.engine.seal(block, pages, WholeFolio::WriteInParts) {
            crate::process::fatal::say(&format!("unmapping a part of a block: {error}"));
        }
    }

    /// The pages of a block, counted from its start, that lie in a range of addresses.
    pub(crate) fn pages_of(&self, block: BlockId, range: Range<usize>) -> Range<usize> {
        let base = self.engine.table().block_addr(block);
        let (start, end) = (range.start.max(base), range.end.min(base + BLOCK_BYTES));
        (start - base) / PAGE_SIZE..(end - base).div_ceil(PAGE_SIZE)
    }

    /// Unmaps pages of memory from [`RawSpace::map`]. Whole blocks are freed at once; the addresses of others are free
    /// when their last page is unmapped.
    ///
    /// # Safety
    /// Nobody uses these pages any more.
    pub unsafe fn unmap(&self, addr: usize, len: usize) {
        let (first, whole, last) = self.split(addr, len);
        for part in [first, last].into_iter().flatten() {
            // SAFETY: the caller's promise: nobody uses these pages any more.
            unsafe { self.unmap_part(part) }
        }
        // Blocks that are not mapped are skipped.
        let mut start = whole.start;
        for index in whole.start..=whole.end {
            if index == whole.end || !self.engine.table().is_open(BlockId::from_index(index)) {
                if start < index {
                    self.close(start..index);
                }
                start = index + 1;
            }
        }
        self.engine.look_for_whole();
    }

    /// Notes pages of one block as unmapped. Closes the block when no mapped page is left.
    ///
    /// # Safety
    /// Nobody uses these pages any more.
    unsafe fn unmap_part(&self, part: Range<usize>) {
        let block = self.block_at(part.start);
        if !self.engine.table().is_open(block) {
            return; // not mapped: nothing to do
        }
        // SAFETY: the caller's promise: nobody uses these pages any more.
        unsafe { self.discard_part(part.clone()) };
        let mut partial = self.partial.lock().expect("nothing panics under this lock");
        let holes = partial.entry(block).or_insert([0; 8]);
        let pages = self.pages_of(block, part);
        for page in pages.clone() {
            holes[page / 64] |= 1 << (page % 64);
        }
        let gone: u32 = holes.iter().map(|word| word.count_ones()).sum();
        if gone as usize * PAGE_SIZE == BLOCK_BYTES {
            partial.remove(&block);
            drop(partial);
            self.close(block.index()..block.index() + 1);
        } else {
            drop(partial);
            self.seal_holes(block, pages);
        }
    }

    /// Whether the range, which lies in one block, is unmapped while other pages of the block are mapped.
    #[must_use]
    pub fn are_holes(&self, range: Range<usize>) -> bool {
        let block = self.block_at(range.start);
        let partial = self.partial.lock().expect("nothing panics under this lock");
        let is_hole = |holes: &Holes, page: usize| holes[page / 64] >> (page % 64) & 1 == 1;
        let holes = partial.get(&block).filter(|_| self.engine.table().is_open(block));
        holes.is_some_and(|holes| self.pages_of(block, range).all(|page| is_hole(holes, page)))
    }

    fn forget_streams(&self, blocks: &Range<usize>) {
        let _blocked = signals::block_all(); // a signal handler might fault and follow a stream
        self.engine.policy().forget_streams(BlockId::from_index(blocks.start)..BlockId::from_index(blocks.end));
    }

    /// Drops whole blocks and frees their addresses.
    fn close(&self, blocks: Range<usize>) {
        self.forget_holes(&blocks);
        self.forget_streams(&blocks);
        self.forget_holds(blocks.clone());
        self.engine.table().close(blocks.clone());
        self.engine.drop_range(blocks.clone());
        // SAFETY: blocks of the span that their owner unmaps: it uses no reference to them any more, and nobody else
        // gets them before they are free.
        if let Err(error) = unsafe { memory::protect_none(self.addr(blocks.start), blocks.len() * BLOCK_BYTES) } {
            crate::process::fatal::say(&format!("unmapping a region: {error}")); // it stays readable, as zeros
        }
        self.engine.table().addresses().free(blocks);
    }

    /// Grows or shrinks a mapping, as `mremap` does. Returns its address, which is a new one if it had to move.
    ///
    /// # Errors
    /// As [`RawSpace::map`]. Also [`Error::OutOfAddressSpace`] if it cannot grow in place and may not move.
    ///
    /// # Safety
    /// `addr..addr + old_len` is one mapping of the caller's, and nobody uses it meanwhile. After a move nobody uses
    /// the old addresses.
    pub unsafe fn remap(&self, addr: usize, old_len: usize, new_len: usize, may_move: bool) -> Result<usize, Error> {
        let block = BLOCK_BYTES;
        let (old_end, new_end) = (addr + old_len, addr + new_len);
        if new_len <= old_len {
            if new_end < old_end {
                // SAFETY: the caller gives up the tail.
                unsafe { self.unmap(new_end, old_end - new_end) };
            }
            return Ok(addr);
        }
        let (have, want) = (old_end.next_multiple_of(block), new_end.next_multiple_of(block));
        let next = (have - self.span().start) / block;
        let count = (want - have) / block;
        let tail_is_ours = !self.has_holes(self.block_at(old_end - 1));
        if tail_is_ours && (count == 0 || self.engine.table().addresses().extend(next, count)) {
            if count > 0 {
                self.open(next..next + count)?;
                let last = self.engine.table().lock(self.block_at(old_end - 1));
                let (order, wish) = (last.fixed_order, last.wish);
                drop(last);
                for index in next..next + count {
                    let mut grown = self.engine.table().lock(BlockId::from_index(index));
                    (grown.fixed_order, grown.wish) = (order, wish);
                }
            }
            return Ok(addr);
        }
        if !may_move {
            return Err(Error::OutOfAddressSpace(self.span().len() as u64));
        }
        let target = self.map(new_len)?;
        // SAFETY: the target is a new mapping, known to nobody else, and does not overlap the old one. The caller gives
        // up the old one.
        unsafe {
            self.carry(addr, target, old_len);
            self.unmap(addr, old_len);
        }
        Ok(target)
    }

    /// Moves the content of pages to other addresses: blocks in one piece without touching them, the rest by copying.
    /// The old pages' content is undefined afterwards.
    ///
    /// # Safety
    /// Both ranges are mapped, readable and writable, they do not overlap, and nobody uses them meanwhile. Nobody
    /// relies on the target's content.
    pub unsafe fn carry(&self, from: usize, to: usize, len: usize) {
        let whole = from.next_multiple_of(BLOCK_BYTES)..(from + len) / BLOCK_BYTES * BLOCK_BYTES;
        let alike = from % BLOCK_BYTES == to % BLOCK_BYTES && !whole.is_empty() && self.contains(to);
        let whole = if alike { whole } else { from..from };
        for block in whole.clone().step_by(BLOCK_BYTES) {
            if !self.transfer(block, to + (block - from)) {
                // SAFETY: the caller's promise, for a block of each range.
                unsafe { copy(block, to + (block - from), BLOCK_BYTES) };
            }
        }
        for part in [from..whole.start, whole.end..from + len] {
            // SAFETY: the caller's promise, for the other parts of each range.
            unsafe { copy(part.start, to + (part.start - from), part.len()) };
        }
    }

    /// Moves a whole block to another address without touching its content. `false`: it is in use and cannot move.
    fn transfer(&self, from: usize, to: usize) -> bool {
        let engine = &*self.engine;
        let _pass = engine.gate().enter(signals::thread_id());
        // Two blocks are locked here. The target is new: other holders of its lock keep it briefly and wait for no
        // other block.
        let mut target = engine.table().lock(self.block_at(to));
        let mut source = engine.table().lock(self.block_at(from));
        if source.is_empty() {
            (target.fixed_order, target.wish) = (source.fixed_order, source.wish);
            return true;
        }
        if source.pinned || source.has_sealed() {
            return false;
        }
        for index in 0..source.nr_folios() {
            if matches!(source.state(index), State::Resident(_)) && engine.unmap_to_laundry(&mut source, index).is_err()
            {
                return false;
            }
        }
        // A late fault from the addresses' previous use may have made a page there.
        engine.drop_block(&mut target);
        engine.end_lost(&source, 0..BLOCK_PAGES); // reads of lost pages are tried again at the new address
        let small_tables = (source.small_table, target.small_table);
        source.move_to(&mut target);
        (source.small_table, target.small_table) = small_tables;
        for index in 0..target.nr_folios() {
            if let Some(frame) = target.folio(index).frame() {
                engine.ram().zone(frame).set_owner(frame, target.name(index));
                if target.folio(index).writing_to().is_some() {
                    target.folio_mut(index).cancel_write();
                    engine.ram().put(frame, List::Laundry); // its write no longer counts
                }
            }
        }
        true
    }

    /// Makes pages read as zero, as `madvise(MADV_DONTNEED)` does.
    ///
    /// # Safety
    /// Nobody relies on the content of these pages.
    pub unsafe fn discard(&self, addr: usize, len: usize) {
        let (first, whole, last) = self.split(addr, len);
        for part in [first, last].into_iter().flatten() {
            // SAFETY: the caller's promise: nobody relies on this content.
            unsafe { self.discard_part(part) }
        }
        if !whole.is_empty() {
            self.engine.drop_range(whole);
        }
        self.engine.look_for_whole();
    }

    /// As [`RawSpace::discard`], for a part of one block. Frees the slots of dropped pages and the frames of dropped
    /// folios.
    ///
    /// # Safety
    /// Nobody relies on the content of these bytes.
    unsafe fn discard_part(&self, part: Range<usize>) {
        let block = self.block_at(part.start);
        let base = self.engine.table().block_addr(block);
        // The whole pages of the part.
        let inner = part.start.next_multiple_of(PAGE_SIZE)..part.end / PAGE_SIZE * PAGE_SIZE;
        if inner.is_empty() {
            // SAFETY: the caller's promise: nobody relies on this content.
            return unsafe { self.zero(part) };
        }
        let pages = (inner.start - base) / PAGE_SIZE..(inner.end - base) / PAGE_SIZE;
        let (mapped, is_held) = {
            let _blocked = signals::block_all(); // a signal handler might touch this block
            let _pass = self.engine.gate().enter(signals::thread_id());
            let mut locked = self.engine.table().lock(block);
            let mapped = self.drop_pages(&mut locked, pages);
            let is_held = !mapped.is_empty() && self.begin_hold(&mut locked);
            (mapped, is_held)
        };
        for pages in mapped {
            // SAFETY: mapped pages of the part, whose content nobody relies on (the caller's promise). They are held,
            // so this touch needs no read.
            unsafe { std::ptr::write_bytes((base + pages.start * PAGE_SIZE) as *mut u8, 0, pages.len() * PAGE_SIZE) };
        }
        if is_held {
            self.end_hold(block);
        }
        for edge in [part.start..inner.start, inner.end..part.end] {
            if !edge.is_empty() {
                // SAFETY: the caller's promise: nobody relies on this content.
                unsafe { self.zero(edge) };
            }
        }
    }

    /// Drops pages of a block. Whole folios are dropped, and swapped ones are split for that. Pages of larger folios in
    /// RAM are zeroed in place if unmapped. Those of mapped folios are returned for the caller to zero.
    pub(crate) fn drop_pages(&self, locked: &mut Locked<'_>, pages: Range<usize>) -> Vec<Range<usize>> {
        let engine = &*self.engine;
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
                    engine.drop_content(locked, index);
                }
                State::Swapped(_) => {
                    let aligned = |order: Order| {
                        part.start.is_multiple_of(order.nr_pages()) && part.end.is_multiple_of(order.nr_pages())
                    };
                    let order = if locked.order() > PIECE && aligned(PIECE) { PIECE } else { Order::PAGE };
                    engine.split_block(locked, order);
                    continue;
                }
                State::Standby(_) => {
                    self.note_dropped(locked, &part);
                    engine.spoil(locked, index);
                    let bytes = engine.ram().frames().at_home_mut(locked, index);
                    bytes[(part.start - folio.start) * PAGE_SIZE..(part.end - folio.start) * PAGE_SIZE].fill(0);
                }
                State::Resident(_) => {
                    self.note_dropped(locked, &part);
                    mapped.push(part.clone());
                }
            }
            page = part.end;
        }
        mapped
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
        if !all_go && let Err(error) = self.engine.hash_pages(locked, page, &mut []) {
            crate::process::fatal::say(&error.to_string());
        }
        if all_go || locked.piece_hash(page / PIECE.nr_pages()).is_some() {
            locked.forget_hashes(piece); // after a failed read the rest cannot be verified
        }
    }

    /// Zeroes bytes of one block. Pages that read as zero already are left alone.
    ///
    /// # Safety
    /// Nobody relies on the content of these bytes.
    unsafe fn zero(&self, part: Range<usize>) {
        let mut start = part.start;
        while start < part.end {
            let end = part.end.min((start + 1).next_multiple_of(PAGE_SIZE));
            let page = self.engine.table().page_at(start);
            let empty = {
                let _blocked = signals::block_all(); // a signal handler might touch this block
                let locked = self.engine.table().lock(page.block());
                locked.state(locked.index_of(page.page_in_block())) == State::Empty
            };
            if !empty {
                // SAFETY: the bytes lie in mapped managed memory, and nobody relies on them (the caller's promise). The
                // touch brings a missing folio in as any other touch does; no lock is held here.
                unsafe { std::ptr::write_bytes(start as *mut u8, 0, end - start) }
            }
            start = end;
        }
    }

    /// Requests background readahead of a range.
    pub fn will_need(&self, addr: usize, len: usize) {
        self.engine.will_need(self.covering(addr, len));
    }

    /// Makes a range the first to leave RAM.
    pub fn cold(&self, addr: usize, len: usize) {
        self.engine.cold(self.covering(addr, len));
    }

    /// Makes the resident part of a range the last to leave RAM.
    pub fn keep(&self, addr: usize, len: usize) {
        self.forget_streams(&self.covering(addr, len));
        self.engine.each_block_of(self.covering(addr, len), |block| {
            if let Some(locked) = self.engine.table().try_lock(block).filter(|locked| !locked.pinned) {
                self.make_active(&locked);
            }
        });
    }

    fn make_active(&self, locked: &Locked<'_>) {
        for index in 0..locked.nr_folios() {
            if let State::Resident(frame) = locked.state(index) {
                self.engine.ram().put(frame, List::Active);
            }
        }
    }

    /// Sets whether blocks come back in one piece, where the arena's policy leaves that open.
    pub fn wish(&self, addr: usize, len: usize, wish: Wish) {
        self.engine.each_block_of(self.covering(addr, len), |block| {
            if self.engine.table().has(block) {
                self.engine.table().lock(block).wish = wish;
            }
        });
    }

    /// Brings a range in, writable, as a touch would. Cheap for resident pages.
    pub fn touch(&self, addr: usize, len: usize) {
        let thread = signals::thread_id();
        for index in self.covering(addr, len) {
            let block = BlockId::from_index(index);
            if self.engine.table().is_open(block) {
                self.bring_in(block, self.pages_of(block, addr..addr + len), thread);
            }
        }
    }

    /// Brings pages of a block in. `false`: the content of one is lost. The pages may leave again at any time.
    fn bring_in(&self, block: BlockId, pages: Range<usize>, thread: u32) -> bool {
        loop {
            let Some(missing) = self.first_missing(&self.engine.table().lock(block), &pages) else { return true };
            if !self.engine.resolve(self.engine.table().addr(missing), thread) {
                return false;
            }
            if !self.engine.table().is_open(block) {
                return true; // unmapped meanwhile
            }
        }
    }

    /// The first of these pages that is neither mapped nor sealed.
    fn first_missing(&self, locked: &Locked<'_>, pages: &Range<usize>) -> Option<FolioId> {
        let nr_pages = locked.order().nr_pages();
        let folios = locked.index_of(pages.start)..=locked.index_of(pages.end - 1);
        let mut missing = folios.filter(|&index| !matches!(locked.state(index), State::Resident(_)));
        missing.find_map(|index| {
            let mut part = pages.start.max(index * nr_pages)..pages.end.min((index + 1) * nr_pages);
            part.find(|&page| !locked.is_sealed(page)).map(|page| locked.id().page(page))
        })
    }

    /// Brings a range in and keeps it in RAM until [`RawSpace::release_hold`]: for thread stacks, and for memory whose
    /// protection changes. A hold keeps all resident folios of its blocks, and holds of one block are counted. `false`:
    /// some content could not be read; the holds stand nevertheless.
    ///
    /// # Safety
    /// The range is mapped.
    pub unsafe fn hold(&self, addr: usize, len: usize) -> bool {
        let thread = signals::thread_id();
        let mut all_in = true;
        for index in self.covering(addr, len) {
            let block = BlockId::from_index(index);
            if !self.engine.table().is_open(block) {
                continue; // not mapped: the kernel handles a touch
            }
            *self.holds.lock().expect("nothing panics under this lock").entry(block).or_insert(0) += 1;
            let pages = self.pages_of(block, addr..addr + len);
            loop {
                let is_lost = !self.bring_in(block, pages.clone(), thread);
                all_in &= !is_lost;
                let _pass = self.engine.gate().enter(thread);
                let mut locked = self.engine.table().lock(block);
                if !self.engine.table().is_open(block) {
                    break; // unmapped meanwhile
                }
                if is_lost || self.first_missing(&locked, &pages).is_none() {
                    locked.pinned = true;
                    break;
                }
            }
        }
        all_in
    }

    /// As [`RawSpace::hold`], without bringing anything in. Folios that come in later are kept.
    ///
    /// # Safety
    /// As [`RawSpace::hold`].
    pub unsafe fn hold_present(&self, addr: usize, len: usize) {
        let _blocked = signals::block_all(); // a signal handler might touch one of these
        let _pass = self.engine.gate().enter(signals::thread_id());
        for index in self.covering(addr, len) {
            let block = BlockId::from_index(index);
            if self.engine.table().is_open(block) {
                self.begin_hold(&mut self.engine.table().lock(block));
            }
        }
    }

    /// Ends a hold.
    ///
    /// # Safety
    /// The range was held, and is mapped readable and writable again.
    pub unsafe fn release_hold(&self, addr: usize, len: usize) {
        self.covering(addr, len).for_each(|index| self.end_hold(BlockId::from_index(index)));
    }

    /// Keeps the mapped folios of a block in RAM until [`RawSpace::end_hold`]. `false`: the block is pinned permanently
    /// already.
    fn begin_hold(&self, locked: &mut Locked<'_>) -> bool {
        let mut holds = self.holds.lock().expect("nothing panics under this lock");
        if locked.pinned && !holds.contains_key(&locked.id()) {
            return false;
        }
        *holds.entry(locked.id()).or_insert(0) += 1;
        locked.pinned = true;
        true
    }

    fn end_hold(&self, block: BlockId) {
        let mut holds = self.holds.lock().expect("nothing panics under this lock");
        match holds.get_mut(&block) {
            Some(1) => {
                holds.remove(&block);
                drop(holds);
                self.unpin(block);
            }
            Some(count) => *count -= 1,
            None => {}
        }
    }

    fn forget_holds(&self, blocks: Range<usize>) {
        let mut holds = self.holds.lock().expect("nothing panics under this lock");
        if holds.is_empty() {
            return;
        }
        let held: Vec<_> = holds.keys().copied().filter(|block| blocks.contains(&block.index())).collect();
        for block in &held {
            holds.remove(block);
        }
        drop(holds);
        held.into_iter().for_each(|block| self.unpin(block));
    }

    fn unpin(&self, block: BlockId) {
        let _blocked = signals::block_all(); // a signal handler might touch this block
        let _pass = self.engine.gate().enter(signals::thread_id());
        if !self.engine.table().has(block) {
            return;
        }
        let mut locked = self.engine.table().lock(block);
        if self.holds.lock().expect("nothing panics under this lock").contains_key(&block) {
            return; // held again meanwhile
        }
        locked.pinned = false;
        for index in 0..locked.nr_folios() {
            if let State::Resident(frame) = locked.state(index)
                && self.engine.ram().zone(frame).list(frame).is_none()
            {
                self.engine.ram().put(frame, List::Active); // reclaim took it off its list while pinned
            }
        }
    }

    /// Resolves a fault in managed memory, for a program's own signal handler. `false`: the address is not managed, or
    /// its content is lost.
    #[must_use]
    pub fn on_fault(&self, addr: usize) -> bool {
        self.contains(addr) && self.engine.resolve(addr, signals::thread_id())
    }

    /// Must be called before fork, in the thread that forks. The engine pauses, and the child will inherit mapped
    /// folios copy-on-write.
    pub fn fork_prepare(&self) {
        self.engine.fork_prepare();
    }

    /// Must be called after fork in the parent. The engine continues.
    pub fn fork_parent(&self) {
        self.engine.fork_parent();
    }

    /// Must be called after fork in the child. The folios that were mapped are ordinary memory there. A touch of any
    /// other managed page ends the child with one line and status 70.
    pub fn fork_child(&self) {
        self.engine.fork_child();
    }

    /// Must be called after [`RawSpace::fork_child`] for pages that the caller has replaced or unmapped: a touch of
    /// them is an ordinary one.
    pub fn not_inherited(&self, range: Range<usize>) {
        crate::engine::fork::not_inherited(&range);
    }

    fn addr(&self, block: usize) -> usize {
        self.engine.table().block_addr(BlockId::from_index(block))
    }

    fn block_at(&self, addr: usize) -> BlockId {
        self.engine.table().page_at(addr).block()
    }

    fn has_holes(&self, block: BlockId) -> bool {
        self.partial.lock().expect("nothing panics under this lock").contains_key(&block)
    }

    /// The blocks that a range overlaps.
    pub(crate) fn covering(&self, addr: usize, len: usize) -> Range<usize> {
        let base = self.span().start;
        (addr - base) / BLOCK_BYTES..(addr + len - base).div_ceil(BLOCK_BYTES)
    }

    /// Splits a range into a part of a block, whole blocks, and a part of another block.
    fn split(&self, addr: usize, len: usize) -> (Option<Range<usize>>, Range<usize>, Option<Range<usize>>) {
        let (block, base, end) = (BLOCK_BYTES, self.span().start, addr + len);
        let (up, down) = (addr.next_multiple_of(block), end / block * block);
        if up > down {
            return (Some(addr..end), 0..0, None); // all within one block
        }
        let first = (addr < up).then_some(addr..up);
        let last = (down < end).then_some(down..end);
        (first, (up - base) / block..(down - base) / block, last)
    }
}

/// Copies between two mappings.
///
/// # Safety
/// Both ranges are mapped, they do not overlap, and nobody writes them meanwhile.
unsafe fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: the caller's promise. The touch brings missing folios in; no lock is held here.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) }
}
