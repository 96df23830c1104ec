//! Frame counts and watermarks of a zone, as a snapshot.

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

    /// At least a little of the frames of small folios. Without any reserve, as in a small zone that has nearly nothing
    /// else, each fault would wait for reclaim.
    #[must_use]
    pub fn with_small(self, nr_frames: usize) -> Watermarks {
        Watermarks {
            min: self.min.max(nr_frames / 512),
            low: self.low.max(nr_frames / 128),
            high: self.high.max(nr_frames / 64),
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

/// Frames of folios by list.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct ListCounts {
    /// Frames on active lists.
    pub active: usize,
    /// Frames on inactive lists.
    pub inactive: usize,
    /// Frames in the laundry.
    pub laundry: usize,
    /// Frames on clean lists.
    pub clean: usize,
}

impl ListCounts {
    /// Frames on any of the lists.
    pub fn in_use(&self) -> usize {
        self.active + self.inactive + self.laundry + self.clean
    }

    pub(super) fn plus(self, other: ListCounts) -> ListCounts {
        ListCounts {
            active: self.active + other.active,
            inactive: self.inactive + other.inactive,
            laundry: self.laundry + other.laundry,
            clean: self.clean + other.clean,
        }
    }
}

/// Frame counts of a zone at one moment, or their sums over all zones.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct ZoneCounts {
    /// Frames that can be taken now if they are contiguous enough, including unpopulated ones under the limit.
    pub free: usize,
    /// Frames of folios by list.
    pub lists: ListCounts,
    /// The same of small folios only.
    pub small: ListCounts,
    /// Frames taken: those of folios on a list, and held ones.
    pub in_use: usize,
    /// Free frames that compaction isolated as targets for moves.
    pub isolated: usize,
    /// Frames that may be in use.
    pub limit: usize,
    /// Frames in use beyond the limit.
    pub excess: usize,
    /// Frames that have memory.
    pub populated: usize,
    /// Populated frames beyond the limit, without those whose memory is being given back.
    pub surplus: usize,
    /// Frames of the wholly free pageblocks that are kept for whole folios.
    pub kept_whole: usize,
    /// The watermarks for this limit and use.
    pub watermarks: Watermarks,
}

impl ZoneCounts {
    /// Frames available without a write: free ones, unpopulated ones under the limit, and clean ones.
    pub fn available(&self) -> usize {
        self.free + self.lists.clean
    }

    /// Frames that background reclaim has to make available: up to this mark, plus the pageblocks kept whole, plus what
    /// is in use beyond the limit.
    pub fn shortage(&self, mark: usize) -> usize {
        let wanted = mark + self.excess + self.kept_whole;
        // Ask for one frame at least: with very low watermarks an empty zone would otherwise want nothing.
        wanted.max(usize::from(self.limit > 0)).saturating_sub(self.available())
    }

    pub(super) fn plus(self, other: ZoneCounts) -> ZoneCounts {
        ZoneCounts {
            free: self.free + other.free,
            lists: self.lists.plus(other.lists),
            small: self.small.plus(other.small),
            in_use: self.in_use + other.in_use,
            isolated: self.isolated + other.isolated,
            limit: self.limit + other.limit,
            excess: self.excess + other.excess,
            populated: self.populated + other.populated,
            surplus: self.surplus + other.surplus,
            kept_whole: self.kept_whole + other.kept_whole,
            watermarks: self.watermarks.plus(other.watermarks),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn watermarks_are_whole_pageblocks_under_half() {
        let of = |nr| Watermarks::for_pageblocks(nr);
        assert_eq!(of(1024), Watermarks { min: 16 * BLOCK, low: 64 * BLOCK, high: 128 * BLOCK });
        assert_eq!(of(32), Watermarks { min: 2 * BLOCK, low: 4 * BLOCK, high: 6 * BLOCK });
        assert_eq!(of(3), Watermarks { min: BLOCK, low: BLOCK, high: BLOCK });
        assert_eq!(of(0), Watermarks { min: 0, low: 0, high: 0 });
    }

    #[test]
    fn small_folios_alone_have_a_reserve_that_is_little() {
        assert_eq!(Watermarks::for_pageblocks(2).with_small(7168), Watermarks { min: 14, low: 56, high: 112 });
        assert_eq!(Watermarks::for_pageblocks(8).with_small(50_000), Watermarks::for_pageblocks(8));
    }
}
