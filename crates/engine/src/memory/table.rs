//! The managed addresses, and the folio table that says where the content of each of them is.
//!
//! **Locking.** The table has a lock per block. Allocation of addresses has a leaf lock of its own. The bits of blocks
//! in use are changed before a block is dropped, and read under the block's lock, so a fault that was reported before
//! its addresses were unmapped makes no page there.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use folioswap_core::{BlockId, FolioId, FolioTable, HashKey, Locked, Order};
use folioswap_sys::memory::Reservation;

use crate::memory::address_space::AddressSpace;

/// The addresses of an arena's regions and their folio table.
pub(crate) struct Table {
    span: Reservation,
    addresses: AddressSpace,
    folios: FolioTable,
    /// One bit per block: its addresses are in use. Memory is backed on first use.
    open: Box<[AtomicU64]>,
}

impl Table {
    /// `key`: of the hashes in the table.
    pub fn new(span: Reservation, key: HashKey) -> Self {
        let nr_blocks = span.len() / Order::HUGE.bytes();
        Table {
            addresses: AddressSpace::new(nr_blocks),
            folios: FolioTable::new(nr_blocks).keyed(key),
            open: bytemuck::zeroed_slice_box(nr_blocks.div_ceil(64)),
            span,
        }
    }

    /// All addresses that are or may become managed memory.
    pub fn span(&self) -> Range<usize> {
        self.span.addr()..self.span.addr() + self.span.len()
    }

    pub fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.span.addr()) < self.span.len()
    }

    /// The page at an address of the span.
    pub fn page_at(&self, addr: usize) -> FolioId {
        debug_assert!(self.contains(addr));
        FolioId::from_index((addr - self.span.addr()) / Order::PAGE.bytes())
    }

    pub fn addr(&self, folio: FolioId) -> usize {
        self.span.addr() + folio.offset_bytes()
    }

    pub fn block_addr(&self, block: BlockId) -> usize {
        self.span.addr() + block.offset_bytes()
    }

    pub fn lock(&self, block: BlockId) -> Locked<'_> {
        self.folios.lock(block)
    }

    /// Locks a block that nobody holds. Also `None` for a block that was never mapped.
    pub fn try_lock(&self, block: BlockId) -> Option<Locked<'_>> {
        self.folios.try_lock(block)
    }

    /// Whether a block was ever mapped.
    pub fn has(&self, block: BlockId) -> bool {
        self.folios.has(block)
    }

    /// Allocates addresses.
    pub fn addresses(&self) -> &AddressSpace {
        &self.addresses
    }

    /// The blocks in use that were ever mapped.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.addresses.in_use().into_iter().flatten().map(BlockId::from_index).filter(|&block| self.has(block))
    }

    /// Makes allocated blocks readable and writable, and resets their entries.
    pub fn open(&self, blocks: Range<usize>) -> io::Result<()> {
        self.folios.ensure(BlockId::from_index(blocks.start)..BlockId::from_index(blocks.end));
        let start = self.block_addr(BlockId::from_index(blocks.start));
        self.make_accessible(start..start + blocks.len() * Order::HUGE.bytes())?;
        for index in blocks.clone() {
            self.lock(BlockId::from_index(index)).forget_tenant();
        }
        self.set_open(blocks, true);
        Ok(())
    }

    /// Marks the addresses of blocks as no longer in use.
    pub fn close(&self, blocks: Range<usize>) {
        self.set_open(blocks, false);
    }

    fn set_open(&self, blocks: Range<usize>, open: bool) {
        for index in blocks {
            let bit = 1 << (index % 64);
            if open {
                self.open[index / 64].fetch_or(bit, Ordering::SeqCst);
            } else {
                self.open[index / 64].fetch_and(!bit, Ordering::SeqCst);
            }
        }
    }

    pub fn is_open(&self, block: BlockId) -> bool {
        self.open[block.index() / 64].load(Ordering::SeqCst) >> (block.index() % 64) & 1 == 1
    }

    /// Makes addresses readable and writable.
    pub fn make_accessible(&self, addresses: Range<usize>) -> io::Result<()> {
        self.span.protect_rw(addresses)
    }

    /// Keeps addresses from children of later forks.
    pub fn keep_from_children(&self, addresses: Range<usize>) -> io::Result<()> {
        self.span.dontfork(addresses)
    }

    /// Memory of the table, in bytes.
    pub fn bytes(&self) -> usize {
        self.folios.bytes()
    }
}
