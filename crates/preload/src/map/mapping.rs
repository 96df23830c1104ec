//! What mmap and munmap do, and which mappings are managed.
//!
//! The kernel keeps the address space. Each call is made as the program made it, and the engine is told of private
//! anonymous memory: of what came *after* the call, before the program knows its address; of what goes *before* the
//! call. Threads that touch what goes meanwhile wait until the kernel's call is done. But what another thread writes to
//! new memory before its mmap has returned may be dropped.
//!
//! These functions enter the kernel directly, without a symbol lookup: mimalloc and the loader may call them at any
//! time.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicIsize, Ordering};

use folioswap::{BLOCK_BYTES, PAGE_SIZE, RawSpace, Replaced};
use folioswap_sys::memory::{self, Reservation, place_apart};
use folioswap_sys::{maps, own_calls};

use crate::faults::signal_stack;
use crate::ground::guard;
use crate::ground::real::{kernel, own};
use crate::ground::state::{self, Outcome, Phase};
use crate::map::managed::{self, manage, note_unmanaged};
use crate::map::{adopt, footprint, ring_places};
use crate::memory::pages::{PLAIN, are_possible, pages};
use crate::memory::{known, open_pages, refused};

/// Flags of mappings that are not managed.
const UNMANAGED: c_int =
    libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_LOCKED | libc::MAP_SHARED;

/// An `mprotect` flag for memory that holds semaphores. No effect on this architecture. Missing from the libc crate.
const PROT_SEM: c_int = 8;

/// Whether a mapping may be managed, now or once it is readable and writable.
fn is_manageable(flags: c_int) -> bool {
    flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_TYPE == libc::MAP_PRIVATE && flags & UNMANAGED == 0
}

/// Whether nobody can write to new memory with this protection. It takes no room before it gets another one.
fn is_reserve(access: c_int) -> bool {
    access & libc::PROT_WRITE == 0
}

/// Whether new memory with this protection is managed at once. Managed memory may get any protection later.
pub fn is_plain(access: c_int) -> bool {
    access & !(PROT_SEM | libc::PROT_EXEC | libc::PROT_READ) == libc::PROT_WRITE // what is writable is readable
}

/// Sets errno and returns MAP_FAILED.
pub fn failed(errno: c_int) -> *mut c_void {
    state::fail(errno);
    libc::MAP_FAILED
}

/// Forgets what was managed where the kernel has just found free addresses: it was unmapped by a call that this library
/// does not see.
fn forget_unseen(space: &RawSpace, range: &Range<usize>) {
    if state::overlaps(range.start, range.len()) && !space.managed_parts(range.clone()).is_empty() {
        // SAFETY: nobody knows the content of the new mapping, and the one before it is gone.
        state::keeping_errno(|| unsafe { space.forget(range.clone(), || ()) });
    }
}

/// Notes a new mapping. `is_ours`: it is to be managed. `replaced`: managed memory was there.
fn note_mapped(
    space: &RawSpace,
    range: Range<usize>,
    protection: c_int,
    flags: c_int,
    (is_ours, replaced): (bool, bool),
) {
    if !are_possible(&range) {
        return; // above 47 bits nothing is managed
    }
    let _guard = guard::enter();
    known::forget(&range);
    if !replaced {
        forget_unseen(space, &range);
    }
    // A mapped file may be shorter than its mapping.
    if protection & PLAIN == PLAIN && flags & libc::MAP_ANONYMOUS != 0 {
        open_pages::note_open(&range);
    }
    if is_ours && is_plain(protection) && !replaced {
        manage(space, range);
    } else if is_ours && is_reserve(protection) {
        known::reserved().add(range);
    } else if is_manageable(flags) && !is_ours {
        note_ordinary(range);
    }
}

/// Notes new memory that is not managed yet. As in managed memory, its whole blocks come in huge pages: there is room.
/// What lies beside such memory is advised like it before it is touched, so that the kernel joins the two.
pub fn note_ordinary(range: Range<usize>) {
    known::note_ordinary(range.clone());
    let Some(around) = known::ordinary().around(range.start).filter(|_| adopt::is_later()) else { return };
    if around.len() >= BLOCK_BYTES {
        // What was smaller than a block until now is not advised yet.
        let part = if around.len() - range.len().min(around.len()) < BLOCK_BYTES { around } else { range };
        // What the kernel refuses comes in small pages.
        state::keeping_errno(|| _ = memory::advise_hugepage(part.start, part.len()));
    }
}

/// Notes a mapping of a program that waits for the engine.
fn note_while_waiting(range: Range<usize>, protection: c_int, flags: c_int) {
    let _guard = guard::enter();
    known::forget(&range);
    match is_manageable(flags) {
        true if is_reserve(protection) => known::reserved().add(range),
        true => note_ordinary(range),
        false => {}
    }
}

/// Notes what a constructor reserves. What it can write to is found once all have run ([`super::present`]).
fn note_early(range: Range<usize>, protection: c_int, flags: c_int) {
    let _guard = guard::enter();
    known::reserved().remove(range.clone());
    if is_manageable(flags) && is_reserve(protection) {
        known::reserved().add(range);
    }
}

/// Forgets what a constructor has reserved, as it unmaps, moves or opens it.
pub fn forget_early(range: &Range<usize>) {
    if state::phase() == Phase::Early && !guard::inside() {
        let _guard = guard::enter();
        known::reserved().remove(range.clone());
    }
}

pub unsafe fn kernel_mmap(
    addr: *mut c_void,
    len: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: passes the caller's arguments on unchanged.
    unsafe { kernel!(libc::SYS_mmap, addr, len, access, flags, fd, offset) as *mut c_void }
}

/// The flags of a mapping, for private memory without the kernel's promise of RAM or swap. It would refuse more than
/// the machine has, also when the program forks, though what there is no RAM for goes to our swap.
fn without_reserve(flags: c_int) -> c_int {
    let kind = flags & (libc::MAP_TYPE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB);
    if kind == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS { flags | libc::MAP_NORESERVE } else { flags }
}

/// The size of the folios that small mappings are in.
const PIECE_BYTES: usize = 64 << 10;

/// How many mappings alignment may still keep from being joined with their neighbours: at first a fourth of what Linux
/// permits a process. Below zero: how many were not aligned since.
static MAY_LIE_APART: AtomicIsize = AtomicIsize::new(MOST_APART);
const MOST_APART: isize = 16 << 10;

/// After how many that were not aligned the mappings are counted.
const COUNT_EVERY: isize = 1 << 10;

/// Whether one more mapping may lie apart from its neighbours. The process must not have too many because of that.
fn may_lie_apart() -> bool {
    match MAY_LIE_APART.fetch_sub(1, Ordering::Relaxed) {
        1.. => return true,
        left if left > -COUNT_EVERY => return false,
        _ => {}
    }
    // A seccomp filter may kill the process for opening a file.
    let may = !own_calls::is_used() && maps::count().is_ok_and(|nr_mappings| nr_mappings < 2 * MOST_APART as usize);
    MAY_LIE_APART.store(if may { MOST_APART } else { 0 }, Ordering::Relaxed);
    may
}

/// Maps new memory from the start of a block on, so that as much of it as possible is whole blocks; less than a block
/// from the start of a piece on. `always`: else not where a gap would keep the kernel from joining too many mappings
/// with what lies behind. `None`: the kernel has no room.
fn map_aligned(len: usize, access: c_int, flags: c_int, always: bool) -> Option<*mut c_void> {
    let align = if len < BLOCK_BYTES { PIECE_BYTES } else { BLOCK_BYTES };
    let (len, slack) = (pages(len), align - PAGE_SIZE);
    let whole = len.checked_add(slack)?;
    // SAFETY: a new mapping at an address that the kernel chooses. What is trimmed off is known to nobody.
    unsafe {
        let mapped = state::keeping_errno(|| kernel_mmap(null_mut(), whole, access, flags, -1, 0));
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let aligned = (mapped as usize).next_multiple_of(align) - mapped as usize;
        let before = match always || aligned == slack || may_lie_apart() {
            true => aligned,
            false => slack,
        };
        let start = mapped as usize + before;
        for (part, len) in [(mapped as usize, before), (start + len, slack - before)] {
            if len > 0 {
                state::keeping_errno(|| own!(libc::SYS_munmap, part, len));
            }
        }
        Some(start as *mut c_void)
    }
}

/// Maps new readable and writable memory from the start of a block on, and has it managed unless there is room. `None`:
/// the kernel has no memory.
pub fn map_blocks(space: &RawSpace, len: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let Some(start) = map_aligned(len, PLAIN, flags, true) else {
        refused::note(len);
        return None;
    };
    let start = start as usize;
    open_pages::note_open(&(start..start + len));
    match adopt::has_room(len) {
        true => note_ordinary(start..start + len),
        false => manage(space, start..start + len),
    }
    Some(start)
}

/// Unmaps memory of [`map_blocks`].
///
/// # Safety
/// The caller gives these pages up.
pub unsafe fn unmap_blocks(space: &RawSpace, range: Range<usize>) {
    let held = adopt::hold();
    known::forget(&range);
    let _held = adopt::hold_forgotten(held);
    // SAFETY: the caller's promise. A call that fails leaves the mapping, as zeros.
    unsafe { replace(space, &range, REMOVES, || kernel!(libc::SYS_munmap, range.start, range.len()) as c_int) };
}

/// What a call does with a range that has managed parts.
#[derive(Clone, Copy)]
pub struct Replacing {
    /// If it succeeds, the range is managed from then on.
    pub is_new: bool,
    /// The kernel may refuse it: something else lies in the range too, which may be sealed or of huge pages, or what
    /// comes there may be locked.
    pub may_fail: bool,
}

/// A call that unmaps nothing but managed memory. The kernel does that.
pub const REMOVES: Replacing = Replacing { is_new: false, may_fail: false };

impl Replacing {
    /// A call that unmaps a range, of which what is known is not forgotten yet.
    pub fn removing(space: &RawSpace, range: &Range<usize>) -> Self {
        Replacing { may_fail: !is_all_known(space, range), ..REMOVES }
    }
}

/// Whether a range holds nothing but private anonymous memory: managed, or such as may be.
fn is_all_known(space: &RawSpace, range: &Range<usize>) -> bool {
    let sets = [known::reserved(), known::guarded(), known::ordinary()].map(|set| set.parts(range));
    let parts = sets.into_iter().flatten().chain(space.managed_parts(range.clone()));
    parts.map(|part| part.len()).sum::<usize>() >= range.len()
}

/// Calls the kernel to unmap or replace a range that has managed parts, and drops their content. If the call fails, the
/// parts are managed as before, and those that the kernel was sure to unmap are empty.
///
/// # Safety
/// The program gives up what is there.
pub unsafe fn replace<R: Outcome>(
    space: &RawSpace,
    range: &Range<usize>,
    Replacing { is_new, may_fail }: Replacing,
    call: impl FnOnce() -> R,
) -> R {
    if !may_divide(space, range) {
        state::fail(libc::ENOMEM);
        return R::failed();
    }
    if may_fail {
        let call = |replaced: &Replaced<'_>| {
            let result = call();
            if result.has_failed() {
                return Err((result, state::errno()));
            }
            if is_new {
                // SAFETY: what the kernel has just mapped is private and anonymous.
                state::keeping_errno(|| note_unmanaged(unsafe { replaced.manage(range.clone()) }));
            }
            Ok((result, state::errno()))
        };
        // SAFETY: the caller's promise.
        let (result, errno) = unsafe { space.try_replace(range, call) }.unwrap_or_else(|refused| refused);
        state::fail(errno);
        return result;
    }
    managed::unlock(space, range);
    // SAFETY: the caller's promise. What the kernel has just mapped, or has left as it was, is private and anonymous.
    unsafe {
        space.replace(range.clone(), |replaced| {
            let result = call();
            state::keeping_errno(|| {
                if result.has_failed() {
                    // Whatever is no longer mapped cannot be managed.
                    replaced.managed().iter().for_each(|part| _ = replaced.manage(part.clone()));
                } else if is_new {
                    note_unmanaged(replaced.manage(range.clone()));
                }
            });
            result
        })
    }
}

/// The size of the pages that a mapping is made of: mmap and munmap take nothing smaller.
fn page_bytes(flags: c_int, fd: c_int) -> usize {
    let is_file = flags & libc::MAP_ANONYMOUS == 0;
    match (flags & libc::MAP_HUGETLB != 0, flags as u32 >> libc::MAP_HUGE_SHIFT & 0x3f) {
        _ if is_file => state::keeping_errno(|| huge_file_page_bytes(fd)).unwrap_or(PAGE_SIZE),
        (false, _) => PAGE_SIZE,
        (true, 0) => BLOCK_BYTES, // the default on this architecture, unless the kernel was started with another
        (true, exponent) => 1 << exponent,
    }
}

/// The size of the pages of a file of huge pages; `None`: it is another file.
fn huge_file_page_bytes(fd: c_int) -> Option<usize> {
    // SAFETY: all zeroes is a valid `statfs`, which the kernel fills in.
    let about = unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        (own!(libc::SYS_fstatfs, fd, &raw mut about) == 0).then_some(about)?
    };
    (about.f_type == libc::HUGETLBFS_MAGIC).then_some(about.f_bsize as usize)
}

/// Maps over managed memory. First the same is mapped elsewhere, so that most of what the kernel refuses leaves what is
/// there: a page of it, or all of a file, of a device, which may have one size only, or of huge pages.
unsafe fn map_over(
    space: &RawSpace,
    range: &Range<usize>,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let elsewhere = flags & !(libc::MAP_FIXED | libc::MAP_POPULATE | libc::MAP_LOCKED) | libc::MAP_NORESERVE;
    let is_plain_memory = flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_HUGETLB == 0;
    let trial_len = if is_plain_memory { PAGE_SIZE } else { range.len() };
    // SAFETY: a new mapping at an address that the kernel chooses, known to nobody.
    unsafe {
        let trial = kernel_mmap(null_mut(), trial_len, access, elsewhere, fd, offset);
        if trial != libc::MAP_FAILED {
            own!(libc::SYS_munmap, trial, trial_len.next_multiple_of(page_bytes(flags, fd)));
        } else if is_plain_memory || state::errno() != libc::ENOMEM {
            return trial; // but for lack of room for both
        }
    }
    let is_ours = is_manageable(flags);
    let _guard = guard::enter();
    let flags = if is_ours { flags & !libc::MAP_POPULATE } else { flags };
    let replacing =
        Replacing { is_new: is_ours && is_plain(access), may_fail: !is_ours || !is_all_known(space, range) };
    // SAFETY: the program gives up what is there.
    unsafe {
        replace(space, range, replacing, || {
            kernel_mmap(range.start as *mut c_void, range.len(), access, flags, fd, offset)
        })
    }
}

/// Whether a call maps zeros privately (`/dev/zero`), which is the same as anonymous memory.
fn maps_zeros(access: c_int, flags: c_int, fd: c_int, offset: i64) -> bool {
    let kind = flags & (libc::MAP_TYPE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB); // it has no huge pages
    let is_private_file = kind == libc::MAP_PRIVATE && fd >= 0;
    let is_offset = offset >= 0 && (offset as usize).is_multiple_of(PAGE_SIZE);
    let may_be = is_private_file && access & libc::PROT_EXEC == 0 && is_offset;
    if !may_be || guard::inside() || !state::may_manage() {
        return false;
    }
    state::keeping_errno(|| {
        // SAFETY: all zeroes is a valid `stat`, which the kernel fills in.
        let (about, mode) = unsafe {
            let mut about: libc::stat = std::mem::zeroed();
            if own!(libc::SYS_fstat, fd, &raw mut about) != 0 || about.st_rdev != libc::makedev(1, 5) {
                return false;
            }
            (about, own!(libc::SYS_fcntl, fd, libc::F_GETFL) as c_int)
        };
        let is_readable = mode & libc::O_PATH == 0 && mode & libc::O_ACCMODE != libc::O_WRONLY;
        about.st_mode & libc::S_IFMT == libc::S_IFCHR && mode >= 0 && is_readable
    })
}

/// Maps something of the engine's, not where the program has just unmapped something and may map again. Some files
/// choose the place themselves, as that of a ring does (Linux 6.4), and refuse any other with EINVAL. MAP_32BIT keeps
/// them to the addresses from 1 to 2 GiB.
fn map_apart(len: usize, map: impl Fn(*mut c_void, c_int) -> *mut c_void) -> *mut c_void {
    let place = without_provenance_mut(place_apart(pages(len)));
    let mapped = map(place, 0);
    if mapped == libc::MAP_FAILED && state::errno() == libc::EINVAL {
        let mapped = map(null_mut(), libc::MAP_32BIT);
        if mapped != libc::MAP_FAILED {
            ring_places::note(mapped as usize, pages(len));
        }
        return mapped;
    }
    mapped
}

/// Maps memory as the program asks.
///
/// # Safety
/// As `mmap`.
pub unsafe fn map(addr: *mut c_void, len: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
    state::as_the_kernel(|| {
        let (flags, fd, offset) = match maps_zeros(access, flags, fd, offset) {
            true => (flags | libc::MAP_ANONYMOUS, -1, 0),
            false => (flags, fd, offset),
        };
        if is_manageable(flags) && !is_reserve(access) {
            adopt::make_room(pages(len));
        }
        let Some(space) = state::space().filter(|_| !guard::inside()) else {
            // SAFETY: passes the caller's arguments on.
            let map = |addr, more| unsafe { kernel_mmap(addr, len, access, flags | more, fd, offset) };
            let mapped = if addr.is_null() && guard::inside() { map_apart(len, map) } else { map(addr, 0) };
            let range = mapped as usize..mapped as usize + pages(len);
            match state::phase() {
                _ if guard::inside() || mapped == libc::MAP_FAILED => {}
                Phase::Waiting => note_while_waiting(range, access, flags),
                Phase::Early => note_early(range, access, flags),
                Phase::Passing | Phase::Managed => {}
            }
            return mapped;
        };
        let flags = without_reserve(flags);
        let may_replace = flags & libc::MAP_FIXED != 0;
        let unit = if may_replace { page_bytes(flags, fd) } else { PAGE_SIZE };
        let whole_len = pages(len).checked_next_multiple_of(unit).unwrap_or(pages(len));
        let range = addr as usize..(addr as usize).saturating_add(whole_len);
        if !addr.is_null() {
            ring_places::make_way(&range);
        }
        let _guard = may_replace.then(guard::enter);
        let _held = if may_replace { adopt::hold() } else { None };
        let is_fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED;
        if is_fixed && are_possible(&range) {
            open_pages::note_closed(&range); // until it is known what comes there
        }
        let replaces = is_fixed && state::overlaps(range.start, range.len()) && are_possible(&range);
        let is_ours = is_manageable(flags) && (replaces || is_reserve(access) || !adopt::has_room(pages(len)));
        let placed = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT;
        let is_free = len >= PIECE_BYTES && addr.is_null() && flags & placed == 0;
        let without_populate = if is_ours { flags & !libc::MAP_POPULATE } else { flags };
        let aligned = || map_aligned(len, access, without_populate, false);
        // SAFETY: passes the caller's arguments on, at addresses that the program or this call chooses.
        let mapped = unsafe {
            if replaces {
                map_over(space, &range, access, flags, fd, offset)
            } else if let Some(mapped) = (is_free && is_ours).then(aligned).flatten() {
                mapped
            } else {
                kernel_mmap(addr, len, access, without_populate, fd, offset)
            }
        };
        if mapped != libc::MAP_FAILED {
            let range = mapped as usize..mapped as usize + whole_len;
            note_mapped(space, range, access, flags, (is_ours, replaces));
        } else if state::errno() == libc::ENOMEM {
            refused::note(pages(len));
        }
        mapped
    })
}

/// Unmaps memory as the program asks.
///
/// # Safety
/// As `munmap`.
pub unsafe fn unmap(addr: *mut c_void, len: usize) -> c_int {
    state::as_the_kernel(|| {
        // SAFETY: passes the caller's arguments on unchanged.
        let unmap = || unsafe { kernel!(libc::SYS_munmap, addr, len) as c_int };
        let range = addr as usize..(addr as usize).saturating_add(pages(len));
        match guard::inside() {
            true => ring_places::forget(range.start),
            false => ring_places::make_way(&range),
        }
        forget_early(&range);
        if len == 0 || !are_possible(&range) || guard::inside() || !state::may_manage() {
            return unmap();
        }
        let _left = signal_stack::leave(&range);
        let _guard = guard::enter();
        let held = adopt::hold();
        let replacing = state::space().map(|space| Replacing::removing(space, &range));
        known::forget_by(&range, || {
            let _held = adopt::hold_forgotten(held);
            let Some((space, replacing)) = state::space().zip(replacing) else { return unmap() };
            let managed = match state::overlaps(range.start, range.len()) {
                true => space.managed_parts(range.clone()).iter().map(Range::len).sum(),
                false => 0,
            };
            footprint::before_unmapping(range.len() - managed);
            if managed == 0 {
                return unmap();
            }
            // SAFETY: the program gives these pages up.
            unsafe { replace(space, &range, replacing, unmap) }
        })
    })
}

/// Whether the kernel has room for the mappings that remain when a range is unmapped or replaced. Once the engine has
/// dropped the content, the call should not fail.
fn may_divide(space: &RawSpace, range: &Range<usize>) -> bool {
    let is_inner = |edge: usize| {
        let around = edge.saturating_sub(PAGE_SIZE)..edge + PAGE_SIZE;
        space.managed_parts(around.clone()) == [around]
    };
    // A mapping that becomes three.
    let has_room = || {
        let trial = Reservation::new(3 * PAGE_SIZE, PAGE_SIZE)?;
        trial.protect_rw(trial.addr() + PAGE_SIZE..trial.addr() + 2 * PAGE_SIZE)
    };
    !(is_inner(range.start) || is_inner(range.end)) || state::keeping_errno(has_room).is_ok()
}
