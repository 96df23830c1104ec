//! The program's address space: mappings, their protection, mremap and advice. The kernel keeps it; the engine is told
//! what it manages.

pub mod adopt;
pub mod advice;
pub mod footprint;
pub mod hand_over;
pub mod listed;
pub mod managed;
pub mod mapping;
pub mod present;
pub mod program_break;
pub mod protection;
pub mod remap;
pub mod ring_places;
pub mod segments;
