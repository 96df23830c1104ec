//! A process's memory in RAM, managed or not, as the kernel counts it.

use std::io;
use std::mem::MaybeUninit;

use crate::own_table::briefly;
use crate::{check, said};

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
    pub fn now() -> Option<Resident> {
        briefly(read_status).ok().map(|status| Resident::parse(&String::from_utf8_lossy(&status)))
    }

    fn parse(status: &str) -> Resident {
        let field = |name: &str| bytes_of(status, name).unwrap_or(0);
        Resident { peak: field("VmHWM:"), anonymous: field("RssAnon:"), shared: field("RssShmem:") }
    }
}

/// A line of the file, in bytes.
fn bytes_of(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// The addresses that are mapped in this process, in bytes, as RLIMIT_AS counts them. `None`: that cannot be read.
pub fn mapped_bytes() -> Option<u64> {
    of_status("VmSize:")
}

/// The private writable memory of this process, in bytes, as RLIMIT_DATA counts it. `None`: that cannot be read.
pub fn data_bytes() -> Option<u64> {
    of_status("VmData:")
}

fn of_status(name: &str) -> Option<u64> {
    briefly(read_status).ok().and_then(|status| bytes_of(&String::from_utf8_lossy(&status), name))
}

/// Reads all of the file: the list of groups alone can be long. It takes raw system calls. The C library's functions
/// are cancellation points, and this thread may be unmapping memory.
fn read_status() -> io::Result<Vec<u8>> {
    let (path, flags) = (c"/proc/self/status", libc::O_RDONLY | libc::O_CLOEXEC);
    let (mut status, mut part) = (Vec::new(), [0u8; 4096]);
    // SAFETY: the path is NUL-terminated, the kernel fills in the buffer, and the descriptor is this call's own.
    unsafe {
        let fd = check(libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags))?;
        let read = loop {
            match check(libc::syscall(libc::SYS_read, fd, part.as_mut_ptr(), part.len())) {
                Ok(0) => break Ok(()),
                Ok(_) if status.try_reserve(part.len()).is_err() => break Err(io::ErrorKind::OutOfMemory.into()),
                Ok(len) => status.extend_from_slice(&part[..len]),
                Err(error) => break Err(error),
            }
        };
        libc::syscall(libc::SYS_close, fd);
        read.map(|()| status)
    }
}

/// Private memory of a process in RAM that the C library, the loader and the engine map themselves, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unseen {
    /// Pages of mapped files: what the process has written to, and what the loader has relocated.
    pub of_files: u64,
    /// Stacks of threads, and their thread-local data. Recognised by what it is not: a file, the main stack, reported
    /// to a userfaultfd, or mapped without reserve, as all that goes through folioswap.
    pub of_threads: u64,
    /// The engine's records: mapped without reserve, left out of dumps, and copied by fork, unlike frames and devices.
    pub of_records: u64,
}

impl Unseen {
    /// `process`: its number, or `self`.
    ///
    /// # Errors
    /// Its list of mappings cannot be read.
    pub fn of(process: &str) -> io::Result<Unseen> {
        let path = format!("/proc/{process}/smaps");
        briefly(move || said::read(&path)).map(|list| Unseen::parse(&list))
    }

    fn parse(list: &str) -> Unseen {
        let (mut unseen, mut is_file, mut bytes) = (Unseen::default(), false, 0);
        for line in list.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("Anonymous:") => bytes = words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10,
                Some("VmFlags:") if is_file => unseen.of_files += bytes,
                Some("VmFlags:") => {
                    let flags: Vec<_> = words.collect();
                    let has = |flag| flags.contains(&flag);
                    match has("um") || has("gd") || has("sh") {
                        false if has("ac") && !has("nr") => unseen.of_threads += bytes,
                        false if has("nr") && has("dd") && !has("dc") => unseen.of_records += bytes,
                        _ => {}
                    }
                }
                Some(word) if !word.ends_with(':') => is_file = words.nth(3).is_some_and(|inode| inode != "0"),
                _ => {}
            }
        }
        unseen
    }
}

/// The peak of one process in RAM: of this one, or the highest among its descendants that have ended and were waited
/// for.
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
    fn what_the_c_library_maps_is_counted() {
        let list = "7f00-7f10 rw-p 00000000 08:01 77   /lib/a: b.so\nAnonymous:     12 kB\nVmFlags: rd wr mr ac\n\
            7f10-7f20 rw-p 00000000 00:00 0 \nAnonymous:     40 kB\nVmFlags: rd wr mr um nr\n\
            7f20-7f30 r--p 00001000 08:01 78 /x\nAnonymous: 8 kB\nVmFlags: rd mr\n\
            7f30-7f40 rw-p 00000000 00:00 0 \nAnonymous:     16 kB\nVmFlags: rd wr mr ac\n\
            7f40-7f50 rw-p 00000000 00:00 0 \nAnonymous:     24 kB\nVmFlags: rd wr mr nr dd\n\
            7f40-7f50 rw-p 00000000 00:00 0 \nAnonymous:     32 kB\nVmFlags: rd wr mr um nr dd hg\n\
            7f40-7f50 rw-p 00000000 00:00 0 \nAnonymous:     48 kB\nVmFlags: rd wr mr dc nr dd\n\
            7f40-7f50 rw-p 00000000 00:00 0 [stack]\nAnonymous:     4 kB\nVmFlags: rd wr mr gd ac\n";
        assert_eq!(Unseen::parse(list), Unseen { of_files: 20 << 10, of_threads: 16 << 10, of_records: 24 << 10 });
        assert!(Unseen::of("self").unwrap().of_files > 0, "this program's own");
    }

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
