//! Writeback in progress, and copies kept in swap.

use std::sync::Mutex;

use folioswap_core::{BLOCK_PAGES, Zones};

use crate::config::error::Error;
use crate::state::buffers::{Buffers, Written};
use crate::state::kept_copies::KeptCopies;

/// Writeback and kept copies of an arena.
pub(crate) struct Reclaim {
    buffers: Buffers,
    /// Written folios whose blocks were locked when their write ended. They are settled later.
    unsettled: Mutex<Vec<Written>>,
    /// Pageblocks whose folios have copies in slots that can be given up.
    kept_copies: KeptCopies,
}

impl Reclaim {
    pub fn new(zones: &Zones) -> Result<Self, Error> {
        Ok(Reclaim {
            buffers: Buffers::new(zones.all().len())?,
            unsettled: Mutex::new(Vec::new()),
            kept_copies: KeptCopies::new(zones.nr_frames_max().div_ceil(BLOCK_PAGES)),
        })
    }

    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    pub fn kept_copies(&self) -> &KeptCopies {
        &self.kept_copies
    }

    /// Leaves written folios to be settled later.
    pub fn push_unsettled(&self, written: impl IntoIterator<Item = Written>) {
        self.unsettled.lock().expect("nothing panics under this lock").extend(written);
    }

    /// Takes the folios to be settled.
    pub fn take_unsettled(&self) -> Vec<Written> {
        std::mem::take(&mut *self.unsettled.lock().expect("nothing panics under this lock"))
    }

    #[cfg(test)]
    pub fn has_unsettled(&self) -> bool {
        !self.unsettled.lock().expect("nothing panics under this lock").is_empty()
    }
}
