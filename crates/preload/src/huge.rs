//! Large blocks of the program's heap: each a mapping of its own, so that its folios are free again when it is freed,
//! and growing it moves folios instead of bytes.
//!
//! Such a block begins on a folio, which tells it from others at a glance; the list of them has its own lock, held for
//! a look-up only.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::{guard, mapping, state};

/// From this size on a block is a mapping of its own. The last folio of one is wasted by half on average.
const LEAST_BYTES: usize = 8 << 20;

/// Blocks begin on multiples of this.
const FOLIO_BYTES: usize = 2 << 20;

/// Block -> its length in bytes, in whole folios.
static BLOCKS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn blocks() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    BLOCKS.lock().expect("nothing panics under this lock")
}

/// Whether a block of this size and alignment is one of these.
pub fn serves(size: usize, align: usize) -> bool {
    size >= LEAST_BYTES && align <= FOLIO_BYTES && size <= isize::MAX as usize
}

/// A block of zeros; null when there is none.
pub fn allocate(size: usize) -> *mut u8 {
    let len = size.next_multiple_of(FOLIO_BYTES);
    let _guard = guard::enter();
    let Some(space) = state::space() else { return std::ptr::null_mut() };
    match space.map(len) {
        Ok(addr) => {
            blocks().insert(addr, len);
            addr as *mut u8
        }
        Err(_) => std::ptr::null_mut(),
    }
}

/// The length of a block; `None` when it is not one of these.
pub fn len(block: usize) -> Option<usize> {
    if !block.is_multiple_of(FOLIO_BYTES) {
        return None;
    }
    let _guard = guard::enter();
    blocks().get(&block).copied()
}

/// Ends a block; `false` when it is not one of these.
pub fn release(block: usize) -> bool {
    if !block.is_multiple_of(FOLIO_BYTES) {
        return false;
    }
    let _guard = guard::enter();
    let Some(len) = blocks().remove(&block) else { return false };
    mapping::unmap_managed(block..block + len);
    true
}

/// Makes a block longer or shorter; null, and the block as it was, when there is no room.
pub fn resize(block: usize, size: usize) -> *mut u8 {
    let new_len = size.next_multiple_of(FOLIO_BYTES);
    let _guard = guard::enter();
    let Some(space) = state::space() else { return std::ptr::null_mut() };
    let Some(old_len) = blocks().remove(&block) else { return std::ptr::null_mut() };
    // SAFETY: one mapping of this block's own; who resizes a block does not use it meanwhile.
    match unsafe { space.remap(block, old_len, new_len, true) } {
        Ok(addr) => {
            blocks().insert(addr, new_len);
            addr as *mut u8
        }
        Err(_) => {
            blocks().insert(block, old_len);
            std::ptr::null_mut()
        }
    }
}
