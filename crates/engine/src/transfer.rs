//! Reads and writes in flight: several at once over io_uring where the device has a descriptor and the kernel permits
//! it, else one at a time by the calling thread. The same calls either way.

use std::collections::VecDeque;
use std::io;

pub(crate) use folioswap_core::Direction;
use folioswap_sys::uring::{Ring, Start};

use crate::io_figures::Begun;
use crate::space::Extent;

/// Transfers that one thread keeps in flight.
pub(crate) const DEPTH: usize = 8;

/// Transfers of one thread; `J` is what the owner needs to know of each at its end.
pub(crate) struct Transfers<J> {
    /// Before the jobs: it waits for what is in flight when it is dropped, and only then may they be.
    ring: Option<Ring>,
    jobs: Vec<Option<Flight<J>>>,
    /// Those that have ended and were not handed back yet.
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
    /// Room for [`DEPTH`] transfers. Without io_uring there is no room, and [`Transfers::has_room`] says so.
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

    /// What is in flight.
    pub fn jobs(&self) -> impl Iterator<Item = &J> {
        self.jobs.iter().flatten().map(|flight| &flight.job)
    }

    pub fn has_room(&self) -> bool {
        self.nr_in_flight < DEPTH
    }

    /// Starts a transfer between `extent` and the memory at `addr`.
    ///
    /// # Panics
    /// Without room.
    ///
    /// # Safety
    /// The job keeps `len` bytes at `addr` mapped, present and, for a read, writable; and for itself, so that nobody else reads
    /// or writes them, until it is dropped or [`Transfers::finish`] has handed it back: it holds the lock of the folio's block,
    /// or the buffer. So long the extent's descriptor stays open: its slots are in use, and their device is not removed.
    pub unsafe fn start(&mut self, direction: Direction, extent: Extent, addr: usize, len: usize, job: J) {
        let token = self.jobs.iter().position(Option::is_none).expect("the caller saw that there is room");
        let ring = self.ring.as_mut().expect("the caller saw that transfers are asynchronous");
        let (fd, offset, begun) = (extent.fd, extent.offset, extent.figures.begin());
        let start = Start::of(len, extent.most_bytes_at_once);
        // SAFETY: the memory is present, of this length and used by nobody else as long as there is the job (the caller's promise),
        // which is kept until after the completion; so long the descriptor stays open (its promise).
        let queued = unsafe {
            match direction {
                Direction::Read => ring.submit_read(fd, addr as *mut u8, len, offset, token as u64, start),
                Direction::Write => ring.submit_write(fd, addr as *const u8, len, offset, token as u64, start),
            }
        };
        self.jobs[token] = Some(Flight { job, direction, extent, addr, len, begun });
        self.nr_in_flight += 1;
        if let Err(error) = queued.and_then(|()| ring.submit()) {
            // What is queued may still be started by a later call: its memory could never be used again.
            crate::fatal::die(&format!("io_uring: {error}"));
        }
    }

    /// Hands back one transfer that has ended, those that ended first before others; if none has, waits for one or returns
    /// `None`. A disk may end many at once: what there is to do for each can be done while the next are under way.
    pub fn finish(&mut self, wait: bool) -> Option<(J, io::Result<()>)> {
        if self.ended.is_empty() && self.nr_in_flight > 0 {
            let ring = self.ring.as_mut().expect("what is in flight is in the ring");
            if let Err(error) = ring.wait_completions(usize::from(wait), &mut self.ended) {
                crate::fatal::die(&format!("io_uring: {error}"));
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
        let result = result.and_then(|done| flight.complete(done));
        Some((flight.job, result))
    }
}

impl<J> Flight<J> {
    /// Does what a short transfer left, on the spot.
    fn complete(&self, done: usize) -> io::Result<()> {
        if done == self.len {
            return Ok(());
        }
        let (addr, len, offset) = (self.addr + done, self.len - done, self.extent.offset + done as u64);
        // SAFETY: a part of the memory of this flight, which the job still holds; the kernel is done with it.
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
