//! The C library functions that pass the program's memory to the kernel. Each is covered as
//! [`crate::memory::cover`] describes. Those that work on mappings and threads lie with these.
//!
//! A test compares these names with all names that the C library exports. Functions that are not covered in direct mode
//! are on that test's list, with the reason. Monitor mode has no such gaps.

pub mod aio;
mod assembly;
mod bpf;
pub mod by_name;
pub mod by_number;
pub mod clones;
mod contexts;
pub mod copied;
mod descriptors;
pub mod dispatch;
pub mod filters;
pub mod fork;
mod io;
mod ioctl;
mod jumps;
pub mod limits;
mod lookups;
mod messages;
pub mod mirrored;
pub mod mmap;
mod notified;
mod numbers;
mod on_stack;
mod other_library;
pub mod pagemap;
mod paths;
mod printf;
mod process;
mod references;
mod remote;
mod resolver;
mod results;
mod rights;
mod ring_calls;
mod ring_requests;
mod rings;
mod sleeping;
mod stdio;
mod table;
mod trampolines;
mod vectors;
mod waiting;
