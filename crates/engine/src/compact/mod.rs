//! Compaction: of frames, by migration or exchange, and of slots.

pub mod compactd;
pub mod direct;
pub mod exchange;
pub mod rehome;
pub mod slots;
