//! What can go wrong, in one sentence each, with the exit status that the command gives for it.

use std::io;
use std::path::PathBuf;

use crate::size::{Bytes, SizeError};

/// Smallest budget an arena takes.
pub const MIN_MEMORY: u64 = 16 << 20;

/// Largest budget an arena takes: frames are numbered in 32 bits.
pub const MAX_MEMORY: u64 = 15 << 40;

/// Most addresses an arena reserves.
pub const MAX_ADDRESS_SPACE: u64 = 64 << 40;

/// Why an arena, a region or a change to one could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The budget is under [`MIN_MEMORY`].
    #[error("a memory budget of {} is too small: give at least 16M", Bytes(*.0))]
    BudgetTooSmall(u64),
    /// The budget is over [`MAX_MEMORY`].
    #[error("a memory budget of {} is too large: give at most {}", Bytes(*.0), Bytes(MAX_MEMORY))]
    BudgetTooLarge(u64),
    /// The address space is none that an arena can have.
    #[error("an arena has 2M to {} of addresses, and not {}", Bytes(MAX_ADDRESS_SPACE), Bytes(*.0))]
    AddressSpace(u64),
    /// The kernel does not give so many addresses.
    #[error("{} of addresses are not to be had ({error}): ask for fewer, or raise the limit (`ulimit -v unlimited`)", Bytes(*.wanted_bytes))]
    NoAddresses {
        /// Bytes of them.
        wanted_bytes: u64,
        /// What the kernel said.
        error: io::Error,
    },
    /// A size could not be read.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The program is not permitted to use userfaultfd in the way asked for.
    #[error(
        "userfaultfd is not permitted for {mode} faults ({reason}): run as root, or `sysctl vm.unprivileged_userfaultfd=1`"
    )]
    NoUserfaultfd {
        /// The way of delivery that was asked for.
        mode: &'static str,
        /// What the kernel said.
        reason: String,
    },
    /// Mapping by `UFFDIO_MOVE` was asked for, and the kernel has none that works.
    #[error("mapping by UFFDIO_MOVE is not to be had here ({0}): use the copy mapper, or Linux 6.8 and later")]
    NoMove(String),
    /// A locked budget was asked for where folios are copied: each copy's memory is another.
    #[error("a locked budget needs folios that move, and here they are copied ({0}): do without one of the two")]
    LockNeedsMove(String),
    /// Addresses cannot be locked in RAM: those of the frames, and all that memory may be mapped at.
    #[error(
        "a locked budget locks {} of addresses, and the limit of locked memory is {}: raise it (`ulimit -l {}`, or unlimited), or run as root or with CAP_IPC_LOCK",
        Bytes(*.wanted_bytes), Bytes(*.limit_bytes), .wanted_bytes.div_ceil(1024)
    )]
    LockLimit {
        /// Bytes of addresses to be locked.
        wanted_bytes: u64,
        /// Bytes that may be.
        limit_bytes: u64,
    },
    /// The RAM of a locked budget, which is taken at once, is not to be had.
    #[error("a locked budget takes its RAM at once, and {} more are not to be had ({reason}): give a smaller one", Bytes(*.wanted_bytes))]
    NoMemoryToLock {
        /// Bytes of it.
        wanted_bytes: u64,
        /// How much there is, or what the kernel said.
        reason: String,
    },
    /// A locked budget was to become smaller.
    #[error("a locked budget of {} cannot become {}: nothing of it is given back while it is in use", Bytes(*.now_bytes), Bytes(*.wanted_bytes))]
    LockedShrink {
        /// What it is.
        now_bytes: u64,
        /// What it was to be.
        wanted_bytes: u64,
    },
    /// A swap device cannot be used at all.
    #[error("swap {}: {reason}", path.display())]
    SwapUnusable {
        /// Where.
        path: PathBuf,
        /// What is wrong and what would do.
        reason: String,
    },
    /// A swap device has less space than was asked for, or than one folio takes.
    #[error("swap {}: {reason}", path.display())]
    SwapTooSmall {
        /// Where.
        path: PathBuf,
        /// What is wrong and what would do.
        reason: String,
    },
    /// A swap device is larger than can be used.
    #[error("swap {}: {} is too large: give at most {}", path.display(), Bytes(*.size_bytes), Bytes(*.most_bytes))]
    SwapTooLarge {
        /// Where.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// What can be used of it.
        most_bytes: u64,
    },
    /// A device was named that the arena does not have.
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
    /// A file that states the NUMA nodes cannot be read, or does not.
    #[error("topology {}: {reason}", path.display())]
    Topology {
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An arena takes no more devices.
    #[error("an arena takes at most {0} swap devices: remove one first")]
    TooManyDevices(usize),
    /// More address space was asked for than the arena reserved.
    #[error("the arena's address space of {} is used up", Bytes(*.0))]
    OutOfAddressSpace(u64),
    /// A length of zero, or one that is past what an address can hold.
    #[error("a region of {0} bytes cannot be mapped")]
    BadLength(usize),
    /// The kernel refused memory or a thread.
    #[error("{what}: {error}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

impl Error {
    /// The exit status of `folioswap` for this error; each cause has its own.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Size(_) | Error::BadLength(_) | Error::AddressSpace(_) => 64,
            Error::LockedShrink { .. } | Error::Topology { .. } => 64,
            Error::BudgetTooSmall(_) | Error::BudgetTooLarge(_) => 65,
            Error::SwapUnusable { .. } | Error::NoSuchDevice(_) | Error::TooManyDevices(_) => 68,
            Error::SwapTooSmall { .. } | Error::SwapTooLarge { .. } | Error::SwapInUse { .. } => 69,
            Error::OutOfAddressSpace(_) | Error::NoAddresses { .. } | Error::System { .. } => 70,
            Error::NoUserfaultfd { .. } | Error::NoMove(_) => 71,
            Error::LockLimit { .. } | Error::LockNeedsMove(_) => 74,
            Error::NoMemoryToLock { .. } => 75,
        }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |error| Error::System { what, error }
    }
}
