//! Neighbours: how many pages around a touched one are read with it, where blocks come back page by page.
//!
//! A disk takes little longer for 64 KiB than for 4 KiB. So the *group* of a touched page, the aligned pages around it,
//! comes in the same request. The others stay unmapped until they are touched, which shows how many are used. Groups
//! grow while half of what they bring is used, and shrink below a fourth, down to the page alone; a few small groups
//! then try again. So at most four times as much is read as is used. Each area of 64 MiB has groups of its own.
//!
//! **Locking.** One mutex, a leaf; nothing allocates.

use crate::id::BlockId;
use crate::order::Order;
use crate::sync::{Mutex, lock};

/// Blocks of an area, as a power of two. Distant areas may share an entry.
const AREA_SHIFT: u32 = 5;
const AREAS: usize = 1024;
/// Orders of the smallest and the largest group.
const SMALLEST: u8 = 2;
const LARGEST: u8 = 4;
/// Touches of which one tries the smallest group, where pages come alone.
const TRY_EVERY: u8 = 16;
/// Groups, and tries, whose neighbours are judged together.
const ERA: u16 = 16;
const TRIES: u16 = 4;

/// What an area's groups have shown.
#[derive(Copy, Clone)]
struct Area {
    /// Order of its groups; 0: pages come alone.
    order: u8,
    /// Touches since the last try.
    waited: u8,
    /// Neighbours read, and those of them that were touched. Each judgement halves both.
    read: u16,
    used: u16,
}

impl Area {
    const NEW: Area = Area { order: 0, waited: 0, read: 0, used: 0 };

    /// Neighbours after which it is judged.
    fn enough(self) -> u16 {
        if self.order == 0 { TRIES * ((1 << SMALLEST) - 1) } else { ERA * ((1 << self.order) - 1) }
    }

    fn judge(&mut self) {
        if self.used * 2 >= self.read {
            self.order = (self.order + 1).clamp(SMALLEST, LARGEST);
        } else if self.used * 4 < self.read {
            self.order = if self.order > SMALLEST { self.order - 1 } else { 0 };
        }
        (self.read, self.used) = (self.read / 2, self.used / 2);
    }
}

/// The groups of an arena.
pub struct Neighbours {
    areas: Mutex<Box<[Area; AREAS]>>,
}

impl Neighbours {
    /// Pages come alone until tries have shown that more are used.
    pub fn new() -> Self {
        Neighbours { areas: Mutex::new(Box::new([Area::NEW; AREAS])) }
    }

    /// Forgets everything: a forked child does something else.
    pub fn forget(&self) {
        **lock(&self.areas) = [Area::NEW; AREAS];
    }

    /// The order of the group to read for a touched page of a block.
    pub fn group(&self, block: BlockId) -> Order {
        let area = &mut lock(&self.areas)[area_of(block)];
        if area.order > 0 {
            return Order::new(area.order).unwrap_or(Order::PAGE);
        }
        area.waited += 1;
        if area.waited < TRY_EVERY {
            return Order::PAGE;
        }
        area.waited = 0;
        Order::new(SMALLEST).unwrap_or(Order::PAGE)
    }

    /// Records that so many neighbours of a page were read with it.
    pub fn read(&self, block: BlockId, nr_pages: usize) {
        let area = &mut lock(&self.areas)[area_of(block)];
        area.read = area.read.saturating_add(nr_pages as u16);
        if area.read >= area.enough() {
            area.judge();
        }
    }

    /// Records that a neighbour was touched.
    pub fn used(&self, block: BlockId) {
        let area = &mut lock(&self.areas)[area_of(block)];
        area.used = area.used.saturating_add(1).min(1 << 12);
    }
}

fn area_of(block: BlockId) -> usize {
    (block.index() >> AREA_SHIFT) % AREAS
}

impl Default for Neighbours {
    fn default() -> Self {
        Neighbours::new()
    }
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighbours").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Touches pages of which so many neighbours in a hundred are used, at once. Returns how many were read and used.
    fn touch(neighbours: &Neighbours, nr: usize, percent: usize) -> (usize, usize) {
        let (block, mut rest) = (BlockId::from_index(7), 0);
        let (mut read, mut used) = (0, 0);
        for _ in 0..nr {
            let nr_read = neighbours.group(block).nr_pages() - 1;
            neighbours.read(block, nr_read);
            rest += nr_read * percent;
            (0..rest / 100).for_each(|_| neighbours.used(block));
            (read, used, rest) = (read + nr_read, used + rest / 100, rest % 100);
        }
        (read, used)
    }

    #[test]
    fn unused_neighbours_are_hardly_read() {
        let (read, _) = touch(&Neighbours::new(), 16_000, 0);
        assert!(read <= 3_000 + 4 * 12, "{read} neighbours of 16,000 pages");
    }

    #[test]
    fn groups_grow_while_they_are_used_and_shrink_again() {
        let neighbours = Neighbours::new();
        touch(&neighbours, 200, 90);
        assert_eq!(neighbours.group(BlockId::from_index(7)).nr_pages(), 16);
        assert_eq!(neighbours.group(BlockId::from_index(7 + 64)), Order::PAGE, "another area");
        touch(&neighbours, 200, 0);
        assert_eq!(neighbours.group(BlockId::from_index(7)), Order::PAGE);
    }

    #[test]
    fn at_most_four_times_as_much_is_read_as_is_used() {
        for percent in 0..=100 {
            let (read, used) = touch(&Neighbours::new(), 10_000, percent);
            assert!(10_000 + read <= 4 * (10_000 + used), "{percent} %: {read} read, {used} used");
        }
    }
}
