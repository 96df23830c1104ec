//! A sparse table: chunks of entries are made on demand, under a directory that is also made in parts. The table of 128
//! TiB of addresses takes 48 KiB until some of them are used. The directory has a note for each chunk, which stands for
//! its entries as long as they do not exist: 16 KiB for 64 GiB of addresses.
//!
//! **Locking.** None: what was made never moves. If two threads make the same chunk, one does and the other waits.

use crate::sync::{Mark, OnceLock};
use std::ops::Range;

/// Chunks in a part of the directory.
const PART: usize = 512;

struct Chunk<T> {
    note: Mark,
    entries: OnceLock<Box<[T]>>,
}

type Part<T> = Box<[Chunk<T>]>;

/// Entries in chunks of `CHUNK`.
pub(crate) struct Sparse<T, const CHUNK: usize> {
    parts: Box<[OnceLock<Part<T>>]>,
    nr_chunks: usize,
}

impl<T, const CHUNK: usize> Sparse<T, CHUNK> {
    /// A table for up to `len` entries; none exists yet.
    pub(crate) fn new(len: usize) -> Self {
        let nr_chunks = len.div_ceil(CHUNK);
        Sparse { parts: (0..nr_chunks.div_ceil(PART)).map(|_| OnceLock::new()).collect(), nr_chunks }
    }

    /// Makes the chunks that hold these entries, where they do not exist yet.
    pub(crate) fn make(&self, range: Range<usize>, entry: impl Fn() -> T) {
        if range.is_empty() {
            return;
        }
        for chunk in range.start / CHUNK..range.end.div_ceil(CHUNK) {
            self.chunk(chunk).entries.get_or_init(|| (0..CHUNK).map(|_| entry()).collect());
        }
    }

    fn chunk(&self, chunk: usize) -> &Chunk<T> {
        let first = chunk / PART * PART;
        let unmade = |_| Chunk { note: Mark::new(0), entries: OnceLock::new() };
        let part =
            self.parts[chunk / PART].get_or_init(|| (first..self.nr_chunks.min(first + PART)).map(unmade).collect());
        &part[chunk - first]
    }

    /// The note of the chunk that holds an entry. Made if it does not exist.
    pub(crate) fn note(&self, index: usize) -> &Mark {
        &self.chunk(index / CHUNK).note
    }

    /// The note of the chunk that holds an entry, if it was made.
    pub(crate) fn note_of(&self, index: usize) -> Option<&Mark> {
        let chunk = index / CHUNK;
        Some(&self.parts.get(chunk / PART)?.get()?.get(chunk % PART)?.note)
    }

    /// An entry, if it was made.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let chunk = index / CHUNK;
        let entries = self.parts.get(chunk / PART)?.get()?.get(chunk % PART)?.entries.get()?;
        Some(&entries[index % CHUNK])
    }

    /// All entries that were made.
    pub(crate) fn made(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().filter_map(|part| part.get()).flatten().filter_map(|chunk| chunk.entries.get()).flatten()
    }

    /// Bytes of memory for the directory and for the entries that were made.
    pub(crate) fn bytes(&self) -> usize {
        let parts = self.parts.iter().filter_map(|part| part.get()).map(|part| size_of_val(&**part));
        size_of_val(&*self.parts) + parts.sum::<usize>() + self.made().count() * size_of::<T>()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn entries_are_made_by_the_chunk_and_stay() {
        let table = Sparse::<usize, 4>::new(4 * PART + 6);
        assert!(table.get(0).is_none() && table.made().count() == 0);
        table.make(3..5, || 7);
        table.make(4..4, || 8);
        table.make(4 * PART - 1..4 * PART + 6, || 9);
        table.make(0..1, || 10);
        let found = |indices: Range<usize>| indices.map(|index| table.get(index).copied()).collect::<Vec<_>>();
        assert_eq!(found(0..8), [Some(7); 8]);
        assert_eq!((table.get(8), table.get(4 * PART - 5)), (None, None));
        assert_eq!(found(4 * PART - 4..4 * PART + 8), [Some(9); 12]);
        assert_eq!((table.get(4 * PART + 8), table.made().count()), (None, 20));
    }

    #[test]
    fn what_is_not_used_costs_little() {
        let table = Sparse::<[u8; 80], 64>::new(1 << 25);
        assert!(table.bytes() <= 32 << 10, "{} bytes for 64 TiB of addresses", table.bytes());
        table.make((1 << 25) - 1..1 << 25, || [0; 80]);
        assert!(table.get((1 << 25) - 1).is_some() && table.bytes() <= 64 << 10);
    }
}
