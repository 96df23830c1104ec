//! The C library's functions that hand the program's memory to the kernel: each covered as [`cover`](crate::cover)
//! says.
//!
//! Not covered in direct mode: `printf` and its kin where a string argument is longer than the stream's buffer,
//! `execl` (its arguments are nearly always constants), asynchronous I/O, and system calls made past the C library.
//! Monitor mode has no such gaps.

mod io;
mod process;
mod results;
mod small;
mod stdio;
mod vectors;
