//! A swap device that the processes of one program share, one at a time.
//!
//! `folioswap run` opens it once before the program begins, and keeps it open until the end: nobody else can claim it
//! meanwhile, and its space is reserved once. Each process of the program opens it again by the command's `/proc`
//! entry. The first one gets it exclusively, by a lock that ends with the process. After that, the next process that
//! begins gets it. A process that begins while another one has it uses a file of its own, which takes space as needed.
//!
//! The processes need not trust each other: one may have given up a privilege. So what one left in the file is wiped
//! before the next one has it. A block device is wiped at the end of the program only, because that may take long.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use folioswap_sys::direct_io;

use super::{Device, DeviceSpec, FileDevice, SwapDevice, default_directory, file};
use crate::config::error::Error;

/// How long I/O may still be in flight after a process ended, or called exec.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 2000 });

/// Where a process of the program finds the device that the command keeps open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedDevice {
    path: PathBuf,
    /// Device and inode number. The command may have ended, and its pid may belong to another process by now.
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
    /// Opens a block device, or makes a file of a given size. `None`: each process can have such a device of its own.
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

    /// What the program's processes need to open it.
    pub fn share(&self) -> SharedDevice {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.0.fd.number());
        SharedDevice { path: path.into(), identity: self.0.fd.file_id() }
    }

    /// Discards what the program's processes wrote to a block device, unless one of them, or a child of one, has it
    /// still. A disk that cannot discard keeps it. A file has no name, and goes with the last process.
    pub fn wipe(&self) {
        let device = &self.0;
        // Nobody else gets the device meanwhile, and the lock ends with this value.
        if device.fixed && device.fd.with(direct_io::lock_alone).is_ok() {
            let _ = device.discard(0, device.limit.unwrap_or(0));
        }
    }
}

impl FileDevice {
    /// The device that the command keeps, if no other process of the program has it now; otherwise a file of this
    /// process's own.
    pub(super) fn of_program(path: &Path, limit: Option<u64>, shared: &SharedDevice) -> Result<Self, Error> {
        if let Ok(Some((fd, size))) = direct_io::locked_of_other(&shared.path, shared.identity, PATIENCE) {
            let (limit, fixed) = (limit.or(size), size.is_some());
            let fd = file::hidden(path, fd)?;
            // On the descriptor that stays: the kernel drops this lock when the process closes any descriptor of the
            // file.
            fd.with(direct_io::lock_for_process).map_err(Error::system("locking a swap device"))?;
            if !fixed {
                let _ = fd.with(direct_io::wipe); // a file system that cannot do that keeps what was written
            }
            let has_from_start = limit.filter(|_| !fixed).unwrap_or(0); // the command has reserved it
            return Ok(FileDevice { fd, path: path.into(), limit, fixed, has_from_start, on_first_use: None.into() });
        }
        Self::like_that_of_program(path, limit)
    }

    /// A file of this process's own, because another process of the program has the device.
    pub(super) fn like_that_of_program(path: &Path, limit: Option<u64>) -> Result<Self, Error> {
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
        let mut bytes = [0; 2 * folioswap_core::PAGE_SIZE];
        let at = bytes.as_ptr().align_offset(folioswap_core::PAGE_SIZE); // direct I/O
        let page = &mut bytes[at..][..folioswap_core::PAGE_SIZE];
        page.fill(7);
        first.write(1 << 20, page).unwrap();
        drop(first);
        let next = open();
        assert_eq!(identity(&next), shared.identity, "it is free again");
        next.read(1 << 20, page).unwrap();
        assert!(page.iter().all(|&byte| byte == 0), "what the first one wrote is gone");
        assert!([&next, &others[0]].iter().all(|device| device.name() == path.display().to_string()));
        // Another file may have the same path later, if the command's pid was reused.
        let other = SharedDevice { identity: (1, 2), ..shared.clone() };
        assert_ne!(identity(&FileDevice::of_program(&path, limit, &other).unwrap()), shared.identity);
        assert!(KeptDevice::open(&DeviceSpec::File { path, size: None }.into()).unwrap().is_none());
    }
}
