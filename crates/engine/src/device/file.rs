//! A swap device in a file or on a block device, read and written past the page cache (O_DIRECT).
//!
//! A file is unlinked from the start and has mode 0600, so nothing is left behind when the process dies. It grows by
//! `fallocate`, so a full disk is noticed before a write and never during one. Space that was given back by punching
//! holes is reserved again in the same way.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use folioswap_core::Order;
use folioswap_sys::descriptor::Descriptor;
use folioswap_sys::direct_io::{self, OpenError};
use folioswap_sys::{disk, file_limit, numa};

use super::{Device, DeviceSpec, signature, too_small, unusable};
use crate::config::error::Error;
use crate::config::size::Bytes;
use crate::process::fatal;

/// A file or block device that stores slots.
pub(crate) struct FileDevice {
    pub(super) fd: Descriptor,
    pub(super) path: PathBuf,
    pub(super) limit: Option<u64>,
    /// It is a block device, which has all its space from the start.
    pub(super) fixed: bool,
    /// Bytes of space that a file of a stated size got when it was opened.
    pub(super) has_from_start: u64,
    /// A message that is printed when the device is first used.
    pub(super) on_first_use: Mutex<Option<String>>,
}

impl FileDevice {
    /// Makes an unlinked file in `directory`.
    pub fn unlinked_in(directory: &Path, limit: Option<u64>) -> Result<Self, Error> {
        let device = Self::made_in(directory, directory, limit, hidden)?;
        device.probe()?;
        Ok(device)
    }

    /// Makes an unlinked file in `directory` for the device `path`.
    fn made_in(directory: &Path, path: &Path, limit: Option<u64>, keep: Keep) -> Result<Self, Error> {
        if direct_io::is_tmpfs(directory).is_ok_and(|is| is) {
            return Err(unusable(
                path,
                "lies on tmpfs, which is RAM: name a directory on a disk, or use ram:SIZE",
                None,
            ));
        }
        let fd = direct_io::unlinked_file(directory).map_err(|error| explain(path, &error))?;
        let ends_at = file_limit::lengthen(fd.as_raw_fd(), limit);
        let note = ends_at.map(|end| {
            format!(
                "the limit of file sizes (ulimit -f) ends each swap file in {} at {}; a block device has no such limit",
                directory.display(),
                Bytes(end)
            )
        });
        let fd = keep(path, fd)?;
        let is_small = |limit: &u64| *limit < Order::HUGE.bytes() as u64;
        if let Some(end) = ends_at.filter(is_small) {
            let reason = format!("a file can have {} only (ulimit -f)", Bytes(end));
            return Err(too_small(path, reason, Some(libc::EFBIG)));
        }
        let limit = limit.into_iter().chain(ends_at).min();
        Ok(FileDevice { fd, path: path.into(), limit, fixed: false, has_from_start: 0, on_first_use: note.into() })
    }

    /// Opens a block device, or makes an unlinked file next to `path`, where nothing may exist yet. A block device that
    /// holds something is refused unless `force` allows overwriting it.
    pub fn open(path: &Path, limit: Option<u64>, force: bool) -> Result<Self, Error> {
        let mut device = Self::unreserved(path, limit, force, hidden)?;
        device.probe()?;
        if let Some(limit) = limit {
            // The user asked for this size: report a lack of space now rather than while the program runs.
            device.reserve(0, limit).map_err(|error| {
                too_small(path, format!("{} are not available: {error}", Bytes(limit)), error.raw_os_error())
            })?;
            device.has_from_start = if device.fixed { 0 } else { limit };
        }
        Ok(device)
    }

    /// Checks that [`FileDevice::open`] would succeed, but for quotas. Takes no space: the journal of a file system can
    /// take milliseconds for that.
    pub fn check(path: &Path, limit: Option<u64>, force: bool) -> Result<(), Error> {
        let device = Self::unreserved(path, limit, force, for_now)?;
        if device.fixed { Ok(()) } else { Self::check_room(path, directory_of(path), limit) }
    }

    fn check_room(path: &Path, directory: &Path, limit: Option<u64>) -> Result<(), Error> {
        let wanted = limit.unwrap_or(Order::HUGE.bytes() as u64);
        match direct_io::free_bytes(directory) {
            Ok(free) if wanted > free => {
                let (wanted, free) = (Bytes(wanted), Bytes(free));
                let reason = format!("{wanted} are wanted, but the disk has only {free} free");
                Err(too_small(path, reason, Some(libc::ENOSPC)))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a file could be made in `directory`.
    pub fn check_directory(directory: &Path) -> Result<(), Error> {
        Self::made_in(directory, directory, None, for_now)?;
        Self::check_room(directory, directory, None)
    }

    fn unreserved(path: &Path, limit: Option<u64>, force: bool, keep: Keep) -> Result<Self, Error> {
        if path.is_dir() {
            let shown = path.display();
            let reason = format!("is a directory: name a file in it, as in {shown}/swap");
            return Err(unusable(path, reason, Some(libc::EISDIR)));
        }
        if path.exists() {
            return Self::block_device(path, limit, force, keep);
        }
        Self::made_in(directory_of(path), path, limit, keep)
    }

    fn block_device(path: &Path, limit: Option<u64>, force: bool, keep: Keep) -> Result<Self, Error> {
        let (fd, size) = direct_io::block_device(path).map_err(|error| explain(path, &error))?;
        if limit.unwrap_or(Order::HUGE.bytes() as u64) > size {
            return Err(too_small(path, format!("has only {}", Bytes(size)), None));
        }
        let found = if force { Ok(None) } else { signature::find(fd.as_raw_fd(), size) };
        match found.map_err(|error| {
            unusable(path, format!("its content could not be looked at: {error}"), error.raw_os_error())
        })? {
            None => {
                let (fd, limit) = (keep(path, fd)?, Some(limit.unwrap_or(size)));
                Ok(FileDevice {
                    fd,
                    path: path.into(),
                    limit,
                    fixed: true,
                    has_from_start: 0,
                    on_first_use: None.into(),
                })
            }
            Some(found) => {
                let wanted = DeviceSpec::File { path: path.into(), size: limit };
                let reason = format!("holds {found}, which would be lost; if that is meant, give {wanted},force=yes");
                Err(unusable(path, reason, None))
            }
        }
    }

    /// Takes the space for one folio, so that a device without any is refused at once.
    fn probe(&self) -> Result<(), Error> {
        if self.fixed {
            return Ok(());
        }
        self.fd
            .with(|fd| direct_io::preallocate(fd, 0, Order::HUGE.bytes() as u64))
            .map_err(|error| too_small(&self.path, format!("no room for one folio: {error}"), error.raw_os_error()))
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// What becomes of a file that was opened: [`hidden`] or [`for_now`].
type Keep = fn(&Path, OwnedFd) -> Result<Descriptor, Error>;

/// Not hidden: a check closes it at once. Hiding takes a thread, which `folioswap run` itself does not need.
fn for_now(_path: &Path, fd: OwnedFd) -> Result<Descriptor, Error> {
    Ok(fd.into())
}

pub(super) fn hidden(path: &Path, fd: OwnedFd) -> Result<Descriptor, Error> {
    Descriptor::hidden(fd)
        .map_err(|error| unusable(path, format!("it cannot be kept from the program: {error}"), error.raw_os_error()))
}

fn explain(path: &Path, error: &OpenError) -> Error {
    unusable(path, error.to_string(), error.number())
}

impl Device for FileDevice {
    fn limit_bytes(&self) -> Option<u64> {
        self.limit
    }

    fn has_from_start(&self) -> u64 {
        self.has_from_start
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.fixed {
            return Ok(());
        }
        if let Some(note) = self.on_first_use.lock().ok().and_then(|mut note| note.take()) {
            fatal::say(&note);
        }
        self.fd.with(|fd| direct_io::preallocate(fd, offset, len))
    }

    fn discards(&self) -> bool {
        !self.fixed && self.has_from_start == 0 // what was reserved at the start is kept
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.fd.with(|fd| direct_io::punch_hole(fd, offset, len))
    }

    fn is_rotational(&self) -> bool {
        self.fd.with(disk::is_rotational)
    }

    fn most_bytes_at_once(&self) -> Option<usize> {
        self.fd.with(disk::most_bytes_at_once)
    }

    fn node(&self) -> Option<usize> {
        self.fd.with(numa::node_of_disk)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.fd.with(|fd| direct_io::pread_exact(fd, bytes, offset))
    }

    fn read_pieces(&self, offset: u64, pieces: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.fd.with(|fd| direct_io::preadv_exact(fd, pieces, offset))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.fd.with(|fd| direct_io::pwrite_exact(fd, bytes, offset))
    }

    fn descriptor(&self) -> Option<&Descriptor> {
        Some(&self.fd)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}
