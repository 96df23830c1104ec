//! Devices that fail: what is counted, and when a device is given up.
//!
//! A read is tried twice. An error may be transient, and bytes that were torn or late on their way (a cable, a DMA
//! transfer) are right the second time; both tries are counted. What fails twice is reported to who asked, and nothing is
//! taken for content that was not verified. A write that fails is not repeated where it was: its folio is in RAM and goes
//! elsewhere (a batch of folios goes one by one first, so that one bad place does not stand for all).
//!
//! A device is *failing* from a read that failed twice, [`WRITES_IN_A_ROW`] writes in a row, [`MOST_FAILURES`] failures
//! within [`WITHIN`], or the first error that says that it is gone. From then on nothing is allocated there, and the
//! thread that moves slots empties it (`evacuation`). It never becomes sound again; it can be removed and added anew.
//!
//! **Locking.** The record of recent failures is a leaf, locked after a failure alone.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use folioswap_core::{DeviceFailure, FolioId, SlotId};

use crate::engine::Engine;
use crate::fatal;
use crate::pager::SwapInError;

/// Writes in a row that fail on a device that takes no more: a bad place is one write or two, as neighbours are
/// written together.
const WRITES_IN_A_ROW: u32 = 3;

/// Failures, those of reads that went well the second time among them, that a device may not have...
const MOST_FAILURES: u32 = 8;

/// ...within this time. So a disk that loses a sector now and then stays.
const WITHIN: Duration = Duration::from_secs(3600);

/// What a device is to its arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceState {
    /// Folios go there.
    InUse,
    /// It is being removed.
    Leaving,
    /// It failed: nothing is written there, and what can be read goes elsewhere. It is listed until it is empty.
    Failing,
}

/// How often a device failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceErrors {
    /// Reads that returned an error, second tries among them.
    pub read_errors: u64,
    /// Writes that did.
    pub write_errors: u64,
    /// Reads that returned other bytes than were written, second tries among them.
    pub wrong_bytes: u64,
}

/// What went wrong.
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
    /// For what was read without an error.
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

    /// Whether there is no device any more.
    fn is_of_no_device(&self) -> bool {
        let (Trouble::Read(error) | Trouble::Write(error)) = self else { return false };
        matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::EBADF | libc::ENOMEDIUM | libc::ESTALE))
    }
}

/// Failures since a moment.
#[derive(Default)]
struct Recent {
    since: Option<Instant>,
    nr_failures: u32,
}

/// What is known of how a device works.
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

    /// A write went well.
    pub fn wrote(&self) {
        if self.writes_in_a_row.load(Ordering::Relaxed) > 0 {
            self.writes_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a failure; `again`: of a read's second try. Says why the device is failing, if it is so from now on.
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
            gone if gone.is_of_no_device() => format!("it is gone ({gone})"),
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

    /// Counts one more.
    fn nr_recent(&self) -> u32 {
        let mut recent = self.recent.lock().expect("nothing panics under this lock");
        if recent.since.is_none_or(|since| since.elapsed() > WITHIN) {
            *recent = Recent { since: Some(Instant::now()), nr_failures: 0 };
        }
        recent.nr_failures += 1;
        recent.nr_failures
    }
}

impl Engine {
    /// Reads a folio's slots by `attempt`, which verifies what came, and once more when that fails.
    ///
    /// # Errors
    /// When it failed twice.
    pub fn read_twice(
        &self,
        folio: FolioId,
        slot: SlotId,
        mut attempt: impl FnMut() -> Result<(), Trouble>,
    ) -> Result<(), SwapInError> {
        let Err(mut trouble) = attempt() else { return Ok(()) };
        self.note_trouble(slot, &trouble, false);
        if !trouble.is_of_no_device() {
            let Err(second) = attempt() else { return Ok(()) };
            trouble = second;
            self.note_trouble(slot, &trouble, true);
        }
        Err(SwapInError::new(self.addr(folio), self.space.device_name(slot), trouble.to_string()))
    }

    /// Counts a failure of a slot's device; `again`: of a read's second try. One that makes the device failing is said.
    pub fn note_trouble(&self, slot: SlotId, trouble: &Trouble, again: bool) {
        self.stats.io_errors.add(1);
        if matches!(trouble, Trouble::WrongBytes) {
            self.stats.verify_failures.add(1);
        }
        if let Some(reason) = self.space.note_trouble(slot, trouble, again) {
            fatal::say(&format!(
                "swap {} is failing: {reason}; it is written to no more, and what can be read there goes elsewhere",
                self.space.device_name(slot)
            ));
            self.slot_compactor.evacuate();
        }
    }

    /// Counts a failed write and says so.
    pub fn write_failed(&self, slot: SlotId, error: io::Error) {
        fatal::say(&format!(
            "swap-out to {} failed ({error}): the folio stays in RAM, its slot is not used again",
            self.space.device_name(slot)
        ));
        self.note_trouble(slot, &Trouble::Write(error), false);
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
