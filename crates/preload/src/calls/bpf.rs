//! bpf. What its structure points to is held in RAM: some commands take elements out of a map before they store them.
//! Those on many elements get copies of these. When a call is repeated, the structure is as before the first try: the
//! kernel counts there what it has done.

use std::cell::Cell;

use crate::calls::copied::{self, Copied};
use crate::ground::real::{kernel, raw};
use crate::ground::{guard, state};
use crate::memory::access::{self, Access};
use crate::memory::cover::{self, Before};

/// Words of what a call is about, at most.
const MOST_WORDS: usize = 32;
type Attributes = [u64; MOST_WORDS];

/// Commands on many elements, and those of them that store what they find.
const BATCHES: std::ops::RangeInclusive<usize> = 24..=27;
const LOOKUPS: std::ops::RangeInclusive<usize> = 24..=25;
/// Where these have the places of keys and values; their number and the map are in one word.
const KEYS: usize = 2;
const VALUES: usize = 3;
const NUMBER: usize = 4;

/// The command that tells about a map, and the kinds of maps with a value for each CPU.
const GET_INFO: usize = 15;
const KINDS_BY_CPU: [u32; 3] = [5, 6, 10];

/// The beginning of what the kernel tells about a map.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_bytes: u32,
    value_bytes: u32,
}

/// Makes the call. Returns -1 and sets errno on failure.
///
/// # Safety
/// As the system call.
pub unsafe fn perform(words: &[usize; 6]) -> isize {
    let (at, len) = (words[1], words[2].min(size_of::<Attributes>()));
    let _held = cover::held_inside(at as *const u8, len);
    if BATCHES.contains(&words[0])
        && let Some((about, map)) = batch(at, words[2])
    {
        // SAFETY: the caller upholds this function's own contract.
        return unsafe { perform_batch(words, &about, &map) };
    }
    let before = Before::of(at, len);
    let touch = || {
        before.bring_back();
        cover::structure(at as *const u8, cover::UNKNOWN_BYTES);
    };
    // SAFETY: as above.
    cover::repeat(touch, || unsafe { raw(libc::SYS_bpf, words) as isize })
}

/// What a call on many elements is about, and its map.
fn batch(at: usize, len: usize) -> Option<(Attributes, MapInfo)> {
    let is_possible = (NUMBER + 1) * size_of::<u64>() <= len && len <= size_of::<Attributes>();
    if !is_possible || !state::direct() || guard::inside() || !access::is_open(at, len, Access::Read) {
        return None;
    }
    let mut about = [0; MOST_WORDS];
    // SAFETY: the program's memory, which can be read. Any bits are numbers.
    unsafe { std::ptr::copy_nonoverlapping(at as *const u8, about.as_mut_ptr().cast(), len) };
    // How many CPUs the kernel counts is not known for certain.
    let map = map_info((about[NUMBER] >> 32) as u32).filter(|map| !KINDS_BY_CPU.contains(&map.kind))?;
    Some((about, map))
}

/// # Safety
/// As [`perform`]; `about` is a copy of the call's structure.
unsafe fn perform_batch(words: &[usize; 6], about: &Attributes, map: &MapInfo) -> isize {
    let nr_elements = about[NUMBER] as u32 as usize;
    let is_lookup = LOOKUPS.contains(&words[0]);
    let copies = [(KEYS, map.key_bytes), (VALUES, map.value_bytes)].map(|(place, bytes)| {
        // SAFETY: the program passes the range to the call.
        unsafe { Copied::new(about[place] as usize, nr_elements.saturating_mul(bytes as usize), is_lookup) }
    });
    let asked = Cell::new(*about);
    let call = || {
        let mut once = *about;
        (once[KEYS], once[VALUES]) = (copies[0].addr() as u64, copies[1].addr() as u64);
        asked.set(once);
        // SAFETY: the program's call, with copies.
        unsafe { raw(libc::SYS_bpf, &[words[0], asked.as_ptr() as usize, words[2]]) as isize }
    };
    let result = cover::repeat(|| cover::structure(words[1] as *const u8, cover::UNKNOWN_BYTES), call);
    // SAFETY: the program passed the ranges to the call.
    let result = unsafe { copied::bring_all_back(&copies, result) };
    state::keeping_errno(|| {
        let (number, now) = (words[1] + NUMBER * size_of::<u64>(), asked.get()[NUMBER] as u32);
        if now != about[NUMBER] as u32 && access::is_open(number, size_of::<u32>(), Access::Write) {
            // SAFETY: the program's memory, which may be written, and where the kernel would write the number.
            unsafe { (number as *mut u32).write_unaligned(now) };
        }
    });
    result
}

fn map_info(map: u32) -> Option<MapInfo> {
    let mut info = MapInfo::default();
    let ask = [u64::from(map) | (size_of::<MapInfo>() as u64) << 32, &raw mut info as u64];
    state::keeping_errno(|| {
        // SAFETY: the kernel reads one local, and fills in the other.
        unsafe { kernel!(libc::SYS_bpf, GET_INFO, ask.as_ptr(), size_of_val(&ask)) == 0 }
    })
    .then_some(info)
}
