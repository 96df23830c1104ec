//! The allocator: blocks of any size in a pool, as `malloc` and its like give them. A function that returns NULL sets
//! errno, and leaves no message.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use crate::folioswap;

/// The alignment of `malloc`.
const ALIGNMENT: usize = 16;

/// The largest alignment that can be asked for, and that of mappings.
pub(crate) const MOST_ALIGNMENT: usize = ::folioswap::Order::HUGE.bytes();

/// NULL, with this error number in errno.
fn null(errno: c_int) -> *mut c_void {
    // SAFETY: the calling thread's own errno, which is valid while the thread lives.
    unsafe { libc::__errno_location().write(errno) };
    null_mut()
}

fn pointer(block: Option<NonNull<u8>>) -> *mut c_void {
    block.map_or_else(|| null(libc::ENOMEM), |block| block.as_ptr().cast())
}

/// Allocates `size` bytes in the pool, aligned to 16. NULL: there are no addresses left (ENOMEM). Blocks of 1 MiB and
/// more take whole pages of their own.
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
    let Some(bytes) = count.checked_mul(size) else { return null(libc::ENOMEM) };
    // SAFETY: the caller's promise.
    pointer(unsafe { &(*pool).heap }.allocate_zeroed(bytes, ALIGNMENT))
}

/// Allocates `size` bytes aligned to `alignment`, a power of two up to 2 MiB. Of another alignment: NULL (EINVAL).
///
/// # Safety
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_aligned_alloc(pool: *const folioswap, alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() || alignment > MOST_ALIGNMENT {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    pointer(unsafe { &(*pool).heap }.allocate(size, alignment))
}

/// Resizes a block, which may move. NULL: there are no addresses left (ENOMEM), or the block is a mapping of
/// `folioswap_map` (EINVAL); it is as before. A NULL block is allocated. Keeps an alignment of 16.
///
/// # Safety
/// `pool` is open, and the block is its, a mapping of it, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_realloc(pool: *const folioswap, block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let pool = unsafe { &*pool };
    match NonNull::new(block.cast()) {
        Some(block) if pool.is_mapping(block) => null(libc::EINVAL),
        // SAFETY: the caller's promise.
        Some(block) => pointer(unsafe { pool.heap.resize(block, size, ALIGNMENT) }),
        None => pointer(pool.heap.allocate(size, ALIGNMENT)),
    }
}

/// Frees a block. NULL is fine. A mapping of `folioswap_map` is unmapped.
///
/// # Safety
/// `pool` is open, and the block is its, or a mapping of it, and not used any more, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_free(pool: *const folioswap, block: *mut c_void) {
    let Some(block) = NonNull::new(block.cast::<u8>()) else { return };
    // SAFETY: the caller's promise.
    let pool = unsafe { &*pool };
    // SAFETY: the caller gives up what it is. Only mappings begin where a mapping does.
    if !unsafe { pool.mappings.unmap(block.as_ptr()) } {
        // SAFETY: a block, which the caller gives up.
        unsafe { pool.heap.release(block) }
    }
}

/// Bytes of a block, or a mapping, that can be used: as many as were asked for, or a few more. 0 for NULL.
///
/// # Safety
/// `pool` is open, and the block is its, a mapping of it, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_usable_size(pool: *const folioswap, block: *const c_void) -> usize {
    let Some(block) = NonNull::new(block.cast_mut().cast()) else { return 0 };
    // SAFETY: the caller's promise.
    let pool = unsafe { &*pool };
    let heap = if pool.is_mapping(block) { &pool.mappings } else { &pool.heap };
    // SAFETY: a block of this heap (the caller's promise).
    unsafe { heap.usable(block) }
}
