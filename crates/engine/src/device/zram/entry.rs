//! The word of a slot: which object of the pool holds its content, and in which form.
//!
//! Content is compressed in *units* of 2^k aligned slots, each of which is one object. All slots of a unit have the
//! same word, so parts of it can be read and freed separately. The object is freed with the last slot that names it.

use folioswap_core::Order;
use folioswap_core::pool::{MAX_OBJECT_BYTES, ObjectId, SizeClass};

/// The largest unit: 32 KiB. Larger units compress better (rows of a table in 16, 32 and 64 KiB: to 0.30, 0.28 and
/// 0.27 of their size), but make reads of single pages slower (55, 50 and 31 thousand random accesses a second: `bench
/// random --data records`).
pub(super) const UNIT: Order = Order::new(3).expect("there is such an order");

const _: () = assert!(UNIT.bytes() <= MAX_OBJECT_BYTES, "a unit fits an object, compressed or not");

/// The unpacked word of a slot.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub object: ObjectId,
    /// Used bytes of the object; equal to the length of the unit if it is not compressed.
    pub len: usize,
    pub order: Order,
}

const CLASS: u32 = 32;
const LEN: u32 = 40;
const ORDER: u32 = 56;
const IS_THERE: u64 = 1 << 63;

impl Entry {
    /// As a word; never 0.
    pub fn pack(self) -> u64 {
        assert!((1..=MAX_OBJECT_BYTES).contains(&self.len) && self.order <= UNIT);
        IS_THERE
            | u64::from(self.order.exponent()) << ORDER
            | (self.len as u64 - 1) << LEN
            | (self.object.class.index() as u64) << CLASS
            | u64::from(self.object.index)
    }

    /// From a word; `None` for a slot without content.
    pub fn unpack(word: u64) -> Option<Entry> {
        if word == 0 {
            return None;
        }
        let field = |at: u32, bits: u32| (word >> at & ((1 << bits) - 1)) as usize;
        let object = ObjectId { class: SizeClass::from_index(field(CLASS, 8)), index: word as u32 };
        let order = Order::new(field(ORDER, 4) as u8).expect("it was packed");
        Some(Entry { object, len: field(LEN, 16) + 1, order })
    }

    /// Whether the object is uncompressed.
    pub fn is_plain(self) -> bool {
        self.len == self.order.bytes()
    }
}

/// The largest unit that begins at this slot and has at most `nr_slots` slots.
pub(super) fn unit_at(slot: usize, nr_slots: usize) -> Order {
    let aligned = (slot | UNIT.nr_pages()).trailing_zeros();
    Order::new(aligned.min(nr_slots.ilog2()) as u8).expect("a unit is no larger than the largest")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_survive_a_word(class in 0..folioswap_core::pool::NR_CLASSES, index: u32, len in 1..=MAX_OBJECT_BYTES, k in 0..=3u8) {
            let object = ObjectId { class: SizeClass::from_index(class), index };
            let entry = Entry { object, len, order: Order::new(k).unwrap() };
            prop_assert_eq!(Entry::unpack(entry.pack()), Some(entry));
        }

        #[test]
        fn pieces_are_aligned_and_as_large_as_can_be(slot in 0..4096usize, nr_slots in 1..600usize) {
            let order = unit_at(slot, nr_slots);
            prop_assert!(slot.is_multiple_of(order.nr_pages()) && order.nr_pages() <= nr_slots && order <= UNIT);
            let next = 2 * order.nr_pages();
            prop_assert!(order == UNIT || next > nr_slots || !slot.is_multiple_of(next));
        }
    }
}
