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
use std::ops::Range;

use folioswap_core::{PAGE_SIZE, State};
use folioswap_sys::uffd::MoveError;

use super::Block;
use crate::process::fatal;

impl Block<'_> {
    /// Notes that a folio's content is lost. `false`: that was known.
    pub fn note_lost(&self, index: usize) -> bool {
        self.faults().lost().note(self.id(), self.pages_of(index))
    }

    /// Poisons the folio of a lost page, so that the kernel tells threads that touch it or wait for it. Does nothing if
    /// the folio is no longer swapped out.
    ///
    /// # Errors
    /// When the kernel cannot poison (before Linux 6.6).
    pub fn poison(&mut self, page: usize) -> io::Result<()> {
        let index = self.index_of(page);
        if !matches!(self.state(index), State::Swapped(_)) {
            return Ok(());
        }
        self.note_lost(index);
        self.small_table = true;
        for page in self.pages_of(index) {
            let addr = self.table().addr(self.id().page(page));
            // SAFETY: a page of this locked block. It is swapped out, so nothing is mapped there, and the program shall
            // be told of a touch.
            match unsafe { self.ram().mapper().poison(addr, PAGE_SIZE) } {
                Ok(()) | Err(MoveError::Present) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(())
    }

    /// Forgets the loss of pages of a block, none of which is mapped, and removes their poison: they can be read again,
    /// or are no longer wanted.
    pub fn end_lost(&self, pages: Range<usize>) {
        for page in self.faults().lost().take(self.id(), pages) {
            let addr = self.table().addr(self.id().page(page));
            // SAFETY: the block is locked, and the page is not mapped, so only the poison marker is there.
            if let Err(error) = unsafe { self.ram().mapper().discard(addr, PAGE_SIZE) } {
                fatal::say(&format!("a page that was lost stays so: {error}"));
            }
        }
    }

    /// The same for a folio.
    pub fn end_lost_folio(&self, index: usize) {
        self.end_lost(self.pages_of(index));
    }
}
