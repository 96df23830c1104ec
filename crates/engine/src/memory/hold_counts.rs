//! How many holds each block has: calls and devices that need its memory in RAM. What a hold does is in `fault/holds`.
//!
//! **Locking.** The counts are a leaf. Signals are blocked while they are locked: a handler might touch the block that
//! the holder is about to pin, or, beside a fork that waits for the counts, any.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use folioswap_core::{BLOCK_BYTES, BlockId};

/// The blocks that are held, and by how many.
#[derive(Default)]
pub(crate) struct HoldCounts(Mutex<HashMap<BlockId, u32>>);

impl HoldCounts {
    /// Keeps other threads from them until the result is dropped.
    pub fn pause(&self) -> MutexGuard<'_, HashMap<BlockId, u32>> {
        self.0.lock().expect("nothing panics under this lock")
    }

    /// Counts a hold of each of these blocks, unless managed blocks of more than `most_bytes` would be held in all.
    /// Returns whether it did.
    pub fn add(&self, blocks: &[BlockId], is_managed: impl Fn(BlockId) -> bool, most_bytes: u64) -> bool {
        let mut counts = self.pause();
        let is_new = |block: &BlockId| !counts.contains_key(block) && is_managed(*block);
        let nr_new = blocks.iter().filter(|block| is_new(block)).count();
        let nr_before = || counts.keys().filter(|block| is_managed(**block)).count();
        if nr_new != 0 && most_bytes != u64::MAX && ((nr_before() + nr_new) * BLOCK_BYTES) as u64 > most_bytes {
            return false;
        }
        blocks.iter().for_each(|&block| *counts.entry(block).or_insert(0) += 1);
        true
    }

    /// Counts one less. Returns whether it was the last of this block.
    pub fn subtract(&self, block: BlockId) -> bool {
        let mut counts = self.pause();
        let Some(count) = counts.get_mut(&block) else { return false };
        *count -= 1;
        *count == 0 && counts.remove(&block).is_some()
    }
}
