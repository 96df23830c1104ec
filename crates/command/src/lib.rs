//! What the subcommands of `folioswap` share, those of the product and the benchmarks: options, failures, and children
//! that run to their end.

#![forbid(unsafe_code)]

pub mod args;
pub mod exit;
pub mod later;
pub mod supervise;

use exit::Failure;
use std::path::PathBuf;

/// The executable of this process.
pub fn own_executable() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::new(format!("the command's own file could not be found: {error}")))
}
