//! How the command starts a program as it was started itself, and which signals the program has not got: the unsafe
//! code of the command. It is no part of the libraries, because it runs before `main`.
//!
//! | file | what it is about |
//! |---|---|
//! | `begun` | how this process was started; a child that is started in the same way |
//! | `received` | the signals that this process has got |
//! | `witness` | which of them its whole process group has got |

mod begun;
mod received;
mod witness;

pub use begun::{began_ignoring, bind, close_streams, set_variable};
pub use received::{Received, Sent, end_by, reap_others, send, stop_by};
pub use witness::Witness;

use std::io;

/// Signals have the numbers from 1 to this. Sets of them have a bit for each.
const MOST_SIGNAL: i32 = 64;

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Converts the -1 of a C call into the error in errno.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Changes the calling thread's mask of signals, and returns the one before. The C library's call would leave out its
/// own signals.
fn mask(how: i32, set: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: the kernel reads one set of 8 bytes and fills in the other, both locals of this frame.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const set, &raw mut before, size_of::<u64>()) };
    before
}
