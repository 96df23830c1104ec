//! Brings managed memory into RAM, and keeps it there.

use folioswap::Waited;

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

/// Holds a range in RAM, if it is managed: memory that the kernel writes to on its own.
pub fn hold(addr: usize, len: usize) {
    if state::is_managed(addr) {
        hold_all(addr, len);
    }
}

/// The same whether or not its first byte is managed.
pub fn hold_all(addr: usize, len: usize) {
    if let Some(space) = state::space()
        && len > 0
    {
        let _guard = guard::enter();
        // SAFETY: the program has mapped this memory.
        state::keeping_errno(|| unsafe { space.hold(addr, len) });
    }
}

/// Ends such a hold.
pub fn release(addr: usize, len: usize) {
    if let Some(space) = state::space()
        && len > 0
    {
        let _guard = guard::enter();
        // SAFETY: it was held.
        state::keeping_errno(|| unsafe { space.release_hold(addr, len) });
    }
}

/// Brings the next part of the calling thread's stack in, if that is managed, and keeps it in RAM until the result is
/// dropped: while the C library has blocked the signals of faults, or has the kernel fill in variables.
pub fn keep_stack() -> Option<Waited> {
    /// What the C library may use of it meanwhile, and what its caller has.
    const BELOW: usize = 32 << 10;
    const ABOVE: usize = 4 << 10;
    let local = 0u8;
    let here = &raw const local as usize;
    let space = state::space().filter(|space| space.contains(here))?;
    let _guard = guard::enter();
    Some(state::keeping_errno(|| space.wait_on(here - BELOW, BELOW + ABOVE)))
}
