//! Swap devices, which store slots: the trait, and one file for each kind.
//!
//! A device knows nothing of folios. It reserves space, and reads and writes runs of bytes at page-aligned offsets. The
//! swap space (`crate::swap::space`) tracks which slots are in use.

pub(crate) mod check;
pub(crate) mod checksum;
mod file;
mod ram;
mod shared;
mod signature;
mod spec;
mod throttled;
pub(crate) mod topology;
mod zram;

use std::io::{self, IoSliceMut};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

pub(crate) use file::FileDevice;
use folioswap_core::{NodeId, Order, Priority, SlotId};
use folioswap_sys::descriptor::Descriptor;
use folioswap_sys::numa;
pub(crate) use ram::RamDevice;
pub use shared::{KeptDevice, SharedDevice};
pub use spec::{Codec, DeviceSpec, SwapDevice, SwapDeviceError};
use throttled::Throttled;
pub(crate) use zram::ZramDevice;

use crate::config::error::Error;
use crate::config::limits::MAX_DEVICE_BYTES;
use crate::device::topology::Topology;

/// Names the directory of the default swap file.
pub const DIRECTORY_VARIABLE: &str = "FOLIOSWAP_DIR";

/// Where the default swap file is made when that is not set.
pub const DEFAULT_DIRECTORY: &str = "/var/tmp";

/// Why a device refuses to store content. This is no error of the device or of the slots; the slots hold nothing
/// afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Its memory is full.
    #[error("it is full")]
    Full,
    /// The content would not get much smaller.
    #[error("it does not compress")]
    Incompressible,
}

impl Refusal {
    /// The refusal in the error of a write, if it is one.
    pub fn of(error: &io::Error) -> Option<Refusal> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// Called for freed slots before they can be allocated again.
pub(crate) type OnFreed = Box<dyn Fn(SlotId, Order) + Send + Sync>;

/// Memory use of a device in compressed RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of memory that it uses, its records included.
    pub memory_bytes: u64,
    /// Those of them that are in use: objects and slot records.
    pub kept_bytes: u64,
    /// The most bytes of memory that it may use.
    pub limit_bytes: u64,
    /// Uncompressed size of its content, in bytes.
    pub content_bytes: u64,
}

/// A device that stores slots. All calls are safe from any thread. Offsets and lengths are in bytes.
pub(crate) trait Device: Send + Sync {
    /// The most bytes that it can hold, regardless of free space in the file system. `None`: no limit of its own.
    fn limit_bytes(&self) -> Option<u64>;

    /// Bytes of space that it had before any was reserved.
    fn has_from_start(&self) -> u64 {
        0
    }

    /// Reserves the space of a range, so that a later write there does not find the disk full.
    ///
    /// # Errors
    /// The kernel's; `StorageFull` when there is no room.
    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Whether [`Device::discard`] gives space back.
    fn discards(&self) -> bool {
        false
    }

    /// Gives the space of a range back. Its content is lost. It must be reserved again before it is written.
    ///
    /// # Errors
    /// The kernel's. A part of the space may have been given back.
    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Whether it is a rotational disk, on which seeks are expensive.
    fn is_rotational(&self) -> bool {
        false
    }

    /// The most bytes in one request to it, if the kernel reports that.
    fn most_bytes_at_once(&self) -> Option<usize> {
        None
    }

    /// The NUMA node that it is attached to, if the kernel knows it.
    fn node(&self) -> Option<usize> {
        None
    }

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// The device's. A short read is an error too.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Fills several buffers one after the other from `offset`. May change the slices that describe them.
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
    /// The device's. A short write is an error too.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Like [`Device::write`], but stores content that does not compress too.
    ///
    /// # Errors
    /// As [`Device::write`].
    fn write_anyway(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(offset, bytes)
    }

    /// Whether a folio of this order is sure to fit if it is written to free slots.
    fn has_room(&self, _order: Order) -> bool {
        true
    }

    /// Whether it spends about as much CPU time on a write as a disk takes for it. Such a device may refuse writes.
    fn compresses(&self) -> bool {
        false
    }

    /// A callback for freed slots, if the device wants one.
    fn on_freed(&self) -> Option<OnFreed> {
        None
    }

    /// Its memory use, for devices whose slots do not tell that.
    fn memory_use(&self) -> Option<MemoryUse> {
        None
    }

    /// The descriptor of its file, by which a forked child goes on to read.
    fn descriptor(&self) -> Option<&Descriptor> {
        None
    }

    /// A descriptor for io_uring, if the device has one.
    fn fd(&self) -> Option<RawFd> {
        self.descriptor().map(Descriptor::number)
    }

    /// Whether forked children get its content, if that is in memory: as their own, copy-on-write.
    ///
    /// # Errors
    /// ENOMEM.
    fn let_children_have(&self, _have: bool) -> io::Result<()> {
        Ok(())
    }

    /// The device as memory, for devices whose content lies there uncompressed.
    fn memory(&self) -> Option<&RamDevice> {
        None
    }

    /// Name in messages and statistics.
    fn name(&self) -> String;
}

/// Directory of the default swap file.
pub fn default_directory() -> PathBuf {
    let named = std::env::var_os(DIRECTORY_VARIABLE)
        .filter(|named| !named.is_empty())
        .map_or_else(|| PathBuf::from(DEFAULT_DIRECTORY), PathBuf::from);
    std::path::absolute(&named).unwrap_or(named)
}

/// An open device, with its priority and node.
pub(crate) struct Opened {
    pub device: Box<dyn Device>,
    /// As given by the user.
    pub priority: Option<Priority>,
    pub node: Option<NodeId>,
}

impl From<Box<dyn Device>> for Opened {
    fn from(device: Box<dyn Device>) -> Self {
        Opened { device, priority: None, node: None }
    }
}

impl Opened {
    /// The same device, limited to this speed if it is in RAM.
    pub fn throttled(self, bytes_per_second: u64) -> Opened {
        if self.device.memory().is_none() {
            return self;
        }
        Opened { device: Box::new(Throttled::new(self.device, bytes_per_second)), ..self }
    }
}

/// Opens a device, whose path is absolute.
pub(crate) fn open(wanted: &SwapDevice, topology: &Topology) -> Result<Opened, Error> {
    check::node_and_least(wanted, topology)?;
    check::stated_most(&wanted.spec)?;
    let stated = |name: &str| wanted.node.or_else(|| topology.node_of_device(name, None));
    // A stated node need not exist on this machine.
    let real = |node: Option<NodeId>| node.filter(|node| numa::nodes().iter().any(|real| real.number == node.index()));
    let (device, node): (Box<dyn Device>, _) = match &wanted.spec {
        DeviceSpec::File { path, size } => {
            let device = match &wanted.shared {
                Some(shared) => FileDevice::of_program(path, *size, shared)?,
                None => FileDevice::open(path, *size, wanted.force)?,
            };
            let shown = path.display().to_string();
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
    check::most(Path::new(&device.name()), device.limit_bytes().unwrap_or(0), MAX_DEVICE_BYTES)?;
    Ok(Opened { device, priority: wanted.priority, node })
}

/// In a forked child: makes a file like one of its parent, whose space is not reserved. `None`: it is no file.
pub(crate) fn open_in_child(wanted: &SwapDevice) -> Option<Result<Opened, Error>> {
    let DeviceSpec::File { path, size } = &wanted.spec else { return None };
    let made = FileDevice::like_that_of_program(path, *size);
    let opened = |device| Opened { device: Box::new(device), priority: wanted.priority, node: wanted.node };
    Some(made.map(opened))
}

/// Most files of an arena that was given no device.
const MOST_DEFAULTS: usize = 16;

/// The devices of an arena that was given none: an unlinked file in `directory`, or several if the limit of file sizes
/// ends each of them.
pub(crate) fn open_defaults(directory: &Path) -> Result<Vec<Opened>, Error> {
    let open = || FileDevice::unlinked_in(directory, None);
    let mut files = vec![open()?];
    while files[0].limit.is_some() && files.len() < MOST_DEFAULTS {
        let Ok(file) = open() else { break };
        files.push(FileDevice { on_first_use: None.into(), ..file }); // the first one says it
    }
    let opened = |file| Opened::from(Box::new(file) as Box<dyn Device>);
    Ok(files.into_iter().map(opened).collect())
}

fn unusable(path: &Path, reason: impl Into<String>, number: Option<i32>) -> Error {
    Error::SwapUnusable { path: path.into(), reason: reason.into(), number }
}

fn too_small(path: &Path, reason: impl Into<String>, number: Option<i32>) -> Error {
    Error::SwapTooSmall { path: path.into(), reason: reason.into(), number }
}
