//! What a program says about a range of its memory, and what the engine does with it.

use std::ops::Range;

use folioswap_core::BlockId;
use folioswap_sys::signals;

use crate::engine::{Engine, current_cpu};
use crate::readahead::Window;

/// How a range is going to be used. Nothing but [`Advice::DontNeed`] changes what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// No particular way.
    Normal,
    /// Soon: it is read in the background.
    WillNeed,
    /// The content is not needed any more: it reads as zero from now on.
    DontNeed,
    /// From begin to end: it is read ahead at once.
    Sequential,
    /// At random: what is in RAM is kept as long as possible.
    Random,
    /// Not for a while: it leaves RAM first.
    Cold,
    /// Blocks of 2 MiB come back in one piece also where the arena's policy is [`SwapIn::Madvise`](crate::SwapIn::Madvise).
    HugePage,
    /// Blocks come back page by page, whatever the arena's policy.
    NoHugePage,
}

/// Blocks of one window when a range is asked for as a whole.
const WINDOW: usize = 8;

impl Engine {
    /// Asks for a range to be read in the background.
    pub fn will_need(&self, blocks: Range<usize>) {
        let _blocked = signals::block_all(); // a handler's fault might ask for a window too
        // More than the frames that may be spared would only push out what was just read.
        let end = blocks.end.min(blocks.start + self.budget_blocks() / 2);
        for start in (blocks.start..end).step_by(WINDOW) {
            let blocks = BlockId::from_index(start)..BlockId::from_index(end.min(start + WINDOW));
            self.reads.push(Window { blocks, marker: None, backward: false, cpu: current_cpu() });
        }
    }

    /// Makes what is in RAM of a range leave it first, and starts writing it.
    pub fn cold(&self, blocks: Range<usize>) {
        self.for_each_block(blocks, |block| self.evict(block));
    }

    /// Works on the blocks of a range, for a thread of the program. A handler of a signal may touch any of them, and may run
    /// between two; so may a fork, however long the range is.
    pub fn for_each_block(&self, blocks: Range<usize>, mut work: impl FnMut(BlockId)) {
        for index in blocks {
            let _blocked = signals::block_all();
            let _pass = self.gate.enter(signals::thread_id());
            work(BlockId::from_index(index));
        }
    }

    /// Ends what whole blocks hold: they read as zero from now on.
    pub fn drop_range(&self, blocks: Range<usize>) {
        self.for_each_block(blocks, |block| {
            if self.table.has(block) {
                self.drop_block(&mut self.lock(block));
            }
        });
    }
}
