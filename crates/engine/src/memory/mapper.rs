//! What the kernel does with the pages at the program's addresses and at the homes of frames, as a trait: folios are
//! mapped and unmapped, pages filled, dropped and poisoned.
//!
//! A frame has a *home* address in the frames' memory. With `MoveMapper`, the page of a mapped folio is at the
//! folio's address, and its home is empty. Otherwise the page is at home. The caller holds the lock of the folio's
//! block, so nobody else maps, unmaps or reads these frames.

use std::sync::RwLockWriteGuard;

use folioswap_core::{PAGE_SIZE, PIECE};
use folioswap_sys::memory;
use folioswap_sys::pagemap::Pagemap;
use folioswap_sys::uffd::{MoveError, Userfaultfd};

use super::map_error::{MapError, patiently, refused};

/// Moves folios between their addresses and the homes of their frames, and does whatever else is done to the pages at
/// either.
///
/// # Safety
/// Of the unsafe functions: each range is that of a folio or the home of its frames, or of free frames, and the caller
/// has it to itself. It has locked the folio's block, or taken the frames from their zone.
pub(crate) trait Mapper: Send + Sync {
    /// What reports the faults of the program's addresses.
    fn uffd(&self) -> &Userfaultfd;

    /// The page tables of this process.
    fn pagemap(&self) -> &Pagemap;

    /// Whether the frames' memory must be registered too, as the target of moves.
    fn registers_frames(&self) -> bool;

    /// Whether a page table of small pages, which a touch makes, is dropped before a huge page is moved there. Then the
    /// program's memory needs no huge pages of the kernel's. Where the kernel may make one, it makes and clears one at
    /// each write, only to drop it and report the fault (as of Linux 6.18).
    fn drops_tables(&self) -> bool {
        false
    }

    /// This process has forked, or was forked just now: pages may be shared.
    fn note_fork(&self) {}

    /// In a forked child: nothing is locked in RAM.
    fn forget_lock(&self) {}

    /// Held while the program changes the protection of mappings, or other properties of theirs.
    fn hold_mappings(&self) -> RwLockWriteGuard<'_, ()>;

    /// Puts a zeroed huge page at a pageblock's home, which has no memory. `false`: the kernel had none, and there are
    /// small pages.
    unsafe fn populate(&self, home: usize) -> Result<bool, MapError>;

    /// As `populate`, with small pages, for a pageblock of smaller folios.
    unsafe fn populate_small(&self, home: usize) -> Result<(), MapError>;

    /// Puts small pages at `len` bytes of a home that has lost its own.
    unsafe fn repopulate(&self, home: usize, len: usize) -> Result<(), MapError>;

    /// Moves the content of one home to another, which has no memory.
    unsafe fn move_home(&self, to: usize, from: usize, len: usize) -> Result<(), MapError>;

    /// Maps a zeroed huge page at `folio`, or small ones as `populate`. The home stays without memory.
    unsafe fn map_fresh(&self, folio: usize, home: usize) -> Result<bool, MapError>;

    /// Maps `len` bytes of content at `folio` and wakes the threads that wait for it.
    unsafe fn map(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError>;

    /// Moves the content home. Once this returns, an access to `folio` faults; no write is lost.
    ///
    /// # Safety
    /// As for [`Mapper`], but that the program may read and write at `folio` until the content has moved.
    unsafe fn unmap(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError>;

    /// As `unmap`, for content that nobody needs any more. What is at home afterwards is undefined.
    ///
    /// # Safety
    /// As `unmap`.
    unsafe fn unmap_unneeded(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's ranges.
        unsafe { self.unmap(folio, home, len) }
    }

    /// Drops the pages at an address or a home, and page tables that become empty.
    ///
    /// # Safety
    /// As for [`Mapper`]; and their content is elsewhere, or no longer needed.
    unsafe fn discard(&self, addr: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's range. Nobody else refers to memory at home, and an access to a region faults and waits.
        let dropped = unsafe { memory::dontneed(addr, len) };
        match dropped {
            // Locked in RAM.
            // SAFETY: as above.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => unsafe { memory::dontneed_locked(addr, len) },
            dropped => dropped,
        }
        .map_err(refused)
    }

    /// Whether there is a page at an address. `None`: the page tables cannot be read.
    fn has_page(&self, addr: usize) -> Option<bool> {
        self.pagemap().is_filled(addr).ok()
    }

    /// Puts pages of zeros where none are.
    ///
    /// # Safety
    /// As for [`Mapper`]; and nobody relies on what was there.
    unsafe fn fill(&self, addr: usize, len: usize) -> Result<(), MoveError> {
        (0..len).step_by(ZEROS.len()).try_for_each(|at| {
            // SAFETY: the caller's range. The source is a static of at least this length.
            unsafe { self.uffd().copy(addr + at, ZEROS.as_ptr() as usize, ZEROS.len().min(len - at)) }
        })
    }
}

/// Content of pages that are filled.
static ZEROS: [u8; PIECE.bytes()] = [0; PIECE.bytes()];

/// Copies content from home to a folio's address, at which nothing is present, and drops the pages at home. The pages
/// may belong to several mappings, with any protection.
///
/// # Safety
/// As for [`Mapper`].
pub(super) unsafe fn copy_in(mapper: &dyn Mapper, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
    // SAFETY: the folio's address and the home of its frames. The caller has locked the block, so nobody writes at
    // home, and threads that touch the folio wait for this content.
    let copy = |at: usize, len: usize| unsafe { mapper.uffd().copy(folio + at, home + at, len) };
    let copied = match copy(0, len) {
        Ok(()) => len,
        Err(MoveError::Partial { moved }) => moved,
        Err(MoveError::Missing | MoveError::Invalid) if len > PAGE_SIZE => 0, // not within one mapping
        Err(error) => return Err(error.into()),
    };
    // What was copied is not copied again, so this has to succeed.
    for at in (copied..len).step_by(PAGE_SIZE) {
        patiently("mapped", || copy(at, PAGE_SIZE).map_err(MapError::from));
    }
    // SAFETY: the caller's range, and its content is under the folio's address now.
    unsafe { mapper.discard(home, len) }
}
