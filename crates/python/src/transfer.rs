//! Reads and writes of files straight to and from managed memory, in both fault modes.
//!
//! In direct mode a system call fails with EFAULT where a page is missing. So each piece is held in RAM for its call.
//! What all threads hold at a time is a quarter of the budget at most, so that faults find frames.

use std::io;
use std::ops::Range;
use std::time::Duration;

use folioswap::{Arena, BLOCK_BYTES};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::errors::numbered;

/// Bytes of one call, from the start of a block on: a quarter of the smallest budget. Between two calls a signal such
/// as that of Ctrl-C is handled.
const PIECE_BYTES: usize = 2 * BLOCK_BYTES;

/// Pause before the next try while other threads hold as much as they may.
const PAUSE: Duration = Duration::from_millis(1);

/// The exception for a failed transfer, with the system's number.
fn raised(error: &io::Error) -> PyErr {
    if error.raw_os_error() == Some(libc::EFAULT) {
        return PyValueError::new_err(
            "this array is not in this pool, but in another one: call the other one's method",
        );
    }
    numbered(error.raw_os_error(), &error.to_string())
}

/// Calls `transfer` for each piece of a range, held in RAM, until one is short. Returns the bytes done.
///
/// # Safety
/// The range is memory of one array, which stays for the call.
unsafe fn each_piece(
    py: Python<'_>,
    arena: &Arena,
    range: Range<usize>,
    transfer: impl Fn(usize, usize) -> isize + Sync,
) -> PyResult<usize> {
    let space = arena.raw();
    let mut at = range.start;
    while at < range.end {
        let len = (PIECE_BYTES - at % BLOCK_BYTES).min(range.end - at);
        let moved = py.detach(|| {
            // SAFETY: mapped memory (the caller's promise). The hold ends before this returns.
            let Some(held) = (unsafe { space.hold_within(at, len, arena.memory() / 4) }) else {
                std::thread::sleep(PAUSE);
                return Err(io::ErrorKind::Interrupted.into());
            };
            let moved = transfer(at, len);
            let error = io::Error::last_os_error();
            // SAFETY: held above.
            unsafe { space.release_hold(at, len) };
            match moved {
                _ if !held => Err(io::Error::other("some of the array's content is lost: its swap device has failed")),
                ..0 => Err(error),
                moved => Ok(moved.unsigned_abs()),
            }
        });
        match moved {
            Ok(0) => break,
            Ok(moved) => at += moved,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(raised(&error)),
        }
        py.check_signals()?;
    }
    Ok(at - range.start)
}

/// Fills a range from a file.
///
/// # Safety
/// The range is memory of one array, which stays for the call, and nobody else uses it meanwhile.
pub(crate) unsafe fn read(py: Python<'_>, arena: &Arena, fd: i32, offset: u64, range: Range<usize>) -> PyResult<usize> {
    let start = range.start;
    // SAFETY: the caller's promise; each piece lies in the range.
    unsafe {
        each_piece(py, arena, range, |at, len| {
            libc::pread64(fd, at as *mut libc::c_void, len, (offset + (at - start) as u64) as i64)
        })
    }
}

/// Writes a range to a file.
///
/// # Safety
/// The range is memory of one array, which stays for the call.
pub(crate) unsafe fn write(py: Python<'_>, arena: &Arena, fd: i32, offset: u64, range: Range<usize>) -> PyResult<()> {
    let (start, len) = (range.start, range.len());
    // SAFETY: as in `read`.
    let written = unsafe {
        each_piece(py, arena, range, |at, len| {
            libc::pwrite64(fd, at as *const libc::c_void, len, (offset + (at - start) as u64) as i64)
        })
    }?;
    if written == len { Ok(()) } else { Err(PyOSError::new_err("the file takes no more")) }
}
