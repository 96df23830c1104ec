//! mremap of managed memory. The kernel moves the mapping, the engine its content.

use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;

use folioswap::{RawSpace, Relocation};
use folioswap_sys::memory::Reservation;

use crate::export::export;
use crate::map::mapping::{BLOCK_BYTES, PAGE_BYTES, failed, manage, pages};
use crate::map::{known, protection};
use crate::real::kernel;
use crate::{guard, state};

const MREMAP_DONTUNMAP: c_int = 4;

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

    fn call(&self, flags: c_int, target: usize) -> io::Result<usize> {
        // SAFETY: the program's own call, perhaps at an address that this library chose.
        let result = unsafe { kernel!(libc::SYS_mremap, self.old.start, self.old.len(), self.new_len, flags, target) };
        if result < 0 { Err(io::Error::from_raw_os_error(state::errno())) } else { Ok(result as usize) }
    }
}

/// Shrinks a mapping, or grows it where it lies.
fn resize(space: &RawSpace, request: &Request) -> io::Result<usize> {
    let Request { old, new_len, .. } = request;
    if *new_len < old.len() {
        let tail = old.start + new_len..old.end;
        known::forget(&tail);
        protection::unlock(space, &tail);
        // SAFETY: the program gives up the tail.
        return unsafe { space.forget(tail, || request.call(0, 0)) };
    }
    let at = request.call(0, 0)?;
    if *new_len > old.len() && !space.managed_parts(old.end - PAGE_BYTES..old.end).is_empty() {
        manage(space, old.end..old.start + new_len);
    }
    Ok(at)
}

/// What the kernel says of this process's mappings. Read without the C library, in which a thread can be cancelled.
fn listed() -> String {
    let mut text = Vec::new();
    let mut buffer = [0u8; 16 << 10];
    // SAFETY: the path is a C string, the kernel fills in the buffer, and the descriptor is this call's own.
    unsafe {
        let path = c"/proc/self/maps".as_ptr();
        let fd = kernel!(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC);
        while let Ok(len @ 1..) = usize::try_from(kernel!(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len())) {
            text.extend_from_slice(&buffer[..len]);
        }
        kernel!(libc::SYS_close, fd);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The mappings in a range, as the kernel lists them.
fn mappings(range: &Range<usize>) -> Vec<Range<usize>> {
    let listed = listed();
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let mapping = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(number(start)?.max(range.start)..number(end)?.min(range.end))
    };
    listed.lines().filter_map(mapping).filter(|part| !part.is_empty()).collect()
}

/// Moves mappings one by one, because the kernel may refuse to move several at once, and then may have moved some. A
/// move that fails leaves all where they were.
fn carry(parts: &[Range<usize>], from: usize, to: usize, flags: c_int) -> io::Result<()> {
    for (index, part) in parts.iter().enumerate() {
        let old = from + part.start..from + part.end;
        let request = Request { new_len: old.len(), old, flags, target: to + part.start };
        if let Err(error) = request.call(flags, request.target) {
            let _ = carry(&parts[..index], to, from, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
            return Err(error);
        }
    }
    Ok(())
}

/// Moves mappings to where the program wants them, or to a place with the same offset in a block. They go by way of a
/// place that nobody uses: a call that the kernel refuses leaves what is at the target. Gaps between them stay gaps,
/// and what is at the target there stays, as in Linux 6.17.
fn move_away(space: &RawSpace, request: &Request) -> io::Result<usize> {
    let kept = request.old.start..request.old.end.min(request.old.start + request.new_len);
    let parts = mappings(&kept);
    let grows = request.new_len > request.old.len();
    let resizes = request.new_len != request.old.len();
    if parts.first().is_none_or(|part| part.start != kept.start) || (resizes && parts.len() > 1) {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    let offset = request.old.start % BLOCK_BYTES;
    let place = Reservation::new(offset + request.new_len, BLOCK_BYTES)?;
    let aside = place.addr() + offset;
    let start = if request.has(libc::MREMAP_FIXED) { request.target } else { aside };
    let to = start..start + request.new_len;
    // What is moved, counted from the start.
    let mut moved: Vec<Range<usize>> =
        parts.iter().map(|part| part.start - request.old.start..part.end - request.old.start).collect();
    if grows {
        moved[0].end = request.new_len;
    }
    let replaced: Vec<Range<usize>> = moved.iter().map(|part| start + part.start..start + part.end).collect();
    let was_locked = space.has_locked(&request.old);
    protection::unlock(space, &request.old);
    let keeps_old = request.has(MREMAP_DONTUNMAP);
    let plain = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let there = || {
        if start == aside {
            return Ok(());
        }
        for part in &replaced {
            known::forget(part);
            protection::unlock(space, part);
        }
        carry(&moved, aside, start, plain)
    };
    let back = || drop(carry(&moved, aside, request.old.start, plain));
    for _ in 0..TRIES {
        let away = || {
            if grows {
                return request.call(request.flags | plain, aside).map(drop);
            }
            carry(&moved, request.old.start, aside, request.flags | plain)?;
            // SAFETY: the program gives up the rest.
            unsafe { kernel!(libc::SYS_munmap, kept.end, request.old.end - kept.end) };
            Ok(())
        };
        let ranges = Relocation { from: request.old.clone(), to: to.clone(), replaced: &replaced, keeps_old };
        // SAFETY: the program gives up what is at the new place. Nothing is present at the old one when the kernel
        // moves the mapping.
        match unsafe { space.relocate(ranges, away, there, back) } {
            None => std::thread::yield_now(), // a part is in use
            Some(moved) => {
                moved?;
                if start == aside {
                    // SAFETY: the rest of the reservation before the mapping.
                    unsafe { kernel!(libc::SYS_munmap, place.addr(), offset) };
                    place.leak();
                }
                if !keeps_old {
                    known::forget(&request.old);
                }
                if was_locked {
                    // SAFETY: changes neither content nor access.
                    unsafe { protection::mlock2(start as *const c_void, request.new_len, libc::MLOCK_ONFAULT) };
                }
                return Ok(start);
            }
        }
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
            if !is_target_ours && !state::overlaps(request.old.start, request.old.len().max(1)) {
                return call();
            }
            // What the kernel would refuse, it refuses: arguments that do not fit each other, and ranges that overlap.
            let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | MREMAP_DONTUNMAP;
            let is_sound = flags & !known == 0
                && request.old.start.is_multiple_of(PAGE_BYTES)
                && !request.old.is_empty()
                && request.new_len > 0
                && !(request.has(libc::MREMAP_FIXED)
                    && (!to.start.is_multiple_of(PAGE_BYTES) || (to.start < request.old.end && request.old.start < to.end)))
                && (request.has(libc::MREMAP_MAYMOVE) || flags & (libc::MREMAP_FIXED | MREMAP_DONTUNMAP) == 0)
                && (!request.has(MREMAP_DONTUNMAP) || request.old.len() == request.new_len);
            if !is_sound {
                return call();
            }
            let _guard = guard::enter();
            if !is_target_ours && space.managed_parts(request.old.clone()).is_empty() {
                return call();
            }
            match remap_managed(space, &request) {
                Ok(at) => at as *mut c_void,
                Err(error) => failed(error.raw_os_error().unwrap_or(libc::ENOMEM)),
            }
        })
    }
}
