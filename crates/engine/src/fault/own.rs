//! Faults of the program in the engine's own memory.
//!
//! A program may read all that `/proc/self/maps` calls readable: collectors of garbage, checkers and crash handlers do.
//! Homes of frames are readable, and those that are empty report a fault. Such a page reads as zero. It goes when the
//! home gets its content back ([`crate::memory::mapper`]).

use folioswap_core::PAGE_SIZE;
use folioswap_sys::seat;
use folioswap_sys::uffd::MoveError;

use crate::engine::Engine;
use crate::process::fatal;

/// Resolves a fault of a thread of the program, if the address is the engine's own and reports faults.
pub(crate) fn resolve_own(engine: &Engine, addr: usize, thread: u32) -> bool {
    if !engine.ram().is_registered(addr) {
        return false;
    }
    if seat::has(thread) {
        fatal::die(&format!("a thread of the engine found nothing at {addr:#x}, where it has a frame"));
    }
    let page = addr & !(PAGE_SIZE - 1);
    // SAFETY: a page of the homes without memory, which the engine reads only after it has put content there.
    let shown = unsafe { engine.faults().uffd().zeropage(page, PAGE_SIZE) };
    let woken = engine.faults().uffd().wake(page, PAGE_SIZE);
    match (shown, woken) {
        (Ok(()) | Err(MoveError::Present), Ok(())) => true,
        (Err(error), _) => fatal::die(&format!("showing the engine's own memory: {error}")),
        (_, Err(error)) => fatal::die(&format!("waking a thread: {error}")),
    }
}
