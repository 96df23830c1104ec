//! Pages and blocks of the program's addresses.

use std::ffi::c_int;
use std::ops::Range;

use folioswap::Order;

/// The size of the largest folio.
pub const BLOCK_BYTES: usize = Order::HUGE.bytes();
pub const PAGE_BYTES: usize = Order::PAGE.bytes();

/// The protection of memory that is readable and writable.
pub const PLAIN: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Whether a program can have these pages. The kernel refuses all other ranges.
pub fn are_possible(range: &Range<usize>) -> bool {
    range.start.is_multiple_of(PAGE_BYTES) && range.end <= 1 << 47
}

/// A length in whole pages.
pub fn pages(len: usize) -> usize {
    len.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1)
}
