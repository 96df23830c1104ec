//! Identifiers. Each unit is its own type, so that a frame is never taken for a slot and a count never for a place.
//!
//! Folios, frames and slots are counted in pages of 4 KiB whatever their order: a folio of order k is named by its first
//! page, lies in 2^k frames of which it names the first, and in 2^k slots likewise. The conversions below are the only
//! places where pages become bytes and blocks become pages.

use crate::order::{MAX_ORDER, Order, PAGE_SIZE};
use std::ops::Range;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident: $number:ident) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
        pub struct $name($number);

        impl $name {
            /// The one with this number.
            pub const fn new(number: $number) -> Self {
                Self(number)
            }

            /// The one at this index. Panics if there is no number for it.
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
    /// A folio: the number of its first page in its arena's span of addresses. 40 bits are used at most.
    FolioId: u64
}
id! {
    /// 2 MiB of an arena's span of addresses, aligned: one folio of order 9, or as many smaller ones as fit.
    BlockId: u32
}
id! {
    /// A frame: its number in the zone. The first of its frames stands for a folio's place in RAM.
    FrameId: u32
}
id! {
    /// A slot: its number on its device, of 32 bits, or in the swap space, of 40. The first of its slots stands for a folio's
    /// copy.
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
    /// A block of such a space: a pageblock of a zone, or a cluster of a device. How many units it has, the space says.
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

    /// The block that the folio lies in.
    pub const fn block(self) -> BlockId {
        BlockId((self.0 >> MAX_ORDER) as u32)
    }

    /// The page of its block at which the folio begins.
    pub const fn page_in_block(self) -> usize {
        self.index() % Order::HUGE.nr_pages()
    }
}

impl BlockId {
    /// Each block of a range in turn.
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

    /// The first frame of the pageblock that this one lies in.
    pub const fn pageblock(self) -> FrameId {
        FrameId(self.0 >> MAX_ORDER << MAX_ORDER)
    }

    /// The frame so many further on.
    pub const fn plus(self, frames: usize) -> FrameId {
        FrameId(self.0 + frames as u32)
    }
}

impl SlotId {
    /// Bytes from the start of the device to this slot.
    pub const fn offset_bytes(self) -> u64 {
        self.0 * PAGE_SIZE as u64
    }

    /// The slot so many further on.
    pub const fn plus(self, slots: usize) -> SlotId {
        SlotId(self.0 + slots as u64)
    }
}

impl UnitId {
    /// The unit so many further on.
    pub const fn plus(self, units: usize) -> UnitId {
        UnitId(self.0 + units as u32)
    }

    /// The block that the unit lies in, where blocks have this order.
    pub const fn block(self, block_order: Order) -> SpaceBlockId {
        SpaceBlockId(self.0 >> block_order.exponent())
    }
}

impl SpaceBlockId {
    /// The first unit of the block, where blocks have this order.
    pub const fn first_unit(self, block_order: Order) -> UnitId {
        UnitId(self.0 << block_order.exponent())
    }

    /// The block after it.
    pub const fn next(self) -> SpaceBlockId {
        SpaceBlockId(self.0 + 1)
    }

    /// The block before it; nothing before the first.
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
