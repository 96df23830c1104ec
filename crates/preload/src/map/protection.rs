//! mprotect and mlock. Protection is the kernel's. Memory that was reserved without access becomes managed when it is
//! made readable and writable.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use folioswap::{PAGE_SIZE, RangeSet, RawSpace};

use crate::ground::export::export;
use crate::ground::real::kernel;
use crate::ground::{guard, state, waiting};
use crate::map::adopt;
use crate::map::managed::manage;
use crate::map::mapping::{forget_early, is_plain, note_ordinary};
use crate::memory::pages::{PLAIN, are_possible, pages};
use crate::memory::{key_rights, known, open_pages};

/// How often a range that is to be locked is brought in, because parts of it left meanwhile.
const LOCK_TRIES: usize = 10;

/// Called before a range gets another protection: has the reserved parts of it managed if it becomes writable. Nobody
/// has written to them, unless by `/proc/self/mem`, so what is present is zeros. `key`: as of pkey_mprotect. Returns
/// the parts that are readable and writable then.
fn before_protecting(range: &Range<usize>, access: c_int, key: c_int) -> Vec<Range<usize>> {
    if access & PLAIN != PLAIN || key != -1 {
        open_pages::note_closed(range);
    }
    if access & libc::PROT_WRITE != 0 {
        forget_early(range);
    }
    if guard::inside() || !state::may_manage() || !are_possible(range) {
        return Vec::new();
    }
    if key > 0 {
        let _guard = guard::enter();
        known::keyed().add(range.clone());
        known::reserved().remove(range.clone()); // mprotect leaves it its key
    }
    if access & libc::PROT_WRITE == 0 {
        return Vec::new();
    }
    let is_open = is_plain(access) && key == -1;
    let mut guard = guard::enter();
    if is_open && adopt::lacks_room(known::reserved().parts(range).iter().map(Range::len).sum()) {
        drop(guard);
        adopt::now();
        guard = guard::enter();
    }
    let _guard = guard;
    let _beginning = known::beginning();
    let parts = known::reserved().remove(range.clone());
    if !is_open {
        return Vec::new(); // nor will it be later, when it may have content
    }
    for part in parts.iter().cloned() {
        let (locked, mut free) = (known::locked().parts(&part), RangeSet::new());
        free.add(part);
        for part in locked {
            free.remove(part.clone());
            note_ordinary(part);
        }
        for part in free.iter() {
            match state::space() {
                Some(space) if !adopt::has_room(part.len()) => match known::has_memory_file() {
                    true => adopt::as_it_is(space, &part),
                    false => with_neighbours(part).into_iter().for_each(|part| manage(space, part)),
                },
                _ => note_ordinary(part),
            }
        }
    }
    let managed = state::space().map(|space| space.managed_parts(range.clone()));
    parts.into_iter().chain(managed.into_iter().flatten()).collect()
}

/// A part that becomes managed, and its neighbours.
fn with_neighbours(part: Range<usize>) -> Vec<Range<usize>> {
    let mut all = RangeSet::new();
    known::take_neighbours(&part).into_iter().chain([part]).for_each(|part| all.add(part));
    all.iter().collect()
}

/// Makes a call that changes mappings, but neither their content nor their place.
pub fn change<R>(range: &Range<usize>, call: impl FnOnce() -> R) -> R {
    match state::space().filter(|_| state::overlaps(range.start, range.len()) && !guard::inside()) {
        Some(space) => {
            let _guard = guard::enter();
            space.change_mappings(call)
        }
        None => call(),
    }
}

/// Implements both calls.
fn protect(addr: *mut c_void, len: usize, access: c_int, key: c_int, call: impl FnOnce() -> c_int) -> c_int {
    state::as_the_kernel(|| {
        let opened = before_protecting(&(addr as usize..(addr as usize).saturating_add(pages(len))), access, key);
        let result = change(&(addr as usize..(addr as usize).saturating_add(len)), call);
        if result == 0 {
            opened.iter().for_each(open_pages::note_open);
        }
        result
    })
}

export! {
    fn mprotect(addr: *mut c_void, len: usize, access: c_int) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        protect(addr, len, access, -1, move || unsafe { kernel!(libc::SYS_mprotect, addr, len, access) as c_int })
    }

    fn pkey_mprotect(addr: *mut c_void, len: usize, access: c_int, key: c_int) -> c_int {
        if key > 0 {
            key_rights::note_keys();
        }
        // SAFETY: passes the caller's arguments on unchanged.
        let call = move || unsafe { kernel!(libc::SYS_pkey_mprotect, addr, len, access, key) as c_int };
        protect(addr, len, access, key, call)
    }

    fn mlock(addr: *const c_void, len: usize) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { mlock2(addr, len, 0) }
    }

    fn mlock2(addr: *const c_void, len: usize, flags: u32) -> c_int {
        state::as_the_kernel(|| {
            adopt::before_keeping(&(addr as usize..(addr as usize).saturating_add(len)));
            let lock = || {
                // SAFETY: passes the caller's arguments on unchanged.
                let locked = unsafe { kernel!(libc::SYS_mlock2, addr, len, flags) as c_int };
                if (locked == 0 || state::errno() == libc::ENOMEM) && !guard::inside() {
                    let range = addr as usize & !(PAGE_SIZE - 1)..pages((addr as usize).saturating_add(len));
                    note_locked(&range, locked == 0);
                }
                locked
            };
            let is_ours = state::overlaps(addr as usize, len) && flags & !libc::MLOCK_ONFAULT == 0 && !guard::inside();
            let Some(space) = state::space().filter(|_| is_ours && may_lock()) else { return lock() };
            let start = addr as usize & !(PAGE_SIZE - 1);
            let range = start..pages((addr as usize).saturating_add(len));
            if !are_possible(&range) {
                return lock();
            }
            let managed: usize = {
                let _guard = guard::enter();
                space.managed_parts(range.clone()).iter().map(Range::len).sum()
            };
            if managed == 0 {
                return lock();
            }
            // From here on what comes in stays.
            let is_noted = {
                let _guard = guard::enter();
                space.note_locked(range.clone())
            };
            if !is_noted {
                state::fail(libc::ENOMEM);
                return -1;
            }
            let is_brought_in = flags & libc::MLOCK_ONFAULT == 0;
            for _ in 0..LOCK_TRIES {
                if is_brought_in {
                    let _guard = guard::enter();
                    state::keeping_errno(|| space.touch(range.start, range.len()));
                }
                if lock() == 0 {
                    return 0;
                }
                if !is_brought_in || !state::direct() {
                    break;
                }
            }
            state::keeping_errno(|| note_unlocked(&range, false));
            -1
        })
    }
}

/// Notes what the program has locked of memory that is not managed. Unless `is_all`, the kernel may have locked none,
/// because of a limit, or some or all of it: what has no access is locked, though it could not be brought in.
fn note_locked(range: &Range<usize>, is_all: bool) {
    let _guard = guard::enter();
    let mut parts = [known::reserved(), known::ordinary()].map(|set| set.parts(range)).concat();
    if !is_all {
        parts = still_locked(parts);
    }
    let mut locked = known::locked();
    parts.into_iter().for_each(|part| locked.add(part));
}

/// Notes that a range is no longer locked. Unless `is_all`, but for what the kernel has locked still: what lies behind
/// a hole, or was locked though it could not be brought in. That stays noted meanwhile, else it might leave RAM.
fn note_unlocked(range: &Range<usize>, is_all: bool) {
    let _guard = guard::enter();
    let space = state::space();
    let mut unlocked = RangeSet::new();
    unlocked.add(range.clone());
    if !is_all {
        let managed = space.map_or_else(Vec::new, |space| space.managed_parts(range.clone()));
        let others = known::locked().parts(range);
        still_locked([managed, others].concat()).into_iter().for_each(|part| _ = unlocked.remove(part));
    }
    for part in unlocked.iter() {
        known::locked().remove(part.clone());
        space.into_iter().for_each(|space| drop(space.note_unlocked(part.clone())));
    }
}

/// What the kernel has locked of these parts.
fn still_locked(parts: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut locked: Vec<Range<usize>> = Vec::new();
    let pages = parts.into_iter().flat_map(|part| part.step_by(PAGE_SIZE));
    for page in pages.filter(|&page| state::keeping_errno(|| is_locked(page))) {
        match locked.last_mut() {
            Some(last) if last.end == page => last.end += PAGE_SIZE,
            _ => locked.push(page..page + PAGE_SIZE),
        }
    }
    locked
}

/// Whether the kernel has locked a page: it makes no such page the next to leave.
fn is_locked(page: usize) -> bool {
    // SAFETY: changes neither content nor access.
    unsafe { kernel!(libc::SYS_madvise, page, PAGE_SIZE, libc::MADV_COLD) < 0 && state::errno() == libc::EINVAL }
}

/// Whether the kernel lets the caller lock memory at all.
fn may_lock() -> bool {
    // SAFETY: locks nothing.
    state::keeping_errno(|| unsafe { kernel!(libc::SYS_mlock, 0usize, 0usize) == 0 })
}

export! {
    fn munlock(addr: *const c_void, len: usize) -> c_int {
        state::as_the_kernel(|| {
            if state::space().is_some_and(|space| space.is_locked() && state::overlaps(addr as usize, len)) {
                return 0; // the budget stays locked
            }
            // SAFETY: passes the caller's arguments on unchanged.
            let unlocked = unsafe { kernel!(libc::SYS_munlock, addr, len) as c_int };
            let is_done = unlocked == 0 || state::errno() == libc::ENOMEM; // parts are, up to a hole
            if is_done && len > 0 && !guard::inside() {
                let range = addr as usize & !(PAGE_SIZE - 1)..pages((addr as usize).saturating_add(len));
                state::keeping_errno(|| note_unlocked(&range, unlocked == 0));
            }
            unlocked
        })
    }

    fn munlockall() -> c_int {
        state::as_the_kernel(|| {
            if state::space().is_some_and(RawSpace::is_locked) {
                return 0; // the budget stays locked, and the program's own locks with it
            }
            // SAFETY: passes the caller's arguments on unchanged.
            let unlocked = unsafe { kernel!(libc::SYS_munlockall) as c_int };
            if !guard::inside() {
                let _guard = guard::enter();
                known::locked().remove(0..usize::MAX);
                state::space().into_iter().for_each(|space| drop(space.note_unlocked(0..usize::MAX)));
            }
            unlocked
        })
    }

    fn mlockall(flags: c_int) -> c_int {
        // A program that is still small keeps all of its memory in RAM from now on, as it wants.
        const KNOWN: c_int = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
        let is_known = flags & !KNOWN == 0 && flags & !libc::MCL_ONFAULT != 0;
        if state::space().is_some() && is_known && may_lock() {
            // More memory than the budget cannot be locked in RAM. The kernel returns ENOMEM beyond RLIMIT_MEMLOCK too.
            state::fail(libc::ENOMEM);
            return -1;
        }
        // SAFETY: passes the caller's arguments on unchanged.
        let result = unsafe { kernel!(libc::SYS_mlockall, flags) as c_int };
        if result == 0 {
            waiting::never("it has locked all of it in RAM");
        }
        result
    }
}
