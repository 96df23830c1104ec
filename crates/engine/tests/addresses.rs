//! Memory that is managed where it lies, and what is too much for an arena.

use std::ops::Range;
use std::os::fd::AsRawFd;

use folioswap::{Arena, ArenaBuilder, DeviceSpec, Order, RawSpace};

const TIB: u64 = 1 << 40;

fn builder() -> ArenaBuilder {
    Arena::builder().memory(16 << 20).device(DeviceSpec::Ram { size: 64 << 20 })
}

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;
const PLAIN: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Private anonymous memory of the kernel's.
fn map(at: usize, len: usize, access: i32) -> usize {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: a new mapping, or one over addresses that the test has reserved.
    let addr = unsafe { libc::mmap(at as *mut _, len, access, flags, -1, 0) };
    assert_ne!(addr, libc::MAP_FAILED);
    addr as usize
}

fn unmap(range: Range<usize>) {
    // SAFETY: memory of the test's own, which it uses no more.
    assert_eq!(unsafe { libc::munmap(range.start as *mut _, range.len()) }, 0);
}

/// Addresses for a test, from the start of a block on.
fn reserve(len: usize) -> usize {
    map(0, len + BLOCK, libc::PROT_NONE).next_multiple_of(BLOCK)
}

fn manage(space: &RawSpace, range: Range<usize>) {
    // SAFETY: memory that was just mapped, of which nothing was touched.
    unsafe { space.manage(range) }.unwrap();
}

fn fill(range: &Range<usize>, seed: usize) {
    for at in range.clone().step_by(8) {
        // SAFETY: mapped memory of the test's own, readable and writable.
        unsafe { (at as *mut usize).write(at ^ seed) };
    }
}

fn check(range: &Range<usize>, seed: usize) {
    for at in range.clone().step_by(8) {
        // SAFETY: as in `fill`.
        assert_eq!(unsafe { (at as *const usize).read() }, at ^ seed, "{at:#x} of {range:?}");
    }
}

#[test]
fn parts_of_a_block_are_managed_beside_what_is_not() {
    let arena = builder().build().unwrap();
    let space = arena.raw();
    let base = reserve(2 * BLOCK);
    let at = |pages: Range<usize>| base + pages.start * PAGE..base + pages.end * PAGE;
    // Managed, not managed, managed; across the end of the block; a single page.
    let parts =
        [(at(0..16), true), (at(16..40), false), (at(40..300), true), (at(500..700), true), (at(900..901), true)];
    for (part, is_managed) in &parts {
        map(part.start, part.len(), PLAIN);
        if *is_managed {
            manage(&space, part.clone());
        }
    }
    let managed: Vec<_> = parts.iter().filter(|part| part.1).map(|part| part.0.clone()).collect();
    assert_eq!(space.managed_parts(base..base + 2 * BLOCK), managed);
    for turn in 0..3 {
        parts.iter().for_each(|(part, _)| fill(part, turn));
        arena.evict_all();
        parts.iter().for_each(|(part, _)| check(part, turn));
        arena.evict_all();
    }
    assert!(arena.stats().swapped_out_bytes >= 3 * 477 * PAGE as u64);
    // A part goes, and the pages beside it stay as they are.
    // SAFETY: the test gives these pages up.
    unsafe { space.forget(at(100..200), || unmap(at(100..200))) };
    for part in [at(0..16), at(16..40), at(40..100), at(200..300), at(500..700), at(900..901)] {
        check(&part, 2);
        fill(&part, 7);
    }
    arena.evict_all();
    for part in [at(0..16), at(16..40), at(40..100), at(200..300), at(500..700), at(900..901)] {
        check(&part, 7);
    }
    // It is mapped again, and reads as zero.
    map(at(100..200).start, 100 * PAGE, PLAIN);
    manage(&space, at(100..200));
    // SAFETY: mapped memory of the test's own.
    assert!(at(100..200).step_by(8).all(|word| unsafe { (word as *const usize).read() } == 0));
    // SAFETY: the test gives all of it up.
    unsafe { space.forget(base..base + 2 * BLOCK, || unmap(base..base + 2 * BLOCK)) };
    assert_eq!(space.managed_parts(base..base + 2 * BLOCK), []);
}

/// How many pages of a range are mapped.
fn nr_mapped(range: &Range<usize>) -> usize {
    let mut states = vec![0u8; range.len() / PAGE];
    // SAFETY: the kernel fills in a byte for each page.
    assert_eq!(unsafe { libc::mincore(range.start as *mut _, range.len(), states.as_mut_ptr()) }, 0);
    states.iter().filter(|&&state| state & 1 == 1).count()
}

#[test]
fn parts_of_a_block_are_paged_out() {
    let arena = builder().build().unwrap();
    let space = arena.raw();
    let base = reserve(2 * BLOCK);
    let all = base..base + 2 * BLOCK;
    map(base, all.len(), PLAIN);
    manage(&space, all.clone());
    fill(&all, 3);
    // Pieces, pages at odd places, and the border of two blocks.
    for (part, nr_left) in [(16..48, 992), (99..102, 989), (500..520, 969), (500..520, 969)] {
        space.page_out(base + part.start * PAGE, part.len() * PAGE);
        assert_eq!(nr_mapped(&(base + part.start * PAGE..base + part.end * PAGE)), 0, "{part:?}");
        assert_eq!(nr_mapped(&all), nr_left, "{part:?}");
    }
    space.page_out(base + 5 * PAGE, 0);
    check(&all, 3);
    // SAFETY: the test gives all of it up.
    unsafe { space.forget(all.clone(), || unmap(all)) };
}

#[test]
fn a_block_loses_a_part_while_it_is_one_huge_page() {
    let arena = builder().folio(Order::HUGE).build().unwrap();
    let space = arena.raw();
    let base = reserve(4 * BLOCK);
    let all = base..base + 4 * BLOCK;
    map(base, all.len(), PLAIN);
    manage(&space, all.clone());
    for gone in [
        base + PAGE..base + 3 * PAGE,
        base + BLOCK..base + BLOCK + 16 * PAGE,
        base + 3 * BLOCK - PAGE..base + 3 * BLOCK + PAGE,
    ] {
        fill(&all, 5);
        // SAFETY: the test gives these pages up.
        unsafe { space.forget(gone.clone(), || unmap(gone.clone())) };
        for rest in [base..gone.start, gone.end..all.end] {
            check(&rest, 5);
        }
        arena.evict_all();
        for rest in [base..gone.start, gone.end..all.end] {
            check(&rest, 5);
        }
        map(gone.start, gone.len(), PLAIN);
        manage(&space, gone);
    }
    // SAFETY: as above.
    unsafe { space.forget(all.clone(), || unmap(all.clone())) };
}

/// Whether a page is in RAM, by mincore.
fn is_present(at: usize) -> bool {
    let mut present = 0u8;
    // SAFETY: the kernel writes one byte.
    assert_eq!(unsafe { libc::mincore(at as *mut _, PAGE, &raw mut present) }, 0);
    present & 1 == 1
}

#[test]
fn what_is_held_stays_though_its_neighbours_go() {
    for order in [Order::HUGE, Order::new(4).unwrap()] {
        let arena = builder().folio(order).build().unwrap();
        let space = arena.raw();
        let base = reserve(BLOCK);
        map(base, BLOCK, PLAIN);
        manage(&space, base..base + BLOCK);
        fill(&(base..base + BLOCK), 3);
        // SAFETY: the range is mapped, and held until `release_hold`.
        assert!(unsafe { space.hold(base, PAGE) });
        // SAFETY: the test gives these pages up.
        unsafe {
            space.discard(base + PAGE, PAGE);
            assert!(is_present(base), "{order:?}: a part is dropped");
            let gone = base + 8 * PAGE..base + 9 * PAGE;
            space.forget(gone.clone(), || unmap(gone));
        }
        assert!(is_present(base), "{order:?}: a part is unmapped");
        arena.evict_all();
        assert!(is_present(base), "{order:?}");
        // SAFETY: mapped memory of the test's own.
        assert!((base + PAGE..base + 2 * PAGE).step_by(8).all(|at| unsafe { (at as *const usize).read() } == 0));
        for rest in [base..base + PAGE, base + 2 * PAGE..base + 8 * PAGE, base + 9 * PAGE..base + BLOCK] {
            check(&rest, 3);
        }
        // SAFETY: held above; the test gives all of it up.
        unsafe {
            space.release_hold(base, PAGE);
            space.forget(base..base + BLOCK, || unmap(base..base + BLOCK));
        }
    }
}

#[test]
fn pages_join_a_block_whose_folios_are_too_large_for_them() {
    let arena = builder().build().unwrap();
    let space = arena.raw();
    let base = reserve(BLOCK);
    let part = |pages: Range<usize>| base + pages.start * PAGE..base + pages.end * PAGE;
    for pages in [496..512, 0..407, 420..421] {
        map(part(pages.clone()).start, pages.len() * PAGE, PLAIN);
        manage(&space, part(pages.clone()));
        fill(&part(pages), 3);
    }
    arena.evict_all();
    [496..512, 0..407, 420..421].into_iter().for_each(|pages| check(&part(pages), 3));
    // SAFETY: the test gives all of it up.
    unsafe { space.forget(base..base + BLOCK, || unmap(base..base + BLOCK)) };
}

#[test]
fn all_holds_together_have_a_limit() {
    let arena = builder().build().unwrap();
    let space = arena.raw();
    let region = arena.map(4 * BLOCK).unwrap();
    let base = region.as_ptr() as usize;
    let most = 2 * BLOCK as u64;
    // SAFETY: the region is mapped.
    unsafe {
        assert_eq!(space.hold_within(base, 3 * BLOCK, most), None);
        assert_eq!(space.hold_within(base + PAGE, BLOCK, most), Some(true));
        assert_eq!(space.hold_within(base + 2 * BLOCK, 1, most), None);
        assert_eq!(space.hold_within(base, 2 * BLOCK, most), Some(true), "blocks that are held already");
        space.release_hold(base + PAGE, BLOCK);
        assert_eq!(space.hold_within(base + 2 * BLOCK, 1, most), None, "the second hold stands");
        space.release_hold(base, 2 * BLOCK);
        assert_eq!(space.hold_within(base + 2 * BLOCK, 1, most), Some(true));
        space.release_hold(base + 2 * BLOCK, 1);
        let ordinary = [1u8; PAGE];
        assert_eq!(space.hold_within(ordinary.as_ptr() as usize, PAGE, 0), Some(true), "nothing to hold");
    }
}

#[test]
fn pages_come_back_to_a_block_that_is_in_use() {
    let arena = builder().folio(Order::HUGE).build().unwrap();
    let space = arena.raw();
    let base = reserve(BLOCK);
    map(base, BLOCK, PLAIN);
    manage(&space, base..base + BLOCK);
    fill(&(base..base + BLOCK), 3);
    // SAFETY: the range is mapped, and held until `release_hold`.
    assert!(unsafe { space.hold(base, PAGE) });
    let gone = base + 8 * PAGE..base + 10 * PAGE;
    // SAFETY: the test gives these pages up.
    unsafe { space.forget(gone.clone(), || unmap(gone.clone())) };
    map(gone.start, gone.len(), PLAIN);
    manage(&space, gone.clone());
    // SAFETY: mapped memory of the test's own.
    assert!(gone.clone().step_by(8).all(|at| unsafe { (at as *const usize).read() } == 0));
    fill(&gone, 3);
    // SAFETY: held above.
    unsafe { space.release_hold(base, PAGE) };
    for _ in 0..2 {
        check(&(base..base + BLOCK), 3);
        arena.evict_all();
    }
    // SAFETY: the test gives all of it up.
    unsafe { space.forget(base..base + BLOCK, || unmap(base..base + BLOCK)) };
}

/// The kernel does not let locked pages go, so they are zeroed where they are, whatever their protection.
#[test]
fn locked_pages_that_are_read_only_are_dropped() {
    let arena = builder().build().unwrap();
    let space = arena.raw();
    let base = reserve(BLOCK);
    map(base, BLOCK, PLAIN);
    manage(&space, base..base + BLOCK);
    fill(&(base..base + BLOCK), 3);
    assert!(space.note_locked(base..base + 4 * PAGE));
    // SAFETY: memory of the test's own; it gives the content of one page up.
    unsafe {
        assert_eq!(libc::mlock(base as *const _, 4 * PAGE), 0);
        assert_eq!(libc::mprotect(base as *mut _, BLOCK, libc::PROT_READ), 0);
        space.discard(base + PAGE, PAGE);
        assert!((base + PAGE..base + 2 * PAGE).step_by(8).all(|at| (at as *const usize).read() == 0));
        assert_eq!(libc::munlock(base as *const _, 4 * PAGE), 0);
    }
    space.note_unlocked(base..base + 4 * PAGE);
    for _ in 0..2 {
        arena.evict_all();
        check(&(base..base + PAGE), 3);
        check(&(base + 2 * PAGE..base + BLOCK), 3);
    }
    // SAFETY: the test gives all of it up.
    unsafe { space.forget(base..base + BLOCK, || unmap(base..base + BLOCK)) };
}

#[test]
fn a_block_loses_a_part_while_no_device_has_room() {
    let device = DeviceSpec::Ram { size: 2 * BLOCK as u64 };
    let arena = Arena::builder().memory(16 << 20).folio(Order::HUGE).device(device).build().unwrap();
    let space = arena.raw();
    let base = reserve(7 * BLOCK);
    let (all, other) = (base..base + 4 * BLOCK, base + 4 * BLOCK..base + 7 * BLOCK);
    map(base, 7 * BLOCK, PLAIN);
    manage(&space, all.start..other.end);
    fill(&other, 4);
    arena.evict_all(); // the device is full
    fill(&all, 5);
    for at in [base + PAGE, base + BLOCK + 16 * PAGE, base + 3 * BLOCK - PAGE] {
        let gone = at..at + 2 * PAGE;
        // SAFETY: the test gives these pages up.
        unsafe { space.forget(gone.clone(), || unmap(gone.clone())) };
        for _ in 0..2 {
            check(&(base..gone.start), 5);
            check(&(gone.end..all.end), 5);
            arena.evict_all();
        }
        map(gone.start, gone.len(), PLAIN);
        manage(&space, gone.clone());
        fill(&gone, 5);
    }
    check(&all, 5);
    check(&other, 4);
    // SAFETY: the test gives all of it up.
    unsafe { space.forget(all.start..other.end, || unmap(all.start..other.end)) };
}

#[test]
fn what_is_no_private_anonymous_memory_is_refused() {
    let arena = builder().build().unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, PLAIN, libc::MAP_PRIVATE, file.as_raw_fd(), 0) } as usize;
    // SAFETY: it is of another kind, which is what this is about.
    assert!(unsafe { arena.raw().manage(at..at + PAGE) }.is_err());
    assert_eq!(arena.raw().managed_parts(at..at + PAGE), []);
}

#[test]
fn what_is_too_much_is_refused_by_name() {
    let file = |size| DeviceSpec::File { path: std::env::temp_dir().join("folioswap-too-large"), size: Some(size) };
    for (builder, reason) in [
        (builder().memory(16 * TIB), "at most 12T"),
        (builder().memory(u64::MAX), "at most 12T"),
        (builder().device(file(16 * TIB + 4096)), "at most 16T"),
        (builder().device(DeviceSpec::Ram { size: 17 * TIB }), "at most 16T"),
        (builder().device(DeviceSpec::Ram { size: u64::MAX }), "at most 16T"),
        (builder().device("zram:257G".parse::<DeviceSpec>().unwrap()), "at most 256G"),
    ] {
        let Err(error) = builder.build() else { panic!("{reason}: it was built") };
        let text = error.to_string();
        assert!(text.contains(reason) && !text.contains('\n'), "{reason}: {text}");
    }
}

#[test]
fn a_device_that_is_too_large_is_not_added() {
    let arena = builder().build().unwrap();
    let error = arena.add_device(&DeviceSpec::Ram { size: 17 * TIB }).unwrap_err().to_string();
    assert!(error.contains("at most 16T") && arena.devices().len() == 1, "{error}");
}
