//! What the kernel says of this process's mappings. Read without the C library, in which a thread can be cancelled.

use std::ffi::CStr;
use std::io;
use std::ops::Range;

use folioswap_sys::{own_calls, own_table};

use crate::ground::real::kernel;

/// A mapping, and its flags by the names of `/proc/PID/smaps`.
pub struct Listed {
    pub range: Range<usize>,
    pub flags: Vec<String>,
}

/// A file of /proc. `None`: it cannot be read, or a thread of the program has closed the descriptor.
fn text(path: &'static CStr) -> Option<String> {
    if own_calls::is_used() {
        return None; // the program's filter may refuse to open a file
    }
    own_table::briefly(move || read(path)).ok()
}

fn read(path: &CStr) -> io::Result<String> {
    let mut text = Vec::new();
    let mut buffer = [0u8; 16 << 10];
    // SAFETY: the path is a C string, the kernel fills in the buffer, and the descriptor is this call's own.
    unsafe {
        let fd = kernel!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        let is_read = loop {
            match usize::try_from(kernel!(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len())) {
                Ok(0) => break Ok(()),
                Ok(len) => text.extend_from_slice(&buffer[..len]),
                Err(_) => break Err(io::Error::last_os_error()),
            }
        };
        kernel!(libc::SYS_close, fd);
        is_read?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn addresses(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

/// The parts of a range that are mapped, one for each mapping.
pub fn parts(range: &Range<usize>) -> Option<Vec<Range<usize>>> {
    let listed = text(c"/proc/self/maps")?;
    let parts = listed.lines().filter_map(addresses).map(|part| part.start.max(range.start)..part.end.min(range.end));
    Some(parts.filter(|part| !part.is_empty()).collect())
}

/// All mappings with their flags. The kernel looks at each page for this list, so it is slow.
pub fn with_flags() -> Option<Vec<Listed>> {
    let text = text(c"/proc/self/smaps")?;
    let mut range = None;
    let with_flags = text.lines().filter_map(|line| {
        range = addresses(line).or_else(|| range.take());
        let flags = line.strip_prefix("VmFlags:")?.split_whitespace().map(str::to_owned).collect();
        Some(Listed { range: range.take()?, flags })
    });
    Some(with_flags.collect())
}
