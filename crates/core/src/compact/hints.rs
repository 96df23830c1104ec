//! Where the scanners go on, and which blocks they pass over.
//!
//! Hints last until the scanners meet: each block is tried once on the way there, and again on the next.

use crate::id::SpaceBlockId;
use crate::order::Order;

/// A set of blocks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    words: Vec<u64>,
}

impl Blocks {
    pub(super) fn contains(&self, block: SpaceBlockId) -> bool {
        self.words[block.index() / 64] >> (block.index() % 64) & 1 != 0
    }

    pub(super) fn insert(&mut self, block: SpaceBlockId) {
        self.words[block.index() / 64] |= 1 << (block.index() % 64);
    }
}

/// All of a block, in eighths.
pub(super) const FULL: usize = 8;

/// One way of the scanners towards each other.
#[derive(Copy, Clone, Debug)]
pub(super) struct Round {
    /// The order it is for.
    pub wanted: Option<Order>,
    /// Whether it began at the ends, so that all of the space has been seen when they meet.
    pub whole: bool,
    /// Only blocks that are occupied to this many eighths at most are emptied.
    pub fullest: usize,
}

/// What is remembered between runs.
#[derive(Debug)]
pub(super) struct Hints {
    nr_blocks: usize,
    /// The block that the migrate scanner looks at next.
    pub source: SpaceBlockId,
    /// The free scanner is through with this block and all that follow.
    pub target_end: SpaceBlockId,
    /// The round of the last run, if it was not in vain.
    pub unfinished: Option<Round>,
    /// Blocks that could not be emptied.
    pub no_source: Blocks,
    /// Blocks without a free run.
    pub no_target: Blocks,
}

impl Hints {
    /// Those of a space of this many blocks.
    pub(super) fn new(nr_blocks: usize) -> Hints {
        let (source, target_end) = (SpaceBlockId::new(0), SpaceBlockId::new(0));
        let (no_source, no_target) = (Blocks::default(), Blocks::default());
        let mut hints = Hints { nr_blocks, source, target_end, unfinished: None, no_source, no_target };
        hints.reset(nr_blocks);
        hints
    }

    /// Begins at the ends, with no block passed over. Allocates when the space has grown.
    pub(super) fn reset(&mut self, nr_blocks: usize) {
        (self.nr_blocks, self.unfinished) = (nr_blocks, None);
        (self.source, self.target_end) = (SpaceBlockId::new(0), SpaceBlockId::from_index(nr_blocks));
        for set in [&mut self.no_source, &mut self.no_target] {
            set.words.clear();
            set.words.resize(nr_blocks.div_ceil(64), 0);
        }
    }

    /// Whether these are of a space of this size.
    pub(super) fn fit(&self, nr_blocks: usize) -> bool {
        self.nr_blocks == nr_blocks
    }

    /// Whether the scanners are where they begin.
    pub(super) fn at_ends(&self) -> bool {
        self.source.index() == 0 && self.target_end.index() == self.nr_blocks
    }

    /// The block that the free scanner looks at next when the migrate scanner is at `source`: nothing once they met.
    pub(super) fn next_target(&self, source: SpaceBlockId) -> Option<SpaceBlockId> {
        self.target_end.previous().filter(|&block| block > source)
    }

    /// The first block of the upper half of those between the scanners.
    pub(super) fn middle(&self) -> SpaceBlockId {
        SpaceBlockId::from_index(self.source.next().index().midpoint(self.target_end.index()))
    }
}
