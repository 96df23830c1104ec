//! bumpalo over an arena. A `Bump` takes its chunks from the global allocator and no other. So the global allocator
//! here is a heap over an arena, for the thread that asks for it. Collections with an allocator take the `Bump`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hash::RandomState;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use bumpalo::Bump;
use folioswap::{Arena, ArenaHeap, Error};

static HEAP: OnceLock<ArenaHeap> = OnceLock::new();

/// Smaller blocks are the system's.
const SMALLEST_BYTES: usize = 4096;

thread_local! {
    static PAGED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `work` with this thread's blocks in the arena. What it allocates must be freed before it returns: outside, a
/// block is taken for the system's.
fn paged<R>(work: impl FnOnce() -> R) -> R {
    struct Ends;
    impl Drop for Ends {
        fn drop(&mut self) {
            PAGED.set(false);
        }
    }
    PAGED.set(true);
    let _ends = Ends; // after a panic, too
    work()
}

struct Paged;

/// The heap for this block, if this thread has asked for it. Meanwhile what the heap itself allocates is the system's.
fn with_heap<T>(layout: Layout, call: impl FnOnce(&ArenaHeap) -> T) -> Option<T> {
    let heap = HEAP.get().filter(|_| layout.size() >= SMALLEST_BYTES && PAGED.get())?;
    PAGED.set(false);
    let answer = call(heap);
    PAGED.set(true);
    Some(answer)
}

// SAFETY: each block is fresh memory of the heap's or the system's, and its address says whose it is.
unsafe impl GlobalAlloc for Paged {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = with_heap(layout, |heap| heap.allocate(layout.size(), layout.align()));
        // SAFETY: the caller's promise about the layout.
        block.map_or_else(|| unsafe { System.alloc(layout) }, |block| block.map_or(null_mut(), NonNull::as_ptr))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let released = with_heap(layout, |heap| {
            let owned = NonNull::new(block).filter(|_| heap.owns(block))?;
            // SAFETY: a block of the heap, which the caller gives up.
            unsafe { heap.release(owned) };
            Some(())
        });
        if released.flatten().is_none() {
            // SAFETY: what is not the heap's is the system's.
            unsafe { System.dealloc(block, layout) };
        }
    }
}

#[global_allocator]
static ALLOCATOR: Paged = Paged;

/// About 60 MiB of words, a map of them, and numbers, in 16 MiB of RAM.
fn fill_and_check(heap: &ArenaHeap) {
    let bump = Bump::new();
    let mut words = hashbrown::HashMap::with_hasher_in(RandomState::new(), &bump);
    for number in 0..100_000u64 {
        let word: &str = bump.alloc_str(&format!("the word of number {number}, which takes some bytes"));
        words.insert(word, number);
    }
    let ordered = bump.alloc_slice_fill_with(6_000_000, |index| index as u64);
    let range = ordered.as_ptr_range();
    assert!(heap.contains(&(range.start as usize..range.end as usize)));
    assert!(ordered.iter().enumerate().all(|(index, &number)| index as u64 == number));
    for (word, number) in &words {
        assert_eq!(*word, format!("the word of number {number}, which takes some bytes"));
    }
    assert!(bump.allocated_bytes() > 48 << 20 && heap.arena().stats().swapped_out_bytes > 16 << 20);
}

/// Prints how much was swapped out.
///
/// # Errors
/// Those of making the arena.
pub fn main() -> Result<(), Error> {
    let arena = Arena::builder().memory(16 << 20).build()?;
    let heap = HEAP.get_or_init(|| ArenaHeap::new(&arena));
    paged(|| fill_and_check(heap));
    println!("{} MiB swapped out", arena.stats().swapped_out_bytes >> 20);
    // A chunk of small blocks may stay.
    assert!(arena.usage().swapped_bytes < 16 << 20, "{:?}", arena.usage());
    Ok(())
}
