//! Where the scanners continue, and which blocks they skip. Hints last until the scanners meet: each block is tried
//! once until then, and again in the next round.

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

/// A whole block, in eighths.
pub(super) const FULL: usize = 8;

/// One pass of the scanners towards each other.
#[derive(Copy, Clone, Debug)]
pub(super) struct Round {
    /// The order it is for.
    pub wanted: Option<Order>,
    /// Whether it began at the ends, so that it covers the whole space.
    pub whole: bool,
    /// Only blocks that are occupied to at most this many eighths are emptied.
    pub fullest: usize,
}

/// What is remembered between runs.
#[derive(Debug)]
pub(super) struct Hints {
    nr_blocks: usize,
    /// The block that the migrate scanner visits next.
    pub source: SpaceBlockId,
    /// The free scanner is done with this block and all later ones.
    pub target_end: SpaceBlockId,
    /// The round of the last run, if that ended before the scanners met.
    pub unfinished: Option<Round>,
    /// Blocks that could not be emptied.
    pub no_source: Blocks,
    /// Blocks without a free run.
    pub no_target: Blocks,
}

impl Hints {
    /// Hints for a space of this many blocks.
    pub(super) fn new(nr_blocks: usize) -> Hints {
        let (source, target_end) = (SpaceBlockId::new(0), SpaceBlockId::new(0));
        let (no_source, no_target) = (Blocks::default(), Blocks::default());
        let mut hints = Hints { nr_blocks, source, target_end, unfinished: None, no_source, no_target };
        hints.reset(nr_blocks);
        hints
    }

    /// Starts at the ends again, with no block skipped. Allocates if the space has grown.
    pub(super) fn reset(&mut self, nr_blocks: usize) {
        (self.nr_blocks, self.unfinished) = (nr_blocks, None);
        (self.source, self.target_end) = (SpaceBlockId::new(0), SpaceBlockId::from_index(nr_blocks));
        for set in [&mut self.no_source, &mut self.no_target] {
            set.words.clear();
            set.words.resize(nr_blocks.div_ceil(64), 0);
        }
    }

    /// Whether these are for a space of this size.
    pub(super) fn fit(&self, nr_blocks: usize) -> bool {
        self.nr_blocks == nr_blocks
    }

    /// Whether the scanners are at their starting points.
    pub(super) fn at_ends(&self) -> bool {
        self.source.index() == 0 && self.target_end.index() == self.nr_blocks
    }

    /// The block that the free scanner visits next while the migrate scanner is at `source`; `None` once they met.
    pub(super) fn next_target(&self, source: SpaceBlockId) -> Option<SpaceBlockId> {
        self.target_end.previous().filter(|&block| block > source)
    }

    /// The first block of the upper half of those between the scanners.
    pub(super) fn middle(&self) -> SpaceBlockId {
        SpaceBlockId::from_index(self.source.next().index().midpoint(self.target_end.index()))
    }
}
