//! Address space and memory: reservations, protection, advice. All addresses and lengths are multiples of the page
//! size unless said otherwise.
//!
//! The kernel is called directly, past any stand-ins for these calls that the program may have.

use std::io;

const MADV_POPULATE_WRITE: libc::c_int = 23;

/// Addresses that are reserved, and given back on drop with whatever memory lies there.
#[derive(Debug)]
pub struct Reservation {
    addr: usize,
    len: usize,
}

impl Reservation {
    /// Reserves `len` bytes of addresses, from a multiple of `align` (a power of two) on. No memory, no access.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(len: usize, align: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let whole = len.checked_add(align).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let start = map(0, whole, libc::PROT_NONE, flags)?;
        let addr = start.next_multiple_of(align);
        // What was mapped for the alignment alone goes back; a failure leaves some addresses reserved, no more.
        let _ = unmap(start, addr - start);
        let _ = unmap(addr + len, start + whole - addr - len);
        Ok(Reservation { addr, len })
    }

    /// Where it begins.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// How long it is, in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // a reservation of nothing is no reservation
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let _ = unmap(self.addr, self.len);
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn map(addr: usize, len: usize, protection: i32, flags: i32) -> io::Result<usize> {
    // SAFETY: callers map fresh addresses of the kernel's choice.
    let at = unsafe { libc::syscall(libc::SYS_mmap, addr, len, protection, flags, -1, 0) };
    check(at)?;
    Ok(at as usize)
}

fn unmap(addr: usize, len: usize) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: callers unmap addresses of a reservation of their own.
    check(unsafe { libc::syscall(libc::SYS_munmap, addr, len) })
}

fn protect(addr: usize, len: usize, protection: i32) -> io::Result<()> {
    // SAFETY: changes what may be done with the range, not what it holds; who uses it without permission is told.
    check(unsafe { libc::syscall(libc::SYS_mprotect, addr, len, protection) })
}

fn advise(addr: usize, len: usize, advice: i32) -> io::Result<()> {
    // SAFETY: the callers below give advice for ranges of the engine's own.
    check(unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) })
}

/// Permits reading and writing.
///
/// # Errors
/// The kernel's.
pub fn protect_rw(addr: usize, len: usize) -> io::Result<()> {
    protect(addr, len, libc::PROT_READ | libc::PROT_WRITE)
}

/// Permits nothing. Memory stays.
///
/// # Errors
/// The kernel's.
pub fn protect_none(addr: usize, len: usize) -> io::Result<()> {
    protect(addr, len, libc::PROT_NONE)
}

/// Asks for huge pages. A kernel without them refuses with EINVAL, which is no error here.
///
/// # Errors
/// The kernel's.
pub fn advise_hugepage(addr: usize, len: usize) -> io::Result<()> {
    match advise(addr, len, libc::MADV_HUGEPAGE) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other,
    }
}

/// Asks for small pages.
///
/// # Errors
/// The kernel's.
pub fn advise_nohugepage(addr: usize, len: usize) -> io::Result<()> {
    match advise(addr, len, libc::MADV_NOHUGEPAGE) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other,
    }
}

/// Gives the memory of a range of the engine's own back to the kernel; it reads as zero afterwards.
///
/// # Errors
/// The kernel's.
pub fn dontneed(addr: usize, len: usize) -> io::Result<()> {
    advise(addr, len, libc::MADV_DONTNEED)
}

/// Keeps a range from forked children.
///
/// # Errors
/// The kernel's.
pub fn dontfork(addr: usize, len: usize) -> io::Result<()> {
    advise(addr, len, libc::MADV_DONTFORK)
}

/// Lets forked children inherit a range.
///
/// # Errors
/// The kernel's.
pub fn dofork(addr: usize, len: usize) -> io::Result<()> {
    advise(addr, len, libc::MADV_DOFORK)
}

/// Makes every page of a range present and writable, as huge pages where that was asked for.
///
/// # Errors
/// The kernel's, ENOMEM when there is no memory.
pub fn populate_write(addr: usize, len: usize) -> io::Result<()> {
    loop {
        match advise(addr, len, MADV_POPULATE_WRITE) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {}
            other => return other,
        }
    }
}

/// Bytes of RAM in the machine.
#[must_use]
pub fn total_ram() -> u64 {
    // SAFETY: takes no pointers.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    pages.max(0) as u64 * 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_aligned_and_usable_once_permitted() {
        let area = Reservation::new(4 << 20, 2 << 20).unwrap();
        assert_eq!((area.addr() % (2 << 20), area.len()), (0, 4 << 20));
        protect_rw(area.addr(), area.len()).unwrap();
        populate_write(area.addr(), area.len()).unwrap();
        // SAFETY: readable, writable memory of this test's own.
        let bytes = unsafe { std::slice::from_raw_parts_mut(area.addr() as *mut u8, area.len()) };
        bytes.fill(9);
        dontneed(area.addr(), area.len()).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        assert!(Reservation::new(1 << 62, 4096).is_err());
        assert!(total_ram() > 1 << 20);
    }
}
