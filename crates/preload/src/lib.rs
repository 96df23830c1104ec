//! The library that `folioswap run` loads into a program through LD_PRELOAD. It replaces functions of the C library.
//! - `start`: the constructor, which builds the engine. `fork`: what a child keeps. `ending`: memory figures at exit.
//! - `alloc`: the malloc family. `ground::heap` serves what must not be managed.
//! - `map`: mmap and its kin. Large private anonymous mappings are managed.
//! - `faults`: in direct mode a fault is a SIGBUS on the faulting thread.
//! - `calls`: in direct mode the kernel faults no page in, so system calls are covered.
//! - `descriptors`: hides the engine's file descriptors from the program.
//!
//! Rules: the engine and this library run with the program's signals blocked (`guard`), allocate from a private heap,
//! and never touch managed memory under a lock. Allocating and mapping need no symbol lookup.

// The test executable exports nothing, so nothing calls these functions there.
#![cfg_attr(test, allow(dead_code))]

mod alloc;
mod calls;
mod ending;
mod faults;
mod ground;
mod map;
mod memory;
mod sanitizer;
mod start;

#[global_allocator]
static GLOBAL: ground::heap::Global = ground::heap::Global;
