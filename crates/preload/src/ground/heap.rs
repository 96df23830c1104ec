//! Memory that is never managed: two heaps, each in a reserved span of its own.
//!
//! [`PRIVATE`] serves this library and the engine, and is the only heap that the fault path may use. [`ORDINARY`]
//! serves the program: everything before its own heap is ready, and the C library's own requests (stdio buffers, which
//! the kernel accesses unseen by us).
//!
//! A block's address tells which heap owns it. Each heap has its own lock. `PRIVATE`'s is taken with the program's
//! signals blocked ([`guard`]), so a handler that faults never waits for its own thread. Neither heap touches managed
//! memory.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use dlmalloc::Dlmalloc;
use folioswap_sys::{futex, signals};

use crate::ground::real::own;
use crate::ground::{guard, state};

/// Addresses of one heap. Reserving them is free. A program's ordinary share is a few MiB.
const SPAN_BYTES: usize = 64 << 30;

/// Under a limit of addresses (`ulimit -v`) a heap reserves this part of it, and at least so many.
const PART_OF_LIMIT: u64 = 16;
const LEAST_SPAN_BYTES: usize = 32 << 20;

/// With fewer addresses a program is not managed. It may need nearly all of them itself.
pub const FEW_ADDRESSES: u64 = 128 << 20;

/// The soft and the hard limit of this kind that the kernel has for this process.
pub fn limits(what: u32) -> [u64; 2] {
    let mut limits = libc::rlimit64 { rlim_cur: libc::RLIM64_INFINITY, rlim_max: libc::RLIM64_INFINITY };
    // SAFETY: the kernel fills in the local.
    unsafe { own!(libc::SYS_prlimit64, 0, what, 0usize, &raw mut limits) };
    [limits.rlim_cur, limits.rlim_max]
}

/// How many addresses a heap asks for first.
pub fn wanted_bytes() -> usize {
    let [limit, _] = limits(libc::RLIMIT_AS);
    let part = usize::try_from(limit / PART_OF_LIMIT).unwrap_or(SPAN_BYTES);
    let least = if limit < FEW_ADDRESSES { OPENED_BYTES } else { LEAST_SPAN_BYTES };
    part.clamp(least, SPAN_BYTES) & !(OPENED_BYTES - 1)
}

/// Granularity of making addresses usable. The kernel may charge for usable memory (`vm.overcommit_memory=2`).
const OPENED_BYTES: usize = 1 << 20;

/// Minimum alignment of every block.
pub const ALIGNMENT: usize = 16;

/// Heap of the library and the engine.
pub static PRIVATE: Heap = Heap::new();

/// The program's ordinary heap.
pub static ORDINARY: Heap = Heap::new();

/// Bytes of both that are readable and writable.
static OPENED_SO_FAR: AtomicUsize = AtomicUsize::new(0);

pub fn opened_bytes() -> usize {
    OPENED_SO_FAR.load(Ordering::Relaxed)
}

/// Addresses of both.
pub fn reserved_bytes() -> usize {
    PRIVATE.span().len() + ORDINARY.span().len()
}

/// A heap in one span of addresses.
pub struct Heap {
    /// The thread that holds the lock, and [`WAITED_FOR`]; 0: nobody does.
    lock: AtomicU32,
    dlmalloc: UnsafeCell<Dlmalloc<Span>>,
    /// Start of the span; zero before the first use. Set after its length.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Bytes in allocated blocks.
    used: AtomicUsize,
}

// SAFETY: only the holder of `lock` accesses the allocator.
unsafe impl Sync for Heap {}

/// Hands the span to dlmalloc piece by piece.
struct Span {
    /// Its addresses; none before the first use.
    all: UnsafeCell<Range<usize>>,
    taken: UnsafeCell<usize>,
    /// Bytes from the start that are readable and writable.
    open: UnsafeCell<usize>,
}

// SAFETY: the cells are accessed only through the heap, under its lock.
unsafe impl Send for Span {}

impl Span {
    /// Makes the first `bytes` usable. `false`: the kernel refuses, or the span is shorter. The caller holds the heap's
    /// lock.
    fn open_to(&self, bytes: usize) -> bool {
        // SAFETY: the heap's lock is held, so these references are exclusive.
        let (all, open) = unsafe { (&*self.all.get(), &mut *self.open.get()) };
        let wanted = bytes.next_multiple_of(OPENED_BYTES);
        if bytes <= *open {
            return true;
        }
        if wanted > all.len() || !make_usable(all.start + *open, wanted - *open) {
            return false;
        }
        OPENED_SO_FAR.fetch_add(wanted - *open, Ordering::Relaxed);
        *open = wanted;
        true
    }
}

// SAFETY: every piece is fresh, zeroed, readable and writable memory that is handed out once.
unsafe impl dlmalloc::Allocator for Span {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        // SAFETY: the caller holds the heap's lock, so these references are exclusive.
        let (all, taken) = unsafe { (&mut *self.all.get(), &mut *self.taken.get()) };
        if all.start == 0 {
            *all = reserve();
        }
        if !self.open_to(*taken + size) {
            return (std::ptr::null_mut(), 0, 0);
        }
        let piece = all.start + *taken;
        *taken += size;
        (piece as *mut u8, size, 0)
    }

    fn remap(&self, _ptr: *mut u8, _old: usize, _new: usize, _can_move: bool) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn free_part(&self, _ptr: *mut u8, _old: usize, _new: usize) -> bool {
        false
    }

    fn free(&self, _ptr: *mut u8, _size: usize) -> bool {
        false
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// As many addresses as can be had, up to those wanted: valgrind has fewer left for its program. Empty: too few.
fn reserve() -> Range<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let mut len = wanted_bytes();
    loop {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { own!(libc::SYS_mmap, 0usize, len, libc::PROT_NONE, flags, -1i32, 0usize) };
        if start > 0 {
            return start as usize..start as usize + len;
        }
        len = (len / 2) & !(OPENED_BYTES - 1);
        if len < OPENED_BYTES {
            return 0..0;
        }
    }
}

fn make_usable(addr: usize, len: usize) -> bool {
    // SAFETY: a part of the reserved span that has not been handed out yet.
    unsafe { own!(libc::SYS_mprotect, addr, len, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

impl Heap {
    const fn new() -> Heap {
        let span = Span { all: UnsafeCell::new(0..0), taken: UnsafeCell::new(0), open: UnsafeCell::new(0) };
        Heap {
            lock: AtomicU32::new(0),
            dlmalloc: UnsafeCell::new(Dlmalloc::new_with_allocator(span)),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
        }
    }

    pub fn owns(&self, block: *const u8) -> bool {
        self.span().contains(&(block as usize))
    }

    pub fn span(&self) -> Range<usize> {
        match self.start.load(Ordering::Acquire) {
            0 => 0..0,
            start => start..start + self.len.load(Ordering::Relaxed),
        }
    }

    /// Leaves its memory out of core dumps.
    pub fn leave_out_of_dumps(&self) {
        let span = self.span();
        // SAFETY: changes neither content nor access.
        unsafe { own!(libc::SYS_madvise, span.start, span.len(), libc::MADV_DONTDUMP) };
    }

    /// Makes memory usable that is not needed yet, so that nobody else uses up what a limit permits.
    pub fn open_ahead(&self, bytes: usize) {
        self.locked(|heap| {
            let span = heap.allocator();
            // SAFETY: the lock is held.
            let taken = unsafe { *span.taken.get() };
            span.open_to(taken + bytes);
        });
    }

    /// Bytes in allocated blocks.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Allocates a block; null if there is no memory. `align` is a power of two.
    pub fn allocate(&self, size: usize, align: usize) -> *mut u8 {
        if size > SPAN_BYTES {
            return std::ptr::null_mut();
        }
        // SAFETY: valid for any size and any power-of-two alignment.
        self.with(move |heap| unsafe { heap.c_memalign(align.max(ALIGNMENT), size) })
    }

    /// Frees a block.
    ///
    /// # Safety
    /// This heap owns the block, and nobody uses it any more.
    pub unsafe fn release(&self, block: *mut u8) {
        // SAFETY: the caller upholds this function's own contract.
        unsafe {
            self.used.fetch_sub(usable(block), Ordering::Relaxed);
            self.locked(move |heap| heap.c_free(block));
        }
    }

    /// Resizes a block. If there is no memory, returns null and leaves the block as it was.
    ///
    /// # Safety
    /// This heap owns the block. Its old address is invalid afterwards unless the result is null.
    pub unsafe fn resize(&self, block: *mut u8, size: usize) -> *mut u8 {
        if size > SPAN_BYTES {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller upholds this function's own contract.
        let before = unsafe { usable(block) };
        // SAFETY: the caller upholds this function's own contract.
        let moved = self.with(move |heap| unsafe { heap.c_realloc(block, size) });
        if !moved.is_null() {
            self.used.fetch_sub(before, Ordering::Relaxed);
        }
        moved
    }

    /// Runs an allocation, and accounts for the block that it returns.
    fn with(&self, call: impl FnOnce(&mut Dlmalloc<Span>) -> *mut u8) -> *mut u8 {
        let block = self.locked(move |heap| {
            let block = call(heap);
            if self.start.load(Ordering::Relaxed) == 0 {
                // SAFETY: the lock is held.
                let all = unsafe { &*heap.allocator().all.get() };
                self.len.store(all.len(), Ordering::Relaxed);
                self.start.store(all.start, Ordering::Release);
            }
            block
        });
        if !block.is_null() {
            // SAFETY: this heap just allocated the block.
            self.used.fetch_add(unsafe { usable(block) }, Ordering::Relaxed);
        }
        block
    }

    fn locked<R>(&self, call: impl FnOnce(&mut Dlmalloc<Span>) -> R) -> R {
        // Who holds a heap must not fault: a thread that forks takes both.
        state::on_present_stack(move || self.locked_here(call))
    }

    fn locked_here<R>(&self, call: impl FnOnce(&mut Dlmalloc<Span>) -> R) -> R {
        let is_forks = is_held_by_fork();
        if !is_forks {
            self.acquire();
        }
        // SAFETY: the lock is held, or this thread acts for the one that holds it.
        let result = call(unsafe { &mut *self.dlmalloc.get() });
        if !is_forks {
            self.free_lock();
        }
        result
    }

    /// Whether the calling thread holds the lock. It runs a signal handler of the program, which has interrupted it.
    fn is_own(&self) -> bool {
        self.lock.load(Ordering::Relaxed) & !WAITED_FOR == guard::this_thread()
    }

    fn acquire(&self) {
        let me = guard::this_thread();
        let swap = |from, to| self.lock.compare_exchange_weak(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok();
        for _ in 0..100 {
            if swap(0, me) {
                return;
            }
            std::hint::spin_loop();
        }
        loop {
            match self.lock.load(Ordering::Relaxed) {
                0 if swap(0, me | WAITED_FOR) => return, // others may wait, too
                0 => {}
                held if held & WAITED_FOR != 0 || swap(held, held | WAITED_FOR) => {
                    futex::wait(&self.lock, held | WAITED_FOR);
                }
                _ => {}
            }
        }
    }

    fn free_lock(&self) {
        if self.lock.swap(0, Ordering::Release) & WAITED_FOR != 0 {
            futex::wake_one(&self.lock);
        }
    }
}

/// Set in a heap's lock while threads may wait for it. No thread has such an id.
const WAITED_FOR: u32 = 1 << 31;

/// The thread that holds both heaps while it forks; 0: none does.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// The forking thread had [`ORDINARY`]'s lock before. Changes under [`PRIVATE`]'s.
static WAS_OWN: AtomicBool = AtomicBool::new(false);

/// Brings both heaps to rest for a fork of the calling thread. Its own faults may still allocate, on whatever thread
/// they are resolved: it waits for that. A signal handler that has interrupted an allocation may fork, too: the heap
/// then stays as it is, in both processes, until the handler returns.
pub fn acquire_for_fork() {
    let is_own = ORDINARY.is_own();
    if !is_own {
        ORDINARY.acquire();
    }
    PRIVATE.acquire();
    WAS_OWN.store(is_own, Ordering::Relaxed);
    FORKING.store(signals::thread_id(), Ordering::SeqCst);
}

/// After that fork, in the parent.
pub fn release_after_fork() {
    let was_own = WAS_OWN.load(Ordering::Relaxed);
    FORKING.store(0, Ordering::SeqCst);
    PRIVATE.free_lock();
    if !was_own {
        ORDINARY.free_lock();
    }
}

/// After that fork, in the child, whose only thread has another id ([`guard::begin_child`]).
pub fn release_in_child() {
    if WAS_OWN.load(Ordering::Relaxed) {
        ORDINARY.lock.store(guard::this_thread(), Ordering::Relaxed);
    }
    release_after_fork();
}

/// Whether the calling thread acts for one that holds both heaps.
fn is_held_by_fork() -> bool {
    match FORKING.load(Ordering::Relaxed) {
        0 => false,
        forking => folioswap::works_for(forking),
    }
}

/// Usable bytes of a block. The word before a block holds the size of its chunk and three flag bits, and is part of
/// that size. This is the layout of the pinned dlmalloc version, which the test below checks.
///
/// # Safety
/// One of these heaps owns the block.
pub unsafe fn usable(block: *const u8) -> usize {
    // SAFETY: the word before a block belongs to its chunk.
    let head = unsafe { *block.cast::<usize>().sub(1) };
    (head & !7) - size_of::<usize>()
}

/// The global allocator of this library's Rust code.
pub struct Global;

// SAFETY: blocks are fresh memory of the requested layout until they are freed. No call unwinds.
unsafe impl GlobalAlloc for Global {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _guard = guard::enter();
        needed(PRIVATE.allocate(layout.size(), layout.align()), layout.size())
    }

    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        let _guard = guard::enter();
        // SAFETY: the caller returns a block that `alloc` gave out.
        unsafe { PRIVATE.release(block) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _guard = guard::enter();
        if layout.align() <= ALIGNMENT {
            // SAFETY: the caller returns a block that `alloc` gave out.
            return needed(unsafe { PRIVATE.resize(block, size) }, size);
        }
        let moved = PRIVATE.allocate(size, layout.align());
        if !moved.is_null() {
            // SAFETY: both blocks have at least the shorter length, and the old one is not used any more.
            unsafe {
                std::ptr::copy_nonoverlapping(block, moved, size.min(layout.size()));
                PRIVATE.release(block);
            }
        }
        needed(moved, size)
    }
}

/// A block, or its refusal if the caller can do without: records are small, and the program cannot.
fn needed(block: *mut u8, size: usize) -> *mut u8 {
    const MOST_RECORD_BYTES: usize = 256 << 10;
    if block.is_null() && size <= MOST_RECORD_BYTES {
        let why = "out of memory for records of what was swapped out: the kernel refuses more, perhaps because of a \
                   limit (ulimit -d, -v); raise it";
        state::end(folioswap::ExitStatus::OutOfMemory, why);
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_usable_to_their_end_and_accounted_for() {
        static HEAP: Heap = Heap::new();
        let mut blocks = Vec::new();
        for size in (0..3000).step_by(7).chain([1 << 20, 5 << 20]) {
            let align = 1 << (size % 13);
            let block = HEAP.allocate(size, align);
            assert!(HEAP.owns(block) && (block as usize).is_multiple_of(align.max(ALIGNMENT)));
            // SAFETY: this heap's block, filled within its usable length.
            unsafe {
                assert!(usable(block) >= size);
                block.write_bytes(size as u8, usable(block));
            }
            blocks.push((block, size));
        }
        for &(block, size) in &blocks {
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(block, usable(block)) };
            assert!(bytes.iter().all(|&byte| byte == size as u8));
        }
        for (block, size) in blocks {
            // SAFETY: each block is resized and freed once.
            unsafe {
                let moved = HEAP.resize(block, size * 2 + 1);
                assert!(usable(moved) > size * 2);
                HEAP.release(moved);
            }
        }
        assert_eq!(HEAP.used(), 0);
    }

    #[test]
    fn threads_share_a_heap() {
        static HEAP: Heap = Heap::new();
        std::thread::scope(|scope| {
            for id in 0..4u8 {
                scope.spawn(move || {
                    for round in 0..2000usize {
                        let block = HEAP.allocate(round % 500 + 1, 16);
                        // SAFETY: a block of this thread's own.
                        unsafe {
                            block.write_bytes(id, round % 500 + 1);
                            std::thread::yield_now();
                            assert_eq!(*block.add(round % 500), id);
                            HEAP.release(block);
                        }
                    }
                });
            }
        });
        assert_eq!(HEAP.used(), 0);
    }
}
