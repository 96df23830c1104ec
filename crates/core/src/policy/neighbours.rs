//! Neighbours: how much around a touched page is read with it, where blocks do not come back whole.
//!
//! A disk takes little longer for 64 KiB than for 4 KiB. So a page's *group*, the aligned pages around it, comes in the
//! same request. The others stay unmapped until they are touched, which shows how many are used. Groups grow while half
//! of what they bring is used, and shrink below a fourth, down to the page alone; a few small groups then try again. So
//! at most four times as much is read as is used.
//!
//! **Pieces.** Where most pages around a touched one are used, blocks are split into folios of 64 KiB instead, which
//! take one fault and one write each. One block in eight is still split into pages, and shows how many are used before
//! they leave RAM. Unused pages take room, so a folio that comes back may have been pushed out by them: it was read *in
//! vain*, if used pages alone would have left room for it. Pieces begin where seven eighths are used and not read in
//! vain, and end where less than five eighths are. So about twice as much moves as by single pages.
//!
//! Each area of 64 MiB is judged by itself, and starts from the verdict on all areas. At first this is that pieces are
//! good; it is judged once an eighth of RAM was read, so it costs little.
//!
//! **Locking.** One mutex, a leaf; nothing allocates.

use crate::id::BlockId;
use crate::order::{Order, PIECE};
use crate::policy::row::Row;
use crate::sync::{Mutex, lock};

/// Blocks of an area, as a power of two. Distant areas may share an entry.
const AREA_SHIFT: u32 = 5;
const AREAS: usize = 1024;
/// Orders of the smallest and the largest group.
const SMALLEST: u8 = 2;
const LARGEST: u8 = PIECE.exponent();
/// Touches of which one tries the smallest group, where pages come alone.
const TRY_EVERY: u8 = 16;
/// Groups, and tries, whose neighbours are judged together.
const ERA: u16 = 16;
const TRIES: u16 = 4;
/// Of blocks that are split, one in so many is split into pages where the others are split into pieces.
const SAMPLE_EVERY: u8 = 8;
/// Neighbours after which pieces are judged, and folios that came back.
const ENOUGH: u16 = 960;
const ENOUGH_BACK: u16 = 64;
/// The share of RAM that is read before pieces are first judged, as a divisor.
const MOST_BLIND: usize = 8;

/// What an area's groups have shown.
#[derive(Copy, Clone)]
struct Area {
    pieces: Pieces,
    /// Order of its groups; 0: pages come alone.
    order: u8,
    /// Touches since the last try.
    waited: u8,
    /// Neighbours read, and those of them that were touched. Each judgement halves both.
    read: u16,
    used: u16,
}

impl Area {
    const NEW: Area = Area { pieces: Pieces::NEW, order: 0, waited: 0, read: 0, used: 0 };

    /// Neighbours after which it is judged.
    fn enough(self) -> u16 {
        if self.order == 0 { TRIES * ((1 << SMALLEST) - 1) } else { ERA * ((1 << self.order) - 1) }
    }

    fn judge(&mut self) {
        let (worth, read) = (self.pieces.not_vain(self.used.into()), usize::from(self.read));
        if worth * 2 >= read {
            self.order = (self.order + 1).clamp(SMALLEST, LARGEST);
        } else if worth * 4 < read {
            self.order = if self.order > SMALLEST { self.order - 1 } else { 0 };
        }
        (self.read, self.used) = (self.read / 2, self.used / 2);
    }
}

/// Whether blocks are split into pieces, and the evidence.
#[derive(Copy, Clone)]
struct Pieces {
    are_good: bool,
    is_known: bool,
    /// Blocks split into pieces since the last that was split into pages.
    unseen: u8,
    /// Neighbours that were read, that were touched, and that left RAM untouched. Each judgement halves them.
    read: u16,
    used: u16,
    unused: u16,
    /// Folios that came back, and those read in vain.
    back: u16,
    vain: u16,
}

impl Pieces {
    const NEW: Pieces =
        Pieces { are_good: true, is_known: false, unseen: SAMPLE_EVERY, read: 0, used: 0, unused: 0, back: 0, vain: 0 };

    /// How many pages of a group of `nr_pages` are used, at most or at least: what is in RAM and was not touched may
    /// still be.
    fn used_of(self, nr_pages: usize, at_most: bool) -> usize {
        let (used, unused, unknown) = (usize::from(self.used), usize::from(self.unused), PIECE.nr_pages());
        let (used, read) = match at_most {
            true => (used + unknown, used + unused + unknown),
            false => (used, usize::from(self.read).max(used + unused) + unknown),
        };
        1 + (nr_pages - 1) * used / read
    }

    /// How many of these are left without the share that is read in vain. Where nearly all pages are used, the others
    /// take little room.
    fn not_vain(self, nr_pages: usize) -> usize {
        if self.unused * 8 <= self.used {
            return nr_pages;
        }
        let back = usize::from(self.back).max(1);
        nr_pages * (back - usize::from(self.vain)) / back
    }

    fn note_read(&mut self, nr_pages: u16) {
        self.read = self.read.saturating_add(nr_pages);
        if !self.is_known && self.read >= ENOUGH {
            self.judge();
            self.is_known = true;
        }
    }

    fn note(&mut self, nr_used: u16, nr_unused: u16) {
        self.used += nr_used;
        self.unused += nr_unused;
        if self.used + self.unused >= ENOUGH {
            self.judge();
            (self.read, self.used, self.unused) = (self.read / 2, self.used / 2, self.unused / 2);
        }
    }

    /// As [`Neighbours::came_back`], where `group` is read around each page.
    fn came_back(&mut self, group: Order, nr_left_since: usize, nr_ram: usize) {
        let nr_used = self.used_of(group.nr_pages(), true) * (nr_ram + nr_left_since) / group.nr_pages();
        self.vain += u16::from(nr_used < nr_ram);
        self.back += 1;
        if self.back >= ENOUGH_BACK {
            if self.is_known {
                self.judge();
            }
            (self.back, self.vain) = (self.back / 2, self.vain / 2);
        }
    }

    fn judge(&mut self) {
        let most = PIECE.nr_pages();
        let (at_most, least) = match (self.is_known, self.are_good) {
            (true, true) => (true, most * 5 / 8),
            (_, false) => (false, most * 7 / 8),
            // Most of what was read lately is not yet touched, used or not.
            (false, true) => (false, most / 4),
        };
        self.are_good = self.not_vain(self.used_of(most, at_most)) >= least;
    }
}

struct Record {
    areas: [Area; AREAS],
    /// Of all areas together.
    pieces: Pieces,
    /// Pages that were read before the first verdict.
    nr_blind: usize,
}

impl Record {
    const NEW: Record = Record { areas: [Area::NEW; AREAS], pieces: Pieces::NEW, nr_blind: 0 };

    fn area(&mut self, block: BlockId) -> &mut Area {
        let area = &mut self.areas[(block.index() >> AREA_SHIFT) % AREAS];
        if !area.pieces.is_known {
            area.pieces.are_good = self.pieces.are_good;
        }
        area
    }

    fn note(&mut self, block: BlockId, nr_used: u16, nr_unused: u16) {
        self.area(block).pieces.note(nr_used, nr_unused);
        self.pieces.note(nr_used, nr_unused);
    }

    /// Counts pages that are read. Judges pieces if they are many and nothing is known.
    fn read(&mut self, nr_pages: usize, nr_ram: usize) {
        if !self.pieces.is_known {
            self.nr_blind += nr_pages;
            if self.nr_blind > nr_ram / MOST_BLIND {
                self.pieces.judge();
                self.pieces.is_known = true;
            }
        }
    }
}

/// The groups and pieces of an arena.
pub struct Neighbours {
    record: Mutex<Box<Record>>,
}

impl Neighbours {
    /// Forgets everything: a forked child does something else.
    pub fn forget(&self) {
        let mut record = lock(&self.record);
        record.areas.fill(Area::NEW);
        (record.pieces, record.nr_blind) = (Pieces::NEW, 0);
    }

    /// The order of the group to read for a touched page of a block that is split into pages.
    pub fn group(&self, block: BlockId) -> Order {
        let mut record = lock(&self.record);
        let area = record.area(block);
        if area.pieces.are_good {
            return PIECE;
        }
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

    /// The order of the folios of a block that does not come back whole, and consists of folios of this order now.
    pub fn part(&self, block: BlockId, now: Order) -> Order {
        let mut record = lock(&self.record);
        let pieces = &mut record.area(block).pieces;
        if now < PIECE || !pieces.are_good {
            return Order::PAGE;
        }
        if now > PIECE {
            pieces.unseen += 1;
            if pieces.unseen >= SAMPLE_EVERY {
                pieces.unseen = 0;
                return Order::PAGE;
            }
        }
        PIECE
    }

    /// Whether blocks that do not come back whole are split into pieces here.
    pub fn in_pieces(&self, block: BlockId) -> bool {
        lock(&self.record).area(block).pieces.are_good
    }

    /// How many pages are used at least of a touched folio of this order.
    pub fn used_of_folio(&self, block: BlockId, order: Order) -> usize {
        if order < PIECE {
            return 1;
        }
        let mut record = lock(&self.record);
        let (all, own) = (record.pieces, record.area(block).pieces);
        let used = if own.is_known { own } else { all }.used_of(PIECE.nr_pages(), false);
        used * (order.nr_pages() / PIECE.nr_pages())
    }

    /// Records that pieces are read, of so many pages together, into a RAM of `nr_ram` pages.
    pub fn read_pieces(&self, nr_pages: usize, nr_ram: usize) {
        lock(&self.record).read(nr_pages, nr_ram);
    }

    /// Records that so many neighbours of a page were read with it, into a RAM of `nr_ram` pages.
    pub fn read(&self, block: BlockId, nr_pages: usize, nr_ram: usize) {
        let mut record = lock(&self.record);
        record.read(nr_pages, nr_ram);
        record.pieces.note_read(nr_pages as u16);
        let area = record.area(block);
        area.pieces.note_read(nr_pages as u16);
        area.read = area.read.saturating_add(nr_pages as u16);
        if area.read >= area.enough() {
            area.judge();
        }
    }

    /// Records that a neighbour was touched.
    pub fn used(&self, block: BlockId) {
        let mut record = lock(&self.record);
        record.note(block, 1, 0);
        let area = record.area(block);
        area.used = area.used.saturating_add(1).min(1 << 12);
    }

    /// Records that a neighbour left RAM untouched.
    pub fn unused(&self, block: BlockId) {
        lock(&self.record).note(block, 0, 1);
    }

    /// Records that it shows no more whether so many neighbours are used: their block was gathered.
    pub fn withdraw(&self, block: BlockId, nr_pages: usize) {
        if nr_pages == 0 {
            return;
        }
        let mut record = lock(&self.record);
        let area = record.area(block);
        area.pieces.read = area.pieces.read.saturating_sub(nr_pages as u16);
        record.pieces.read = record.pieces.read.saturating_sub(nr_pages as u16);
    }

    /// Records that a row of pages is read: those in between are not used.
    pub fn read_row(&self, block: BlockId, row: Row) {
        let nr_unused = row.len() * row.step().saturating_sub(1);
        let mut record = lock(&self.record);
        let nr_read = (row.len() + nr_unused) as u16;
        record.area(block).pieces.note_read(nr_read);
        record.pieces.note_read(nr_read);
        record.note(block, row.len() as u16, nr_unused as u16);
    }

    /// Records that a folio of a split block comes back, after so many pages have left RAM, which holds `nr_ram`.
    pub fn came_back(&self, block: BlockId, nr_left_since: usize, nr_ram: usize) {
        let mut record = lock(&self.record);
        let area = record.area(block);
        let group = if area.pieces.are_good { PIECE } else { Order::new(area.order).unwrap_or(Order::PAGE) };
        area.pieces.came_back(group, nr_left_since, nr_ram);
        record.pieces.came_back(group, nr_left_since, nr_ram);
    }
}

impl Default for Neighbours {
    fn default() -> Self {
        // Blocks come back in pieces until it shows that few of their pages are used.
        Neighbours { record: Mutex::new(Box::new(Record::NEW)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: BlockId = BlockId::from_index(7);
    const RAM: usize = 1 << 16;
    const FAR: BlockId = BlockId::from_index(7 + 64);

    /// Touches pages of which so many neighbours in a hundred are used, at once; the others leave. Returns how many
    /// were read and used.
    fn touch(neighbours: &Neighbours, nr: usize, percent: usize) -> (usize, usize) {
        let mut rest = 0;
        let (mut read, mut used) = (0, 0);
        for _ in 0..nr {
            let nr_read = neighbours.group(BLOCK).nr_pages() - 1;
            neighbours.read(BLOCK, nr_read, RAM);
            rest += nr_read * percent;
            let nr_used = rest / 100;
            (0..nr_used).for_each(|_| neighbours.used(BLOCK));
            (nr_used..nr_read).for_each(|_| neighbours.unused(BLOCK));
            (read, used, rest) = (read + nr_read, used + nr_used, rest % 100);
        }
        (read, used)
    }

    #[test]
    fn unused_neighbours_are_hardly_read() {
        let (read, _) = touch(&Neighbours::default(), 16_000, 0);
        assert!(read <= 3_000 + usize::from(ENOUGH), "{read} neighbours of 16,000 pages");
    }

    #[test]
    fn groups_grow_while_they_are_used_and_shrink_again() {
        let neighbours = Neighbours::default();
        touch(&neighbours, 200, 0);
        assert_eq!(neighbours.group(BLOCK), Order::PAGE);
        assert_eq!(neighbours.group(FAR), Order::PAGE, "another area believes what is known");
        touch(&neighbours, 400, 90);
        assert_eq!(neighbours.group(BLOCK), PIECE);
        touch(&neighbours, 400, 0);
        assert_eq!(neighbours.group(BLOCK), Order::PAGE);
    }

    #[test]
    fn at_most_four_times_as_much_is_read_as_is_used() {
        for percent in 0..=100 {
            let (read, used) = touch(&Neighbours::default(), 10_000, percent);
            assert!(10_000 + read <= 4 * (10_000 + used), "{percent} %: {read} read, {used} used");
        }
    }

    #[test]
    fn blocks_come_in_pieces_where_most_is_used_and_one_in_eight_by_pages() {
        for (percent, in_pieces) in [(0, false), (50, false), (70, true), (90, true)] {
            let neighbours = Neighbours::default();
            touch(&neighbours, 1000, percent);
            let by_pages = (0..80).filter(|_| neighbours.part(BLOCK, Order::HUGE) == Order::PAGE).count();
            assert_eq!(by_pages, if in_pieces { 10 } else { 80 }, "{percent} %");
            assert_eq!(neighbours.part(BLOCK, PIECE), if in_pieces { PIECE } else { Order::PAGE }, "{percent} %");
            assert_eq!(neighbours.part(BLOCK, Order::PAGE), Order::PAGE);
        }
    }

    #[test]
    fn pieces_end_where_used_pages_alone_would_have_stayed_in_ram() {
        for (nr_left_since, in_pieces) in [(200, false), (10_000, true)] {
            let neighbours = Neighbours::default();
            for _ in 0..1000 {
                touch(&neighbours, 1, 80);
                neighbours.came_back(BLOCK, nr_left_since, 1000);
            }
            assert_eq!(neighbours.part(BLOCK, PIECE) == PIECE, in_pieces, "{nr_left_since}");
        }
    }

    #[test]
    fn little_is_read_in_pieces_before_anything_is_known() {
        let neighbours = Neighbours::default();
        let nr_read = (0..RAM).take_while(|_| {
            neighbours.read_pieces(PIECE.nr_pages(), RAM);
            neighbours.in_pieces(BLOCK)
        });
        assert_eq!(nr_read.count() * PIECE.nr_pages(), RAM / MOST_BLIND);
    }
}
