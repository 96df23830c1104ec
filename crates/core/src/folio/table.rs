//! The blocks of all addresses, each with its lock, and which of them are in use.

use super::entry::Entry;
use super::hashes::HashKey;
use super::locked::Locked;
use crate::id::BlockId;
use crate::order::{BLOCK_PAGES, Order};
use crate::packed::Packed;
use crate::policy::order_choice::Wish;
use crate::sparse::Sparse;
use crate::sync::{Mark, Mutex, Ordering, lock};
use std::ops::Range;

const CHUNK_BLOCKS: usize = 64;

/// A block that was never in use, one that is, and one that was.
const NEVER: u8 = 0;
const IN_USE: u8 = 1;
const LEFT: u8 = 2;
/// The bits of a note that say this. Above them is the number of a [`Wish`].
const USE: u8 = 0b11;
const WISH_SHIFT: u32 = 2;

struct Row {
    use_of: Mark,
    block: Mutex<Entry>,
}

/// The blocks of all addresses, in chunks that are allocated on demand. The note of a chunk that does not exist is the
/// use of each of its blocks, and the program's advice for it.
pub struct FolioTable {
    blocks: Sparse<Row, CHUNK_BLOCKS>,
    nr_blocks: usize,
    key: HashKey,
    /// Held while a chunk is made, or the note of one changes that does not exist.
    making: Mutex<()>,
}

impl FolioTable {
    /// The most blocks that a table can hold: 4 PiB of addresses.
    pub const MAX_BLOCKS: usize = Packed::LIMIT as usize / BLOCK_PAGES;

    /// A table for `nr_blocks` blocks, without chunks. Allocates 24 bytes per 64 GiB of addresses, and 16 KiB
    /// more for each 64 GiB that are used.
    ///
    /// # Panics
    /// When `nr_blocks` is above [`FolioTable::MAX_BLOCKS`].
    pub fn new(nr_blocks: usize) -> Self {
        assert!(nr_blocks <= FolioTable::MAX_BLOCKS, "a folio's number fits 40 bits");
        FolioTable { blocks: Sparse::new(nr_blocks), nr_blocks, key: [0; size_of::<HashKey>()], making: Mutex::new(()) }
    }

    /// The same with a key of random bytes for the hashes of its blocks.
    #[must_use]
    pub fn keyed(self, key: HashKey) -> Self {
        FolioTable { key, ..self }
    }

    /// Bytes of metadata for a block that was written out completely in folios of this order.
    pub fn record_bytes(order: Order) -> usize {
        size_of::<Row>() + Entry::most_bytes(order)
    }

    /// Blocks that the table can hold.
    pub fn nr_blocks(&self) -> usize {
        self.nr_blocks
    }

    /// Allocates the chunks that hold these blocks; safe from many threads at once.
    pub fn ensure(&self, blocks: Range<BlockId>) {
        let (start, end) = (blocks.start.index(), blocks.end.index());
        assert!(end <= self.nr_blocks, "block {end} lies beyond the table");
        if start >= end {
            return;
        }
        let _making = lock(&self.making);
        for first in (start / CHUNK_BLOCKS * CHUNK_BLOCKS..end).step_by(CHUNK_BLOCKS) {
            let note = self.blocks.note(first).load(Ordering::SeqCst);
            let wish = Wish::ALL[usize::from(note >> WISH_SHIFT)];
            let entry = || Row { use_of: Mark::new(note & USE), block: Mutex::new(Entry::new(wish)) };
            self.blocks.make(first..first + 1, entry);
        }
    }

    /// Notes that blocks are in use, or no longer, in chunks that do not exist and lie in the range completely. Advice
    /// for them is forgotten. Returns the other blocks.
    pub fn set_untouched_in_use(&self, blocks: Range<usize>, in_use: bool) -> Vec<Range<usize>> {
        self.note_untouched(blocks, |_| if in_use { IN_USE } else { LEFT })
    }

    /// Notes the program's advice for blocks in such chunks. Returns the other blocks.
    pub fn set_untouched_wish(&self, blocks: Range<usize>, wish: Wish) -> Vec<Range<usize>> {
        self.note_untouched(blocks, |note| note & USE | (wish as u8) << WISH_SHIFT)
    }

    fn note_untouched(&self, blocks: Range<usize>, change: impl Fn(u8) -> u8) -> Vec<Range<usize>> {
        let mut others: Vec<Range<usize>> = Vec::new();
        let _making = lock(&self.making);
        let mut at = blocks.start;
        while at < blocks.end {
            let next = blocks.end.min((at / CHUNK_BLOCKS + 1) * CHUNK_BLOCKS);
            if next - at == CHUNK_BLOCKS && self.blocks.get(at).is_none() {
                let note = self.blocks.note(at);
                note.store(change(note.load(Ordering::SeqCst)), Ordering::SeqCst);
            } else {
                match others.last_mut() {
                    Some(last) if last.end == at => last.end = next,
                    _ => others.push(at..next),
                }
            }
            at = next;
        }
        others
    }

    /// The end of the blocks from the first of these on that share a chunk that does not exist, and whether they are in
    /// use. `None`: the first block's chunk exists.
    pub fn untouched(&self, blocks: Range<usize>) -> Option<(usize, bool)> {
        let first = BlockId::from_index(blocks.start);
        let end = blocks.end.min((blocks.start / CHUNK_BLOCKS + 1) * CHUNK_BLOCKS);
        (!self.has(first)).then(|| (end, self.is_in_use(first)))
    }

    /// Whether the block's chunk exists.
    pub fn has(&self, block: BlockId) -> bool {
        self.find(block).is_some()
    }

    /// Notes that a block is in use, or no longer. Its chunk exists. Changes under the block's lock are seen under it.
    pub fn set_in_use(&self, block: BlockId, in_use: bool) {
        let entry = self.blocks.get(block.index()).expect("a block in use has an entry");
        entry.use_of.store(if in_use { IN_USE } else { LEFT }, Ordering::SeqCst);
    }

    /// Whether a block is in use.
    pub fn is_in_use(&self, block: BlockId) -> bool {
        self.use_of(block) == IN_USE
    }

    /// Whether a block is or was in use.
    pub fn was_in_use(&self, block: BlockId) -> bool {
        self.use_of(block) != NEVER
    }

    /// The first of these blocks that is or was in use. Skips chunks that do not exist.
    pub fn first_used(&self, blocks: Range<usize>) -> Option<BlockId> {
        let mut at = blocks.start;
        while at < blocks.end {
            match self.blocks.get(at) {
                Some(entry) if entry.use_of.load(Ordering::SeqCst) != NEVER => return Some(BlockId::from_index(at)),
                Some(_) => at += 1,
                None if self.use_of(BlockId::from_index(at)) != NEVER => return Some(BlockId::from_index(at)),
                None => at = (at / CHUNK_BLOCKS + 1) * CHUNK_BLOCKS,
            }
        }
        None
    }

    fn use_of(&self, block: BlockId) -> u8 {
        let load = |mark: &Mark| mark.load(Ordering::SeqCst);
        match self.blocks.get(block.index()) {
            Some(entry) => load(&entry.use_of),
            None => self.blocks.note_of(block.index()).map_or(NEVER, load) & USE,
        }
    }

    /// Locks a block; sleeps while another thread holds it. Allocates its chunk at the first touch.
    ///
    /// # Panics
    /// When the block's chunk does not exist and was never in use.
    pub fn lock(&self, block: BlockId) -> Locked<'_> {
        if self.find(block).is_none() && self.was_in_use(block) {
            self.ensure(block..BlockId::from_index(block.index() + 1));
        }
        let found = self.find(block).unwrap_or_else(|| panic!("{block:?} has no entry: it was never mapped"));
        Locked::lock(block, found, &self.key)
    }

    /// Locks a block unless another thread holds it. `None` also when its chunk does not exist.
    pub fn try_lock(&self, block: BlockId) -> Option<Locked<'_>> {
        Locked::try_lock(block, self.find(block)?, &self.key)
    }

    /// Bytes of memory that the table takes. Walks all blocks; a locked block counts without its parts, hashes and
    /// bitmaps.
    pub fn bytes(&self) -> usize {
        let more = |entry: &Row| entry.block.try_lock().map_or(0, |block| block.bytes());
        size_of::<Self>() + self.blocks.bytes() + self.blocks.made().map(more).sum::<usize>()
    }

    fn find(&self, block: BlockId) -> Option<&Mutex<Entry>> {
        self.blocks.get(block.index()).map(|entry| &entry.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folio::State;
    use crate::id::{FolioId, SlotId};

    #[test]
    fn advice_for_what_was_never_touched_takes_no_memory() {
        let (table, all) = (FolioTable::new(1 << 20), 10..(1 << 20) - 10);
        table.ensure(BlockId::new(200)..BlockId::new(201));
        table.set_untouched_in_use(all.clone(), true);
        let before = table.bytes();
        let others = table.set_untouched_wish(all.clone(), Wish::Whole);
        assert_eq!(others, [10..64, 192..256, (1 << 20) - 64..(1 << 20) - 10]);
        assert_eq!(table.bytes(), before);
        let wish = |block| table.lock(BlockId::new(block)).wish;
        assert_eq!((wish(64), wish(200), table.is_in_use(BlockId::new(64))), (Wish::Whole, Wish::None, true));
        table.set_untouched_wish(all.clone(), Wish::Pages);
        table.set_untouched_in_use(4096..8192, true);
        assert_eq!((wish(256), wish(4096), wish(8192)), (Wish::Pages, Wish::None, Wish::Pages));
    }

    #[test]
    fn a_table_locks_each_block_by_itself() {
        let table = FolioTable::new(200);
        assert!(table.try_lock(BlockId::new(3)).is_none());
        table.ensure(BlockId::new(0)..BlockId::new(2));
        let mut held = table.lock(BlockId::new(1));
        held.folio_mut(0).set_slot(Some(SlotId::new(5)));
        assert!(table.try_lock(BlockId::new(1)).is_none());
        let mut other = table.try_lock(BlockId::new(0)).unwrap();
        other.put(held.take());
        assert!(held.is_empty());
        assert_eq!(other.state(0), State::Swapped(SlotId::new(5)));
        assert_eq!(other.name(0), FolioId::new(0));
    }
}
