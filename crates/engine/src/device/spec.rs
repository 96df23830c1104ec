//! What a swap device is to be, as text: `PATH[:SIZE]` or `ram:SIZE`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::size::{Bytes, SizeError, parse_size};

/// A swap device, to be opened.
///
/// A disk that turns is recognised by what the kernel says of it (`/sys/dev/block/*/queue/rotational`), through
/// partitions, device mapper and md; there every folio is written page by page, each to the next free slot. What is
/// known to be virtual (virtio, Xen, NVMe, the disks of hypervisors by their vendors) is never taken for one: those say
/// that they turn whatever is below them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSpec {
    /// A file (made, used, and gone when the arena goes) or a block device.
    File {
        /// Where it is.
        path: PathBuf,
        /// How many bytes of it to use at most; none: a file grows as long as the file system has room, a block
        /// device is used whole.
        size: Option<u64>,
    },
    /// Memory outside the budget.
    Ram {
        /// Its size in bytes.
        size: u64,
    },
}

impl FromStr for DeviceSpec {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        if let Some(size) = text.strip_prefix("ram:") {
            return Ok(DeviceSpec::Ram { size: parse_size(size)? });
        }
        // A path may hold colons; only what follows the last one and begins with a digit is a size.
        if let Some((path, size)) = text.rsplit_once(':')
            && size.starts_with(|c: char| c.is_ascii_digit())
            && !size.contains('/')
        {
            return Ok(DeviceSpec::File { path: path.into(), size: Some(parse_size(size)?) });
        }
        Ok(DeviceSpec::File { path: text.into(), size: None })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::File { path, size: None } => write!(f, "{}", path.display()),
            DeviceSpec::File { path, size: Some(size) } => write!(f, "{}:{}", path.display(), Bytes(*size)),
            DeviceSpec::Ram { size } => write!(f, "ram:{}", Bytes(*size)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms_are_read() {
        let file = |path: &str, size| DeviceSpec::File { path: path.into(), size };
        for (text, spec) in [
            ("ram:2G", DeviceSpec::Ram { size: 2 << 30 }),
            ("/swap/a", file("/swap/a", None)),
            ("/swap/a:512M", file("/swap/a", Some(512 << 20))),
            ("/swap/a:b", file("/swap/a:b", None)),
            ("/swap/12:30/c", file("/swap/12:30/c", None)),
        ] {
            assert_eq!(text.parse(), Ok(spec), "{text}");
        }
        assert!("ram:lots".parse::<DeviceSpec>().is_err());
        assert!("/swap/a:5X".parse::<DeviceSpec>().is_err());
    }
}
