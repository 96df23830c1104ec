//! Compression and decompression of one unit, and the buffers that this needs.

use folioswap_sys::{lz4 as lz4_block, zstd};
use lz4::block::CompressionMode;

use super::entry::UNIT;
use crate::device::Codec;
use crate::process::lent::Lent;

/// How quickly lz4 skips data without matches. Pieces compress better than single pages, and part of that gain is spent
/// on speed: shared libraries in units of 32 KiB compress to 0.64 of their size instead of 0.62, at 1.15 times the
/// speed (in pages of 4 KiB: 0.69).
const ACCELERATION: i32 = 2;

/// Content that stays larger than 7/8 of its length is not worth compressing.
const WORTH_NUMERATOR: usize = 7;
const WORTH_DENOMINATOR: usize = 8;

/// Whether compression from `len` to `packed_len` bytes is worthwhile.
pub(super) fn is_worth(len: usize, packed_len: usize) -> bool {
    packed_len * WORTH_DENOMINATOR <= len * WORTH_NUMERATOR
}

/// Buffers of one thread at work.
pub(super) struct Workspace {
    codec: Codec,
    zstd: Option<zstd::Context>,
    /// A compressed unit.
    packed: Box<[u8]>,
    /// A decompressed unit of which only a part is wanted.
    plain: Box<[u8]>,
}

impl Workspace {
    fn new(codec: Codec) -> Workspace {
        let unit = || vec![0; UNIT.bytes()].into_boxed_slice();
        Workspace { codec, zstd: (codec == Codec::Zstd).then(zstd::Context::new), packed: unit(), plain: unit() }
    }

    /// The compressed unit, if compression is worthwhile.
    pub fn compress(&mut self, plain: &[u8]) -> Option<&[u8]> {
        let most = plain.len() * WORTH_NUMERATOR / WORTH_DENOMINATOR;
        let packed = &mut self.packed[..most];
        let len = match &mut self.zstd {
            Some(zstd) => zstd.compress(plain, packed),
            // An error means that it does not fit.
            None => {
                lz4::block::compress_to_buffer(plain, Some(CompressionMode::FAST(ACCELERATION)), false, packed).ok()
            }
        }?;
        is_worth(plain.len(), len).then(|| &self.packed[..len])
    }

    /// Decompresses into `plain`. `false`: `packed` is not compressed content of that length.
    pub fn decompress(&mut self, packed: &[u8], plain: &mut [u8]) -> bool {
        decompress(self.codec, self.zstd.as_mut(), packed, plain)
    }

    /// Decompresses the start of a unit of `unit_len` bytes into an internal buffer. zstd decompresses all of it.
    pub fn decompress_start(&mut self, packed: &[u8], unit_len: usize, len: usize) -> Option<&[u8]> {
        let plain = &mut self.plain[..unit_len];
        let is_right = match self.codec {
            Codec::Lz4 => lz4_block::decompress_start(packed, &mut plain[..len]) == Some(len),
            Codec::Zstd => decompress(self.codec, self.zstd.as_mut(), packed, plain),
        };
        is_right.then_some(&plain[..len])
    }
}

fn decompress(codec: Codec, zstd: Option<&mut zstd::Context>, packed: &[u8], plain: &mut [u8]) -> bool {
    let len = match (codec, zstd) {
        (Codec::Zstd, Some(zstd)) => zstd.decompress(packed, plain),
        _ => lz4::block::decompress_to_buffer(packed, Some(plain.len() as i32), plain).ok(),
    };
    len == Some(plain.len())
}

/// One workspace per thread that compresses or decompresses at the same time. They are lent during faults, so all are
/// allocated in advance.
pub(super) struct Workspaces(Lent<Workspace>);

impl Workspaces {
    pub fn new(codec: Codec, nr_workspaces: usize) -> Workspaces {
        Workspaces(Lent::new((0..nr_workspaces).map(|_| Workspace::new(codec))))
    }

    /// Runs `work` with a workspace. Waits while all are in use, for as long as it takes to compress a unit or a folio.
    pub fn work<T>(&self, work: impl FnOnce(&mut Workspace) -> T) -> T {
        self.0.with(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_back_and_what_is_not_worth_it_is_not_compressed() {
        for codec in [Codec::Lz4, Codec::Zstd] {
            let workspaces = Workspaces::new(codec, 1);
            for len in [4096, 16 << 10, UNIT.bytes()] {
                let plain: Vec<u8> = (0..len).map(|at: usize| (at / 5 % 50) as u8).collect();
                let packed = workspaces.work(|workspace| workspace.compress(&plain).unwrap().to_vec());
                assert!(is_worth(len, packed.len()));
                let mut back = vec![0; len];
                assert!(workspaces.work(|workspace| workspace.decompress(&packed, &mut back)) && back == plain);
                for part in [1, 4095, len / 2 + 1, len] {
                    workspaces.work(|workspace| {
                        assert_eq!(workspace.decompress_start(&packed, len, part), Some(&plain[..part]));
                    });
                }
                assert!(!workspaces.work(|workspace| workspace.decompress(&packed[..packed.len() - 1], &mut back)));
                let mut state = 1u64;
                let noise: Vec<u8> = std::iter::repeat_with(|| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .take(len)
                .collect();
                assert!(workspaces.work(|workspace| workspace.compress(&noise).is_none()));
            }
        }
    }
}
