//! Rows: folios of a block that are touched, or read ahead, at a constant distance of each other.

/// Folios of a block at a constant distance of each other.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Row {
    /// The folio before the first one.
    pub(super) before: usize,
    pub(super) step: i8,
    pub(super) len: usize,
}

impl Row {
    /// Their indices, in the direction of the row.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        (1..=self.len).map(move |at| self.before.wrapping_add_signed(at as isize * isize::from(self.step)))
    }

    /// The index of the last one.
    pub(super) fn last(self) -> Option<usize> {
        (self.len > 0).then(|| self.before.wrapping_add_signed(self.len as isize * isize::from(self.step)))
    }

    /// So many of them at most.
    #[must_use]
    pub fn first(self, nr_folios: usize) -> Row {
        Row { len: self.len.min(nr_folios), ..self }
    }

    /// How many they are.
    pub fn len(self) -> usize {
        self.len
    }

    /// The distance from one to the next.
    pub fn step(self) -> usize {
        self.step.unsigned_abs().into()
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}
