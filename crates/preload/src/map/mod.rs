//! mmap and its kin: large private anonymous mappings are managed memory.

pub mod advice;
pub mod mapping;
pub mod protection;
pub mod remap;
