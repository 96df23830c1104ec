//! The library that `folioswap run` loads into a program through LD_PRELOAD. It replaces functions of the C library.
//! - `start`: the constructor, which builds the engine. `fork`: what a child keeps. `ending`: memory figures at exit.
//! - `malloc`, `program_heap`, `huge`, `heap`: the malloc family. `heap` serves what must not be managed.
//! - `mapping`, `remap`, `protection`, `advice`: mmap and its kin. Large private anonymous mappings are managed.
//! - `signals`, `threads`, `signal_stack`: in direct mode a fault is a SIGBUS on the faulting thread.
//! - `cover`, `copied`, `calls`, `dispatch`: in direct mode the kernel faults no page in, so system calls are covered.
//! - `descriptors`: hides the engine's file descriptors from the program.
//!
//! Rules: the engine and this library run with the program's signals blocked (`guard`), allocate from a private heap,
//! and never touch managed memory under a lock. Allocating and mapping need no symbol lookup.

// The test executable exports nothing, so nothing calls these functions there.
#![cfg_attr(test, allow(dead_code))]

mod advice;
mod calls;
mod copied;
mod cover;
mod descriptors;
mod dispatch;
mod ending;
mod export;
mod fork;
mod guard;
mod heap;
mod huge;
mod malloc;
mod mapping;
mod program_heap;
mod protection;
mod real;
mod remap;
mod settings;
mod signal_stack;
mod signals;
mod start;
mod state;
mod threads;

#[global_allocator]
static GLOBAL: heap::Global = heap::Global;
