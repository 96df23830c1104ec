//! All errors, each with a message of one sentence, which says its kind: the command ends with one status for all of
//! them ([`ExitStatus::Failed`](crate::ExitStatus::Failed)).

use std::io;
use std::path::PathBuf;

use crate::config::limits::MAX_MEMORY;
use crate::config::size::{Bytes, SizeError};

/// A name that is none of the valid ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of {1}")]
pub struct UnknownName(pub(crate) String, pub(crate) &'static str);

/// Why an arena, a region or a change to one failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The budget is below [`MIN_MEMORY`](crate::MIN_MEMORY).
    #[error("a memory budget of {0} bytes is too small: give at least 16M")]
    BudgetTooSmall(u64),
    /// The budget is above [`MAX_MEMORY`].
    #[error("a memory budget of {} is too large: give at most {}", Bytes(*.0), Bytes(MAX_MEMORY))]
    BudgetTooLarge(u64),
    /// The kernel does not grant that many addresses.
    #[error("{} of addresses are not available ({error}): ask for fewer, or raise the limit (`ulimit -v unlimited`)", Bytes(*.wanted_bytes))]
    NoAddresses {
        /// Bytes of addresses.
        wanted_bytes: u64,
        /// The kernel's error.
        error: io::Error,
    },
    /// A size could not be parsed.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The program may not use userfaultfd in the requested mode.
    #[error("userfaultfd is not permitted for {mode} faults ({reason}){help}")]
    NoUserfaultfd {
        /// The requested delivery of faults.
        mode: &'static str,
        /// The kernel's error.
        reason: String,
        /// What would permit it, if anything would.
        help: &'static str,
    },
    /// Mapping by `UFFDIO_MOVE` was requested, but does not work on this kernel.
    #[error("mapping by UFFDIO_MOVE is not available here ({0}): use the copy mapper, or Linux 6.8 and later")]
    NoMove(String),
    /// A locked budget was requested, but folios are copied: each copy has other memory.
    #[error("a locked budget needs folios that move, and here they are copied ({0}): do without one of the two")]
    LockNeedsMove(String),
    /// Addresses cannot be locked in RAM: those of the frames and of all regions.
    #[error(
        "a locked budget locks {} of addresses, and the limit of locked memory is {}: raise it (`ulimit -l {}`, or unlimited), or run as root or with CAP_IPC_LOCK",
        Bytes(*.wanted_bytes), Bytes(*.limit_bytes), .wanted_bytes.div_ceil(1024)
    )]
    LockLimit {
        /// Bytes of addresses to be locked.
        wanted_bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// There is not enough RAM for a locked budget, which is allocated at once.
    #[error("a locked budget takes its RAM at once, and {} more are not available ({reason}): give a smaller one", Bytes(*.wanted_bytes))]
    NoMemoryToLock {
        /// Bytes that were wanted.
        wanted_bytes: u64,
        /// How much is available, or the kernel's error.
        reason: String,
    },
    /// A locked budget cannot shrink.
    #[error("a locked budget of {} cannot become {}: nothing of it is given back while it is in use", Bytes(*.now_bytes), Bytes(*.wanted_bytes))]
    LockedShrink {
        /// The budget in bytes.
        now_bytes: u64,
        /// The requested budget in bytes.
        wanted_bytes: u64,
    },
    /// A swap device cannot be used.
    #[error("swap {}: {reason}", path.display())]
    SwapUnusable {
        /// Its path.
        path: PathBuf,
        /// What is wrong, and what would help.
        reason: String,
        /// The error number that fits, if one does.
        number: Option<i32>,
    },
    /// A swap device has less space than requested, or less than one folio.
    #[error("swap {}: {reason}", path.display())]
    SwapTooSmall {
        /// Its path.
        path: PathBuf,
        /// What is wrong, and what would help.
        reason: String,
        /// The error number that fits, if one does.
        number: Option<i32>,
    },
    /// A swap device is larger than supported.
    #[error("swap {}: {} is too large: give at most {}", path.display(), Bytes(*.size_bytes), Bytes(*.most_bytes))]
    SwapTooLarge {
        /// Its path.
        path: PathBuf,
        /// Its size in bytes.
        size_bytes: u64,
        /// The largest supported size in bytes.
        most_bytes: u64,
    },
    /// The arena has no device of this name.
    #[error("there is no swap device {0}")]
    NoSuchDevice(String),
    /// A device cannot be removed now.
    #[error("swap {name} cannot be removed: {reason}; what it holds stays there")]
    SwapInUse {
        /// Its name.
        name: String,
        /// What is full or fails, and what would help.
        reason: String,
    },
    /// A file that states the NUMA topology cannot be read or is not valid.
    #[error("topology {}: {reason}", path.display())]
    Topology {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The arena has as many devices as possible.
    #[error("{0} swap devices can be in use at a time: remove one first")]
    TooManyDevices(usize),
    /// The length is zero, or too large for the address space of a process.
    #[error("a region of {0} bytes cannot be mapped")]
    BadLength(usize),
    /// A system call failed, for memory or a thread for example.
    #[error("{what}: {error}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |error| Error::System { what, error }
    }
}
