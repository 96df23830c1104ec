//! What `folioswap run` puts into a program by LD_PRELOAD: a C library's memory functions over managed memory.
//!
//! - [`start`]: the constructor; builds the engine from what the environment asks for, or lets everything pass.
//! - `malloc`, `program_heap`, `huge`, `heap`: the malloc family. Small blocks come from mimalloc over managed memory,
//!   large ones are mappings of their own; what must not be managed comes from [`heap`].
//! - `mapping`, `remap`, `protection`, `advice`: mmap and its kin. Large private anonymous mappings are managed, the rest
//!   passes.
//! - `signals`, `threads`, `signal_stack`: in direct mode faults are SIGBUS on the thread that has them: the signal is
//!   never blocked, the program's own action for it is kept beside ours, and every thread has a stack for it.
//! - `cover`, `copied`, `calls`: in direct mode the kernel does not find missing pages; system calls are covered.
//! - `net`: so are those that do not come from the C library.
//! - `descriptors`: those of the engine do not exist for the program.
//! - `fork`: what a child keeps. `ending`: what is noted of a process at its end.
//!
//! Rules: the engine's code and this library's run with the program's signals blocked ([`guard`]) and allocate from a
//! heap of their own; managed memory is never touched under a lock of either; no function here depends on a name that
//! must first be looked up to allocate or map memory.

// In the tests' own executable nothing is exported, and so nothing calls these functions.
#![cfg_attr(test, allow(dead_code))]

mod advice;
mod calls;
mod copied;
mod cover;
mod descriptors;
mod ending;
mod export;
mod fork;
mod guard;
mod heap;
mod huge;
mod malloc;
mod mapping;
mod net;
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
