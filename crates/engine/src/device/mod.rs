//! A swap device: something that stores slots. The trait, and one file for each kind.
//!
//! A device knows nothing of folios: it grows, and reads and writes runs of bytes at offsets that are multiples of
//! the page size. Which slots are in use is the swap space's business ([`crate::space`]).

mod file;
mod ram;
mod spec;

use std::io::{self, IoSliceMut};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

pub(crate) use file::FileDevice;
pub(crate) use ram::RamDevice;
pub use spec::DeviceSpec;

use crate::error::Error;

/// Where the default swap file is made when `FOLIOSWAP_DIR` is not set.
pub const DEFAULT_DIRECTORY: &str = "/var/tmp";

/// Something that stores slots. All calls are safe from any thread; offsets and lengths are in bytes.
pub(crate) trait Device: Send + Sync {
    /// Bytes it could hold at most, free file system space not counted; `None`: no limit of its own.
    fn limit_bytes(&self) -> Option<u64>;

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

/// Opens the device that `spec` describes.
pub(crate) fn open(spec: &DeviceSpec) -> Result<Box<dyn Device>, Error> {
    Ok(match spec {
        DeviceSpec::File { path, size } => Box::new(FileDevice::open(path, *size)?),
        DeviceSpec::Ram { size } => Box::new(RamDevice::new(*size)?),
    })
}

/// The device of an arena that was given none: an unlinked file in [`default_directory`].
pub(crate) fn open_default() -> Result<Box<dyn Device>, Error> {
    Ok(Box::new(FileDevice::unlinked_in(&default_directory(), None)?))
}

fn unusable(path: &Path, reason: impl Into<String>) -> Error {
    Error::SwapUnusable { path: path.into(), reason: reason.into() }
}

fn too_small(path: &Path, reason: impl Into<String>) -> Error {
    Error::SwapTooSmall { path: path.into(), reason: reason.into() }
}
