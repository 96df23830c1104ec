//! Where faults are resolved, and its names.

use std::fmt;
use std::str::FromStr;

use crate::config::error::UnknownName;

/// How a fault reaches the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FaultMode {
    /// Monitor where the system permits it, otherwise direct.
    #[default]
    Auto,
    /// The faulting thread resolves its fault in a SIGBUS handler. Fastest, and needs no privilege. A system call that
    /// touches a missing page fails with EFAULT.
    Direct,
    /// Threads of the engine resolve faults. Every access works, also those of system calls. Needs permission.
    Monitor,
}

impl FromStr for FaultMode {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        match text {
            "auto" => Ok(FaultMode::Auto),
            "direct" => Ok(FaultMode::Direct),
            "monitor" => Ok(FaultMode::Monitor),
            other => Err(UnknownName(other.into(), "auto, direct, monitor")),
        }
    }
}

impl fmt::Display for FaultMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultMode::Auto => "auto",
            FaultMode::Direct => "direct",
            FaultMode::Monitor => "monitor",
        })
    }
}
