//! Typed Linux interfaces for the engine, and the home of its unsafe code.
//!
//! Kernel error numbers become named errors here. Memory is passed as plain addresses: an address in managed memory is
//! not a Rust object, and many calls are about memory that is *not* present. Calls that could invalidate others' memory
//! are `unsafe fn`; see [`memory`].
//!
//! Calls that a preloaded library interposes (mmap and its kin, reads, writes) are raw system calls, so the engine's
//! own calls never come back to it. The same holds on the fault path: the C library's open, read, write, close and
//! sleep are cancellation points, at which a cancelled thread would end with locks held.

pub mod c_thread;
pub mod call_times;
pub mod child;
pub mod clock;
pub mod control_group;
pub mod cpu;
pub mod descendants;
pub mod descriptor;
pub mod direct_io;
pub mod disk;
pub mod fault_stack;
pub mod file_limit;
pub mod fork;
pub mod futex;
pub mod held_signals;
pub mod hidden_numbers;
pub mod kept;
pub mod maps;
pub mod memory;
pub mod numa;
pub mod offered;
pub mod own_calls;
pub mod own_table;
pub mod pagemap;
pub mod pages;
pub mod random;
pub mod readers;
pub mod resident;
pub mod seat;
pub mod seccomp;
pub mod shared;
pub mod sigbus;
pub mod signals;
pub mod static_tls;
pub mod tls_vector;
pub mod uffd;
mod uffd_abi;
mod unallocated;
pub mod uring;
pub mod vforked;
pub mod zstd;

use std::io;

/// Converts the -1 of a C call into the error in errno.
fn check(result: libc::c_long) -> io::Result<usize> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}

/// The calling thread's errno.
fn errno() -> i32 {
    // SAFETY: the location is the calling thread's own, and valid as long as the thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
fn set_errno(number: i32) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = number }
}
