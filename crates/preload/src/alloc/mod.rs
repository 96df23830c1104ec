//! The malloc family, and the heaps behind it.

pub mod huge;
pub mod mallinfo;
pub mod malloc;
pub mod program_heap;
pub mod texts;
