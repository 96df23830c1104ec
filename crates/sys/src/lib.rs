//! Linux, typed: the calls that folioswap is built on, and the home of unsafe code.
//!
//! Nothing here knows of folios. Kernel error numbers come back with names; lengths are in bytes. What is for use in
//! signal handlers says so: it neither allocates nor locks.

pub mod cpu;
pub mod direct_io;
pub mod fork;
pub mod futex;
pub mod memory;
pub mod pagemap;
pub mod shared;
pub mod sigbus;
pub mod signals;
pub mod uffd;
pub mod uring;
