//! What all else in this library stands on: its phase, the functions of the C library and the ways to the kernel, the
//! guard, and its own heaps. It knows neither the program's memory nor its calls.

pub mod c_library;
pub mod counters;
pub mod depth;
pub mod export;
pub mod guard;
pub mod heap;
pub mod kernel_blocks;
pub mod libc_call;
pub mod lock;
pub mod real;
pub mod selector;
pub mod state;
pub mod symbols;
pub mod waiting;
