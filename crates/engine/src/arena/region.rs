//! Regions of memory, and typed vectors in them.

use std::marker::PhantomData;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};

use crate::arena::Arena;
use crate::arena::advice::Advice;
use crate::arena::by_address::RawSpace;
use crate::config::error::Error;
use crate::config::folio_size::FolioSize;

/// A range of memory that the arena pages. Zero at first, freed on drop.
///
/// It behaves like a boxed slice, with one exception: in [direct](crate::FaultMode::Direct) fault mode a system call
/// fails with `EFAULT` if the memory passed to it is not in RAM.
pub struct Region {
    space: RawSpace,
    addr: usize,
    len: usize,
    _arena: Arena,
}

impl Region {
    pub(crate) fn new(arena: &Arena, len: usize, folio: FolioSize) -> Result<Self, Error> {
        let space = arena.raw();
        let addr = space.map_with(len, folio)?;
        Ok(Region { space, addr, len, _arena: arena.clone() })
    }

    /// Its first address, a multiple of 2 MiB.
    pub fn as_ptr(&self) -> *const u8 {
        self.addr as *const u8
    }

    /// As [`Region::as_ptr`], for writing.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.addr as *mut u8
    }

    /// Advises how a range of bytes will be used; `..` is all of it.
    ///
    /// [`Advice::DontNeed`] zeroes exactly these bytes. All other advice applies to the whole blocks of 2 MiB that
    /// overlap the range, and changes no content.
    ///
    /// # Panics
    /// If the range reaches past the end, as for a slice.
    pub fn advise(&mut self, range: impl RangeBounds<usize>, advice: Advice) {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end + 1,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len,
        };
        assert!(start <= end && end <= self.len, "{start}..{end} is not in a region of {} bytes", self.len);
        let (addr, len) = (self.addr + start, end - start);
        match advice {
            // SAFETY: the range lies in this region, which is borrowed mutably.
            Advice::DontNeed => unsafe { self.space.discard(addr, len) },
            other => self.space.advise(addr, len, other),
        }
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `addr..addr + len` was mapped for this region alone, readable and writable, and stays mapped until it
        // is dropped. The engine brings missing folios in when they are touched. Any byte is a valid u8, and writers
        // need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow of `self` is unique.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: whole blocks of this region, whose only owner is dropped; no borrow is left.
        unsafe { self.space.unmap(self.addr, self.len) }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({:#x}, {} bytes)", self.addr, self.len)
    }
}

/// A vector of fixed length in an arena: `ArenaVec<u64>` is a `[u64]` that may be larger than RAM.
pub struct ArenaVec<T: bytemuck::Pod> {
    region: Region,
    len: usize,
    _items: PhantomData<T>,
}

impl<T: bytemuck::Pod> ArenaVec<T> {
    /// A vector of `len` zeros.
    ///
    /// # Errors
    /// As [`Arena::map`].
    pub fn zeroed(arena: &Arena, len: usize) -> Result<Self, Error> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Error::BadLength(usize::MAX))?;
        Ok(ArenaVec { region: arena.map(bytes)?, len, _items: PhantomData })
    }

    /// The region that holds it, for advice.
    pub fn region(&mut self) -> &mut Region {
        &mut self.region
    }
}

impl<T: bytemuck::Pod> Deref for ArenaVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.region)[..self.len]
    }
}

impl<T: bytemuck::Pod> DerefMut for ArenaVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let len = self.len;
        &mut bytemuck::cast_slice_mut(&mut self.region)[..len]
    }
}
