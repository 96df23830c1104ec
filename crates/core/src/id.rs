//! Identifiers. Each unit is its own type, so that a frame is never taken for a slot and a count never for a place.
//!
//! Folios, blocks of frames and runs of slots are counted in units of one order (their arena's): the block with
//! [`FrameId`] 3 of order 9 starts at frame 3 * 512. The conversions below are the only places where that is done.

use crate::order::Order;
use std::ops::Range;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
        pub struct $name(u32);

        impl $name {
            /// The one with this number.
            pub const fn new(number: u32) -> Self {
                Self(number)
            }

            /// The one at this index. Panics if the index does not fit 32 bits.
            pub const fn from_index(index: usize) -> Self {
                assert!(index <= u32::MAX as usize, "the index of an identifier fits 32 bits");
                Self(index as u32)
            }

            /// The number as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The number as it is stored.
            pub const fn get(self) -> u32 {
                self.0
            }
        }
    };
}

id! {
    /// A folio: its index in its arena's span of addresses, in folios of the arena's order.
    FolioId
}
id! {
    /// A block of frames that holds one folio: its index in the zone, in blocks of the zone's order.
    FrameId
}
id! {
    /// A run of slots that holds one folio: its index in the swap space, in runs of the arena's order.
    SlotId
}
id! {
    /// A CPU.
    CpuId
}
id! {
    /// A NUMA node.
    NodeId
}
id! {
    /// A swap device.
    DeviceId
}

impl FolioId {
    /// Bytes from the start of the span to this folio.
    pub const fn offset_bytes(self, order: Order) -> usize {
        self.index() * order.bytes()
    }

    /// Each folio of a range in turn.
    pub fn each(folios: Range<FolioId>) -> impl DoubleEndedIterator<Item = FolioId> + ExactSizeIterator {
        (folios.start.index()..folios.end.index().max(folios.start.index())).map(FolioId::from_index)
    }
}

impl FrameId {
    /// The number of the block's first frame.
    pub const fn first_frame(self, order: Order) -> usize {
        self.index() * order.nr_pages()
    }

    /// Bytes from the start of the frames to this block.
    pub const fn offset_bytes(self, order: Order) -> usize {
        self.index() * order.bytes()
    }
}

impl SlotId {
    /// The number of the run's first slot.
    pub const fn first_slot(self, order: Order) -> u64 {
        self.0 as u64 * order.nr_pages() as u64
    }

    /// Bytes from the start of the swap space to this run.
    pub const fn offset_bytes(self, order: Order) -> u64 {
        self.0 as u64 * order.bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions() {
        assert_eq!(FrameId::new(3).first_frame(Order::HUGE), 1536);
        assert_eq!(FrameId::new(3).offset_bytes(Order::HUGE), 6 << 20);
        assert_eq!(SlotId::new(3).first_slot(Order::PAGE), 3);
        assert_eq!(SlotId::new(u32::MAX).offset_bytes(Order::HUGE), (u32::MAX as u64) << 21);
        assert_eq!(FolioId::from_index(7), FolioId::new(7));
        assert_eq!(FolioId::new(7).offset_bytes(Order::PAGE), 7 * 4096);
    }

    #[test]
    fn each_walks_a_range() {
        let range = FolioId::new(2)..FolioId::new(5);
        assert_eq!(FolioId::each(range).map(FolioId::get).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(FolioId::each(FolioId::new(5)..FolioId::new(2)).len(), 0);
    }

    #[test]
    #[should_panic(expected = "fits 32 bits")]
    fn an_index_beyond_32_bits_is_refused() {
        let _ = FolioId::from_index(1 << 32);
    }
}
