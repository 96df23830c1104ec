//! Figures of a pool, in structs whose size says their version: a later library fills what an older program knows.

use std::ffi::{c_char, c_int};

use crate::message::{fail, folioswap_error};
use crate::{folioswap, invalid};

/// Figures of a pool. Set `size` to `sizeof(folioswap_stats)` before the call; the library sets it to what it has
/// filled. Later versions add members at the end.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct folioswap_stats {
    /// Bytes of this struct.
    pub size: usize,
    /// The budget in bytes.
    pub memory_bytes: u64,
    /// Bytes in RAM that can be touched without a fault.
    pub mapped_bytes: u64,
    /// Bytes in RAM that are the first to leave; a touch costs a fault, but no read.
    pub standby_bytes: u64,
    /// Bytes in use on swap devices.
    pub swapped_bytes: u64,
    /// Bytes read from swap devices so far.
    pub swapped_in_bytes: u64,
    /// Bytes written to swap devices so far.
    pub swapped_out_bytes: u64,
    /// Faults so far.
    pub faults: u64,
    /// Nanoseconds that threads have spent in faults, all together.
    pub stalled_ns: u64,
    /// Swap devices.
    pub nr_devices: u64,
}

/// Figures of a swap device. Set `size` to `sizeof(folioswap_device)` before the call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct folioswap_device {
    /// Bytes of this struct.
    pub size: usize,
    /// Its name, cut to fit, with a zero at the end.
    pub name: [c_char; 256],
    /// Bytes of it in use.
    pub used_bytes: u64,
    /// The most bytes that it can hold; 0: as many as the file system has room for.
    pub size_bytes: u64,
    /// Bytes read from it, and in how many requests.
    pub read_bytes: u64,
    /// See `read_bytes`.
    pub read_calls: u64,
    /// Bytes written to it, and in how many requests.
    pub written_bytes: u64,
    /// See `written_bytes`.
    pub written_calls: u64,
}

/// Copies as much of a struct as the caller knows, and says how much that was.
///
/// # Safety
/// `to` begins with its size in bytes, which can be written.
unsafe fn hand_out<T: Copy>(mut from: T, set_size: impl FnOnce(&mut T, usize), to: *mut T) -> c_int {
    // SAFETY: the size is the first member (the caller's promise).
    let known = unsafe { to.cast::<usize>().read() };
    if known < 2 * size_of::<u64>() {
        return invalid("set `size` to the size of the struct") as c_int;
    }
    let len = known.min(size_of::<T>());
    set_size(&mut from, len);
    // SAFETY: `from` has `len` bytes, and so has `to` (the caller's promise).
    unsafe { to.cast::<u8>().copy_from_nonoverlapping((&raw const from).cast(), len) };
    folioswap_error::FOLIOSWAP_OK as c_int
}

/// Fills the figures so far. Takes about 100 us.
///
/// # Safety
/// `pool` is open, and `stats` can be written up to its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_get_stats(pool: *const folioswap, stats: *mut folioswap_stats) -> c_int {
    // SAFETY: the caller's promise.
    let arena = unsafe { &(*pool).arena };
    let (counted, usage) = (arena.stats(), arena.usage());
    let filled = folioswap_stats {
        size: 0,
        memory_bytes: usage.budget_bytes,
        mapped_bytes: usage.mapped_bytes,
        standby_bytes: usage.standby_bytes,
        swapped_bytes: usage.swapped_bytes,
        swapped_in_bytes: counted.swapped_in_bytes,
        swapped_out_bytes: counted.swapped_out_bytes,
        faults: counted.nr_faults(),
        stalled_ns: counted.stalled_ns(),
        nr_devices: arena.devices().len() as u64,
    };
    // SAFETY: the caller's promise.
    unsafe { hand_out(filled, |stats, size| stats.size = size, stats) }
}

/// Fills the figures of the swap device with this index, from 0 on.
///
/// # Safety
/// `pool` is open, and `device` can be written up to its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folioswap_get_device(
    pool: *const folioswap,
    index: usize,
    device: *mut folioswap_device,
) -> c_int {
    // SAFETY: the caller's promise.
    let devices = unsafe { &(*pool).arena }.devices();
    let Some(found) = devices.get(index) else {
        return fail(folioswap_error::FOLIOSWAP_INVALID, "there is no such swap device") as c_int;
    };
    let mut name = [0; 256];
    for (to, from) in name.iter_mut().take(255).zip(found.name.bytes()) {
        *to = from as c_char;
    }
    let filled = folioswap_device {
        size: 0,
        name,
        used_bytes: found.used_bytes,
        size_bytes: found.size_bytes.unwrap_or(0),
        read_bytes: found.io.reads.bytes,
        read_calls: found.io.reads.calls,
        written_bytes: found.io.writes.bytes,
        written_calls: found.io.writes.calls,
    };
    // SAFETY: the caller's promise.
    unsafe { hand_out(filled, |device, size| device.size = size, device) }
}
