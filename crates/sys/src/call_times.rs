//! How long memory calls take, made through the C library as a program makes them: for `bench calls`, which compares
//! them with and without the library that is preloaded.
//!
//! Nothing here is used by the engine. Each call works on a mapping of its own, which is new each time.

use std::ptr::null_mut;
use std::time::Instant;

use libc::{c_int, c_void};

use crate::memory::PAGE_SIZE as PAGE;

const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// Lengths of the ranges: a page, a huge page, and much.
const LENGTHS: [usize; 3] = [PAGE, 2 << 20, 1 << 30];

/// Advice, by name.
const ADVICE: [(&str, c_int); 16] = [
    ("normal", libc::MADV_NORMAL),
    ("random", libc::MADV_RANDOM),
    ("sequential", libc::MADV_SEQUENTIAL),
    ("willneed", libc::MADV_WILLNEED),
    ("dontneed", libc::MADV_DONTNEED),
    ("dontneed_locked", libc::MADV_DONTNEED_LOCKED),
    ("free", libc::MADV_FREE),
    ("cold", libc::MADV_COLD),
    ("hugepage", libc::MADV_HUGEPAGE),
    ("nohugepage", libc::MADV_NOHUGEPAGE),
    ("collapse", libc::MADV_COLLAPSE),
    ("populate_read", libc::MADV_POPULATE_READ),
    ("populate_write", libc::MADV_POPULATE_WRITE),
    ("dontfork", libc::MADV_DONTFORK),
    ("dofork", libc::MADV_DOFORK),
    ("dontdump", libc::MADV_DONTDUMP),
];

/// The time of one call.
#[derive(Clone, PartialEq, Debug)]
pub struct CallTime {
    /// Its name.
    pub call: String,
    /// Length of its range.
    pub bytes: usize,
    /// Whether all pages of the range had been written.
    pub is_filled: bool,
    /// The median of several, in nanoseconds.
    pub nanoseconds: u64,
}

struct Mapping {
    addr: usize,
    len: usize,
}

impl Mapping {
    fn new(len: usize, is_filled: bool) -> Mapping {
        // SAFETY: a new mapping replaces nothing.
        let addr = unsafe { libc::mmap(null_mut(), len, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        assert!(addr != libc::MAP_FAILED, "{len} bytes are not available");
        let mapping = Mapping { addr: addr as usize, len };
        if is_filled {
            mapping.fill();
        }
        mapping
    }

    fn ptr(&self) -> *mut c_void {
        self.addr as *mut c_void
    }

    fn fill(&self) {
        for at in (self.addr..self.addr + self.len).step_by(PAGE) {
            // SAFETY: a page of this mapping, which is readable and writable and nobody else's.
            unsafe { (at as *mut u8).write_volatile(1) }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping, which nobody uses any more.
        unsafe { libc::munmap(self.ptr(), self.len) };
    }
}

/// Calls `each` with the time of every call, for a page, a huge page and 1 GiB, new and filled. `first`: bytes that are
/// mapped before, and never used.
pub fn measure(first: usize, mut each: impl FnMut(CallTime)) {
    if first > 0 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which stays.
        unsafe { libc::mmap(null_mut(), first, RW, flags, -1, 0) };
    }
    let mut time_all = |calls: &dyn Fn(&mut Time<'_>)| {
        for bytes in LENGTHS {
            for is_filled in [false, true] {
                calls(&mut |call, prepare, work| {
                    let nanoseconds = median(bytes, is_filled, prepare, work);
                    each(CallTime { call: call.into(), bytes, is_filled, nanoseconds });
                });
            }
        }
    };
    time_all(&|time| {
        mappings(time);
        ADVICE.iter().for_each(|&(name, advice)| time_advice(time, name, advice));
    });
    // The last ones: a program that makes them has all its memory managed from then on.
    time_all(&|time| {
        // SAFETY: a mapping of this file's; what is locked is unlocked when it is unmapped.
        time("mlock", &nothing, &|at| unsafe { _ = libc::mlock(at.ptr(), at.len) });
        time_advice(time, "wipeonfork", libc::MADV_WIPEONFORK);
        time_advice(time, "pageout", libc::MADV_PAGEOUT);
    });
}

fn nothing(_: &mut Mapping) {}

type Time<'t> = dyn FnMut(&str, &dyn Fn(&mut Mapping), &dyn Fn(&mut Mapping)) + 't;

fn time_advice(time: &mut Time<'_>, name: &str, advice: c_int) {
    // SAFETY: the range is a mapping of this file's, and nobody relies on its content.
    time(&format!("madvise_{name}"), &nothing, &|at| unsafe { _ = libc::madvise(at.ptr(), at.len, advice) });
}

/// Calls that change mappings.
fn mappings(time: &mut Time<'_>) {
    // SAFETY: the range is a mapping of this file's, and nobody relies on its content.
    let protect = |at: &mut Mapping, protection| unsafe { _ = libc::mprotect(at.ptr(), at.len, protection) };
    let remap = |at: &mut Mapping, len| {
        // SAFETY: as above.
        let to = unsafe { libc::mremap(at.ptr(), at.len, len, libc::MREMAP_MAYMOVE) };
        if to != libc::MAP_FAILED {
            (at.addr, at.len) = (to as usize, len);
        }
    };
    time("mmap", &nothing, &|at| std::mem::forget(std::mem::replace(at, Mapping::new(at.len, false))));
    // SAFETY: as above. Unmapping it again does nothing.
    time("munmap", &nothing, &|at| unsafe { _ = libc::munmap(at.ptr(), at.len) });
    time("mprotect_none", &nothing, &|at| protect(at, libc::PROT_NONE));
    time("mprotect_read", &nothing, &|at| protect(at, libc::PROT_READ));
    time("mprotect_write", &|at| protect(at, libc::PROT_READ), &|at| protect(at, RW));
    time("mremap_grow", &nothing, &|at| remap(at, 2 * at.len));
    time("mremap_shrink", &nothing, &|at| remap(at, (at.len / 2).max(PAGE)));
    // SAFETY: the child ends at once.
    time("fork", &nothing, &|_| unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(0);
        }
        libc::waitpid(child, null_mut(), 0);
    });
}

fn median(bytes: usize, is_filled: bool, prepare: &dyn Fn(&mut Mapping), work: &dyn Fn(&mut Mapping)) -> u64 {
    let repeats = match bytes {
        len if len <= PAGE => 51,
        len if len <= 0x20_0000 => 21,
        _ if is_filled => 1, // filling takes most of the time
        _ => 3,
    };
    let mut times = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let mut mapping = Mapping::new(bytes, is_filled);
        prepare(&mut mapping);
        let begun = Instant::now();
        work(&mut mapping);
        times.push(begun.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    times[repeats / 2]
}
