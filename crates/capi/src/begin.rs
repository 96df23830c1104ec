//! What the library does before the program begins: handlers of forks that come before the program's, and memory that
//! is not the program's.
//!
//! A program may keep its allocator's data in a pool, or hold the allocator's lock while it touches one, and its own
//! handlers of `pthread_atfork` may do either. So nothing here takes memory from that allocator, and these handlers are
//! registered before all others: they run last before a fork, and first behind it.

use dlmalloc::GlobalDlmalloc;

#[global_allocator]
static OWN: GlobalDlmalloc = GlobalDlmalloc;

/// Run before the constructors of the program, and with the shared library before those of all other libraries.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    // SAFETY: registers handlers. No other thread runs, or allocates here: nothing of this library was called yet.
    unsafe { dlmalloc::enable_alloc_after_fork() };
    let _ = folioswap::register_fork_handlers(); // else `folioswap_open` says it
}

/// To be called by what every program calls: the linker keeps what is named.
pub(crate) fn keep() {
    std::hint::black_box(&BEGIN);
}
