//! Linux, typed: what the engine needs of the kernel, and the home of unsafe code.
//!
//! Kernel error numbers become named meanings here. Memory is passed as plain addresses: an address in managed memory
//! is not a Rust object, and many of these calls are about memory that is *not* there. Calls that could break what others
//! have at an address are `unsafe fn`; see [`memory`].
//!
//! The calls that a preloaded library interposes (mmap and its kin, reads, writes) are made as raw system calls, so
//! that the engine's own never come back to it. So are all on the way of a fault: the C library's open, read, write,
//! close and sleep are points at which a thread that was cancelled ends, whatever it has locked.

pub mod clock;
pub mod cpu;
pub mod descriptor;
pub mod direct_io;
pub mod disk;
pub mod fault_stack;
pub mod fork;
pub mod futex;
pub mod memory;
pub mod numa;
pub mod own_table;
pub mod pagemap;
pub mod random;
pub mod resident;
pub mod seccomp;
pub mod shared;
pub mod sigbus;
pub mod signals;
pub mod uffd;
mod uffd_abi;
pub mod uring;
pub mod zstd;

use std::io;

/// Turns the -1 of a C call into the error that errno names.
fn check(result: libc::c_long) -> io::Result<usize> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}

/// The calling thread's errno.
fn errno() -> i32 {
    // SAFETY: the location is the calling thread's own and valid as long as the thread is.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
fn set_errno(number: i32) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = number }
}
