//! An allocator over an arena: blocks of any size behind ordinary pointers, that together may be larger than RAM.
//!
//! A block of [`LARGE_BYTES`] or more is memory of its own, which goes back when it is freed. Smaller blocks lie in
//! chunks, which they share (dlmalloc). The records of small blocks lie beside them, in managed memory, and are touched
//! under the heap's own lock; the engine takes no lock of a heap. Before a fork the heaps are locked, then the engine
//! comes to rest ([`super::inherit`]), because the holder of a heap's lock may wait for the engine.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use allocator_api2::alloc::{AllocError, Allocator};
use dlmalloc::Dlmalloc;
use folioswap_core::{BLOCK_BYTES, RangeSet};

use crate::arena::Arena;
use crate::arena::by_address::RawSpace;
use crate::config::error::Error;

/// Blocks of this size and more are mapped and unmapped alone.
pub const LARGE_BYTES: usize = 1 << 20;

/// Small blocks get memory in chunks of this size.
const CHUNK_BYTES: usize = 4 * BLOCK_BYTES;

/// The alignment that every block has at least.
const ALIGNMENT: usize = 16;

/// Blocks of memory in an arena, for what takes an allocator. Cheap to clone; the memory of small blocks goes back when
/// the last clone and the last block of it are gone. Safe for any number of threads; an allocation of
/// [`LARGE_BYTES`] or more costs some system calls (about 10 us), a smaller one about 100 ns.
///
/// ```
/// use folioswap::{Arena, ArenaHeap};
///
/// let heap = ArenaHeap::new(&Arena::builder().memory(16 << 20).build()?);
/// let mut index = hashbrown::HashMap::with_hasher_in(std::hash::RandomState::new(), heap);
/// index.insert("key", 7);
/// assert_eq!(index["key"], 7);
/// # Ok::<(), folioswap::Error>(())
/// ```
#[derive(Clone)]
pub struct ArenaHeap {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    arena: Arena,
    space: RawSpace,
    small: Mutex<Dlmalloc<Chunks>>,
    /// Address and length of each large block.
    large: Mutex<BTreeMap<usize, usize>>,
    /// The addresses of all blocks so far lie between these.
    lowest: AtomicUsize,
    highest: AtomicUsize,
}

/// All heaps. They are locked for a fork whether or not their arena is inherited: a child may free their blocks.
static HEAPS: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

pub(super) fn heaps() -> MutexGuard<'static, Vec<Weak<Inner>>> {
    HEAPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The locks of a heap, held by a thread that forks.
pub(super) struct Held<'a> {
    _small: MutexGuard<'a, Dlmalloc<Chunks>>,
    _large: MutexGuard<'a, BTreeMap<usize, usize>>,
}

/// Where small blocks lie.
pub(super) struct Chunks {
    space: RawSpace,
    ranges: std::cell::RefCell<RangeSet>,
}

// SAFETY: each chunk is a fresh, zeroed mapping of readable and writable memory, which is handed out once.
unsafe impl dlmalloc::Allocator for Chunks {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let size = size.next_multiple_of(CHUNK_BYTES);
        match self.space.map(size) {
            Ok(addr) => {
                self.ranges.borrow_mut().add(addr..addr + size);
                (addr as *mut u8, size, 0)
            }
            Err(_) => (null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, ptr: *mut u8, size: usize) -> bool {
        let range = ptr as usize..ptr as usize + size;
        self.ranges.borrow_mut().remove(range.clone());
        // SAFETY: the allocator has no block in this chunk any more.
        unsafe { self.space.unmap(range.start, range.len()) };
        true
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        false // a chunk that was used before is used again
    }

    fn page_size(&self) -> usize {
        folioswap_core::PAGE_SIZE
    }
}

impl ArenaHeap {
    /// A heap in this arena. Takes no memory yet.
    pub fn new(arena: &Arena) -> Self {
        let space = arena.raw();
        let chunks = Chunks { space: space.clone(), ranges: std::cell::RefCell::default() };
        let inner = Arc::new(Inner {
            arena: arena.clone(),
            space,
            small: Mutex::new(Dlmalloc::new_with_allocator(chunks)),
            large: Mutex::default(),
            lowest: AtomicUsize::new(usize::MAX),
            highest: AtomicUsize::new(0),
        });
        let mut heaps = heaps();
        heaps.retain(|heap| heap.strong_count() > 0);
        heaps.push(Arc::downgrade(&inner));
        drop(heaps);
        ArenaHeap { inner }
    }

    /// The arena that it is in.
    pub fn arena(&self) -> &Arena {
        &self.inner.arena
    }

    /// Allocates a block of `size` bytes, aligned to `align` and to 16 bytes at least. `None`: there are no addresses
    /// left, or `align` is no power of two up to 2 MiB. The content is anything.
    #[must_use]
    pub fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        if !align.is_power_of_two() || align > BLOCK_BYTES || size > isize::MAX as usize {
            return None;
        }
        if size.max(align) >= LARGE_BYTES {
            return self.map(size.max(1)).ok();
        }
        // SAFETY: any size, and an alignment that is a power of two; the guard makes the access exclusive.
        let block = unsafe { self.inner.small().malloc(size, align.max(ALIGNMENT)) };
        let block = NonNull::new(block)?;
        self.inner.note(block.as_ptr() as usize, size);
        Some(block)
    }

    /// As [`ArenaHeap::allocate`], zeroed. A large block is zero without being touched.
    #[must_use]
    pub fn allocate_zeroed(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let block = self.allocate(size, align)?;
        if size.max(align) < LARGE_BYTES {
            // SAFETY: a new block of this size, which nobody else knows.
            unsafe { block.as_ptr().write_bytes(0, size) };
        }
        Some(block)
    }

    /// Maps `len` zeroed bytes, aligned to 2 MiB: a block of its own, whatever its length. Costs some system calls.
    ///
    /// # Errors
    /// [`Error::BadLength`], or the kernel's error.
    pub fn map(&self, len: usize) -> Result<NonNull<u8>, Error> {
        let addr = self.inner.space.map(len)?;
        self.inner.large().insert(addr, len);
        self.inner.note(addr, len);
        Ok(NonNull::new(addr as *mut u8).expect("no mapping begins at 0"))
    }

    /// Frees a block of its own: one of [`ArenaHeap::map`], or of [`LARGE_BYTES`] and more. `false`: none begins at
    /// this address, and nothing is done.
    ///
    /// # Safety
    /// Nobody uses the block any more.
    pub unsafe fn unmap(&self, block: *mut u8) -> bool {
        let addr = block as usize;
        let Some(len) = self.inner.take_large(addr) else { return false };
        // SAFETY: a mapping of this heap that nobody uses any more. It is unmapped last: another thread may have the
        // addresses at once.
        unsafe { self.inner.space.unmap(addr, len) };
        true
    }

    /// Frees a block.
    ///
    /// # Safety
    /// The block is this heap's, and nobody uses it any more.
    pub unsafe fn release(&self, block: NonNull<u8>) {
        // SAFETY: the caller gives the block up.
        if !unsafe { self.unmap(block.as_ptr()) } {
            // SAFETY: a small block of this heap, which the caller gives up.
            unsafe { self.inner.small().c_free(block.as_ptr()) }
        }
    }

    /// Resizes a block, which may move. The content is kept up to the smaller of both sizes. `None`: there is no
    /// memory, and the block is as before. A large block that stays large moves without being copied.
    ///
    /// # Safety
    /// The block is this heap's, allocated with this alignment, and nobody uses it meanwhile. If it has moved, nobody
    /// uses the old address.
    pub unsafe fn resize(&self, block: NonNull<u8>, size: usize, align: usize) -> Option<NonNull<u8>> {
        let (inner, addr) = (&self.inner, block.as_ptr() as usize);
        let large = inner.large_len(addr);
        if let Some(len) = large.filter(|_| size >= LARGE_BYTES) {
            // Before the move: once the old addresses are free they may be another thread's block.
            inner.large().remove(&addr);
            // SAFETY: one mapping of this heap, which the caller lets move.
            let moved = unsafe { inner.space.remap(addr, len, size) };
            let (to, now) = moved.as_ref().map_or((addr, len), |&to| (to, size));
            inner.large().insert(to, now);
            if moved.is_ok() {
                inner.note(to, size);
                return NonNull::new(to as *mut u8);
            } // else some of it is in use by a system call: copy
        }
        if large.is_none() && size < LARGE_BYTES && align <= ALIGNMENT {
            // SAFETY: a small block of this heap.
            let moved = NonNull::new(unsafe { inner.small().c_realloc(block.as_ptr(), size) })?;
            inner.note(moved.as_ptr() as usize, size);
            return Some(moved);
        }
        let moved = self.allocate(size, align)?;
        // SAFETY: both blocks are this heap's and differ; as many bytes as both have. Then the caller gives up the old.
        unsafe {
            let len = self.usable(block).min(size);
            moved.as_ptr().copy_from_nonoverlapping(block.as_ptr(), len);
            self.release(block);
        }
        Some(moved)
    }

    /// Bytes of all large blocks, and of the chunks of small ones.
    pub fn bytes(&self) -> usize {
        let large: usize = self.inner.large().values().sum();
        large + self.inner.small().allocator().ranges.borrow().iter().map(|chunk| chunk.len()).sum::<usize>()
    }

    /// Whether an address lies in a small block's chunk, or is the start of a large block, of this heap.
    pub fn owns(&self, block: *const u8) -> bool {
        let (inner, addr) = (&self.inner, block as usize);
        let may_be = inner.lowest.load(Ordering::Relaxed)..inner.highest.load(Ordering::Relaxed);
        may_be.contains(&addr)
            && (inner.large_len(addr).is_some()
                || inner.small().allocator().ranges.borrow().overlaps(&(addr..addr + 1)))
    }

    /// Whether a range of addresses lies in one large block, or in chunks of small ones, of this heap.
    pub fn contains(&self, range: &std::ops::Range<usize>) -> bool {
        let large = self.inner.large().range(..=range.start).next_back().map(|(&addr, &len)| addr..addr + len);
        let holds = |part: std::ops::Range<usize>| part.start <= range.start && range.end <= part.end;
        large.is_some_and(|block| holds(block.clone()) && range.start < block.end)
            || self.inner.small().allocator().ranges.borrow().iter().any(holds)
    }

    /// The bytes of a block that can be used: as many as were asked for, or a few more.
    ///
    /// # Safety
    /// The block is this heap's.
    pub unsafe fn usable(&self, block: NonNull<u8>) -> usize {
        if let Some(len) = self.inner.large_len(block.as_ptr() as usize) {
            return len;
        }
        // The word before a block has the size of its chunk, that word included, and three flag bits: the layout of
        // the pinned version of dlmalloc. A test checks it.
        // SAFETY: that word belongs to the block's chunk.
        let head = unsafe { *block.as_ptr().cast::<usize>().sub(1) };
        (head & !7) - size_of::<usize>()
    }
}

impl Inner {
    fn small(&self) -> MutexGuard<'_, Dlmalloc<Chunks>> {
        self.small.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn large(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.large.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a thread that forks.
    pub fn hold(&self) -> Held<'_> {
        Held { _small: self.small(), _large: self.large() }
    }

    /// Notes where a block is. An empty one has its first address, too.
    fn note(&self, start: usize, len: usize) {
        self.lowest.fetch_min(start, Ordering::Relaxed);
        self.highest.fetch_max(start.saturating_add(len.max(1)), Ordering::Relaxed);
    }

    fn take_large(&self, addr: usize) -> Option<usize> {
        if addr.is_multiple_of(BLOCK_BYTES) { self.large().remove(&addr) } else { None }
    }

    fn large_len(&self, addr: usize) -> Option<usize> {
        if addr.is_multiple_of(BLOCK_BYTES) { self.large().get(&addr).copied() } else { None }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let small = self.small.get_mut().unwrap_or_else(PoisonError::into_inner);
        for chunk in small.allocator().ranges.take().iter() {
            // SAFETY: the last user of this heap is gone, and with it all of its blocks.
            unsafe { self.space.unmap(chunk.start, chunk.len()) };
        }
        for (&addr, &len) in self.large.get_mut().unwrap_or_else(PoisonError::into_inner).iter() {
            // SAFETY: as above.
            unsafe { self.space.unmap(addr, len) };
        }
    }
}

fn as_slice(block: Option<NonNull<u8>>, len: usize) -> Result<NonNull<[u8]>, AllocError> {
    block.map(|block| NonNull::slice_from_raw_parts(block, len)).ok_or(AllocError)
}

// SAFETY: a block stays valid while a clone of the heap lives; clones share all blocks, and moving one moves none.
unsafe impl Allocator for ArenaHeap {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        as_slice(self.allocate(layout.size(), layout.align()), layout.size())
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        as_slice(self.allocate_zeroed(layout.size(), layout.align()), layout.size())
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, _: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.release(block) }
    }

    unsafe fn grow(&self, block: NonNull<u8>, _: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise. Where the alignment grows, the block is copied or large, and then has it.
        as_slice(unsafe { self.resize(block, new.size(), new.align()) }, new.size())
    }
}
