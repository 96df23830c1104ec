//! Memory that is no longer managed at the program's wish: a userfaultfd of its own takes it, or it is sealed.

use std::ops::Range;

use crate::ground::real::kernel;
use crate::ground::{guard, state};
use crate::memory::pages::are_possible;
use crate::memory::{known, open_pages};
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
