//! A device in RAM with limited throughput, for measurements.
//!
//! Reads and writes queue up, and each call returns when a device of that speed would have completed it. It offers no
//! direct access to its memory, so the engine treats it as a disk.

use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::Device;

/// A device behind a queue.
pub(crate) struct Throttled {
    device: Box<dyn Device>,
    bytes_per_second: u64,
    /// When all requests so far are done.
    idle_from: Mutex<Instant>,
}

impl Throttled {
    pub fn new(device: Box<dyn Device>, bytes_per_second: u64) -> Self {
        Throttled { device, bytes_per_second: bytes_per_second.max(1), idle_from: Mutex::new(Instant::now()) }
    }

    /// Reserves the time of this request in the queue, makes the call, and sleeps until that time is over.
    fn take_turn(&self, len: usize, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let time = Duration::from_nanos((len as u128 * 1_000_000_000 / u128::from(self.bytes_per_second)) as u64);
        let end = {
            let mut idle_from = self.idle_from.lock().expect("nothing panics under this lock");
            *idle_from = (*idle_from).max(Instant::now()) + time;
            *idle_from
        };
        let done = call();
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        done
    }
}

impl Device for Throttled {
    fn limit_bytes(&self) -> Option<u64> {
        self.device.limit_bytes()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.take_turn(bytes.len(), || self.device.read(offset, bytes))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.take_turn(bytes.len(), || self.device.write(offset, bytes))
    }

    fn let_children_have(&self, have: bool) -> io::Result<()> {
        self.device.let_children_have(have)
    }

    fn name(&self) -> String {
        self.device.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::RamDevice;

    #[test]
    fn it_is_no_faster_and_loses_nothing() {
        let ram = RamDevice::new(4 << 20, None).unwrap();
        let device = Throttled::new(Box::new(ram), 100 << 20);
        let (written, mut read) = (vec![7; 1 << 20], vec![0; 1 << 20]);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| device.write(0, &written));
            device.write(1 << 20, &written).unwrap();
        });
        device.read(1 << 20, &mut read).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(29), "3 MiB at 100 MiB a second: {:?}", begun.elapsed());
        assert!(read == written && device.memory().is_none() && device.fd().is_none());
    }
}
