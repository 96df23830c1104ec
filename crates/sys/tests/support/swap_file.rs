//! A swap file of the kernel's. Needs root.

use std::ffi::CString;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const PAGE: usize = 4096;
const FILE_PAGES: usize = 4096;

/// A swap file of 16 MiB that is in use while this lives.
pub struct SwapFile {
    path: PathBuf,
    name: CString,
}

impl SwapFile {
    /// # Errors
    /// Those of the files, and of `swapon`.
    pub fn new() -> io::Result<SwapFile> {
        let path = PathBuf::from(format!("/var/tmp/folioswap-kernel-swap-{}", std::process::id()));
        let mut content = vec![0u8; FILE_PAGES * PAGE];
        for (at, word) in [(1024, 1), (1028, FILE_PAGES as u32 - 1)] {
            content[at..at + 4].copy_from_slice(&word.to_ne_bytes()); // the version, and the last page
        }
        content[PAGE - 10..PAGE].copy_from_slice(b"SWAPSPACE2");
        let swap = SwapFile { name: CString::new(path.to_str().unwrap()).unwrap(), path };
        std::fs::write(&swap.path, content)?;
        std::fs::set_permissions(&swap.path, std::fs::Permissions::from_mode(0o600))?;
        // SAFETY: the path is NUL-terminated.
        match unsafe { libc::swapon(swap.name.as_ptr(), 0) } {
            0 => Ok(swap),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        // SAFETY: the path is NUL-terminated. If swapon failed, this does nothing.
        unsafe { libc::swapoff(self.name.as_ptr()) };
        let _ = std::fs::remove_file(&self.path);
    }
}
