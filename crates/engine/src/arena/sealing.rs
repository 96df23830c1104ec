//! Pages that a program cannot access: unmapped pages of a block that has mapped ones, and pages without any
//! permission.
//!
//! The kernel moves pages only into writable memory, so sealed pages cannot be mapped. Their content stays in RAM or on
//! its device like that of any unmapped folio, and can be reclaimed.
//!
//! **Invariant.** A folio is *sealed* as a whole or not at all. The table's bits and the kernel's protection change
//! together, under the block's lock; faults look at the bits.

use std::io;
use std::ops::Range;

use folioswap_core::{Block, BlockId, Locked, Order, PAGE_SIZE, PIECE, State};
use folioswap_sys::{memory, signals};

use crate::arena::by_address::RawSpace;
use crate::engine::Engine;
use crate::reclaim::evict::Washed;

/// What to do with a block that is one folio in RAM when a part of it must be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WholeFolio {
    /// Keep it whole, with the part accessible.
    Keep,
    /// Write it out in parts, if there are slots for them.
    WriteInParts,
}

impl RawSpace {
    /// Takes away all access to pages, in the kernel too. Content is kept, and may leave RAM. Returns whether that was
    /// done. `false`: a folio is busy or held, or is one in RAM with pages that stay accessible; access has not changed
    /// then.
    ///
    /// # Errors
    /// ENOMEM: the kernel has no room for another mapping.
    ///
    /// # Safety
    /// The program gives up its access to the range, which lies in one block that is mapped.
    pub unsafe fn seal(&self, range: Range<usize>, whole: WholeFolio) -> io::Result<bool> {
        let (block, pages) = self.place(range);
        self.engine().seal(block, pages, whole)
    }

    /// Whether the range, which lies in one block, is sealed.
    #[must_use]
    pub fn is_sealed(&self, range: Range<usize>) -> bool {
        let (block, mut pages) = self.place(range);
        let locked = self.engine().table().lock(block);
        pages.all(|page| locked.is_sealed(page))
    }

    /// Makes pages readable and writable again.
    ///
    /// # Errors
    /// ENOMEM: the kernel has no room for another mapping, or a folio in RAM could not be divided.
    ///
    /// # Safety
    /// The range lies in one block that is mapped, and its pages are sealed or readable and writable now.
    pub unsafe fn unseal(&self, range: Range<usize>) -> io::Result<()> {
        let (block, pages) = self.place(range);
        self.engine().unseal(block, pages)
    }

    fn place(&self, range: Range<usize>) -> (BlockId, Range<usize>) {
        let block = self.engine().table().page_at(range.start).block();
        (block, self.pages_of(block, range))
    }

    /// Drops whole folios in the range. Other content may be dropped later or never, as after `madvise(MADV_FREE)`.
    ///
    /// # Safety
    /// Nobody relies on the content of these pages.
    pub unsafe fn offer(&self, range: Range<usize>) {
        let engine = self.engine();
        let _blocked = signals::block_all(); // a signal handler might touch one of these
        let _pass = engine.gate().enter(signals::thread_id());
        for index in self.covering(range.start, range.len()) {
            let block = BlockId::from_index(index);
            let pages = self.pages_of(block, range.clone());
            if engine.table().is_open(block) {
                let mut locked = engine.table().lock(block);
                let nr_pages = locked.order().nr_pages();
                let whole = pages.start.next_multiple_of(nr_pages)..pages.end / nr_pages * nr_pages;
                if !whole.is_empty() {
                    self.drop_pages(&mut locked, whole);
                }
            }
        }
        engine.look_for_whole();
    }
}

impl Engine {
    /// See [`RawSpace::seal`].
    pub fn seal(&self, block: BlockId, pages: Range<usize>, whole: WholeFolio) -> io::Result<bool> {
        let _blocked = signals::block_all(); // a signal handler might touch this block
        let _pass = self.gate().enter(signals::thread_id());
        let mut locked = self.table().lock(block);
        let before: Vec<usize> = pages.clone().filter(|&page| locked.is_sealed(page)).collect();
        if before.len() == pages.len() {
            return Ok(true);
        }
        locked.set_sealed(pages.clone(), true);
        let mut sealed = Ok(self.isolate(&mut locked, &pages, whole));
        if let Ok(true) = sealed {
            let addr = self.table().block_addr(block) + pages.start * PAGE_SIZE;
            // SAFETY: a part of the span whose block is locked, and whose pages were just unmapped. The caller of
            // `seal` wants a touch of a sealed page to fault.
            sealed = unsafe { memory::protect_none(addr, pages.len() * PAGE_SIZE) }.map(|()| true);
        }
        if !matches!(sealed, Ok(true)) {
            locked.set_sealed(pages, false);
            before.into_iter().for_each(|page| locked.set_sealed(page..page + 1, true));
        }
        sealed
    }

    /// See [`RawSpace::unseal`].
    pub fn unseal(&self, block: BlockId, pages: Range<usize>) -> io::Result<()> {
        let _blocked = signals::block_all(); // a signal handler might touch this block
        let _pass = self.gate().enter(signals::thread_id());
        let mut locked = self.table().lock(block);
        if !pages.clone().any(|page| locked.is_sealed(page)) {
            return Ok(());
        }
        let before: Vec<usize> = pages.clone().filter(|&page| locked.is_sealed(page)).collect();
        locked.set_sealed(pages.clone(), false);
        let first = self.table().block_addr(block);
        let mut unsealed = Err(io::Error::from_raw_os_error(libc::ENOMEM)); // no slots for the parts of a whole folio
        if self.divide(&mut locked, WholeFolio::WriteInParts) {
            unsealed = self.table().make_accessible(first + pages.start * PAGE_SIZE..first + pages.end * PAGE_SIZE);
        }
        if unsealed.is_err() {
            before.into_iter().for_each(|page| locked.set_sealed(page..page + 1, true));
        }
        unsealed
    }

    /// Divides a block whose sealed pages have just changed, until each folio is sealed as a whole or not at all.
    /// `false`: that failed.
    fn divide(&self, locked: &mut Locked<'_>, whole: WholeFolio) -> bool {
        let order = locked.sealed_order();
        if locked.is_empty() {
            locked.join(); // divided at the first touch
        } else if order < locked.order() {
            if locked.order() == Order::HUGE && locked.folio(0).frame().is_some() {
                return whole == WholeFolio::WriteInParts && self.leave_in_parts(locked, order);
            }
            self.split_block(locked, order);
        }
        true
    }

    /// Makes folios of the pages that were just noted as sealed, without other pages, and unmaps them. `false`: that
    /// failed.
    fn isolate(&self, locked: &mut Locked<'_>, pages: &Range<usize>, whole: WholeFolio) -> bool {
        if !self.divide(locked, whole) {
            return false;
        }
        if locked.is_empty() {
            return true;
        }
        let nr_pages = locked.order().nr_pages();
        for index in locked.index_of(pages.start)..=locked.index_of(pages.end - 1) {
            if matches!(locked.state(index), State::Resident(_))
                && (locked.pinned || self.unmap_to_laundry(locked, index).is_err())
            {
                return false;
            }
            debug_assert!(is_of_one_kind(locked, index * nr_pages, nr_pages));
        }
        true
    }

    /// Writes a block that is one folio in RAM in parts of an order, and frees its huge page.
    fn leave_in_parts(&self, locked: &mut Locked<'_>, order: Order) -> bool {
        match locked.state(0) {
            State::Resident(_) => {
                if locked.pinned || self.unmap_to_laundry(locked, 0).is_err() {
                    return false;
                }
            }
            State::Standby(_) => self.spoil(locked, 0), // it has no copy any more if writing fails
            State::Empty | State::Swapped(_) => return false,
        }
        let order = if order == Order::HUGE { PIECE } else { order };
        matches!(self.write_parts(locked, order), Washed::Clean)
    }
}

fn is_of_one_kind(block: &Block, first: usize, nr_pages: usize) -> bool {
    (first..first + nr_pages).all(|page| block.is_sealed(page) == block.is_sealed(first))
}
