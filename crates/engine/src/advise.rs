//! What a program says about a range of its memory, and what the engine does with it.

use std::ops::Range;

use folioswap_core::FolioId;

use crate::engine::Engine;
use crate::readahead::Window;

/// How a range is going to be used. Nothing but [`Advice::DontNeed`] changes what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// No particular way.
    Normal,
    /// Soon: it is read in the background.
    WillNeed,
    /// The content is not needed any more: it reads as zero from now on.
    DontNeed,
    /// From begin to end: it is read ahead at once.
    Sequential,
    /// At random: what is in RAM is kept as long as possible.
    Random,
    /// Not for a while: it leaves RAM first.
    Cold,
}

/// Folios of one window when a range is asked for as a whole.
const WINDOW: usize = 8;

impl Engine {
    /// Asks for a range to be read in the background.
    pub fn will_need(&self, folios: Range<usize>) {
        // More than the frames that may be spared would only push out what was just read.
        let most = self.zone.counts().limit / 2;
        let end = folios.end.min(folios.start + most);
        for start in (folios.start..end).step_by(WINDOW) {
            let folios = FolioId::new(start as u32)..FolioId::new(end.min(start + WINDOW) as u32);
            self.reads.push(Window { folios, marker: None });
        }
    }

    /// Makes what is in RAM of a range leave it first, and starts writing it.
    pub fn cold(&self, folios: Range<usize>) {
        for index in folios {
            self.evict(FolioId::new(index as u32));
        }
    }

    /// Ends what whole folios hold: they read as zero from now on.
    pub fn drop_range(&self, folios: Range<usize>) {
        let _pass = self.gate.enter(folioswap_sys::signals::thread_id());
        for index in folios {
            let folio = FolioId::new(index as u32);
            if self.table.peek(folio).is_empty() {
                continue;
            }
            let mut locked = self.lock(folio);
            self.drop_content(&mut locked);
            locked.set_marker(false);
            locked.set_dropped_behind(false);
        }
    }
}
