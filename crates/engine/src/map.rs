//! How a folio gets under its address and away from it again: the trait, by `UFFDIO_MOVE`, and by copying.
//!
//! A frame has a *home* address in the frames' memory. While its folio is mapped, the physical page is under the folio's
//! address ([`MoveMapper`]) and nothing is at home; otherwise it is at home. All calls are made by the holder of the
//! lock of the folio's block, so that nobody else maps, unmaps or reads the same frames.

use std::ops::Range;
use std::sync::Arc;

use folioswap_core::{Order, PAGE_SIZE, PIECE};
use folioswap_sys::memory;
use folioswap_sys::pagemap::Pagemap;
use folioswap_sys::uffd::{Mode, MoveError, Userfaultfd};

use crate::lent::Lent;

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

/// Carries folios between their address and the home of their frames.
pub(crate) trait Mapper: Send + Sync {
    /// How regions are registered with the userfaultfd.
    fn region_mode(&self) -> Mode;

    /// Whether the frames' memory is to be registered too (as the target of moves).
    fn registers_frames(&self) -> bool;

    /// Puts a huge page at a pageblock's home that has no memory; its content is zero. Says whether the kernel had one:
    /// else there are small ones.
    fn populate(&self, home: usize) -> Result<bool, MapError>;

    /// The same with small pages, for a pageblock of smaller folios.
    fn populate_small(&self, home: usize) -> Result<(), MapError>;

    /// Puts small pages at `len` bytes of a home that have lost theirs.
    fn repopulate(&self, home: usize, len: usize) -> Result<(), MapError>;

    /// What is at one home goes to another, which has no memory.
    fn move_home(&self, to: usize, from: usize, len: usize) -> Result<(), MapError>;

    /// Maps a fresh zeroed huge page at `folio`, or small ones, as `populate`; the home stays without memory of its own.
    fn map_fresh(&self, folio: usize, home: usize) -> Result<bool, MapError>;

    /// Puts `len` bytes of content under `folio` and wakes who waits for it.
    fn map(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError>;

    /// Takes the content home. From the return on a touch of `folio` faults, and no write is lost.
    fn unmap(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError>;
}

/// What memory that is made page by page contains at first.
static ZEROS: [u8; PIECE.bytes()] = [0; PIECE.bytes()];

/// Addresses of unregistered memory in which fresh pages are made; in registered memory they could not be: their first
/// touch would be a fault of the engine's own.
struct Nursery(Lent<usize>);

impl Nursery {
    /// Makes a pageblock's pages and has them taken away by `carry`.
    fn make<R>(&self, carry: impl FnOnce(usize) -> Result<R, MapError>) -> Result<R, MapError> {
        self.0.with(|&mut cradle| {
            // SAFETY: a pageblock of the nurseries, readable and writable, and lent to this call alone.
            unsafe { memory::populate_write(cradle, Order::HUGE.bytes()) }
                .map_err(|error| MapError::Refused(error.raw_os_error().unwrap_or(libc::ENOMEM)))
                .and_then(|()| carry(cradle))
        })
    }
}

/// By `UFFDIO_MOVE`: the page-table entry travels, the page does not. A huge page stays one.
pub(crate) struct MoveMapper {
    uffd: Arc<Userfaultfd>,
    pagemap: Arc<Pagemap>,
    nurseries: Vec<Nurseries>,
}

/// Where pages are made for the frames at these homes.
struct Nurseries {
    homes: Range<usize>,
    huge: Nursery,
    small: Nursery,
}

impl MoveMapper {
    /// For each zone the homes of its frames, and two ranges in which the kernel makes huge pages and small ones; as many can be
    /// made at once as there are pageblocks in them.
    pub fn new(
        uffd: Arc<Userfaultfd>,
        pagemap: Arc<Pagemap>,
        zones: impl IntoIterator<Item = [Range<usize>; 3]>,
    ) -> Self {
        let nursery = |range: Range<usize>| Nursery(Lent::new(range.step_by(Order::HUGE.bytes())));
        let nurseries = zones.into_iter().map(|[homes, huge, small]| Nurseries {
            homes,
            huge: nursery(huge),
            small: nursery(small),
        });
        MoveMapper { uffd, pagemap, nurseries: nurseries.collect() }
    }

    fn nurseries(&self, home: usize) -> &Nurseries {
        let found = self.nurseries.iter().find(|nurseries| nurseries.homes.contains(&home));
        found.expect("each home is one of a zone's")
    }

    /// Makes a huge page where those for a home are made, and moves it. Says whether it is one.
    fn carry_fresh(&self, target: usize, home: usize) -> Result<bool, MapError> {
        self.nurseries(home).huge.make(|cradle| {
            let range = cradle..cradle + Order::HUGE.bytes();
            // A kernel that cannot tell is taken at its word.
            let is_huge =
                self.pagemap.scan(range.clone()).map_or(true, |scan| scan.huge_bytes == Order::HUGE.bytes() as u64);
            let carried = self.carry(target, cradle, Order::HUGE.bytes());
            if !is_huge {
                // Where the table of small pages stays no huge page is made again; before Linux 6.14 it does.
                // SAFETY: lent to this call alone; what is left here is fresh, and nobody has seen it.
                let _ = unsafe { memory::dontneed_locked(range.start, range.len()) };
            }
            carried.map(|()| is_huge)
        })
    }

    /// Whether a page is in RAM at this address.
    fn is_present(&self, addr: usize) -> bool {
        let read = self.pagemap.is_present(addr);
        read.unwrap_or_else(|error| crate::fatal::die(&format!("the page tables could not be read: {error}")))
    }

    /// Moves a folio, or leaves all of it where it was.
    fn carry(&self, target: usize, source: usize, len: usize) -> Result<(), MapError> {
        match move_pages(&self.uffd, target, source, len) {
            Ok(()) => Ok(()),
            Err(MoveError::Partial { moved }) => self.finish(target, source, len, moved),
            Err(MoveError::Present) => self.finish(target, source, len, 0),
            Err(error) => Err(error.into()),
        }
    }

    /// Goes on with a move that ended after `moved` bytes, page by page; what cannot be moved whole is moved back. Which
    /// pages have moved the page tables say: Linux 6.18 was seen to say of a page that it has just moved that the target
    /// was there before (EEXIST).
    fn finish(&self, target: usize, source: usize, len: usize, moved: usize) -> Result<(), MapError> {
        let pages = || (0..len).step_by(PAGE_SIZE);
        let failed = pages().filter(|&at| at >= moved).find_map(|at| self.move_one(target + at, source + at).err());
        let Some(error) = failed else { return Ok(()) };
        for at in pages().filter(|&at| self.is_present(target + at) && !self.is_present(source + at)) {
            if let Err(error) = self.move_one(source + at, target + at) {
                crate::fatal::die(&format!("half of a folio could not be moved back: {error:?}"));
            }
        }
        Err(error)
    }

    /// Moves one page, unless it has moved already.
    fn move_one(&self, target: usize, source: usize) -> Result<(), MapError> {
        let has_moved = || self.is_present(target) && !self.is_present(source);
        if has_moved() {
            return Ok(());
        }
        match move_pages(&self.uffd, target, source, PAGE_SIZE) {
            Err(MoveError::Present) if has_moved() => Ok(()),
            other => other.map_err(MapError::from),
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

    fn populate(&self, home: usize) -> Result<bool, MapError> {
        self.carry_fresh(home, home)
    }

    fn populate_small(&self, home: usize) -> Result<(), MapError> {
        self.nurseries(home).small.make(|cradle| self.carry(home, cradle, Order::HUGE.bytes()))
    }

    fn repopulate(&self, home: usize, len: usize) -> Result<(), MapError> {
        for at in (0..len).step_by(ZEROS.len()) {
            // SAFETY: a home without memory, of frames that are the caller's alone: zeros are as good as what was lost.
            unsafe { self.uffd.copy(home + at, ZEROS.as_ptr() as usize, ZEROS.len().min(len - at)) }?;
        }
        Ok(())
    }

    fn move_home(&self, to: usize, from: usize, len: usize) -> Result<(), MapError> {
        self.carry(to, from, len)
    }

    fn map_fresh(&self, folio: usize, home: usize) -> Result<bool, MapError> {
        self.carry_fresh(folio, home)
    }

    fn map(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        self.carry(folio, home, len)
    }

    fn unmap(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        self.carry(home, folio, len)
    }
}

/// By copying, for kernels without a sound `UFFDIO_MOVE`. Huge pages become small ones.
pub(crate) struct CopyMapper {
    uffd: Arc<Userfaultfd>,
    pagemap: Arc<Pagemap>,
}

impl CopyMapper {
    pub fn new(uffd: Arc<Userfaultfd>, pagemap: Arc<Pagemap>) -> Self {
        CopyMapper { uffd, pagemap }
    }

    fn protect(&self, folio: usize, len: usize, on: bool) -> Result<(), MapError> {
        self.uffd.write_protect(folio, len, on).map_err(refused)
    }
}

impl Mapper for CopyMapper {
    fn region_mode(&self) -> Mode {
        Mode::MissingAndWriteProtect
    }

    fn registers_frames(&self) -> bool {
        false
    }

    fn populate(&self, _home: usize) -> Result<bool, MapError> {
        Ok(true) // the frames' memory is ordinary: the first touch makes the page
    }

    fn populate_small(&self, _home: usize) -> Result<(), MapError> {
        Ok(())
    }

    fn repopulate(&self, _home: usize, _len: usize) -> Result<(), MapError> {
        Ok(())
    }

    fn move_home(&self, _to: usize, from: usize, len: usize) -> Result<(), MapError> {
        drop_pages(from, len) // and the other one has ordinary memory when it is touched
    }

    fn map_fresh(&self, folio: usize, home: usize) -> Result<bool, MapError> {
        self.map(folio, home, Order::HUGE.bytes()).map(|()| true) // a home without memory reads as zero
    }

    fn map(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the folio's place and the home of its frames, whose block the caller has locked: nobody writes at home, and
        // who touches the folio waits for just this content.
        unsafe { self.uffd.copy(folio, home, len) }?;
        drop_pages(home, len)
    }

    fn unmap(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        // Protected first: a write from here on waits as a fault, so that what is copied is what is dropped.
        self.protect(folio, len, true)?;
        // SAFETY: the folio's place in a region, readable and now write-protected; the home is of its frames, writable, and
        // apart from all regions. The caller has locked the block, so nobody else unmaps, reads or writes either.
        if unsafe { memory::copy_pages(&self.pagemap, folio, home, len) }.is_err() {
            self.protect(folio, len, false)?;
            return Err(MapError::Missing);
        }
        drop_pages(folio, len)
    }
}

/// Moves pages between a home and another place of the same content.
fn move_pages(uffd: &Userfaultfd, target: usize, source: usize, len: usize) -> Result<(), MoveError> {
    // SAFETY: places of this arena: regions, homes, nurseries. The mapper's caller has locked the block of the folio, or has
    // the frames alone: nobody refers to what is at home, and a touch of a region faults until its content is back.
    unsafe { uffd.move_pages(target, source, len) }
}

/// Drops what is at a home or under a folio, when it is elsewhere or nobody's.
fn drop_pages(addr: usize, len: usize) -> Result<(), MapError> {
    // SAFETY: a range of a folio whose block is locked by this mapper's caller, or of its frames: nobody else refers to what
    // is at home, and a touch of a region faults and waits for the lock.
    unsafe { memory::dontneed(addr, len) }.map_err(refused)
}

fn refused(error: std::io::Error) -> MapError {
    MapError::Refused(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use folioswap_sys::memory::Reservation;
    use folioswap_sys::uffd::Delivery;

    const NR_PAGES: usize = 16;
    const LEN: usize = NR_PAGES * PAGE_SIZE;

    /// A mapper of its own for two ranges side by side, the first of which `fill` has filled; none where nothing moves.
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
        uffd.register(area.addr(), 2 * LEN, Mode::Missing).unwrap();
        Some((MoveMapper::new(Arc::new(uffd), Arc::new(Pagemap::open().unwrap()), []), area))
    }

    /// A page at `here` for each index: its content, or one of the kernel's zeros.
    fn fill(here: usize, is_zero: impl Fn(usize) -> bool) {
        for index in 0..NR_PAGES {
            let page = (here + index * PAGE_SIZE) as *mut u64;
            // SAFETY: a page of readable, writable memory of the test's own, not registered yet.
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
                move_pages(&mapper.uffd, there + at, here + at, PAGE_SIZE).unwrap();
            }
            mapper.carry(there, here, LEN).unwrap();
            for index in 0..NR_PAGES {
                // SAFETY: the page has just been moved here.
                let word = unsafe { ((there + index * PAGE_SIZE) as *const u64).read_volatile() };
                assert_eq!(word, if index == 4 { 0 } else { index as u64 + 1 });
                assert!(!mapper.is_present(here + index * PAGE_SIZE));
            }
        }
    }

    #[test]
    fn what_cannot_move_whole_is_moved_back() {
        let with_a_hole = |here| {
            fill(here, |index| index == 3);
            // SAFETY: a page of the test's own, to which it holds no reference.
            unsafe { memory::dontneed(here + 9 * PAGE_SIZE, PAGE_SIZE).unwrap() };
        };
        let Some((mapper, area)) = mapper(with_a_hole) else { return };
        let (here, there) = (area.addr(), area.addr() + LEN);
        assert_eq!(mapper.carry(there, here, LEN), Err(MapError::Missing));
        for index in 0..NR_PAGES {
            assert_eq!(mapper.is_present(here + index * PAGE_SIZE), index != 9, "page {index}");
            assert!(!mapper.is_present(there + index * PAGE_SIZE));
        }
    }
}
