//! A swap device: something that stores slots. The trait, and one file for each kind.
//!
//! A device knows nothing of folios: it grows, and reads and writes runs of bytes at offsets that are multiples of
//! the page size. Which slots are in use is the swap space's business ([`crate::space`]).

#[cfg(test)]
mod faulty;
mod file;
mod ram;
mod shared;
mod signature;
mod spec;
mod throttled;
mod zram;

use std::io::{self, IoSliceMut};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

#[cfg(test)]
pub(crate) use faulty::{Faulty, Numbers, Plan};
pub(crate) use file::FileDevice;
use folioswap_core::{NodeId, Order, Priority, SlotId};
use folioswap_sys::numa;
pub(crate) use ram::RamDevice;
pub use shared::{KeptDevice, SharedDevice};
pub use spec::{Codec, DeviceSpec, SwapDevice, SwapDeviceError};
use throttled::Throttled;
pub(crate) use zram::ZramDevice;

use crate::error::Error;
use crate::space::MAX_DEVICE_BYTES;
use crate::topology::Topology;

/// Where the default swap file is made when `FOLIOSWAP_DIR` is not set.
pub const DEFAULT_DIRECTORY: &str = "/var/tmp";

/// Why a device does not take what it is given to store. Nothing is wrong with it, nor with the slots; they hold nothing then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Its memory is full.
    #[error("it is full")]
    Full,
    /// It would not be much smaller.
    #[error("it does not compress")]
    Incompressible,
}

impl Refusal {
    /// The refusal that a write ended with.
    pub fn of(error: &io::Error) -> Option<Refusal> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// Who is told of slots that somebody has given up, while they are nobody else's yet.
pub(crate) type OnFreed = Box<dyn Fn(SlotId, Order) + Send + Sync>;

/// What a device in compressed RAM has in how much memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of memory that it has, its records included.
    pub memory_bytes: u64,
    /// Those of them that something is kept in.
    pub kept_bytes: u64,
    /// Bytes that it may have.
    pub limit_bytes: u64,
    /// Bytes of what is in it, before they were compressed.
    pub content_bytes: u64,
}

/// The least memory of a device in compressed RAM.
pub const SMALLEST_ZRAM_BYTES: u64 = 8 << 20;

/// Something that stores slots. All calls are safe from any thread; offsets and lengths are in bytes.
pub(crate) trait Device: Send + Sync {
    /// Bytes it could hold at most, free file system space not counted; `None`: no limit of its own.
    fn limit_bytes(&self) -> Option<u64>;

    /// Bytes that it is likely to hold at most: what the file system has free, of a file without a size.
    fn likely_bytes(&self) -> u64 {
        self.limit_bytes().unwrap_or(0)
    }

    /// Makes sure that a range can be written without meeting a full disk.
    ///
    /// # Errors
    /// The kernel's, `StorageFull` when there is no room.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Whether space can be given back by [`Device::discard`].
    fn discards(&self) -> bool {
        false
    }

    /// Gives the space of a range back. What was there is lost, and it is reserved again before it is written.
    ///
    /// # Errors
    /// The kernel's; a part of the space may be gone.
    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Whether seeks are dear there: a disk that turns.
    fn is_rotational(&self) -> bool {
        false
    }

    /// The most bytes that go there in one request, where the kernel says.
    fn most_bytes_at_once(&self) -> Option<usize> {
        None
    }

    /// The NUMA node that it is plugged into, where the kernel knows it.
    fn node(&self) -> Option<usize> {
        None
    }

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// The device's. Fewer bytes than asked for is an error too.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Fills several pieces of memory, one after the other, from `offset` on. The pieces are used up.
    ///
    /// # Errors
    /// As [`Device::read`].
    fn read_pieces(&self, offset: u64, pieces: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut at = offset;
        for piece in pieces {
            self.read(at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Stores `bytes` at `offset`.
    ///
    /// # Errors
    /// The device's. Fewer bytes than asked for is an error too.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Stores what [`Device::write`] refuses for being what it is, too.
    ///
    /// # Errors
    /// As [`Device::write`].
    fn write_anyway(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(offset, bytes)
    }

    /// Whether what is written to free slots surely finds room, as much as a folio of this order.
    fn has_room(&self, _order: Order) -> bool {
        true
    }

    /// Whether it works on what it stores as long as others wait for a disk. It may refuse writes then.
    fn compresses(&self) -> bool {
        false
    }

    /// Who wants to know of slots that are freed.
    fn on_freed(&self) -> Option<OnFreed> {
        None
    }

    /// What is in its memory, for devices whose slots are no measure of that.
    fn memory_use(&self) -> Option<MemoryUse> {
        None
    }

    /// The descriptor that io_uring may use, if the device has one.
    fn fd(&self) -> Option<RawFd>;

    /// The device's own bytes, for devices that lie in memory.
    fn memory(&self) -> Option<&RamDevice> {
        None
    }

    /// What people call it.
    fn name(&self) -> String;
}

/// Where the default swap file goes.
#[must_use]
pub fn default_directory() -> PathBuf {
    std::env::var_os("FOLIOSWAP_DIR").map_or_else(|| PathBuf::from(DEFAULT_DIRECTORY), PathBuf::from)
}

/// A device that is open, and what decides when it is used.
pub(crate) struct Opened {
    pub device: Box<dyn Device>,
    /// As given.
    pub priority: Option<Priority>,
    pub node: Option<NodeId>,
}

impl From<Box<dyn Device>> for Opened {
    fn from(device: Box<dyn Device>) -> Self {
        Opened { device, priority: None, node: None }
    }
}

impl Opened {
    /// The same, and no faster than this.
    pub fn throttled(self, bytes_per_second: u64) -> Opened {
        Opened { device: Box::new(Throttled::new(self.device, bytes_per_second)), ..self }
    }
}

/// Opens a device.
pub(crate) fn open(wanted: &SwapDevice, topology: &Topology) -> Result<Opened, Error> {
    check_node(wanted, topology)?;
    if let DeviceSpec::File { size: Some(size), .. } | DeviceSpec::Ram { size } = wanted.spec {
        check_size(Path::new(&wanted.spec.to_string()), size, MAX_DEVICE_BYTES)?;
    }
    let stated = |name: &str| wanted.node.or_else(|| topology.node_of_device(name, None));
    // A stated node need not be one of this machine's.
    let real = |node: Option<NodeId>| node.filter(|node| numa::nodes().iter().any(|real| real.number == node.index()));
    let (device, node): (Box<dyn Device>, _) = match &wanted.spec {
        DeviceSpec::File { path, size } => {
            let device = match &wanted.shared {
                Some(shared) => FileDevice::of_program(path, *size, shared)?,
                None => FileDevice::open(path, *size, wanted.force)?,
            };
            let shown = std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string();
            let node = stated(&shown).or_else(|| topology.node_of_device(&shown, device.node()));
            (Box::new(device), node)
        }
        DeviceSpec::Ram { size } => {
            let node = stated(&wanted.spec.to_string());
            (Box::new(RamDevice::new(*size, real(node))?), node)
        }
        DeviceSpec::Zram { size, codec } => {
            let node = stated(&wanted.spec.to_string());
            (Box::new(ZramDevice::new(*size, *codec, real(node))?), node)
        }
    };
    check_size(Path::new(&device.name()), device.limit_bytes().unwrap_or(0), MAX_DEVICE_BYTES)?;
    Ok(Opened { device, priority: wanted.priority, node })
}

/// Refuses what is larger than can be used, rather than use a part of it unsaid.
fn check_size(path: &Path, size_bytes: u64, most_bytes: u64) -> Result<(), Error> {
    if size_bytes > most_bytes {
        return Err(Error::SwapTooLarge { path: path.into(), size_bytes, most_bytes });
    }
    Ok(())
}

/// The device of an arena that was given none: an unlinked file in [`default_directory`].
pub(crate) fn open_default() -> Result<Opened, Error> {
    let device: Box<dyn Device> = Box::new(FileDevice::unlinked_in(&default_directory(), None)?);
    Ok(device.into())
}

/// Whether a device can be on the node that it is stated to be on.
///
/// # Errors
/// [`Error::SwapUnusable`]: there is no such node.
pub fn check_node(wanted: &SwapDevice, topology: &Topology) -> Result<(), Error> {
    match wanted.node.filter(|&node| !topology.has(node)) {
        Some(node) => Err(unusable(Path::new(&wanted.spec.to_string()), topology.describe_missing(node))),
        None => Ok(()),
    }
}

/// Whether a block device can be used, found out without writing to it: nobody else has it, it has so many bytes, and holds
/// nothing unless that is to be lost (`force`).
///
/// # Errors
/// [`Error::SwapUnusable`], [`Error::SwapTooSmall`].
pub fn check_block_device(path: &Path, size: Option<u64>, force: bool) -> Result<(), Error> {
    FileDevice::open(path, size, force).map(drop)
}

fn unusable(path: &Path, reason: impl Into<String>) -> Error {
    Error::SwapUnusable { path: path.into(), reason: reason.into() }
}

fn too_small(path: &Path, reason: impl Into<String>) -> Error {
    Error::SwapTooSmall { path: path.into(), reason: reason.into() }
}
