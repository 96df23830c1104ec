//! Lost pages: their device cannot return their content.
//!
//! The loss of a folio is reported once, not at each touch. In monitor mode lost pages are *poisoned*
//! (`UFFDIO_POISON`): the kernel answers a touch with SIGBUS and a system call with EFAULT, without another fault
//! event. In direct mode each touch faults, and the engine tries to read the page.
//!
//! **Invariant.** Only swapped pages of failing devices are lost. Mapping, dropping or transferring a folio removes the
//! poison, under its block's lock. So does each step of evacuation for folios that are in RAM or on another device by
//! then.

use std::io;

use folioswap_core::{FolioId, PAGE_SIZE, State};
use folioswap_sys::uffd::MoveError;

use crate::block::map::pages_of;
use crate::engine::Engine;

/// Poisons the folio of a lost page, so that the kernel tells threads that touch it or wait for it. Does nothing if
/// the folio is no longer swapped out.
///
/// # Errors
/// When the kernel cannot poison (before Linux 6.6).
pub(crate) fn poison(engine: &Engine, page: FolioId) -> io::Result<()> {
    let mut block = engine.lock(page.block());
    let index = block.index_of(page.page_in_block());
    if !matches!(block.state(index), State::Swapped(_)) {
        return Ok(());
    }
    block.note_lost(index);
    block.small_table = true;
    for page in pages_of(&block, index) {
        // SAFETY: a page of a region whose block is locked. It is swapped out, so nothing is mapped there, and the
        // program shall be told of a touch.
        match unsafe { engine.faults().uffd().poison(engine.table().addr(block.id().page(page)), PAGE_SIZE) } {
            Ok(()) | Err(MoveError::Present) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(())
}
