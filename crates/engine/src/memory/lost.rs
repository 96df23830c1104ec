//! Pages whose content is lost: a device failed, or gave back other bytes than were written.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use folioswap_core::{BLOCK_PAGES, BlockId};

/// One bit per lost page of a block.
type Pages = [u64; BLOCK_PAGES / 64];

/// All lost pages of an arena. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Lost {
    blocks: Mutex<HashMap<BlockId, Pages>>,
    /// Number of blocks with lost pages. Read under a block's lock, it is accurate for that block.
    nr_blocks: AtomicUsize,
}

impl Lost {
    /// Notes lost pages. `false`: all of them were known.
    pub fn note(&self, block: BlockId, pages: Range<usize>) -> bool {
        let mut blocks = self.blocks.lock().expect("nothing panics under this lock");
        let known = blocks.entry(block).or_insert([0; BLOCK_PAGES / 64]);
        let before = *known;
        pages.for_each(|page| known[page / 64] |= 1 << (page % 64));
        let is_news = *known != before;
        self.nr_blocks.store(blocks.len(), Ordering::Relaxed);
        is_news
    }

    /// Forgets pages of a block, and returns those that were lost.
    pub fn take(&self, block: BlockId, pages: Range<usize>) -> Vec<usize> {
        if self.nr_blocks.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut blocks = self.blocks.lock().expect("nothing panics under this lock");
        let Some(known) = blocks.get_mut(&block) else { return Vec::new() };
        let mut taken = Vec::new();
        for page in pages {
            if known[page / 64] >> (page % 64) & 1 == 1 {
                known[page / 64] &= !(1 << (page % 64));
                taken.push(page);
            }
        }
        if known.iter().all(|&word| word == 0) {
            blocks.remove(&block);
        }
        self.nr_blocks.store(blocks.len(), Ordering::Relaxed);
        taken
    }

    pub fn blocks(&self) -> Vec<BlockId> {
        self.blocks.lock().expect("nothing panics under this lock").keys().copied().collect()
    }
}
