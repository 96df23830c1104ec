//! In direct mode the engine runs in a signal handler, and many threads have a small stack for it: it must use little
//! of that.

use folioswap::{Advice, Arena, DeviceSpec, FaultMode, FolioSize, Order};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const UNUSED: u8 = 0xa5;

/// Size of the stack that is watched, and the most that may be used. Threads of most languages have 8 KiB, of which the
/// kernel's frame takes up to half.
const STACK_BYTES: usize = 64 << 10;
const MOST_USED: usize = 6 << 10;

/// First touches, evictions, compaction, and swap-ins of folios of two sizes.
fn use_memory(arena: &Arena, folio: FolioSize) {
    let mut small = arena.map_with(24 * MIB, folio).unwrap();
    let mut large = arena.map_with(16 * MIB, FolioSize::Fixed(Order::HUGE)).unwrap();
    let nr_pages = small.len() / PAGE;
    for round in 1..=2u8 {
        (0..nr_pages).for_each(|page| small[page * 77 % nr_pages * PAGE] = round);
        (0..large.len()).step_by(PAGE).for_each(|at| large[at] = round);
        (0..small.len()).step_by(2 * PAGE).for_each(|at| small.advise(at..at + PAGE, Advice::DontNeed));
        assert!((0..large.len()).step_by(PAGE).all(|at| large[at] == round));
        assert!((PAGE..small.len()).step_by(2 * PAGE).all(|at| small[at] == round));
    }
}

#[test]
fn faults_take_little_of_a_threads_signal_stack() {
    for folio in [FolioSize::Auto, FolioSize::Fixed(Order::PAGE)] {
        let device = DeviceSpec::Ram { size: 128 << 20 };
        let builder = Arena::builder().memory(16 << 20).device(device);
        let arena = builder.faults(FaultMode::Direct).build().unwrap();
        let nr_used = std::thread::scope(|scope| scope.spawn(|| nr_used(|| use_memory(&arena, folio))).join().unwrap());
        assert!(arena.stats().swapped_in_folios > 0);
        // A signal frame takes at least 512 bytes.
        assert!((512..=MOST_USED).contains(&nr_used), "{nr_used} bytes of it were used");
    }
}

/// Bytes of the calling thread's signal stack that `work` uses.
fn nr_used(work: impl FnOnce()) -> usize {
    let mut stack = vec![UNUSED; STACK_BYTES];
    let watched = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: STACK_BYTES };
    let mut before = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: both descriptions are local. The stack lives until the previous one is set again.
    assert_eq!(unsafe { libc::sigaltstack(&raw const watched, &raw mut before) }, 0);
    work();
    // SAFETY: the description of the previous stack, as the kernel returned it.
    assert_eq!(unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) }, 0);
    STACK_BYTES - stack.iter().position(|&byte| byte != UNUSED).unwrap_or(STACK_BYTES)
}
