//! A device that goes wrong by a plan: for tests.
//!
//! What happens to a read or write is a function of the plan's seed and of how many there were before. A plan has a few kinds
//! of fault, each with a rate. Calls are done one at a time, so that a write that goes astray races with nobody.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use folioswap_core::{Order, PAGE_SIZE};

use super::{Device, MemoryUse, OnFreed};

/// Numbers that follow from a seed (splitmix64).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Numbers(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// What happens to a read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A write returns an error and stores nothing.
    WriteFails,
    /// It returns an error and stores a part.
    WriteFailsHalfway,
    /// It says that it is done, and has stored a part.
    Tears,
    /// ...and has stored nothing.
    Loses,
    /// ...and has stored it elsewhere.
    GoesAstray,
    /// A read returns an error.
    ReadFails,
    /// It returns what is there, but for a bit.
    FlipsBit,
    /// Any call takes a while.
    Waits,
    /// A place can never be read.
    BadPlace,
    /// There is no device from now on.
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
    /// Whether what was stored is not there afterwards.
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
    /// Each happens once in so many calls.
    faults: Vec<(Fault, usize)>,
    nr_calls: AtomicU64,
    is_gone: AtomicBool,
    is_over: AtomicBool,
}

impl Plan {
    pub fn new(seed: u64) -> Arc<Plan> {
        let mut numbers = Numbers::new(seed);
        let faults =
            (0..1 + numbers.below(3)).map(|_| (ALL[numbers.below(ALL.len())], 1 << numbers.below(6))).collect();
        Plan::with(seed, faults)
    }

    pub fn with(seed: u64, faults: Vec<(Fault, usize)>) -> Arc<Plan> {
        let (is_gone, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Plan { seed, faults, nr_calls: AtomicU64::new(0), is_gone, is_over })
    }

    /// Whether all that was stored can be read once the plan is over.
    pub fn destroys(&self) -> bool {
        // A write that fails halfway has said so.
        self.faults.iter().any(|(fault, _)| fault.destroys() && *fault != Fault::WriteFailsHalfway)
    }

    /// From now on the device works.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Numbers for this call, and what happens to it.
    fn call(&self, is_possible: impl Fn(Fault) -> bool) -> io::Result<(Numbers, Option<Fault>)> {
        let call = self.nr_calls.fetch_add(1, Ordering::SeqCst);
        let mut numbers = Numbers::new(self.seed ^ Numbers::new(call).next());
        if self.is_over.load(Ordering::SeqCst) {
            return Ok((numbers, None));
        }
        let mut happens = |&&(fault, rate): &&(Fault, usize)| is_possible(fault) && numbers.one_in(rate);
        let fault = self.faults.iter().find(&mut happens).map(|&(fault, _)| fault);
        if fault == Some(Fault::Vanishes) {
            self.is_gone.store(true, Ordering::SeqCst);
        }
        if self.is_gone.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        Ok((numbers, fault))
    }

    /// Whether a part of a range can never be read: pages here and there.
    fn is_bad(&self, offset: u64, len: usize) -> bool {
        let Some((_, rate)) = self.faults.iter().find(|(fault, _)| *fault == Fault::BadPlace) else { return false };
        let bad = |page: usize| Numbers::new(self.seed ^ page as u64).one_in(rate * 64);
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

    /// An offset of this device where so many bytes could have been meant to go.
    fn elsewhere(&self, numbers: &mut Numbers, len: usize) -> u64 {
        let end = self.limit_bytes().expect("it has a size") as usize - len;
        (numbers.below(end / PAGE_SIZE + 1) * PAGE_SIZE) as u64
    }

    /// Stores `bytes` at `offset`, by `write`, or does not.
    fn write_by(
        &self,
        offset: u64,
        bytes: &[u8],
        write: impl Fn(&dyn Device, u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut numbers, fault) = self.plan.call(Fault::is_of_writes)?;
        // What compresses has a word for each slot, and finds places itself.
        let unit = if self.compresses() { PAGE_SIZE } else { 512 };
        let part = &bytes[..numbers.below(bytes.len() / unit) * unit];
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
            Some(Fault::FlipsBit) => bytes[numbers.below(bytes.len())] ^= 1 << numbers.below(8),
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

    fn fd(&self) -> Option<RawFd> {
        None
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::RamDevice;

    /// What comes of writes of ones over zeros, and of reading them.
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
