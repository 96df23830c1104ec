//! Pages and blocks of the program's addresses.

use std::ffi::c_int;
use std::ops::Range;

use folioswap::PAGE_SIZE;

/// The protection of memory that is readable and writable.
pub const PLAIN: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Whether a program can have these pages. The kernel refuses all other ranges.
pub fn are_possible(range: &Range<usize>) -> bool {
    range.start.is_multiple_of(PAGE_SIZE) && range.end <= 1 << 47
}

/// A length in whole pages.
pub fn pages(len: usize) -> usize {
    len.saturating_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1)
}
