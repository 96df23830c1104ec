//! What the library does before the program begins: handlers of forks that come before the program's, and memory that
//! is not the program's.
//!
//! A program may hold the lock of its allocator while it touches a pool, also in a signal handler that has interrupted
//! the allocator. Its own handlers of `pthread_atfork` may touch pools, too. So nothing here takes memory from that
//! allocator, but for the threads and files of `folioswap_open`; and these handlers are registered before all others:
//! they run last before a fork, and first behind it. (Not where the library is opened later, by dlopen.)

use std::alloc::{GlobalAlloc, Layout};

use dlmalloc::GlobalDlmalloc;
use folioswap_sys::signals;

#[global_allocator]
static OWN: Own = Own;

/// No handler of the program, which might touch a pool, interrupts the holder of its lock.
struct Own;

/// Keeps signals out, which threads of the engine block anyway.
fn blocked() -> Option<signals::Blocked> {
    (!::folioswap::internal_thread()).then(signals::block_all)
}

// SAFETY: another allocator's blocks and promises.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _blocked = blocked();
        // SAFETY: the caller's promise.
        unsafe { GlobalDlmalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let _blocked = blocked();
        // SAFETY: the caller's promise.
        unsafe { GlobalDlmalloc.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let _blocked = blocked();
        // SAFETY: the caller's promise.
        unsafe { GlobalDlmalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let _blocked = blocked();
        // SAFETY: the caller's promise.
        unsafe { GlobalDlmalloc.realloc(block, layout, new_size) }
    }
}

/// Run before the constructors of the program, and with the shared library before those of other libraries.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    // SAFETY: registers handlers. No other thread allocates here: nothing of this library was called yet.
    unsafe { dlmalloc::enable_alloc_after_fork() };
    let _ = ::folioswap::register_fork_handlers(); // else `folioswap_open` says it
}

/// To be called by what every program calls: the linker keeps what is named.
pub(crate) fn keep() {
    std::hint::black_box(&BEGIN);
}
