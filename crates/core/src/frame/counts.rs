//! Frame counts and watermarks of a zone.

use super::buddy::BLOCK;

/// The watermarks of a zone, in free frames.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Watermarks {
    /// Reserved for reclaim itself; a faulting thread reclaims directly instead of going below.
    pub min: usize,
    /// Background reclaim starts below this.
    pub low: usize,
    /// Background reclaim stops at this.
    pub high: usize,
}

impl Watermarks {
    /// The watermarks of a zone of this many pageblocks: 1/64, 1/16 and 1/8 of them, at least 2, 4 and 6, and always
    /// less than half.
    pub fn for_pageblocks(nr_pageblocks: usize) -> Watermarks {
        let most = nr_pageblocks.saturating_sub(1) / 2;
        Watermarks {
            min: (nr_pageblocks / 64).max(2).min(most) * BLOCK,
            low: (nr_pageblocks / 16).max(4).min(most) * BLOCK,
            high: (nr_pageblocks / 8).max(6).min(most) * BLOCK,
        }
    }

    pub(super) fn plus(self, other: Watermarks) -> Watermarks {
        Watermarks { min: self.min + other.min, low: self.low + other.low, high: self.high + other.high }
    }
}

/// Whether frames of an order are available.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
pub enum Contiguity {
    /// There are too few free frames.
    Few,
    /// There are enough free frames, but not contiguous.
    Pieces,
    /// They can be taken.
    Run,
}

/// Frame counts by state.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct ZoneCounts {
    /// Frames that can be taken now if they are contiguous enough, including unpopulated ones under the limit.
    pub free: usize,
    /// Frames of folios on the clean lists.
    pub clean: usize,
    /// Frames of folios on the active lists.
    pub active: usize,
    /// Frames of folios on the inactive lists.
    pub inactive: usize,
    /// Frames of folios in the laundry.
    pub laundry: usize,
    /// Frames taken: those of folios on a list, and held ones.
    pub in_use: usize,
    /// Free frames that compaction isolated as targets for moves.
    pub isolated: usize,
    /// Frames that may be in use.
    pub limit: usize,
    /// Frames that have memory.
    pub populated: usize,
}

impl ZoneCounts {
    /// Frames in use beyond the limit.
    pub fn excess(&self) -> usize {
        self.in_use.saturating_sub(self.limit)
    }

    pub(super) fn plus(self, other: ZoneCounts) -> ZoneCounts {
        ZoneCounts {
            free: self.free + other.free,
            clean: self.clean + other.clean,
            active: self.active + other.active,
            inactive: self.inactive + other.inactive,
            laundry: self.laundry + other.laundry,
            in_use: self.in_use + other.in_use,
            isolated: self.isolated + other.isolated,
            limit: self.limit + other.limit,
            populated: self.populated + other.populated,
        }
    }
}

/// Frame counts of one class by list.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct ClassCounts {
    /// Frames on its active list.
    pub active: usize,
    /// Frames on its inactive list.
    pub inactive: usize,
    /// Frames in its laundry.
    pub laundry: usize,
    /// Frames on its clean list.
    pub clean: usize,
}

impl ClassCounts {
    /// Frames on any of its lists.
    pub fn in_use(&self) -> usize {
        self.active + self.inactive + self.laundry + self.clean
    }

    pub(super) fn plus(self, other: ClassCounts) -> ClassCounts {
        ClassCounts {
            active: self.active + other.active,
            inactive: self.inactive + other.inactive,
            laundry: self.laundry + other.laundry,
            clean: self.clean + other.clean,
        }
    }
}
