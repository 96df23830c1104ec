//! Reads and writes in flight over io_uring. One ring belongs to one thread.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, opcode, types};

/// A ring for a fixed number of reads and writes in flight.
pub struct Ring {
    ring: IoUring,
}

impl Ring {
    /// A ring for `depth` transfers in flight.
    ///
    /// # Errors
    /// The kernel's: ENOSYS or EPERM where io_uring is not to be had.
    pub fn new(depth: u32) -> io::Result<Self> {
        Ok(Ring { ring: IoUring::new(depth.next_power_of_two())? })
    }

    /// Queues a read into memory at `ptr`.
    ///
    /// # Errors
    /// When the ring is full.
    ///
    /// # Safety
    /// The memory is valid for writes of `len` bytes, and nobody else uses it, until the completion with this token.
    pub unsafe fn submit_read(
        &mut self,
        fd: RawFd,
        ptr: *mut u8,
        len: usize,
        offset: u64,
        token: u64,
    ) -> io::Result<()> {
        let entry = opcode::Read::new(types::Fd(fd), ptr, len as u32).offset(offset).build().user_data(token);
        // SAFETY: handed on.
        unsafe { self.push(&entry) }
    }

    /// Queues a write of memory at `ptr`.
    ///
    /// # Errors
    /// When the ring is full.
    ///
    /// # Safety
    /// The memory is valid for reads of `len` bytes, and nobody changes it, until the completion with this token.
    pub unsafe fn submit_write(
        &mut self,
        fd: RawFd,
        ptr: *const u8,
        len: usize,
        offset: u64,
        token: u64,
    ) -> io::Result<()> {
        let entry = opcode::Write::new(types::Fd(fd), ptr, len as u32).offset(offset).build().user_data(token);
        // SAFETY: handed on.
        unsafe { self.push(&entry) }
    }

    unsafe fn push(&mut self, entry: &io_uring::squeue::Entry) -> io::Result<()> {
        // SAFETY: the callers answer for the entry's memory.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Starts what is queued.
    ///
    /// # Errors
    /// The kernel's.
    pub fn submit(&mut self) -> io::Result<()> {
        loop {
            match self.ring.submit() {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                other => return other.map(drop),
            }
        }
    }

    /// Waits until `min` transfers have ended, and appends all that have: token, and bytes or the error.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait_completions(&mut self, min: usize, ended: &mut Vec<(u64, io::Result<usize>)>) -> io::Result<()> {
        let mut waiting = min;
        loop {
            let before = ended.len();
            ended.extend(self.ring.completion().map(|entry| {
                let result = entry.result();
                let result = if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) };
                (entry.user_data(), result)
            }));
            waiting = waiting.saturating_sub(ended.len() - before);
            if waiting == 0 {
                return Ok(());
            }
            match self.ring.submit_and_wait(waiting) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
    }
}

/// Whether io_uring is to be had here.
///
/// # Errors
/// The kernel's reason why not.
pub fn probe() -> io::Result<()> {
    Ring::new(2).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct_io;
    use crate::memory::{self, Reservation};
    use std::os::fd::AsRawFd;

    #[test]
    fn several_in_flight_come_back_with_their_bytes() {
        if let Err(error) = probe() {
            println!("skipped: io_uring is not to be had here: {error}");
            return;
        }
        let file = direct_io::unlinked_file(std::path::Path::new("/var/tmp")).unwrap();
        let fd = file.as_raw_fd();
        let area = Reservation::new(64 << 10, 4096).unwrap();
        memory::protect_rw(area.addr(), area.len()).unwrap();
        // SAFETY: readable, writable memory of this test's own.
        let bytes = unsafe { std::slice::from_raw_parts_mut(area.addr() as *mut u8, area.len()) };
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 4096) as u8);
        let mut ring = Ring::new(8).unwrap();
        let mut ended = Vec::new();
        for page in 0..8usize {
            // SAFETY: `bytes` outlives the completions that are waited for below.
            unsafe { ring.submit_write(fd, bytes.as_ptr().add(page * 4096), 4096, page as u64 * 4096, page as u64) }
                .unwrap();
        }
        ring.submit().unwrap();
        ring.wait_completions(8, &mut ended).unwrap();
        assert!(ended.drain(..).all(|(_, result)| result.unwrap() == 4096));
        bytes.fill(0xff);
        for page in 0..8usize {
            // SAFETY: as above.
            unsafe { ring.submit_read(fd, bytes.as_mut_ptr().add(page * 4096), 4096, page as u64 * 4096, page as u64) }
                .unwrap();
        }
        ring.wait_completions(8, &mut ended).unwrap();
        assert_eq!(ended.len(), 8);
        assert!((0..8).all(|page| bytes[page * 4096..][..4096].iter().all(|&byte| byte == page as u8)));
    }
}
