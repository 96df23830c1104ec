//! A program's advice about a range of its memory, and how the engine follows it.

use std::ops::Range;

use folioswap_core::{BLOCK_BYTES, BlockId, List, State, Wish};

use crate::engine::Engine;
use crate::memory::table::{blocks_of, pages_in};
use crate::process::cpu::current_cpu;
use crate::reclaim::evict;
use crate::swap::read_queue::Window;

/// How a range is going to be used. Only [`Advice::DontNeed`] changes its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// No special use.
    Normal,
    /// Needed soon: it is read in the background.
    WillNeed,
    /// No longer needed: it reads as zero from now on.
    DontNeed,
    /// Read from start to end: readahead begins at once.
    Sequential,
    /// Accessed at random: folios in RAM are kept as long as possible.
    Random,
    /// Not needed for a while: it leaves RAM first.
    Cold,
    /// Blocks of 2 MiB are swapped in whole, also if the arena's policy is [`SwapIn::Madvise`](crate::SwapIn::Madvise).
    HugePage,
    /// Blocks are swapped in page by page, whatever the arena's policy is.
    NoHugePage,
}

/// Blocks without content that are looked at in one go.
const BLOCKS_AT_ONCE: usize = 64;

/// Blocks whose wish is noted in one go.
const WISHES: usize = 64;

/// Follows advice that changes no content.
pub(crate) fn follow(engine: &Engine, blocks: Range<usize>, advice: Advice) {
    match advice {
        Advice::Normal | Advice::DontNeed => {}
        Advice::WillNeed => read(engine, blocks, true),
        Advice::Sequential => read(engine, blocks, false),
        Advice::Random => keep(engine, blocks),
        Advice::Cold => page_out(engine, &(blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES)),
        Advice::HugePage => wish(engine, blocks, Wish::Whole),
        Advice::NoHugePage => wish(engine, blocks, Wish::Pages),
    }
}

/// Queues a range to be read in the background. `is_asked`: it waits for frames.
fn read(engine: &Engine, blocks: Range<usize>, is_asked: bool) {
    let _inside = engine.enter(); // a handler's fault might queue a window too; a fork's child must find no lock taken
    // Reading more than the frames that can be spared would only evict what was just read.
    let end = blocks.end.min(blocks.start + engine.ram().budget_blocks() / 2);
    let blocks = BlockId::from_index(blocks.start)..BlockId::from_index(end);
    engine.reads().push(Window { blocks, marker: None, is_asked, backward: false, cpu: current_cpu() });
}

/// Makes the folios that lie within a range of addresses the oldest in RAM.
pub(crate) fn make_oldest(engine: &Engine, range: &Range<usize>) {
    each_block_of(engine, blocks_of(range), |id| {
        let Some(block) = engine.try_lock(id).filter(|block| !block.pinned) else { return };
        let pages = pages_in(id, range);
        for index in 0..block.nr_folios() {
            let folio = block.pages_of(index);
            let is_within = pages.start <= folio.start && folio.end <= pages.end;
            if let State::Resident(frame) = block.state(index)
                && is_within
            {
                engine.ram().zone(frame).insert_tail(frame, List::Inactive);
            }
        }
    });
}

/// Makes the pages of a range of addresses leave RAM first, and starts their writeback.
pub(crate) fn page_out(engine: &Engine, range: &Range<usize>) {
    each_block_of(engine, blocks_of(range), |block| evict::evict(engine, block, &pages_in(block, range)));
    engine.ram().reclaim_wanted().signal(); // what works for swap is needed now
}

/// Makes the resident part of a range the last to leave RAM.
fn keep(engine: &Engine, blocks: Range<usize>) {
    {
        let _inside = engine.enter(); // a signal handler might fault and follow a stream
        engine.policy().forget_streams(BlockId::from_index(blocks.start)..BlockId::from_index(blocks.end));
    }
    each_block_of(engine, blocks, |id| {
        let Some(block) = engine.try_lock(id).filter(|block| !block.pinned) else { return };
        for index in 0..block.nr_folios() {
            if let State::Resident(frame) = block.state(index) {
                engine.ram().put(frame, List::Active);
            }
        }
    });
}

/// Sets whether blocks come back in one piece, where the arena's policy leaves that open.
fn wish(engine: &Engine, blocks: Range<usize>, wish: Wish) {
    let others = {
        let _inside = engine.enter();
        engine.table().wish_untouched(blocks, wish)
    };
    for mut rest in others {
        while !rest.is_empty() {
            let some = rest.start..rest.end.min(rest.start + WISHES);
            let _inside = engine.enter();
            engine.table().ensure(some.clone());
            some.clone().for_each(|block| engine.lock(BlockId::from_index(block)).wish = wish);
            rest.start = some.end;
        }
    }
}

/// Calls `work` for each block of a range that has content, for a thread of the program. Signals and the fork gate
/// are blocked for one such block at a time, or [`BLOCKS_AT_ONCE`] others, so that a handler that touches the range,
/// or a fork, need not wait for all of it.
pub(crate) fn each_block_of(engine: &Engine, blocks: Range<usize>, mut work: impl FnMut(BlockId)) {
    let has_content =
        |&id: &BlockId| engine.table().has(id) && engine.try_lock(id).is_none_or(|block| !block.is_empty());
    let mut next = blocks.start;
    while next < blocks.end {
        if let Some((end, _)) = engine.table().untouched(next..blocks.end) {
            next = end;
            continue;
        }
        let _inside = engine.enter();
        let looks = (next..blocks.end.min(next + BLOCKS_AT_ONCE)).map(BlockId::from_index);
        next = blocks.end.min(next + BLOCKS_AT_ONCE);
        for id in looks {
            if has_content(&id) {
                work(id);
                next = id.index() + 1;
                break;
            }
        }
    }
}
