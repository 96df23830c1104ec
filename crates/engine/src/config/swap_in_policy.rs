//! The arena's policy whether a folio that went out whole comes back whole.
//!
//! Advice against large folios for a block ([`Wish::Pages`]) holds under every policy. Where the engine chooses the
//! size of folios ([`FolioSize::Auto`](crate::FolioSize::Auto)), a policy of "in one piece" leaves the choice to it.

use folioswap_core::Wish;

use crate::config::error::UnknownName;

/// When a folio is read back in one piece. The names are those of Linux's settings for large folios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = unknown)]
pub enum SwapIn {
    /// In one piece.
    #[default]
    Always,
    /// In one piece if the program advised it, otherwise page by page.
    Madvise,
    /// Page by page, each as it is touched.
    Never,
}

impl SwapIn {
    /// Whether a block may come back in one piece, given the program's advice for it.
    pub(crate) fn allows_whole(self, wish: Wish) -> bool {
        match (self, wish) {
            (SwapIn::Never, _) | (_, Wish::Pages) => false,
            (SwapIn::Always, _) | (SwapIn::Madvise, Wish::Whole) => true,
            (SwapIn::Madvise, Wish::None) => false,
        }
    }

    /// A number for storage in an atomic.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_number(number: u8) -> SwapIn {
        [SwapIn::Always, SwapIn::Madvise, SwapIn::Never][usize::from(number)]
    }
}

fn unknown(name: &str) -> UnknownName {
    UnknownName(name.into(), "always, madvise, never")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for policy in [SwapIn::Always, SwapIn::Madvise, SwapIn::Never] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            assert_eq!(SwapIn::from_number(policy.number()), policy);
        }
        assert!("sometimes".parse::<SwapIn>().unwrap_err().to_string().contains("madvise"));
    }
}
