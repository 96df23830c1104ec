//! Identifiers. Each unit has its own type, so that a frame cannot be mistaken for a slot, nor a count for a place.
//!
//! Folios, frames and slots are numbered in 4 KiB pages: a folio of order k is identified by its first page and lies in
//! 2^k frames and 2^k slots, named by the first. Only the conversions below turn pages into bytes and blocks into
//! pages.

use crate::order::{MAX_ORDER, Order, PAGE_SIZE};
use std::ops::Range;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident: $number:ident) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
        pub struct $name($number);

        impl $name {
            /// The identifier with this number.
            pub const fn new(number: $number) -> Self {
                Self(number)
            }

            /// The identifier at this index. Panics if the index does not fit the number.
            pub const fn from_index(index: usize) -> Self {
                assert!(index as u64 <= $number::MAX as u64, "the index of an identifier fits its number");
                Self(index as $number)
            }

            /// The number as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The number as it is stored.
            pub const fn get(self) -> $number {
                self.0
            }
        }
    };
}

id! {
    /// A folio: the number of its first page in its arena's span of addresses, of at most 40 bits.
    FolioId: u64
}
id! {
    /// 2 MiB of an arena's span of addresses, aligned: one folio of order 9, or as many smaller ones as fit.
    BlockId: u32
}
id! {
    /// A frame: its number among the frames of all zones. A folio's place in RAM is named by its first frame.
    FrameId: u32
}
id! {
    /// A slot: its number on its device (32 bits) or in the swap space (40 bits). A folio's copy is named by its first
    /// slot.
    SlotId: u64
}
id! {
    /// A cluster of a swap device: its index in the device.
    ClusterId: u32
}
id! {
    /// A unit of a space that compaction works on: a frame of a zone, or a slot of a device.
    UnitId: u32
}
id! {
    /// A block of such a space: a pageblock of a zone, or a cluster of a device. The space defines its number of units.
    SpaceBlockId: u32
}
id! {
    /// A CPU.
    CpuId: u32
}
id! {
    /// A NUMA node.
    NodeId: u32
}
id! {
    /// A swap device.
    DeviceId: u32
}

impl FolioId {
    /// Bytes from the start of the span to this folio.
    pub const fn offset_bytes(self) -> usize {
        self.index() * PAGE_SIZE
    }

    /// The block that contains the folio.
    pub const fn block(self) -> BlockId {
        BlockId((self.0 >> MAX_ORDER) as u32)
    }

    /// The page of its block at which the folio begins.
    pub const fn page_in_block(self) -> usize {
        self.index() % Order::HUGE.nr_pages()
    }
}

impl BlockId {
    /// Each block of a range in order.
    pub fn each(blocks: Range<BlockId>) -> impl DoubleEndedIterator<Item = BlockId> + ExactSizeIterator {
        (blocks.start.index()..blocks.end.index().max(blocks.start.index())).map(BlockId::from_index)
    }

    /// The folio that begins at a page of the block.
    pub const fn page(self, page: usize) -> FolioId {
        assert!(page < Order::HUGE.nr_pages(), "a page of the block");
        FolioId((self.0 as u64) << MAX_ORDER | page as u64)
    }

    /// Bytes from the start of the span to this block.
    pub const fn offset_bytes(self) -> usize {
        self.index() * Order::HUGE.bytes()
    }
}

impl FrameId {
    /// Bytes from the start of the frames to this one.
    pub const fn offset_bytes(self) -> usize {
        self.index() * PAGE_SIZE
    }

    /// The first frame of the pageblock that contains this one.
    pub const fn pageblock(self) -> FrameId {
        FrameId(self.0 >> MAX_ORDER << MAX_ORDER)
    }

    /// The frame `frames` further on.
    pub const fn plus(self, frames: usize) -> FrameId {
        FrameId(self.0 + frames as u32)
    }
}

impl SlotId {
    /// Bytes from the start of the device to this slot.
    pub const fn offset_bytes(self) -> u64 {
        self.0 * PAGE_SIZE as u64
    }

    /// The slot `slots` further on.
    pub const fn plus(self, slots: usize) -> SlotId {
        SlotId(self.0 + slots as u64)
    }
}

impl UnitId {
    /// The unit `units` further on.
    pub const fn plus(self, units: usize) -> UnitId {
        UnitId(self.0 + units as u32)
    }

    /// The block that contains the unit, for blocks of this order.
    pub const fn block(self, block_order: Order) -> SpaceBlockId {
        SpaceBlockId(self.0 >> block_order.exponent())
    }
}

impl SpaceBlockId {
    /// The first unit of the block, for blocks of this order.
    pub const fn first_unit(self, block_order: Order) -> UnitId {
        UnitId(self.0 << block_order.exponent())
    }

    /// The block after it.
    pub const fn next(self) -> SpaceBlockId {
        SpaceBlockId(self.0 + 1)
    }

    /// The block before it; `None` for the first.
    pub fn previous(self) -> Option<SpaceBlockId> {
        self.0.checked_sub(1).map(SpaceBlockId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions() {
        assert_eq!(FrameId::new(3).offset_bytes(), 3 * 4096);
        assert_eq!(FrameId::new(1023).pageblock(), FrameId::new(512));
        assert_eq!(SlotId::new(u32::MAX.into()).plus(1).offset_bytes(), 16 << 40);
        assert_eq!(FolioId::from_index(1030).block(), BlockId::new(2));
        assert_eq!(FolioId::new(1030).page_in_block(), 6);
        assert_eq!(BlockId::new(2).page(6), FolioId::new(1030));
        assert_eq!(BlockId::new(2).offset_bytes(), 4 << 20);
        let last = BlockId::new(u32::MAX).page(511);
        assert_eq!(
            (last.block(), last.page_in_block(), last.offset_bytes()),
            (BlockId::new(u32::MAX), 511, (8 << 50) - 4096)
        );
        assert_eq!(FolioId::new(7).offset_bytes(), 7 * 4096);
        assert_eq!(UnitId::new(1030).block(Order::HUGE), SpaceBlockId::new(2));
        assert_eq!(SpaceBlockId::new(2).first_unit(Order::HUGE), UnitId::new(1024));
        assert_eq!(SpaceBlockId::new(0).next().previous(), Some(SpaceBlockId::new(0)));
        assert_eq!(SpaceBlockId::new(0).previous(), None);
    }

    #[test]
    fn each_walks_a_range() {
        let range = BlockId::new(2)..BlockId::new(5);
        assert_eq!(BlockId::each(range).map(BlockId::get).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(BlockId::each(BlockId::new(5)..BlockId::new(2)).len(), 0);
    }

    #[test]
    #[should_panic(expected = "fits its number")]
    fn an_index_beyond_32_bits_is_refused() {
        let _ = BlockId::from_index(1 << 32);
    }
}
