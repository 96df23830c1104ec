//! Large blocks of the program's heap. Each is a mapping of its own, made and unmapped as the program's mappings are.
//! Freeing it frees its folios, and growing it moves folios instead of copying bytes.
//!
//! Such a block starts on a folio boundary, which rules out most other blocks at once. The list of blocks has its own
//! lock, held for a lookup only.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::lock::{Lock, Locked};
use crate::ground::{guard, state};
use crate::map::{adopt, mapping, remap};
use folioswap::{BLOCK_BYTES, PAGE_SIZE};

/// Blocks of this size and above are mappings of their own. On average half of the last folio is wasted.
const LEAST_BYTES: usize = 8 << 20;

/// Bytes behind each block at least: programs read and write a little too far. The C library leaves nothing for certain
/// behind its largest blocks, but for sizes of whole pages it leaves nearly a page.
const SLACK: usize = PAGE_SIZE;

/// The length of the mapping for a block of this size.
fn len_for(size: usize) -> usize {
    (size + SLACK).next_multiple_of(BLOCK_BYTES)
}

/// Block -> its length in bytes, a multiple of the folio size.
static BLOCKS: Lock<BTreeMap<usize, usize>> = Lock::new(BTreeMap::new());

/// The list, locked.
pub type Blocks = Locked<BTreeMap<usize, usize>>;

pub fn blocks() -> Blocks {
    BLOCKS.lock()
}

static NR_BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Whether a block may be one of these, by its address.
fn may_be(block: usize) -> bool {
    block.is_multiple_of(BLOCK_BYTES) && NR_BLOCKS.load(Ordering::Relaxed) > 0
}

/// Whether a block of this size and alignment is served here.
pub fn serves(size: usize, align: usize) -> bool {
    size >= LEAST_BYTES && align <= BLOCK_BYTES && size <= isize::MAX as usize
}

/// Allocates a zeroed block; null if there is no memory.
pub fn allocate(size: usize) -> *mut u8 {
    let len = len_for(size);
    adopt::make_room(len);
    let _guard = guard::enter();
    let Some(space) = state::space() else { return std::ptr::null_mut() };
    let Some(addr) = state::keeping_errno(|| mapping::map_blocks(space, len)) else { return std::ptr::null_mut() };
    blocks().insert(addr, len);
    NR_BLOCKS.fetch_add(1, Ordering::Relaxed);
    addr as *mut u8
}

/// The length of a block; `None` if it is not one of these.
pub fn len(block: usize) -> Option<usize> {
    if !may_be(block) {
        return None;
    }
    let _guard = guard::enter();
    blocks().get(&block).copied()
}

/// Frees a block; `false` if it is not one of these.
pub fn release(block: usize) -> bool {
    if !may_be(block) {
        return false;
    }
    let _guard = guard::enter();
    let Some(len) = blocks().remove(&block) else { return false };
    NR_BLOCKS.fetch_sub(1, Ordering::Relaxed);
    let Some(space) = state::space() else { return true };
    // SAFETY: the mapping belongs to this block alone, which the program gives up.
    state::keeping_errno(|| unsafe { mapping::unmap_blocks(space, block..block + len) });
    true
}

/// Resizes a block. `None`: the kernel does not; it is as it was.
pub fn resize(block: usize, size: usize) -> Option<*mut u8> {
    let new_len = len_for(size);
    adopt::make_room(new_len.saturating_sub(len(block)?));
    let _guard = guard::enter();
    let _held = adopt::hold();
    let space = state::space()?;
    let old_len = blocks().remove(&block)?;
    // SAFETY: the mapping belongs to this block alone, and the program does not use a block while it resizes it.
    let resized = state::keeping_errno(|| unsafe { remap::remap(space, block..block + old_len, new_len) });
    let (addr, len) = resized.as_ref().map_or((block, old_len), |&addr| (addr, new_len));
    blocks().insert(addr, len);
    resized.is_ok().then_some(addr as *mut u8)
}
