//! Where faults are resolved, and its names.

use crate::config::error::UnknownName;

/// How a fault reaches the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = unknown)]
pub enum FaultMode {
    /// Monitor where the system permits it, otherwise direct.
    #[default]
    Auto,
    /// The faulting thread resolves its fault in a SIGBUS handler. Fastest, and needs no privilege. A system call that
    /// touches a missing page fails with EFAULT. A thread that touches memory must not block SIGBUS. A fault may take
    /// memory from the global allocator: neither that nor a signal handler that interrupts it touches managed memory.
    Direct,
    /// Threads of the engine resolve faults. Every access works, also those of system calls. Needs permission. These
    /// threads use the global allocator, too.
    Monitor,
}

/// The mode that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultChoice {
    /// [`FaultMode::Direct`] or [`FaultMode::Monitor`].
    pub mode: FaultMode,
    /// Why, in a few words.
    pub reason: String,
}

fn unknown(name: &str) -> UnknownName {
    UnknownName(name.into(), "auto, direct, monitor")
}
