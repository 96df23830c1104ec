//! Pages of mapped folios that are missing: the program dropped them by a call that the engine did not see. By the
//! kernel's rules they are zero.

use std::ops::Range;

use folioswap_core::{Locked, PAGE_SIZE};
use folioswap_sys::uffd::MoveError;

use crate::engine::Engine;

/// Content of such a page.
static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

impl Engine {
    /// Maps zeros at those of these pages, of mapped folios of a locked block, that are missing. Returns whether any
    /// was missing, and all are present now.
    pub fn fill_gaps(&self, locked: &mut Locked<'_>, pages: Range<usize>) -> bool {
        let mut has_filled = false;
        for page in pages {
            if locked.is_sealed(page) {
                continue;
            }
            let addr = self.table().addr(locked.id().page(page));
            if !matches!(self.ram().pagemap().is_present(addr), Ok(false)) {
                continue;
            }
            // SAFETY: a page of a locked block at which nothing is present, though its folio is mapped. The source is a
            // static of one page.
            match unsafe { self.faults().uffd().copy(addr, ZEROS.as_ptr() as usize, PAGE_SIZE) } {
                Ok(()) => {
                    locked.small_table = true;
                    has_filled = true;
                }
                Err(MoveError::Present) => {} // the kernel has swapped it out
                Err(_) => return false,       // it is another mapping now
            }
        }
        has_filled
    }
}
