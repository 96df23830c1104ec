//! Places to which the pages of a folio are taken that may not be written, so that they can be moved from there.
//!
//! The kernel moves pages only between writable memory of one protection. `mremap` takes them to a place with any
//! protection, and what cannot go home from there goes back the same way: a page in use is never copied.

use std::io;
use std::sync::{Arc, RwLock, RwLockWriteGuard};

use folioswap_core::{Order, PAGE_SIZE};
use folioswap_sys::memory::{self, Reservation};
use folioswap_sys::pages;
use folioswap_sys::uffd::Userfaultfd;

use super::map_error::{MapError, patiently, refused};
use crate::process::fatal;
use crate::process::lent::Lent;

/// Addresses of 2 MiB at which pages are put for a moment, whatever protection they had. They are reserved while nobody
/// uses them. `None` stands for addresses that others got meanwhile, when no more could be reserved.
pub(super) struct Aside {
    lent: Lent<Option<usize>>,
    uffd: Arc<Userfaultfd>,
    /// Whether the kernel unmaps what pages are to replace, before it finds that they lie in several mappings.
    refusal_unmaps: bool,
    /// Held while the program changes the protection of mappings. Pages that go back come with the mapping in which
    /// they left.
    protecting: RwLock<()>,
}

/// Threads that put pages aside at the same time.
const NR_ASIDE: usize = 16;

impl Aside {
    pub fn new(uffd: Arc<Userfaultfd>) -> io::Result<Self> {
        let refusal_unmaps = Self::refusal_unmaps()?;
        let reserved = Reservation::new(NR_ASIDE * Order::HUGE.bytes(), Order::HUGE.bytes())?;
        let places = reserved.range().step_by(Order::HUGE.bytes()).map(Some);
        reserved.leak(); // the mappings there change, and are no longer one
        Ok(Aside { lent: Lent::new(places), uffd, refusal_unmaps, protecting: RwLock::new(()) })
    }

    /// Keeps pages from being put aside. Waits for those that are.
    pub fn hold_off(&self) -> RwLockWriteGuard<'_, ()> {
        self.protecting.write().expect("nothing panics under this lock")
    }

    /// Tries it with two mappings.
    fn refusal_unmaps() -> io::Result<bool> {
        let [two, place] = [(); 2].map(|()| Reservation::new(2 * PAGE_SIZE, PAGE_SIZE));
        let (two, place) = (two?, place?);
        two.protect_rw(two.addr()..two.addr() + PAGE_SIZE)?;
        // SAFETY: addresses of this call, which hold nothing.
        let taken = unsafe { pages::take_pages(two.addr(), place.addr(), place.len()) };
        Ok(taken.is_err() && memory::reserve_at(place.addr(), place.len()).is_ok())
    }

    fn reserve() -> Option<usize> {
        let reserved = Reservation::new(Order::HUGE.bytes(), Order::HUGE.bytes()).ok()?;
        let place = reserved.addr();
        reserved.leak();
        Some(place)
    }

    /// Takes a folio's pages to a place that may be read and written, and calls `work` with it: the place, the folio,
    /// the home, and their length. The folio may lie in several mappings; then it is called for those parts of it that
    /// `direct`, with the folio and the home, does not bring home: their protection forbids it. If that fails for one
    /// part, `undo` is called with the folio and the home of those before it, and what is still at the place goes back.
    ///
    /// # Safety
    /// As for `Mapper::unmap`.
    pub unsafe fn take(
        &self,
        folio: usize,
        home: usize,
        len: usize,
        work: &impl Fn(usize, usize, usize, usize) -> Result<(), MapError>,
        direct: &impl Fn(usize, usize, usize) -> Result<(), MapError>,
        undo: &impl Fn(usize, usize, usize) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let is_done = self.lent.with(|lent| {
            let Ok(_undisturbed) = self.protecting.try_read() else { return Err(MapError::Busy) };
            *lent = lent.or_else(Self::reserve);
            let Some(place) = *lent else { return Err(MapError::Refused(libc::ENOMEM)) };
            // SAFETY: the caller's range, and addresses that are lent to this call alone.
            if let Err(error) = unsafe { pages::take_pages(folio, place, len) } {
                let are_several = error.raw_os_error() == Some(libc::EFAULT) && len > PAGE_SIZE;
                if !are_several || self.refusal_unmaps {
                    *lent = memory::reserve_at(place, len).ok().map(|()| place); // others may have them
                }
                return if are_several { Ok(false) } else { Err(refused(error)) };
            }
            let done = work(place, folio, home, len);
            if done.is_err() {
                // SAFETY: the caller's range, whose pages are there.
                unsafe { self.put_back(folio, place, len) };
                *lent = memory::reserve_at(place, len).ok().map(|()| place); // others may have it
            // SAFETY: as above. Nothing is needed there any more.
            } else if unsafe { memory::reserve_over(place, len) }.is_err() {
                *lent = None; // and what is there stays mapped
            }
            done.map(|()| true)
        })?;
        if is_done {
            return Ok(());
        }
        let half = len / 2;
        let bring = |folio, home| match direct(folio, home, half) {
            // SAFETY: halves of the caller's ranges.
            Err(MapError::Refused(libc::EINVAL)) => unsafe { self.take(folio, home, half, work, direct, undo) },
            brought => brought, // a page that a device writes to is busy, and must not be copied
        };
        bring(folio, home)?;
        bring(folio + half, home + half).inspect_err(|_| patiently("mapped", || undo(folio, home, half)))
    }

    /// Returns the pages that are at a place to the folio, as they are: a device may be writing to them.
    ///
    /// # Safety
    /// As for `Mapper`. The place is the caller's.
    unsafe fn put_back(&self, folio: usize, place: usize, len: usize) {
        // SAFETY: the caller's ranges. All pages of the folio are at the place.
        let returned = unsafe { pages::return_pages(place, folio, len) };
        let registered = returned.and_then(|()| self.uffd.register(folio, len).map_err(io::Error::from));
        if let Err(error) = registered {
            fatal::die(&format!("pages in use could not go back to {folio:#x}: {error}"));
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        for _ in 0..NR_ASIDE {
            // SAFETY: this object's own addresses, which nobody uses any more.
            let _ = self.lent.take().map(|place| unsafe { memory::unmap(place, Order::HUGE.bytes()) });
        }
    }
}
