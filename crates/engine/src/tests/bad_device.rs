//! Tests of devices that fail or return wrong bytes: no content is lost silently.

use std::fs::File;
use std::io::{self, PipeWriter};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use folioswap_core::{BlockId, CpuId, FolioId, Order, PAGE_SIZE, PIECE, SlotId, State};
use folioswap_sys::descriptor::Descriptor;
use folioswap_sys::{memory, signals};

use crate::arena::Arena;
use crate::arena::advice::{self, Advice};
use crate::arena::by_address::Replaced;
use crate::arena::region::{ArenaVec, Region};
use crate::config::error::Error;
use crate::config::folio_size::FolioSize;
use crate::device::{Device, DeviceSpec, RamDevice};
use crate::fault::flow::Fault;
use crate::manage::remap::Relocation;
use crate::process::turns::{Waits, asleep};
use crate::process::wakeup::comes_true;
use crate::swap::health::{DeviceErrors, DeviceState};
use crate::swap::info::DeviceInfo;

const MIB: usize = 1 << 20;

/// What goes wrong. Can be changed while the device is in use.
#[derive(Default)]
pub(crate) struct Faults {
    /// Number of writes that still fail.
    failing_writes: AtomicUsize,
    /// Number of reads that still fail.
    failing_reads: AtomicUsize,
    pub reads_fail: AtomicBool,
    reads_lie: AtomicBool,
    /// The offset of a page that cannot be read.
    pub bad_page: AtomicUsize,
    /// The device is gone.
    gone: AtomicBool,
    /// Reads by a ring hang: they read from this pipe.
    hung: Mutex<Option<(Descriptor, PipeWriter)>>,
}

impl Faults {
    /// Lets reads by a ring hang from now on.
    pub fn hang(&self) {
        let (reader, writer) = io::pipe().unwrap();
        *self.hung.lock().unwrap() = Some((Descriptor::hidden(reader.into()).unwrap(), writer));
    }

    /// Ends that: the pipe ends, so reads come back short.
    pub fn go_on(&self) {
        *self.hung.lock().unwrap() = None;
    }

    fn error(&self, failing: &AtomicUsize) -> io::Result<()> {
        if self.gone.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        match failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Err(_) => Ok(()),
        }
    }
}

struct BadDevice {
    bytes: Mutex<Vec<u8>>,
    faults: Arc<Faults>,
}

impl Device for BadDevice {
    fn limit_bytes(&self) -> Option<u64> {
        Some(self.bytes.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.faults.error(&self.faults.failing_reads)?;
        let bad_page = self.faults.bad_page.load(Ordering::SeqCst);
        let meets_bad = (offset as usize..offset as usize + bytes.len()).contains(&bad_page);
        if meets_bad || self.faults.reads_fail.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        bytes.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..bytes.len()]);
        if self.faults.reads_lie.load(Ordering::SeqCst) {
            bytes.iter_mut().step_by(PAGE_SIZE).for_each(|byte| *byte ^= 1);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.faults.error(&self.faults.failing_writes)?;
        self.bytes.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn fd(&self) -> Option<RawFd> {
        self.faults.hung.lock().unwrap().as_ref().map(|(reader, _)| reader.number())
    }

    fn name(&self) -> String {
        "a bad device".into()
    }
}

pub(crate) fn bad_device() -> (Box<dyn Device>, Arc<Faults>) {
    let faults = Arc::new(Faults { bad_page: AtomicUsize::new(usize::MAX), ..Faults::default() });
    let device = BadDevice { bytes: Mutex::new(vec![0; 128 * MIB]), faults: Arc::clone(&faults) };
    (Box::new(device), faults)
}

fn arena() -> (Arena, Arc<Faults>) {
    let (device, faults) = bad_device();
    (Arena::builder().memory(16 << 20).build_on(vec![device]).unwrap(), faults)
}

fn only_device(arena: &Arena) -> DeviceInfo {
    let devices = arena.devices();
    assert_eq!(devices.len(), 1, "{devices:?}");
    devices[0].clone()
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
    let first = engine.table().page_at(words.as_ptr() as usize).block().index();
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
    faults.failing_writes.store(2, Ordering::SeqCst);
    fill(&mut words);
    assert!(is_right(&words));
    assert_eq!(faults.failing_writes.load(Ordering::SeqCst), 0);
    assert_eq!(arena.stats().io_errors, 2);
    assert_eq!(only_device(&arena).state, DeviceState::InUse);
    assert_eq!(only_device(&arena).errors, DeviceErrors { write_errors: 2, ..DeviceErrors::default() });
}

#[test]
fn a_failed_write_of_many_folios_is_tried_for_each() {
    let (arena, faults) = arena();
    let mut region = arena.map_with(2 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    (0..region.len()).step_by(PAGE_SIZE).for_each(|at| region[at] = at_page(at));
    faults.failing_writes.store(usize::MAX, Ordering::SeqCst);
    // Eviction does not wait for a block that is locked at that moment.
    comes_true("it is tried", || {
        arena.evict_all();
        arena.stats().io_errors >= 3
    });
    comes_true("what it does not take is in RAM", || !arena.engine().writeback().has_unsettled());
    assert!((0..region.len()).step_by(PAGE_SIZE).all(|at| region[at] == at_page(at)));
    let device = arena.devices();
    // The reclaim thread may have had a write of its own in flight.
    let errors = device.first().map_or(3, |device| device.errors.write_errors);
    assert!((3..=4).contains(&errors), "and nothing more is tried: {device:?}");
}

/// The error of a fault of a thread that touches a folio on a bad device, if there is one.
fn touch(arena: &Arena, folio: FolioId) -> Result<(), String> {
    let engine = arena.engine();
    let resolved = asleep(Fault::new(engine, folio, 1, Waits::Asleep).run(engine.gate().enter(1)));
    resolved.map(drop).map_err(|error| error.to_string())
}

/// Evicts everything that is not in use.
pub(crate) fn send_out(arena: &Arena) {
    // Folios that the reclaim thread has just written are not clean yet.
    comes_true("all of it is out of RAM", || {
        arena.evict_all();
        while arena.engine().ram().evict_standby(arena.engine().table(), Order::PAGE) {}
        arena.engine().ram().zones().counts().in_use == 0
    });
}

fn devices_are(arena: &Arena, expected: &[(&str, DeviceState)]) -> bool {
    let devices = arena.devices();
    devices.iter().map(|device| (device.name.as_str(), device.state)).eq(expected.iter().copied())
}

const RAM: &str = "ram:64M";

#[test]
fn what_cannot_be_read_is_reported_and_comes_back_with_the_device() {
    let faults_of: [fn(&Faults) -> &AtomicBool; 2] = [|faults| &faults.reads_fail, |faults| &faults.reads_lie];
    for fault in faults_of {
        let (arena, faults) = arena();
        let mut words = ArenaVec::<u64>::zeroed(&arena, 48 * MIB / 8).unwrap();
        fill(&mut words);
        let folio = swapped(&arena, &words);
        fault(&faults).store(true, Ordering::SeqCst);
        let error = touch(&arena, folio).unwrap_err();
        let addr = format!("{:#x}", arena.engine().table().addr(folio));
        assert!(error.contains("a bad device") && error.contains(&addr), "{error}");
        let device = only_device(&arena);
        assert_eq!(device.state, DeviceState::Failing);
        assert!(device.errors.read_errors.max(device.errors.wrong_bytes) >= 2, "{device:?}");
        assert!(arena.stats().io_errors >= 2);
        arena.add_device(&DeviceSpec::Ram { size: 64 << 20 }).unwrap();
        let error = arena.remove_device("a bad device").unwrap_err();
        assert!(matches!(error, Error::SwapInUse { .. }), "{error}");
        assert!(devices_are(&arena, &[("a bad device", DeviceState::Failing), (RAM, DeviceState::InUse)]));
        assert!(touch(&arena, folio).is_err(), "each time");
        fault(&faults).store(false, Ordering::SeqCst);
        assert!(is_right(&words), "what could not be read then can be now");
        comes_true("the device has gone", || devices_are(&arena, &[(RAM, DeviceState::InUse)]));
        assert!(is_right(&words));
    }
}

#[test]
fn a_read_that_fails_once_is_not_seen() {
    let (arena, faults) = arena();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 48 * MIB / 8).unwrap();
    fill(&mut words);
    let folio = swapped(&arena, &words);
    faults.failing_reads.store(1, Ordering::SeqCst);
    touch(&arena, folio).unwrap();
    assert!(is_right(&words));
    assert_eq!(only_device(&arena).state, DeviceState::InUse);
    assert_eq!(only_device(&arena).errors, DeviceErrors { read_errors: 1, ..DeviceErrors::default() });
}

#[test]
fn what_was_rescued_meanwhile_is_not_taken_for_lost() {
    let (bad, faults) = bad_device();
    let ram: Box<dyn Device> = Box::new(RamDevice::new(64 << 20, None).unwrap());
    let arena = Arena::builder().memory(16 << 20).build_on(vec![bad, ram]).unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 24 * MIB / 8).unwrap();
    fill(&mut words);
    send_out(&arena);
    let page = arena.engine().table().page_at(words.as_ptr() as usize);
    faults.failing_reads.store(2, Ordering::SeqCst);
    assert!(touch(&arena, page).is_err());
    comes_true("the device has gone", || devices_are(&arena, &[(RAM, DeviceState::InUse)]));
    // A monitor that was late in telling the thread.
    let told = arena.engine().lock(page.block()).poison(page.page_in_block());
    assert!(told.is_ok() && is_right(&words));
}

#[test]
fn a_device_that_takes_nothing_is_emptied_in_the_background() {
    let (bad, faults) = bad_device();
    let ram: Box<dyn Device> = Box::new(RamDevice::new(64 << 20, None).unwrap());
    let arena = Arena::builder().memory(16 << 20).build_on(vec![bad, ram]).unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 48 * MIB / 8).unwrap();
    fill(&mut words);
    assert!(arena.devices()[0].used_bytes > 0);
    faults.failing_writes.store(usize::MAX, Ordering::SeqCst);
    words.iter_mut().for_each(|word| *word = !*word);
    comes_true("the device has gone", || devices_are(&arena, &[(RAM, DeviceState::InUse)]));
    words.iter_mut().for_each(|word| *word = !*word);
    assert!(is_right(&words));
    assert_eq!(arena.stats().verify_failures, 0);
}

#[test]
fn what_can_be_read_leaves_and_the_rest_stays() {
    let (bad, faults) = bad_device();
    let arena = Arena::builder().memory(16 << 20).folio(Order::HUGE).build_on(vec![bad]).unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 8 * MIB / 8).unwrap();
    fill(&mut words);
    send_out(&arena);
    let used = arena.devices()[0].used_bytes;
    assert_eq!(used as usize, 8 * MIB);
    faults.bad_page.store(PAGE_SIZE, Ordering::SeqCst); // in the first folio of 2 MiB
    let engine = arena.engine();
    let first = engine.table().page_at(words.as_ptr() as usize);
    // The read of the folio fails; after that only the bad part of it is lost.
    let block = first.block();
    let lost: Vec<_> = (0..512).filter(|&page| touch(&arena, block.page(page)).is_err()).collect();
    let bad = lost.first().map_or(0, |&page| page / 16 * 16);
    assert_eq!(lost, (bad..bad + 16).collect::<Vec<_>>());
    comes_true("all else has left", || only_device(&arena).used_bytes == 16 * PAGE_SIZE as u64);
    assert_eq!(only_device(&arena).state, DeviceState::Failing);
    faults.bad_page.store(usize::MAX, Ordering::SeqCst);
    assert!(is_right(&words));
}

#[test]
fn what_is_lost_may_be_dropped_and_then_the_device_is_gone() {
    let (bad, faults) = bad_device();
    let arena = Arena::builder().memory(16 << 20).build_on(vec![bad]).unwrap();
    let mut region = arena.map_with(2 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    region.fill(7);
    send_out(&arena);
    faults.gone.store(true, Ordering::SeqCst);
    let first = arena.engine().table().page_at(region.as_ptr() as usize);
    assert!(touch(&arena, first).is_err());
    region.advise(0..region.len(), Advice::DontNeed);
    comes_true("the device has gone", || arena.devices().is_empty());
    assert!(touch(&arena, first).is_ok() && region.iter().all(|&byte| byte == 0));
}

#[test]
fn memory_that_cannot_move_because_a_part_is_lost_keeps_the_rest() {
    let (arena, faults) = arena();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 12 * MIB / 8).unwrap();
    fill(&mut words);
    send_out(&arena);
    let (unread, page) = (3, arena.engine().table().page_at(words.as_ptr() as usize));
    let others = (0..6).filter(|&block| block != unread).map(|block| page.block().index() + block);
    others.for_each(|block| touch(&arena, BlockId::from_index(block).page(0)).unwrap());
    faults.reads_fail.store(true, Ordering::SeqCst);
    for range in [0..12 * MIB, PAGE_SIZE..12 * MIB - PAGE_SIZE] {
        let from = words.as_ptr() as usize + range.start..words.as_ptr() as usize + range.end;
        let new_len = from.len();
        let ranges = Relocation { from, new_len, alike: false, replaced: &[], keeps_old: false };
        // SAFETY: nothing is moved.
        let moved = unsafe { arena.raw().relocate(ranges, || unreachable!("a part cannot be read")) };
        assert_eq!(moved.unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    faults.reads_fail.store(false, Ordering::SeqCst);
    assert!(is_right(&words));
}

#[test]
fn what_is_dropped_in_part_while_it_is_clean_is_so_no_longer() {
    for order in [PIECE, Order::HUGE] {
        let (arena, _) = arena();
        let mut region = arena.map_with(2 * MIB, FolioSize::Fixed(order)).unwrap();
        region.fill(7);
        comes_true("all of it is clean", || {
            arena.evict_all();
            arena.engine().ram().zones().counts().lists.clean == 2 * MIB / PAGE_SIZE
        });
        region.advise(0..PAGE_SIZE, Advice::DontNeed);
        let nr_dirty = 2 * MIB / PAGE_SIZE - arena.engine().ram().zones().counts().lists.clean;
        assert_eq!(nr_dirty, order.nr_pages(), "the folio has no copy any more");
        send_out(&arena);
        assert!(region[..PAGE_SIZE].iter().all(|&byte| byte == 0), "{order}");
        assert!(region[PAGE_SIZE..].iter().all(|&byte| byte == 7), "{order}");
    }
}

#[test]
fn what_is_dropped_in_part_while_it_leaves_is_not_read_for_it() {
    let (device, faults) = bad_device();
    let arena = Arena::builder().memory(16 << 20).folio(FolioSize::Fixed(Order::HUGE)).build_on(vec![device]).unwrap();
    let mut region = arena.map(2 * MIB).unwrap();
    std::thread::scope(|scope| {
        let evicting = scope.spawn(|| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(500) {
                arena.evict_all();
                while arena.engine().ram().evict_standby(arena.engine().table(), Order::PAGE) {}
            }
        });
        while !evicting.is_finished() {
            region.fill(7);
            faults.reads_fail.store(true, Ordering::SeqCst);
            region.advise(0..MIB, Advice::DontNeed);
            faults.reads_fail.store(false, Ordering::SeqCst);
            assert!(region[..MIB].iter().all(|&byte| byte == 0) && region[MIB..].iter().all(|&byte| byte == 7));
        }
    });
    assert_eq!(arena.stats().io_errors, 0);
}

/// The kernel unmaps, or refuses to, a part of a piece that cannot be read at that moment.
#[test]
fn what_is_replaced_in_part_while_it_cannot_be_read_is_gone() {
    for is_refused in [false, true] {
        let (device, faults) = bad_device();
        let arena = Arena::builder().memory(16 << 20).build_on(vec![device]).unwrap();
        let mut region = arena.map_with(2 * MIB, FolioSize::Fixed(PIECE)).unwrap();
        (0..region.len()).step_by(PAGE_SIZE).for_each(|at| region[at] = at_page(at));
        send_out(&arena);
        let addr = region.as_ptr() as usize;
        faults.reads_fail.store(true, Ordering::SeqCst);
        let call = |_: &Replaced<'_>| match is_refused {
            true => Err(()),
            // SAFETY: a part of the region, which this test no longer uses.
            false => unsafe { memory::unmap(addr, 8 * PAGE_SIZE) }.map_err(|_| ()),
        };
        // SAFETY: as above.
        let replaced = unsafe { arena.raw().try_replace(&(addr..addr + 8 * PAGE_SIZE), call) };
        assert_eq!(replaced.is_err(), is_refused);
        faults.reads_fail.store(false, Ordering::SeqCst);
        // The rest of the piece cannot be verified any more, and is no zeros either.
        let told = |at| touch(&arena, arena.engine().table().page_at(addr + at)).is_err();
        assert!(told(8 * PAGE_SIZE) && told(0) == is_refused);
        assert!((PIECE.bytes()..region.len()).step_by(PAGE_SIZE).all(|at| region[at] == at_page(at)));
        std::mem::forget((region, arena)); // a part of it is unmapped
    }
}

#[test]
fn a_file_that_is_cut_short_is_found_out_by_reads_in_flight_too() {
    let path = PathBuf::from(format!("/var/tmp/folioswap-cut-{}", std::process::id()));
    let file = DeviceSpec::File { path, size: Some(64 << 20) };
    let arena = Arena::builder().memory(16 << 20).device(file).folio(Order::HUGE).build().unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 4 * MIB / 8).unwrap();
    fill(&mut words);
    send_out(&arena);
    let engine = arena.engine();
    let block = engine.table().page_at(words.as_ptr() as usize).block();
    let State::Swapped(slot) = engine.lock(block).state(0) else { panic!("it was sent out") };
    let fd = engine.swap().extent(slot).expect("a file has a descriptor").fd;
    let cut = File::options().write(true).open(format!("/proc/self/fd/{fd}")).unwrap();
    cut.set_len(0).unwrap();
    advice::follow(engine, block.index()..block.index() + 1, Advice::WillNeed);
    comes_true("readahead has met it", || only_device(&arena).state == DeviceState::Failing);
    let error = touch(&arena, block.page(5)).unwrap_err();
    assert!(
        error.contains("/var/tmp/folioswap-cut")
            && error.contains(&format!("{:#x}", engine.table().addr(block.page(5))))
    );
    drop(words);
    comes_true("nothing is left there", || arena.devices().is_empty());
}

#[test]
fn a_device_that_children_may_read_is_not_waited_for() {
    let path = format!("/var/tmp/folioswap-shared-with-a-child-{}.swap", std::process::id()).into();
    let file = DeviceSpec::File { path, size: Some(64 << 20) };
    let ram = DeviceSpec::Ram { size: 64 << 20 };
    let arena = Arena::builder().memory(16 << 20).device(file).device(ram).build().unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 24 * MIB / 8).unwrap();
    fill(&mut words);
    send_out(&arena);
    let name = arena.devices()[0].name.clone();
    let blocked = signals::block_all();
    let (forking, ()) = arena.prepare_fork(|| ());
    // SAFETY: the child sleeps, and is ended below.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::mem::forget(forking);
        std::thread::sleep(Duration::from_secs(60));
        signals::exit_now(0);
    }
    forking.parent();
    drop(blocked);
    let begun = Instant::now();
    let error = arena.remove_device(&name).unwrap_err();
    assert!(error.to_string().contains("forked children"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    // SAFETY: a child of this test. It needs no status.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    comes_true("it is removed", || arena.remove_device(&name).is_ok());
    assert!(is_right(&words));
}

#[test]
fn what_cannot_be_written_elsewhere_is_tried_in_another_place() {
    let (bad, faults) = bad_device();
    let ram: Box<dyn Device> = Box::new(RamDevice::new(64 << 20, None).unwrap());
    let arena = Arena::builder().memory(16 << 20).build_on(vec![ram, bad]).unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 48 * MIB / 8).unwrap();
    fill(&mut words);
    faults.failing_writes.store(2, Ordering::SeqCst);
    arena.remove_device(RAM).unwrap();
    assert_eq!(arena.stats().io_errors, 2);
    assert!(is_right(&words));
}

/// Small folios on the device, every other one of them dropped, while other folios fill RAM: compaction of slots would
/// not read the device for folios that are in RAM.
fn scattered(arena: &Arena) -> (Region, Region) {
    let mut region = arena.map_with(64 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    (0..region.len()).step_by(PAGE_SIZE).for_each(|at| region[at] = at_page(at));
    arena.evict_all();
    for at in (0..region.len()).step_by(2 * PAGE_SIZE) {
        region.advise(at..at + PAGE_SIZE, Advice::DontNeed);
    }
    let mut others = arena.map_with(16 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    (0..others.len()).step_by(PAGE_SIZE).for_each(|at| others[at] = at_page(at));
    let nr_out = || arena.stats().swapped_out_folios;
    comes_true("background reclaim has ended: it would write, too", || {
        let before = nr_out();
        std::thread::sleep(Duration::from_millis(100));
        nr_out() == before
    });
    (region, others)
}

pub(crate) fn at_page(at: usize) -> u8 {
    (at / PAGE_SIZE % 251) as u8 + 1
}

fn is_kept(region: &Region) -> bool {
    let expected = |at: usize| if at / PAGE_SIZE % 2 == 1 { at_page(at) } else { 0 };
    (0..region.len()).step_by(PAGE_SIZE).all(|at| region[at] == expected(at))
}

/// Takes all clusters that are whole.
fn take_whole_clusters(arena: &Arena) -> Vec<SlotId> {
    std::iter::from_fn(|| arena.engine().swap().allocate(CpuId::new(0), Order::HUGE)).collect()
}

fn free_clusters(arena: &Arena, runs: Vec<SlotId>) {
    runs.into_iter().for_each(|slot| arena.engine().swap().free_slots(slot, Order::HUGE));
}

/// Takes all whole clusters and asks for more until something has happened.
fn compact_until(arena: &Arena, mut happened: impl FnMut() -> bool) {
    let runs = take_whole_clusters(arena);
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", arena.stats());
        arena.engine().swap().want_whole_clusters(Order::HUGE);
        std::thread::yield_now();
    }
    free_clusters(arena, runs);
}

#[test]
fn what_a_device_does_not_give_back_is_not_moved() {
    for lies in [false, true] {
        let (arena, faults) = arena();
        let (region, others) = scattered(&arena);
        let fault = if lies { &faults.reads_lie } else { &faults.reads_fail };
        fault.store(true, Ordering::SeqCst);
        // What needs no read is moved at once. Clusters that this makes whole must not end the compaction.
        let mut made_whole = Vec::new();
        compact_until(&arena, || {
            made_whole.extend(take_whole_clusters(&arena));
            only_device(&arena).state == DeviceState::Failing
        });
        free_clusters(&arena, made_whole);
        drop(arena.engine().swap().devices().changing()); // wait for a move in progress
        fault.store(false, Ordering::SeqCst);
        assert_eq!(arena.stats().verify_failures > 0, lies);
        arena.add_device(&DeviceSpec::Ram { size: 64 << 20 }).unwrap();
        assert!(is_kept(&region), "all of it is where it was");
        drop(others);
        comes_true("it is elsewhere", || devices_are(&arena, &[(RAM, DeviceState::InUse)]));
        assert!(is_kept(&region));
    }
}

#[test]
fn what_a_device_does_not_take_stays_where_it_was() {
    let (arena, faults) = arena();
    let (region, others) = scattered(&arena);
    faults.failing_writes.store(2, Ordering::SeqCst);
    compact_until(&arena, || faults.failing_writes.load(Ordering::SeqCst) == 0);
    assert!(is_kept(&region));
    drop(others); // else they may fill the scattered room, so that there is too little for a compaction
    compact_until(&arena, || arena.stats().slot_compact_success > 0);
    let stats = arena.stats();
    assert!(stats.io_errors == 2 && stats.slots_migrate_failed > 0, "{stats:?}");
    assert!(is_kept(&region));
}
