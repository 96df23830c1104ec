//! The malloc family.
//!
//! Where a block comes from:
//! - the library's own code and the engine's: the private heap;
//! - before the engine is up, and in a forked child: the ordinary heap;
//! - what the C library asks for itself, between 512 bytes and 64 KiB: the ordinary heap. Those are stdio buffers and
//!   the like, which the kernel reads and writes in system calls that nobody can cover. It is told by the return
//!   address, which is why three functions here are a few instructions of assembly;
//! - small blocks until the ordinary share of the budget is used up: the ordinary heap, so that what a program makes
//!   first and uses always does not travel;
//! - all others: the program heap, over managed memory.
//!
//! Whose a block is follows from its address.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::export::{export, real};
use crate::heap::{self, ALIGNMENT, ORDINARY, PRIVATE};
use crate::state::{self, Phase};
use crate::{guard, program_heap};

real!(MALLOC = c"malloc": fn(usize) -> *mut c_void);
real!(CALLOC = c"calloc": fn(usize, usize) -> *mut c_void);
real!(REALLOC = c"realloc": fn(*mut c_void, usize) -> *mut c_void);
real!(FREE = c"free": fn(*mut c_void) -> ());
real!(MEMALIGN = c"memalign": fn(usize, usize) -> *mut c_void);
real!(USABLE = c"malloc_usable_size": fn(*mut c_void) -> usize);
real!(TRIM = c"malloc_trim": fn(usize) -> c_int);

/// Blocks below this may be ordinary memory.
const SMALL_BYTES: usize = 64 << 10;

/// The smallest block that the C library uses as a buffer.
const LEAST_BUFFER_BYTES: usize = 512;

static SHARE_BYTES: AtomicUsize = AtomicUsize::new(0);
static LIBC_START: AtomicUsize = AtomicUsize::new(0);
static LIBC_LEN: AtomicUsize = AtomicUsize::new(0);

/// Sets the program's share of ordinary memory, and finds where the C library is.
pub fn prepare(share_bytes: usize) {
    SHARE_BYTES.store(share_bytes, Ordering::Relaxed);
    // SAFETY: calls back within this call only; a C string.
    unsafe {
        let mut inside = libc::dlsym(libc::RTLD_NEXT, c"fopen".as_ptr()) as usize;
        libc::dl_iterate_phdr(Some(find_libc), (&raw mut inside).cast());
    }
}

/// Notes the code of the object that holds the address behind `inside`.
unsafe extern "C" fn find_libc(object: *mut libc::dl_phdr_info, _size: usize, inside: *mut c_void) -> c_int {
    // SAFETY: the loader gives a valid object; `inside` is `prepare`'s address.
    let (object, inside) = unsafe { (&*object, *inside.cast::<usize>()) };
    for index in 0..usize::from(object.dlpi_phnum) {
        // SAFETY: the object has that many headers.
        let header = unsafe { &*object.dlpi_phdr.add(index) };
        let start = (object.dlpi_addr + header.p_vaddr) as usize;
        if header.p_type == libc::PT_LOAD && inside.wrapping_sub(start) < header.p_memsz as usize {
            LIBC_START.store(start, Ordering::Relaxed);
            LIBC_LEN.store(header.p_memsz as usize, Ordering::Relaxed);
            return 1;
        }
    }
    0
}

/// Where the C library's code is.
pub fn libc_code() -> std::ops::Range<usize> {
    let start = LIBC_START.load(Ordering::Relaxed);
    start..start + LIBC_LEN.load(Ordering::Relaxed)
}

fn is_libc(caller: usize) -> bool {
    caller.wrapping_sub(LIBC_START.load(Ordering::Relaxed)) < LIBC_LEN.load(Ordering::Relaxed)
}

fn is_ordinary(size: usize, caller: usize) -> bool {
    size < SMALL_BYTES
        && (ORDINARY.used() + size <= SHARE_BYTES.load(Ordering::Relaxed)
            || (size >= LEAST_BUFFER_BYTES && is_libc(caller)))
}

enum Source {
    Heap(&'static heap::Heap),
    Program,
    Libc,
}

fn source(size: usize, caller: usize) -> Source {
    match state::phase() {
        Phase::Passing => Source::Libc,
        _ if guard::inside() => Source::Heap(&PRIVATE),
        Phase::Managed if !is_ordinary(size, caller) => Source::Program,
        _ => Source::Heap(&ORDINARY),
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
        Source::Program => checked(program_heap::allocate(size, align)),
        // SAFETY: any size and any power of two may be asked for.
        Source::Libc => unsafe {
            if align <= ALIGNMENT { MALLOC.get()(size).cast() } else { MEMALIGN.get()(align, size).cast() }
        },
    }
}

extern "C" fn malloc_for(size: usize, caller: usize) -> *mut c_void {
    allocate(size, 1, caller).cast()
}

extern "C" fn calloc_for(count: usize, size: usize, caller: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return out_of_memory().cast() };
    let block = match source(bytes, caller) {
        Source::Program => checked(program_heap::allocate_zeroed(bytes)),
        // SAFETY: as for any caller.
        Source::Libc => unsafe { CALLOC.get()(count, size).cast() },
        Source::Heap(heap) => {
            let block = checked(heap.allocate(bytes, 1));
            if !block.is_null() {
                // SAFETY: a fresh block of that many bytes.
                unsafe { block.write_bytes(0, bytes) };
            }
            block
        }
    };
    block.cast()
}

/// Ends a block of any source.
///
/// # Safety
/// As `free`.
unsafe fn release(block: *mut u8) {
    // SAFETY: each is given a block of its own; the caller gives it up.
    unsafe {
        if block.is_null() {
        } else if ORDINARY.owns(block) {
            ORDINARY.release(block);
        } else if PRIVATE.owns(block) {
            let _guard = guard::enter();
            PRIVATE.release(block);
        } else if state::is_managed(block as usize) {
            // A child may lack the heap's records, and its memory ends with it.
            if state::phase() == Phase::Managed {
                program_heap::release(block);
            }
        } else if state::phase() == Phase::Passing {
            FREE.get()(block.cast());
        }
    }
}

/// How many bytes of a block of any source may be used.
///
/// # Safety
/// As `malloc_usable_size`; not null.
unsafe fn usable(block: *mut u8) -> usize {
    // SAFETY: each is given a block of its own.
    unsafe {
        if ORDINARY.owns(block) || PRIVATE.owns(block) {
            heap::usable(block)
        } else if state::is_managed(block as usize) {
            program_heap::usable(block)
        } else if state::phase() == Phase::Passing {
            USABLE.get()(block.cast())
        } else {
            0
        }
    }
}

/// Makes a block longer or shorter where it is kept, if that is where a block of the new size belongs.
///
/// # Safety
/// As `realloc`; not null.
unsafe fn resize_in_place(block: *mut u8, size: usize, caller: usize) -> Option<*mut u8> {
    // SAFETY: each is given a block of its own.
    unsafe {
        if state::is_managed(block as usize) {
            return if state::phase() == Phase::Managed { program_heap::resize(block, size) } else { None };
        }
        match source(size, caller) {
            Source::Heap(heap) if heap.owns(block) => Some(heap.resize(block, size)),
            Source::Libc if !ORDINARY.owns(block) && !PRIVATE.owns(block) => {
                Some(REALLOC.get()(block.cast(), size).cast())
            }
            _ => None,
        }
    }
}

unsafe extern "C" fn realloc_for(block: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    let block = block.cast::<u8>();
    if block.is_null() {
        return malloc_for(size, caller);
    }
    // SAFETY: the caller's block, which is used no more once a new one holds its bytes.
    unsafe {
        if size == 0 && state::phase() != Phase::Passing {
            release(block); // what the GNU C library does
            return null_mut();
        }
        if let Some(resized) = resize_in_place(block, size, caller) {
            return checked(resized).cast();
        }
        let moved = allocate(size, 1, caller);
        if !moved.is_null() {
            std::ptr::copy_nonoverlapping(block, moved, usable(block).min(size));
            release(block);
        }
        moved.cast()
    }
}

// Each hands its own arguments on and adds the address that it returns to.

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
        // SAFETY: the caller's duty.
        unsafe { release(block.cast()) };
        state::fail(errno);
    }
}

export! {
    fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
        match count.checked_mul(size) {
            // SAFETY: the caller's duty.
            Some(bytes) => unsafe { realloc_for(block, bytes, 0) },
            None => out_of_memory().cast(),
        }
    }
}

export! {
    fn posix_memalign(result: *mut *mut c_void, align: usize, size: usize) -> c_int {
        if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
            return libc::EINVAL;
        }
        let errno = state::errno();
        let block = allocate(size, align, 0);
        state::fail(errno);
        if block.is_null() {
            return libc::ENOMEM;
        }
        // SAFETY: the caller's pointer.
        unsafe { *result = block.cast() };
        0
    }
}

export! {
    fn memalign(align: usize, size: usize) -> *mut c_void {
        match align.checked_next_power_of_two() {
            Some(align) => allocate(size, align, 0).cast(),
            None => { state::fail(libc::EINVAL); null_mut() }
        }
    }
}

export! {
    fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
        if !align.is_power_of_two() {
            state::fail(libc::EINVAL);
            return null_mut();
        }
        allocate(size, align, 0).cast()
    }
}

export! {
    fn valloc(size: usize) -> *mut c_void {
        allocate(size, 4096, 0).cast()
    }
}

export! {
    fn pvalloc(size: usize) -> *mut c_void {
        match size.checked_next_multiple_of(4096) {
            Some(size) => allocate(size, 4096, 0).cast(),
            None => out_of_memory().cast(),
        }
    }
}

export! {
    fn malloc_usable_size(block: *mut c_void) -> usize {
        // SAFETY: the caller's duty.
        if block.is_null() { 0 } else { unsafe { usable(block.cast()) } }
    }
}

export! {
    fn malloc_trim(pad: usize) -> c_int {
        match state::phase() {
            // SAFETY: takes a number.
            Phase::Passing => unsafe { TRIM.get()(pad) },
            _ => 0,
        }
    }
}
