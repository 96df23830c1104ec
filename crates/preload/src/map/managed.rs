//! What the engine is told of single ranges: that it manages them, and that they are unlocked.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap::{Error, RawSpace};

use crate::ground::real::kernel;
use crate::ground::{guard, state};

/// Says once that memory cannot be managed.
pub fn note_unmanaged(managed: Result<(), Error>) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if let Err(error) = managed
        && !SAID.swap(true, Ordering::Relaxed)
    {
        state::say(&format!("a mapping is not managed, and beside the budget: {error}"));
    }
}

/// Has the engine manage memory that is new, or of which nothing was touched. Says once if it cannot.
pub fn manage(space: &RawSpace, range: Range<usize>) {
    let _guard = guard::enter();
    // SAFETY: private anonymous memory of the program's, which nobody has touched.
    note_unmanaged(state::keeping_errno(|| unsafe { space.manage(range) }));
}

/// Unlocks a range, so that its content can leave or be dropped.
pub fn unlock(space: &RawSpace, range: &Range<usize>) {
    let _guard = guard::enter();
    if space.has_locked(range) {
        // SAFETY: changes neither content nor access.
        state::keeping_errno(|| unsafe { kernel!(libc::SYS_munlock, range.start, range.len()) });
        space.note_unlocked(range.clone());
    }
}
