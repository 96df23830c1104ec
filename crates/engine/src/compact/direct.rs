//! What frees frames for faults: reclaim and compaction on the thread that needs the frames.

use folioswap_core::{Order, Taken};

use crate::compact::compactd;
use crate::engine::{DirectReclaim, Engine};
use crate::reclaim::{evict, kept};

/// The arena's [`DirectReclaim`].
pub(crate) struct OnOwnThread;

impl DirectReclaim for OnOwnThread {
    fn reclaim(&self, engine: &Engine, order: Order) -> bool {
        evict::reclaim_directly(engine, order)
    }

    fn compact(&self, engine: &Engine) -> Option<Taken> {
        compactd::compact_directly(engine)
    }

    fn shed_copies(&self, engine: &Engine) -> bool {
        kept::shed_all_copies(engine)
    }
}
