//! The program's heap in managed memory: mimalloc, which gets its memory from this library's `mmap`.
//!
//! It is ready before the engine runs if there is room for what it reserves.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use libmimalloc_sys as mi;

use crate::alloc::huge;
use crate::ground::{guard, heap, state};
use crate::memory::known;

/// What mimalloc reserves at a time at first, in KiB. Only addresses: pages are allocated on first touch. But all of it
/// counts as long as nothing is managed. Under a limit of addresses it is less.
const RESERVE_KIB: i64 = 64 << 10;

/// With less room it is made ready when the engine starts.
pub const LEAST_ROOM_BYTES: usize = 4 * ((RESERVE_KIB as usize) << 10);

/// Milliseconds until mimalloc purges free memory. Only whole folios of it are freed.
const PURGE_DELAY_MS: i64 = 200;

// Option numbers that the binding does not name (mimalloc 2.3, `enum mi_option_e`).
const EAGER_COMMIT: mi::mi_option_t = 3;
const ARENA_EAGER_COMMIT: mi::mi_option_t = 4;
const PURGE_DECOMMITS: mi::mi_option_t = 5;
const PURGE_DELAY: mi::mi_option_t = 15;
const DESTROY_ON_EXIT: mi::mi_option_t = 22;
const ARENA_RESERVE: mi::mi_option_t = 23;

/// Makes mimalloc do nothing at exit. Otherwise it would walk the whole heap, and so swap it in.
const NOTHING_AT_EXIT: i64 = 2;

static IS_READY: AtomicBool = AtomicBool::new(false);

/// Whether blocks can be had.
pub fn is_ready() -> bool {
    IS_READY.load(Ordering::Relaxed)
}

/// Whether a block of this size can only be had while the engine runs.
pub fn needs_engine(size: usize) -> bool {
    huge::serves(size, 1)
}

/// Configures mimalloc, once. Runs under a guard, so that the metadata it maps now is unmanaged.
pub fn prepare() {
    if IS_READY.swap(true, Ordering::Relaxed) {
        return;
    }
    let reserve_kib = RESERVE_KIB.min((heap::wanted_bytes() >> 10) as i64);
    for (option, value) in [
        (mi::mi_option_show_errors, 0),
        (mi::mi_option_show_stats, 0),
        (mi::mi_option_verbose, 0),
        (mi::mi_option_large_os_pages, 0),
        (mi::mi_option_reserve_huge_os_pages, 0),
        (mi::mi_option_reserve_os_memory, 0),
        (EAGER_COMMIT, 1),
        (ARENA_EAGER_COMMIT, 1),
        (PURGE_DECOMMITS, 0),
        (mi::mi_option_eager_commit_delay, 0),
        (PURGE_DELAY, PURGE_DELAY_MS),
        (mi::mi_option_use_numa_nodes, 1),
        (DESTROY_ON_EXIT, NOTHING_AT_EXIT),
        (ARENA_RESERVE, reserve_kib),
    ] {
        // SAFETY: sets a number. mimalloc is not running yet.
        unsafe { mi::mi_option_set(option, value) };
    }
    // SAFETY: may be called at any time.
    unsafe { mi::mi_process_init() }
}

/// The smallest block: mimalloc aligns what is smaller to 8 bytes only, the C library everything to 16.
const LEAST_BYTES: usize = 16;

/// Allocates a block; null if there is no memory.
pub fn allocate(size: usize, align: usize) -> *mut u8 {
    if huge::serves(size, align) {
        return huge::allocate(size);
    }
    let size = size.max(LEAST_BYTES);
    // SAFETY: valid for any size and any power-of-two alignment.
    unsafe {
        if align <= crate::ground::heap::ALIGNMENT {
            mi::mi_malloc(size).cast()
        } else {
            mi::mi_malloc_aligned(size, align).cast()
        }
    }
}

/// Allocates a zeroed block; null if there is no memory.
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    if huge::serves(size, 1) {
        return huge::allocate(size);
    }
    // SAFETY: valid for any size.
    unsafe { mi::mi_zalloc(size.max(LEAST_BYTES)).cast() }
}

pub fn owns(block: *const u8) -> bool {
    // SAFETY: looks at the heap's own records only.
    let is_known = || unsafe { mi::mi_is_in_heap_region(block.cast()) };
    // Its own records lack large blocks at high addresses. While the C library allocates, nobody keeps ours.
    let is_mapped = || {
        let _guard = guard::enter();
        let at = block as usize;
        state::may_manage() && (state::is_managed(at) || known::ordinary().overlaps(&(at..at + 1)))
    };
    is_ready() && (is_known() || huge::len(block as usize).is_some() || is_mapped())
}

/// Frees a block.
///
/// # Safety
/// The block comes from [`allocate`], and nobody uses it any more.
pub unsafe fn release(block: *mut u8) {
    if !huge::release(block as usize) {
        // SAFETY: the caller upholds this function's own contract.
        unsafe { mi::mi_free(block.cast::<c_void>()) }
    }
}

/// Usable bytes of a block.
///
/// # Safety
/// The block comes from [`allocate`].
pub unsafe fn usable(block: *const u8) -> usize {
    match huge::len(block as usize) {
        Some(len) => len,
        // SAFETY: the caller upholds this function's own contract.
        None => unsafe { mi::mi_usable_size(block.cast()) },
    }
}

/// Resizes a block without a new block and a copy; `None` if it takes those.
///
/// # Safety
/// The block comes from [`allocate`]. Its old address is invalid afterwards unless the result is `None` or null.
pub unsafe fn resize(block: *mut u8, size: usize) -> Option<*mut u8> {
    let huge_now = huge::len(block as usize).is_some();
    match (huge_now, huge::serves(size, 1)) {
        (true, true) => huge::resize(block as usize, size),
        // SAFETY: the caller upholds this function's own contract.
        (false, false) => Some(unsafe { mi::mi_realloc(block.cast(), size.max(LEAST_BYTES)).cast() }),
        _ => None,
    }
}
