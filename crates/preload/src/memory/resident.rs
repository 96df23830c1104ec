//! Brings managed memory into RAM, and keeps it there.

use crate::ground::{guard, state};

/// Faults in the managed part of a range, also under a guard. The kernel refuses a range beyond all addresses as a
/// whole.
pub fn bring_in(addr: usize, len: usize) {
    let is_possible = addr.checked_add(len).is_some_and(|end| end <= 1 << 47);
    if let Some(space) = state::space().filter(|_| is_possible) {
        let _guard = guard::enter();
        state::keeping_errno(|| space.touch(addr, len));
    }
}

/// Holds a range in RAM for good, if it is managed: memory that the kernel writes to on its own.
pub fn hold(addr: usize, len: usize) {
    if let Some(space) = state::space()
        && len > 0
        && state::is_managed(addr)
    {
        let _guard = guard::enter();
        // SAFETY: the program has mapped this memory.
        state::keeping_errno(|| unsafe { space.hold(addr, len) });
    }
}
