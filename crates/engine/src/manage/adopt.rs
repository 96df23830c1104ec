//! Adoption: memory that the program had before it was managed keeps its pages, where they lie, without a copy. Each
//! gets a frame's number, and can leave RAM from then on.
//!
//! A frame has its page at home, or under its folio. So the homes of the frames that a folio gets here are emptied. A
//! block that is nearly full becomes one folio, whether the kernel has a huge page there or small ones. Any other is
//! split into pieces. What a folio lacks is filled with zeros.
//!
//! Threads go on meanwhile. Once the memory is registered no page can come in but through the engine, and nobody
//! resolves faults of blocks that are not open. A page that goes meanwhile is a gap, as if it had gone later
//! ([`Block::fill_gaps`]).

use std::io;
use std::ops::Range;

use folioswap_core::{BLOCK_BYTES, BLOCK_PAGES, BlockId, FrameId, List, Memory, Order, PAGE_SIZE, PIECE, State, Taken};
use folioswap_sys::{memory, signals};

use crate::block::Block;
use crate::engine::Engine;
use crate::fault::take::{Changed, take_frames};
use crate::manage::pages;
use crate::memory::table::{blocks_of, pages_in};
use crate::process::stopwatch::Stopwatch;
use crate::process::turns::asleep;

/// Pages of a block from which it becomes one folio.
const NEARLY_FULL: usize = BLOCK_PAGES / 8 * 7;

/// Manages memory from now on, with its content. Where there are no frames for it, earlier folios leave RAM.
///
/// # Errors
/// The kernel's: it is of another kind, there are too many mappings, or the page tables cannot be read. The memory
/// is as it was.
///
/// # Safety
/// The range is whole pages of private anonymous memory, of which none is managed, and nobody unmaps it meanwhile.
pub(crate) unsafe fn adopt(engine: &Engine, range: &Range<usize>) -> io::Result<()> {
    let _blocked = signals::block_all(); // a signal handler might touch another part of one of the blocks
    let _changing = engine.table().changing();
    if engine.table().possible(range.clone()) != *range {
        return Err(io::Error::from_raw_os_error(libc::EINVAL)); // the table has no entries for it
    }
    engine.ram().mapper().pagemap().filled(range.start..range.start + PAGE_SIZE)?;
    pages::close_for_change(engine, range);
    let filled = register_present(engine, range).inspect_err(|error| give_back(engine, range, error))?;
    engine.ram().mapper().note_fork(); // pages may be shared with children
    if !filled.contains(&true) {
        pages::open(engine, range, None); // entries are made as it is touched
        return Ok(());
    }
    engine.table().ensure(blocks_of(range));
    for block in blocks_of(range).map(BlockId::from_index) {
        let pages = pages_in(block, range);
        let first = (block.offset_bytes() + pages.start * PAGE_SIZE - range.start) / PAGE_SIZE;
        adopt_in(engine, block, &pages, &filled[first..first + pages.len()]);
    }
    engine.table().note_in_use(blocks_of(range));
    Ok(())
}

/// Has the kernel report the faults of pages that are missing. Returns which are not.
fn register_present(engine: &Engine, range: &Range<usize>) -> io::Result<Vec<bool>> {
    let (addr, len) = (range.start, range.len());
    memory::dontfork(addr, len)?;
    pages::advise(engine, addr, len)?;
    engine.uffd().register(addr, len)?;
    engine.ram().mapper().pagemap().filled(range.clone())
}

/// Undoes a registration, unless a part is another userfaultfd's: before Linux 6.16 this would end that one's.
fn give_back(engine: &Engine, range: &Range<usize>, error: &io::Error) {
    if error.raw_os_error() != Some(libc::EBUSY) {
        let _ = engine.uffd().unregister(range.start, range.len());
    }
    pages::leave_to_kernel(range.start, range.len());
}

/// Opens pages of a block, and gives frames to those that are filled.
fn adopt_in(engine: &Engine, id: BlockId, pages: &Range<usize>, filled: &[bool]) {
    let is_filled = |page: usize| pages.contains(&page) && filled[page - pages.start];
    let _pass = engine.gate().enter(signals::thread_id());
    let mut block = engine.lock(id);
    if !engine.table().is_open(id) && pages.len() < BLOCK_PAGES {
        block.set_sealed(0..BLOCK_PAGES, true);
    }
    engine.table().close(id); // no page comes in while it is divided, also when its lock is given up for a moment
    if block.has_sealed() {
        block.set_sealed(pages.clone(), false);
    }
    if let Some(first) = filled.iter().position(|&filled| filled) {
        // A fork shares no pages of a mapping in which nothing was ever written.
        memory::write_present(engine.table().addr(id.page(pages.start + first)), PAGE_SIZE);
    }
    let nr_filled = filled.iter().filter(|&&filled| filled).count();
    let best = if nr_filled < NEARLY_FULL { PIECE } else { Order::HUGE };
    let order = engine.policy().order_of(&block).unwrap_or(best).min(block.sealed_order());
    match nr_filled {
        0 => block.isolate(),
        _ if order < block.order() => block.divide(order),
        _ => {}
    }
    let mut page = pages.start;
    while page < pages.end {
        let index = block.index_of(page);
        if is_filled(page) && block.state(index) == State::Empty && !give_frames(engine, &mut block, page, &is_filled) {
            continue; // the block has changed
        }
        page += 1;
    }
    engine.table().open(id);
}

/// Gives frames to the folio that holds a page, and fills what it lacks. `false`: nothing was done, and the block
/// is to be looked at again.
fn give_frames(engine: &Engine, block: &mut Block<'_>, page: usize, is_filled: &impl Fn(usize) -> bool) -> bool {
    let order = block.order();
    let taken = match asleep(take_frames(engine, order, block, page, &mut Stopwatch::still())) {
        Ok(Some(taken)) => taken,
        Ok(None) => {
            block.divide(if order > PIECE { PIECE } else { Order::PAGE });
            return false;
        }
        Err(Changed) => return false,
    };
    let folio = block.pages_of(block.index_of(page));
    let missing: Vec<_> = folio.filter(|&page| !is_filled(page)).collect();
    missing.chunk_by(|a, b| a + 1 == *b).for_each(|run| fill_with_zeros(engine, block, run));
    let frame = match order {
        Order::HUGE => empty_pageblock(engine, block, taken),
        _ => empty_homes(engine, taken, order),
    };
    block.note_mapped(block.index_of(page), frame, List::Inactive);
    true
}

/// Fills missing pages in a row. Those that cannot be are gaps, as pages that go later.
fn fill_with_zeros(engine: &Engine, block: &Block<'_>, run: &[usize]) {
    for part in run.chunks(PIECE.nr_pages()) {
        let addr = engine.table().addr(block.id().page(part[0]));
        // SAFETY: pages of a locked block at which nothing is present.
        let _ = unsafe { engine.ram().mapper().fill(addr, part.len() * PAGE_SIZE) };
    }
}

/// Takes the memory from a pageblock that was taken for a block that has its own.
fn empty_pageblock(engine: &Engine, block: &Block<'_>, taken: Taken) -> FrameId {
    if taken.memory != Memory::Absent {
        // SAFETY: taken whole just now, and nobody else uses it.
        unsafe { engine.ram().backing().unpopulate(taken.frame) };
    }
    let addr = engine.table().block_addr(block.id());
    let is_huge = engine
        .ram()
        .mapper()
        .pagemap()
        .scan(addr..addr + BLOCK_BYTES)
        .is_ok_and(|scan| scan.huge_bytes == BLOCK_BYTES as u64);
    if !is_huge {
        engine.ram().zone(taken.frame).carve(taken.frame, Order::HUGE); // small pages
    }
    taken.frame
}

/// The same for the frames of a smaller folio.
fn empty_homes(engine: &Engine, taken: Taken, order: Order) -> FrameId {
    let frame = engine.ram().prepare(taken, order).into_frame();
    // SAFETY: taken just now, and nobody else uses them.
    let dropped = unsafe { engine.ram().mapper().discard(engine.ram().frames().home(frame), order.bytes()) };
    dropped.unwrap_or_else(|error| crate::process::fatal::die(&format!("a frame could not be emptied: {error}")));
    frame
}
