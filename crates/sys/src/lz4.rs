//! Partial decompression of lz4: the first bytes of a block.

use std::ffi::{c_char, c_int};

use lz4_sys as _; // the library

unsafe extern "C" {
    fn LZ4_decompress_safe_partial(
        from: *const c_char,
        to: *mut c_char,
        from_len: c_int,
        wanted_len: c_int,
        to_len: c_int,
    ) -> c_int;
}

/// Decompresses the start of a block, all of which is `from`, until `to` is full. Returns the length; `None` if `from`
/// is not compressed data. Costs as much less than all of the block as `to` is shorter. Allocates nothing.
#[must_use]
pub fn decompress_start(from: &[u8], to: &mut [u8]) -> Option<usize> {
    let (from_len, to_len) = (c_int::try_from(from.len()).ok()?, c_int::try_from(to.len()).ok()?);
    // SAFETY: two slices of these lengths. The library reads and writes nothing else, whatever is in the first.
    let done =
        unsafe { LZ4_decompress_safe_partial(from.as_ptr().cast(), to.as_mut_ptr().cast(), from_len, to_len, to_len) };
    usize::try_from(done).ok()
}
