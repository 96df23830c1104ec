//! How a folio gets under its address and away from it again: the trait, by `UFFDIO_MOVE`, and by copying.
//!
//! A block of frames has a *home* address in the frames' memory. While its folio is mapped, the physical page is under
//! the folio's address ([`MoveMapper`]) and nothing is at home; otherwise it is at home. All calls are made by the
//! holder of the folio's lock, so that nobody else maps, unmaps or reads the same block.

use std::sync::{Arc, Mutex};

use folioswap_sys::memory;
use folioswap_sys::uffd::{Mode, MoveError, Userfaultfd};

/// Why a folio stayed where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MapError {
    /// A page is pinned, in use by a system call, or shared with a forked process. Try again later.
    #[error("in use by a system call, pinned, or shared with another process")]
    Busy,
    /// A page of a mapped folio is not there: the program dropped it by a way that folioswap does not see.
    #[error("a page of it is missing")]
    Missing,
    /// Anything else: this kernel number.
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
            MoveError::ProcessGone => MapError::Refused(libc::ESRCH),
            MoveError::Other(number) => MapError::Refused(number),
        }
    }
}

/// Carries folios between their address and the home of their block.
pub(crate) trait Mapper: Send + Sync {
    /// How regions are registered with the userfaultfd.
    fn region_mode(&self) -> Mode;

    /// Whether the frames' memory is to be registered too (as the target of moves).
    fn registers_frames(&self) -> bool;

    /// Puts memory at a home that has none; its content is zero.
    fn populate(&self, home: usize) -> Result<(), MapError>;

    /// Maps fresh zeroed memory at `folio`; the block's home stays without memory of its own.
    fn map_fresh(&self, folio: usize, home: usize) -> Result<(), MapError>;

    /// Puts the block's content under `folio` and wakes who waits for it.
    fn map(&self, folio: usize, home: usize) -> Result<(), MapError>;

    /// Takes the content home. From the return on a touch of `folio` faults, and no write is lost.
    fn unmap(&self, folio: usize, home: usize) -> Result<(), MapError>;
}

/// By `UFFDIO_MOVE`: the page-table entry travels, the page does not. A huge page stays one.
pub(crate) struct MoveMapper {
    uffd: Arc<Userfaultfd>,
    folio_bytes: usize,
    /// Addresses of folio-sized, unregistered memory in which fresh pages are made; a page in registered memory could
    /// not be: its first touch would be a fault of the engine's own.
    nursery: Mutex<Vec<usize>>,
}

impl MoveMapper {
    /// `nursery`: addresses of folio-sized ranges, one for each thread that is to make fresh pages at once.
    pub fn new(uffd: Arc<Userfaultfd>, folio_bytes: usize, nursery: Vec<usize>) -> Self {
        MoveMapper { uffd, folio_bytes, nursery: Mutex::new(nursery) }
    }

    /// Makes a fresh page and moves it to `target`.
    fn make(&self, target: usize) -> Result<(), MapError> {
        let cradle = loop {
            if let Some(cradle) = self.nursery.lock().expect("nothing panics under this lock").pop() {
                break cradle;
            }
            std::thread::yield_now();
        };
        let made = memory::populate_write(cradle, self.folio_bytes)
            .map_err(|error| MapError::Refused(error.raw_os_error().unwrap_or(libc::ENOMEM)))
            .and_then(|()| self.uffd.move_pages(target, cradle, self.folio_bytes).map_err(MapError::from));
        self.nursery.lock().expect("nothing panics under this lock").push(cradle);
        made
    }

    /// Moves a folio, or leaves all of it where it was.
    fn carry(&self, target: usize, source: usize) -> Result<(), MapError> {
        match self.uffd.move_pages(target, source, self.folio_bytes) {
            Ok(()) => Ok(()),
            Err(MoveError::Partial { moved }) => match self.uffd.move_pages(source, target, moved) {
                Ok(()) => Err(MapError::Busy),
                Err(error) => crate::fatal::die(&format!("half of a folio could not be moved back: {error:?}")),
            },
            Err(error) => Err(error.into()),
        }
    }
}

impl Mapper for MoveMapper {
    fn region_mode(&self) -> Mode {
        Mode::Missing
    }

    fn registers_frames(&self) -> bool {
        true
    }

    fn populate(&self, home: usize) -> Result<(), MapError> {
        self.make(home)
    }

    fn map_fresh(&self, folio: usize, _home: usize) -> Result<(), MapError> {
        self.make(folio)
    }

    fn map(&self, folio: usize, home: usize) -> Result<(), MapError> {
        self.carry(folio, home)
    }

    fn unmap(&self, folio: usize, home: usize) -> Result<(), MapError> {
        self.carry(home, folio)
    }
}

/// By copying, for kernels without a sound `UFFDIO_MOVE`. Huge pages become small ones.
pub(crate) struct CopyMapper {
    uffd: Arc<Userfaultfd>,
    folio_bytes: usize,
}

impl CopyMapper {
    pub fn new(uffd: Arc<Userfaultfd>, folio_bytes: usize) -> Self {
        CopyMapper { uffd, folio_bytes }
    }

    fn protect(&self, folio: usize, on: bool) -> Result<(), MapError> {
        self.uffd.write_protect(folio, self.folio_bytes, on).map_err(refused)
    }
}

impl Mapper for CopyMapper {
    fn region_mode(&self) -> Mode {
        Mode::MissingAndWriteProtect
    }

    fn registers_frames(&self) -> bool {
        false
    }

    fn populate(&self, _home: usize) -> Result<(), MapError> {
        Ok(()) // the frames' memory is ordinary: the first touch makes the page
    }

    fn map_fresh(&self, folio: usize, home: usize) -> Result<(), MapError> {
        self.map(folio, home) // a home without memory reads as zero
    }

    fn map(&self, folio: usize, home: usize) -> Result<(), MapError> {
        self.uffd.copy(folio, home, self.folio_bytes)?;
        memory::dontneed(home, self.folio_bytes).map_err(refused)
    }

    fn unmap(&self, folio: usize, home: usize) -> Result<(), MapError> {
        // Protected first: a write from here on waits as a fault, so that what is copied is what is dropped.
        self.protect(folio, true)?;
        if memory::copy_pages(folio, home, self.folio_bytes).is_err() {
            self.protect(folio, false)?;
            return Err(MapError::Missing);
        }
        memory::dontneed(folio, self.folio_bytes).map_err(refused)
    }
}

fn refused(error: std::io::Error) -> MapError {
    MapError::Refused(error.raw_os_error().unwrap_or(libc::EIO))
}
