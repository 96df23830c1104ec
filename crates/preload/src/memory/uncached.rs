//! Regular files of which the kernel may transfer bytes past the page cache though O_DIRECT is not set: it keeps the
//! program's pages until a server has answered. An overlay of such a file system is not told from others.

use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ground::real::own;

/// FUSE and virtiofs, 9P, SMB1, CIFS, SMB2, and the shared folders of VirtualBox, as `statfs` names them.
const FILE_SYSTEMS: [i64; 6] = [0x6573_5546, 0x0102_1997, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x786f_4256];

/// What is known of devices: the number of one, the second in which it was found out, and whether it has such a file
/// system. Something else may be mounted there later.
static KNOWN: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// What a descriptor is, as far as transfers are concerned.
pub enum File {
    /// A block device, or a regular file that goes through the page cache.
    Cached,
    /// A regular file that may not.
    Uncached,
    /// Anything else.
    Other,
}

/// Finds out what a descriptor is. A server is asked for its file system only, and once in a second.
pub fn of(fd: c_int) -> File {
    let (flags, mask) = (libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC, libc::STATX_TYPE);
    // SAFETY: all zeroes are valid, and the kernel reads a string and fills in the local.
    let about = unsafe {
        let mut about: libc::statx = zeroed();
        if own!(libc::SYS_statx, fd, c"".as_ptr(), flags, mask, &raw mut about) != 0 {
            return File::Other;
        }
        about
    };
    match u32::from(about.stx_mode) & libc::S_IFMT {
        libc::S_IFBLK => File::Cached,
        libc::S_IFREG if has_server(fd, about.stx_dev_major << 20 | about.stx_dev_minor) => File::Uncached,
        libc::S_IFREG => File::Cached,
        _ => File::Other,
    }
}

/// Whether the device of a descriptor has such a file system.
fn has_server(fd: c_int, device: u32) -> bool {
    // SAFETY: all zeroes are valid, and the kernel fills in the locals.
    unsafe {
        let mut time: libc::timespec = zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time);
        let now = u64::from(device) << 32 | (time.tv_sec as u64) << 1 & 0xffff_fffe;
        let known = &KNOWN[device as usize % KNOWN.len()];
        let seen = known.load(Ordering::Relaxed);
        if seen & !1 == now {
            return seen & 1 != 0;
        }
        let mut system: libc::statfs = zeroed();
        let has_failed = own!(libc::SYS_fstatfs, fd, &raw mut system) != 0; // a server need not answer that
        let has_server = has_failed || FILE_SYSTEMS.contains(&system.f_type);
        known.store(now | u64::from(has_server), Ordering::Relaxed);
        has_server
    }
}
