//! Regular files of which the kernel may transfer bytes past the page cache though O_DIRECT is not set: it keeps the
//! program's pages until a server has answered.

use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ground::real::own;

/// FUSE and virtiofs, 9P, SMB1, CIFS, SMB2, and the shared folders of VirtualBox, as `statfs` names them.
const FILE_SYSTEMS: [i64; 6] = [0x6573_5546, 0x0102_1997, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x786f_4256];

/// The last device with such a file system, and with another, and the second in which that was seen: asking may take a
/// message to the server, and something else may be mounted there later.
static LAST: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Whether a regular file on this device has such a file system.
pub fn is_on(fd: c_int, device: libc::dev_t) -> bool {
    // SAFETY: all zeroes are valid, and the kernel fills in the locals.
    unsafe {
        let mut time: libc::timespec = zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time);
        let now = device << 32 | u64::from(time.tv_sec as u32);
        if let Some(known) = LAST.iter().position(|last| last.load(Ordering::Relaxed) == now) {
            return known == 0;
        }
        let mut system: libc::statfs = zeroed();
        let has_failed = own!(libc::SYS_fstatfs, fd, &raw mut system) != 0; // a server need not answer that
        let is_such = has_failed || FILE_SYSTEMS.contains(&system.f_type);
        LAST[usize::from(!is_such)].store(now, Ordering::Relaxed);
        is_such
    }
}
