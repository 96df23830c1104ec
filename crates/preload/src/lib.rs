//! The library that `folioswap run` loads into a program through LD_PRELOAD. It replaces functions of the C library.
//! From the ground up; each folder knows those before it only:
//! - `ground`: the phase, the C library's functions, the ways to the kernel, the guard. `ground::heap` serves what must
//!   not be managed.
//! - `memory`: what is known of the program's memory, and the covers, which make it ready for the kernel.
//! - `faults`: the program's signals and threads. In direct mode a fault is a SIGBUS on the faulting thread.
//! - `map`: mappings. Large private anonymous ones are managed.
//! - `alloc`: the malloc family.
//! - `calls`: in direct mode the kernel faults no page in, so system calls are covered. `calls::fork`: what a child
//!   keeps. `calls::descriptors` hides the engine's file descriptors.
//! - `ending`: memory figures at exit. `start`: the constructor, which builds the engine.
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
