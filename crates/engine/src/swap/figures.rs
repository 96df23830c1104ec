//! I/O figures of each swap device: bytes, latencies, and requests in flight.
//!
//! A request is timed from its submission until its end is seen, by the calling thread or by the thread that reads a
//! ring's completions. For a device in memory only bytes are counted: a page is copied in a few hundred nanoseconds.
//! Counting takes no lock. Each process counts its own requests in flight, so a process that is killed leaves no wrong
//! count in a record that it shares with others.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use folioswap_core::{DeviceFailure, DeviceIo, DeviceRecord, Direction};
use folioswap_sys::clock::Moment;

use crate::process::shared_stats::SharedCounters;

/// Where a device is counted: for its arena alone, or in memory shared by processes.
enum Home {
    Own(Box<DeviceRecord>),
    Shared(&'static DeviceRecord),
}

/// The figures of one device of an arena, on cache lines of their own.
#[repr(align(128))]
pub(crate) struct IoFigures {
    in_flight: AtomicU64,
    home: Home,
    timed: bool,
}

/// A request in flight. Ends with [`IoFigures::end`].
#[derive(Debug, Clone, Copy)]
#[must_use]
pub(crate) struct Begun(Option<Moment>);

impl IoFigures {
    /// New figures, or those of the device with this name, if other processes share the counters and already count
    /// there.
    pub fn new(name: &str, timed: bool, shared: Option<&'static SharedCounters>) -> Self {
        let home = match shared.and_then(|shared| shared.device(name)) {
            Some(record) => Home::Shared(record),
            None => Home::Own(Box::new(DeviceRecord::new())),
        };
        IoFigures { in_flight: AtomicU64::new(0), home, timed }
    }

    fn record(&self) -> &DeviceRecord {
        match &self.home {
            Home::Own(record) => record,
            Home::Shared(record) => record,
        }
    }

    /// In a forked child: what its parent's threads have begun ends in the parent.
    pub fn begin_child(&self) {
        self.in_flight.store(0, Relaxed);
    }

    pub fn begin(&self) -> Begun {
        if !self.timed {
            return Begun(None);
        }
        self.record().begin(self.in_flight.fetch_add(1, Relaxed) + 1);
        Begun(Some(Moment::now()))
    }

    /// Notes that a request has ended. A request that failed is not counted.
    pub fn end(&self, begun: Begun, direction: Direction, served: Option<usize>) {
        if let Begun(Some(at)) = begun {
            let now = Moment::now();
            self.in_flight.fetch_sub(1, Relaxed);
            if served.is_some() {
                self.record().record(direction, at.ns_until(now));
            }
        }
        if let Some(len_bytes) = served {
            let _ = self.record().count(direction, len_bytes as u64);
        }
    }

    /// Counts a call that transfers `len_bytes`.
    pub fn measure(
        &self,
        direction: Direction,
        len_bytes: usize,
        call: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let begun = self.begin();
        let done = call();
        self.end(begun, direction, done.is_ok().then_some(len_bytes));
        done
    }

    /// Counts a copy from a device in memory.
    pub fn count_load(&self, len_bytes: usize) {
        let _ = self.record().count(Direction::Read, len_bytes as u64);
    }

    /// Counts a copy to a device in memory. Now and then calls `used_bytes` to note how much of it is used.
    pub fn count_store(&self, len_bytes: usize, used_bytes: impl FnOnce() -> u64) {
        if self.record().count(Direction::Write, len_bytes as u64) {
            self.record_used(used_bytes());
        }
    }

    /// Notes how many bytes of the device are used.
    pub fn record_used(&self, used_bytes: u64) {
        self.record().record_used(used_bytes);
    }

    /// Notes how much memory the device uses.
    pub fn record_memory(&self, memory_bytes: u64) {
        self.record().record_memory(memory_bytes);
    }

    /// Counts a failed request.
    pub fn failed(&self, failure: DeviceFailure) {
        self.record().failed(failure);
    }

    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }

    pub fn snapshot(&self) -> DeviceIo {
        let mut io = self.record().snapshot();
        io.in_flight = self.in_flight();
        io
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_overlap_are_seen_and_those_that_fail_are_not_counted() {
        let figures = IoFigures::new("a", true, None);
        let (first, second) = (figures.begin(), figures.begin());
        assert_eq!(figures.snapshot().in_flight, 2);
        figures.end(first, Direction::Write, Some(8192));
        figures.end(second, Direction::Write, None);
        figures.measure(Direction::Read, 4096, || Ok(())).unwrap();
        let failed = figures.measure(Direction::Read, 4096, || Err(io::ErrorKind::Other.into()));
        let io = figures.snapshot();
        assert!(failed.is_err() && io.in_flight == 0);
        assert_eq!((io.writes.calls, io.writes.bytes, io.writes.latency.count()), (1, 8192, 1));
        assert_eq!((io.reads.calls, io.reads.bytes, io.reads.latency.count()), (1, 4096, 1));
        assert_eq!((io.most_in_flight, io.mean_in_flight()), (2, 1.25));
    }

    #[test]
    fn memory_is_counted_and_not_timed() {
        let figures = IoFigures::new("ram:2M", false, None);
        figures.measure(Direction::Read, 4096, || Ok(())).unwrap();
        figures.count_load(4096);
        figures.count_store(4096, || 5);
        figures.count_store(4096, || unreachable!("it is looked at once a MiB"));
        let io = figures.snapshot();
        assert_eq!((io.reads.calls, io.reads.bytes, io.reads.latency.count()), (2, 8192, 0));
        assert_eq!((io.writes.bytes, io.peak_used_bytes), (8192, 5));
        assert_eq!((io.most_in_flight, io.mean_in_flight()), (0, 0.0));
    }
}
