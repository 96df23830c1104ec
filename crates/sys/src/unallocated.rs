//! Calls about files for which std's functions let the C library allocate: from the program, whose allocator may be
//! locked in a forked child.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::check;

/// The path without links. As `std::fs::canonicalize`.
pub(crate) fn real_path(path: &Path) -> Option<PathBuf> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut real = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: a C string, and a buffer as long as this call may need.
    if unsafe { libc::realpath(path.as_ptr(), real.as_mut_ptr().cast()) }.is_null() {
        return None;
    }
    real.truncate(real.iter().position(|&byte| byte == 0)?);
    Some(OsStr::from_bytes(&real).into())
}

/// The paths of what a folder holds. None if it cannot be read.
pub(crate) fn paths_in(folder: &Path) -> Vec<PathBuf> {
    /// Where an entry of the kernel's has its length and its name.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let Ok(opened) = File::open(folder) else { return Vec::new() };
    let (mut paths, mut buffer) = (Vec::new(), vec![0u8; 4096]);
    loop {
        // SAFETY: the kernel fills in the buffer up to its length.
        let read = check(unsafe {
            libc::syscall(libc::SYS_getdents64, opened.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
        });
        let Ok(len @ 1..) = read else { return paths };
        let mut rest = &buffer[..len];
        while rest.len() > NAME {
            let length = usize::from(u16::from_ne_bytes([rest[LENGTH], rest[LENGTH + 1]])).clamp(NAME, rest.len());
            let name = rest[NAME..length].split(|&byte| byte == 0).next().unwrap_or_default();
            if !matches!(name, b"." | b"..") {
                paths.push(folder.join(OsStr::from_bytes(name)));
            }
            rest = &rest[length..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_find_what_std_finds() {
        let sorted = |mut paths: Vec<PathBuf>| {
            paths.sort();
            paths
        };
        let folder = Path::new("/usr/include");
        let theirs = std::fs::read_dir(folder).map(|found| found.flatten().map(|entry| entry.path()).collect());
        assert_eq!(sorted(paths_in(folder)), sorted(theirs.unwrap_or_default()));
        for path in ["/proc/self/exe", "/nowhere", "/usr/../usr/./bin"].map(Path::new) {
            assert_eq!(real_path(path), std::fs::canonicalize(path).ok());
        }
    }
}
