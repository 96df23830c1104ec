//! Asynchronous reads and writes through io_uring.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};

use crate::{cpu, futex, own_calls};

/// Why there is no ring.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The kernel is too old, or was built without io_uring.
    #[error("this kernel has no io_uring")]
    NotSupported,
    /// A setting or a sandbox forbids it.
    #[error("io_uring is not permitted")]
    NotPermitted,
    /// The limit of locked memory or of descriptors is reached, or another error.
    #[error("io_uring: {0}")]
    System(io::Error),
}

/// Whether all rings were given up.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Rings whose memory is in use: they are being made or dropped, or something is queued or in flight.
static NR_BUSY: AtomicUsize = AtomicUsize::new(0);

/// While it lives, the memory of a ring stays mapped.
struct Busy(());

impl Busy {
    /// `None`: the rings were given up.
    fn begin() -> Option<Busy> {
        NR_BUSY.fetch_add(1, Ordering::SeqCst);
        let busy = Busy(());
        (!GIVEN_UP.load(Ordering::SeqCst)).then_some(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        NR_BUSY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Gives up all rings of this process, for good. Waits for what is queued or in flight. From here on nobody uses the
/// rings' memory, or unmaps it: that is the caller's.
pub fn give_up() {
    GIVEN_UP.store(true, Ordering::SeqCst);
    while NR_BUSY.load(Ordering::SeqCst) != 0 {
        futex::sleep(Duration::from_micros(50));
    }
}

/// In a forked child, which has none of its parent's rings.
pub fn begin_child() {
    NR_BUSY.store(0, Ordering::SeqCst);
}

/// Whether a transfer was not queued because the rings were given up. The caller makes it in another way.
pub fn is_given_up(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECANCELED)
}

/// A queue of reads and writes, used by one thread at a time.
pub struct Ring {
    ring: ManuallyDrop<IoUring>,
    /// Queued or in flight.
    nr_pending: usize,
    /// While there are such.
    busy: Option<Busy>,
}

/// Who submits a transfer to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The calling thread, if it can do so without blocking.
    Here,
    /// A kernel worker. For requests larger than the disk takes at once ([`crate::disk::most_bytes_at_once`]): a
    /// submission from the calling thread would be refused, because its parts might block, and a worker would submit it
    /// again. cgroup I/O limits would count both attempts.
    ByWorker,
}

impl Start {
    /// For a request of `len` bytes to a disk that takes `most_bytes_at_once`.
    pub fn of(len: usize, most_bytes_at_once: usize) -> Start {
        if len > most_bytes_at_once { Start::ByWorker } else { Start::Here }
    }

    fn flags(self) -> squeue::Flags {
        match self {
            Start::Here => squeue::Flags::empty(),
            Start::ByWorker => squeue::Flags::ASYNC,
        }
    }
}

impl Ring {
    /// Creates a ring with room for at least `depth` transfers at a time.
    ///
    /// # Errors
    /// [`RingError`] names the reason. The caller then uses plain reads and writes.
    pub fn new(depth: u32) -> Result<Self, RingError> {
        if own_calls::is_used() {
            return Err(RingError::NotPermitted); // a filter may kill who asks
        }
        let _busy = Busy::begin().ok_or(RingError::NotPermitted)?;
        let mut builder = IoUring::builder();
        let ring = builder.setup_r_disabled().build(depth.max(1).next_power_of_two());
        let ring = ring.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSYS) => RingError::NotSupported,
            Some(libc::EPERM | libc::EACCES) => RingError::NotPermitted,
            _ => RingError::System(error),
        })?;
        // Filters do not see what a ring does, so it is bound to reads and writes.
        let mut transfers = [
            Restriction::sqe_op(opcode::Read::CODE),
            Restriction::sqe_op(opcode::Readv::CODE),
            Restriction::sqe_op(opcode::Write::CODE),
            Restriction::sqe_flags_allowed(squeue::Flags::ASYNC.bits()),
        ];
        ring.submitter().register_restrictions(&mut transfers).map_err(RingError::System)?;
        ring.submitter().register_enable_rings().map_err(RingError::System)?;
        Ok(Ring { ring: ManuallyDrop::new(ring), nr_pending: 0, busy: None })
    }

    /// Queues a read of `len` bytes at `offset` into memory. [`Ring::submit`] starts it. Its completion carries
    /// `token`.
    ///
    /// # Errors
    /// EBUSY: the submission queue is full. EINVAL: longer than a transfer can be. Or see [`is_given_up`].
    ///
    /// # Safety
    /// Until the completion is returned, `into..into + len` stays mapped, present and writable, nobody else reads or
    /// writes it, and `fd` stays open. Dropping a ring waits for transfers in flight.
    pub unsafe fn submit_read(
        &mut self,
        fd: RawFd,
        into: *mut u8,
        len: usize,
        offset: u64,
        token: u64,
        start: Start,
    ) -> io::Result<()> {
        let entry = opcode::Read::new(types::Fd(fd), into, transfer_len(len)?).offset(offset).build();
        // SAFETY: the caller keeps the memory and the descriptor valid until the completion.
        unsafe { self.push(&entry.user_data(token).flags(start.flags())) }
    }

    /// Queues a read at `offset` into several pieces of memory, one after the other, like [`Ring::submit_read`]. The
    /// slice itself is used until [`Ring::submit`].
    ///
    /// # Errors
    /// As [`Ring::submit_read`].
    ///
    /// # Safety
    /// As [`Ring::submit_read`], for each of the pieces.
    pub unsafe fn submit_read_pieces(
        &mut self,
        fd: RawFd,
        pieces: &mut [IoSliceMut<'_>],
        offset: u64,
        token: u64,
        start: Start,
    ) -> io::Result<()> {
        let nr_pieces = transfer_len(pieces.len())?;
        let vector = pieces.as_mut_ptr().cast::<libc::iovec>(); // of the same layout, as std promises
        let entry = opcode::Readv::new(types::Fd(fd), vector, nr_pieces).offset(offset).build();
        // SAFETY: the caller keeps the memory and the descriptor valid until the completion.
        unsafe { self.push(&entry.user_data(token).flags(start.flags())) }
    }

    /// Queues a write of `len` bytes of memory at `offset`, like [`Ring::submit_read`].
    ///
    /// # Errors
    /// As [`Ring::submit_read`].
    ///
    /// # Safety
    /// Until the completion is returned, `from..from + len` stays mapped and present, nobody writes to it, and `fd`
    /// stays open.
    pub unsafe fn submit_write(
        &mut self,
        fd: RawFd,
        from: *const u8,
        len: usize,
        offset: u64,
        token: u64,
        start: Start,
    ) -> io::Result<()> {
        let entry = opcode::Write::new(types::Fd(fd), from, transfer_len(len)?).offset(offset).build();
        // SAFETY: the caller keeps the memory and the descriptor valid until the completion.
        unsafe { self.push(&entry.user_data(token).flags(start.flags())) }
    }

    /// Starts everything that is queued. Costs one system call.
    ///
    /// # Errors
    /// Kernel errors. A later call may still start what was queued, so a caller that cannot handle this should give up.
    pub fn submit(&mut self) -> io::Result<()> {
        while self.nr_pending > 0 && !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if is_transient(&error) => cpu::yield_now(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sleeps until at least `min` transfers have completed (never more than are pending), and appends each completed
    /// one to `ended`: its token, and the bytes transferred, which may be fewer than requested, or none. Starts what is
    /// queued.
    ///
    /// # Errors
    /// The kernel's error for the wait. Errors of a transfer are in its own result.
    pub fn wait_completions(&mut self, min: usize, ended: &mut VecDeque<(u64, io::Result<usize>)>) -> io::Result<()> {
        let before = ended.len();
        let min = min.min(self.nr_pending);
        while self.nr_pending > 0 {
            for entry in self.ring.completion() {
                let result = match entry.result() {
                    // The kernel could start no worker for it, as at a limit of processes.
                    no_worker if no_worker == -libc::ECANCELED => Ok(0),
                    failed if failed < 0 => Err(io::Error::from_raw_os_error(-failed)),
                    done => Ok(done as usize),
                };
                ended.push_back((entry.user_data(), result));
                self.nr_pending -= 1;
            }
            let nr_ended = ended.len() - before;
            if nr_ended >= min {
                break;
            }
            match self.ring.submit_and_wait(min - nr_ended) {
                Ok(_) => {}
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if self.nr_pending == 0 {
            self.busy = None;
        }
        Ok(())
    }

    /// Readable, for poll and epoll, while there are completions to return.
    pub fn descriptor(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Transfers that are queued or in flight, and whose completion has not been returned.
    pub fn nr_pending(&self) -> usize {
        self.nr_pending
    }

    /// # Safety
    /// Everything that `entry` names stays valid until its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        let is_open = match self.nr_pending {
            0 => {
                self.busy = Busy::begin();
                self.busy.is_some()
            }
            _ => !GIVEN_UP.load(Ordering::Relaxed), // those in flight are to end
        };
        if !is_open {
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
        // SAFETY: the caller upholds this function's own contract.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))?;
        self.nr_pending += 1;
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may access the transfers' memory until they have completed.
        let _ = self.wait_completions(self.nr_pending, &mut VecDeque::new());
        let _busy = match self.busy.take().or_else(Busy::begin) {
            // SAFETY: it is not used any more.
            busy @ Some(_) => unsafe {
                ManuallyDrop::drop(&mut self.ring);
                busy
            },
            // What is mapped where it was may be another's.
            // SAFETY: as above. Its descriptor is not closed otherwise.
            None => unsafe {
                libc::close(self.ring.as_raw_fd());
                None
            },
        };
    }
}

/// Whether io_uring is available here.
///
/// # Errors
/// [`RingError`] names the reason.
pub fn probe() -> Result<(), RingError> {
    Ring::new(1).map(drop)
}

/// Interrupted, or short of a resource that completions free.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

fn transfer_len(len: usize) -> io::Result<u32> {
    u32::try_from(len)
        .ok()
        .filter(|&len| len <= i32::MAX as u32)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{direct_io, memory};
    use std::os::fd::AsRawFd;

    #[test]
    fn written_blocks_come_back() {
        const LEN: usize = 64 << 10;
        let mut ring = match Ring::new(4) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: {error}"),
        };
        let file = match direct_io::unlinked_file(std::path::Path::new("/var/tmp")) {
            Ok(file) => file,
            Err(error) => return println!("skipped: {error}"),
        };
        let area = memory::anonymous_huge(2 << 20).unwrap();
        let block = |at: usize| (area.addr() + at * LEN) as *mut u8;
        let start = |at: usize| if at.is_multiple_of(2) { Start::Here } else { Start::ByWorker };
        let mut ended = VecDeque::new();
        for at in 0..4 {
            // SAFETY: blocks of the test's own area, which outlives the ring. Each has one transfer.
            unsafe {
                block(at).write_bytes(at as u8 + 1, LEN);
                ring.submit_write(file.as_raw_fd(), block(at), LEN, (at * LEN) as u64, at as u64, start(at)).unwrap();
            }
        }
        ring.submit().unwrap();
        ring.wait_completions(99, &mut ended).unwrap();
        assert_eq!((ended.len(), ring.nr_pending()), (4, 0));
        for at in 0..4 {
            // SAFETY: as above, into blocks that nothing else uses.
            unsafe {
                ring.submit_read(file.as_raw_fd(), block(8 + at), LEN, (at * LEN) as u64, 10 + at as u64, start(at))
            }
            .unwrap();
        }
        ring.wait_completions(4, &mut ended).unwrap();
        assert!(ended.iter().all(|(_, result)| matches!(result, Ok(LEN))));
        let mut tokens: Vec<u64> = ended.iter().map(|(token, _)| *token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [0, 1, 2, 3, 10, 11, 12, 13]);
        for at in 0..4 {
            // SAFETY: the reads have completed.
            let read = unsafe { std::slice::from_raw_parts(block(8 + at), LEN) };
            assert!(read.iter().all(|&byte| byte == at as u8 + 1));
        }
    }

    #[test]
    fn what_is_longer_than_the_disk_takes_is_for_a_worker() {
        assert_eq!([4096, 4097].map(|len| Start::of(len, 4096)), [Start::Here, Start::ByWorker]);
        assert!(Start::ByWorker.flags() == squeue::Flags::ASYNC && Start::Here.flags().is_empty());
    }

    #[test]
    fn a_failed_transfer_is_a_value() {
        let Ok(mut ring) = Ring::new(1) else { return println!("skipped: no io_uring") };
        let (mut byte, mut ended) = (0u8, VecDeque::new());
        // SAFETY: the byte outlives the wait below. A descriptor that is not open gives an error, not undefined
        // behaviour.
        unsafe { ring.submit_read(-1, &mut byte, 1, 0, 5, Start::Here) }.unwrap();
        ring.wait_completions(1, &mut ended).unwrap();
        assert_eq!(ended[0].0, 5);
        assert_eq!(ended[0].1.as_ref().unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
