//! Numbers of folios and slots as records store them: 40 bits, or none, in 5 bytes.
//!
//! 32 bits would limit all devices together to 16 TiB. Each folio and each frame has a record, so 3 bytes more per
//! number would cost 0.75 MiB per GiB.

/// A number below [`Packed::LIMIT`], or none.
#[derive(Copy, Clone, Eq, PartialEq)]
pub(crate) struct Packed([u8; 5]);

impl Packed {
    pub(crate) const NONE: Packed = Packed([u8::MAX; 5]);

    /// The first number that does not fit; its encoding stands for none.
    pub(crate) const LIMIT: u64 = (1 << 40) - 1;

    ///  # Panics
    /// When the number is [`Packed::LIMIT`] or larger.
    pub(crate) fn new(number: u64) -> Packed {
        assert!(number < Packed::LIMIT, "the number of a page or slot fits 40 bits");
        let [a, b, c, d, e, ..] = number.to_le_bytes();
        Packed([a, b, c, d, e])
    }

    pub(crate) fn get(self) -> Option<u64> {
        let [a, b, c, d, e] = self.0;
        (self != Packed::NONE).then_some(u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]))
    }

    /// The number plus `more`; none stays none.
    pub(crate) fn plus(self, more: usize) -> Packed {
        self.get().map_or(Packed::NONE, |number| Packed::new(number + more as u64))
    }
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_number_comes_back(number in 0..Packed::LIMIT, more in 0usize..512) {
            prop_assume!(number + (more as u64) < Packed::LIMIT);
            prop_assert_eq!(Packed::new(number).get(), Some(number));
            prop_assert_eq!(Packed::new(number).plus(more), Packed::new(number + more as u64));
        }
    }

    #[test]
    fn the_last_number_is_no_other_and_not_none() {
        let last = Packed::new(Packed::LIMIT - 1);
        assert_eq!((last.get(), Packed::NONE.get(), Packed::NONE.plus(1)), (Some(0xff_ffff_fffe), None, Packed::NONE));
    }

    #[test]
    #[should_panic(expected = "40 bits")]
    fn what_does_not_fit_is_refused() {
        let _ = Packed::new(Packed::LIMIT);
    }
}
