//! How folios are mapped, and its names.

use std::fmt;
use std::str::FromStr;

use crate::config::error::UnknownName;

/// How folios are mapped to their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mapping {
    /// By moving if a self-test shows that it works, otherwise by copying.
    #[default]
    Auto,
    /// By `UFFDIO_MOVE`: nothing is copied, and huge pages stay huge. Linux 6.8 and later.
    Move,
    /// By `UFFDIO_COPY`, write protection and `MADV_DONTNEED`. Huge pages become small ones. A page that the kernel has
    /// pinned is copied away like any other: what a device reads into it after that is lost. Buffers of io_uring,
    /// libaio or RDMA must be [held](crate::RawSpace::hold) meanwhile, or lie elsewhere; `folioswap run` denies
    /// io_uring and libaio to programs.
    Copy,
}

impl FromStr for Mapping {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        match text {
            "auto" => Ok(Mapping::Auto),
            "move" => Ok(Mapping::Move),
            "copy" => Ok(Mapping::Copy),
            other => Err(UnknownName(other.into(), "auto, move, copy")),
        }
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mapping::Auto => "auto",
            Mapping::Move => "move",
            Mapping::Copy => "copy",
        })
    }
}
