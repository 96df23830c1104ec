//! The way out: the reclaim thread, eviction, and writing folios to their devices.

pub mod buffers;
pub mod evict;
pub mod kept;
pub mod kept_copies;
pub mod parts;
pub mod reclaimd;
pub mod write_out;

use std::sync::Mutex;

use folioswap_core::{BLOCK_PAGES, Zones};

use crate::config::error::Error;
use crate::reclaim::buffers::{Buffers, Written};
use crate::reclaim::kept_copies::KeptCopies;

/// What is on its way out of an arena's RAM.
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

    #[cfg(test)]
    pub fn has_unsettled(&self) -> bool {
        !self.unsettled.lock().expect("nothing panics under this lock").is_empty()
    }
}
