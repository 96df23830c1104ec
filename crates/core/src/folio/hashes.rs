//! Hashes of a block's content: of each piece (64 KiB), or of each page of a piece whose folios are smaller.

use crate::order::{BLOCK_PIECES, PIECE};
use std::ops::Range;

/// The key of an arena's content hashes. Without it, nobody can construct two contents with the same hash.
pub type HashKey = [u8; 192];

/// The hash of a piece when it was last written, if known.
#[derive(Clone, Default)]
enum PieceHash {
    #[default]
    Unknown,
    Whole([u64; 2]),
    Pages(Box<[[u64; 2]; PIECE.nr_pages()]>),
}

const _: () = assert!(size_of::<PieceHash>() == 24, "a piece's hash takes 24 bytes");

/// No hash. Content that really hashes to zero counts as unhashed.
const UNKNOWN: [u64; 2] = [0; 2];

fn pack(hash: u128) -> [u64; 2] {
    [hash as u64, (hash >> 64) as u64]
}

fn unpack(hash: [u64; 2]) -> Option<u128> {
    (hash != UNKNOWN).then_some(u128::from(hash[0]) | u128::from(hash[1]) << 64)
}

/// The hashes of one block. No memory is allocated before one is noted.
#[derive(Default)]
pub(super) struct Hashes(Option<Box<[PieceHash; BLOCK_PIECES]>>);

impl Hashes {
    /// Bytes once a hash is noted for every piece of a block, or every page of it.
    pub const fn most_bytes(per_page: bool) -> usize {
        let pages = if per_page { BLOCK_PIECES * size_of::<[[u64; 2]; PIECE.nr_pages()]>() } else { 0 };
        size_of::<[PieceHash; BLOCK_PIECES]>() + pages
    }

    pub fn of_page(&self, page: usize) -> Option<u128> {
        match self.piece(page / PIECE.nr_pages()) {
            PieceHash::Pages(pages) => unpack(pages[page % PIECE.nr_pages()]),
            _ => None,
        }
    }

    pub fn set_of_page(&mut self, page: usize, hash: u128) {
        let piece = self.piece_mut(page / PIECE.nr_pages());
        if !matches!(piece, PieceHash::Pages(_)) {
            *piece = PieceHash::Pages(Box::new([UNKNOWN; PIECE.nr_pages()]));
        }
        if let PieceHash::Pages(pages) = piece {
            pages[page % PIECE.nr_pages()] = pack(hash);
        }
    }

    pub fn of_piece(&self, piece: usize) -> Option<u128> {
        match self.piece(piece) {
            PieceHash::Whole(hash) => unpack(*hash),
            _ => None,
        }
    }

    pub fn set_of_piece(&mut self, piece: usize, hash: u128) {
        *self.piece_mut(piece) = PieceHash::Whole(pack(hash));
    }

    /// Forgets those of all pieces that these pages touch.
    pub fn forget(&mut self, pages: Range<usize>) {
        if self.0.is_some() {
            let pieces = pages.start / PIECE.nr_pages()..pages.end.div_ceil(PIECE.nr_pages());
            pieces.for_each(|piece| *self.piece_mut(piece) = PieceHash::Unknown);
        }
    }

    /// Bytes of memory that they take.
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |hashes| {
            let pages = hashes.iter().filter(|piece| matches!(piece, PieceHash::Pages(_))).count();
            size_of_val(&**hashes) + pages * size_of::<[[u64; 2]; PIECE.nr_pages()]>()
        })
    }

    fn piece(&self, piece: usize) -> &PieceHash {
        self.0.as_ref().map_or(&PieceHash::Unknown, |hashes| &hashes[piece])
    }

    fn piece_mut(&mut self, piece: usize) -> &mut PieceHash {
        &mut self.0.get_or_insert_default()[piece]
    }
}
