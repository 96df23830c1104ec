//! The folio table: maps an address to the place of its content, with one lock per 2 MiB.
//!
//! Addresses are divided into *blocks* of 2 MiB. A block is one folio of order 9 or is split into folios of
//! one smaller order; the order changes under the block's lock. A folio's entry holds its place ([`State`]), the slots
//! of its last written content and notes of the policies. A block holds the hashes of its content, per 64 KiB, or per
//! page for smaller folios.
//!
//! **Locking.** One mutex per block, held through the I/O of its folios; nothing of a block is readable without it. A
//! thread that holds one block takes another only by `try_lock`.
//!
//! **Memory.** 96 bytes per block once its chunk exists ([`FolioTable::ensure`]), 12 per folio when split, 768 once a
//! hash is noted, 256 per piece with page hashes, and 64 each for the dropped and the sealed pages.

use crate::id::{BlockId, FolioId, FrameId, SlotId};
use crate::order::{BLOCK_PAGES, Order, PIECE};
use crate::packed::Packed;
use crate::policy::drop_behind::Stay;
use crate::policy::order_choice::{History, Wish};
use crate::sparse::Sparse;
use crate::sync::{Mark, Mutex, MutexGuard, Ordering, lock, try_lock};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};

/// Blocks in a chunk of the table.
const CHUNK_BLOCKS: usize = 64;

/// Pieces of a block.
pub const BLOCK_PIECES: usize = BLOCK_PAGES >> PIECE.exponent();

/// In place of a frame: not in RAM. From `OUT` on, the rest says when it left, in units of 64 evicted pages.
const NONE: u32 = u32::MAX;
const OUT: u32 = 0xFF00_0000;
const LEFT_SHIFT: u32 = 6;

/// Where the content of a folio is.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum State {
    /// Never touched, dropped, or all zero: reads as zero and has neither frame nor slot.
    Empty,
    /// In its slots only; this is the first slot.
    Swapped(SlotId),
    /// In RAM and mapped; this is the first of its home frames.
    Resident(FrameId),
    /// In RAM at its frames' own address, not mapped.
    Standby(FrameId),
}

/// What is being done with the content of a folio.
#[derive(Copy, Clone, Eq, PartialEq)]
enum Content {
    /// Nothing.
    Rests,
    /// It is mapped.
    Mapped,
    /// It is being written to its slots, which hold nothing valid yet.
    Written,
}

/// What a folio was read for before it was touched.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Ahead {
    /// It was touched, or it is mapped.
    #[default]
    No,
    /// The first folio of a readahead window.
    Marker,
    /// A neighbour of a page that was touched.
    Neighbour,
}

/// The table entry of one folio.
#[derive(Copy, Clone, Eq, PartialEq)]
pub struct Folio {
    frame: u32,
    slot: Packed,
    content: Content,
    /// Why it is in RAM and not mapped, so that its first touch is noticed.
    pub ahead: Ahead,
    /// Whether a stream that passes it drops it, or has dropped it.
    pub stay: Stay,
}

const _: () = assert!(size_of::<Folio>() == 12, "a folio's entry takes 12 bytes");

impl Folio {
    const EMPTY: Folio =
        Folio { frame: NONE, slot: Packed::NONE, content: Content::Rests, ahead: Ahead::No, stay: Stay::Kept };

    /// Where its content is.
    pub fn state(&self) -> State {
        match (self.frame, self.slot.get()) {
            (OUT.., None) => State::Empty,
            (OUT.., Some(slot)) => {
                assert!(self.content != Content::Written, "a folio leaves RAM once a device holds it");
                State::Swapped(SlotId::new(slot))
            }
            (frame, _) if self.content == Content::Mapped => State::Resident(FrameId::new(frame)),
            (frame, _) => State::Standby(FrameId::new(frame)),
        }
    }

    /// Its first frame, if it is in RAM.
    pub fn frame(&self) -> Option<FrameId> {
        (self.frame < OUT).then(|| FrameId::new(self.frame))
    }

    /// The first of the slots that hold its last written content.
    pub fn slot(&self) -> Option<SlotId> {
        if self.content == Content::Written { None } else { self.slot.get().map(SlotId::new) }
    }

    /// The slots to which its current content is being written, unless it changed since.
    pub fn writing_to(&self) -> Option<SlotId> {
        if self.content == Content::Written { self.slot.get().map(SlotId::new) } else { None }
    }

    /// Starts a write of its content to these slots. The next change of its state cancels the write.
    pub fn begin_write(&mut self, slot: SlotId) {
        assert!(self.frame < OUT && self.content != Content::Mapped && self.slot().is_none());
        (self.slot, self.content) = (Packed::new(slot.get()), Content::Written);
    }

    /// Invalidates the write in progress, if any.
    pub fn cancel_write(&mut self) {
        if self.content == Content::Written {
            (self.slot, self.content) = (Packed::NONE, Content::Rests);
        }
    }

    /// Sets the slots that hold its last written content.
    pub fn set_slot(&mut self, slot: Option<SlotId>) {
        self.cancel_write();
        self.slot = slot.map_or(Packed::NONE, |slot| Packed::new(slot.get()));
    }

    /// Puts it in RAM, in these frames, mapped or not; its slots stay.
    pub fn set_in_ram(&mut self, frame: FrameId, mapped: bool) {
        assert!(frame.get() < OUT, "RAM has fewer frames");
        self.cancel_write();
        (self.frame, self.content) = (frame.get(), if mapped { Content::Mapped } else { Content::Rests });
    }

    /// Takes it out of RAM: swapped, or empty if it has no slot.
    pub fn set_out(&mut self) {
        self.cancel_write();
        (self.frame, self.content) = (NONE, Content::Rests);
        if self.ahead == Ahead::Neighbour {
            self.ahead = Ahead::No; // it was not used
        }
    }

    /// Takes it out of RAM, where so many pages have been evicted until now.
    pub fn set_evicted(&mut self, nr_evictions: u32) {
        self.set_out();
        self.frame = (OUT | nr_evictions >> LEFT_SHIFT & !OUT).min(NONE - 1);
    }

    /// Pages evicted since it was, of so many until now, within 64 and modulo 2^30. `None`: it was not evicted.
    pub fn nr_evicted_since(&self, nr_evictions: u32) -> Option<u32> {
        let since = |left| ((nr_evictions >> LEFT_SHIFT).wrapping_sub(left) & !OUT) << LEFT_SHIFT;
        (OUT..NONE).contains(&self.frame).then(|| since(self.frame))
    }

    /// Makes it read as zero.
    pub fn set_empty(&mut self) {
        *self = Folio::EMPTY;
    }

    /// The `index`th of the folios of `order` that this folio consists of.
    fn part(&self, index: usize, order: Order) -> Folio {
        let (mut part, first) = (*self, index * order.nr_pages());
        part.cancel_write();
        if part.frame < OUT {
            part.frame += first as u32;
        }
        let ahead = if index == 0 { self.ahead } else { Ahead::No };
        Folio { slot: part.slot.plus(first), ahead, ..part }
    }
}

/// The hash of a piece (64 KiB) when it was last written, if known.
#[derive(Clone, Default)]
enum PieceHash {
    #[default]
    Unknown,
    Whole([u64; 2]),
    Pages(Box<[[u64; 2]; PIECE.nr_pages()]>),
}

const _: () = assert!(size_of::<PieceHash>() == 24, "a piece's hash takes 24 bytes");

/// The key of an arena's content hashes. Without it, nobody can construct two contents with the same hash.
pub type HashKey = [u8; 192];

/// No hash. Content that really hashes to zero counts as unhashed.
const UNKNOWN: [u64; 2] = [0; 2];

fn pack(hash: u128) -> [u64; 2] {
    [hash as u64, (hash >> 64) as u64]
}

fn unpack(hash: [u64; 2]) -> Option<u128> {
    (hash != UNKNOWN).then_some(u128::from(hash[0]) | u128::from(hash[1]) << 64)
}

/// What the table holds for 2 MiB of addresses.
pub struct Entry {
    order: Order,
    /// Not to be reclaimed: no folio of the block leaves RAM.
    pub pinned: bool,
    /// The arena's eviction count when a folio of the block last left RAM.
    pub left_at: u32,
    /// The order that its folios must have, if not the arena's choice.
    pub fixed_order: Option<Order>,
    /// The program's advice.
    pub wish: Wish,
    /// Notes of the order choice.
    pub history: History,
    whole: Folio,
    /// The folios, if the order is below 9.
    parts: Option<Box<[Folio]>>,
    hashes: Option<Box<[PieceHash; BLOCK_PIECES]>>,
    /// Pages that were dropped while the block was in RAM as one folio, one bit per page.
    dropped: Option<Box<[u64; BLOCK_PAGES / 64]>>,
    /// Pages that must not be mapped: they are not managed, or are moving. One bit per page.
    sealed: Option<Box<[u64; BLOCK_PAGES / 64]>>,
}

impl Entry {
    fn new() -> Entry {
        Entry {
            order: Order::HUGE,
            pinned: false,
            left_at: 0,
            fixed_order: None,
            wish: Wish::None,
            history: History::default(),
            whole: Folio::EMPTY,
            parts: None,
            hashes: None,
            dropped: None,
            sealed: None,
        }
    }

    /// Bytes of metadata for a block that was written out completely in folios of this order.
    pub fn record_bytes(order: Order) -> usize {
        let folios = if order < Order::HUGE { BLOCK_PAGES / order.nr_pages() * size_of::<Folio>() } else { 0 };
        let pages = if order < PIECE { BLOCK_PAGES * size_of::<[u64; 2]>() } else { 0 };
        size_of::<Row>() + folios + size_of::<[PieceHash; BLOCK_PIECES]>() + pages
    }

    /// The order of its folios.
    pub fn order(&self) -> Order {
        self.order
    }

    /// How many folios it consists of.
    pub fn nr_folios(&self) -> usize {
        BLOCK_PAGES >> self.order.exponent()
    }

    /// The index of the folio that holds a page of the block.
    pub fn index_of(&self, page: usize) -> usize {
        page >> self.order.exponent()
    }

    /// A folio by its index.
    pub fn folio(&self, index: usize) -> &Folio {
        self.parts.as_ref().map_or(&self.whole, |parts| &parts[index])
    }

    /// A folio by its index, mutable.
    pub fn folio_mut(&mut self, index: usize) -> &mut Folio {
        match &mut self.parts {
            Some(parts) => &mut parts[index],
            None => &mut self.whole,
        }
    }

    /// Where the content of a folio is.
    pub fn state(&self, index: usize) -> State {
        self.folio(index).state()
    }

    /// The first frame of a folio in RAM.
    ///
    /// # Panics
    /// If the folio is not in RAM.
    pub fn frame(&self, index: usize) -> FrameId {
        self.folio(index).frame().expect("the folio is in RAM")
    }

    /// All its folios in order.
    pub fn folios(&self) -> &[Folio] {
        self.parts.as_deref().unwrap_or(std::slice::from_ref(&self.whole))
    }

    /// Whether all of it reads as zero without frame or slot.
    pub fn is_empty(&self) -> bool {
        self.folios().iter().all(|folio| folio.state() == State::Empty)
    }

    /// Whether nothing of it is in RAM.
    pub fn is_out(&self) -> bool {
        self.folios().iter().all(|folio| folio.frame().is_none())
    }

    /// Makes its folios smaller. Frames and slots stay where they are; each new folio gets its part of them. Below the
    /// piece order, only swapped folios keep their piece hashes, by the invariant that *a piece hashed as one is
    /// contiguous in its slots*.
    ///
    /// # Panics
    /// Unless `order` is smaller than that of its folios.
    pub fn split(&mut self, order: Order) {
        assert!(order < self.order, "a split makes folios smaller");
        if order < PIECE && self.order >= PIECE {
            let pages = self.order.nr_pages();
            for index in 0..self.nr_folios() {
                if !matches!(self.state(index), State::Swapped(_)) {
                    self.forget_hashes(index * pages..(index + 1) * pages);
                }
            }
        }
        let each = 1 << (self.order.exponent() - order.exponent());
        let parts = self.folios().iter().flat_map(|folio| (0..each).map(|index| folio.part(index, order))).collect();
        self.parts = Some(parts);
        self.order = order;
    }

    /// Makes the block one empty folio and drops its hashes and dropped pages. The caller has taken the frames and
    /// slots of its parts.
    pub fn join(&mut self) {
        self.parts = None;
        self.order = Order::HUGE;
        self.whole = Folio::EMPTY;
        self.hashes = None;
        self.dropped = None;
    }

    /// Resets what advice and use have said of the previous mapping at these addresses.
    pub fn reset_advice(&mut self) {
        (self.pinned, self.fixed_order, self.wish, self.sealed) = (false, None, Wish::None, None);
        self.history = History::default();
    }

    /// The hash of a page, if noted for a folio smaller than a piece.
    pub fn page_hash(&self, page: usize) -> Option<u128> {
        match self.piece(page / PIECE.nr_pages()) {
            PieceHash::Pages(pages) => unpack(pages[page % PIECE.nr_pages()]),
            _ => None,
        }
    }

    /// Notes the hash of a page. Hashes of other pages of the piece stay if they were noted per page.
    pub fn set_page_hash(&mut self, page: usize, hash: u128) {
        let piece = self.piece_mut(page / PIECE.nr_pages());
        if !matches!(piece, PieceHash::Pages(_)) {
            *piece = PieceHash::Pages(Box::new([UNKNOWN; PIECE.nr_pages()]));
        }
        if let PieceHash::Pages(pages) = piece {
            pages[page % PIECE.nr_pages()] = pack(hash);
        }
    }

    /// The hash of a piece, if noted as one.
    pub fn piece_hash(&self, piece: usize) -> Option<u128> {
        match self.piece(piece) {
            PieceHash::Whole(hash) => unpack(*hash),
            _ => None,
        }
    }

    /// Notes the hash of a piece.
    pub fn set_piece_hash(&mut self, piece: usize, hash: u128) {
        *self.piece_mut(piece) = PieceHash::Whole(pack(hash));
    }

    /// Forgets the hashes of all pieces that these pages touch, because their slots are given up.
    pub fn forget_hashes(&mut self, pages: Range<usize>) {
        if self.hashes.is_some() {
            let pieces = pages.start / PIECE.nr_pages()..pages.end.div_ceil(PIECE.nr_pages());
            pieces.for_each(|piece| *self.piece_mut(piece) = PieceHash::Unknown);
        }
    }

    /// Notes pages that the program dropped while the block was in RAM as one folio.
    pub fn note_dropped(&mut self, pages: Range<usize>) {
        let dropped = self.dropped.get_or_insert_default();
        pages.for_each(|page| dropped[page / 64] |= 1 << (page % 64));
    }

    /// Returns the pages noted by [`Entry::note_dropped`] and forgets them.
    pub fn take_dropped(&mut self) -> Option<impl Iterator<Item = usize> + use<>> {
        let dropped = self.dropped.take()?;
        Some((0..BLOCK_PAGES).filter(move |page| dropped[page / 64] >> (page % 64) & 1 == 1))
    }

    /// Forbids or permits mapping pages. The caller ensures that folios are not larger than [`Entry::sealed_order`],
    /// unless the whole block is empty.
    pub fn set_sealed(&mut self, pages: Range<usize>, on: bool) {
        let sealed = self.sealed.get_or_insert_default();
        for page in pages {
            let bit = 1 << (page % 64);
            sealed[page / 64] = if on { sealed[page / 64] | bit } else { sealed[page / 64] & !bit };
        }
        if sealed.iter().all(|&word| word == 0) {
            self.sealed = None;
        }
    }

    /// Whether a page must not be mapped.
    pub fn is_sealed(&self, page: usize) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed[page / 64] >> (page % 64) & 1 == 1)
    }

    /// Whether any page must not be mapped.
    pub fn has_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// The largest of the orders 9, 4 and 0 at which each folio is sealed completely or not at all.
    pub fn sealed_order(&self) -> Order {
        let Some(sealed) = &self.sealed else { return Order::HUGE };
        let pieces = || (0..BLOCK_PIECES).map(|piece| (sealed[piece / 4] >> (piece % 4 * 16)) as u16);
        if sealed.iter().all(|&word| word == u64::MAX) {
            Order::HUGE
        } else if pieces().all(|piece| piece == 0 || piece == u16::MAX) {
            PIECE
        } else {
            Order::PAGE
        }
    }

    fn piece(&self, piece: usize) -> &PieceHash {
        self.hashes.as_ref().map_or(&PieceHash::Unknown, |hashes| &hashes[piece])
    }

    fn piece_mut(&mut self, piece: usize) -> &mut PieceHash {
        &mut self.hashes.get_or_insert_default()[piece]
    }

    fn bytes(&self) -> usize {
        let hashes = self.hashes.as_ref().map_or(0, |hashes| {
            let pages = hashes.iter().filter(|piece| matches!(piece, PieceHash::Pages(_))).count();
            size_of_val(&**hashes) + pages * size_of::<[[u64; 2]; PIECE.nr_pages()]>()
        });
        let parts = self.parts.as_ref().map_or(0, |parts| size_of_val(&**parts));
        let bits = [&self.dropped, &self.sealed].into_iter().flatten().map(|bits| size_of_val(&**bits)).sum::<usize>();
        hashes + parts + bits
    }
}

/// A block that was never in use, one that is, and one that was.
const NEVER: u8 = 0;
const IN_USE: u8 = 1;
const LEFT: u8 = 2;

struct Row {
    use_of: Mark,
    block: Mutex<Entry>,
}

/// The blocks of all addresses, in chunks that are allocated on demand. The note of a chunk that does not exist is the
/// use of each of its blocks.
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
            let use_of = self.blocks.note(first).load(Ordering::SeqCst);
            let entry = || Row { use_of: Mark::new(use_of), block: Mutex::new(Entry::new()) };
            self.blocks.make(first..first + 1, entry);
        }
    }

    /// Notes that blocks are in use, or no longer, in chunks that do not exist and lie in the range completely. Returns
    /// the other blocks.
    pub fn set_untouched_in_use(&self, blocks: Range<usize>, in_use: bool) -> Vec<Range<usize>> {
        let mut others: Vec<Range<usize>> = Vec::new();
        let _making = lock(&self.making);
        let mut at = blocks.start;
        while at < blocks.end {
            let next = blocks.end.min((at / CHUNK_BLOCKS + 1) * CHUNK_BLOCKS);
            if next - at == CHUNK_BLOCKS && self.blocks.get(at).is_none() {
                self.blocks.note(at).store(if in_use { IN_USE } else { LEFT }, Ordering::SeqCst);
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
            None => self.blocks.note_of(block.index()).map_or(NEVER, load),
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
        Locked { id: block, mutex: found, block: Some(lock(found)), key: &self.key }
    }

    /// Locks a block unless another thread holds it. `None` also when its chunk does not exist.
    pub fn try_lock(&self, block: BlockId) -> Option<Locked<'_>> {
        let found = self.find(block)?;
        Some(Locked { id: block, mutex: found, block: Some(try_lock(found)?), key: &self.key })
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

impl fmt::Debug for FolioTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolioTable").field("nr_blocks", &self.nr_blocks).finish()
    }
}

/// A locked block. Dropping it unlocks.
#[must_use = "dropping it unlocks the block"]
pub struct Locked<'t> {
    id: BlockId,
    mutex: &'t Mutex<Entry>,
    /// `None` while it is unlocked.
    block: Option<MutexGuard<'t, Entry>>,
    key: &'t HashKey,
}

impl<'t> Locked<'t> {
    /// The key of its content hashes.
    pub fn key(&self) -> &'t HashKey {
        self.key
    }

    /// The block's id.
    pub fn id(&self) -> BlockId {
        self.id
    }

    /// The id of a folio of the block.
    pub fn name(&self, index: usize) -> FolioId {
        self.id.page(index << self.order().exponent())
    }

    /// Unlocks the block, until it is locked again. Others may change everything about it meanwhile.
    pub fn unlock(&mut self) {
        self.block = None;
    }

    /// Locks it again.
    pub fn relock(&mut self) {
        self.block = Some(lock(self.mutex));
    }

    /// The same, if nobody holds it.
    pub fn try_relock(&mut self) -> bool {
        self.block = try_lock(self.mutex);
        self.block.is_some()
    }

    /// Takes what the entry says of the block. The block is empty afterwards.
    pub fn take(&mut self) -> Entry {
        std::mem::replace(&mut **self, Entry::new())
    }

    /// Puts what was taken from another block into an empty one.
    pub fn put(&mut self, block: Entry) {
        **self = Entry { sealed: self.sealed.take(), ..block };
    }
}

impl Deref for Locked<'_> {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        self.block.as_ref().expect("it is locked again")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Entry {
        self.block.as_mut().expect("it is locked again")
    }
}

impl fmt::Debug for Locked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locked").field("block", &self.id).field("order", &self.order()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(k: u8) -> Order {
        Order::new(k).unwrap()
    }

    #[test]
    fn parts_of_a_swapped_folio_have_its_slots() {
        let mut block = Entry::new();
        block.folio_mut(0).set_slot(Some(SlotId::new(1024)));
        block.split(order(4));
        assert_eq!((block.nr_folios(), block.index_of(511)), (32, 31));
        assert_eq!(block.state(3), State::Swapped(SlotId::new(1024 + 48)));
        block.folio_mut(3).set_empty();
        block.split(order(0));
        assert!((48..64).all(|page| block.state(page) == State::Empty));
        assert_eq!(block.state(64), State::Swapped(SlotId::new(1024 + 64)));
        assert!(block.is_out() && !block.is_empty());
    }

    #[test]
    fn parts_of_a_resident_folio_have_its_frames() {
        let mut block = Entry::new();
        block.folio_mut(0).set_in_ram(FrameId::new(512), true);
        block.folio_mut(0).ahead = Ahead::Marker;
        block.split(order(8));
        assert_eq!(block.state(1), State::Resident(FrameId::new(768)));
        assert_eq!((block.folio(0).ahead, block.folio(1).ahead), (Ahead::Marker, Ahead::No));
        block.join();
        assert!(block.is_empty());
    }

    #[test]
    fn a_write_is_good_for_nothing_once_the_folio_changed() {
        let (frame, slot) = (FrameId::new(512), SlotId::new(7));
        let changes: [fn(&mut Folio); 5] = [
            |folio| folio.set_in_ram(FrameId::new(512), true),
            |folio| folio.set_slot(Some(SlotId::new(9))),
            |folio| folio.set_empty(),
            |folio| folio.cancel_write(),
            |folio| folio.begin_write(SlotId::new(8)),
        ];
        for change in changes {
            let mut folio = Folio::EMPTY;
            folio.set_in_ram(frame, false);
            folio.begin_write(slot);
            assert_eq!((folio.slot(), folio.writing_to(), folio.state()), (None, Some(slot), State::Standby(frame)));
            assert_eq!(folio.part(1, Order::PAGE).writing_to(), None);
            change(&mut folio);
            assert_ne!(folio.writing_to(), Some(slot));
        }
    }

    #[test]
    fn hashes_of_pieces_and_of_pages() {
        let mut block = Entry::new();
        assert_eq!((block.piece_hash(1), block.page_hash(17)), (None, None));
        block.set_piece_hash(1, 7);
        assert_eq!((block.piece_hash(1), block.page_hash(17)), (Some(7), None));
        block.set_page_hash(17, u128::MAX);
        assert_eq!((block.piece_hash(1), block.page_hash(17), block.page_hash(18)), (None, Some(u128::MAX), None));
    }

    #[test]
    fn dropped_pages_are_noted_once() {
        let mut block = Entry::new();
        block.note_dropped(3..5);
        block.note_dropped(4..66);
        assert!(block.take_dropped().unwrap().eq(3..66));
        assert!(block.take_dropped().is_none());
    }

    #[test]
    fn sealed_pages_bound_the_order_until_they_are_opened() {
        let mut block = Entry::new();
        assert!(!block.has_sealed() && block.sealed_order() == Order::HUGE);
        block.set_sealed(16..48, true);
        assert_eq!(block.sealed_order(), PIECE);
        assert!(!block.is_sealed(15) && block.is_sealed(16) && block.is_sealed(47) && !block.is_sealed(48));
        block.set_sealed(47..49, false);
        assert_eq!(block.sealed_order(), Order::PAGE);
        block.set_sealed(0..BLOCK_PAGES, true);
        assert_eq!(block.sealed_order(), Order::HUGE);
        block.join();
        assert!(block.is_sealed(511), "it is of the addresses, not of what they hold");
        block.set_sealed(0..BLOCK_PAGES, false);
        assert!(!block.has_sealed());
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
