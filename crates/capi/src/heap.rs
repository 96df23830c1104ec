//! The allocator: blocks of any size in a pool, as `malloc` and its like give them.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use crate::folioswap;

/// The alignment of `malloc`.
const ALIGNMENT: usize = 16;

fn pointer(block: Option<NonNull<u8>>) -> *mut c_void {
    block.map_or(null_mut(), |block| block.as_ptr().cast())
}

/// Allocates `size` bytes in the pool, aligned to 16. NULL: there are no addresses left. Blocks of 1 MiB and more are
/// mappings of their own.
///
/// # Safety
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_malloc(pool: *const folioswap, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    pointer(unsafe { &(*pool).heap }.allocate(size, ALIGNMENT))
}

/// Allocates `count` items of `size` bytes, zeroed. Large blocks are zero without being touched.
///
/// # Safety
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_calloc(pool: *const folioswap, count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return null_mut() };
    // SAFETY: the caller's promise.
    pointer(unsafe { &(*pool).heap }.allocate_zeroed(bytes, ALIGNMENT))
}

/// Allocates `size` bytes aligned to `alignment`, a power of two up to 2 MiB.
///
/// # Safety
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_aligned_alloc(pool: *const folioswap, alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    pointer(unsafe { &(*pool).heap }.allocate(size, alignment))
}

/// Resizes a block, which may move. NULL: there is no memory, and the block is as before. A NULL block is allocated.
/// Keeps an alignment of 16.
///
/// # Safety
/// `pool` is open, and the block is its or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_realloc(pool: *const folioswap, block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let heap = unsafe { &(*pool).heap };
    match NonNull::new(block.cast()) {
        // SAFETY: the caller's promise.
        Some(block) => pointer(unsafe { heap.resize(block, size, ALIGNMENT) }),
        None => pointer(heap.allocate(size, ALIGNMENT)),
    }
}

/// Frees a block. NULL is fine.
///
/// # Safety
/// `pool` is open, and the block is its and not used any more, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_free(pool: *const folioswap, block: *mut c_void) {
    if let Some(block) = NonNull::new(block.cast()) {
        // SAFETY: the caller's promise.
        unsafe { (*pool).heap.release(block) }
    }
}

/// Bytes of a block that can be used: as many as were asked for, or a few more. 0 for NULL.
///
/// # Safety
/// `pool` is open, and the block is its or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_usable_size(pool: *const folioswap, block: *const c_void) -> usize {
    // SAFETY: the caller's promise.
    NonNull::new(block.cast_mut().cast()).map_or(0, |block| unsafe { (*pool).heap.usable(block) })
}
