//! zstd in memory of the caller's: no call here allocates, so it may compress and decompress where the C library's heap is out of
//! bounds, as in a fault on memory that this heap is made of.

use std::ptr::NonNull;

use zstd_sys as raw;

/// The level: the fastest of those that are not negative, which are little faster and store much more.
const LEVEL: i32 = 1;

/// What compressing or decompressing works with; one thread at a time.
pub struct Context {
    compressor: NonNull<raw::ZSTD_CCtx>,
    decompressor: NonNull<raw::ZSTD_DCtx>,
    /// What both lie in; never touched here. `u64`: they ask for its alignment.
    _memory: (Box<[u64]>, Box<[u64]>),
}

// SAFETY: the contexts are reached through the methods alone, which take `&mut self`; they lie in memory that moves with this and
// keep nothing of a thread.
unsafe impl Send for Context {}

impl Context {
    /// Allocates about 1 MiB.
    ///
    /// # Panics
    /// When the library finds the memory too small that it asked for.
    #[must_use]
    pub fn new() -> Context {
        // SAFETY: both only compute.
        let (compressor_bytes, decompressor_bytes) =
            unsafe { (raw::ZSTD_estimateCCtxSize(LEVEL), raw::ZSTD_estimateDCtxSize()) };
        let memory = |bytes: usize| vec![0u64; bytes.div_ceil(size_of::<u64>())].into_boxed_slice();
        let (mut first, mut second) = (memory(compressor_bytes), memory(decompressor_bytes));
        // SAFETY: memory of the length that is told, aligned to 8 bytes, that lives as long as the contexts and is used by nobody
        // else: the boxes are moved into the same value, which does not move what they point to.
        let (compressor, decompressor) = unsafe {
            (
                raw::ZSTD_initStaticCCtx(first.as_mut_ptr().cast(), compressor_bytes),
                raw::ZSTD_initStaticDCtx(second.as_mut_ptr().cast(), decompressor_bytes),
            )
        };
        Context {
            compressor: NonNull::new(compressor).expect("as large as it asked for"),
            decompressor: NonNull::new(decompressor).expect("as large as it asked for"),
            _memory: (first, second),
        }
    }

    /// Compresses `from` to the beginning of `to`: how long it is there; `None` when it does not fit.
    pub fn compress(&mut self, from: &[u8], to: &mut [u8]) -> Option<usize> {
        // SAFETY: a live context that nobody else uses (`&mut`), and two slices of the lengths that are told.
        let done = unsafe {
            raw::ZSTD_compressCCtx(
                self.compressor.as_ptr(),
                to.as_mut_ptr().cast(),
                to.len(),
                from.as_ptr().cast(),
                from.len(),
                LEVEL,
            )
        };
        checked(done)
    }

    /// Decompresses `from` to the beginning of `to`: how long it is there; `None` when `from` is nothing that was compressed, or does not
    /// fit.
    pub fn decompress(&mut self, from: &[u8], to: &mut [u8]) -> Option<usize> {
        // SAFETY: as in `compress`.
        let done = unsafe {
            raw::ZSTD_decompressDCtx(
                self.decompressor.as_ptr(),
                to.as_mut_ptr().cast(),
                to.len(),
                from.as_ptr().cast(),
                from.len(),
            )
        };
        checked(done)
    }
}

impl Default for Context {
    fn default() -> Self {
        Context::new()
    }
}

/// A length, or one of the library's errors.
fn checked(done: usize) -> Option<usize> {
    // SAFETY: only computes.
    (unsafe { raw::ZSTD_isError(done) } == 0).then_some(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compressed_comes_back() {
        let mut context = Context::new();
        for len in [1, 4096, 64 << 10] {
            let from: Vec<u8> = (0..len).map(|at: usize| (at / 7 % 13) as u8).collect();
            let (mut packed, mut back) = (vec![0; len + 64], vec![0; len]);
            let packed_len = context.compress(&from, &mut packed).unwrap();
            assert!(len < 100 || packed_len < len / 4);
            assert_eq!(context.decompress(&packed[..packed_len], &mut back), Some(len));
            assert!(back == from);
            assert_eq!(context.decompress(&packed[..packed_len - 1], &mut back), None);
            assert_eq!(context.compress(&from, &mut packed[..packed_len - 1]), None);
        }
        assert_eq!(context.decompress(b"anything else", &mut [0; 64]), None);
    }
}
