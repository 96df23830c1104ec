//! The 128-bit content hash of a folio: what a slot must hold, and what tells a clean folio from a dirty one.
//!
//! A folio is hashed in pieces of 64 KiB and its hash is that of the pieces' hashes, so that a piece copied to or
//! from memory is hashed while it is in the cache ([`copy_and_hash`]).

use twox_hash::XxHash3_128;

/// Bytes hashed at once: fits the second-level cache of any machine of this century, twice.
const PIECE_BYTES: usize = 64 << 10;

/// Largest number of pieces in a folio.
const MAX_PIECES: usize = folioswap_core::Order::HUGE.bytes() / PIECE_BYTES;

/// What the bytes of a folio add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checksum(pub u128);

struct Pieces {
    hashes: [u128; MAX_PIECES],
    count: usize,
}

impl Pieces {
    const fn new() -> Self {
        Pieces { hashes: [0; MAX_PIECES], count: 0 }
    }

    fn push(&mut self, piece: &[u8]) {
        self.hashes[self.count] = XxHash3_128::oneshot(piece);
        self.count += 1;
    }

    fn finish(&self) -> Checksum {
        match &self.hashes[..self.count] {
            [one] => Checksum(*one),
            many => Checksum(XxHash3_128::oneshot(bytemuck::cast_slice(many))),
        }
    }
}

/// Hashes the bytes of one folio.
pub(crate) fn hash(folio: &[u8]) -> Checksum {
    let mut pieces = Pieces::new();
    folio.chunks(PIECE_BYTES).for_each(|piece| pieces.push(piece));
    pieces.finish()
}

/// Copies one folio and hashes it on the way: one trip through memory instead of two.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn copy_and_hash(from: &[u8], to: &mut [u8]) -> Checksum {
    assert_eq!(from.len(), to.len());
    let mut pieces = Pieces::new();
    for (from, to) in from.chunks(PIECE_BYTES).zip(to.chunks_mut(PIECE_BYTES)) {
        pieces.push(from);
        to.copy_from_slice(from);
    }
    pieces.finish()
}

/// The same past the caches, for a target that nobody reads soon.
pub(crate) fn store_and_hash(from: &[u8], to: &mut [u8]) -> Checksum {
    assert_eq!(from.len(), to.len());
    let mut pieces = Pieces::new();
    for (from, to) in from.chunks(PIECE_BYTES).zip(to.chunks_mut(PIECE_BYTES)) {
        pieces.push(from);
        folioswap_sys::memory::copy_streaming(from, to);
    }
    pieces.finish()
}

/// Whether every byte is zero; stops at the first that is not.
pub(crate) fn is_zero(folio: &[u8]) -> bool {
    folio.chunks(256).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 % 251) as u8).collect()
    }

    #[test]
    fn a_copy_has_the_hash_of_its_source() {
        for len in [4096, PIECE_BYTES, 4 * PIECE_BYTES, MAX_PIECES * PIECE_BYTES] {
            let from = sample(len);
            let mut to = vec![0; len];
            assert_eq!(copy_and_hash(&from, &mut to), hash(&from));
            assert_eq!(from, to);
            to.fill(0);
            assert_eq!(store_and_hash(&from, &mut to), hash(&from));
            assert_eq!(from, to);
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_is_seen() {
        let whole = sample(MAX_PIECES * PIECE_BYTES);
        let right = hash(&whole);
        for at in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, whole.len() - 1] {
            let mut wrong = whole.clone();
            wrong[at] ^= 0x10;
            assert_ne!(hash(&wrong), right, "byte {at}");
        }
    }

    #[test]
    fn swapped_pieces_are_seen() {
        let mut whole = sample(4 * PIECE_BYTES);
        whole[..8].fill(7);
        let right = hash(&whole);
        let (first, rest) = whole.split_at_mut(PIECE_BYTES);
        first.swap_with_slice(&mut rest[..PIECE_BYTES]);
        assert_ne!(hash(&whole), right);
    }

    #[test]
    fn zero_is_zero_and_nothing_else_is() {
        let mut bytes = vec![0; 4096];
        assert!(is_zero(&bytes));
        for at in [0, 255, 256, 4095] {
            bytes[at] = 1;
            assert!(!is_zero(&bytes));
            bytes[at] = 0;
        }
    }
}
