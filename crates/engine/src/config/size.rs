//! Sizes as people write them: `512M`, `2G`, `4096`. Powers of 1024, never of 1000.

use std::fmt;

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text has no digits, or something other than digits and a suffix.
    #[error("`{0}` is not a size: write a number with K, M, G or T behind it, as in 512M or 2G")]
    NotASize(String),
    /// The number does not fit 64 bits.
    #[error("`{0}` is too large a size")]
    TooLarge(String),
}

/// Reads a size in bytes: digits, then nothing, `K`, `M`, `G` or `T` (upper or lower case, `iB` or `B` may follow).
///
/// # Errors
/// [`SizeError`] says in one sentence what was wrong.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    if number.is_empty() {
        return Err(SizeError::NotASize(text.into()));
    }
    let unit = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        "T" | "TB" | "TIB" => 1u64 << 40,
        _ => return Err(SizeError::NotASize(text.into())),
    };
    number.parse::<u64>().ok().and_then(|count| count.checked_mul(unit)).ok_or_else(|| SizeError::TooLarge(text.into()))
}

/// A number of bytes that prints as `512M`, `1.5G` or `300` (bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(
    /// The number of bytes.
    pub u64,
);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, letter) in [(1u64 << 40, 'T'), (1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')] {
            if self.0 >= unit {
                return if self.0.is_multiple_of(unit) {
                    write!(f, "{}{letter}", self.0 / unit)
                } else {
                    write!(f, "{:.1}{letter}", self.0 as f64 / unit as f64)
                };
            }
        }
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [("4096", 4096), ("64K", 65536), ("512m", 512 << 20), ("2GiB", 2 << 30), ("1T", 1 << 40)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "12X", "-1G", "1.5G", "1 G", "0x10"] {
            assert!(matches!(parse_size(text), Err(SizeError::NotASize(_))), "{text}");
        }
        assert!(matches!(parse_size("99999999999T"), Err(SizeError::TooLarge(_))));
    }

    #[test]
    fn bytes_print_as_they_are_written() {
        for (bytes, text) in [(0, "0"), (300, "300"), (512 << 20, "512M"), (3 << 29, "1.5G"), (1 << 40, "1T")] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
