//! The way out: the reclaim thread, eviction, and writing folios to their devices.

pub mod evict;
pub mod in_parts;
pub mod kept;
pub mod reclaimd;
pub mod write_out;
