//! Reads and writes of memory by way of `/proc/PID/mem` and ptrace. The kernel waits for no missing page there: it
//! transfers less than was asked for, or fails with EIO (process_vm_readv in direct mode: with EFAULT). Then the
//! process whose memory it is brings the pages in, and the call is repeated.
//!
//! Such a file is recognised by its name, and only once the program has opened a path whose last part is `mem`. So
//! other programs pay nothing.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap::Mapping;
use folioswap_sys::readers::{self, HeldThere};
use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{own_calls, static_tls};
use libc::{FILE, PTRACE_TRACEME, iovec, mode_t, pid_t};

use crate::calls::vectors::{MOST_BUFFERS, bytes_of, is_refused, part};
use crate::ground::export::{export, real};
use crate::ground::real::kernel;
use crate::ground::{guard, state, waiting};
use crate::memory::access::{self, Access};
use crate::memory::cover::{self, Outcome, repeat, text};
use crate::memory::held::{self, Held};
use crate::memory::known;

/// Whether the program may have a file of page tables.
static PAGEMAP_OPENED: AtomicBool = AtomicBool::new(false);

/// Bytes that are brought in at a time.
const PIECE_BYTES: usize = 256 << 10;

/// How often a call is repeated without progress: pages may leave again before they are read.
const MOST_TRIES: usize = 20;

/// Notes that a path was opened.
///
/// # Safety
/// A C string.
unsafe fn note_path(path: *const c_char) {
    if guard::inside() {
        return; // the engine's own
    }
    // SAFETY: the caller's string.
    let path = unsafe { std::ffi::CStr::from_ptr(path) }.to_bytes();
    let is = |name: &[u8]| path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with(b"/"));
    if is(b"mem") {
        known::note_memory_file();
    } else if is(b"pagemap") {
        PAGEMAP_OPENED.store(true, Ordering::Relaxed);
    }
}

macro_rules! opened {
    ($(
        fn $name:ident[$path:ident] = $text:literal ($($arg:ident: $type:ty),*) -> $result:ty $(, inside $own:expr)?;
    )*) => {$(
        export! {
            fn $name($($arg: $type),*) -> $result {
                $(
                    if guard::inside() {
                        // SAFETY: passes the caller's arguments on unchanged. See `By::name`.
                        return unsafe { $own } as $result;
                    }
                )?
                real!(REAL = $text: fn($($type),*) -> $result);
                let real = REAL.get();
                // SAFETY: passes the caller's arguments on unchanged, repeatedly while a page is missing. The kernel
                // has read the path of what it has opened.
                unsafe {
                    let opened = repeat(|| text($path), || real($($arg),*));
                    if !opened.is_failure() {
                        note_path($path);
                    }
                    opened
                }
            }
        }
    )*};
}

opened! {
    fn open[path] = c"open"(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn open64[path] = c"open64"(path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        inside kernel!(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode);
    fn openat[path] = c"openat"(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat64[path] = c"openat64"(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open[path] = c"__open"(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open64[path] = c"__open64"(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open_2[path] = c"__open_2"(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2[path] = c"__open64_2"(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2[path] = c"__openat_2"(at: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2[path] = c"__openat64_2"(at: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn fopen[path] = c"fopen"(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn fopen64[path] = c"fopen64"(path: *const c_char, mode: *const c_char) -> *mut FILE;
}

/// Reads `len` bytes from a stream of such a file by `call`, which reads so many at this address. `None`: it is another
/// stream.
///
/// # Safety
/// The caller's stream.
pub unsafe fn read_stream(stream: *mut FILE, len: usize, call: impl Fn(usize, usize) -> usize) -> Option<usize> {
    /// What a stream reads beyond what it was asked for.
    const BUFFER_BYTES: usize = 8 << 10;
    if !known::has_memory_file() || guard::inside() {
        return None;
    }
    // SAFETY: the caller's stream.
    let process = process_of(unsafe { libc::fileno(stream) })?;
    let (mut done, mut tries) = (0, 0);
    while done < len && tries < MOST_TRIES {
        // SAFETY: as above.
        let from = unsafe { libc::ftello(stream) } as usize;
        let piece = (len - done).min(PIECE_BYTES);
        bring_in(process, from, piece + BUFFER_BYTES);
        let result = call(done, piece);
        done += result;
        tries = if result > 0 { 0 } else { tries + 1 };
        if result < piece && tries < MOST_TRIES {
            // SAFETY: as above.
            unsafe { libc::clearerr(stream) }; // a page may have left again
        }
    }
    Some(done)
}

/// The process whose memory a descriptor gives, if it is such a file.
fn process_of(fd: c_int) -> Option<pid_t> {
    process_in(fd, "/mem")
}

/// Whether a descriptor is of this process's page tables.
pub fn is_own_pagemap(fd: c_int) -> bool {
    process_in(fd, "/pagemap").is_some_and(is_own)
}

/// Whether the program may have a file of page tables.
pub fn has_pagemap() -> bool {
    PAGEMAP_OPENED.load(Ordering::Relaxed)
}

/// The process that a descriptor is of, if it is a file of this name in `/proc/PID`.
fn process_in(fd: c_int, name: &str) -> Option<pid_t> {
    if own_calls::is_used() {
        return None; // the program's filter may refuse to ask
    }
    let _guard = guard::enter();
    let mut path = [0u8; 64];
    let link = format!("/proc/self/fd/{fd}\0");
    // SAFETY: a C string, and a buffer of that length.
    let len = unsafe { kernel!(libc::SYS_readlink, link.as_ptr(), path.as_mut_ptr(), path.len()) };
    let path = std::str::from_utf8(path.get(..usize::try_from(len).ok()?)?).ok()?;
    let pid = path.strip_prefix("/proc/")?.strip_suffix(name)?.split('/').next()?;
    pid.parse().ok()
}

/// Whether a process has this one's memory: it is this one, or a child made by `clone` with CLONE_VM.
pub fn is_own(process: pid_t) -> bool {
    const KCMP_VM: usize = 1;
    // SAFETY: take no pointers.
    unsafe {
        let own = libc::getpid();
        process == own || kernel!(libc::SYS_kcmp, own, process, KCMP_VM, 0usize, 0usize) == 0
    }
}

/// Has a process bring its memory in. `false`: it cannot.
fn bring_in(process: pid_t, addr: usize, len: usize) -> bool {
    let _guard = guard::enter();
    state::keeping_errno(|| {
        if !is_own(process) {
            return readers::ask(process as u32, addr, len);
        }
        state::space().is_some_and(|space| {
            space.touch(addr, len);
            true
        })
    })
}

/// Whether memory of processes that are run with this one may leave RAM by a copy. The kernel looks up all pages that
/// it is to write to in a process, and then copies: one of them may have left meanwhile, and with it what is written.
pub fn may_be_copied() -> bool {
    let may_ask = !own_calls::is_used() && !guard::inside();
    may_ask && state::arena().map_or(state::may_manage(), |arena| arena.mapping() == Mapping::Copy)
}

/// How often another process is asked to keep memory that is to be written.
const HOLD_TRIES: usize = 100;

/// Memory of a process that stays in RAM until this is dropped, as far as that is possible.
#[derive(Default)]
pub struct Kept {
    _own: Option<Held>,
    _there: Option<HeldThere>,
}

impl Kept {
    /// For a call that writes there, if that is needed ([`may_be_copied`]).
    pub fn for_write(process: pid_t, addr: usize, len: usize) -> Self {
        may_be_copied().then(|| Kept::new(process, addr, len, HOLD_TRIES)).flatten().unwrap_or_default()
    }

    /// Brings it in. `None`: it is not kept.
    fn new(process: pid_t, addr: usize, len: usize, nr_tries: usize) -> Option<Self> {
        if is_own(process) {
            let is_possible = state::space().is_some() && len <= held::PIECE_BYTES;
            return is_possible.then(|| Kept { _own: Some(Held::new(addr, len)), _there: None });
        }
        let _guard = guard::enter();
        let there = state::keeping_errno(|| HeldThere::new(process as u32, addr, len, nr_tries))?;
        Some(Kept { _own: None, _there: Some(there) })
    }

    /// Brings it in, and perhaps keeps it. `None`: the process cannot bring it in.
    fn brought_in(process: pid_t, addr: usize, len: usize) -> Option<Self> {
        Kept::new(process, addr, len, 1).or_else(|| bring_in(process, addr, len).then(Kept::default))
    }
}

/// Whether a call on a descriptor may have found pages missing, for which it is repeated.
fn is_short(result: isize, len: usize) -> bool {
    known::has_memory_file()
        && !guard::inside()
        && if result < 0 { state::errno() == libc::EIO } else { (result as usize) < len }
}

/// Makes a transfer of `len` bytes at `offset`, or at the descriptor's position. `call` makes a part of it: from this
/// many bytes on.
pub fn transfer(fd: c_int, len: usize, offset: Option<i64>, call: impl Fn(usize) -> isize) -> isize {
    let kept = state::errno();
    let first = call(0);
    if !is_short(first, len) {
        return first;
    }
    let Some(process) = process_of(fd) else { return first };
    let mut done = first.max(0) as usize;
    let start = start_of(fd, offset) - if offset.is_none() { done } else { 0 };
    let mut tries = 0;
    while done < len
        && tries < MOST_TRIES
        && let Some(_kept) = Kept::brought_in(process, start + done, (len - done).min(PIECE_BYTES))
    {
        let result = call(done);
        tries = if result > 0 { 0 } else { tries + 1 };
        done += result.max(0) as usize;
    }
    if done == 0 {
        return first;
    }
    state::fail(kept);
    done as isize
}

/// As [`transfer`], for a call that writes so many bytes from this one on. What it writes is kept in RAM meanwhile.
pub fn transfer_to(fd: c_int, len: usize, offset: Option<i64>, call: impl Fn(usize, usize) -> isize) -> isize {
    let Some(process) = written(fd) else { return transfer(fd, len, offset, |done| call(done, len - done)) };
    in_pieces(process, (fd, offset), len, |done, piece, place| {
        transfer(fd, piece, place, |more| call(done + more, piece - more))
    })
}

/// Writes to a process's memory in pieces, each kept in RAM meanwhile: `call` gets how much is done, the length of a
/// piece, and its place if the transfer has an offset.
fn in_pieces(
    process: pid_t,
    (fd, offset): (c_int, Option<i64>),
    len: usize,
    call: impl Fn(usize, usize, Option<i64>) -> isize,
) -> isize {
    let (start, mut done) = (start_of(fd, offset), 0);
    loop {
        let piece = PIECE_BYTES.min(len - done);
        let _kept = Kept::for_write(process, start + done, piece);
        let result = call(done, piece, offset.map(|offset| offset + done as i64));
        if result <= 0 && done == 0 {
            return result;
        }
        done += result.max(0) as usize;
        if done == len || (result.max(0) as usize) < piece {
            return done as isize;
        }
    }
}

/// The process whose memory is written by way of a descriptor, if it is to be kept in RAM meanwhile.
fn written(fd: c_int) -> Option<pid_t> {
    (known::has_memory_file() && may_be_copied()).then(|| process_of(fd))?
}

/// Where a transfer begins.
fn start_of(fd: c_int, offset: Option<i64>) -> usize {
    // SAFETY: takes no pointers.
    let position = || unsafe { kernel!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) as usize };
    offset.map_or_else(position, |offset| offset as usize)
}

/// A list of buffers or ranges, by its address and length.
pub type List = (*const iovec, usize);

/// The entries of a list, read as the kernel reads them: `None` if it is not readable.
fn entries((list, count): List) -> Option<Vec<iovec>> {
    if count > MOST_BUFFERS || !access::is_open(list as usize, count * size_of::<iovec>(), Access::Read) {
        return None;
    }
    let mut entries = {
        let _guard = guard::enter();
        Vec::with_capacity(count)
    };
    // SAFETY: the program's list, which may be read. It need not be aligned.
    entries.extend((0..count).map(|index| unsafe { list.add(index).read_unaligned() }));
    Some(entries)
}

/// As [`transfer`], for a list of buffers, of which `call` always makes all.
pub fn transfer_list(fd: c_int, buffers: List, offset: Option<i64>, call: impl Fn() -> isize) -> isize {
    let kept = state::errno();
    let mut best = call();
    if !is_short(best, usize::MAX) {
        return best;
    }
    let (Some(process), Some(len)) = (process_of(fd), entries(buffers).map(|list| bytes_of(&list))) else {
        return best;
    };
    let start = start_of(fd, offset) - if offset.is_none() { best.max(0) as usize } else { 0 };
    let mut tries = 0;
    while best < len as isize
        && tries < MOST_TRIES
        && let Some(_kept) = Kept::brought_in(process, start, len)
    {
        if offset.is_none() {
            // SAFETY: takes no pointers.
            unsafe { kernel!(libc::SYS_lseek, fd, start, libc::SEEK_SET) };
        }
        let result = call();
        tries = if result > best { 0 } else { tries + 1 };
        best = result;
    }
    if best >= 0 {
        state::fail(kept);
    }
    best
}

/// The same for a call that writes. What it writes is kept in RAM meanwhile. `call` makes it for a list at an offset;
/// -1: at the descriptor's position.
pub fn transfer_list_to(fd: c_int, buffers: List, offset: Option<i64>, call: impl Fn(List, i64) -> isize) -> isize {
    let Some((process, list)) = written(fd).and_then(|process| Some((process, entries(buffers)?))) else {
        return transfer_list(fd, buffers, offset, || call(buffers, offset.unwrap_or(-1)));
    };
    in_pieces(process, (fd, offset), bytes_of(&list), |done, piece, place| {
        let piece = part(&list, done, piece);
        let list = (piece.as_ptr(), piece.len());
        transfer_list(fd, list, place, || call(list, place.unwrap_or(-1)))
    })
}

/// What is left of a list of the program's after its first `done` bytes; nothing if that is not readable.
pub fn rest(list: List, done: usize) -> Vec<iovec> {
    entries(list).map_or_else(Vec::new, |entries| part(&entries, done, usize::MAX))
}

/// Makes a call that transfers bytes between buffers and ranges of another process. `call` makes it for such lists.
pub fn transfer_ranges(process: pid_t, buffers: List, ranges: List, call: impl Fn(List, List) -> isize) -> isize {
    let kept = state::errno();
    let is_cold = ranges.1 <= MOST_BUFFERS && cover::needed(ranges.0 as usize, ranges.1 * size_of::<iovec>());
    let copy = if is_cold { entries(ranges) } else { None };
    let ranges = copy.as_ref().map_or(ranges, |copy| (copy.as_ptr(), copy.len()));
    state::fail(kept);
    let result = call(buffers, ranges);
    if (result < 0 && state::errno() != libc::EFAULT) || guard::inside() {
        return result;
    }
    // SAFETY: the kernel has read the first list, and the other one if that has bytes.
    let read = |(list, count): List| bytes_of(unsafe { std::slice::from_raw_parts(list, count) });
    let is_whole = || buffers.1 == 0 || read(buffers) == 0 || result as usize >= read(buffers).min(read(ranges));
    if result >= 0 && is_whole() {
        return result;
    }
    let error = state::errno();
    let (mut done, mut tries) = (result.max(0) as usize, 0);
    if let (Some(buffers), Some(ranges)) = (entries(buffers).filter(|list| !is_refused(list)), entries(ranges)) {
        let len = bytes_of(&buffers).min(bytes_of(&ranges));
        while done < len && tries < MOST_TRIES {
            let (buffers, ranges) = (part(&buffers, done, usize::MAX), part(&ranges, done, usize::MAX));
            let Some(_kept) = bring_in_first(process, &ranges, len - done) else { break };
            let more = call((buffers.as_ptr(), buffers.len()), (ranges.as_ptr(), ranges.len()));
            tries = if more > 0 { 0 } else { tries + 1 };
            done += more.max(0) as usize;
        }
    }
    state::fail(if result >= 0 || done > 0 { kept } else { error });
    if done > 0 { done as isize } else { result }
}

/// Has a process bring in what a transfer of so many bytes begins with, and keep it if that is one range: a process
/// keeps few. `None`: it cannot.
fn bring_in_first(process: pid_t, ranges: &[iovec], len: usize) -> Option<Kept> {
    let mut left = len.min(PIECE_BYTES);
    if let [range] = ranges {
        return Kept::brought_in(process, range.iov_base as usize, range.iov_len.min(left));
    }
    let are_in = ranges.iter().all(|range| {
        let part = range.iov_len.min(left);
        left -= part;
        part == 0 || bring_in(process, range.iov_base as usize, part)
    });
    are_in.then(Kept::default)
}

/// A ptrace call that may be for a word of memory.
pub fn traced<R: Outcome>(what: c_uint, process: pid_t, addr: usize, call: impl Fn() -> R) -> R {
    let is_word =
        matches!(what, libc::PTRACE_PEEKTEXT | libc::PTRACE_PEEKDATA | libc::PTRACE_POKETEXT | libc::PTRACE_POKEDATA);
    let mut tries = 0;
    loop {
        state::fail(0);
        let result = call();
        let is_missing = result.is_failure() && matches!(state::errno(), libc::EIO | libc::EFAULT);
        if !is_word || !is_missing || tries == MOST_TRIES || guard::inside() {
            return result;
        }
        let error = state::errno();
        if !bring_in(process, addr, size_of::<c_long>()) {
            state::fail(error);
            return result;
        }
        tries += 1;
    }
}

static_tls! {
    /// The child that is to be traced once it executes a program; 0: none.
    static TRACED: u32 = "folioswap_traced";
}

/// A process that shares its parent's memory asks to be traced. The parent waits until it executes a program (vfork),
/// and cannot let it go on after the signal of a fault. So it is traced from then on only. `None`: it is another call.
pub fn trace_later(what: c_uint) -> Option<c_int> {
    if what != PTRACE_TRACEME || guard::inside() || !state::direct() || waiting::is_own_process() {
        return None;
    }
    let process = guard::own_process();
    if TRACED.replace(process) == process {
        state::fail(libc::EPERM);
        return Some(-1);
    }
    Some(0)
}

/// Called before a program is executed, with all in RAM that the call needs. `false`: the call is to fail with errno.
pub fn begin_traced() -> bool {
    if TRACED.get() == 0 || TRACED.replace(0) != guard::own_process() {
        return true; // a child of vfork leaves the thread-local storage to its parent
    }
    // SAFETY: takes no pointers.
    unsafe { kernel!(libc::SYS_ptrace, PTRACE_TRACEME, 0, 0, 0) == 0 }
}

/// Brings in what ptrace may read and write: one of its last two arguments may be a list of buffers.
pub fn touch_traced(words: [usize; 2]) {
    words.iter().for_each(|&at| cover::structure(at as *const u8, cover::UNKNOWN_BYTES));
}

real!(PTRACE = c"ptrace": fn(c_uint, pid_t, *mut c_void, *mut c_void) -> c_long);

export! {
    fn ptrace(what: c_uint, pid: pid_t, at: *mut c_void, data: *mut c_void) -> c_long {
        if let Some(result) = trace_later(what) {
            return result.into();
        }
        let real = PTRACE.get();
        let touch = || touch_traced([at as usize, data as usize]);
        let kept = state::errno();
        // SAFETY: passes the caller's arguments on unchanged.
        let result = traced(what, pid, at as usize, || repeat(touch, || unsafe { real(what, pid, at, data) }));
        if result != -1 {
            state::fail(kept);
        }
        result
    }
}

/// Notes a call by number that has succeeded.
///
/// # Safety
/// The caller's call.
pub unsafe fn note_call(number: c_long, words: &[usize; 6]) {
    let path = match number {
        libc::SYS_open => words[0],
        libc::SYS_openat | libc::SYS_openat2 => words[1],
        _ => return,
    };
    // SAFETY: the kernel has read this string.
    unsafe { note_path(path as *const c_char) };
}
