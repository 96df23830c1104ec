//! The folio table: for each page of managed memory, where its content is.
//!
//! A block's number is its address in units of 2 MiB, so the table covers all addresses of a process. Entries exist
//! where memory is or was managed.
//!
//! **Locking.** The table has a lock per block; the list of blocks in use has a leaf lock of its own. The marks of
//! blocks in use are changed before a block is dropped, and read under the block's lock, so a fault that was reported
//! before its addresses were given up makes no page there.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use folioswap_core::{BLOCK_BYTES, BlockId, FolioId, FolioTable, HashKey, Locked, Order, PAGE_SIZE, RangeSet, Wish};

use crate::process::turns::Waits;

const _: () = assert!(PAGE_SIZE == folioswap_sys::memory::PAGE_SIZE);

const ADDRESS_BITS: u32 = 47;

/// Blocks in the addresses of a process.
const NR_BLOCKS: usize = (1 << ADDRESS_BITS) / Order::HUGE.bytes();

/// The folio table of an arena.
pub(crate) struct Table {
    folios: FolioTable,
    in_use: Mutex<RangeSet>,
    changing: Mutex<()>,
    nr_changes: AtomicU64,
    /// Addresses that the program has locked in RAM.
    locked: Mutex<RangeSet>,
    has_locked: AtomicBool,
}

impl Table {
    /// `key`: of the hashes in the table.
    pub fn new(key: HashKey) -> Self {
        Table {
            folios: FolioTable::new(NR_BLOCKS).keyed(key),
            in_use: Mutex::default(),
            changing: Mutex::new(()),
            nr_changes: AtomicU64::new(0),
            locked: Mutex::default(),
            has_locked: AtomicBool::new(false),
        }
    }

    /// Whether pages of the address's block are managed, or were.
    pub fn contains(&self, addr: usize) -> bool {
        addr >> ADDRESS_BITS == 0 && self.folios.was_in_use(self.page_at(addr).block())
    }

    /// Whether pages of a block that overlaps the range are managed, or were.
    pub fn overlaps(&self, range: Range<usize>) -> bool {
        let range = self.possible(range);
        let blocks = range.start / Order::HUGE.bytes()..range.end.div_ceil(Order::HUGE.bytes());
        self.folios.first_used(blocks).is_some()
    }

    /// The part of a range that a process can have.
    pub fn possible(&self, range: Range<usize>) -> Range<usize> {
        range.start.min(1 << ADDRESS_BITS)..range.end.min(1 << ADDRESS_BITS)
    }

    pub fn page_at(&self, addr: usize) -> FolioId {
        FolioId::from_index(addr / Order::PAGE.bytes())
    }

    pub fn addr(&self, folio: FolioId) -> usize {
        folio.offset_bytes()
    }

    pub fn block_addr(&self, block: BlockId) -> usize {
        block.offset_bytes()
    }

    pub fn lock(&self, block: BlockId) -> Locked<'_> {
        self.folios.lock(block)
    }

    /// Locks a block that nobody holds. Also `None` for a block that was never managed.
    pub fn try_lock(&self, block: BlockId) -> Option<Locked<'_>> {
        self.folios.try_lock(block)
    }

    /// Whether a block has an entry: it was managed once, or a neighbour was.
    pub fn has(&self, block: BlockId) -> bool {
        self.folios.has(block)
    }

    /// The end of the blocks from the first of these on that were never touched, as far as that is cheap to say, and
    /// whether they are in use. `None`: the first block has an entry.
    pub fn untouched(&self, blocks: Range<usize>) -> Option<(usize, bool)> {
        self.folios.untouched(blocks)
    }

    pub fn in_use(&self) -> Vec<Range<usize>> {
        self.in_use_set().iter().collect()
    }

    fn in_use_set(&self) -> MutexGuard<'_, RangeSet> {
        self.in_use.lock().expect("nothing panics under this lock")
    }

    /// Makes entries for blocks.
    pub fn ensure(&self, blocks: Range<usize>) {
        self.folios.ensure(BlockId::from_index(blocks.start)..BlockId::from_index(blocks.end));
    }

    /// In a forked child: the kernel has locked nothing.
    pub fn forget_locked(&self) {
        *self.locked.lock().expect("nothing panics under this lock") = RangeSet::new();
        self.has_locked.store(false, Ordering::SeqCst);
    }

    /// Lets one thread at a time change what is managed.
    pub fn changing(&self) -> MutexGuard<'_, ()> {
        let guard = self.changing.lock().expect("nothing panics under this lock");
        self.nr_changes.fetch_add(1, Ordering::SeqCst);
        guard
    }

    /// Waits until what is managed does not change. Returns how many changes there were.
    pub async fn nr_changes(&self, waits: Waits<'_>) -> u64 {
        let lock = || drop(self.changing.lock().expect("nothing panics under this lock"));
        waits.until(lock, || self.changing.try_lock().is_ok().then_some(())).await;
        self.nr_changes.load(Ordering::SeqCst)
    }

    /// Marks a block as in use. Its entry exists, and is locked.
    pub fn open(&self, block: BlockId) {
        self.folios.set_in_use(block, true);
    }

    /// Marks blocks as in use that were never touched. Returns the others.
    pub fn open_untouched(&self, blocks: Range<usize>) -> Vec<Range<usize>> {
        self.folios.set_untouched_in_use(blocks, true)
    }

    /// Marks blocks as no longer in use that were never touched. Returns the others.
    pub fn close_untouched(&self, blocks: Range<usize>) -> Vec<Range<usize>> {
        let others = self.folios.set_untouched_in_use(blocks.clone(), false);
        let mut in_use = self.in_use_set();
        let mut at = blocks.start;
        for part in others.iter().chain([&(blocks.end..blocks.end)]) {
            in_use.remove(at..part.start);
            at = part.end;
        }
        others
    }

    /// Notes advice for blocks that were never touched. Returns the others.
    pub fn wish_untouched(&self, blocks: Range<usize>, wish: Wish) -> Vec<Range<usize>> {
        self.folios.set_untouched_wish(blocks, wish)
    }

    /// Lists opened blocks as in use.
    pub fn note_in_use(&self, blocks: Range<usize>) {
        self.in_use_set().add(blocks);
    }

    /// Marks a block as no longer in use.
    pub fn close(&self, block: BlockId) {
        self.folios.set_in_use(block, false);
        self.in_use_set().remove(block.index()..block.index() + 1);
    }

    pub fn is_open(&self, block: BlockId) -> bool {
        self.folios.is_in_use(block)
    }

    /// Notes that the program locks addresses in RAM. `false`, and not noted: more than `most` bytes would be locked.
    pub fn note_locked(&self, range: Range<usize>, most: usize) -> bool {
        let mut set = self.locked.lock().expect("nothing panics under this lock");
        let before = set.remove(range.clone());
        set.add(range.clone());
        let fits = set.total() <= most; // a folio of which a part is locked is split when the rest is to leave
        if !fits {
            set.remove(range);
            before.into_iter().for_each(|part| set.add(part));
        }
        self.has_locked.store(!set.is_empty(), Ordering::SeqCst);
        fits
    }

    /// Notes that the program no longer locks addresses in RAM. Returns those that were locked.
    pub fn note_unlocked(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut set = self.locked.lock().expect("nothing panics under this lock");
        let removed = set.remove(range);
        self.has_locked.store(!set.is_empty(), Ordering::SeqCst);
        removed
    }

    /// Whether the program has locked any of these addresses in RAM.
    pub fn has_locked(&self, range: &Range<usize>) -> bool {
        self.has_locked.load(Ordering::SeqCst)
            && self.locked.lock().expect("nothing panics under this lock").overlaps(range)
    }

    /// Whether the program has locked some of these addresses, but not all.
    pub fn is_partly_locked(&self, range: &Range<usize>) -> bool {
        self.has_locked(range)
            && self.locked.lock().expect("nothing panics under this lock").parts(range) != [range.clone()]
    }

    pub fn bytes(&self) -> usize {
        self.folios.bytes()
    }
}

/// The blocks that a range of addresses overlaps.
pub(crate) fn blocks_of(range: &Range<usize>) -> Range<usize> {
    range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}

/// The pages of a block, counted from its start, that lie in a range of addresses.
pub(crate) fn pages_in(block: BlockId, range: &Range<usize>) -> Range<usize> {
    let base = block.offset_bytes();
    let (start, end) = (range.start.max(base), range.end.min(base + BLOCK_BYTES));
    (start - base) / PAGE_SIZE..(end - base).div_ceil(PAGE_SIZE)
}
