//! A swap device that the processes of one program have in common, until there is one owner of devices for all of them.
//!
//! `folioswap run` opens it once, before the program begins, and keeps it open to the end: nobody outside can claim it meanwhile, and
//! space that was asked for is reserved once. A process of the program that begins opens it again by the command's `/proc` entry. The
//! first has it to itself, by a lock that goes with its descriptor; the next one that begins after its end gets it then. A process that
//! begins while another one has it uses a file of its own, which takes space as it is needed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use folioswap_sys::direct_io;

use super::{DeviceSpec, FileDevice, SwapDevice, default_directory, file};
use crate::error::Error;

/// How long I/O of a process that has ended, or executed this one, may take to end.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 2000 });

/// Where a process of the program finds a device that the command has open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedDevice {
    path: PathBuf,
    /// By which it is known again: the command may have ended, and its number be another process's.
    identity: (u64, u64),
}

impl FromStr for SharedDevice {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, ':');
        let mut number = || parts.next().and_then(|part| part.parse().ok()).ok_or(());
        let identity = (number()?, number()?);
        Ok(SharedDevice { path: parts.next().ok_or(())?.into(), identity })
    }
}

impl fmt::Display for SharedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.identity.0, self.identity.1, self.path.display())
    }
}

/// A device that is kept open for the processes of a program.
pub struct KeptDevice(FileDevice);

impl KeptDevice {
    /// Opens a block device, or makes a file of a given size; none: each process can have a device like this of its own.
    ///
    /// # Errors
    /// [`Error::SwapUnusable`], [`Error::SwapTooSmall`].
    pub fn open(wanted: &SwapDevice) -> Result<Option<KeptDevice>, Error> {
        match &wanted.spec {
            DeviceSpec::File { path, size } if size.is_some() || path.exists() => {
                FileDevice::open(path, *size, wanted.force).map(|device| Some(KeptDevice(device)))
            }
            _ => Ok(None),
        }
    }

    /// What its processes are told.
    #[must_use]
    pub fn share(&self) -> SharedDevice {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.0.fd.number());
        SharedDevice { path: path.into(), identity: self.0.fd.file_id() }
    }
}

impl FileDevice {
    /// The device that the command keeps, if no other process of the program has it now, else a file of this process's own.
    pub(super) fn of_program(path: &Path, limit: Option<u64>, shared: &SharedDevice) -> Result<Self, Error> {
        if let Ok(Some((fd, size))) = direct_io::locked_of_other(&shared.path, shared.identity, PATIENCE) {
            let (limit, fixed) = (limit.or(size), size.is_some());
            let fd = file::hidden(path, fd)?;
            // On the number that stays: this lock goes with any descriptor of the file that the process closes.
            fd.with(direct_io::lock_for_process).map_err(Error::system("locking a swap device"))?;
            return Ok(FileDevice { fd, path: path.into(), limit, fixed, on_first_use: None.into() });
        }
        if let (false, Some(directory)) = (path.exists(), path.parent())
            && let Ok(file) = FileDevice::unlinked_in(directory, limit)
        {
            return Ok(FileDevice { path: path.into(), ..file });
        }
        let directory = default_directory();
        let file = FileDevice::unlinked_in(&directory, limit)?;
        let note = format!(
            "process {}: another process of the program has swap {}: this one uses a file in {}; FOLIOSWAP_DIR names another directory",
            std::process::id(),
            path.display(),
            directory.display()
        );
        Ok(FileDevice { on_first_use: Some(note).into(), ..file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn one_has_it_and_the_others_have_files_like_it() {
        let path = std::env::temp_dir().join(format!("folioswap-kept:{}", std::process::id()));
        let limit = Some(4 << 20);
        let kept = KeptDevice::open(&DeviceSpec::File { path: path.clone(), size: limit }.into()).unwrap().unwrap();
        let shared = kept.share();
        assert_eq!(shared.to_string().parse(), Ok(shared.clone()));
        let identity = |device: &FileDevice| device.fd.file_id();
        let open = || FileDevice::of_program(&path, limit, &shared).unwrap();
        let first = open();
        let others = [open(), open()];
        assert_eq!(identity(&first), shared.identity);
        assert!(others.iter().all(|other| identity(other) != shared.identity && other.limit_bytes() == limit));
        assert_ne!(identity(&others[0]), identity(&others[1]));
        drop(first);
        let next = open();
        assert_eq!(identity(&next), shared.identity, "it is free again");
        assert!([&next, &others[0]].iter().all(|device| device.name() == path.display().to_string()));
        // Whoever has the command's number later has something else.
        let other = SharedDevice { identity: (1, 2), ..shared.clone() };
        assert_ne!(identity(&FileDevice::of_program(&path, limit, &other).unwrap()), shared.identity);
        assert!(KeptDevice::open(&DeviceSpec::File { path, size: None }.into()).unwrap().is_none());
    }
}
