//! How folios are mapped, and its names.

use crate::config::error::UnknownName;

/// How folios are mapped to their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = unknown)]
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

fn unknown(name: &str) -> UnknownName {
    UnknownName(name.into(), "auto, move, copy")
}
