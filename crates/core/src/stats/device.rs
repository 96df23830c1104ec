//! Transfers to and from one swap device, their latency, and the number of requests in flight.
//!
//! As in the other statistics, everything is a 64-bit atomic and all zeros are an empty value; only the name's words
//! are ordered. Processes that use the same devices count in the same records, which they find by the device's name.

use super::Counter;
use super::histogram::{Histogram, HistogramSnapshot};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Bytes of a name; longer names keep their end.
const NAME_BYTES: usize = 256;

/// The peak of the used bytes is checked once per 2^20 bytes written (1 MiB).
const LOOK_SHIFT: u32 = 20;

/// Reads or writes of a device.
#[repr(C)]
#[derive(Debug)]
pub struct TransferRecord {
    calls: Counter,
    bytes: Counter,
    latency: Histogram,
}

impl TransferRecord {
    const fn new() -> Self {
        TransferRecord { calls: Counter::new(), bytes: Counter::new(), latency: Histogram::new() }
    }

    fn snapshot(&self) -> DeviceTransfers {
        DeviceTransfers { calls: self.calls.get(), bytes: self.bytes.get(), latency: self.latency.snapshot() }
    }
}

/// Figures of one device, shared by all threads. 8.7 KiB.
#[repr(C)]
#[derive(Debug)]
pub struct DeviceRecord {
    /// Eight bytes each, zero-padded; all zeros: the record is unused.
    name: [AtomicU64; NAME_BYTES / 8],
    reads: TransferRecord,
    writes: TransferRecord,
    /// The sum, over all timed requests, of the requests in flight when each began, including itself.
    sum_in_flight: Counter,
    timed: Counter,
    most_in_flight: AtomicU64,
    peak_used_bytes: AtomicU64,
    peak_memory_bytes: AtomicU64,
    failures: [Counter; 3],
}

/// What can go wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceFailure {
    /// A read returned an error.
    Read,
    /// A write returned an error.
    Write,
    /// A read returned other bytes than were written.
    WrongBytes,
}

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

impl DeviceRecord {
    /// An empty, unused record.
    #[allow(clippy::new_without_default)] // a default would be a value on the stack
    pub const fn new() -> Self {
        DeviceRecord {
            name: [const { AtomicU64::new(0) }; NAME_BYTES / 8],
            reads: TransferRecord::new(),
            writes: TransferRecord::new(),
            sum_in_flight: Counter::new(),
            timed: Counter::new(),
            most_in_flight: AtomicU64::new(0),
            peak_used_bytes: AtomicU64::new(0),
            peak_memory_bytes: AtomicU64::new(0),
            failures: [const { Counter::new() }; 3],
        }
    }

    /// Claims the record for the device of this name, if it is unused or already that device's. Two processes that do
    /// so at once name their first device alike, so their order does not matter.
    pub fn claim(&self, name: &str) -> bool {
        let words = words_of(name);
        if self.is_used() {
            return self.name.iter().zip(words).all(|(have, word)| have.load(Relaxed) == word);
        }
        // The first word last: it marks the record as used.
        self.name.iter().zip(words).rev().for_each(|(have, word)| have.store(word, Release));
        true
    }

    fn is_used(&self) -> bool {
        self.name[0].load(Acquire) != 0
    }

    /// The name that it was claimed with; `None` if it is unused.
    pub fn name(&self) -> Option<String> {
        let bytes: Vec<u8> = self.name.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        self.is_used().then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    fn of(&self, direction: Direction) -> &TransferRecord {
        match direction {
            Direction::Read => &self.reads,
            Direction::Write => &self.writes,
        }
    }

    /// Counts bytes that went to or from the device. Returns whether the used bytes are due for a check.
    pub fn count(&self, direction: Direction, len_bytes: u64) -> bool {
        let record = self.of(direction);
        record.calls.add(1);
        let before = record.bytes.add_to(len_bytes);
        let passed = before >> LOOK_SHIFT != (before + len_bytes) >> LOOK_SHIFT;
        direction == Direction::Write && (before == 0 || passed)
    }

    /// Records that a timed request began, with the number of requests in flight.
    pub fn begin(&self, nr_in_flight: u64) {
        self.timed.add(1);
        self.sum_in_flight.add(nr_in_flight);
        if nr_in_flight > self.most_in_flight.load(Relaxed) {
            self.most_in_flight.fetch_max(nr_in_flight, Relaxed);
        }
    }

    /// Records the latency of a timed request in nanoseconds.
    pub fn record(&self, direction: Direction, ns: u64) {
        self.of(direction).latency.record(ns);
    }

    /// Records how many bytes of the device are in use.
    pub fn record_used(&self, used_bytes: u64) {
        if used_bytes > self.peak_used_bytes.load(Relaxed) {
            self.peak_used_bytes.fetch_max(used_bytes, Relaxed);
        }
    }

    /// Records how many bytes of memory the device's content takes.
    pub fn record_memory(&self, memory_bytes: u64) {
        if memory_bytes > self.peak_memory_bytes.load(Relaxed) {
            self.peak_memory_bytes.fetch_max(memory_bytes, Relaxed);
        }
    }

    /// Counts a failed request.
    pub fn failed(&self, failure: DeviceFailure) {
        self.failures[failure as usize].add(1);
    }

    /// The current figures, except the requests in flight, which the record does not know.
    pub fn snapshot(&self) -> DeviceIo {
        DeviceIo {
            reads: self.reads.snapshot(),
            writes: self.writes.snapshot(),
            in_flight: 0,
            most_in_flight: self.most_in_flight.load(Relaxed),
            sum_in_flight: self.sum_in_flight.get(),
            timed: self.timed.get(),
            peak_used_bytes: self.peak_used_bytes.load(Relaxed),
            peak_memory_bytes: self.peak_memory_bytes.load(Relaxed),
            read_errors: self.failures[DeviceFailure::Read as usize].get(),
            write_errors: self.failures[DeviceFailure::Write as usize].get(),
            wrong_bytes: self.failures[DeviceFailure::WrongBytes as usize].get(),
        }
    }
}

/// A name in words, or its end if it is too long.
fn words_of(name: &str) -> [u64; NAME_BYTES / 8] {
    let mut start = name.len().saturating_sub(NAME_BYTES);
    while !name.is_char_boundary(start) {
        start += 1;
    }
    let mut bytes = [0; NAME_BYTES];
    bytes[..name.len() - start].copy_from_slice(&name.as_bytes()[start..]);
    std::array::from_fn(|at| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte])))
}

/// Reads or writes of a device up to one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceTransfers {
    /// Requests that were served, each for one folio or several adjacent ones.
    pub calls: u64,
    /// Bytes transferred.
    pub bytes: u64,
    /// Latencies in nanoseconds, from the request until its completion was seen. Empty for a device in memory, where
    /// reading the clock would cost too much.
    pub latency: HistogramSnapshot,
}

/// Transfers of a device up to one moment. Failed requests are not among its calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceIo {
    /// Reads, including those for compaction of its slots and for its removal.
    pub reads: DeviceTransfers,
    /// Writes.
    pub writes: DeviceTransfers,
    /// Requests in flight. Zero for a device in memory, as are the next two.
    pub in_flight: u64,
    /// The most requests in flight at once.
    pub most_in_flight: u64,
    sum_in_flight: u64,
    timed: u64,
    /// The most bytes of its slots in use, checked once per MiB written.
    pub peak_used_bytes: u64,
    /// The most bytes of memory that its content took, for compressed RAM; else 0.
    pub peak_memory_bytes: u64,
    /// Reads that failed, including retries.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Reads that returned other bytes than were written, including retries.
    pub wrong_bytes: u64,
}

impl DeviceIo {
    /// The mean number of requests in flight when one began, including itself.
    pub fn mean_in_flight(&self) -> f64 {
        self.sum_in_flight as f64 / self.timed.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_shown() {
        let record = DeviceRecord::new();
        assert_eq!((record.name(), record.snapshot()), (None, DeviceIo::default()));
        assert_eq!((size_of::<DeviceRecord>() % 8, align_of::<DeviceRecord>()), (0, 8));
        for (nr, ns) in [(1, 100), (2, 900), (3, 200)] {
            record.begin(nr);
            record.record(Direction::Read, ns);
            record.count(Direction::Read, 4096);
        }
        record.record_used(7);
        record.record_used(3);
        [5, 4].into_iter().for_each(|bytes| record.record_memory(bytes));
        record.failed(DeviceFailure::WrongBytes);
        let io = record.snapshot();
        assert_eq!((io.reads.calls, io.reads.bytes, io.reads.latency.max()), (3, 3 * 4096, 900));
        assert_eq!((io.writes.clone(), io.most_in_flight, io.peak_used_bytes), (DeviceTransfers::default(), 3, 7));
        assert_eq!((io.peak_memory_bytes, io.read_errors, io.write_errors, io.wrong_bytes), (5, 0, 0, 1));
        assert_eq!(io.mean_in_flight(), 2.0);
        assert_eq!(DeviceIo::default().mean_in_flight(), 0.0);
    }

    #[test]
    fn what_is_used_is_looked_at_once_a_mebibyte() {
        let record = DeviceRecord::new();
        let looks = |direction, len: u64, nr| (0..nr).filter(|_| record.count(direction, len)).count();
        assert_eq!(looks(Direction::Read, 1 << 21, 3), 0);
        assert_eq!(looks(Direction::Write, 4096, 1), 1, "the first");
        assert_eq!(looks(Direction::Write, 4096, 1023), 4);
        assert_eq!(looks(Direction::Write, 1 << 21, 3), 3);
    }

    #[test]
    fn a_record_is_of_one_name() {
        let record = DeviceRecord::new();
        assert!(record.claim("/swap/a") && record.claim("/swap/a"));
        assert!(!record.claim("/swap/b") && !record.claim("/swap/a#2") && !record.claim(""));
        assert_eq!(record.name().as_deref(), Some("/swap/a"));
        let (long, record) = (format!("{}ü{}", "a".repeat(99), "b".repeat(255)), DeviceRecord::new());
        assert!(record.claim(&long) && record.claim(&long));
        assert_eq!(record.name(), Some("b".repeat(255)), "its end, cut between characters");
    }
}
