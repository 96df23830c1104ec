//! madvise and its kin. Advice about the content of managed memory is the engine's; all other advice is the kernel's.

use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;

use folioswap::{Advice, BLOCK_BYTES, PAGE_SIZE, RawSpace};
use folioswap_sys::signals::thread_id;
use folioswap_sys::{own_table, said};

use crate::ground::export::export;
use crate::ground::guard;
use crate::ground::real::kernel;
use crate::ground::state::{self, Phase};
use crate::map::{adopt, protection};
use crate::memory::access::{self, Access};
use crate::memory::pages::pages;
use crate::memory::{known, open_pages};

/// Linux 6.13. The libc crate lacks them.
const MADV_GUARD_INSTALL: c_int = 102;
pub const MADV_GUARD_REMOVE: c_int = 103;

/// Values that stand for the calling thread and its process in place of a pidfd. Linux 6.14.
const PIDFD_SELF: [c_int; 2] = [-10000, -10001];

/// The parts of a range that are not managed.
pub fn others(range: &Range<usize>, managed: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut others = Vec::new();
    let mut at = range.start;
    for part in managed {
        others.push(at..part.start);
        at = part.end;
    }
    others.push(at..range.end);
    others.retain(|part| !part.is_empty());
    others
}

fn kernel_advise(range: &Range<usize>, advice: c_int) -> c_int {
    // SAFETY: the program's own call.
    unsafe { kernel!(libc::SYS_madvise, range.start, range.len(), advice) as c_int }
}

/// What to do after the engine was told.
enum Then {
    /// The kernel does it for the parts that are not managed.
    Others,
    /// The kernel does it for the whole range.
    All,
}

/// Tells the engine of advice about managed memory.
fn advise_managed(space: &RawSpace, part: &Range<usize>, advice: c_int) -> Then {
    match advice {
        libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED => {
            // SAFETY: the program declares that it does not need the content of these pages.
            unsafe { space.discard(part.start, part.len()) };
            Then::Others
        }
        libc::MADV_FREE => {
            // SAFETY: as above.
            unsafe { space.offer(part.clone()) };
            Then::Others
        }
        libc::MADV_WILLNEED => {
            space.advise(part.start, part.len(), Advice::WillNeed);
            Then::Others
        }
        libc::MADV_COLD | libc::MADV_PAGEOUT => {
            match advice {
                libc::MADV_COLD => space.make_oldest(part.start, part.len()),
                _ => space.page_out(part.start, part.len()),
            }
            Then::Others
        }
        libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE => {
            let wish = if advice == libc::MADV_HUGEPAGE { Advice::HugePage } else { Advice::NoHugePage };
            space.advise(part.start, part.len(), wish);
            Then::Others
        }
        // What comes in comes in huge pages where it can. The kernel may be told to make none itself.
        libc::MADV_COLLAPSE => {
            if part.len() as u64 <= space.memory() / 4 {
                space.touch(part.start, part.len());
            }
            Then::Others
        }
        // The engine keeps managed memory from children itself, and wipes it there. The kernel may have been told to
        // wipe it before it was managed.
        libc::MADV_WIPEONFORK | libc::MADV_DONTFORK | libc::MADV_DOFORK => Then::Others,
        // The kernel does not move pages that it has merged.
        libc::MADV_MERGEABLE | libc::MADV_UNMERGEABLE => Then::Others,
        _ => Then::All,
    }
}

/// Advice on what children get. It is noted also for memory that may be managed later.
fn is_for_children(advice: c_int) -> bool {
    matches!(advice, libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK | libc::MADV_DONTFORK | libc::MADV_DOFORK)
}

/// Advice that the kernel follows by itself, whatever is managed.
fn is_kernels(advice: c_int) -> bool {
    use libc::{
        MADV_DODUMP, MADV_DONTDUMP, MADV_MERGEABLE, MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_UNMERGEABLE,
    };
    let kernels =
        [MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_DODUMP, MADV_DONTDUMP, MADV_MERGEABLE, MADV_UNMERGEABLE];
    kernels.contains(&advice)
}

/// Memory with guards is not managed, and does not become so when it gets another protection. A part loses its content
/// only once the kernel has accepted those before it.
fn install_guards(space: &RawSpace, range: &Range<usize>) -> c_int {
    open_pages::note_closed(range);
    in_order(space, range, |part, is_managed| {
        let install = || kernel_advise(part, MADV_GUARD_INSTALL);
        // SAFETY: the program gives up the content.
        let result = if is_managed { unsafe { space.release(part.clone(), install) } } else { install() };
        if result == 0 || state::errno() == libc::ENOMEM {
            if is_managed {
                state::keeping_errno(|| _ = kernel_advise(part, libc::MADV_DOFORK));
            }
            let reserved = known::reserved().remove(part.clone());
            is_managed.then(|| part.clone()).into_iter().chain(reserved).for_each(|part| known::guarded().add(part));
        }
        result
    })
}

fn remove_guards(space: &RawSpace, range: &Range<usize>) -> c_int {
    let _beginning = known::beginning();
    let result = kernel_advise(range, MADV_GUARD_REMOVE);
    let parts = known::guarded().remove(range.clone());
    // Another thread may have written to them by now.
    state::keeping_errno(|| parts.iter().for_each(|part| adopt::as_it_is(space, part)));
    result
}

/// Brings the managed parts in, a few blocks at a time, which are held while the kernel looks at them. The first error
/// ends the call, as in the kernel.
fn populate(space: &RawSpace, range: &Range<usize>, advice: c_int) -> c_int {
    const HELD_BYTES: usize = 2 * BLOCK_BYTES;
    let managed = space.managed_parts(range.clone());
    let others = others(range, &managed).into_iter().map(|part| (part.start, part.len(), false));
    let in_steps = |part: &Range<usize>| {
        let end = part.end;
        part.clone().step_by(HELD_BYTES).map(move |at| (at, HELD_BYTES.min(end - at), true))
    };
    let mut steps: Vec<_> = managed.iter().flat_map(in_steps).chain(others).collect();
    steps.sort_unstable();
    for (at, len, is_managed) in steps {
        // SAFETY: the program passes this range to the call.
        state::keeping_errno(|| _ = is_managed.then(|| unsafe { space.hold(at, len) }));
        let result = kernel_advise(&(at..at + len), advice);
        // SAFETY: held above.
        state::keeping_errno(|| _ = is_managed.then(|| unsafe { space.release_hold(at, len) }));
        if result < 0 {
            return result;
        }
    }
    0
}

/// Whether a range lies within a block, apart from its edges. The kernel collapses nothing there, and says so.
fn is_within_block(range: &Range<usize>) -> bool {
    range.start.next_multiple_of(BLOCK_BYTES) > range.end / BLOCK_BYTES * BLOCK_BYTES
}

/// Implements `madvise` on a range with managed parts.
fn advise(start: usize, len: usize, advice: c_int) -> c_int {
    let range = start..start.saturating_add(pages(len));
    let end = len.checked_next_multiple_of(PAGE_SIZE).and_then(|len| start.checked_add(len));
    if end.is_none() {
        // Beyond the largest number: the kernel refuses all of it.
        // SAFETY: the program's own call.
        return unsafe { kernel!(libc::SYS_madvise, start, len, advice) as c_int };
    }
    let is_known = is_for_children(advice) || matches!(advice, MADV_GUARD_INSTALL | MADV_GUARD_REMOVE);
    let is_ours =
        |_: &&RawSpace| len > 0 && start.is_multiple_of(PAGE_SIZE) && (is_known || state::overlaps(start, len));
    if matches!(advice, libc::MADV_WIPEONFORK | libc::MADV_MERGEABLE) {
        adopt::before_keeping(&range);
    }
    if is_kernels(advice) {
        return protection::change(&range, move || kernel_advise(&(start..start.saturating_add(len)), advice));
    }
    if advice == MADV_GUARD_INSTALL && state::may_manage() {
        adopt::now(); // later, guards would not be told from content
    }
    let is_inside = guard::inside();
    // Else content that goes here might come back from the engine.
    let may_change = !is_inside && advice != MADV_GUARD_REMOVE && adopt::is_pending();
    let _guard = may_change.then(guard::enter);
    let _held = if may_change { adopt::hold() } else { None };
    let Some(space) = state::space().filter(is_ours).filter(|_| !is_inside) else {
        let result = kernel_advise(&(start..start.saturating_add(len)), advice);
        if result == 0 && state::phase() == Phase::Waiting && !is_inside {
            let _guard = guard::enter();
            note_for_children(&range, false, advice);
        }
        return result;
    };
    // First let the kernel check the advice.
    if kernel_advise(&(start..start), advice) < 0 {
        return -1;
    }
    if matches!(advice, libc::MADV_HWPOISON | libc::MADV_SOFT_OFFLINE) {
        state::fail(libc::EPERM); // the engine owns the frames
        return -1;
    }
    let _guard = guard::enter();
    let Some(first) = first_not_dropped(space, &range, advice) else { return advise_parts(space, &range, advice) };
    if first > start {
        advise_parts(space, &(start..first), advice);
    }
    state::fail(libc::EINVAL); // as in the kernel, which has advised what lies before
    -1
}

/// The same, when all checks are done. Under a guard.
fn advise_parts(space: &RawSpace, range: &Range<usize>, advice: c_int) -> c_int {
    match advice {
        MADV_GUARD_INSTALL => return install_guards(space, range),
        MADV_GUARD_REMOVE => return remove_guards(space, range),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => return populate(space, range, advice),
        libc::MADV_COLLAPSE if is_within_block(range) => return kernel_advise(range, advice),
        _ => {}
    }
    in_order(space, range, |part, is_managed| {
        let advised = is_managed.then(|| state::keeping_errno(|| advise_managed(space, part, advice)));
        let result = if matches!(advised, Some(Then::Others)) { 0 } else { kernel_advise(part, advice) };
        if result == 0 || state::errno() == libc::ENOMEM {
            note_for_children(part, is_managed, advice);
        }
        result
    })
}

/// Notes what children get of a part that the kernel, or the engine, has been told of.
fn note_for_children(part: &Range<usize>, is_managed: bool, advice: c_int) {
    match advice {
        libc::MADV_WIPEONFORK => known::wiped().add(part.clone()),
        libc::MADV_KEEPONFORK => _ = known::wiped().remove(part.clone()),
        libc::MADV_DONTFORK => {
            if !is_managed {
                open_pages::note_closed(part); // it is not there in children
            }
            known::note_not_forked(part, is_managed);
        }
        libc::MADV_DOFORK => _ = known::not_forked().remove(part.clone()),
        _ => {}
    }
}

/// Advises the managed and the other parts of a range in their order. As in the kernel, a hole is an error, but the
/// rest is advised. Any other error ends the call, and what lies behind stays as it is.
fn in_order(space: &RawSpace, range: &Range<usize>, mut advise: impl FnMut(&Range<usize>, bool) -> c_int) -> c_int {
    let managed = space.managed_parts(range.clone());
    let others = others(range, &managed);
    let mut parts: Vec<_> = managed.into_iter().map(|part| (part, true)).collect();
    parts.extend(others.into_iter().map(|part| (part, false)));
    parts.sort_unstable_by_key(|(part, _)| part.start);
    let mut has_hole = false;
    for (part, is_managed) in parts {
        if advise(&part, is_managed) < 0 {
            if state::errno() != libc::ENOMEM {
                return -1;
            }
            has_hole = true;
        }
    }
    if has_hole {
        state::fail(libc::ENOMEM);
        return -1;
    }
    0
}

/// The start of the first page of a range for which advice is refused that drops content, as it is locked. Under a
/// guard.
fn first_not_dropped(space: &RawSpace, range: &Range<usize>, advice: c_int) -> Option<usize> {
    use libc::{MADV_COLD, MADV_DONTNEED, MADV_FREE, MADV_PAGEOUT};
    let drops = [MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT, MADV_GUARD_INSTALL].contains(&advice);
    (drops && space.has_locked(range)).then(|| first_locked(space, range))
}

/// The start of the first locked page of a range that has one.
fn first_locked(space: &RawSpace, range: &Range<usize>) -> usize {
    let (mut free, mut end) = (range.start, range.end);
    while end - free > PAGE_SIZE {
        let middle = free + (end - free) / PAGE_SIZE / 2 * PAGE_SIZE;
        if space.has_locked(&(free..middle)) { end = middle } else { free = middle }
    }
    free
}

export! {
    fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
        state::as_the_kernel(|| advise(addr as usize, len, advice))
    }

    fn posix_madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
        if advice == libc::POSIX_MADV_DONTNEED {
            return 0; // unlike MADV_DONTNEED, this must not lose data
        }
        let errno = state::errno();
        // SAFETY: passes the caller's arguments on. The other POSIX values equal those of `madvise`.
        let result = if unsafe { madvise(addr, len, advice) } < 0 { state::errno() } else { 0 };
        state::fail(errno);
        result
    }
}

/// Whether a pidfd refers to this process.
fn is_self(pidfd: c_int) -> bool {
    if PIDFD_SELF.contains(&pidfd) {
        return true;
    }
    let _guard = guard::enter();
    let path = format!("/proc/self/task/{}/fdinfo/{pidfd}", thread_id());
    let about = own_table::briefly(move || said::read(&path)).unwrap_or_default();
    let pid = about.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse::<u32>().ok());
    pid == Some(std::process::id())
}

export! {
    fn process_madvise(pidfd: c_int, ranges: *const libc::iovec, count: usize, advice: c_int, flags: c_uint) -> isize {
        let kernel = |count: usize| {
            crate::memory::cover::touch(ranges, count * size_of::<libc::iovec>());
            // SAFETY: the caller's call, with all of its ranges or with none.
            unsafe { kernel!(libc::SYS_process_madvise, pidfd, ranges, count, advice, flags) as isize }
        };
        if state::space().is_none() || count == 0 || count > 1024 || ranges.is_null() || !is_self(pidfd) {
            return kernel(count);
        }
        // First let the kernel check the advice and the descriptor.
        if kernel(0) < 0 {
            return -1;
        }
        if !access::is_open(ranges as usize, count * size_of::<libc::iovec>(), Access::Read) {
            return kernel(count);
        }
        // SAFETY: the caller passes an array of `count` ranges, which may be read.
        let list = unsafe { std::slice::from_raw_parts(ranges, count) };
        let is_possible = |range: &libc::iovec| (range.iov_base as usize).saturating_add(range.iov_len) <= 1 << 47;
        if !list.iter().all(is_possible) {
            return kernel(count); // which refuses all of them
        }
        let mut done = 0;
        for range in list {
            if advise(range.iov_base as usize, range.iov_len, advice) < 0 {
                return if done > 0 { done } else { -1 };
            }
            done += range.iov_len as isize;
        }
        done
    }
}
