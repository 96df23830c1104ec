//! Sizes as people write them: `4096`, `512M` and `2GiB` (powers of 1024), `2GB` (powers of 1000); and shares of the
//! RAM.

use std::fmt;

use folioswap_core::PAGE_SIZE;
use folioswap_sys::{control_group, memory};

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text has no digits, or something other than digits and a suffix.
    #[error("`{0}` is not a size: write a whole number of bytes, or with K, M, G or T behind it, as in 512M or 2G")]
    NotASize(String),
    /// A share of the RAM that is none, or more than all of it.
    #[error("`{0}` is not a share of the RAM: write a whole number from 1% to 100%")]
    NotAShare(String),
    /// The name of a device in RAM, without one.
    #[error("`{0}` needs a size, as in {lower}:2G; a file of this name is ./{0}", lower = .0.to_ascii_lowercase())]
    NoSize(String),
    /// The number does not fit 64 bits.
    #[error("`{0}` is too large a size")]
    TooLarge(String),
}

/// Reads a size in bytes: digits, then a unit in upper or lower case. `K`, `M`, `G` and `T`, with or without `iB`, are
/// powers of 1024. With `B` (`KB`, `MB`, ...) they are powers of 1000. Nothing, or `B` alone, is bytes.
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
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "T" | "TIB" => 1u64 << 40,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(SizeError::NotASize(text.into())),
    };
    number.parse::<u64>().ok().and_then(|count| count.checked_mul(unit)).ok_or_else(|| SizeError::TooLarge(text.into()))
}

/// Reads a budget: a size as [`parse_size`] does, or a share such as `50%` of the RAM that this process may use. That
/// is the machine's, or less if a memory control group around the process has a lower limit.
///
/// # Errors
/// [`SizeError`] says in one sentence what was wrong.
pub fn parse_memory(text: &str) -> Result<u64, SizeError> {
    parse_memory_of(text, || memory::total_ram().min(control_group::memory_limit()))
}

fn parse_memory_of(text: &str, ram_bytes: impl FnOnce() -> u64) -> Result<u64, SizeError> {
    let Some(share) = text.strip_suffix('%') else { return parse_size(text) };
    let is_number = share.bytes().all(|byte| byte.is_ascii_digit());
    match share.parse::<u64>() {
        Ok(percent @ 1..=100) if is_number => Ok(ram_bytes() * percent / 100 / PAGE * PAGE),
        _ => Err(SizeError::NotAShare(text.into())),
    }
}

/// Shares are whole pages.
const PAGE: u64 = PAGE_SIZE as u64;

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
    fn units_are_powers_of_1024_but_those_of_1000_in_b() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4096B", 4096),
            ("64K", 65536),
            ("512k", 512 << 10),
            ("512KiB", 512 << 10),
            ("512kB", 512_000),
            ("512m", 512 << 20),
            ("2GiB", 2 << 30),
            ("2gib", 2 << 30),
            ("2GB", 2_000_000_000),
            ("2gb", 2_000_000_000),
            ("3Mb", 3_000_000),
            ("1T", 1 << 40),
            ("1TB", 1_000_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(parse_memory(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn shares_are_whole_pages_of_the_ram() {
        let ram = || (1 << 30) + 4096;
        for (text, bytes) in [("100%", (1 << 30) + 4096), ("50%", 512 << 20), ("1%", 10_735_616)] {
            assert_eq!(parse_memory_of(text, ram), Ok(bytes), "{text}");
        }
        for text in ["0%", "101%", "%", "-1%", "+5%", "5.5%", "50 %", "1G%", "99999999999999999999%"] {
            let error = parse_memory_of(text, ram).unwrap_err();
            assert!(matches!(error, SizeError::NotAShare(_)) && error.to_string().contains(text), "{text}: {error}");
        }
        assert!(parse_memory("50%").is_ok_and(|bytes| bytes <= memory::total_ram() / 2));
        assert!(matches!(parse_size("50%"), Err(SizeError::NotASize(_))), "only a budget has a share");
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "12X", "-1G", "1.5G", "1 G", "0x10", "2GBiB", "2iB", "%"] {
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
