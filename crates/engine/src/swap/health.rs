//! Errors of devices: what is counted, and when a device is given up.
//!
//! A read is tried twice unless the device is gone: an error may be transient, and bytes that were torn or late in
//! transfer are right the second time. Both tries count. Unverified bytes are never used. A failed write is not
//! repeated at its place: the folio is still in RAM and goes elsewhere. A device is *failing* after a read that failed
//! twice, [`WRITES_IN_A_ROW`] failed writes in a row, [`MOST_FAILURES`] failures within [`FAILURE_WINDOW`], or the
//! first error that says that it is gone. Nothing is allocated there any more, and the background thread empties
//! it (`relocate::evacuate`). It never recovers; it can be removed and added again.
//!
//! **Locking.** The record of recent failures is a leaf lock, taken only after a failure.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use folioswap_core::DeviceFailure;

/// Failed writes in a row after which a device is failing. A single bad sector fails one or two writes, because
/// neighbours are written together.
const WRITES_IN_A_ROW: u32 = 3;

/// Failures within [`FAILURE_WINDOW`] after which a device is failing. First tries of reads count too.
const MOST_FAILURES: u32 = 8;

/// A disk that loses a sector now and then stays in use.
const FAILURE_WINDOW: Duration = Duration::from_secs(3600);

/// State of a device in its arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceState {
    /// Folios are swapped out to it.
    InUse,
    /// It is being removed.
    Leaving,
    /// It failed: nothing is written to it, and readable content is moved elsewhere. It is listed until it is empty.
    Failing,
}

/// Counts of a device's errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceErrors {
    /// Reads that returned an error, second tries included.
    pub read_errors: u64,
    /// Writes that returned an error.
    pub write_errors: u64,
    /// Reads that returned other bytes than were written, second tries included.
    pub wrong_bytes: u64,
}

/// Kinds of failures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error("it returned other bytes than were written to it")]
    WrongBytes,
    #[error("{0}")]
    Write(io::Error),
}

impl Trouble {
    /// The result of a read that returned no error: `right` says whether its bytes are those that were written.
    pub fn unless(right: bool) -> Result<(), Trouble> {
        if right { Ok(()) } else { Err(Trouble::WrongBytes) }
    }

    pub fn kind(&self) -> DeviceFailure {
        match self {
            Trouble::Read(_) => DeviceFailure::Read,
            Trouble::WrongBytes => DeviceFailure::WrongBytes,
            Trouble::Write(_) => DeviceFailure::Write,
        }
    }

    /// Whether the error says that the device is gone.
    pub fn means_device_gone(&self) -> bool {
        let (Trouble::Read(error) | Trouble::Write(error)) = self else { return false };
        matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::EBADF | libc::ENOMEDIUM | libc::ESTALE))
    }
}

/// A folio's content could not be read from its device. The content is lost to the thread that asked for it.
#[derive(Debug, thiserror::Error)]
#[error("swap-in of {addr:#x} from {device} failed: {reason}")]
pub(crate) struct SwapInError {
    /// The address that was touched, or the folio's first address.
    addr: usize,
    device: String,
    reason: String,
    /// Whether this loss was not known before.
    pub is_news: bool,
}

impl SwapInError {
    pub fn new(addr: usize, device: String, reason: String) -> Self {
        SwapInError { addr, device, reason, is_news: true }
    }

    /// The same error for the address that was touched.
    pub fn at(self, addr: usize, is_news: bool) -> Self {
        SwapInError { addr, is_news, ..self }
    }
}

/// Failures since a point in time.
#[derive(Default)]
struct Recent {
    since: Option<Instant>,
    nr_failures: u32,
}

/// Error counts and state of a device.
#[derive(Default)]
pub(crate) struct Health {
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    wrong_bytes: AtomicU64,
    writes_in_a_row: AtomicU32,
    recent: Mutex<Recent>,
    is_failing: AtomicBool,
}

impl Health {
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::SeqCst)
    }

    pub fn errors(&self) -> DeviceErrors {
        DeviceErrors {
            read_errors: self.read_errors.load(Ordering::Relaxed),
            write_errors: self.write_errors.load(Ordering::Relaxed),
            wrong_bytes: self.wrong_bytes.load(Ordering::Relaxed),
        }
    }

    /// Notes a successful write.
    pub fn wrote(&self) {
        if self.writes_in_a_row.load(Ordering::Relaxed) > 0 {
            self.writes_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a failure. `again`: it was the second try of a read. Returns the reason if the device is failing from now
    /// on.
    pub fn note(&self, trouble: &Trouble, again: bool) -> Option<String> {
        let counter = match trouble {
            Trouble::Read(_) => &self.read_errors,
            Trouble::WrongBytes => &self.wrong_bytes,
            Trouble::Write(_) => &self.write_errors,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let is_write = matches!(trouble, Trouble::Write(_));
        let in_a_row = if is_write { self.writes_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        let nr_recent = self.nr_recent();
        let reason = match trouble {
            gone if gone.means_device_gone() => format!("it is gone ({gone})"),
            Trouble::Read(error) if again => format!("it could not be read at the second try either ({error})"),
            Trouble::WrongBytes if again => "twice it returned other bytes than were written to it".into(),
            Trouble::Write(error) if in_a_row >= WRITES_IN_A_ROW => {
                format!("{in_a_row} writes in a row failed ({error})")
            }
            last if nr_recent >= MOST_FAILURES => format!("it failed {nr_recent} times within an hour (last: {last})"),
            _ => return None,
        };
        (!self.is_failing.swap(true, Ordering::SeqCst)).then_some(reason)
    }

    /// Counts a failure and returns the count for the current period.
    fn nr_recent(&self) -> u32 {
        let mut recent = self.recent.lock().expect("nothing panics under this lock");
        if recent.since.is_none_or(|since| since.elapsed() > FAILURE_WINDOW) {
            *recent = Recent { since: Some(Instant::now()), nr_failures: 0 };
        }
        recent.nr_failures += 1;
        recent.nr_failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    #[test]
    fn writes_in_a_row_end_a_device_and_others_do_not() {
        let health = Health::default();
        let write = || health.note(&Trouble::Write(error(libc::EIO)), false);
        for _ in 0..2 {
            assert_eq!((write(), write()), (None, None));
            health.wrote();
        }
        assert_eq!((write(), write(), health.is_failing()), (None, None, false));
        assert!(write().is_some_and(|reason| reason.contains("3 writes in a row")) && health.is_failing());
        assert_eq!(write(), None, "it is said once");
        assert_eq!(health.errors(), DeviceErrors { write_errors: 8, ..DeviceErrors::default() });
    }

    #[test]
    fn the_second_try_of_a_read_decides() {
        for trouble in [Trouble::Read(error(libc::EIO)), Trouble::WrongBytes] {
            let health = Health::default();
            assert_eq!(health.note(&trouble, false), None);
            assert!(health.note(&trouble, true).is_some() && health.is_failing());
        }
    }

    #[test]
    fn many_failures_that_each_go_by_end_a_device_too() {
        let health = Health::default();
        let reasons: Vec<_> = (0..MOST_FAILURES).map(|_| health.note(&Trouble::WrongBytes, false)).collect();
        assert_eq!(reasons.iter().position(Option::is_some), Some(MOST_FAILURES as usize - 1));
    }

    #[test]
    fn a_device_that_is_gone_is_failing_at_once() {
        for number in [libc::ENODEV, libc::ENXIO, libc::EBADF] {
            let health = Health::default();
            let reason = health.note(&Trouble::Read(error(number)), false);
            assert!(reason.is_some_and(|reason| reason.contains("gone")) && health.is_failing());
        }
    }
}
