//! Maps folios at their addresses by `UFFDIO_MOVE`, and moves them home.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLockWriteGuard};

use folioswap_core::{Order, PAGE_SIZE};
use folioswap_sys::memory;
use folioswap_sys::pagemap::Pagemap;
use folioswap_sys::uffd::{MoveError, Userfaultfd};

use super::aside::Aside;
use super::map_error::{MapError, patiently, refused};
use super::mapper::{Mapper, copy_in};
use crate::process::fatal;
use crate::process::lent::Lent;

/// How often the program may look at an empty home while content moves there.
const MAX_ATTEMPTS: usize = 100;

/// Unregistered memory in which fresh pages are made. In registered memory, their first touch would be a userfault.
struct Nursery(Lent<usize>);

impl Nursery {
    /// Makes the pages of a pageblock, which `carry` moves away.
    fn make<R>(&self, carry: impl FnOnce(usize) -> Result<R, MapError>) -> Result<R, MapError> {
        self.0.with(|&mut fresh| {
            // SAFETY: a pageblock of the nurseries, readable and writable, lent to this call alone.
            unsafe { memory::populate_write(fresh, Order::HUGE.bytes()) }
                .map_err(|error| MapError::Refused(error.raw_os_error().unwrap_or(libc::ENOMEM)))
                .and_then(|()| carry(fresh))
        })
    }
}

/// Maps by `UFFDIO_MOVE`, which moves the page-table entry and not the page's content. A huge page stays huge.
pub(crate) struct MoveMapper {
    uffd: Arc<Userfaultfd>,
    pagemap: Arc<Pagemap>,
    nurseries: Vec<Nurseries>,
    aside: Aside,
    /// Whether all memory is locked in RAM. Pages are moved only between memory that is locked alike.
    is_locked: AtomicBool,
    /// This process has forked, or was forked: pages may be shared. Such a page moves only once this process has
    /// written it. The kernel (6.18) asks that of the first page of the huge page only, which may be elsewhere by now:
    /// then the huge page must be split, or replaced.
    shares: AtomicBool,
    /// Whether this kernel drops page tables (Linux 6.14).
    drops_tables: bool,
}

/// Where pages are made for the frames of these homes.
struct Nurseries {
    /// The homes, and all of both ranges.
    all: [Range<usize>; 3],
    homes: Range<usize>,
    huge: Nursery,
    small: Nursery,
}

impl MoveMapper {
    /// Takes for each zone the homes of its frames, and two ranges in which the kernel makes huge pages and small
    /// pages. As many pageblocks can be made at once as these ranges have. `is_locked`: all memory is, in RAM.
    /// `drops_tables`: this kernel does.
    pub fn new(
        uffd: Arc<Userfaultfd>,
        pagemap: Arc<Pagemap>,
        zones: impl IntoIterator<Item = [Range<usize>; 3]>,
        is_locked: bool,
        drops_tables: bool,
    ) -> io::Result<Self> {
        let nursery = |range: Range<usize>| Nursery(Lent::new(range.step_by(Order::HUGE.bytes())));
        let nurseries = zones.into_iter().map(|[homes, huge, small]| Nurseries {
            all: [homes.clone(), huge.clone(), small.clone()],
            homes,
            huge: nursery(huge),
            small: nursery(small),
        });
        Ok(MoveMapper {
            nurseries: nurseries.collect(),
            aside: Aside::new(uffd.clone())?,
            uffd,
            pagemap,
            is_locked: is_locked.into(),
            shares: AtomicBool::new(false),
            drops_tables,
        })
    }

    fn nurseries(&self, home: usize) -> &Nurseries {
        let found = self.nurseries.iter().find(|nurseries| nurseries.homes.contains(&home));
        found.expect("each home is one of a zone's")
    }

    fn is_home(&self, addr: usize) -> bool {
        self.nurseries.iter().any(|nurseries| nurseries.homes.contains(&addr))
    }

    /// Whether an address is the program's.
    fn is_programs(&self, addr: usize) -> bool {
        !self.nurseries.iter().flat_map(|nurseries| &nurseries.all).any(|range| range.contains(&addr))
    }

    /// Moves content from home to a folio's address.
    ///
    /// # Safety
    /// As for [`Mapper`].
    unsafe fn put_in(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's ranges.
        match unsafe { self.carry(folio, home, len) } {
            // The program may not write there, or only to a part of it. A copy keeps the protection.
            // SAFETY: as above.
            Err(MapError::Refused(libc::EINVAL) | MapError::Missing) => unsafe { copy_in(self, folio, home, len) },
            moved => moved,
        }
    }

    /// Drops what is at the program's addresses before a huge page is moved there: a page that somebody has left, to
    /// which none could be moved, and where the kernel does so the table of small pages. Other threads' touches may
    /// make another table, so this comes last.
    ///
    /// # Safety
    /// As for [`Mapper`]. No content is mapped there.
    unsafe fn drop_table(&self, folio: usize, len: usize) {
        if len == Order::HUGE.bytes() && self.is_programs(folio) {
            // SAFETY: the caller's range. If the table stays, the huge page is split.
            let _ = unsafe { self.discard(folio, len) };
        }
    }

    /// Makes a huge page of pages that all are present, if they are those of one.
    fn make_whole(&self, addr: usize, len: usize) {
        if len != Order::HUGE.bytes() {
            return;
        }
        // Else it stays as it is.
        if self.drops_tables && self.is_programs(addr) {
            let _ = memory::advise_hugepage(addr, len).and_then(|()| memory::collapse(addr, len));
            let _ = memory::advise_nohugepage(addr, len);
        } else {
            let _ = memory::collapse(addr, len);
        }
    }

    /// Makes a huge page in the nursery of a home's zone, and moves it to `target`. Returns whether it is huge.
    ///
    /// # Safety
    /// As for [`Mapper`].
    unsafe fn carry_fresh(&self, target: usize, home: usize) -> Result<bool, MapError> {
        self.nurseries(home).huge.make(|fresh| {
            let range = fresh..fresh + Order::HUGE.bytes();
            // If the kernel cannot tell, assume a huge page.
            let is_huge =
                self.pagemap.scan(range.clone()).map_or(true, |scan| scan.huge_bytes == Order::HUGE.bytes() as u64);
            // SAFETY: the caller's range, and one that is lent to this call alone.
            let carried = unsafe { self.carry_zeros(target, fresh) };
            if !is_huge {
                // While the table of small pages stays, no huge page is made here again. Linux before 6.14 keeps it.
                // SAFETY: lent to this call alone; what is left here is fresh, and nobody refers to it.
                let _ = unsafe { memory::dontneed_locked(range.start, range.len()) };
            }
            carried.map(|()| is_huge)
        })
    }

    /// Moves the pages of zeros of a whole nursery. Once some are at the target, zeros are copied for those that do not
    /// move: the program may have written there, and pages do not move back to a nursery.
    ///
    /// # Safety
    /// As for [`Mapper`]. The nursery is lent to this call alone.
    unsafe fn carry_zeros(&self, target: usize, fresh: usize) -> Result<(), MapError> {
        let len = Order::HUGE.bytes();
        let carry = || {
            // SAFETY: the caller's ranges.
            let moved = match unsafe { move_pages(&self.uffd, target, fresh, len) } {
                Err(MoveError::Partial { moved }) => moved,
                Err(MoveError::Present) => 0,
                done => return done.map_err(MapError::from),
            };
            if self.is_home(target) {
                // SAFETY: a home without content.
                return unsafe { self.repopulate(target + moved, len - moved) };
            }
            for at in (moved..len).step_by(PAGE_SIZE) {
                // SAFETY: a page of the caller's range.
                patiently("filled", || match unsafe { self.fill(target + at, PAGE_SIZE) } {
                    Err(MoveError::Present) => Ok(()),
                    done => done.map_err(MapError::from),
                });
            }
            Ok(())
        };
        // SAFETY: the caller's range.
        unsafe { self.drop_table(target, len) };
        self.insist(fresh, len, carry)
    }

    /// Moves pages from a place aside home, one by one where they do not move together. Those that a child of fork
    /// shares become this process's own for that. If one is in use, all are at the place again.
    ///
    /// # Safety
    /// As for [`Mapper`]. The place is the caller's.
    unsafe fn gather(&self, place: usize, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's ranges.
        if unsafe { move_pages(&self.uffd, home, place, len) }.is_ok() {
            return Ok(());
        }
        for at in (0..len).step_by(PAGE_SIZE) {
            // SAFETY: as above.
            let mut moved = unsafe { self.move_one(home + at, place + at) };
            for make_own in [memory::write_present, memory::split_huge_page] {
                if moved.is_err() {
                    make_own(place + at, PAGE_SIZE);
                    // SAFETY: as above.
                    moved = unsafe { self.move_one(home + at, place + at) };
                }
            }
            if let Err(error) = moved {
                if at == 0 {
                    return Err(error);
                }
                // Pages move to registered memory only. Those that have come home already would read as zeros.
                let registered = self.uffd.register(place, len);
                registered.unwrap_or_else(|_| fatal::die(&format!("pages at {place:#x} cannot be moved back")));
                for got in (0..at).step_by(PAGE_SIZE) {
                    // SAFETY: as above.
                    patiently("moved back", || unsafe { self.move_one(place + got, home + got) });
                }
                let _ = self.uffd.unregister(place, len);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether there is a page at this address. One that the kernel migrates counts: it is not missing.
    fn is_filled(&self, addr: usize) -> bool {
        let read = self.pagemap.is_filled(addr);
        read.unwrap_or_else(|error| fatal::die(&format!("the page tables could not be read: {error}")))
    }

    /// Moves a folio, or leaves all of it where it was.
    ///
    /// # Safety
    /// As for [`Mapper`].
    unsafe fn carry(&self, target: usize, source: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's ranges.
        self.insist(source, len, || unsafe { self.carry_once(target, source, len) })
    }

    /// Repeats a move, where a child shares pages of the source, once they are this process's own.
    fn insist(&self, source: usize, len: usize, carry: impl Fn() -> Result<(), MapError>) -> Result<(), MapError> {
        // A page of zeros was replaced by the kernel's zero page when a fork split the huge page.
        let is_shared = |carried: &Result<(), MapError>| {
            self.shares.load(Ordering::Relaxed)
                && matches!(carried, Err(MapError::Busy | MapError::Refused(libc::EEXIST)))
                && self.pagemap.are_present(source, len)
        };
        let mut carried = carry();
        let make_whole = |addr, len| self.make_whole(addr, len);
        let ways: [&dyn Fn(usize, usize); 3] = [&memory::write_present, &make_whole, &memory::split_huge_page];
        for make_own in ways {
            if !is_shared(&carried) {
                break;
            }
            make_own(source, len);
            carried = carry();
        }
        carried
    }

    /// As [`MoveMapper::carry`], but for pages that are shared.
    ///
    /// # Safety
    /// As for [`Mapper`].
    unsafe fn carry_once(&self, target: usize, source: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's ranges.
        match unsafe { move_pages(&self.uffd, target, source, len) } {
            Ok(()) => Ok(()),
            // SAFETY: as above.
            Err(MoveError::Partial { moved }) => unsafe { self.finish(target, source, len, moved) },
            // SAFETY: as above.
            Err(MoveError::Present) => unsafe { self.finish(target, source, len, 0) },
            Err(error) => Err(error.into()),
        }
    }

    /// Continues, page by page, a move that stopped after `moved` bytes. If a page cannot be moved, moves all of them
    /// back. The page tables decide which pages have moved: Linux 6.18 reports EEXIST even for a page that it has just
    /// moved.
    ///
    /// # Safety
    /// As for [`Mapper`].
    unsafe fn finish(&self, target: usize, source: usize, len: usize, moved: usize) -> Result<(), MapError> {
        let pages = || (0..len).step_by(PAGE_SIZE);
        let one = |at| {
            // SAFETY: a page of the caller's ranges.
            unsafe { self.move_one(target + at, source + at) }
        };
        let failed = pages().filter(|&at| at >= moved).find_map(|at| one(at).err());
        let Some(error) = failed else { return Ok(()) };
        for at in pages().filter(|&at| self.is_filled(target + at) && !self.is_filled(source + at)) {
            // SAFETY: as above.
            patiently("moved back", || unsafe { self.move_one(source + at, target + at) });
        }
        Err(error)
    }

    /// Moves one page, unless it has moved already.
    ///
    /// # Safety
    /// As for [`Mapper`].
    unsafe fn move_one(&self, target: usize, source: usize) -> Result<(), MapError> {
        let has_moved = || self.is_filled(target) && !self.is_filled(source);
        if has_moved() {
            return Ok(());
        }
        // SAFETY: the caller's pages.
        let move_it = || unsafe { move_pages(&self.uffd, target, source, PAGE_SIZE) };
        let mut moved = move_it();
        for _ in 0..MAX_ATTEMPTS {
            match moved {
                Err(MoveError::Present) if has_moved() => return Ok(()),
                Err(MoveError::Present) if self.is_home(target) && self.is_filled(source) => {
                    // SAFETY: as above. The content is at the source; the program has looked at its empty home.
                    unsafe { self.discard(target, PAGE_SIZE)? };
                    moved = move_it();
                }
                _ => break,
            }
        }
        moved.map_err(MapError::from)
    }
}

impl Mapper for MoveMapper {
    fn uffd(&self) -> &Userfaultfd {
        &self.uffd
    }

    fn pagemap(&self) -> &Pagemap {
        &self.pagemap
    }

    fn drops_tables(&self) -> bool {
        self.drops_tables
    }

    fn registers_frames(&self) -> bool {
        true
    }

    fn note_fork(&self) {
        self.shares.store(true, Ordering::Relaxed);
    }

    fn hold_mappings(&self) -> RwLockWriteGuard<'_, ()> {
        self.aside.hold_off()
    }

    fn forget_lock(&self) {
        self.is_locked.store(false, Ordering::Relaxed);
    }

    unsafe fn populate(&self, home: usize) -> Result<bool, MapError> {
        // SAFETY: the caller's ranges.
        unsafe { self.carry_fresh(home, home) }
    }

    unsafe fn populate_small(&self, home: usize) -> Result<(), MapError> {
        // SAFETY: the caller's range, and one that is lent to this call alone.
        self.nurseries(home).small.make(|fresh| unsafe { self.carry_zeros(home, fresh) })
    }

    unsafe fn repopulate(&self, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: a home without memory, of frames that belong to the caller alone. Zeros may replace the lost content.
        let fill = || unsafe { self.fill(home, len) };
        // SAFETY: as above. If there are pages, the program has looked at the empty home.
        fill().or_else(|_| unsafe { self.discard(home, len) }.and_then(|()| fill().map_err(MapError::from)))
    }

    unsafe fn move_home(&self, to: usize, from: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's ranges.
        unsafe { self.carry(to, from, len) }
    }

    unsafe fn map_fresh(&self, folio: usize, home: usize) -> Result<bool, MapError> {
        // SAFETY: the caller's ranges.
        match unsafe { self.carry_fresh(folio, home) } {
            // The program may not write there, or only to a part of it.
            // SAFETY: as above.
            Err(MapError::Refused(libc::EINVAL) | MapError::Missing) => unsafe {
                self.carry_fresh(home, home)?;
                copy_in(self, folio, home, Order::HUGE.bytes()).map(|()| false)
            },
            made => made,
        }
    }

    unsafe fn map(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's ranges.
        unsafe {
            self.drop_table(folio, len);
            self.put_in(folio, home, len)
        }
    }

    unsafe fn unmap(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's ranges.
        match unsafe { self.carry(home, folio, len) } {
            // The program may not write there, or only to a part of it: the kernel moves pages only between memory of
            // one protection.
            Err(MapError::Refused(libc::EINVAL)) => {
                let carry = |place, folio, home, len| {
                    if self.is_locked.load(Ordering::Relaxed) {
                        memory::lock_on_fault(folio, len).map_err(refused)?; // it lost that when its pages were taken
                    }
                    // SAFETY: as above; the place has the pages of the folio.
                    unsafe { self.gather(place, home, len) }
                };
                // SAFETY: as above.
                let direct = |folio, home, len| unsafe { self.carry(home, folio, len) };
                // SAFETY: as above.
                let undo = |folio, home, len| unsafe { self.put_in(folio, home, len) };
                // SAFETY: as above.
                unsafe { self.aside.take(folio, home, len, &carry, &direct, &undo) }
            }
            moved => moved,
        }
    }
}

/// Moves pages between places of this arena.
///
/// # Safety
/// As for [`Mapper`].
unsafe fn move_pages(uffd: &Userfaultfd, target: usize, source: usize, len: usize) -> Result<(), MoveError> {
    // SAFETY: the caller has both ranges to itself: nobody refers to memory at home, and an access to a region faults
    // until its content is back.
    unsafe { uffd.move_pages(target, source, len) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

    use super::*;
    use folioswap_sys::memory::Reservation;
    use folioswap_sys::uffd::Delivery;

    use crate::tests::swap_file::SwapFile;

    const NR_PAGES: usize = 16;
    const LEN: usize = NR_PAGES * PAGE_SIZE;

    /// A child that shares the memory of this process until this is dropped.
    struct Child(libc::pid_t);

    impl Child {
        fn waiting() -> Self {
            // SAFETY: the child waits in one system call until it is killed.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above; takes no pointers.
                unsafe { libc::pause() };
                folioswap_sys::signals::exit_now(0);
            }
            assert!(child > 0);
            Child(child)
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: the test's own child.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    /// A mapper for two adjacent ranges, the first filled by `fill`. `None` without `UFFDIO_MOVE`.
    fn mapper(fill: impl FnOnce(usize)) -> Option<(MoveMapper, Reservation)> {
        let Ok((uffd, features, _)) = Userfaultfd::open(Delivery::Sigbus) else {
            println!("skipped: no userfaultfd");
            return None;
        };
        if !features.has_move {
            println!("skipped: no UFFDIO_MOVE");
            return None;
        }
        let area = Reservation::new(2 * LEN, LEN).unwrap();
        area.protect_rw(area.range()).unwrap();
        memory::advise_nohugepage(area.addr(), 2 * LEN).unwrap();
        fill(area.addr());
        uffd.register(area.addr(), 2 * LEN).unwrap();
        Some((MoveMapper::new(Arc::new(uffd), Arc::new(Pagemap::open().unwrap()), [], false, true).unwrap(), area))
    }

    /// Fills the pages at `here`, or maps the kernel's zero page where `is_zero`.
    fn fill(here: usize, is_zero: impl Fn(usize) -> bool) {
        for index in 0..NR_PAGES {
            let page = (here + index * PAGE_SIZE) as *mut u64;
            // SAFETY: a page of the test's own readable, writable memory, not registered yet.
            let first = unsafe {
                if is_zero(index) {
                    page.read_volatile()
                } else {
                    page.write_volatile(index as u64 + 1);
                    1
                }
            };
            assert_eq!(first, u64::from(!is_zero(index)));
        }
    }

    #[test]
    fn a_folio_some_pages_of_which_have_moved_already_moves_whole() {
        let moved_before: [fn(usize) -> bool; 4] = [|_| false, |index| index == 0, |index| index % 3 == 2, |_| true];
        for has_moved in moved_before {
            let Some((mapper, area)) = mapper(|here| fill(here, |index| index == 4)) else { return };
            let (here, there) = (area.addr(), area.addr() + LEN);
            for at in (0..NR_PAGES).filter(|&index| has_moved(index)).map(|index| index * PAGE_SIZE) {
                // SAFETY: pages of the test's own memory, to which it holds no reference.
                unsafe { move_pages(&mapper.uffd, there + at, here + at, PAGE_SIZE) }.unwrap();
            }
            // SAFETY: as above.
            unsafe { mapper.carry(there, here, LEN) }.unwrap();
            for index in 0..NR_PAGES {
                // SAFETY: the page has just been moved here, and is readable.
                let word = unsafe { ((there + index * PAGE_SIZE) as *const u64).read_volatile() };
                assert_eq!(word, if index == 4 { 0 } else { index as u64 + 1 });
                assert!(!mapper.is_filled(here + index * PAGE_SIZE));
            }
        }
    }

    /// A page that the kernel migrates looks the same.
    #[test]
    fn a_page_that_the_kernel_has_swapped_since_it_moved_is_not_missing() {
        let _swap = match SwapFile::new() {
            Ok(swap) => swap,
            Err(error) => return println!("SKIP a page that the kernel has swapped: swapon: {error}"),
        };
        let fails = |here| {
            fill(here, |_| false);
            // SAFETY: a page of the test's own memory, to which it holds no reference.
            unsafe { memory::dontneed(here + 9 * PAGE_SIZE, PAGE_SIZE).unwrap() };
        };
        for (is_whole, fill_it) in [(true, &(|here| fill(here, |_| false)) as &dyn Fn(usize)), (false, &fails)] {
            let Some((mapper, area)) = mapper(fill_it) else { return };
            let (here, there) = (area.addr(), area.addr() + LEN);
            // SAFETY: a page of the test's own memory, to which it holds no reference.
            unsafe { move_pages(&mapper.uffd, there + PAGE_SIZE, here + PAGE_SIZE, PAGE_SIZE) }.unwrap();
            // SAFETY: takes no pointer that is dereferenced; the page keeps its content.
            assert_eq!(unsafe { libc::madvise((there + PAGE_SIZE) as *mut _, PAGE_SIZE, libc::MADV_PAGEOUT) }, 0);
            if !mapper.pagemap.is_swapped(there + PAGE_SIZE).unwrap() {
                return println!("SKIP a page that the kernel has swapped: it takes nothing");
            }
            // SAFETY: the test's own memory, to which it holds no reference.
            let carried = unsafe { mapper.carry(there, here, LEN) };
            assert_eq!(carried, if is_whole { Ok(()) } else { Err(MapError::Missing) });
            for index in (0..NR_PAGES).filter(|&index| is_whole || index != 9) {
                let at = if is_whole { there } else { here } + index * PAGE_SIZE;
                // SAFETY: the page is here, and readable.
                assert_eq!(unsafe { (at as *const u64).read_volatile() }, index as u64 + 1);
            }
        }
    }

    #[test]
    fn pages_that_a_child_shares_move_and_so_do_pages_of_zeros_among_them() {
        let Some((mapper, area)) = mapper(|here| fill(here, |index| index % 3 == 1)) else { return };
        let (here, there) = (area.addr(), area.addr() + LEN);
        let child = Child::waiting();
        mapper.note_fork();
        // SAFETY: the test's own memory, to which it holds no reference.
        let carried = unsafe { mapper.carry(there, here, LEN) };
        drop(child);
        assert_eq!(carried, Ok(()));
        for index in 0..NR_PAGES {
            // SAFETY: the page has just been moved here, and is readable.
            let word = unsafe { ((there + index * PAGE_SIZE) as *const u64).read_volatile() };
            assert_eq!(word, if index % 3 == 1 { 0 } else { index as u64 + 1 });
        }
    }

    #[test]
    fn what_cannot_move_whole_is_moved_back() {
        let with_a_hole = |here| {
            fill(here, |index| index == 3);
            // SAFETY: a page of the test's own memory, to which it holds no reference.
            unsafe { memory::dontneed(here + 9 * PAGE_SIZE, PAGE_SIZE).unwrap() };
        };
        let Some((mapper, area)) = mapper(with_a_hole) else { return };
        let (here, there) = (area.addr(), area.addr() + LEN);
        // SAFETY: the test's own memory, to which it holds no reference.
        assert_eq!(unsafe { mapper.carry(there, here, LEN) }, Err(MapError::Missing));
        for index in 0..NR_PAGES {
            assert_eq!(mapper.is_filled(here + index * PAGE_SIZE), index != 9, "page {index}");
            assert!(!mapper.is_filled(there + index * PAGE_SIZE));
        }
    }

    /// Pins pages, which do not move then, until the result is dropped. `None` without io_uring.
    fn pinned(pages: &[libc::iovec]) -> Option<OwnedFd> {
        const PARAMETERS: usize = 120;
        const REGISTER_BUFFERS: usize = 0;
        let mut parameters = [0u64; PARAMETERS / 8];
        // SAFETY: the kernel reads and writes the parameters.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
        if ring < 0 {
            println!("skipped: no io_uring");
            return None;
        }
        // SAFETY: a new descriptor. The kernel reads the list, whose pages are the test's own.
        let (ring, done) = unsafe {
            let ring = OwnedFd::from_raw_fd(ring as RawFd);
            let list = (pages.as_ptr(), pages.len());
            let done = libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), REGISTER_BUFFERS, list.0, list.1);
            (ring, done)
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        Some(ring)
    }

    /// A mapper that drops no tables, and its areas of 2 MiB: homes, the program's memory, and the nurseries of huge
    /// and of small pages. Before the first two are registered, `fill` is called.
    fn whole_mapper(fill: impl FnOnce(&[usize; 4])) -> Option<(MoveMapper, Reservation, [usize; 4])> {
        const HUGE: usize = Order::HUGE.bytes();
        let Ok((uffd, features, _)) = Userfaultfd::open(Delivery::Sigbus) else {
            println!("skipped: no userfaultfd");
            return None;
        };
        if !features.has_move {
            println!("skipped: no UFFDIO_MOVE");
            return None;
        }
        let area = Reservation::new(4 * HUGE, HUGE).unwrap();
        area.protect_rw(area.range()).unwrap();
        let all @ [homes, _, huge, small] = [0, 1, 2, 3].map(|index| area.addr() + index * HUGE);
        memory::advise_nohugepage(area.addr(), area.len()).unwrap();
        fill(&all);
        uffd.register(homes, 2 * HUGE).unwrap();
        let zones = [[homes..homes + HUGE, huge..huge + HUGE, small..small + HUGE]];
        let mapper = MoveMapper::new(Arc::new(uffd), Arc::new(Pagemap::open().unwrap()), zones, false, false).unwrap();
        Some((mapper, area, all))
    }

    #[test]
    fn a_block_is_mapped_where_a_page_was_left() {
        const HUGE: usize = Order::HUGE.bytes();
        for makes_huge in [false, true] {
            let made = whole_mapper(|&[homes, folio, ..]| {
                if makes_huge {
                    memory::advise_hugepage(homes, HUGE).unwrap();
                }
                for at in (0..HUGE).step_by(PAGE_SIZE) {
                    // SAFETY: the test's own readable, writable memory, not registered yet.
                    unsafe { ((homes + at) as *mut usize).write_volatile(at + 1) };
                }
                // SAFETY: as above.
                unsafe { ((folio + 9 * PAGE_SIZE) as *mut usize).write_volatile(1) };
            });
            let Some((mapper, _area, [homes, folio, ..])) = made else { return };
            // SAFETY: the test's own memory, to which it holds no reference.
            patiently("mapped", || unsafe { mapper.map(folio, homes, HUGE) }); // children of other tests share it
            for at in (0..HUGE).step_by(PAGE_SIZE) {
                // SAFETY: the page has just been moved here, and is readable.
                assert_eq!(unsafe { ((folio + at) as *const usize).read_volatile() }, at + 1);
            }
        }
    }

    #[test]
    fn zeros_are_there_although_one_of_the_nurserys_pages_is_in_use() {
        const HUGE: usize = Order::HUGE.bytes();
        let Some((mapper, _area, [homes, folio, huge, small])) = whole_mapper(|_| ()) else { return };
        let page = |nursery| libc::iovec { iov_base: (nursery + 9 * PAGE_SIZE) as *mut _, iov_len: PAGE_SIZE };
        let Some(_pinned) = pinned(&[page(huge), page(small)]) else { return };
        let is_whole = |there: usize| {
            let pages = (there..there + HUGE).step_by(PAGE_SIZE);
            // SAFETY: present pages of the test's own memory.
            pages.into_iter().all(|at| mapper.is_filled(at) && unsafe { (at as *const u64).read_volatile() } == 0)
        };
        // SAFETY: the test's own memory, to which it holds no reference.
        unsafe {
            patiently("made", || mapper.populate_small(homes));
            assert!(is_whole(homes));
            mapper.discard(homes, HUGE).unwrap();
            assert_eq!(mapper.populate(homes), Ok(false));
            assert!(is_whole(homes));
            mapper.discard(homes, HUGE).unwrap();
            assert_eq!(mapper.map_fresh(folio, homes), Ok(false));
            assert!(is_whole(folio) && !mapper.is_filled(homes));
        }
    }
}
