//! Orders: the sizes of folios, blocks of frames and runs of slots. Order k is 2^k pages of 4 KiB.

use std::fmt;

/// Bytes of a page, of a frame and of a slot.
pub const PAGE_SIZE: usize = 4096;

/// The largest order: 2 MiB, the size that one PMD entry maps.
pub const MAX_ORDER: u8 = 9;

/// How many orders there are.
pub const NR_ORDERS: usize = MAX_ORDER as usize + 1;

/// Pages of a block: those of a folio of the largest order.
pub const BLOCK_PAGES: usize = Order::HUGE.nr_pages();

/// Bytes of a block.
pub const BLOCK_BYTES: usize = Order::HUGE.bytes();

/// The order of a piece, the unit of hashing for folios that are not smaller: 64 KiB.
pub const PIECE: Order = Order::new(4).expect("64 KiB is an order");

/// Pieces of a block.
pub const BLOCK_PIECES: usize = BLOCK_PAGES >> PIECE.exponent();

/// A size of 2^k pages, k from 0 to [`MAX_ORDER`].
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct Order(u8);

impl Order {
    /// One page, 4 KiB.
    pub const PAGE: Order = Order(0);
    /// One huge page, 2 MiB.
    pub const HUGE: Order = Order(MAX_ORDER);

    /// Order `k`, or `None` if `k` is above [`MAX_ORDER`].
    pub const fn new(k: u8) -> Option<Order> {
        if k <= MAX_ORDER { Some(Order(k)) } else { None }
    }

    /// The k of 2^k pages.
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// Pages in a folio of this order.
    pub const fn nr_pages(self) -> usize {
        1 << self.0
    }

    /// Bytes in a folio of this order.
    pub const fn bytes(self) -> usize {
        PAGE_SIZE << self.0
    }

    /// The order whose folios have exactly this many bytes.
    pub const fn from_bytes(len_bytes: usize) -> Option<Order> {
        if !len_bytes.is_power_of_two() || len_bytes < PAGE_SIZE {
            return None;
        }
        let k = (len_bytes / PAGE_SIZE).trailing_zeros();
        if k <= MAX_ORDER as u32 { Some(Order(k as u8)) } else { None }
    }
}

/// The size as people write it: `4K`, `64K`, `2M`.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = self.bytes() / 1024;
        if kib < 1024 { write!(f, "{kib}K") } else { write!(f, "{}M", kib / 1024) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_names() {
        assert_eq!(Order::PAGE.bytes(), 4096);
        assert_eq!(Order::HUGE.bytes(), 2 << 20);
        assert_eq!(Order::HUGE.nr_pages(), 512);
        let names: Vec<_> = (0..=MAX_ORDER).map(|k| Order::new(k).unwrap().to_string()).collect();
        assert_eq!(names, ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "2M"]);
        assert_eq!(Order::new(10), None);
    }

    #[test]
    fn from_bytes_is_the_inverse_of_bytes() {
        for k in 0..=MAX_ORDER {
            let order = Order::new(k).unwrap();
            assert_eq!(order.exponent(), k);
            assert_eq!(Order::from_bytes(order.bytes()), Some(order));
            assert_eq!(Order::from_bytes(order.bytes() + 1), None);
            assert_eq!(Order::from_bytes(order.bytes() - 1), None);
        }
        assert_eq!(Order::from_bytes(0), None);
        assert_eq!(Order::from_bytes(2048), None);
        assert_eq!(Order::from_bytes(4 << 20), None);
    }
}
