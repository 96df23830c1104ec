//! Gathering: makes a split block one folio again, by bringing its parts from RAM and device into one huge page.

use folioswap_core::{List, Order, Taken};

use crate::block::Block;
use crate::engine::Engine;
use crate::process::stopwatch::Stopwatch;
use crate::swap::health::SwapInError;

/// As [`Block::gather`], where `taken` is what could be had for it. `false` also if there are no frames.
///
/// # Errors
/// When the device cannot return the content.
pub(crate) fn gather(
    engine: &Engine,
    block: &mut Block<'_>,
    taken: Option<Taken>,
    list: List,
    watch: &mut Stopwatch<'_>,
) -> Result<bool, SwapInError> {
    if taken.is_none() {
        engine.stats().swpin_fallback.add(Order::HUGE, 1);
        engine.compactor().want_whole();
    }
    taken.map_or(Ok(false), |taken| block.gather(taken, list, watch))
}
