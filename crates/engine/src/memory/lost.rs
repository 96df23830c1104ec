//! Pages whose content is lost: a device failed, or gave back other bytes than were written.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use folioswap_core::{BlockId, PageSet};

/// All lost pages of an arena. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Lost {
    blocks: Mutex<HashMap<BlockId, PageSet>>,
    /// Number of blocks with lost pages. Read under a block's lock, it is accurate for that block.
    nr_blocks: AtomicUsize,
}

impl Lost {
    /// Notes lost pages. `false`: all of them were known.
    pub fn note(&self, block: BlockId, pages: Range<usize>) -> bool {
        let mut blocks = self.blocks.lock().expect("nothing panics under this lock");
        let known = blocks.entry(block).or_default();
        let before = *known;
        known.insert(pages);
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
        let taken = pages.clone().filter(|&page| known.contains(page)).collect();
        known.remove(pages);
        if known.is_empty() {
            blocks.remove(&block);
        }
        self.nr_blocks.store(blocks.len(), Ordering::Relaxed);
        taken
    }

    pub fn blocks(&self) -> Vec<BlockId> {
        self.blocks.lock().expect("nothing panics under this lock").keys().copied().collect()
    }
}
