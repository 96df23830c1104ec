//! mremap of managed memory. The kernel moves the mapping, the engine its content.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;

use folioswap::{BLOCK_BYTES, PAGE_SIZE, RawSpace, Relocation};
use folioswap_sys::memory::{self, Reservation};
use folioswap_sys::resident;

use crate::faults::signal_stack;
use crate::ground::export::export;
use crate::ground::guard;
use crate::ground::real::{kernel, own};
use crate::ground::state::{self, Phase};
use crate::map::adopt;
use crate::map::listed::{self, Listed};
use crate::map::managed::manage;
use crate::map::mapping::{Replacing, failed, forget_early, replace};
use crate::map::ring_places;
use crate::memory::known::{self, Leaving};
use crate::memory::open_pages;
use crate::memory::pages::{are_possible, pages};
use crate::memory::refused;

const PLAIN_MOVE: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;

/// The arguments of `mremap`, in whole pages.
struct Request {
    old: Range<usize>,
    new_len: usize,
    flags: c_int,
    target: usize,
    /// Whether the kernel was called, which may have unmapped the target before it failed.
    was_tried: Cell<bool>,
}

impl Request {
    fn new(old: Range<usize>, new_len: usize, flags: c_int, target: usize) -> Self {
        Request { old, new_len, flags, target, was_tried: Cell::new(false) }
    }

    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Whether the kernel may accept it: the arguments fit each other, and the ranges are possible and do not overlap.
    fn is_sound(&self) -> bool {
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let to = self.target..self.target.saturating_add(self.new_len);
        let is_apart = || to.start >= self.old.end || self.old.start >= to.end;
        self.flags & !known == 0
            && are_possible(&self.old)
            && (!self.old.is_empty() || self.has(libc::MREMAP_FIXED))
            && are_possible(&(0..self.new_len))
            && self.new_len > 0
            && (!self.has(libc::MREMAP_FIXED) || are_possible(&to) && is_apart())
            && (self.has(libc::MREMAP_MAYMOVE) || !self.has(libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP))
            && (!self.has(libc::MREMAP_DONTUNMAP) || self.old.len() == self.new_len)
    }

    /// The last page of the old range.
    fn last(&self) -> Range<usize> {
        self.old.end.saturating_sub(PAGE_SIZE)..self.old.end
    }

    /// The part of the old range that stays.
    fn kept(&self) -> Range<usize> {
        self.old.start..self.old.end.min(self.old.start + self.new_len)
    }

    /// Moves the mappings. Where they are several, they move one by one: the kernel may fail after it has moved some,
    /// and not say which. As in the kernel, only one can get another length, or one with guards.
    fn carry(&self, space: &RawSpace, target: usize) -> io::Result<(usize, Leaving)> {
        let (flags, kept) = (self.flags | PLAIN_MOVE, self.kept());
        if self.is_one_mapping() {
            return self.leave(|| self.call(flags, target));
        }
        let parts = match self.new_len == self.old.len() && self.has(libc::MREMAP_FIXED) {
            true => listed::parts(&self.old).unwrap_or_else(|| self.known_parts()),
            false => self.parts_of_one(space)?,
        };
        if parts.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        self.leave(|| {
            carry(&parts, target, self.new_len - kept.len(), flags)?;
            if kept.end < self.old.end {
                // SAFETY: the program gives up the tail, too.
                unsafe { kernel!(libc::SYS_munmap, kept.end, self.old.end - kept.end) };
            }
            Ok(target)
        })
    }

    /// Makes the calls that move the mappings, with what is known of them taken out of the sets.
    fn leave(&self, calls: impl FnOnce() -> io::Result<usize>) -> io::Result<(usize, Leaving)> {
        let leaving = known::leave(&self.old);
        self.was_tried.set(true);
        match calls() {
            Ok(at) => Ok((at, leaving)),
            Err(error) => {
                leaving.stay();
                Err(error)
            }
        }
    }

    /// Grows the mapping where it lies, the last one if it is several.
    fn grow(&self, space: &RawSpace) -> io::Result<usize> {
        let Request { old, new_len, .. } = self;
        let parts = if self.is_one_mapping() { vec![old.clone()] } else { self.parts_of_one(space)? };
        let last = parts.last().unwrap_or(old).clone();
        let new_len = new_len - (last.start - old.start);
        Request::new(last, new_len, 0, 0).call(0, 0)?;
        Ok(old.start)
    }

    /// The mappings of what stays, if that is one to the program: parts are not managed, and the kernel does not always
    /// join what the engine has moved.
    ///
    /// # Errors
    /// `EFAULT` if it is not one.
    fn parts_of_one(&self, space: &RawSpace) -> io::Result<Vec<Range<usize>>> {
        let (kept, unmanaged) = (self.kept(), self.unmanaged_parts());
        let parts = listed::parts(&kept).unwrap_or_else(|| self.known_parts());
        let len = parts.iter().map(Range::len).sum::<usize>();
        let is_divided = known::is_divided(&kept) || space.is_partly_locked(&kept);
        let is_seam = |at: usize| unmanaged.iter().any(|part| part.start == at || part.end == at);
        let are_seams = parts.windows(2).all(|pair| is_seam(pair[0].end));
        match len == kept.len() && !is_divided && (are_seams || are_alike(&kept)) {
            true => Ok(parts),
            false => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Parts of what is one mapping to the program: those with guards, and what was there before the mapping outgrew
    /// the ordinary share.
    fn unmanaged_parts(&self) -> Vec<Range<usize>> {
        [known::guarded(), known::ordinary()].map(|set| set.parts(&self.kept())).concat()
    }

    /// The parts of what stays, as far as they are known without the kernel's list.
    fn known_parts(&self) -> Vec<Range<usize>> {
        let managed = state::space().map_or_else(Vec::new, |space| space.managed_parts(self.kept()));
        let mut parts = [managed, self.unmanaged_parts()].concat();
        parts.sort_unstable_by_key(|part| part.start);
        parts
    }

    /// Whether the old range lies in one mapping: to let that grow beyond all addresses fails for lack of room. With
    /// several, or with none, it fails because they are not one.
    fn is_one_mapping(&self) -> bool {
        let beyond = Request::new(self.old.clone(), (1 << 47) - PAGE_SIZE, 0, 0);
        matches!(beyond.call(0, 0), Err(error) if error.raw_os_error() != Some(libc::EFAULT))
    }

    /// Fails as the kernel has.
    fn refused(&self, error: &io::Error) -> *mut c_void {
        let number = error.raw_os_error().unwrap_or(libc::ENOMEM);
        if number == libc::ENOMEM && self.new_len > self.old.len() {
            refused::note(self.new_len - self.old.len());
        }
        failed(number)
    }

    /// Notes where the mapping is now.
    fn note_moved(&self, leaving: &Leaving, at: usize) {
        known::moved(leaving, &self.old, &(at..at + self.new_len), self.has(libc::MREMAP_DONTUNMAP));
    }

    /// Notes where these parts of it are now. What lies between their new places has stayed there.
    fn note_parts_moved(&self, leaving: &Leaving, parts: &[Range<usize>], new: &[Range<usize>]) {
        open_pages::note_closed(&(self.kept().end..self.old.end));
        for (part, new) in parts.iter().zip(new) {
            known::moved(leaving, part, new, self.has(libc::MREMAP_DONTUNMAP));
        }
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
    if *new_len <= old.len() {
        let tail = old.start + new_len..old.end;
        if tail.is_empty() || !memory::is_mapped(old.start..old.start + PAGE_SIZE) {
            return request.call(0, 0);
        }
        let replacing = Replacing::removing(space, old);
        // SAFETY: the program gives up the tail.
        return known::forget_by(&tail, || unsafe { replace(space, &tail, replacing, || request.call(0, 0)) });
    }
    let last = old.end - PAGE_SIZE..old.end;
    if space.has_locked(&last) {
        // What grows is locked too. The kernel fills it at once, and it is not managed: nor is the page that it joins
        // meanwhile, which is in RAM. Other threads may use the mapping.
        space.touch(last.start, PAGE_SIZE);
        let new_len = PAGE_SIZE + new_len - old.len();
        let ranges = Relocation { from: last.clone(), new_len, alike: true, replaced: &[], keeps_old: false };
        // SAFETY: nothing is replaced, and nothing moves.
        return unsafe { space.relocate(ranges, || request.grow(space).map(|_| last.start)) }.map(|_| old.start);
    }
    let grown = request.grow(space);
    if grown.is_ok() && !space.managed_parts(last).is_empty() {
        manage(space, old.end..old.start + new_len);
    }
    grown
}

/// Flags of a mapping that the engine changes, or keeps to itself: dontcopy, wipeonfork, userfaultfd, huge pages,
/// noreserve, guards, softdirty.
const ENGINES_FLAGS: [&str; 8] = ["dc", "wf", "um", "hg", "nh", "nr", "gu", "sd"];

/// Whether all mappings in a range have the same protection, advice and locks. This list is slow to read.
fn are_alike(range: &Range<usize>) -> bool {
    let Some(listed) = listed::with_flags() else { return true };
    let mut inside = listed.into_iter().filter(|part| part.range.start < range.end && range.start < part.range.end);
    let flags = |part: Listed| -> Vec<_> {
        part.flags.into_iter().filter(|flag| !ENGINES_FLAGS.contains(&flag.as_str())).collect()
    };
    inside.next().map(flags).is_none_or(|first| inside.all(|part| flags(part) == first))
}

/// Joins ordinary mappings that would be one, had this library not advised huge pages for the larger ones. Whether it
/// has changed anything.
fn join(range: &Range<usize>) -> bool {
    if known::ordinary().parts(range) != [range.clone()] {
        return false;
    }
    let Some(listed) = listed::with_flags() else { return false };
    let inside = listed.iter().filter(|part| part.range.start < range.end && range.start < part.range.end);
    let flags = |part: &Listed| part.flags.iter().filter(|&flag| flag != "hg" && flag != "sd").cloned().collect();
    let mut kinds: Vec<Vec<String>> = inside.map(flags).collect();
    let are_several = kinds.len() > 1;
    kinds.dedup();
    are_several
        && matches!(&kinds[..], [kind] if !kind.iter().any(|flag| flag == "nh"))
        && memory::advise_hugepage(range.start, range.len()).is_ok()
}

/// Moves mappings one by one: the kernel does not move several at once if it reports their faults. The last one grows
/// by `more` bytes. A move that fails leaves all where they were, but for what was at the target.
fn carry(parts: &[Range<usize>], to: usize, more: usize, flags: c_int) -> io::Result<()> {
    let Some(from) = parts.first().map(|part| part.start) else { return Ok(()) };
    for (index, part) in parts.iter().enumerate() {
        let target = to + (part.start - from);
        let new_len = if index + 1 == parts.len() { part.len() + more } else { part.len() };
        let request = Request::new(part.clone(), new_len, flags, target);
        if let Err(error) = request.call(flags, target) {
            let moved: Vec<_> =
                parts[..index].iter().map(|part| part.start - from + to..part.end - from + to).collect();
            let _ = carry(&moved, from, 0, PLAIN_MOVE);
            return Err(error);
        }
    }
    Ok(())
}

/// Where parts of `old` are in a target.
fn at_target(parts: &[Range<usize>], old: &Range<usize>, to: &Range<usize>) -> Vec<Range<usize>> {
    let at = |addr: usize| addr - old.start + to.start;
    let end = |part: &Range<usize>| if part.end == old.end { to.end } else { at(part.end).min(to.end) };
    parts.iter().map(|part| at(part.start)..end(part)).collect()
}

/// Moves mappings to where the program wants them. Gaps between them stay gaps, and what is at the target there stays,
/// as in Linux 6.17.
fn move_to_target(space: &RawSpace, request: &Request) -> io::Result<usize> {
    let Request { old, new_len, target, .. } = request;
    let to = *target..target + new_len;
    let kept = request.kept();
    let managed = space.managed_parts(kept.clone());
    // What is managed is mapped, but perhaps in several mappings.
    let parts = if managed == [kept.clone()] { managed } else { listed::parts(&kept).unwrap_or(vec![kept.clone()]) };
    if !old.is_empty() && parts.first().is_none_or(|part| part.start != kept.start) {
        return request.call(request.flags, *target); // an error
    }
    let replaced = if old.is_empty() { vec![to.clone()] } else { at_target(&parts, old, &to) };
    let ranges = Relocation {
        from: old.clone(),
        new_len: *new_len,
        alike: old.start % BLOCK_BYTES == to.start % BLOCK_BYTES,
        replaced: &replaced,
        keeps_old: request.has(libc::MREMAP_DONTUNMAP),
    };
    // SAFETY: the program gives up what is at the target.
    let (moved, leaving) = unsafe { relocate(space, ranges, || request.carry(space, to.start)) }?;
    match old.is_empty() {
        true => request.note_moved(&leaving, moved),
        false => request.note_parts_moved(&leaving, &parts, &replaced),
    }
    Ok(moved)
}

/// Whether the process may have more addresses where there is no room for the whole of a mapping: its limit may permit
/// what it grows by.
fn permits_more(len: usize) -> bool {
    let mapped = || resident::mapped_bytes().unwrap_or(0);
    memory::address_limit().is_some_and(|limit| mapped().saturating_add(len as u64) <= limit)
}

/// Whether the kernel has so much more writable memory for the program.
fn may_grow(len: usize) -> bool {
    if len == 0 {
        return true;
    }
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, known to nobody.
    unsafe {
        let trial = own!(libc::SYS_mmap, 0usize, len, access, flags, -1i32, 0usize);
        trial >= 0 && own!(libc::SYS_munmap, trial, len) == 0
    }
}

/// Moves one mapping to where there is room, with the same offset in a block if possible.
fn move_somewhere(space: &RawSpace, request: &Request) -> io::Result<usize> {
    let Request { old, new_len, .. } = request;
    let offset = old.start % BLOCK_BYTES;
    if !may_grow(new_len.saturating_sub(old.len())) {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM)); // before a place is reserved
    }
    let place = Reservation::for_program(offset + new_len, BLOCK_BYTES).ok();
    if place.is_none() && !permits_more(new_len.saturating_sub(old.len())) {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM)); // before what other threads use is taken out
    }
    let ranges = Relocation {
        from: old.clone(),
        new_len: *new_len,
        alike: place.is_some(),
        replaced: &[],
        keeps_old: request.has(libc::MREMAP_DONTUNMAP),
    };
    let call = || match &place {
        Some(place) => request.carry(space, place.addr() + offset),
        None => request.leave(|| request.call(request.flags, 0)),
    };
    // SAFETY: nothing is replaced.
    let moved = unsafe { relocate(space, ranges, call) };
    if moved.is_err() && request.was_tried.get() {
        place.into_iter().for_each(Reservation::leak); // it may have gone, and another thread may have mapped there
        return moved.map(|(at, _)| at);
    }
    let (moved, leaving) = moved?;
    if let Some(place) = place {
        if offset > 0 {
            // SAFETY: the part of this call's own reservation before the mapping.
            unsafe { own!(libc::SYS_munmap, place.addr(), offset) };
        }
        place.leak();
    }
    request.note_moved(&leaving, moved);
    Ok(moved)
}

/// Has the engine move what `call` does. Returns where it is, and what was known of it.
///
/// # Safety
/// As [`RawSpace::relocate`].
unsafe fn relocate(
    space: &RawSpace,
    ranges: Relocation<'_>,
    call: impl FnOnce() -> io::Result<(usize, Leaving)>,
) -> io::Result<(usize, Leaving)> {
    let mut left = None;
    let call = || {
        let (at, leaving) = call()?;
        left = Some(leaving);
        Ok(at)
    };
    // SAFETY: the caller upholds this function's own contract.
    let at = unsafe { space.relocate(ranges, call) }?;
    Ok((at, left.expect("the call has succeeded")))
}

/// Has the engine manage what a mapping of the ordinary share has grown by, if the share has no room for it.
fn limit_growth(space: &RawSpace, request: &Request, at: usize) {
    let grown = at + request.old.len().min(request.new_len)..at + request.new_len;
    if !grown.is_empty() && !adopt::has_room(0) && !known::locked().overlaps(&grown) {
        known::take_ordinary(grown.clone());
        manage(space, grown);
    }
}

/// Has the engine manage what a mapping of the ordinary share has left empty, if the share has no room for it.
fn limit_left(space: &RawSpace, request: &Request) {
    if request.has(libc::MREMAP_DONTUNMAP) && !adopt::has_room(0) {
        known::take_ordinary(request.old.clone());
        adopt::as_it_is(space, &request.old);
    }
}

/// Implements `mremap` for managed memory, and notes what has moved. The arguments are sound.
fn remap_managed(space: &RawSpace, request: &Request) -> io::Result<usize> {
    let Request { old, new_len, .. } = request;
    let is_divided = |kept| known::is_divided(kept) || space.is_partly_locked(kept);
    let may_be_several = *new_len == old.len() || (*new_len < old.len() && !request.has(libc::MREMAP_FIXED));
    if !may_be_several && is_divided(&request.kept()) {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    if request.has(libc::MREMAP_FIXED) {
        return move_to_target(space, request);
    }
    if !request.has(libc::MREMAP_DONTUNMAP) {
        match resize(space, request) {
            Err(error) if request.has(libc::MREMAP_MAYMOVE) && error.raw_os_error() == Some(libc::ENOMEM) => {}
            done => return done.inspect(|&at| request.note_moved(&known::leave(&request.old), at)),
        }
    }
    move_somewhere(space, request)
}

/// Grows or shrinks managed memory, which may move.
///
/// # Safety
/// The range is the caller's, and nobody uses it meanwhile.
pub unsafe fn remap(space: &RawSpace, old: Range<usize>, new_len: usize) -> io::Result<usize> {
    let request = Request::new(old, new_len, libc::MREMAP_MAYMOVE, 0);
    remap_managed(space, &request)
}

export! {
    fn mremap(addr: *mut c_void, old_len: usize, new_len: usize, flags: c_int, target: *mut c_void) -> *mut c_void {
        state::as_the_kernel(|| {
            // SAFETY: passes the caller's arguments on unchanged.
            let call = || unsafe { kernel!(libc::SYS_mremap, addr, old_len, new_len, flags, target) as *mut c_void };
            if pages(new_len) == pages(old_len) && flags & !libc::MREMAP_MAYMOVE == 0 {
                return call(); // it stays as it is
            }
            let old = addr as usize..(addr as usize).saturating_add(pages(old_len));
            let last = old.end.saturating_sub(PAGE_SIZE);
            if adopt::lacks_room(new_len.saturating_sub(old_len))
                && (state::overlaps(last, 1) || known::ordinary().overlaps(&(last..last + PAGE_SIZE)))
            {
                adopt::now();
            }
            forget_early(&old);
            if guard::inside() || !state::may_manage() {
                return call();
            }
            let request = Request::new(old, pages(new_len), flags, target as usize);
            let to = request.target..request.target.saturating_add(request.new_len);
            if request.has(libc::MREMAP_FIXED) {
                ring_places::make_way(&to);
            }
            let _left_old = signal_stack::leave(&request.old);
            let _left_new = request.has(libc::MREMAP_FIXED).then(|| signal_stack::leave(&to));
            let _guard = guard::enter();
            let _held = (state::phase() == Phase::Managed).then(known::beginning); // a forked child finds what is known
            if request.has(libc::MREMAP_FIXED) && request.is_sound() {
                open_pages::note_closed(&to); // the kernel unmaps it first, also if it then refuses the rest
            }
            let is_target_ours = request.has(libc::MREMAP_FIXED) && state::overlaps(to.start, to.len());
            let is_ours = is_target_ours || state::overlaps(request.old.start, request.old.len().max(1));
            if is_ours
                && request.is_sound()
                && let Some(space) = state::space()
                && (is_target_ours || !space.managed_parts(request.old.clone()).is_empty())
            {
                let ends_in_guards = known::guarded().overlaps(&request.last());
                return match remap_managed(space, &request) {
                    Ok(at) => {
                        if ends_in_guards && request.new_len > request.old.len() {
                            manage(space, at + request.old.len()..at + request.new_len);
                        }
                        at as *mut c_void
                    }
                    Err(error) => request.refused(&error),
                };
            }
            let was_ordinary = known::ordinary().overlaps(&request.last());
            let attempt = || {
                request.leave(|| match call() {
                    libc::MAP_FAILED => Err(io::Error::from_raw_os_error(state::errno())),
                    at => Ok(at as usize),
                })
            };
            let first = attempt();
            let are_two = matches!(&first, Err(error) if error.raw_os_error() == Some(libc::EFAULT)) && was_ordinary;
            match if are_two && join(&request.old) { attempt() } else { first } {
                Ok((at, leaving)) => {
                    request.note_moved(&leaving, at);
                    if was_ordinary && let Some(space) = state::space() {
                        limit_growth(space, &request, at);
                        limit_left(space, &request);
                    }
                    at as *mut c_void
                }
                Err(error) => request.refused(&error),
            }
        })
    }
}
