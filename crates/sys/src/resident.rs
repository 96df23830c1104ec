//! A process's memory in RAM, managed or not, as the kernel counts it.

use std::io;
use std::mem::MaybeUninit;

use crate::check;

/// This process's memory in RAM, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resident {
    /// The peak since the process executed its program.
    pub peak: u64,
    /// Anonymous memory now.
    pub anonymous: u64,
    /// Shared memory now. (The rest is page cache, which the kernel can drop.)
    pub shared: u64,
}

impl Resident {
    /// Reads `/proc/self/status`; `None` if that is not possible.
    #[must_use]
    pub fn now() -> Option<Resident> {
        let mut status = [0; 4096];
        let len = read_status(&mut status).ok()?;
        Some(Resident::parse(&String::from_utf8_lossy(&status[..len])))
    }

    fn parse(status: &str) -> Resident {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
        };
        Resident { peak: field("VmHWM:"), anonymous: field("RssAnon:"), shared: field("RssShmem:") }
    }
}

/// Reads the file with raw system calls. The C library's functions are cancellation points, and this thread may be
/// unmapping memory.
fn read_status(bytes: &mut [u8]) -> io::Result<usize> {
    let (path, flags) = (c"/proc/self/status", libc::O_RDONLY | libc::O_CLOEXEC);
    // SAFETY: the path is NUL-terminated, the kernel writes at most the length of `bytes`, and the descriptor is this
    // call's own.
    unsafe {
        let fd = check(libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags))?;
        let read = check(libc::syscall(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len()));
        libc::syscall(libc::SYS_close, fd);
        read
    }
}

/// The peak of one process in RAM: of this one, or the highest among its descendants that have ended and were waited
/// for.
#[must_use]
pub fn peak(of_children: bool) -> u64 {
    let who = if of_children { libc::RUSAGE_CHILDREN } else { libc::RUSAGE_SELF };
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills in a local of this frame. If it fails, zeroes are a valid value.
    let usage = unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_counted() {
        let status =
            "VmHWM:\t    2048 kB\nVmRSS:\t 8 kB\nRssAnon:\t 4 kB\nRssFile:\t    1024 kB\nRssShmem:\t       8 kB\n";
        assert_eq!(Resident::parse(status), Resident { peak: 2 << 20, anonymous: 4096, shared: 8192 });
        let touched = std::hint::black_box(vec![1u8; 8 << 20]);
        assert!(Resident::now().unwrap().peak > 8 << 20 && peak(false) > 8 << 20);
        drop(touched);
    }
}
