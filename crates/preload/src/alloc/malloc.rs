//! The malloc family. A block's address tells which heap owns it. A block comes from:
//!
//! - the private heap, for the library's and the engine's own code;
//! - the ordinary heap, before the engine runs, if the budget is small;
//! - the ordinary heap, if the C library itself asks for 256 bytes to 64 KiB. These are stdio buffers and the like,
//!   which the kernel accesses in calls that cannot be covered. In monitor mode it waits for them, unless folios are
//!   copied. The return address identifies the caller, which is why three functions here are written in assembly.
//!   Of what the C library returns to the program, `strdup` and `asprintf` and their kin are made here;
//! - the ordinary heap, if the loader asks. These are the vectors by which threads find their thread-local variables,
//!   which the fault path uses too;
//! - the program heap in managed memory, for all others;
//! - another library's allocator, for all others too, if it would be the program's without this library.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::alloc::program_heap;
use crate::faults::{ours, threads};
use crate::ground::export::{aliases, export, real};
use crate::ground::heap::{self, ALIGNMENT, ORDINARY, PRIVATE};
use crate::ground::state::{self, Phase};
use crate::ground::{c_library, guard, kernel_blocks, waiting};
use crate::memory::{known, refused};
use folioswap::{Mapping, PAGE_SIZE};

real!(MALLOC = c"malloc": fn(usize) -> *mut c_void);
real!(CALLOC = c"calloc": fn(usize, usize) -> *mut c_void);
real!(REALLOC = c"realloc": fn(*mut c_void, usize) -> *mut c_void);
real!(FREE = c"free": fn(*mut c_void) -> ());
real!(MEMALIGN = c"memalign": fn(usize, usize) -> *mut c_void);
real!(USABLE = c"malloc_usable_size": fn(*mut c_void) -> usize);
real!(TRIM = c"malloc_trim": fn(usize) -> c_int);

/// Before the program's heap is ready, smaller blocks come from the ordinary heap, and also where that gets no more.
const MOST_SMALL_BYTES: usize = 1 << 20;

/// The smallest block that the C library uses as a buffer, and a size that it does not use.
const LEAST_BUFFER_BYTES: usize = 256;
const SMALL_BYTES: usize = 64 << 10;

/// Whether another library's allocator comes after this one: the program has been linked with it, or it was preloaded.
static HAS_NEXT: AtomicBool = AtomicBool::new(false);

/// Looks for it. A library that has only some of these functions counts calls, or the like: blocks are not its own.
pub fn prepare() {
    let functions = [
        MALLOC.find().map(|next| next as usize),
        FREE.find().map(|next| next as usize),
        MEMALIGN.find().map(|next| next as usize),
        USABLE.find().map(|next| next as usize),
    ];
    let is_anothers = |function: Option<usize>| function.is_some_and(|at| !c_library::code().contains(&at));
    HAS_NEXT.store(functions.into_iter().all(is_anothers), Ordering::Relaxed);
}

fn has_next() -> bool {
    HAS_NEXT.load(Ordering::Relaxed)
}

/// Whether a block belongs into the ordinary heap.
fn is_ordinary(size: usize, caller: usize) -> bool {
    let is_libcs = || (LEAST_BUFFER_BYTES..SMALL_BYTES).contains(&size) && c_library::code().contains(&caller);
    let is_buffer = || is_libcs() && !is_waited_for();
    let is_early = || !program_heap::is_ready() && size < MOST_SMALL_BYTES && known::has_share(size);
    c_library::is_loader(caller) || is_buffer() || !has_next() && is_early()
}

/// Whether the kernel waits for what is not in RAM, and keeps what it pins.
fn is_waited_for() -> bool {
    !ours::takes_faults() && state::arena().is_some_and(|arena| arena.mapping() == Mapping::Move)
}

enum Source {
    Heap(&'static heap::Heap),
    Program,
    /// The next library's allocator: the C library's, or another's.
    Next,
}

fn source(size: usize, caller: usize) -> Source {
    match state::phase() {
        Phase::Passing => Source::Next,
        _ if guard::inside() => Source::Heap(&PRIVATE),
        Phase::Early => Source::Heap(&ORDINARY),
        _ if is_ordinary(size, caller) => Source::Heap(&ORDINARY),
        Phase::Waiting | Phase::Managed if has_next() => Source::Next,
        Phase::Waiting => {
            let needs_engine = !program_heap::is_ready() || program_heap::needs_engine(size);
            if needs_engine {
                waiting::now();
            }
            match state::phase() {
                Phase::Passing => Source::Next,
                Phase::Waiting if needs_engine => Source::Heap(&ORDINARY), // in a child that shares this memory
                _ => Source::Program,
            }
        }
        Phase::Managed => {
            threads::join();
            Source::Program
        }
    }
}

fn out_of_memory() -> *mut u8 {
    state::fail(libc::ENOMEM);
    null_mut()
}

fn checked(block: *mut u8) -> *mut u8 {
    if block.is_null() { out_of_memory() } else { block }
}

fn allocate(size: usize, align: usize, caller: usize) -> *mut u8 {
    match source(size, caller) {
        Source::Heap(heap) => checked(heap.allocate(size, align)),
        Source::Program => {
            let block = state::keeping_errno(|| refused::within_heap(|| program_heap::allocate(size, align)));
            refusable(if is_short(block, size) { ORDINARY.allocate(size, align) } else { block }, size)
        }
        // SAFETY: valid for any size and any power-of-two alignment.
        Source::Next => unsafe {
            if align <= ALIGNMENT { MALLOC.get()(size).cast() } else { MEMALIGN.get()(align, size).cast() }
        },
    }
}

/// A copy of `len` bytes with `end` zeros behind them, as a block for the program.
///
/// # Safety
/// They can be read.
pub unsafe fn copy(at: *const u8, len: usize, end: usize) -> *mut u8 {
    let block = allocate(len + end, 1, 0);
    if !block.is_null() {
        // SAFETY: the caller's promise, and a new block of that size.
        unsafe {
            std::ptr::copy_nonoverlapping(at, block, len);
            block.add(len).write_bytes(0, end);
        }
    }
    block
}

extern "C" fn malloc_for(size: usize, caller: usize) -> *mut c_void {
    allocate(size, 1, caller).cast()
}

extern "C" fn calloc_for(count: usize, size: usize, caller: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return out_of_memory().cast() };
    let runs = matches!(state::phase(), Phase::Waiting | Phase::Managed) && !guard::inside();
    if runs && is_thread_record(bytes, caller) {
        return zeroed(&ORDINARY, bytes).cast();
    }
    let block = match source(bytes, caller) {
        Source::Program => {
            let block = state::keeping_errno(|| refused::within_heap(|| program_heap::allocate_zeroed(bytes)));
            refusable(if is_short(block, bytes) { zeroed(&ORDINARY, bytes) } else { block }, bytes)
        }
        // SAFETY: passes the caller's arguments on unchanged.
        Source::Next => unsafe { CALLOC.get()(count, size).cast() },
        Source::Heap(heap) => zeroed(heap, bytes),
    };
    block.cast()
}

/// Whether the program's heap has refused a small block because addresses or data are limited. It grows in large steps,
/// so the ordinary heap gives what is left.
fn is_short(block: *mut u8, size: usize) -> bool {
    block.is_null() && size <= MOST_SMALL_BYTES && refused::is_beyond(refused::to_heap())
}

/// A block of the program's heap, which is noted if it is refused.
fn refusable(block: *mut u8, size: usize) -> *mut u8 {
    if block.is_null() {
        refused::note_of(size, refused::to_heap().max(size));
    }
    checked(block)
}

/// Whether this may be the record of a thread-local's destructor, which a thread of the engine makes before it can be
/// told from the program's threads; or a thread's values of keys.
fn is_thread_record(size: usize, caller: usize) -> bool {
    (size <= 64 || size == kernel_blocks::VALUES_BYTES) && c_library::code().contains(&caller)
}

fn zeroed(heap: &heap::Heap, size: usize) -> *mut u8 {
    let block = checked(heap.allocate(size, 1));
    if !block.is_null() {
        // SAFETY: a new block of at least that many bytes.
        unsafe { block.write_bytes(0, size) };
    }
    block
}

/// Where a block came from. The heaps that are never managed come first: one may begin or end within 2 MiB in which
/// there is managed memory, too. The next allocator has blocks of its own whoever allocates (`__libc_malloc`,
/// `mallocx`), and says what is no block.
fn owner(block: *const u8) -> Source {
    match [&ORDINARY, &PRIVATE].into_iter().find(|heap| heap.owns(block)) {
        Some(heap) => Source::Heap(heap),
        None if !has_next() && program_heap::owns(block) => Source::Program,
        None => Source::Next,
    }
}

/// Frees a block from any source.
///
/// # Safety
/// As `free`.
unsafe fn release(block: *mut u8) {
    if block.is_null() {
        return;
    }
    // SAFETY: each allocator gets a block that it handed out, and the caller gives it up.
    unsafe {
        match owner(block) {
            Source::Heap(heap) => {
                let _guard = std::ptr::eq(heap, &PRIVATE).then(guard::enter);
                heap.release(block);
            }
            Source::Program => program_heap::release(block),
            Source::Next => FREE.get()(block.cast()),
        }
    }
}

/// Usable bytes of a block from any source.
///
/// # Safety
/// As `malloc_usable_size`. Not null.
unsafe fn usable(block: *mut u8) -> usize {
    // SAFETY: each allocator gets a block that it handed out.
    unsafe {
        match owner(block) {
            Source::Heap(_) => heap::usable(block),
            Source::Program => program_heap::usable(block),
            Source::Next => USABLE.get()(block.cast()),
        }
    }
}

/// Resizes a block within its heap, if a block of the new size belongs there.
///
/// # Safety
/// As `realloc`. Not null.
unsafe fn resize_in_place(block: *mut u8, size: usize, caller: usize) -> Option<*mut u8> {
    let owner = owner(block);
    // SAFETY: each allocator gets a block that it handed out.
    unsafe {
        if let Source::Program = owner {
            let resize = || refused::within_heap(|| program_heap::resize(block, size));
            return if state::may_manage() { state::keeping_errno(resize) } else { None };
        }
        match (source(size, caller), owner) {
            (Source::Heap(wanted), Source::Heap(heap)) if std::ptr::eq(wanted, heap) => Some(heap.resize(block, size)),
            (Source::Next, Source::Next) => Some(REALLOC.get()(block.cast(), size).cast()),
            _ => None,
        }
    }
}

unsafe extern "C" fn realloc_for(block: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    let block = block.cast::<u8>();
    if block.is_null() {
        return malloc_for(size, caller);
    }
    // SAFETY: the caller's block, which is not used any more once a new block holds its bytes.
    unsafe {
        if size == 0 && state::phase() != Phase::Passing && !has_next() {
            release(block); // as glibc does
            return null_mut();
        }
        if let Some(resized) = resize_in_place(block, size, caller).filter(|resized| !resized.is_null()) {
            return resized.cast();
        }
        let moved = allocate(size, 1, caller);
        if !moved.is_null() {
            std::ptr::copy_nonoverlapping(block, moved, usable(block).min(size));
            release(block);
        }
        moved.cast()
    }
}

// Each passes its arguments on, and adds its return address.

#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    std::arch::naked_asm!("mov rsi, [rsp]", "jmp {next}", next = sym malloc_for)
}

#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    std::arch::naked_asm!("mov rdx, [rsp]", "jmp {next}", next = sym calloc_for)
}

#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    std::arch::naked_asm!("mov rdx, [rsp]", "jmp {next}", next = sym realloc_for)
}

export! {
    fn free(block: *mut c_void) -> () {
        let errno = state::errno();
        // SAFETY: the caller upholds the contract of the C function.
        unsafe { release(block.cast()) };
        state::fail(errno);
    }
}

aliases! {
    fn __libc_free = free(block: *mut c_void) -> ();
    fn __libc_realloc = realloc(block: *mut c_void, size: usize) -> *mut c_void;
}

export! {
    fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
        match count.checked_mul(size) {
            // SAFETY: the caller upholds the contract of the C function.
            Some(bytes) => unsafe { realloc_for(block, bytes, 0) },
            None => out_of_memory().cast(),
        }
    }

    fn posix_memalign(result: *mut *mut c_void, align: usize, size: usize) -> c_int {
        if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
            return libc::EINVAL;
        }
        let errno = state::errno();
        let block = allocate(size, align, 0);
        if block.is_null() {
            return libc::ENOMEM; // errno is, too
        }
        state::fail(errno);
        // SAFETY: the caller's pointer.
        unsafe { *result = block.cast() };
        0
    }

    fn memalign(align: usize, size: usize) -> *mut c_void {
        match align.checked_next_power_of_two() {
            Some(align) => allocate(size, align, 0).cast(),
            None => { state::fail(libc::EINVAL); null_mut() }
        }
    }

    fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
        if !align.is_power_of_two() && c_library::minor_version() >= 38 {
            state::fail(libc::EINVAL);
            return null_mut();
        }
        // SAFETY: takes any sizes.
        unsafe { memalign(align, size) }
    }

    fn valloc(size: usize) -> *mut c_void {
        allocate(size, PAGE_SIZE, 0).cast()
    }

    fn pvalloc(size: usize) -> *mut c_void {
        match size.checked_next_multiple_of(PAGE_SIZE) {
            Some(size) => allocate(size, PAGE_SIZE, 0).cast(),
            None => out_of_memory().cast(),
        }
    }

    fn malloc_usable_size(block: *mut c_void) -> usize {
        // SAFETY: the caller upholds the contract of the C function.
        if block.is_null() { 0 } else { unsafe { usable(block.cast()) } }
    }

    fn malloc_trim(pad: usize) -> c_int {
        match state::phase() == Phase::Passing || has_next() {
            // SAFETY: takes no pointers.
            true => unsafe { TRIM.get()(pad) },
            false => 0,
        }
    }
}
