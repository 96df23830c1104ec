//! Memory that is no longer managed at the program's wish: a userfaultfd of its own takes it, it is sealed, or shown in
//! `/proc`.

use std::ffi::c_int;
use std::ops::Range;

use crate::ground::real::kernel;
use crate::ground::{guard, state};
use crate::map::adopt;
use crate::memory::pages::{are_possible, pages};
use crate::memory::{access, known, open_pages};
use folioswap::PAGE_SIZE;

/// Hands what is managed of a range over to the kernel, with its content, and what would be managed later. Parts whose
/// content is in use stay.
pub fn hand_over(range: &Range<usize>) {
    let Some(space) = state::space().filter(|_| !guard::inside()) else { return };
    if range.is_empty() || !are_possible(range) || !range.end.is_multiple_of(PAGE_SIZE) {
        return; // the kernel refuses it
    }
    let _guard = guard::enter();
    let _beginning = known::beginning();
    open_pages::note_closed(range); // the kernel, or the program, may refuse to serve what is missing
    known::reserved().remove(range.clone());
    known::guarded().remove(range.clone());
    if !state::overlaps(range.start, range.len()) || space.managed_parts(range.clone()).is_empty() {
        return;
    }
    let kept = state::errno();
    let _ = space.hand_over(range);
    // What the engine did at forks is the kernel's now.
    let advise = |parts: Vec<Range<usize>>, advice| {
        for part in parts {
            // SAFETY: the program has given this advice about its memory.
            unsafe { kernel!(libc::SYS_madvise, part.start, part.len(), advice) };
        }
    };
    let (wiped, not_forked) = (known::wiped().remove(range.clone()), known::not_forked().remove(range.clone()));
    advise(wiped, libc::MADV_WIPEONFORK);
    advise(not_forked, libc::MADV_DONTFORK);
    space.note_unlocked(range.clone()); // as far as the kernel has locked it, it stays so
    state::fail(kept);
}

/// Called after a `prctl`: what `/proc/PID/cmdline` and `environ` show from now on is handed over, because the kernel
/// waits for no page when others read it there.
pub fn note_shown(words: &[usize; 6]) {
    let &[what, part, at, ..] = words;
    if what != libc::PR_SET_MM as usize {
        return;
    }
    let places = match part as c_int {
        libc::PR_SET_MM_ARG_START | libc::PR_SET_MM_ENV_START => [at..at + 1, 0..0],
        libc::PR_SET_MM_ARG_END | libc::PR_SET_MM_ENV_END => [at - 1..at, 0..0],
        libc::PR_SET_MM_MAP => {
            // SAFETY: the kernel has read this structure, which begins with eleven words at least.
            let Some(words) = (unsafe { access::read(at as *const [usize; 11]) }) else { return };
            let [.., arguments, arguments_end, environment, environment_end] = words;
            [arguments..arguments_end, environment..environment_end]
        }
        _ => return,
    };
    adopt::now();
    for place in places {
        hand_over(&(place.start & !(PAGE_SIZE - 1)..pages(place.end)));
    }
}
