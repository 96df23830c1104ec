//! The program's heap over managed memory: mimalloc, whose memory comes from this library's own `mmap`.
//!
//! mimalloc is never called before the engine is up, and not in a forked child, which may lack the memory that its
//! records are in.

use std::ffi::c_void;

use libmimalloc_sys as mi;

use crate::huge;

/// What mimalloc reserves at a time, in KiB. Addresses only: folios are made by their first touch.
const RESERVE_KIB: i64 = 1 << 20;

/// After how many milliseconds mimalloc offers free memory back. Only whole folios of it are taken.
const PURGE_DELAY_MS: i64 = 200;

// Numbers of options that the binding does not name (mimalloc 2.3, `enum mi_option_e`).
const EAGER_COMMIT: mi::mi_option_t = 3;
const ARENA_EAGER_COMMIT: mi::mi_option_t = 4;
const PURGE_DECOMMITS: mi::mi_option_t = 5;
const PURGE_DELAY: mi::mi_option_t = 15;
const DESTROY_ON_EXIT: mi::mi_option_t = 22;
const ARENA_RESERVE: mi::mi_option_t = 23;

/// What makes mimalloc do nothing at exit. It would otherwise walk, and so bring in, the whole heap.
const NOTHING_AT_EXIT: i64 = 2;

/// Sets mimalloc up. Under a guard, so that what it maps for its records now is ordinary memory.
pub fn prepare() {
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
        (ARENA_RESERVE, RESERVE_KIB),
    ] {
        // SAFETY: sets a number; mimalloc has not begun.
        unsafe { mi::mi_option_set(option, value) };
    }
    // SAFETY: may be called at any time.
    unsafe { mi::mi_process_init() }
}

/// A block; null when there is none.
pub fn allocate(size: usize, align: usize) -> *mut u8 {
    if huge::serves(size, align) {
        return huge::allocate(size);
    }
    // SAFETY: any size and any power of two may be asked for.
    unsafe {
        if align <= crate::heap::ALIGNMENT {
            mi::mi_malloc(size).cast()
        } else {
            mi::mi_malloc_aligned(size, align).cast()
        }
    }
}

/// A block of zeros; null when there is none.
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    if huge::serves(size, 1) {
        return huge::allocate(size);
    }
    // SAFETY: any size may be asked for.
    unsafe { mi::mi_zalloc(size).cast() }
}

/// Ends a block.
///
/// # Safety
/// The block is one of [`allocate`]'s, and nobody uses it any more.
pub unsafe fn release(block: *mut u8) {
    if !huge::release(block as usize) {
        // SAFETY: handed on.
        unsafe { mi::mi_free(block.cast::<c_void>()) }
    }
}

/// How many bytes of a block may be used.
///
/// # Safety
/// The block is one of [`allocate`]'s.
pub unsafe fn usable(block: *const u8) -> usize {
    match huge::len(block as usize) {
        Some(len) => len,
        // SAFETY: handed on.
        None => unsafe { mi::mi_usable_size(block.cast()) },
    }
}

/// Makes a block longer or shorter in a way of its own; `None` when it takes a new block and a copy.
///
/// # Safety
/// The block is one of [`allocate`]'s; its old address is gone unless the result is `None` or null.
pub unsafe fn resize(block: *mut u8, size: usize) -> Option<*mut u8> {
    let huge_now = huge::len(block as usize).is_some();
    match (huge_now, huge::serves(size, 1)) {
        (true, true) => Some(huge::resize(block as usize, size)),
        // SAFETY: handed on.
        (false, false) => Some(unsafe { mi::mi_realloc(block.cast(), size).cast() }),
        _ => None,
    }
}
