//! The C library. `include/folioswap.h` declares it for C; `tests/c_library.py` compares the names.
//!
//! Every function may be called by any number of threads at once. A pool is boxed memory that `folioswap_open` hands
//! out and `folioswap_close` frees; in between C has shared references only. Functions that can fail return a
//! [`folioswap_error`] and leave a sentence for their thread (`message`); the allocator returns NULL and sets errno. No
//! function unwinds: a panic aborts.

#![allow(non_camel_case_types)]

mod begin;
mod heap;
mod message;
mod stats;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use folioswap_sys::c_thread;

use ::folioswap::{Advice, Arena, ArenaHeap, FaultMode, FolioSize, RawSpace, SwapDevice, parse_memory};

pub use heap::*;
use message::{fail, failed};
pub use message::{folioswap_error, folioswap_error_text, folioswap_message};
pub use stats::{folioswap_device, folioswap_get_device, folioswap_get_stats, folioswap_stats};

/// A pool: a budget of RAM, swap devices, and the memory that is paged between them.
pub struct folioswap {
    arena: Arena,
    space: RawSpace,
    heap: ArenaHeap,
    /// The mappings, apart from the allocator's blocks. Whatever other threads do, a fork finds both in order.
    mappings: ArenaHeap,
}

/// What a pool is made of. Set `size` to `sizeof(folioswap_options)`, and what is not needed to 0 or NULL.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct folioswap_options {
    /// `sizeof(folioswap_options)`: later versions add members at the end. What an older program lacks is 0.
    pub size: usize,
    /// How many bytes of the pool's memory may be in RAM. At least 16 MiB, if `memory_text` is NULL.
    pub memory: u64,
    /// The same as text, such as "2G", "2GB" (powers of 1000) or "50%" (of the RAM); NULL if `memory` says it.
    pub memory_text: *const c_char,
    /// Swap devices, the first one used first: paths ("/swap/a", "/swap/a:100G"), "ram:SIZE", "zram:SIZE". NULL: an
    /// unnamed file in /var/tmp or $FOLIOSWAP_DIR.
    pub swap: *const *const c_char,
    /// How many these are.
    pub nr_swap: usize,
    /// "auto", or the size of all folios: a power of two from "4K" to "2M". NULL: "auto".
    pub folio: *const c_char,
    /// Who resolves faults: "monitor" (a thread of the pool), "direct" (the thread that touches), "auto" or NULL:
    /// monitor where the system permits it.
    pub faults: *const c_char,
}

/// How a range is going to be used.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum folioswap_advice {
    /// No special use.
    FOLIOSWAP_NORMAL = 0,
    /// Needed soon: it is read in the background.
    FOLIOSWAP_WILLNEED = 1,
    /// Read from start to end.
    FOLIOSWAP_SEQUENTIAL = 2,
    /// Accessed at random: what is in RAM stays as long as possible.
    FOLIOSWAP_RANDOM = 3,
    /// Not needed for a while: it leaves RAM first.
    FOLIOSWAP_COLD = 4,
    /// Not needed any more: exactly these bytes read as zero from now on.
    FOLIOSWAP_DONTNEED = 5,
    /// Blocks of 2 MiB come back whole.
    FOLIOSWAP_HUGEPAGE = 6,
    /// Blocks come back page by page.
    FOLIOSWAP_NOHUGEPAGE = 7,
}

impl folioswap {
    /// Whether a range lies in one mapping or block of the pool.
    fn has(&self, start: usize, len: usize) -> bool {
        let range = start..start.saturating_add(len);
        self.mappings.contains(&range) || self.heap.contains(&range)
    }

    /// Whether a mapping of `folioswap_map` begins here. Cheap for blocks: few are aligned to 2 MiB.
    fn is_mapping(&self, block: NonNull<u8>) -> bool {
        (block.as_ptr() as usize).is_multiple_of(heap::MOST_ALIGNMENT) && self.mappings.owns(block.as_ptr())
    }
}

/// A text of C's; `None` for NULL.
///
/// # Safety
/// `text` is NULL or a string that ends with a zero, and stays for the call.
unsafe fn text<'a>(text: *const c_char) -> Option<Result<&'a str, folioswap_error>> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_str().map_err(|_| fail(folioswap_error::FOLIOSWAP_INVALID, "a text is not in UTF-8")))
}

fn invalid(error: impl std::fmt::Display) -> folioswap_error {
    fail(folioswap_error::FOLIOSWAP_INVALID, error)
}

/// Makes a pool and starts its threads. Its memory is inherited by children of fork: each has a copy, with a budget and
/// swap of its own. On success `*pool` is the pool.
///
/// # Safety
/// `options` and what it names are valid for the call, and `pool` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_open(options: *const folioswap_options, pool: *mut *mut folioswap) -> c_int {
    begin::keep();
    let _uncancelled = c_thread::uncancelled();
    if options.is_null() || pool.is_null() {
        return invalid("options and pool must not be NULL") as c_int;
    }
    // SAFETY: not null, and valid (the caller's promise).
    match unsafe { known(options).and_then(|options| open(&options)) } {
        Ok(opened) => {
            // SAFETY: the caller's promise.
            unsafe { pool.write(Box::into_raw(Box::new(opened))) };
            folioswap_error::FOLIOSWAP_OK as c_int
        }
        Err(error) => error as c_int,
    }
}

/// The most bytes that options have in any version.
const MOST_OPTIONS_BYTES: usize = 4096;

/// The options as this version knows them, from a program of any other: members that its version has not are zero, and
/// those that this version has not must be.
///
/// # Safety
/// `options` points to as many bytes as its `size` says.
unsafe fn known(options: *const folioswap_options) -> Result<folioswap_options, folioswap_error> {
    // SAFETY: the first member is in any version.
    let size = unsafe { (&raw const (*options).size).read() };
    if !(size_of::<usize>()..=MOST_OPTIONS_BYTES).contains(&size) {
        return Err(invalid("options->size is not sizeof(folioswap_options)"));
    }
    // SAFETY: as many bytes as `size` says (the caller's promise).
    let bytes = unsafe { std::slice::from_raw_parts(options.cast::<u8>(), size) };
    let (known, unknown) = bytes.split_at(size.min(size_of::<folioswap_options>()));
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(invalid("the options have a member that this version of the library does not know"));
    }
    let mut options = std::mem::MaybeUninit::<folioswap_options>::zeroed();
    // SAFETY: as many bytes as both have. Numbers and pointers may be zero.
    unsafe {
        options.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(known.as_ptr(), known.len());
        Ok(options.assume_init())
    }
}

/// # Safety
/// What the options name is valid.
unsafe fn open(options: &folioswap_options) -> Result<folioswap, folioswap_error> {
    // SAFETY: each is NULL or a string (the caller's promise).
    let [memory, folio, faults] =
        unsafe { [options.memory_text, options.folio, options.faults].map(|option| text(option).transpose()) };
    let memory = match memory? {
        Some(memory) => parse_memory(memory).map_err(invalid)?,
        None => options.memory,
    };
    let mut builder = Arena::builder()
        .memory(memory)
        .folio(folio?.unwrap_or("auto").parse::<FolioSize>().map_err(invalid)?)
        .faults(faults?.unwrap_or("auto").parse::<FaultMode>().map_err(invalid)?);
    for index in 0..if options.swap.is_null() { 0 } else { options.nr_swap } {
        // SAFETY: an array of `nr_swap` strings (the caller's promise).
        let device = unsafe { text(*options.swap.add(index)) }.transpose()?.unwrap_or_default();
        builder = builder.device(device.parse::<SwapDevice>().map_err(invalid)?);
    }
    let arena = builder.build().map_err(failed)?;
    arena.inherit().map_err(failed)?;
    let [heap, mappings] = [(); 2].map(|()| ArenaHeap::new(&arena));
    Ok(folioswap { space: arena.raw(), heap, mappings, arena })
}

/// Frees a pool and all its memory. NULL is fine.
///
/// # Safety
/// `pool` is from `folioswap_open`, and neither it nor its memory is used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_close(pool: *mut folioswap) {
    let _uncancelled = c_thread::uncancelled();
    if !pool.is_null() {
        // SAFETY: a box of `folioswap_open`'s, given up (the caller's promise).
        drop(unsafe { Box::from_raw(pool) });
    }
}

/// Maps `len` zeroed bytes, aligned to 2 MiB. They take neither RAM nor swap until they are written.
///
/// # Safety
/// `pool` is open, and `addr` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_map(pool: *const folioswap, len: usize, addr: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let pool = unsafe { &*pool };
    match pool.mappings.map(len) {
        Ok(start) => {
            // SAFETY: the caller's promise.
            unsafe { addr.write(start.as_ptr().cast()) };
            folioswap_error::FOLIOSWAP_OK as c_int
        }
        Err(error) => failed(error) as c_int,
    }
}

/// Unmaps what `folioswap_map` returned, as a whole. FOLIOSWAP_INVALID: no mapping begins there, but a block of the
/// allocator perhaps.
///
/// # Safety
/// `pool` is open, and the memory is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_unmap(pool: *const folioswap, addr: *mut c_void) -> c_int {
    // SAFETY: the caller's promise; a mapping of this pool is given up.
    if !unsafe { (*pool).mappings.unmap(addr.cast()) } {
        return invalid(format_args!("{addr:p} is not the start of a mapping of this pool")) as c_int;
    }
    folioswap_error::FOLIOSWAP_OK as c_int
}

/// Advises how a range of the pool's memory will be used. Only FOLIOSWAP_DONTNEED changes content; all other advice
/// acts on the blocks of 2 MiB that the range overlaps.
///
/// # Safety
/// `pool` is open. With FOLIOSWAP_DONTNEED nobody relies on the content.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_advise(
    pool: *const folioswap,
    addr: *mut c_void,
    len: usize,
    advice: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let pool = unsafe { &*pool };
    let start = addr as usize;
    let Some(advice) = advice_of(advice) else { return invalid("there is no such advice") as c_int };
    if !pool.has(start, len) {
        return invalid(format_args!("{len} bytes at {addr:p} are not memory of this pool")) as c_int;
    }
    match advice {
        // SAFETY: memory of this pool, on whose content nobody relies (the caller's promise).
        Advice::DontNeed => unsafe { pool.space.discard(start, len) },
        other => pool.space.advise(start, len, other),
    }
    folioswap_error::FOLIOSWAP_OK as c_int
}

fn advice_of(number: c_int) -> Option<Advice> {
    use folioswap_advice::*;
    let all = [
        (FOLIOSWAP_NORMAL, Advice::Normal),
        (FOLIOSWAP_WILLNEED, Advice::WillNeed),
        (FOLIOSWAP_SEQUENTIAL, Advice::Sequential),
        (FOLIOSWAP_RANDOM, Advice::Random),
        (FOLIOSWAP_COLD, Advice::Cold),
        (FOLIOSWAP_DONTNEED, Advice::DontNeed),
        (FOLIOSWAP_HUGEPAGE, Advice::HugePage),
        (FOLIOSWAP_NOHUGEPAGE, Advice::NoHugePage),
    ];
    all.into_iter().find(|(known, _)| *known as c_int == number).map(|(_, advice)| advice)
}

/// Reads a range in the background, as far as half of the budget goes: `folioswap_advise` with FOLIOSWAP_WILLNEED.
///
/// # Safety
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_prefetch(pool: *const folioswap, addr: *const c_void, len: usize) -> c_int {
    let advice = folioswap_advice::FOLIOSWAP_WILLNEED as c_int;
    // SAFETY: the caller's promise; this advice changes no content.
    unsafe { folioswap_advise(pool, addr.cast_mut(), len, advice) }
}

/// Brings a range in and keeps it in RAM until `folioswap_release`. In direct mode this is for memory that a system
/// call reads or writes: it would fail with EFAULT where a page is missing. Holds are counted. All that is held, in
/// blocks of 2 MiB, is half of the budget at most.
///
/// # Safety
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_hold(pool: *const folioswap, addr: *const c_void, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    let pool = unsafe { &*pool };
    if !pool.has(addr as usize, len) {
        return invalid(format_args!("{len} bytes at {addr:p} are not memory of this pool")) as c_int;
    }
    // SAFETY: mapped memory of this pool.
    match unsafe { pool.space.hold_within(addr as usize, len, pool.arena.memory() / 2) } {
        None => return invalid("more than half of the budget would be held: hold less at a time") as c_int,
        Some(true) => return folioswap_error::FOLIOSWAP_OK as c_int,
        Some(false) => {}
    }
    // SAFETY: held just now.
    unsafe { pool.space.release_hold(addr as usize, len) };
    fail(folioswap_error::FOLIOSWAP_LOST, "some of the content is lost: its swap device has failed") as c_int
}

/// Ends a hold of the same range.
///
/// # Safety
/// `pool` is open, and the range is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_release(pool: *const folioswap, addr: *const c_void, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { (*pool).space.release_hold(addr as usize, len) }
}

/// Changes the budget. After shrinking it, waits until the surplus has left RAM, 10 seconds at most.
///
/// # Safety
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_resize(pool: *const folioswap, memory: u64) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { &*pool }.arena.set_memory(memory) {
        Ok(()) => folioswap_error::FOLIOSWAP_OK as c_int,
        Err(error) => failed(error) as c_int,
    }
}

/// Who resolves faults: 1 a thread of the pool (monitor), so that system calls work on its memory; 0 the thread that
/// touches (direct).
///
/// # Safety
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_is_monitored(pool: *const folioswap) -> c_int {
    // SAFETY: the caller's promise.
    c_int::from(unsafe { &*pool }.arena.fault_mode() == FaultMode::Monitor)
}

/// The version of this library, "MAJOR.MINOR.PATCH".
#[unsafe(no_mangle)]
pub extern "C" fn folioswap_version() -> *const c_char {
    const VERSION: &[u8] = concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes();
    VERSION.as_ptr().cast()
}
