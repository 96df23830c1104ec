//! Holds: memory that stays in RAM because a call or a device uses it. A hold keeps all resident folios of its blocks,
//! and holds of one block are counted ([`HoldCounts`](crate::memory::hold_counts::HoldCounts)). A block is pinned and
//! unpinned under its own lock.

use std::ops::Range;

use folioswap_core::{BLOCK_BYTES, BlockId, List, State};
use folioswap_sys::signals;

use crate::engine::Engine;
use crate::fault::touch::bring_in;
use crate::memory::table::{blocks_of, pages_in};
use crate::process::turns::{Waits, asleep};

/// Counts a hold of each block of a range, unless managed blocks of more than `most_bytes` would be held in all. Blocks
/// that are not managed are counted, too: when the hold ends they may be, and then held by others. Returns whether it
/// did. Inside the gate, or with signals blocked.
pub(crate) fn count(engine: &Engine, range: &Range<usize>, most_bytes: u64) -> bool {
    let blocks: Vec<_> = blocks_of(range).map(BlockId::from_index).collect();
    engine.holds().add(&blocks, |block| engine.table().is_open(block), most_bytes)
}

/// Brings a range in and holds it, unless more than `most_bytes` would be held in all: then nothing is held, and the
/// result is `None`. Each block counts as a whole, and once. `false`: some content could not be read; the hold stands
/// nevertheless.
pub(crate) fn hold(engine: &Engine, range: &Range<usize>, most_bytes: u64) -> Option<bool> {
    {
        let _blocked = signals::block_all();
        if !count(engine, range, most_bytes) {
            return None;
        }
    }
    let thread = signals::thread_id();
    let managed = blocks_of(range).map(BlockId::from_index).filter(|&block| engine.table().is_open(block));
    let is_lost = |&block: &BlockId| {
        let _blocked = signals::block_all();
        !bring_in_held(engine, block, &pages_in(block, range), thread)
    };
    Some(managed.filter(is_lost).count() == 0)
}

/// Brings pages of a block in, and pins the block, which is held. `false`: some content is lost.
fn bring_in_held(engine: &Engine, id: BlockId, pages: &Range<usize>, thread: u32) -> bool {
    let all_in = bring_in(engine, id, pages, thread);
    {
        let _pass = engine.gate().enter(thread);
        asleep(pin(engine, id, Waits::Asleep));
    }
    bring_in(engine, id, pages, thread) && all_in // what has left again meanwhile
}

/// Pins a block, unless it was unmapped meanwhile, and with it its holds. What comes in then stays. Inside the gate.
pub(crate) async fn pin(engine: &Engine, id: BlockId, waits: Waits<'_>) {
    if engine.table().has(id) {
        let mut block = engine.lock_for(id, waits).await;
        block.pinned |= engine.table().is_open(id) && engine.holds().pause().contains_key(&id);
    }
}

/// Ends a hold of a program's thread.
pub(crate) fn release(engine: &Engine, range: &Range<usize>) {
    let _blocked = signals::block_all(); // a signal handler might touch the block
    asleep(release_for(engine, range, Waits::Asleep));
}

/// Ends a hold, for a flow that waits in its own way.
pub(crate) async fn release_for(engine: &Engine, range: &Range<usize>, waits: Waits<'_>) {
    for block in blocks_of(range).map(BlockId::from_index) {
        let _pass = engine.enter_for(signals::thread_id(), waits).await; // a thread that forks has locked the counts
        if engine.holds().subtract(block) {
            unpin_inside(engine, block, waits).await;
        }
    }
}

/// Ends the holds of blocks of which nothing stays managed, where they have pinned a block. The others were counted
/// for what was not managed, and end with their holder.
pub(crate) fn forget(engine: &Engine, range: &Range<usize>) {
    let _blocked = signals::block_all();
    let whole = range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES;
    let is_whole = |block: &BlockId| whole.contains(&block.index());
    let held: Vec<_> = engine.holds().pause().keys().copied().filter(is_whole).collect();
    for id in held {
        let _pass = engine.gate().enter(signals::thread_id());
        if engine.table().has(id) && engine.lock(id).pinned {
            engine.holds().pause().remove(&id);
            asleep(unpin_inside(engine, id, Waits::Asleep));
        }
    }
}

/// Unpins a block that was held. Signals are blocked.
pub(crate) fn unpin(engine: &Engine, id: BlockId) {
    let _pass = engine.gate().enter(signals::thread_id());
    asleep(unpin_inside(engine, id, Waits::Asleep));
}

async fn unpin_inside(engine: &Engine, id: BlockId, waits: Waits<'_>) {
    if !engine.table().has(id) {
        return;
    }
    let mut block = engine.lock_for(id, waits).await;
    if engine.holds().pause().contains_key(&id) {
        return; // held again meanwhile
    }
    block.pinned = false;
    for index in 0..block.nr_folios() {
        if let State::Resident(frame) = block.state(index)
            && engine.ram().zone(frame).list(frame).is_none()
        {
            engine.ram().put(frame, List::Active); // reclaim took it off its list while pinned
        }
    }
}
