//! A locked budget on the real kernel: all of it is in RAM and locked from beginning to end, whatever happens.
//!
//! The kernel counts locked addresses per process, so these tests run one at a time.

mod words;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use folioswap::{Advice, Arena, ArenaVec, DeviceSpec, Error, FaultMode, FolioSize, Mapping, Order, Region, check_lock};
use words::{check, fill};

const MIB: usize = 1 << 20;
const BLOCK: usize = 2 * MIB;
const PIECE: usize = 64 << 10;
const PAGE: usize = 4096;
const BUDGET: u64 = 32 << 20;

fn my_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An arena with a locked budget. `None`, with the reason printed, where the system does not permit it.
fn locked(faults: FaultMode, folio: FolioSize) -> Option<Arena> {
    let builder = Arena::builder().memory(BUDGET).locked(true);
    let device = DeviceSpec::Ram { size: 256 << 20 };
    match builder.device(device).faults(faults).folio(folio).build() {
        Ok(arena) => Some(arena),
        Err(error @ (Error::LockLimit { .. } | Error::LockNeedsMove(_) | Error::NoUserfaultfd { .. })) => {
            println!("SKIP locked budget, {faults} faults: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Bytes of addresses that this process has locked.
fn locked_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Checks what must not change while the arena runs.
struct Watch {
    locked_bytes: u64,
    budget: u64,
}

impl Watch {
    fn new(arena: &Arena) -> Watch {
        let watch = Watch { locked_bytes: locked_bytes(), budget: arena.memory() };
        watch.check(arena);
        watch
    }

    /// Checks the budget while nothing moves: each of its pages is in a region or at home.
    fn check(&self, arena: &Arena) {
        assert!(locked_bytes() >= self.locked_bytes, "{} locked, then {}", self.locked_bytes, locked_bytes());
        assert!(self.locked_bytes >= self.budget, "{} locked", self.locked_bytes);
        let residency = (0..1000).map(|_| arena.measure().unwrap()).find(|found| found.resident_bytes >= self.budget);
        assert!(residency.is_some(), "{:?}: {} were locked", arena.measure(), self.budget);
    }
}

#[test]
fn four_times_a_locked_budget_is_swept_and_the_budget_stays_locked() {
    let _turn = my_turn();
    for faults in [FaultMode::Direct, FaultMode::Monitor] {
        let before = locked_bytes();
        let Some(arena) = locked(faults, FolioSize::Auto) else { continue };
        assert!(arena.is_locked());
        let watch = Watch::new(&arena);
        let mut words = ArenaVec::<u64>::zeroed(&arena, 4 * BUDGET as usize / 8).unwrap();
        assert!(words.iter().all(|&word| word == 0));
        for round in 1..4 {
            fill(&mut words, round);
            watch.check(&arena);
            check(&words, round);
            watch.check(&arena);
        }
        let (stats, residency) = (arena.stats(), arena.measure().unwrap());
        assert!(stats.swapped_out_folios > 24 && stats.swapped_in_folios > 24, "{stats:?}");
        assert_eq!((stats.verify_failures, stats.io_errors), (0, 0));
        assert!(residency.huge_bytes * 10 >= residency.resident_bytes * 9, "{residency:?}");
        drop(words);
        watch.check(&arena);
        drop(arena);
        assert_eq!(locked_bytes(), before, "nothing is left behind");
    }
}

fn mark(at: usize, round: usize) -> [u8; 8] {
    ((at + round + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes()
}

/// A region of small folios with a word in each page. Every other `PIECE` is dropped again.
fn scattered(arena: &Arena, len: usize, folio: Order, round: usize) -> Region {
    let mut region = arena.map_with(len, FolioSize::Fixed(folio)).unwrap();
    (0..len).step_by(PAGE).for_each(|at| region[at..at + 8].copy_from_slice(&mark(at, round)));
    (0..len).step_by(2 * PIECE).for_each(|at| region.advise(at..at + PIECE, Advice::DontNeed));
    region
}

#[test]
fn pageblocks_change_between_small_and_huge_pages_where_they_stand() {
    let _turn = my_turn();
    let Some(arena) = locked(FaultMode::Direct, FolioSize::Auto) else { return };
    let watch = Watch::new(&arena);
    for round in 0..4 {
        let order = [Order::PAGE, Order::new(4).unwrap()][round % 2];
        let small = scattered(&arena, 24 * MIB, order, round);
        watch.check(&arena);
        assert!(arena.compact());
        watch.check(&arena);
        // More than was huge before.
        let mut large = arena.map_with(18 * MIB, FolioSize::Fixed(Order::HUGE)).unwrap();
        (0..large.len()).step_by(BLOCK).for_each(|at| large[at..at + 8].copy_from_slice(&mark(at, round)));
        watch.check(&arena);
        for at in (0..small.len()).step_by(PAGE) {
            let expected = if at / PIECE % 2 == 1 { mark(at, round) } else { [0; 8] };
            assert_eq!(small[at..at + 8], expected, "byte {at} in round {round}");
        }
        for at in (0..large.len()).step_by(BLOCK) {
            assert_eq!(large[at..at + 8], mark(at, round), "byte {at} in round {round}");
            assert!(large[at + 8..at + BLOCK].iter().all(|&byte| byte == 0));
        }
    }
    let stats = arena.stats();
    assert!(stats.pgmigrate_success > 0, "{stats:?}");
    assert!(stats.thp_collapse_alloc + stats.thp_collapse_alloc_failed > 0, "{stats:?}");
    println!("{} pageblocks made huge, {} not", stats.thp_collapse_alloc, stats.thp_collapse_alloc_failed);
}

#[test]
fn what_a_region_gives_up_stays_locked_and_reads_as_zero_in_the_next() {
    let _turn = my_turn();
    for folio in [FolioSize::Fixed(Order::PAGE), FolioSize::Fixed(Order::HUGE)] {
        let Some(arena) = locked(FaultMode::Direct, folio) else { return };
        let watch = Watch::new(&arena);
        for _ in 0..3 {
            let mut region = arena.map(3 * BUDGET as usize / 4).unwrap();
            assert!(region.iter().all(|&byte| byte == 0));
            region.fill(7);
            region.advise(PAGE..8 * MIB, Advice::DontNeed);
            assert!(
                region[PAGE..8 * MIB].iter().all(|&byte| byte == 0) && region[..PAGE].iter().all(|&byte| byte == 7)
            );
            watch.check(&arena);
            drop(region);
            watch.check(&arena);
        }
    }
}

#[test]
fn a_locked_budget_grows_and_does_not_shrink() {
    let _turn = my_turn();
    let Some(arena) = locked(FaultMode::Direct, FolioSize::Auto) else { return };
    let mut words = ArenaVec::<u64>::zeroed(&arena, 128 * MIB / 8).unwrap();
    fill(&mut words, 1);
    let before = locked_bytes();
    let error = arena.set_memory(BUDGET / 2).unwrap_err();
    assert!(matches!(error, Error::LockedShrink { now_bytes: BUDGET, .. }), "{error}");
    let error = arena.set_memory(1 << 50).unwrap_err();
    assert!(matches!(error, Error::NoMemoryToLock { .. }), "{error}");
    assert_eq!((arena.memory(), locked_bytes()), (BUDGET, before));
    arena.set_memory(BUDGET).unwrap();
    arena.set_memory(2 * BUDGET).unwrap();
    assert_eq!((arena.memory(), locked_bytes()), (2 * BUDGET, before + BUDGET));
    let watch = Watch::new(&arena);
    check(&words, 1);
    fill(&mut words, 2);
    check(&words, 2);
    watch.check(&arena);
}

/// Pins a page in the kernel, as a device that reads into it would, until the returned descriptor is dropped.
fn pin(page: &[u8]) -> std::io::Result<OwnedFd> {
    const REGISTER_BUFFERS: libc::c_int = 0;
    let mut parameters = [0u64; 15];
    // SAFETY: the kernel reads and writes the 120 bytes of its parameters, all zero.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    if ring < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made, and that nobody else owns.
    let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
    let buffer = libc::iovec { iov_base: page.as_ptr() as *mut _, iov_len: page.len() };
    // SAFETY: the kernel reads one iovec. Nothing is ever read into the buffer.
    let registered =
        unsafe { libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), REGISTER_BUFFERS, &raw const buffer, 1) };
    if registered < 0 { Err(std::io::Error::last_os_error()) } else { Ok(ring) }
}

/// Sets whether this process gets huge pages when it touches memory.
fn give_huge_pages(given: bool) {
    // SAFETY: sets a flag of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, i32::from(!given), 0, 0, 0) }, 0);
}

#[test]
fn what_is_dropped_while_the_kernel_holds_it_is_replaced() {
    let _turn = my_turn();
    for (folio, has_huge_pages) in [(Order::HUGE, true), (Order::PAGE, true), (Order::HUGE, false)] {
        let Some(arena) = locked(FaultMode::Direct, FolioSize::Fixed(folio)) else { return };
        let watch = Watch::new(&arena);
        let mut region = arena.map(2 * BLOCK).unwrap();
        region.fill(7);
        // A touch brings back a page that has left meanwhile; a system call does not.
        let mut tries = (0..1000).map(|_| {
            assert_eq!(std::hint::black_box(&region)[0], 7);
            pin(&region[..PAGE])
        });
        let has_left = |error: &std::io::Error| error.raw_os_error() == Some(libc::EFAULT);
        let pinned = tries.find(|tried| !tried.as_ref().is_err_and(has_left)).expect("it stays in the end");
        let pinned = match pinned {
            Ok(pinned) => pinned,
            Err(error) => {
                println!("SKIP a page that the kernel holds: io_uring: {error}");
                return;
            }
        };
        give_huge_pages(has_huge_pages);
        region.advise(..BLOCK, Advice::DontNeed);
        give_huge_pages(true);
        assert_eq!(arena.stats().thp_fault_fallback > 0, !has_huge_pages);
        watch.check(&arena);
        assert!(region[..BLOCK].iter().all(|&byte| byte == 0) && region[BLOCK..].iter().all(|&byte| byte == 7));
        watch.check(&arena);
        drop(pinned);
    }
}

#[test]
fn a_huge_page_in_a_pipe_is_no_obstacle() {
    let _turn = my_turn();
    let Some(arena) = locked(FaultMode::Direct, FolioSize::Auto) else { return };
    let watch = Watch::new(&arena);
    let (reader, writer) = std::io::pipe().unwrap();
    let mut large = arena.map_with(8 * MIB, FolioSize::Fixed(Order::HUGE)).unwrap();
    large.fill(7);
    for block in large.chunks(BLOCK) {
        let page = libc::iovec { iov_base: block[PAGE..].as_ptr() as *mut _, iov_len: PAGE };
        // A touch brings back a page that has left meanwhile; a system call does not.
        let splice = || {
            assert_eq!(std::hint::black_box(block)[PAGE], 7);
            // SAFETY: the kernel reads one iovec, and refers to a mapped page.
            unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const page, 1, 0) }
        };
        assert!((0..1000).any(|_| splice() == PAGE as isize), "{}", std::io::Error::last_os_error());
    }
    drop(large);
    watch.check(&arena);
    // The whole budget is divided, including those pageblocks.
    let small = scattered(&arena, BUDGET as usize, Order::PAGE, 0);
    watch.check(&arena);
    for at in (0..small.len()).step_by(PAGE) {
        let expected = if at / PIECE % 2 == 1 { mark(at, 0) } else { [0; 8] };
        assert_eq!(small[at..at + 8], expected, "byte {at}");
    }
    drop((reader, writer));
}

#[test]
fn what_cannot_be_locked_is_refused() {
    let _turn = my_turn();
    let before = locked_bytes();
    let build = |builder: folioswap::ArenaBuilder| builder.locked(true).build();
    let error = build(Arena::builder().memory(8 << 40)).err().expect("nobody has so much");
    assert!(matches!(error, Error::NoMemoryToLock { .. }), "{error}");
    let error = build(Arena::builder().memory(BUDGET).mapping(Mapping::Copy)).err().expect("copies move");
    assert!(matches!(error, Error::LockNeedsMove(_)), "{error}");
    assert_eq!(locked_bytes(), before);
    match check_lock(BUDGET) {
        Ok(()) => {}
        Err(error) => assert!(matches!(error, Error::LockLimit { .. }), "{error}"),
    }
    assert_eq!(locked_bytes(), before);
}
