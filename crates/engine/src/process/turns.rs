//! How a flow waits: asleep on its own thread, or as one of many that a thread drives by turns.
//!
//! A flow is an `async fn`. Whatever it waits for (a block, frames, a read) is awaited in a few functions, which
//! [`Waits`] tells how. A flow that waits asleep sleeps there, so it is over when it is first polled ([`asleep`]). One
//! that waits by turns returns to the thread that drives it, and leaves with [`Turns`] what it needs. That thread goes
//! on with it when it may have that.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, IoSliceMut};
use std::os::fd::RawFd;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use folioswap_sys::uring::{self, Ring, Start};

use crate::process::fatal;

/// Reads of one thread in flight at most. A flow that wants another one waits.
const DEPTH: usize = 64;

/// Runs a flow that waits asleep.
pub(crate) fn asleep<R>(flow: impl Future<Output = R>) -> R {
    match pin!(flow).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a flow that waits asleep returns when it is over"),
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Waits<'t> {
    /// Its thread sleeps.
    Asleep,
    /// Its thread goes on with other flows.
    ByTurns(&'t Turns),
}

impl Waits<'_> {
    /// Waits until `attempt` succeeds: by turns; or, asleep, as `sleep` does.
    pub async fn until<R>(self, sleep: impl FnOnce() -> R, mut attempt: impl FnMut() -> Option<R>) -> R {
        match self {
            Waits::Asleep => sleep(),
            Waits::ByTurns(turns) => {
                poll_fn(|_| match attempt() {
                    Some(result) => Poll::Ready(result),
                    None => turns.need(Need::Turn),
                })
                .await
            }
        }
    }

    /// Lets other flows of the thread go on.
    pub async fn a_turn(self) {
        let mut had_one = false;
        self.until(|| (), || std::mem::replace(&mut had_one, true).then_some(())).await;
    }
}

/// What a flow needs to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Another look.
    Turn,
    /// The end of the read with this number.
    Read(usize),
}

/// The reads of a thread that drives flows by turns, and what the flow that it goes on with needs next.
pub(crate) struct Turns {
    reads: RefCell<Reads>,
    need: Cell<Need>,
}

struct Reads {
    /// `None`: the kernel does not permit it, and whoever reads sleeps.
    ring: Option<Ring>,
    states: [Read; DEPTH],
    /// Kept between calls for its memory.
    ended: VecDeque<(u64, io::Result<usize>)>,
}

#[derive(Clone, Copy)]
enum Read {
    Unused,
    InFlight,
    /// With the bytes read, or the error's number.
    Ended(Result<usize, i32>),
}

impl Turns {
    pub fn new() -> Self {
        Turns::on(Ring::new(DEPTH as u32).ok())
    }

    /// Without a ring, whoever reads sleeps.
    pub fn on(ring: Option<Ring>) -> Self {
        let reads = Reads { ring, states: [Read::Unused; DEPTH], ended: VecDeque::with_capacity(DEPTH) };
        Turns { reads: RefCell::new(reads), need: Cell::new(Need::Turn) }
    }

    /// Becomes readable when a read ends. `None`: whoever reads sleeps.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.reads.borrow().ring.as_ref().map(Ring::descriptor)
    }

    /// Whether reads can be in flight.
    pub fn has_ring(&self) -> bool {
        self.reads.borrow().ring.is_some()
    }

    /// What the flow needs that was just polled and is not over.
    pub fn needed(&self) -> Need {
        self.need.get()
    }

    fn need<R>(&self, need: Need) -> Poll<R> {
        self.need.set(need);
        Poll::Pending
    }

    /// Notes which reads have ended.
    pub fn collect(&self) {
        self.reads.borrow_mut().collect(0);
    }

    pub fn may_go_on(&self, need: Need) -> bool {
        match need {
            Need::Turn => true,
            Need::Read(number) => matches!(self.reads.borrow().states[number], Read::Ended(_)),
        }
    }

    /// Reads from a file into pieces of memory, and returns how many bytes that were. May change the slices that
    /// describe them.
    ///
    /// # Panics
    /// If no reads can be in flight ([`Turns::has_ring`]).
    pub async fn read(&self, fd: RawFd, offset: u64, pieces: &mut [IoSliceMut<'_>], start: Start) -> io::Result<usize> {
        let number =
            poll_fn(|_| match self.reads.borrow().states.iter().position(|read| matches!(read, Read::Unused)) {
                Some(number) => Poll::Ready(number),
                None => self.need(Need::Turn),
            })
            .await;
        self.reads.borrow_mut().start(number, fd, offset, pieces, start);
        let in_flight = InFlight { turns: self, number };
        poll_fn(|_| match in_flight.state() {
            Read::Ended(result) => Poll::Ready(result.map_err(io::Error::from_raw_os_error)),
            _ => self.need(Need::Read(number)),
        })
        .await
    }
}

impl Reads {
    fn start(&mut self, number: usize, fd: RawFd, offset: u64, pieces: &mut [IoSliceMut<'_>], start: Start) {
        let ring = self.ring.as_mut().expect("the caller saw that reads can be in flight");
        // SAFETY: the caller borrows the memory until the read has ended: `InFlight` waits for that when it is dropped.
        // It keeps the descriptor open as long.
        let queued = unsafe { ring.submit_read_pieces(fd, pieces, offset, number as u64, start) };
        if queued.as_ref().is_err_and(uring::is_given_up) {
            self.states[number] = Read::Ended(Ok(0)); // the flow reads it itself
            return;
        }
        if let Err(error) = queued.and_then(|()| ring.submit()) {
            // A later call may still start it, so its memory could never be used again.
            fatal::die(&format!("io_uring: {error}"));
        }
        self.states[number] = Read::InFlight;
    }

    /// Waits for the end of at least `min` reads.
    fn collect(&mut self, min: usize) {
        let Some(ring) = &mut self.ring else { return };
        if let Err(error) = ring.wait_completions(min, &mut self.ended) {
            fatal::die(&format!("io_uring: {error}"));
        }
        for (number, result) in self.ended.drain(..) {
            self.states[number as usize] =
                Read::Ended(result.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)));
        }
    }
}

/// A read in flight. Its memory is the kernel's until it has ended.
struct InFlight<'t> {
    turns: &'t Turns,
    number: usize,
}

impl InFlight<'_> {
    fn state(&self) -> Read {
        self.turns.reads.borrow().states[self.number]
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        while matches!(self.state(), Read::InFlight) {
            self.turns.reads.borrow_mut().collect(1);
        }
        self.turns.reads.borrow_mut().states[self.number] = Read::Unused;
    }
}
