//! zstd in caller-supplied memory. No call except [`Context::new`] allocates, so data can be compressed and
//! decompressed where the C library's heap must not be used, as in a fault on memory of that heap.

use std::ptr::NonNull;

use zstd_sys as raw;

/// The fastest non-negative level. Negative levels are little faster, and compress much worse.
const LEVEL: i32 = 1;

/// State for compressing and decompressing, used by one thread at a time.
pub struct Context {
    compressor: NonNull<raw::ZSTD_CCtx>,
    decompressor: NonNull<raw::ZSTD_DCtx>,
    /// The memory of both contexts, never accessed here. `u64` for its alignment, which they require.
    _memory: (Box<[u64]>, Box<[u64]>),
}

// SAFETY: only the methods reach the contexts, and they take `&mut self`. The contexts' memory moves with this value,
// and they hold no thread state.
unsafe impl Send for Context {}

impl Context {
    /// Allocates about 1 MiB.
    ///
    /// # Panics
    /// If the library rejects memory of the size that it asked for.
    #[allow(clippy::new_without_default)] // it allocates much
    pub fn new() -> Context {
        // SAFETY: both only compute a size.
        let (compressor_bytes, decompressor_bytes) =
            unsafe { (raw::ZSTD_estimateCCtxSize(LEVEL), raw::ZSTD_estimateDCtxSize()) };
        let memory = |bytes: usize| vec![0u64; bytes.div_ceil(size_of::<u64>())].into_boxed_slice();
        let (mut first, mut second) = (memory(compressor_bytes), memory(decompressor_bytes));
        // SAFETY: memory of the given length, aligned to 8 bytes, that lives as long as the contexts and that nobody
        // else uses: the boxes move into the same value, which does not move their content.
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

    /// Compresses `from` into the start of `to`, and returns the compressed length; `None` if it does not fit.
    pub fn compress(&mut self, from: &[u8], to: &mut [u8]) -> Option<usize> {
        // SAFETY: a live context that nobody else uses (`&mut`), and two slices of the given lengths.
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

    /// Decompresses `from` into the start of `to`, and returns the length; `None` if `from` is not compressed data, or
    /// the result does not fit.
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

/// Converts the library's errors to `None`.
fn checked(done: usize) -> Option<usize> {
    // SAFETY: only inspects a number.
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
