//! Why a folio cannot be mapped or unmapped, and how long that is tried.

use std::time::Duration;

use folioswap_sys::futex;
use folioswap_sys::uffd::MoveError;

use crate::process::fatal;

/// Why a folio stayed where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MapError {
    /// A page is pinned, in use by a system call, or shared with a forked process. A retry may succeed.
    #[error("in use by a system call, pinned, or shared with another process")]
    Busy,
    /// A page of a mapped folio is missing: the program dropped it in a way that folioswap does not see.
    #[error("a page of it is missing")]
    Missing,
    /// Any other error, by its kernel number.
    #[error("the kernel refused (error {0})")]
    Refused(i32),
}

impl From<MoveError> for MapError {
    fn from(error: MoveError) -> Self {
        match error {
            MoveError::Busy | MoveError::Partial { .. } => MapError::Busy,
            MoveError::Missing => MapError::Missing,
            MoveError::Present => MapError::Refused(libc::EEXIST),
            MoveError::Invalid => MapError::Refused(libc::EINVAL),
            MoveError::Other(number) => MapError::Refused(number),
        }
    }
}

impl From<MapError> for std::io::Error {
    fn from(error: MapError) -> Self {
        match error {
            MapError::Refused(number) => std::io::Error::from_raw_os_error(number),
            other => std::io::Error::other(other),
        }
    }
}

/// Repeats a map call while a page is still pinned by I/O that has just ended, or while the kernel is out of
/// memory.
pub(crate) fn patiently<R>(what: &str, mut call: impl FnMut() -> Result<R, MapError>) -> R {
    for attempt in 0..20_000 {
        match call() {
            Ok(done) => return done,
            Err(MapError::Busy) if attempt < 100 => std::hint::spin_loop(),
            Err(MapError::Busy) => futex::sleep(Duration::from_micros(100)),
            // May be temporary: other processes may have taken the memory that this process gave back a moment ago.
            Err(MapError::Refused(libc::ENOMEM)) if attempt < 2000 => {
                futex::sleep(Duration::from_millis(1));
            }
            Err(MapError::Refused(libc::ENOMEM)) => fatal::die(
                "the kernel has no memory left for a folio: give this program's machine or container more, or a smaller --memory",
            ),
            Err(error) => fatal::die(&format!("a folio could not be {what}: {error}")),
        }
    }
    fatal::die(&format!("a folio could not be {what}: its frames stayed in use for two seconds"));
}

pub(super) fn refused(error: std::io::Error) -> MapError {
    MapError::Refused(error.raw_os_error().unwrap_or(libc::EIO))
}
