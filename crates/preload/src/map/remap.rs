//! mremap of managed memory. The kernel moves the mapping, the engine its content.

use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;

use folioswap::{RawSpace, Relocation};
use folioswap_sys::memory::Reservation;

use crate::export::export;
use crate::map::advice::others;
use crate::map::mapping::{BLOCK_BYTES, PAGE_BYTES, are_possible, failed, manage, pages, replace};
use crate::map::{known, protection};
use crate::real::kernel;
use crate::{guard, state};

const MREMAP_DONTUNMAP: c_int = 4;

const PLAIN_MOVE: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;

/// How often a mapping is tried to be moved of which a part is in use.
const TRIES: usize = 1000;

/// The arguments of `mremap`, in whole pages.
struct Request {
    old: Range<usize>,
    new_len: usize,
    flags: c_int,
    target: usize,
}

impl Request {
    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Whether the kernel may accept it: the arguments fit each other, and the ranges are possible and do not overlap.
    fn is_sound(&self) -> bool {
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | MREMAP_DONTUNMAP;
        let to = self.target..self.target.saturating_add(self.new_len);
        let is_apart = || to.start >= self.old.end || self.old.start >= to.end;
        self.flags & !known == 0
            && are_possible(&self.old)
            && !self.old.is_empty()
            && are_possible(&(0..self.new_len))
            && self.new_len > 0
            && (!self.has(libc::MREMAP_FIXED) || are_possible(&to) && is_apart())
            && (self.has(libc::MREMAP_MAYMOVE) || !self.has(libc::MREMAP_FIXED | MREMAP_DONTUNMAP))
            && (!self.has(MREMAP_DONTUNMAP) || self.old.len() == self.new_len)
    }

    fn call(&self, flags: c_int, target: usize) -> io::Result<usize> {
        // SAFETY: the program's own call, perhaps at an address that this library chose.
        let result = unsafe { kernel!(libc::SYS_mremap, self.old.start, self.old.len(), self.new_len, flags, target) };
        if result < 0 { Err(io::Error::from_raw_os_error(state::errno())) } else { Ok(result as usize) }
    }
}

/// Forgets what was known of a mapping that is at another place now, or of its end.
fn forget_known(request: &Request, at: usize) {
    let Request { old, new_len, .. } = request;
    if at == old.start {
        known::forget(&(old.start + new_len.min(&old.len())..old.start + new_len.max(&old.len())));
    } else {
        known::forget(old);
        known::forget(&(at..at + new_len));
    }
}

/// Shrinks a mapping, or grows it where it lies.
fn resize(space: &RawSpace, request: &Request) -> io::Result<usize> {
    let Request { old, new_len, .. } = request;
    if *new_len <= old.len() {
        let tail = old.start + new_len..old.end;
        let mut present = 0u8;
        // SAFETY: the kernel writes one byte.
        let is_mapped = unsafe { kernel!(libc::SYS_mincore, old.start, PAGE_BYTES, &raw mut present) } == 0;
        if tail.is_empty() || !is_mapped {
            return request.call(0, 0);
        }
        known::forget(&tail);
        // SAFETY: the program gives up the tail.
        return unsafe { replace(space, &tail, false, || request.call(0, 0)) };
    }
    let last = old.end - PAGE_BYTES..old.end;
    // What grows is locked as the rest is, and then the kernel would make pages there before they are managed.
    let locked = if space.has_locked(&last) { protection::unlock(space, old) } else { Vec::new() };
    let grown = request.call(0, 0);
    if grown.is_ok() && !space.managed_parts(last).is_empty() {
        manage(space, old.end..old.start + new_len);
    }
    let len = if grown.is_ok() { *new_len } else { old.len() };
    lock_as_before(space, locked, old, old.start..old.start + len);
    grown
}

/// Locks what was locked in `old`, at its place in `new`. What has grown is locked as the last page was.
fn lock_as_before(space: &RawSpace, locked: Vec<Range<usize>>, old: &Range<usize>, new: Range<usize>) {
    let at = |addr: usize| (new.start + (addr - old.start)).min(new.end);
    for part in locked {
        protection::lock_again(space, at(part.start)..at(part.end));
        if part.end == old.end {
            protection::lock_again(space, at(part.end)..new.end);
        }
    }
}

/// What the kernel says of this process's mappings. Read without the C library, in which a thread can be cancelled.
/// `None`: it cannot be read, or a thread of the program has closed the descriptor.
fn listed() -> Option<String> {
    let mut text = Vec::new();
    let mut buffer = [0u8; 16 << 10];
    // SAFETY: the path is a C string, the kernel fills in the buffer, and the descriptor is this call's own.
    unsafe {
        let path = c"/proc/self/maps".as_ptr();
        let fd = kernel!(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC);
        loop {
            match usize::try_from(kernel!(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len())) {
                Ok(0) => break,
                Ok(len) => text.extend_from_slice(&buffer[..len]),
                Err(_) => return None,
            }
        }
        kernel!(libc::SYS_close, fd);
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The mappings in a range, as the kernel lists them, or the range if it does not list them.
fn mappings(range: &Range<usize>) -> Vec<Range<usize>> {
    let Some(listed) = listed() else { return vec![range.clone()] };
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let mapping = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(number(start)?.max(range.start)..number(end)?.min(range.end))
    };
    listed.lines().filter_map(mapping).filter(|part| !part.is_empty()).collect()
}

/// Moves mappings one by one, because the kernel may refuse to move several at once, and then may have moved some. The
/// last one grows by `more` bytes. A move that fails leaves all where they were.
fn carry(parts: &[Range<usize>], from: usize, to: usize, more: usize, flags: c_int) -> io::Result<()> {
    for (index, part) in parts.iter().enumerate() {
        let old = from + part.start..from + part.end;
        let new_len = if index + 1 == parts.len() { old.len() + more } else { old.len() };
        let request = Request { new_len, old, flags, target: to + part.start };
        if let Err(error) = request.call(flags, request.target) {
            let _ = carry(&parts[..index], to, from, 0, PLAIN_MOVE);
            return Err(error);
        }
    }
    Ok(())
}

/// Moves mappings to where the program wants them, or to a place with the same offset in a block. Gaps between them
/// stay gaps, and what is at the target there stays, as in Linux 6.17.
fn move_away(space: &RawSpace, request: &Request) -> io::Result<usize> {
    let Request { old, new_len, .. } = request;
    let kept = old.start..old.end.min(old.start + new_len);
    let parts = mappings(&kept);
    if parts.first().is_none_or(|part| part.start != kept.start) || (*new_len != old.len() && parts.len() > 1) {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    let locked = protection::unlock(space, old);
    let parts: Vec<_> = parts.iter().map(|part| part.start - old.start..part.end - old.start).collect();
    let moved = move_parts(space, request, &parts);
    match moved {
        Ok(start) => lock_as_before(space, locked, old, start..start + new_len),
        Err(_) => lock_as_before(space, locked, old, old.clone()),
    }
    moved
}

/// Moves mappings, counted from the start, by way of a place that nobody uses: a call that the kernel refuses leaves
/// what is at the target.
fn move_parts(space: &RawSpace, request: &Request, parts: &[Range<usize>]) -> io::Result<usize> {
    let Request { old, new_len, .. } = request;
    let more = new_len.saturating_sub(old.len());
    let is_named = request.has(libc::MREMAP_FIXED);
    let offset = old.start % BLOCK_BYTES;
    let place = Reservation::new(offset + new_len, BLOCK_BYTES)?;
    let aside = place.addr() + offset;
    let start = if is_named { request.target } else { aside };
    let (more_aside, more_there) = if is_named { (0, more) } else { (more, 0) };
    let at = |start: usize, more: usize| {
        let mut at: Vec<_> = parts.iter().map(|part| start + part.start..start + part.end).collect();
        at.last_mut().expect("there is a mapping").end += more;
        at
    };
    let replaced = if is_named { at(start, more) } else { Vec::new() };
    let away = || carry(parts, old.start, aside, more_aside, request.flags | PLAIN_MOVE);
    let there = || {
        if is_named {
            replaced.iter().for_each(|part| drop(protection::unlock(space, part)));
            carry(parts, aside, start, more_there, PLAIN_MOVE)?;
        }
        if *new_len < old.len() {
            // SAFETY: the program gives up the rest.
            unsafe { kernel!(libc::SYS_munmap, old.start + new_len, old.len() - new_len) };
        }
        Ok(())
    };
    let back = || drop(carry(parts, aside, old.start, 0, PLAIN_MOVE));
    let keeps_old = request.has(MREMAP_DONTUNMAP);
    for _ in 0..TRIES {
        let ranges = Relocation { from: old.clone(), to: start..start + new_len, replaced: &replaced, keeps_old };
        // SAFETY: the program gives up what is at the new place. Nothing is present at the old one when the kernel
        // moves the mapping.
        let Some(moved) = (unsafe { space.relocate(ranges, away, there, back) }) else {
            std::thread::yield_now(); // a part is in use
            continue;
        };
        // The rest of the place. Where a mapping was, others may be by now.
        for rest in others(&place.range(), &at(aside, more_aside)) {
            // SAFETY: a part of this call's own reservation.
            unsafe { kernel!(libc::SYS_munmap, rest.start, rest.len()) };
        }
        place.leak();
        moved?;
        known::forget(old);
        replaced.iter().for_each(known::forget);
        return Ok(start);
    }
    Err(io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Implements `mremap` for managed memory.
fn remap_managed(space: &RawSpace, request: &Request) -> io::Result<usize> {
    let moves = request.has(libc::MREMAP_FIXED) || request.has(MREMAP_DONTUNMAP);
    if !moves {
        match resize(space, request) {
            Err(error) if request.has(libc::MREMAP_MAYMOVE) && error.raw_os_error() == Some(libc::ENOMEM) => {}
            done => return done,
        }
    }
    move_away(space, request)
}

export! {
    fn mremap(addr: *mut c_void, old_len: usize, new_len: usize, flags: c_int, target: *mut c_void) -> *mut c_void {
        state::as_the_kernel(|| {
            // SAFETY: passes the caller's arguments on unchanged.
            let call = || unsafe { kernel!(libc::SYS_mremap, addr, old_len, new_len, flags, target) as *mut c_void };
            let Some(space) = state::space().filter(|_| !guard::inside()) else { return call() };
            let old = addr as usize..(addr as usize).saturating_add(pages(old_len));
            let request = Request { old, new_len: pages(new_len), flags, target: target as usize };
            let to = request.target..request.target.saturating_add(request.new_len);
            let is_target_ours = request.has(libc::MREMAP_FIXED) && state::overlaps(to.start, to.len());
            let is_ours = is_target_ours || state::overlaps(request.old.start, request.old.len().max(1));
            let _guard = guard::enter();
            if is_ours
                && request.is_sound()
                && (is_target_ours || !space.managed_parts(request.old.clone()).is_empty())
            {
                return match remap_managed(space, &request) {
                    Ok(at) => at as *mut c_void,
                    Err(error) => failed(error.raw_os_error().unwrap_or(libc::ENOMEM)),
                };
            }
            let at = call();
            if at != libc::MAP_FAILED {
                forget_known(&request, at as usize);
            }
            at
        })
    }
}
