//! What is known of one block: the order and the records of its folios, hashes, advice, and pages that are dropped or
//! sealed.

use super::hashes::Hashes;
use super::record::{Folio, State};
use crate::id::FrameId;
use crate::order::{BLOCK_PAGES, Order, PIECE};
use crate::page_set::PageSet;
use crate::policy::history::History;
use crate::policy::order_choice::Wish;
use std::ops::Range;

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
    hashes: Hashes,
    /// Pages that were dropped while the block was in RAM as one folio.
    dropped: Option<Box<PageSet>>,
    /// Pages that must not be mapped: they are not managed, or are moving.
    sealed: Option<Box<PageSet>>,
}

impl Entry {
    pub(super) fn new(wish: Wish) -> Entry {
        Entry {
            order: Order::HUGE,
            pinned: false,
            left_at: 0,
            fixed_order: None,
            wish,
            history: History::default(),
            whole: Folio::EMPTY,
            parts: None,
            hashes: Hashes::default(),
            dropped: None,
            sealed: None,
        }
    }

    /// Bytes of what it holds elsewhere, once it was written out completely in folios of this order.
    pub(super) fn most_bytes(order: Order) -> usize {
        let folios = if order < Order::HUGE { BLOCK_PAGES / order.nr_pages() * size_of::<Folio>() } else { 0 };
        folios + Hashes::most_bytes(order < PIECE)
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
        self.hashes = Hashes::default();
        self.dropped = None;
    }

    /// Resets what advice and use have said of the previous mapping at these addresses.
    pub fn reset_advice(&mut self) {
        (self.pinned, self.fixed_order, self.wish, self.sealed) = (false, None, Wish::None, None);
        self.history = History::default();
    }

    /// The hash of a page, if noted for a folio smaller than a piece.
    pub fn page_hash(&self, page: usize) -> Option<u128> {
        self.hashes.of_page(page)
    }

    /// Notes the hash of a page. Hashes of other pages of the piece stay if they were noted per page.
    pub fn set_page_hash(&mut self, page: usize, hash: u128) {
        self.hashes.set_of_page(page, hash);
    }

    /// The hash of a piece, if noted as one.
    pub fn piece_hash(&self, piece: usize) -> Option<u128> {
        self.hashes.of_piece(piece)
    }

    /// Notes the hash of a piece.
    pub fn set_piece_hash(&mut self, piece: usize, hash: u128) {
        self.hashes.set_of_piece(piece, hash);
    }

    /// Forgets the hashes of all pieces that these pages touch, because their slots are given up.
    pub fn forget_hashes(&mut self, pages: Range<usize>) {
        self.hashes.forget(pages);
    }

    /// Notes pages that the program dropped while the block was in RAM as one folio.
    pub fn note_dropped(&mut self, pages: Range<usize>) {
        self.dropped.get_or_insert_default().insert(pages);
    }

    /// Returns the pages noted by [`Entry::note_dropped`] and forgets them.
    pub fn take_dropped(&mut self) -> Option<impl Iterator<Item = usize> + use<>> {
        self.dropped.take().map(|dropped| dropped.iter())
    }

    /// Forbids or permits mapping pages. The caller ensures that folios are not larger than [`Entry::sealed_order`],
    /// unless the whole block is empty.
    pub fn set_sealed(&mut self, pages: Range<usize>, on: bool) {
        let sealed = self.sealed.get_or_insert_default();
        if on {
            sealed.insert(pages);
        } else {
            sealed.remove(pages);
        }
        if sealed.is_empty() {
            self.sealed = None;
        }
    }

    /// Whether a page must not be mapped.
    pub fn is_sealed(&self, page: usize) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.contains(page))
    }

    /// Whether any page must not be mapped.
    pub fn has_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// The largest of the orders 9, 4 and 0 at which each folio is sealed completely or not at all.
    pub fn sealed_order(&self) -> Order {
        match &self.sealed {
            None => Order::HUGE,
            Some(sealed) if sealed.is_full() => Order::HUGE,
            Some(sealed) if sealed.is_of_pieces() => PIECE,
            Some(_) => Order::PAGE,
        }
    }

    /// Puts what was taken from another block in this one's place. Pages stay sealed: they are of the addresses.
    pub(super) fn replace(&mut self, block: Entry) {
        *self = Entry { sealed: self.sealed.take(), ..block };
    }

    /// Bytes of memory that it takes beside its row.
    pub(super) fn bytes(&self) -> usize {
        let parts = self.parts.as_ref().map_or(0, |parts| size_of_val(&**parts));
        let bits = [&self.dropped, &self.sealed].into_iter().flatten().map(|bits| size_of_val(&**bits)).sum::<usize>();
        self.hashes.bytes() + parts + bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folio::Ahead;
    use crate::id::SlotId;

    fn order(k: u8) -> Order {
        Order::new(k).unwrap()
    }

    #[test]
    fn parts_of_a_swapped_folio_have_its_slots() {
        let mut block = Entry::new(Wish::None);
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
        let mut block = Entry::new(Wish::None);
        block.folio_mut(0).set_in_ram(FrameId::new(512), true);
        block.folio_mut(0).ahead = Ahead::Marker;
        block.split(order(8));
        assert_eq!(block.state(1), State::Resident(FrameId::new(768)));
        assert_eq!((block.folio(0).ahead, block.folio(1).ahead), (Ahead::Marker, Ahead::No));
        block.join();
        assert!(block.is_empty());
    }

    #[test]
    fn hashes_of_pieces_and_of_pages() {
        let mut block = Entry::new(Wish::None);
        assert_eq!((block.piece_hash(1), block.page_hash(17)), (None, None));
        block.set_piece_hash(1, 7);
        assert_eq!((block.piece_hash(1), block.page_hash(17)), (Some(7), None));
        block.set_page_hash(17, u128::MAX);
        assert_eq!((block.piece_hash(1), block.page_hash(17), block.page_hash(18)), (None, Some(u128::MAX), None));
    }

    #[test]
    fn dropped_pages_are_noted_once() {
        let mut block = Entry::new(Wish::None);
        block.note_dropped(3..5);
        block.note_dropped(4..66);
        assert!(block.take_dropped().unwrap().eq(3..66));
        assert!(block.take_dropped().is_none());
    }

    #[test]
    fn sealed_pages_bound_the_order_until_they_are_opened() {
        let mut block = Entry::new(Wish::None);
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
}
