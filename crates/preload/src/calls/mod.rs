//! The C library's functions that hand the program's memory to the kernel: each covered as [`cover`](crate::cover)
//! says.
//!
//! Which names these are is not a matter of memory: a test compares them with all that the C library exports. What is
//! not covered in direct mode is on that test's list, with the reason. Monitor mode has no such gaps.

mod aio;
mod assembly;
pub mod by_number;
mod io;
mod messages;
mod numbers;
mod paths;
mod printf;
mod process;
mod results;
mod sleeping;
mod small;
mod stdio;
mod vectors;
