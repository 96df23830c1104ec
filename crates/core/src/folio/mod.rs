//! The folio table: maps an address to the place of its content, with one lock per 2 MiB.
//!
//! Addresses are divided into *blocks* of 2 MiB. A block is one folio of order 9 or is split into folios of
//! one smaller order; the order changes under the block's lock. A folio's entry holds its place ([`State`]), the slots
//! of its last written content and notes of the policies. A block holds the hashes of its content, per 64 KiB, or per
//! page for smaller folios.
//!
//! **Locking.** One mutex per block, held through the I/O of its folios; nothing of a block is readable without it. A
//! thread that holds one block takes another only by `try_lock`.
//!
//! **Memory.** 96 bytes per block once its chunk exists ([`FolioTable::ensure`]), 12 per folio when split, 768 once a
//! hash is noted, 256 per piece with page hashes, and 64 each for the dropped and the sealed pages.

mod entry;
mod hashes;
mod locked;
mod record;
mod table;

pub use entry::Entry;
pub use hashes::HashKey;
pub use locked::Locked;
pub use record::{Ahead, Folio, State};
pub use table::FolioTable;
