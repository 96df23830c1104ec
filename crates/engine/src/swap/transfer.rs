//! Reads and writes in flight. With io_uring, if the device has a descriptor and the kernel permits it, several at
//! once; otherwise the calling thread does one at a time.

use std::collections::VecDeque;
use std::io;

pub(crate) use folioswap_core::Direction;
use folioswap_sys::file_limit;
use folioswap_sys::uring::{self, Ring, Start};

use crate::swap::device_slot::Extent;
use crate::swap::figures::Begun;

/// Most transfers that one thread keeps in flight.
pub(crate) const DEPTH: usize = 8;

/// Transfers of one thread. `J` is what their owner needs when each one ends.
pub(crate) struct Transfers<J> {
    /// Declared before the jobs: its drop waits for the transfers in flight, and only then may their jobs be dropped.
    ring: Option<Ring>,
    jobs: Vec<Option<Flight<J>>>,
    /// Transfers that have ended but were not returned yet.
    ended: VecDeque<(u64, io::Result<usize>)>,
    nr_in_flight: usize,
}

struct Flight<J> {
    job: J,
    direction: Direction,
    extent: Extent,
    addr: usize,
    len: usize,
    begun: Begun,
}

impl<J> Transfers<J> {
    /// Room for [`DEPTH`] transfers. Without io_uring none can be started: see [`Transfers::asynchronous`].
    pub fn new() -> Self {
        Transfers {
            ring: Ring::new(DEPTH as u32).ok(),
            jobs: (0..DEPTH).map(|_| None).collect(),
            ended: VecDeque::with_capacity(DEPTH),
            nr_in_flight: 0,
        }
    }

    /// Whether transfers can be in flight at all.
    pub fn asynchronous(&self) -> bool {
        self.ring.is_some()
    }

    pub fn nr_in_flight(&self) -> usize {
        self.nr_in_flight
    }

    pub fn jobs(&self) -> impl Iterator<Item = &J> {
        self.jobs.iter().flatten().map(|flight| &flight.job)
    }

    pub fn has_room(&self) -> bool {
        self.nr_in_flight < DEPTH
    }

    /// Starts a transfer between `extent` and the memory at `addr`.
    ///
    /// # Panics
    /// Without room, or without io_uring.
    ///
    /// # Safety
    /// Until the job is dropped, or returned by [`Transfers::finish`], it keeps `len` bytes at `addr` mapped, present
    /// and, for a read, writable, and nobody else reads or writes them: it holds the lock of the folio's block, or the
    /// buffer. The extent's descriptor stays open as long: its slots are in use, so their device is not removed.
    pub unsafe fn start(&mut self, direction: Direction, extent: Extent, addr: usize, len: usize, job: J) {
        let token = self.jobs.iter().position(Option::is_none).expect("the caller saw that there is room");
        let (fd, offset, begun) = (extent.fd, extent.offset, extent.figures.begin());
        self.nr_in_flight += 1;
        if direction == Direction::Write && file_limit::is_beyond(offset + len as u64) {
            return self.leave(token, Flight { job, direction, extent, addr, len, begun });
        }
        let start = Start::of(len, extent.most_bytes_at_once);
        let ring = self.ring.as_mut().expect("the caller saw that transfers are asynchronous");
        // SAFETY: the memory is present, has this length, and is used by nobody else while the job exists (the caller's
        // promise). The job is kept until after the completion, and the descriptor stays open as long (its promise).
        let queued = unsafe {
            match direction {
                Direction::Read => ring.submit_read(fd, addr as *mut u8, len, offset, token as u64, start),
                Direction::Write => ring.submit_write(fd, addr as *const u8, len, offset, token as u64, start),
            }
        };
        let flight = Flight { job, direction, extent, addr, len, begun };
        if queued.as_ref().is_err_and(uring::is_given_up) {
            return self.leave(token, flight);
        }
        self.jobs[token] = Some(flight);
        if let Err(error) = queued.and_then(|()| ring.submit()) {
            // A later call may still start queued transfers, so their memory could never be used again.
            crate::process::fatal::die(&format!("io_uring: {error}"));
        }
    }

    /// Leaves a transfer to the calling thread, which makes it in `finish`, in another way, and counts it there.
    fn leave(&mut self, token: usize, flight: Flight<J>) {
        flight.extent.figures.end(flight.begun, flight.direction, None);
        self.jobs[token] = Some(flight);
        self.ended.push_back((token as u64, Ok(0)));
    }

    /// Returns one transfer that has ended, the earliest first. If none has, waits for one or returns `None`. A disk
    /// may end many at once: taking them one by one lets the caller handle each while the next are in flight.
    pub fn finish(&mut self, wait: bool) -> Option<(J, io::Result<()>)> {
        if self.ended.is_empty() && self.nr_in_flight > 0 {
            let ring = self.ring.as_mut().expect("what is in flight is in the ring");
            if let Err(error) = ring.wait_completions(usize::from(wait), &mut self.ended) {
                crate::process::fatal::die(&format!("io_uring: {error}"));
            }
            for (token, result) in &self.ended {
                let flight = self.jobs[*token as usize].as_ref().expect("each transfer ends once");
                let served = result.as_ref().ok().copied().filter(|&len| len > 0);
                flight.extent.figures.end(flight.begun, flight.direction, served);
            }
        }
        let (token, result) = self.ended.pop_front()?;
        let flight = self.jobs[token as usize].take().expect("each transfer ends once");
        self.nr_in_flight -= 1;
        let result = result.or_else(none_in_flight).and_then(|done| flight.complete(done));
        Some((flight.job, result))
    }
}

/// What the kernel could not do in flight is done as a whole once more, asleep.
///
/// # Errors
/// The same one, if it is of the device.
pub fn none_in_flight(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error() {
        Some(libc::EINTR | libc::EAGAIN | libc::ENOMEM | libc::EOPNOTSUPP) => Ok(0),
        _ => Err(error),
    }
}

impl<J> Flight<J> {
    /// Does the rest of a short transfer synchronously.
    fn complete(&self, done: usize) -> io::Result<()> {
        if done == self.len {
            return Ok(());
        }
        let (addr, len, offset) = (self.addr + done, self.len - done, self.extent.offset + done as u64);
        // SAFETY: a part of this flight's memory, which the job still keeps. The kernel is done with it.
        let rest = || unsafe {
            match self.direction {
                Direction::Read => {
                    let rest = std::slice::from_raw_parts_mut(addr as *mut u8, len);
                    folioswap_sys::direct_io::pread_exact(self.extent.fd, rest, offset)
                }
                Direction::Write => {
                    let rest = std::slice::from_raw_parts(addr as *const u8, len);
                    folioswap_sys::direct_io::pwrite_exact(self.extent.fd, rest, offset)
                }
            }
        };
        self.extent.figures.measure(self.direction, len, rest)
    }
}
