//! What a device that fails, or lies, does to the memory that it holds: nothing is lost silently.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use folioswap_core::{BlockId, CpuId, FolioId, Order, PAGE_SIZE, SlotId, State};

use crate::advise::Advice;
use crate::arena::Arena;
use crate::device::{Device, DeviceSpec, RamDevice};
use crate::error::Error;
use crate::folio_size::FolioSize;
use crate::region::{ArenaVec, Region};

const MIB: usize = 1 << 20;

/// What goes wrong, changed while the device is in use.
#[derive(Default)]
struct Faults {
    /// Writes that still fail.
    failing_writes: AtomicUsize,
    reads_fail: AtomicBool,
    reads_lie: AtomicBool,
}

struct BadDevice {
    bytes: Mutex<Vec<u8>>,
    faults: Arc<Faults>,
}

impl Device for BadDevice {
    fn limit_bytes(&self) -> Option<u64> {
        Some(self.bytes.lock().unwrap().len() as u64)
    }

    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        if self.faults.reads_fail.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        bytes.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..bytes.len()]);
        if self.faults.reads_lie.load(Ordering::SeqCst) {
            bytes[bytes.len() / 2] ^= 1;
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let failing = &self.faults.failing_writes;
        if failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.bytes.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn fd(&self) -> Option<RawFd> {
        None
    }

    fn name(&self) -> String {
        "a bad device".into()
    }
}

fn bad_device() -> (Box<dyn Device>, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let device = BadDevice { bytes: Mutex::new(vec![0; 128 * MIB]), faults: Arc::clone(&faults) };
    (Box::new(device), faults)
}

fn arena() -> (Arena, Arc<Faults>) {
    let (device, faults) = bad_device();
    (Arena::builder().memory(16 << 20).build_on(vec![device]).unwrap(), faults)
}

fn fill(words: &mut [u64]) {
    words.iter_mut().enumerate().for_each(|(at, word)| *word = !(at as u64));
}

fn is_right(words: &[u64]) -> bool {
    words.iter().enumerate().all(|(at, &word)| word == !(at as u64))
}

/// A block of the region that is on the device and not in RAM.
fn swapped(arena: &Arena, words: &[u64]) -> FolioId {
    let engine = arena.engine();
    let first = engine.page_at(words.as_ptr() as usize).block().index();
    (first..first + size_of_val(words) / (2 * MIB))
        .map(BlockId::from_index)
        .find(|&block| matches!(engine.lock(block).state(0), State::Swapped(_)))
        .expect("more was written than RAM holds")
        .page(0)
}

#[test]
fn a_failed_write_keeps_the_folio_and_takes_another_slot() {
    let (arena, faults) = arena();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 48 * MIB / 8).unwrap();
    faults.failing_writes.store(5, Ordering::SeqCst);
    fill(&mut words);
    assert!(is_right(&words));
    assert_eq!(faults.failing_writes.load(Ordering::SeqCst), 0);
    assert_eq!(arena.stats().io_errors, 5);
}

#[test]
fn a_failed_read_is_reported_and_the_content_stays() {
    let (arena, faults) = arena();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 48 * MIB / 8).unwrap();
    fill(&mut words);
    let folio = swapped(&arena, &words);
    faults.reads_fail.store(true, Ordering::SeqCst);
    let error = arena.engine().fault(arena.engine().gate.enter(1), folio, 1).unwrap_err();
    assert!(error.to_string().contains("a bad device"), "{error}");
    faults.reads_fail.store(false, Ordering::SeqCst);
    assert!(is_right(&words), "what could not be read then can be now");
}

#[test]
fn a_device_that_returns_other_bytes_is_found_out() {
    let (arena, faults) = arena();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 48 * MIB / 8).unwrap();
    fill(&mut words);
    let folio = swapped(&arena, &words);
    faults.reads_lie.store(true, Ordering::SeqCst);
    let error = arena.engine().fault(arena.engine().gate.enter(1), folio, 1).unwrap_err();
    assert!(error.to_string().contains("other bytes"), "{error}");
    assert_eq!(arena.stats().verify_failures, 1);
    faults.reads_lie.store(false, Ordering::SeqCst);
    assert!(is_right(&words));
}

#[test]
fn a_device_that_cannot_be_read_is_not_removed() {
    let (arena, faults) = arena();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 48 * MIB / 8).unwrap();
    fill(&mut words);
    arena.add_device(&DeviceSpec::Ram { size: 64 << 20 }).unwrap();
    for fault in [&faults.reads_fail, &faults.reads_lie] {
        fault.store(true, Ordering::SeqCst);
        let error = arena.remove_device("a bad device").unwrap_err();
        assert!(matches!(error, Error::SwapInUse { .. }), "{error}");
        fault.store(false, Ordering::SeqCst);
    }
    assert!(is_right(&words));
    arena.remove_device("a bad device").unwrap();
    assert!(is_right(&words));
}

#[test]
fn what_cannot_be_written_elsewhere_is_tried_in_another_place() {
    let (bad, faults) = bad_device();
    let ram: Box<dyn Device> = Box::new(RamDevice::new(64 << 20, None).unwrap());
    let arena = Arena::builder().memory(16 << 20).build_on(vec![ram, bad]).unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 48 * MIB / 8).unwrap();
    fill(&mut words);
    faults.failing_writes.store(3, Ordering::SeqCst);
    arena.remove_device("ram:64M").unwrap();
    assert_eq!(arena.stats().io_errors, 3);
    assert!(is_right(&words));
}

/// Small folios on the device, every other one of them dropped, and others that have RAM to themselves: what is there is moved
/// without a read.
fn scattered(arena: &Arena) -> (Region, Region) {
    let mut region = arena.map_with(64 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    (0..region.len()).step_by(PAGE_SIZE).for_each(|at| region[at] = at_page(at));
    arena.evict_all();
    for at in (0..region.len()).step_by(2 * PAGE_SIZE) {
        region.advise(at..at + PAGE_SIZE, Advice::DontNeed);
    }
    let mut others = arena.map_with(16 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    (0..others.len()).step_by(PAGE_SIZE).for_each(|at| others[at] = at_page(at));
    (region, others)
}

fn at_page(at: usize) -> u8 {
    (at / PAGE_SIZE % 251) as u8 + 1
}

fn is_kept(region: &Region) -> bool {
    let expected = |at: usize| if at / PAGE_SIZE % 2 == 1 { at_page(at) } else { 0 };
    (0..region.len()).step_by(PAGE_SIZE).all(|at| region[at] == expected(at))
}

/// Takes all whole clusters and asks for more until something has happened.
fn compact_until(arena: &Arena, mut happened: impl FnMut() -> bool) {
    let huge = || arena.engine().space.allocate(CpuId::new(0), Order::HUGE);
    let runs: Vec<SlotId> = std::iter::from_fn(huge).collect();
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", arena.stats());
        arena.engine().want_whole_clusters(Order::HUGE);
        std::thread::yield_now();
    }
    runs.into_iter().for_each(|slot| arena.engine().free_slots(slot, Order::HUGE));
}

#[test]
fn what_a_device_does_not_give_back_is_not_moved() {
    let (arena, faults) = arena();
    let (region, _others) = scattered(&arena);
    for fault in [&faults.reads_lie, &faults.reads_fail] {
        let before = arena.stats();
        fault.store(true, Ordering::SeqCst);
        compact_until(&arena, || {
            let stats = arena.stats();
            stats.io_errors > before.io_errors && stats.slots_migrate_failed > before.slots_migrate_failed
        });
        drop(arena.engine().space.changing()); // no move is under way
        fault.store(false, Ordering::SeqCst);
    }
    assert!(arena.stats().verify_failures > 0);
    assert!(is_kept(&region), "all of it is where it was");
    let before = arena.stats();
    compact_until(&arena, || arena.stats().slot_compact_success > before.slot_compact_success);
    assert!(is_kept(&region));
}

#[test]
fn what_a_device_does_not_take_stays_where_it_was() {
    let (arena, faults) = arena();
    let (region, _others) = scattered(&arena);
    faults.failing_writes.store(3, Ordering::SeqCst);
    compact_until(&arena, || faults.failing_writes.load(Ordering::SeqCst) == 0);
    assert!(is_kept(&region));
    compact_until(&arena, || arena.stats().slot_compact_success > 0);
    let stats = arena.stats();
    assert!(stats.io_errors == 3 && stats.slots_migrate_failed > 0, "{stats:?}");
    assert!(is_kept(&region));
}
