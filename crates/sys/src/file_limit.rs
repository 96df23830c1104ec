//! Swap files under the program's limit of file sizes (RLIMIT_FSIZE).
//!
//! The limit is meant for the files that a program writes. A write beyond it fails and sends SIGXFSZ, whoever makes it.
//! So swap files are made long when they are made ([`lengthen`]), which takes no space, and what lies beyond a limit
//! that is set later is written through a mapping, which is not limited (`write_mapped`).

use std::io;
use std::os::fd::RawFd;

use crate::memory::{self, place_apart};
use crate::{check, fstat};

/// The length of a swap file that may grow: 8 TiB, or what the file system takes.
const LENGTHS: [u64; 3] = [8 << 40, 1 << 40, 64 << 30];

fn limits(new: Option<&libc::rlimit64>) -> io::Result<libc::rlimit64> {
    memory::limits(libc::RLIMIT_FSIZE, new)
}

/// Whether a write that ends there would exceed the limit. A system call, about 100 ns.
pub fn is_beyond(end: u64) -> bool {
    limits(None).is_ok_and(|limits| limits.rlim_cur != libc::RLIM64_INFINITY && end > limits.rlim_cur)
}

/// Makes a new file long, without space. The limit is raised meanwhile, if that is permitted. Returns the limit that
/// ends the file where it is not. Only while no other thread writes files.
pub fn lengthen(fd: RawFd, len: Option<u64>) -> Option<u64> {
    let Ok(before) = limits(None) else { return None };
    let limited = before.rlim_cur != libc::RLIM64_INFINITY;
    let infinite = libc::rlimit64 { rlim_cur: libc::RLIM64_INFINITY, rlim_max: libc::RLIM64_INFINITY };
    let hard = libc::rlimit64 { rlim_cur: before.rlim_max, rlim_max: before.rlim_max };
    let mut most = u64::MAX;
    if limited && limits(Some(&infinite)).is_err() {
        most = limits(Some(&hard)).map_or(before.rlim_cur, |_| before.rlim_max);
    }
    let lengths = len.map_or(LENGTHS, |len| [len; 3]);
    let lengthened = lengths.iter().any(|&len| {
        // SAFETY: takes no pointers.
        check(unsafe { libc::syscall(libc::SYS_ftruncate, fd, len.min(most)) }).is_ok()
    });
    if limited {
        let _ = limits(Some(&before)); // it is lowered, which is permitted
    }
    (most < lengths[2] || (limited && !lengthened)).then_some(most.min(before.rlim_max))
}

/// Whether the file has this length at least.
pub(crate) fn reaches(fd: RawFd, end: u64) -> bool {
    fstat(fd).is_ok_and(|about| about.st_mode & libc::S_IFMT != libc::S_IFREG || about.st_size as u64 >= end)
}

/// Writes all of `bytes` at `offset`, a multiple of the page size, to space that is reserved.
///
/// # Errors
/// EFBIG: the file ends before. The kernel's.
pub(crate) fn write_mapped(fd: RawFd, bytes: &[u8], offset: u64) -> io::Result<()> {
    if !reaches(fd, offset + bytes.len() as u64) {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of this call's own, of a part of the file that exists, and which nobody else writes to
    // meanwhile. The kernel gets what was written there before it is unmapped.
    unsafe {
        let at = check(libc::syscall(
            libc::SYS_mmap,
            place_apart(bytes.len()),
            bytes.len(),
            access,
            libc::MAP_SHARED,
            fd,
            offset,
        ))?;
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len());
        let written = check(libc::syscall(libc::SYS_msync, at, bytes.len(), libc::MS_SYNC));
        libc::syscall(libc::SYS_munmap, at, bytes.len());
        written.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct_io;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_written_through_a_mapping_is_read_past_the_cache() {
        let file = match direct_io::unlinked_file(std::path::Path::new("/var/tmp")) {
            Ok(file) => file,
            Err(error) => return println!("skipped: {error}"),
        };
        let fd = file.as_raw_fd();
        assert_eq!(write_mapped(fd, &[1; 4096], 0).unwrap_err().raw_os_error(), Some(libc::EFBIG));
        assert_eq!(lengthen(fd, None), None);
        direct_io::preallocate(fd, 1 << 30, 2 << 20).unwrap();
        let area = crate::memory::anonymous_huge(2 << 20).unwrap();
        // SAFETY: readable and writable memory of the test's own, to which there is no other reference.
        let back = unsafe { std::slice::from_raw_parts_mut(area.addr() as *mut u8, 2 << 20) };
        let bytes: Vec<u8> = (0..2 << 20).map(|at: usize| (at % 251) as u8).collect();
        write_mapped(fd, &bytes, 1 << 30).unwrap();
        direct_io::pread_exact(fd, back, 1 << 30).unwrap();
        assert!(back == bytes);
        assert!(!is_beyond(u64::MAX), "no limit here");
    }
}
