//! The folio size that a user or program asks for: one size for all folios, or the engine's choice.

use std::fmt;
use std::str::FromStr;

use folioswap_core::{Order, PAGE_SIZE};

use crate::config::size::parse_size;

/// The size of an arena's or a region's folios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FolioSize {
    /// The engine chooses, and may choose differently for different folios.
    Auto,
    /// Every folio has this order.
    Fixed(Order),
}

/// Why a text is not a valid folio size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no size of folios: `auto` or a power of two from 4K to 2M would do")]
pub struct FolioSizeError(String);

impl FolioSize {
    /// The order of all folios, if there is a single one.
    pub(crate) fn order(self) -> Option<Order> {
        match self {
            FolioSize::Auto => None,
            FolioSize::Fixed(order) => Some(order),
        }
    }
}

impl From<Order> for FolioSize {
    fn from(order: Order) -> Self {
        FolioSize::Fixed(order)
    }
}

/// Parses `auto`, or a size in the format of [`parse_size`] that is a power of two from 4K to 2M.
impl FromStr for FolioSize {
    type Err = FolioSizeError;

    fn from_str(text: &str) -> Result<Self, FolioSizeError> {
        if text == "auto" {
            return Ok(FolioSize::Auto);
        }
        let bytes = parse_size(text).ok().and_then(|bytes| usize::try_from(bytes).ok());
        bytes
            .filter(|bytes| *bytes >= PAGE_SIZE)
            .and_then(Order::from_bytes)
            .map(FolioSize::Fixed)
            .ok_or_else(|| FolioSizeError(text.into()))
    }
}

impl fmt::Display for FolioSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FolioSize::Auto => f.write_str("auto"),
            FolioSize::Fixed(order) => order.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use folioswap_core::MAX_ORDER;

    #[test]
    fn what_is_printed_is_read_again() {
        let fixed = (0..=MAX_ORDER).map(|k| FolioSize::from(Order::new(k).unwrap()));
        for size in fixed.chain([FolioSize::Auto]) {
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        assert_eq!("65536".parse(), Ok(FolioSize::Fixed(Order::new(4).unwrap())));
    }

    #[test]
    fn other_sizes_are_refused_with_what_would_do() {
        for text in ["", "3M", "4M", "2K", "0", "1", "Auto", "12K", "9999999999999T", "huge"] {
            let error = text.parse::<FolioSize>().unwrap_err().to_string();
            assert!(error.contains("auto") && error.contains("4K") && error.contains("2M"), "{error}");
        }
    }
}
