//! Brings memory in, as a touch would.

use std::ops::Range;

use folioswap_core::{BlockId, FolioId, State};
use folioswap_sys::signals;

use crate::block::Block;
use crate::engine::Engine;
use crate::fault::resolve;
use crate::memory::table::{blocks_of, pages_in};

/// Brings a range in, writable. Cheap for resident pages. A system call may have named it: it may be anything.
pub(crate) fn touch(engine: &Engine, range: Range<usize>) {
    let (range, thread) = (engine.table().possible(range), signals::thread_id());
    for block in blocks_of(&range).map(BlockId::from_index) {
        if engine.table().is_open(block) {
            let _blocked = signals::block_all(); // a signal handler might touch the block
            bring_in(engine, block, &pages_in(block, &range), thread);
        }
    }
}

/// Brings pages of a block in. `false`: the content of one is lost. The pages may leave again at any time.
pub(crate) fn bring_in(engine: &Engine, block: BlockId, pages: &Range<usize>, thread: u32) -> bool {
    loop {
        let missing = {
            let _pass = engine.gate().enter(thread);
            first_missing(&engine.lock(block), pages)
        };
        let Some(missing) = missing else { return true };
        if !resolve::resolve(engine, engine.table().addr(missing), thread) {
            return false;
        }
        if !engine.table().is_open(block) {
            return true; // unmapped meanwhile
        }
    }
}

/// The first of these pages that is neither mapped nor sealed.
pub(crate) fn first_missing(block: &Block<'_>, pages: &Range<usize>) -> Option<FolioId> {
    let nr_pages = block.order().nr_pages();
    let folios = block.index_of(pages.start)..=block.index_of(pages.end - 1);
    let mut missing = folios.filter(|&index| !matches!(block.state(index), State::Resident(_)));
    missing.find_map(|index| {
        let mut part = pages.start.max(index * nr_pages)..pages.end.min((index + 1) * nr_pages);
        part.find(|&page| !block.is_sealed(page)).map(|page| block.id().page(page))
    })
}
