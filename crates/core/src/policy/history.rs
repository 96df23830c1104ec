//! What the faults of one block have shown: how much of it was touched, and in which rows.
//!
//! **Rows.** Pages touched at a constant distance of each other, as in a column of a matrix, are read ahead, as many as
//! the row is long, so at most half of them in vain. Up to a distance of four, the pages in between count as touched,
//! unless the pages of such rows alone would have stayed in RAM.

use crate::order::BLOCK_PAGES;
use crate::policy::row::Row;

/// Pages of a block touched in one lifetime from which reading it whole moves little more than is used.
pub const DENSE: u16 = 192;
/// Folios touched consecutively that show that a block is being streamed through.
pub const RUN: u16 = 256;
/// Folios touched in a row from which those that follow are read ahead.
const ROW: u16 = 4;
/// Distance in a row up to which the pages in between come with it: a fourth of what moves is used then.
pub(super) const MOST_STEP: u16 = 4;
/// A row of pieces counts as a row of pages only if at least this many pages of the block would be used.
const MOST_OF_BLOCK: usize = BLOCK_PAGES * 3 / 4;

/// What a block's faults have shown, kept with the block.
#[derive(Copy, Clone, Debug, Default)]
pub struct History {
    pub(super) judged_at: u32,
    /// Start of the lifetime in which touches are counted.
    pub(super) since: u16,
    pub(super) touches: u16,
    /// Touches from which it is dense.
    pub(super) enough: u16,
    /// The folio of the last fault, or the last one read ahead with it, and the length of the row that ends there.
    last: u16,
    run: u16,
    /// The distance from one folio of the row to the next; negative: the row goes down; 0: not known.
    step: i8,
    pub(super) verdict: Verdict,
}

const _: () = assert!(size_of::<History>() == 16, "a block's entry has room for no more");

impl History {
    /// Begins a lifetime with a touch, in which so many make the block dense.
    pub(super) fn begin(&mut self, now: u32, enough: u16) {
        // Rows of an earlier lifetime say nothing: a block that fills slowly is not streamed through.
        *self = History { since: now as u16, touches: 1, enough, run: 0, ..*self };
    }

    /// Forgets that the block was dense.
    pub fn doubt(&mut self) {
        self.verdict = Verdict::None;
    }

    /// Ends a lifetime in which the block proved to be dense. Its row goes on.
    pub(super) fn end_dense(&mut self, now: u32) {
        let History { last, run, step, .. } = *self;
        *self = History { verdict: Verdict::Dense, judged_at: now, last, run, step, ..History::default() };
    }

    /// Records a fault of the folio at `index` of its block of `nr_folios`, each with so many pages in use. Returns
    /// whether it is one of many consecutive ones.
    pub fn note(&mut self, index: usize, nr_folios: usize, used_of_folio: usize) -> bool {
        if !self.was_read_ahead(index) {
            if self.continues(index) {
                self.run = self.run.saturating_add(1);
            } else {
                self.step = if self.run == 0 { 0 } else { i8::try_from(self.distance(index)).unwrap_or(0) };
                self.run = if self.step == 0 { 1 } else { 2 };
            }
            self.last = index as u16;
        }
        nr_folios > 1 && self.is_many_in_row(nr_folios, used_of_folio)
    }

    /// Records the first touch of a folio that was read as a neighbour: it counts, and the next fault judges.
    pub fn note_neighbour(&mut self) {
        self.touches = self.touches.saturating_add(1);
    }

    /// How far a folio lies above the last one of the row; negative: below it.
    fn distance(&self, index: usize) -> isize {
        index as isize - self.last as isize
    }

    pub(super) fn is_dense(&self) -> bool {
        self.touches >= self.enough.max(DENSE)
    }

    fn is_consecutive(&self) -> bool {
        self.step.unsigned_abs() == 1
    }

    pub(super) fn is_many_in_row(&self, nr_folios: usize, used_of_folio: usize) -> bool {
        let least = RUN.min((nr_folios / 2) as u16);
        self.is_consecutive() && self.run >= least && used_of_folio * nr_folios >= MOST_OF_BLOCK
    }

    pub(super) fn continues(&self, index: usize) -> bool {
        self.step != 0 && self.distance(index) == self.step.into() && !self.was_read_ahead(index)
    }

    /// Folios to read with the one at `index`, which is about to be noted, because it continues a row: the next ones
    /// of the row, as many as were touched.
    pub fn ahead(&self, index: usize, nr_folios: usize) -> Row {
        let run = usize::from(self.run) + 1;
        if run < usize::from(ROW) || !self.continues(index) {
            return Row::default();
        }
        let room = if self.step > 0 { nr_folios - 1 - index } else { index };
        Row { before: index, step: self.step, len: run.min(room / usize::from(self.step.unsigned_abs())) }
    }

    /// Records that these folios were read ahead with the one that was noted last.
    pub fn note_ahead(&mut self, ahead: Row) {
        if let Some(last) = ahead.last() {
            self.last = last as u16;
            self.run = self.run.saturating_add(ahead.len as u16);
        }
    }

    /// Whether a folio is among those read ahead last. It may fault all the same, if it was in RAM but not mapped.
    fn was_read_ahead(&self, index: usize) -> bool {
        let (behind, step) = (-self.distance(index), isize::from(self.step));
        self.run >= 2 * ROW
            && step != 0
            && behind % step == 0
            && (0..(self.run / 2) as isize).contains(&(behind / step))
    }

    /// Folios of which a fault at `index` uses one, in a block of whose pages so many are used if all its folios are.
    /// Those in between do not count if the pages of such rows alone would have stayed in RAM.
    pub(super) fn weight(&self, index: usize, used_of_block: usize) -> usize {
        let step = usize::from(self.step.unsigned_abs());
        let counts = self.continues(index) && step <= MOST_STEP.into() && used_of_block / step >= self.enough.into();
        if counts { step } else { 1 }
    }

    /// Forgets the row: the folios are others now.
    pub fn end_row(&mut self) {
        self.run = 0;
    }

    /// Folios read ahead that a fault at `index` shows to have been used: those of the row that it continues. Of a row
    /// that it ends, half are believed to have been used.
    pub(super) fn used_ahead(&self, index: usize) -> u16 {
        match self.run / 2 {
            ahead if ahead < ROW || self.was_read_ahead(index) => 0,
            ahead if self.continues(index) => ahead,
            ahead => ahead / 2,
        }
    }
}

#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) enum Verdict {
    #[default]
    None,
    Dense,
    Sparse,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_goes_on_to_the_end_of_its_block_in_either_direction() {
        let mut history = History::default();
        for index in [500, 480, 460] {
            assert!(history.ahead(index, 512).is_empty());
            history.note(index, 512, 1);
        }
        assert_eq!(history.ahead(440, 512).iter().collect::<Vec<_>>(), [420, 400, 380, 360]);
        history.note(440, 512, 1);
        history.note_ahead(Row { before: 440, step: -20, len: 4 });
        assert!(history.was_read_ahead(380) && !history.was_read_ahead(370));
        assert_eq!(history.ahead(340, 512).iter().last(), Some(160));
        assert!(history.ahead(339, 512).is_empty());
    }

    #[test]
    fn a_row_of_which_nothing_was_read_goes_on_with_the_next_fault() {
        let mut history = History::default();
        for index in 0..3 {
            history.note(index, 512, 1);
        }
        let ahead = history.ahead(3, 512);
        history.note(3, 512, 1);
        history.note_ahead(ahead.first(0));
        assert_eq!(history.ahead(4, 512).iter().collect::<Vec<_>>(), [5, 6, 7, 8, 9]);
    }
}
