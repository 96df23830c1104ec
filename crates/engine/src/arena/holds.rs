//! Holds: memory that stays in RAM because a call or a device uses it. A hold keeps all resident folios of its blocks,
//! and holds of one block are counted.
//!
//! **Locking.** The counts are a leaf. A block is pinned and unpinned under its own lock. Signals are blocked then: a
//! handler might touch the block, or, beside a fork that waits for the counts, any.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use folioswap_core::{BLOCK_BYTES, BlockId, List, State};
use folioswap_sys::signals;

use crate::arena::touch::{bring_in, first_missing};
use crate::engine::Engine;
use crate::memory::table::{blocks_of, pages_in};

/// How many holds each block has.
pub(crate) type HoldCounts = HashMap<BlockId, u32>;

/// The holds of an arena.
#[derive(Default)]
pub(crate) struct Holds(Mutex<HoldCounts>);

impl Holds {
    /// Keeps other threads from the holds until the result is dropped.
    pub fn pause(&self) -> MutexGuard<'_, HoldCounts> {
        self.0.lock().expect("nothing panics under this lock")
    }

    /// Brings a range in and holds it. `false`: some content could not be read; the holds stand nevertheless.
    pub fn hold(&self, engine: &Engine, range: &Range<usize>) -> bool {
        self.hold_within(engine, range, u64::MAX) == Some(true)
    }

    /// The same, unless more than `most_bytes` would be held in all: then nothing is held, and the result is `None`.
    /// Each block counts as a whole, and once.
    pub fn hold_within(&self, engine: &Engine, range: &Range<usize>, most_bytes: u64) -> Option<bool> {
        let blocks = blocks_of(range).map(BlockId::from_index);
        let blocks: Vec<_> = blocks.filter(|&block| engine.table().is_open(block)).collect();
        {
            let _blocked = signals::block_all();
            let mut holds = self.pause();
            let new = blocks.iter().filter(|block| !holds.contains_key(block)).count();
            if new != 0 && ((holds.len() + new) * BLOCK_BYTES) as u64 > most_bytes {
                return None;
            }
            blocks.iter().for_each(|&block| *holds.entry(block).or_insert(0) += 1);
        }
        let thread = signals::thread_id();
        let is_lost = |&&block: &&BlockId| {
            let _blocked = signals::block_all();
            !bring_in_held(engine, block, &pages_in(block, range), thread)
        };
        Some(blocks.iter().filter(is_lost).count() == 0)
    }

    /// Ends a hold.
    pub fn release(&self, engine: &Engine, range: &Range<usize>) {
        blocks_of(range).for_each(|index| self.release_block(engine, BlockId::from_index(index)));
    }

    fn release_block(&self, engine: &Engine, block: BlockId) {
        let _blocked = signals::block_all();
        let mut holds = self.pause();
        match holds.get_mut(&block) {
            Some(1) => {
                holds.remove(&block);
                drop(holds);
                self.unpin(engine, block);
            }
            Some(count) => *count -= 1,
            None => {}
        }
    }

    /// Ends the holds of blocks of which nothing stays managed.
    pub fn forget(&self, engine: &Engine, range: &Range<usize>) {
        let _blocked = signals::block_all();
        let mut holds = self.pause();
        if holds.is_empty() {
            return;
        }
        let whole = range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES;
        let held: Vec<_> = holds.keys().copied().filter(|block| whole.contains(&block.index())).collect();
        for block in &held {
            holds.remove(block);
        }
        drop(holds);
        held.into_iter().for_each(|block| self.unpin(engine, block));
    }

    /// Unpins a block that was held.
    pub fn unpin(&self, engine: &Engine, id: BlockId) {
        let _inside = engine.enter(); // a signal handler might touch this block
        if !engine.table().has(id) {
            return;
        }
        let mut block = engine.lock(id);
        if self.pause().contains_key(&id) {
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
}

/// Brings pages of a block in, and pins the block, which is held. `false`: some content is lost.
fn bring_in_held(engine: &Engine, id: BlockId, pages: &Range<usize>, thread: u32) -> bool {
    let mut all_in = true;
    loop {
        let is_lost = !bring_in(engine, id, pages, thread);
        all_in &= !is_lost;
        let _pass = engine.gate().enter(thread);
        let mut block = engine.lock(id);
        if !engine.table().is_open(id) {
            return all_in; // unmapped meanwhile
        }
        if is_lost || first_missing(&block, pages).is_none() {
            block.pinned = true;
            return all_in;
        }
    }
}
