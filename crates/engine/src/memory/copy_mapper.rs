//! Maps folios by copying, for kernels without a sound `UFFDIO_MOVE`.

use std::io;
use std::sync::{Arc, RwLockWriteGuard};

use folioswap_core::Order;
use folioswap_sys::pagemap::Pagemap;
use folioswap_sys::pages;
use folioswap_sys::uffd::Userfaultfd;

use super::aside::Aside;
use super::map_error::MapError;
use super::mapper::{Mapper, copy_in};

/// Huge pages become small ones.
pub(crate) struct CopyMapper {
    uffd: Arc<Userfaultfd>,
    pagemap: Arc<Pagemap>,
    aside: Aside,
}

impl CopyMapper {
    pub fn new(uffd: Arc<Userfaultfd>, pagemap: Arc<Pagemap>) -> io::Result<Self> {
        Ok(CopyMapper { aside: Aside::new(uffd.clone())?, uffd, pagemap })
    }

    /// Copies the pages at a place home, and drops them.
    ///
    /// # Safety
    /// As for [`Mapper`]; the place has the pages of the folio.
    unsafe fn copy_home(&self, place: usize, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: pages that are this call's alone. The home belongs to the folio's frames, is writable and overlaps no
        // other memory.
        unsafe { pages::copy_pages(&self.pagemap, place, home, len) }.map_err(|_| MapError::Missing)?;
        // SAFETY: as above, and its content is at home now.
        unsafe { self.discard(place, len) }
    }
}

impl Mapper for CopyMapper {
    fn uffd(&self) -> &Userfaultfd {
        &self.uffd
    }

    fn pagemap(&self) -> &Pagemap {
        &self.pagemap
    }

    fn registers_frames(&self) -> bool {
        false
    }

    fn hold_mappings(&self) -> RwLockWriteGuard<'_, ()> {
        self.aside.hold_off()
    }

    unsafe fn populate(&self, _home: usize) -> Result<bool, MapError> {
        Ok(true) // ordinary memory: the first touch makes the page
    }

    unsafe fn populate_small(&self, _home: usize) -> Result<(), MapError> {
        Ok(())
    }

    unsafe fn repopulate(&self, _home: usize, _len: usize) -> Result<(), MapError> {
        Ok(())
    }

    unsafe fn move_home(&self, _to: usize, from: usize, len: usize) -> Result<(), MapError> {
        // `to` is ordinary memory and gets a page when touched.
        // SAFETY: the caller's range.
        unsafe { self.discard(from, len) }
    }

    unsafe fn map_fresh(&self, folio: usize, home: usize) -> Result<bool, MapError> {
        // A home without memory reads as zero.
        // SAFETY: the caller's ranges.
        unsafe { self.map(folio, home, Order::HUGE.bytes()) }.map(|()| true)
    }

    unsafe fn map(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the folio's address and the home of its frames. The caller has locked the block, so nobody writes at
        // home, and threads that touch the folio wait for this content.
        unsafe { copy_in(self, folio, home, len) }
    }

    unsafe fn unmap(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        // Once the pages are elsewhere an access faults and waits, so the content copied is the content dropped.
        // SAFETY: the caller's ranges, and a place that is this call's.
        let copy = |place, _, home, len| unsafe { self.copy_home(place, home, len) };
        let direct = |_, _, _| Err(MapError::Refused(libc::EINVAL));
        // SAFETY: as above.
        let undo = |folio, home, len| unsafe { self.map(folio, home, len) };
        // SAFETY: as above.
        unsafe { self.aside.take(folio, home, len, &copy, &direct, &undo) }
    }

    unsafe fn unmap_unneeded(&self, folio: usize, _home: usize, len: usize) -> Result<(), MapError> {
        // The content is not read, because the program may have no access to parts of it.
        // SAFETY: the caller's range, whose content is no longer needed.
        unsafe { self.discard(folio, len) }
    }
}
