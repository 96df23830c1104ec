//! Typed Linux interfaces for the engine, and the home of its unsafe code.
//!
//! Kernel error numbers become named errors here. Memory is passed as plain addresses: an address in managed memory is
//! not a Rust object, and many calls are about memory that is *not* present. Calls that could invalidate others' memory
//! are `unsafe fn`; see [`memory`].
//!
//! Calls that a preloaded library interposes (mmap and its kin, reads, writes) are raw system calls, so the engine's
//! own calls never come back to it. The same holds on the fault path: the C library's open, read, write, close and
//! sleep are cancellation points, at which a cancelled thread would end with locks held.
//!
//! Its files, from the ground up. A file uses only those above it here (a test holds that).
//!
//! | file | what it is about |
//! |---|---|
//! | **time and memory** | |
//! | `clock` | the time, in nanoseconds |
//! | `random` | random bytes |
//! | `said` | what the kernel says, as text |
//! | `futex` | sleeping until a word changes, and waking |
//! | `memory` | address space: reserved, protected, advised, populated, freed, locked |
//! | `call_times` | how long memory calls take |
//! | `shared` | a value in memory that processes share |
//! | `lz4` | partial decompression |
//! | `zstd` | compression without an allocator |
//! | **the machine** | |
//! | `cpu` | the CPUs, scheduling, and the time that this process uses of them |
//! | `unallocated` | calls about files without the program's allocator |
//! | `disk` | the disk below a file |
//! | `numa` | the nodes: their CPUs, disks and memory |
//! | `control_group` | the limits of memory around this process |
//! | **calls and files** | |
//! | `fork` | handlers of fork |
//! | `seccomp` | a filter of system calls |
//! | `own_calls` | a page from which calls pass the program's filters |
//! | `file_limit` | writes beyond the program's limit of file sizes |
//! | `direct_io` | reads and writes past the page cache, and space of files |
//! | `executable` | whether a library can be preloaded into a program |
//! | `uring` | reads and writes in flight |
//! | **signals** | |
//! | `static_tls` | thread-local variables that a handler can read |
//! | `fs_base` | the base by which they are found, in a fault of a thread that has set another |
//! | `signals` | masks, thread ids, and sending |
//! | `fault_stack` | stacks for work in signal handlers |
//! | `vforked` | what a child that shares this memory has set |
//! | `held_signals` | what the program has blocked in name |
//! | `sigbus` | the handlers in front of the program's |
//! | **threads** | |
//! | `c_thread` | what the C library knows of threads |
//! | `tls_vector` | where it finds their thread-local variables |
//! | `seat` | the engine's threads, which a forked child starts again |
//! | **descriptors** | |
//! | `hidden_numbers` | the numbers in the program's table that the engine's descriptors have |
//! | `own_table` | the table of the engine's threads, and the thread that keeps it |
//! | `descriptor` | a descriptor in both tables |
//! | `kept` | files that forked children need |
//! | `descendants` | whether those that a fork made are gone |
//! | `offered` | a descriptor for processes that know a key |
//! | **pages and faults** | |
//! | `resident` | how much memory a process has in RAM |
//! | `maps` | the kernel's list of mappings |
//! | `pagemap` | which pages are in RAM, and how |
//! | `pages` | pages moved and copied |
//! | `uffd_abi` | the kernel's structures of userfaultfd |
//! | `uffd` | userfaultfd: faults read, pages mapped |
//! | `readers` | a process asks another to bring memory in |

#[cfg(not(target_arch = "x86_64"))]
compile_error!("folioswap runs on x86-64 only");

pub mod c_thread;
pub mod call_times;
pub mod clock;
pub mod control_group;
pub mod cpu;
pub mod descendants;
pub mod descriptor;
pub mod direct_io;
pub mod disk;
pub mod executable;
pub mod fault_stack;
pub mod file_limit;
pub mod fork;
pub mod fs_base;
pub mod futex;
pub mod held_signals;
pub mod hidden_numbers;
pub mod kept;
pub mod lz4;
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
pub mod said;
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

use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

/// Converts the -1 of a C call into the error in errno.
fn check(result: libc::c_long) -> io::Result<usize> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}

/// The descriptor that a C call has opened; -1: the error in errno.
fn taken(opened: libc::c_long) -> io::Result<OwnedFd> {
    // SAFETY: the kernel just created this descriptor, and nothing else owns it.
    check(opened).map(|number| unsafe { OwnedFd::from_raw_fd(number as RawFd) })
}

/// Opens a file by a raw system call.
fn open_at(folder: RawFd, path: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the path is NUL-terminated.
    taken(unsafe { libc::syscall(libc::SYS_openat, folder, path.as_ptr(), flags | libc::O_CLOEXEC | libc::O_NOCTTY) })
}

/// What the kernel says of an open file.
fn fstat(fd: RawFd) -> io::Result<libc::stat> {
    let mut about = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills in the structure before it is read.
    unsafe {
        check(libc::syscall(libc::SYS_fstat, fd, about.as_mut_ptr()))?;
        Ok(about.assume_init())
    }
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
