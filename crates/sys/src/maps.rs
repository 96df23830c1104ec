//! The kernel's list of mappings.

use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use crate::own_table::briefly;
use crate::{check, kept};

/// Bytes of a line up to the first digit of its inode, at most: two addresses of 16 digits, `rwxp`, the offset in a
/// file of 16 digits, and its device.
const HEAD_BYTES: usize = 16 + 1 + 16 + 1 + 4 + 1 + 16 + 1 + 12 + 1 + 1;

/// All mappings, each with its protection in the bits of `mprotect`, and whether a file is mapped.
///
/// # Errors
/// The list cannot be read.
pub fn all() -> io::Result<Vec<(Range<usize>, libc::c_int, bool)>> {
    briefly(|| {
        let mut all = Vec::new();
        each(|range, protection, is_file| all.push((range, protection, is_file))).map(|()| all)
    })
}

/// How many there are. Takes no memory of the heap: a fault may need it.
///
/// # Errors
/// As [`all`].
pub fn count() -> io::Result<usize> {
    briefly(|| {
        let mut nr_mappings = 0;
        each(|_, _, _| nr_mappings += 1).map(|()| nr_mappings)
    })
}

fn each(mut note: impl FnMut(Range<usize>, libc::c_int, bool)) -> io::Result<()> {
    let list = kept::open_in_proc(c"self/maps", libc::O_RDONLY)?;
    let mut buffer = [0u8; 4096];
    let (mut head, mut len) = ([0u8; HEAD_BYTES], 0);
    loop {
        // SAFETY: the kernel fills in the buffer, which is at least this long.
        let read =
            check(unsafe { libc::syscall(libc::SYS_read, list.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) })?;
        if read == 0 {
            return Ok(());
        }
        for &byte in &buffer[..read] {
            if byte == b'\n' {
                if let Some((range, protection, is_file)) = mapping_in(&head[..len]) {
                    note(range, protection, is_file);
                }
                len = 0;
            } else if len < HEAD_BYTES {
                head[len] = byte;
                len += 1;
            }
        }
    }
}

/// The protection of the mapping at an address, in the bits of `mprotect`.
///
/// # Errors
/// The list cannot be read. ENOMEM: nothing is mapped there.
pub fn protection_at(addr: usize) -> io::Result<libc::c_int> {
    let mut found = None;
    each(|range, protection, _| found = found.or(range.contains(&addr).then_some(protection)))?;
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// The mapping in the beginning of a line, its protection, and whether a file is mapped.
fn mapping_in(head: &[u8]) -> Option<(Range<usize>, libc::c_int, bool)> {
    let mut words = std::str::from_utf8(head).ok()?.split(' ');
    let (start, end) = words.next()?.split_once('-')?;
    let access = words.next()?.as_bytes();
    let (device, inode) = (words.nth(1)?, words.next()?);
    let is_file = device != "00:00" || inode != "0"; // the first System V segment has inode 0
    let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16).ok());
    let bits = [(b'r', libc::PROT_READ), (b'w', libc::PROT_WRITE), (b'x', libc::PROT_EXEC)];
    let is_set = |&(index, &(letter, _)): &(usize, &(u8, libc::c_int))| access.get(index) == Some(&letter);
    Some((start?..end?, bits.iter().enumerate().filter(is_set).map(|(_, (_, bit))| bit).sum(), is_file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Reservation;

    #[test]
    fn protection_is_what_was_set() {
        let area = Reservation::new(4 * 4096, 4096).unwrap();
        area.protect_rw(area.addr() + 4096..area.addr() + 2 * 4096).unwrap();
        assert_eq!(protection_at(area.addr()).unwrap(), libc::PROT_NONE);
        assert_eq!(protection_at(area.addr() + 4096 + 17).unwrap(), libc::PROT_READ | libc::PROT_WRITE);
        let code = protection_at(protection_is_what_was_set as *const () as usize).unwrap();
        assert_eq!(code, libc::PROT_READ | libc::PROT_EXEC);
        assert_eq!(protection_at(0).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
