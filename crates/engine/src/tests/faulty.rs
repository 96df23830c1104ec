//! A device that fails by a plan. For tests.
//!
//! The outcome of a read or write is a function of the plan's seed and of the number of earlier calls. A plan has a few
//! kinds of faults, each with a rate. Calls run one at a time, so a misdirected write does not race with others.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use folioswap_core::{Order, PAGE_SIZE};

use crate::device::{Device, MemoryUse, OnFreed};

/// The generator of a seed. The first numbers of neighbouring seeds are not alike.
pub(crate) fn numbers(seed: u64) -> Rng {
    Rng::with_seed(seed).fork()
}

/// True once in `times` on average.
pub(crate) fn one_in(numbers: &mut Rng, times: usize) -> bool {
    numbers.usize(..times) == 0
}

/// What goes wrong with a read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A write returns an error and stores nothing.
    WriteFails,
    /// A write returns an error and stores a part.
    WriteFailsHalfway,
    /// A write reports success and has stored a part.
    Tears,
    /// A write reports success and has stored nothing.
    Loses,
    /// A write reports success and has stored the bytes elsewhere.
    GoesAstray,
    /// A read returns an error.
    ReadFails,
    /// A read returns the content with one bit flipped.
    FlipsBit,
    /// Any call is slow.
    Waits,
    /// A place can never be read.
    BadPlace,
    /// The device is gone from now on.
    Vanishes,
}

const ALL: [Fault; 10] = [
    Fault::WriteFails,
    Fault::WriteFailsHalfway,
    Fault::Tears,
    Fault::Loses,
    Fault::GoesAstray,
    Fault::ReadFails,
    Fault::FlipsBit,
    Fault::Waits,
    Fault::BadPlace,
    Fault::Vanishes,
];

impl Fault {
    /// Whether a write with this fault does not store its bytes.
    fn destroys(self) -> bool {
        matches!(self, Fault::Tears | Fault::Loses | Fault::GoesAstray | Fault::WriteFailsHalfway)
    }

    fn is_of_writes(self) -> bool {
        self.destroys() || matches!(self, Fault::WriteFails | Fault::Waits | Fault::Vanishes)
    }

    fn is_of_reads(self) -> bool {
        matches!(self, Fault::ReadFails | Fault::FlipsBit | Fault::Waits | Fault::Vanishes)
    }
}

/// What goes wrong on a device.
#[derive(Debug)]
pub(crate) struct Plan {
    seed: u64,
    /// Each fault happens once in this many calls, on average.
    faults: Vec<(Fault, usize)>,
    nr_calls: AtomicU64,
    is_gone: AtomicBool,
    is_over: AtomicBool,
}

impl Plan {
    pub fn new(seed: u64) -> Arc<Plan> {
        let mut numbers = numbers(seed);
        let faults =
            (0..1 + numbers.usize(..3)).map(|_| (ALL[numbers.usize(..ALL.len())], 1 << numbers.usize(..6))).collect();
        Plan::with(seed, faults)
    }

    pub fn with(seed: u64, faults: Vec<(Fault, usize)>) -> Arc<Plan> {
        let (is_gone, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Plan { seed, faults, nr_calls: AtomicU64::new(0), is_gone, is_over })
    }

    /// Whether content that was reported as stored can be missing once the plan has ended.
    pub fn destroys(&self) -> bool {
        // A write that fails halfway has returned an error.
        self.faults.iter().any(|(fault, _)| fault.destroys() && *fault != Fault::WriteFailsHalfway)
    }

    /// The device works from now on.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Random numbers for this call, and its fault.
    fn call(&self, is_possible: impl Fn(Fault) -> bool) -> io::Result<(Rng, Option<Fault>)> {
        let call = self.nr_calls.fetch_add(1, Ordering::SeqCst);
        let mut numbers = numbers(self.seed ^ Rng::with_seed(call).u64(..));
        if self.is_over.load(Ordering::SeqCst) {
            return Ok((numbers, None));
        }
        let mut happens = |&&(fault, rate): &&(Fault, usize)| is_possible(fault) && one_in(&mut numbers, rate);
        let fault = self.faults.iter().find(&mut happens).map(|&(fault, _)| fault);
        if fault == Some(Fault::Vanishes) {
            self.is_gone.store(true, Ordering::SeqCst);
        }
        if self.is_gone.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        Ok((numbers, fault))
    }

    /// Whether a part of a range can never be read. Such pages are scattered over the device.
    fn is_bad(&self, offset: u64, len: usize) -> bool {
        let Some((_, rate)) = self.faults.iter().find(|(fault, _)| *fault == Fault::BadPlace) else { return false };
        let bad = |page: usize| one_in(&mut numbers(self.seed ^ page as u64), rate * 64);
        let first = offset as usize / PAGE_SIZE;
        !self.is_over.load(Ordering::SeqCst) && (first..first + len.div_ceil(PAGE_SIZE)).any(bad)
    }
}

/// A device with a plan.
pub(crate) struct Faulty {
    device: Box<dyn Device>,
    plan: Arc<Plan>,
    name: String,
    one_at_a_time: Mutex<()>,
}

impl Faulty {
    pub fn new(device: Box<dyn Device>, plan: Arc<Plan>, name: &str) -> Self {
        Faulty { device, plan, name: name.into(), one_at_a_time: Mutex::new(()) }
    }

    /// A random offset at which a write of `len` bytes can go astray.
    fn elsewhere(&self, numbers: &mut Rng, len: usize) -> u64 {
        let end = self.limit_bytes().expect("it has a size") as usize - len;
        (numbers.usize(..end / PAGE_SIZE + 1) * PAGE_SIZE) as u64
    }

    /// Stores `bytes` at `offset` with `write`, or fails to.
    fn write_by(
        &self,
        offset: u64,
        bytes: &[u8],
        write: impl Fn(&dyn Device, u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut numbers, fault) = self.plan.call(Fault::is_of_writes)?;
        // A compressing device has a word for each slot and chooses places itself.
        let unit = if self.compresses() { PAGE_SIZE } else { 512 };
        let part = &bytes[..numbers.usize(..bytes.len() / unit) * unit];
        let write = |offset, bytes| write(&*self.device, offset, bytes);
        let _alone = self.one_at_a_time.lock().expect("nothing panics under this lock");
        match fault {
            Some(Fault::WriteFails) => Err(failed()),
            Some(Fault::WriteFailsHalfway) => write(offset, part).and(Err(failed())),
            Some(Fault::Tears) => write(offset, part),
            Some(Fault::Loses) => Ok(()),
            Some(Fault::GoesAstray) if self.compresses() => Ok(()),
            Some(Fault::GoesAstray) => write(self.elsewhere(&mut numbers, bytes.len()), bytes),
            Some(Fault::Waits) => {
                std::thread::sleep(Duration::from_micros(200));
                write(offset, bytes)
            }
            _ => write(offset, bytes),
        }
    }
}

fn failed() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Device for Faulty {
    fn limit_bytes(&self) -> Option<u64> {
        self.device.limit_bytes()
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.reserve(offset, len)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (mut numbers, fault) = self.plan.call(Fault::is_of_reads)?;
        if fault == Some(Fault::ReadFails) || self.plan.is_bad(offset, bytes.len()) {
            return Err(failed());
        }
        let _alone = self.one_at_a_time.lock().expect("nothing panics under this lock");
        self.device.read(offset, bytes)?;
        match fault {
            Some(Fault::FlipsBit) => bytes[numbers.usize(..bytes.len())] ^= 1 << numbers.usize(..8),
            Some(Fault::Waits) => std::thread::sleep(Duration::from_micros(200)),
            _ => {}
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_by(offset, bytes, |device, offset, bytes| device.write(offset, bytes))
    }

    fn write_anyway(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_by(offset, bytes, |device, offset, bytes| device.write_anyway(offset, bytes))
    }

    fn has_room(&self, order: Order) -> bool {
        self.device.has_room(order)
    }

    fn compresses(&self) -> bool {
        self.device.compresses()
    }

    fn on_freed(&self) -> Option<OnFreed> {
        self.device.on_freed()
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        self.device.memory_use()
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::RamDevice;

    /// The results of writing bytes of 1 over zeros and of reading them, and the number of set bits that were read.
    fn outcomes(fault: Fault) -> (io::Result<()>, io::Result<()>, usize) {
        let plan = Plan::with(7, vec![(fault, 1)]);
        let device = Faulty::new(Box::new(RamDevice::new(2 << 20, None).unwrap()), Arc::clone(&plan), "faulty");
        let written = device.write(8192, &[1; 8192]);
        let mut bytes = [0; 8192];
        let read = device.read(8192, &mut bytes);
        (written, read, bytes.iter().map(|&byte| byte.count_ones() as usize).sum())
    }

    #[test]
    fn each_fault_is_what_it_is_called() {
        let is = |error: &io::Result<()>, number| error.as_ref().is_err_and(|e| e.raw_os_error() == Some(number));
        for fault in ALL {
            let (written, read, nr_ones) = outcomes(fault);
            match fault {
                Fault::WriteFails => assert!(is(&written, libc::EIO) && nr_ones == 0),
                Fault::WriteFailsHalfway => assert!(is(&written, libc::EIO) && (1..8192).contains(&nr_ones)),
                Fault::Tears => assert!(written.is_ok() && (1..8192).contains(&nr_ones)),
                Fault::Loses | Fault::GoesAstray => assert!(written.is_ok() && nr_ones == 0),
                Fault::ReadFails => assert!(written.is_ok() && is(&read, libc::EIO)),
                Fault::FlipsBit => assert!(read.is_ok() && nr_ones.abs_diff(8192) == 1),
                Fault::Waits => assert!(written.is_ok() && nr_ones == 8192),
                Fault::BadPlace => assert!(written.is_ok()),
                Fault::Vanishes => assert!(is(&written, libc::ENODEV) && is(&read, libc::ENODEV)),
            }
        }
    }

    #[test]
    fn a_plan_is_a_function_of_its_seed() {
        for seed in 0..100 {
            let calls = |plan: &Plan| -> Vec<_> {
                (0..50).map(|_| plan.call(Fault::is_of_reads).ok().and_then(|(_, fault)| fault)).collect()
            };
            assert_eq!(calls(&Plan::new(seed)), calls(&Plan::new(seed)));
        }
    }
}
