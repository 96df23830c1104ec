//! Heaps over an arena: blocks of all sizes against a model, collections of other crates, and forked children.

use std::hash::RandomState;
use std::ptr::NonNull;

use folioswap::{Arena, ArenaHeap, DeviceSpec, Error, LARGE_BYTES};

fn arena() -> Arena {
    Arena::builder().memory(16 << 20).device(DeviceSpec::Ram { size: 256 << 20 }).build().unwrap()
}

/// A block of the model: where it is, its length, its alignment, and the byte that fills it.
type Block = (NonNull<u8>, usize, usize, u8);

fn check(heap: &ArenaHeap, &(block, len, align, fill): &Block) {
    assert!(heap.owns(block.as_ptr()) && (block.as_ptr() as usize).is_multiple_of(align.max(16)));
    assert!(heap.contains(&(block.as_ptr() as usize..block.as_ptr() as usize + len)));
    // SAFETY: a block of this heap, of at least this length, which the test has filled.
    let (usable, bytes) = unsafe { (heap.usable(block), std::slice::from_raw_parts(block.as_ptr(), len)) };
    assert!(usable >= len && bytes.iter().all(|&byte| byte == fill), "{len} bytes of {fill}");
}

fn fill(block: NonNull<u8>, len: usize, byte: u8) {
    // SAFETY: a block of this length of the test's own.
    unsafe { block.as_ptr().write_bytes(byte, len) }
}

#[test]
fn blocks_of_all_sizes_keep_their_content() {
    let (heap, seed) = (ArenaHeap::new(&arena()), fastrand::u64(..));
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut blocks: Vec<Block> = Vec::new();
    for _ in 0..4000 {
        let size = match random.u32(..40) {
            0 => random.usize(LARGE_BYTES - 100..4 * LARGE_BYTES),
            1..6 => random.usize(..200_000),
            _ => random.usize(..3000),
        };
        let (align, byte) = (1 << random.u32(..13), random.u8(1..));
        match random.u32(..4) {
            0 if !blocks.is_empty() => {
                let block = blocks.swap_remove(random.usize(..blocks.len()));
                check(&heap, &block);
                // SAFETY: the block is this heap's, and given up.
                unsafe { heap.release(block.0) };
            }
            1 if !blocks.is_empty() => {
                let at = random.usize(..blocks.len());
                let (block, len, align, byte) = blocks[at];
                check(&heap, &blocks[at]);
                // SAFETY: as above; the old address is forgotten.
                let moved = unsafe { heap.resize(block, size, align) }.unwrap();
                check(&heap, &(moved, len.min(size), align, byte));
                fill(moved, size, byte);
                blocks[at] = (moved, size, align, byte);
            }
            2 => {
                let block = heap.allocate_zeroed(size, align).unwrap();
                check(&heap, &(block, size, align, 0));
                fill(block, size, byte);
                blocks.push((block, size, align, byte));
            }
            _ => {
                let block = heap.allocate(size, align).unwrap();
                fill(block, size, byte);
                blocks.push((block, size, align, byte));
            }
        }
    }
    blocks.iter().for_each(|block| check(&heap, block));
    assert!(heap.allocate(1, 3).is_none() && heap.allocate(usize::MAX, 1).is_none());
    assert!(!heap.owns((&raw const heap).cast()));
}

#[test]
fn an_empty_block_is_known() {
    let heap = ArenaHeap::new(&arena());
    let empty = heap.allocate(0, 16).unwrap();
    check(&heap, &(empty, 0, 16, 0));
    // SAFETY: the block is this heap's, and given up.
    unsafe { heap.release(empty) };
}

#[test]
fn sizes_that_cannot_be_are_refused_and_change_nothing() {
    let heap = ArenaHeap::new(&arena());
    for (size, align) in [(3 * LARGE_BYTES, 16), (5000, 16), (0, 2 << 20), (0, 16), (1, 2 << 20)] {
        let block = heap.allocate(size, align).unwrap();
        fill(block, size, 7);
        for wrong in [usize::MAX, usize::MAX - 4096, isize::MAX as usize + 1, isize::MAX as usize, 1 << 47] {
            assert!(heap.allocate(wrong, 16).is_none() && heap.allocate_zeroed(wrong, 16).is_none());
            // SAFETY: the block is this heap's, and nobody else uses it.
            assert!(unsafe { heap.resize(block, wrong, align) }.is_none(), "{size} to {wrong}");
            check(&heap, &(block, size, align, 7));
        }
        // SAFETY: the block is this heap's, and given up.
        unsafe { heap.release(block) };
    }
}

/// Makes a block, which has to move to grow, and checks that it is its own.
fn move_about(heap: &ArenaHeap, turn: usize) {
    let (first, wall) = (heap.allocate(LARGE_BYTES, 16).unwrap(), heap.allocate(LARGE_BYTES, 16).unwrap());
    // SAFETY: blocks of this heap and thread; the old address is forgotten, and each is given up once.
    unsafe {
        let moved = heap.resize(first, 3 * LARGE_BYTES, 16).unwrap();
        for (block, len) in [(moved, 3 * LARGE_BYTES), (wall, LARGE_BYTES)] {
            assert!(heap.owns(block.as_ptr()), "turn {turn}: a block is not known");
            assert_eq!(heap.usable(block), len, "turn {turn}");
            heap.release(block);
        }
    }
}

#[test]
fn a_block_is_known_where_another_threads_was_before_it_moved() {
    let heap = ArenaHeap::new(&arena());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5000).for_each(|turn| move_about(&heap, turn)));
        }
    });
}

#[test]
fn a_map_larger_than_the_budget() {
    let arena = arena();
    let mut map = hashbrown::HashMap::with_hasher_in(RandomState::new(), ArenaHeap::new(&arena));
    for key in 0..100_000u64 {
        map.insert(key, [key; 64]); // 65 MiB at the end
    }
    assert!((0..100_000).step_by(37).all(|key| map[&key] == [key; 64]));
    assert!(arena.stats().swapped_out_bytes > 16 << 20);
    drop(map);
    // A chunk of small blocks may stay.
    assert!(arena.usage().swapped_bytes < 16 << 20, "{:?}", arena.usage());
}

#[test]
fn a_forked_child_goes_on_with_arenas_and_heaps() {
    let (first, second) = (arena(), arena());
    first.inherit().unwrap();
    second.inherit().unwrap();
    let heap = ArenaHeap::new(&first);
    let mut blocks: Vec<Block> =
        (1..40u8).map(|byte| (heap.allocate(1 << 20, 16).unwrap(), 1 << 20, 16, byte)).collect();
    let mut region = second.map(40 << 20).unwrap();
    blocks.iter().for_each(|&(block, len, _, byte)| fill(block, len, byte));
    region.fill(9);
    // SAFETY: the child only uses what it inherits, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            blocks.iter().for_each(|block| check(&heap, block));
            let more = heap.allocate(5 << 20, 16).unwrap();
            fill(more, 5 << 20, 77);
            check(&heap, &(more, 5 << 20, 16, 77));
            region.iter().all(|&byte| byte == 9)
        }));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!right.is_ok_and(|right| right))) }
    }
    let mut status = 0;
    // SAFETY: waits for the child above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    blocks.iter().for_each(|block| check(&heap, block));
    // SAFETY: each block is given up once.
    blocks.drain(..).for_each(|(block, ..)| unsafe { heap.release(block) });
    assert!(region.iter().all(|&byte| byte == 9));
}

#[test]
fn mappings_of_any_length_are_blocks_of_their_own() {
    let heap = ArenaHeap::new(&arena());
    let error = heap.map(0).unwrap_err();
    assert!(matches!(error, Error::BadLength(0)), "{error}");
    assert!(heap.map(1 << 60).is_err());
    for len in [1, 5000, 3 * LARGE_BYTES] {
        let block = heap.map(len).unwrap();
        check(&heap, &(block, len, 2 << 20, 0));
        fill(block, len, 3);
        // SAFETY: the block is this heap's, and given up by the second call.
        unsafe {
            assert!(!heap.unmap(block.as_ptr().add(1)));
            assert!(heap.unmap(block.as_ptr()));
            assert!(!heap.unmap(block.as_ptr()), "it is gone");
        }
        assert!(!heap.owns(block.as_ptr()));
    }
    let small = heap.allocate(5000, 16).unwrap();
    // SAFETY: nothing is done with a small block; it is given up afterwards.
    unsafe {
        assert!(!heap.unmap(small.as_ptr()));
        heap.release(small);
    }
}
