//! Managed memory becomes ordinary memory of the program's again, with its content: because a userfaultfd of the
//! program's own is to take it, or because the kernel is about to refuse to move its pages.

use std::ops::Range;

use folioswap_core::{BLOCK_PAGES, BlockId, FolioId, Order, State};
use folioswap_sys::signals;

use crate::block::Block;
use crate::compact::compactd;
use crate::engine::Engine;
use crate::fault::flow::Fault;
use crate::manage::pages;
use crate::memory::table::{blocks_of, pages_in};
use crate::process::fatal;
use crate::process::turns::{Waits, asleep};

/// Hands the managed parts of a range over to the kernel. What has left RAM comes in; pages without content stay
/// missing. Returns the parts that stay managed: their content is lost.
pub(crate) fn hand_over(engine: &Engine, range: &Range<usize>) -> Vec<Range<usize>> {
    let _blocked = signals::block_all(); // a signal handler might touch the range, and would wait for this thread
    let _changing = engine.table().changing();
    let managed = pages::managed_parts(engine, range.clone());
    let blocks = blocks_of(range);
    engine.policy().forget_streams(BlockId::from_index(blocks.start)..BlockId::from_index(blocks.end));
    for block in pages::close_untouched(engine, range) {
        if engine.table().is_open(block) {
            hand_over_in(engine, block, pages_in(block, range));
        }
    }
    compactd::look_for_whole(engine);
    let stays = pages::managed_parts(engine, range.clone());
    for part in managed {
        let mut at = part.start;
        for kept in stays.iter().filter(|kept| kept.start < part.end && part.start < kept.end) {
            end_delivery(engine, at..kept.start);
            at = kept.end;
        }
        end_delivery(engine, at..part.end);
    }
    stays
}

/// The kernel serves the faults of these pages from now on, and forks have them.
fn end_delivery(engine: &Engine, part: Range<usize>) {
    if part.is_empty() {
        return;
    }
    if let Err(error) = engine.uffd().unregister(part.start, part.len()) {
        fatal::say(&format!("memory that is no longer managed still has its faults delivered: {error}"));
    }
    pages::leave_to_kernel(part.start, part.len());
}

/// Hands pages of a block over, or leaves them as they are.
fn hand_over_in(engine: &Engine, block: BlockId, pages: Range<usize>) {
    let thread = signals::thread_id();
    let is_part = pages.len() < BLOCK_PAGES;
    let fixed = is_part.then(|| engine.lock(block).fixed_order.replace(Order::PAGE)); // nothing is joined again
    hand_over_pages(engine, block, &pages, thread);
    if let Some(fixed) = fixed {
        engine.lock(block).fixed_order = fixed;
    }
}

fn hand_over_pages(engine: &Engine, id: BlockId, pages: &Range<usize>, thread: u32) {
    loop {
        let pass = engine.gate().enter(thread);
        let mut block = engine.lock(id);
        make_apart(&mut block, pages);
        if let Some(page) = first_out(&block, pages) {
            drop(block);
            match asleep(Fault::new(engine, page, thread, Waits::Asleep).run(pass)) {
                Ok(_) => continue,
                Err(error) => return fatal::say(&error.to_string()),
            }
        }
        let nr_pages = block.order().nr_pages();
        for index in pages.start / nr_pages..pages.end.div_ceil(nr_pages) {
            if let State::Resident(frame) = block.state(index)
                && !block.is_sealed(index * nr_pages)
            {
                block.let_go(index, frame);
            }
        }
        if (0..BLOCK_PAGES).all(|page| pages.contains(&page) || block.is_sealed(page)) {
            engine.table().close(id);
            block.join();
            block.reset_advice();
        } else {
            block.set_sealed(pages.clone(), true);
            block.isolate();
        }
        return;
    }
}

/// Divides the folios of a block so that each lies in these pages as a whole or not at all, or is sealed.
fn make_apart(block: &mut Block<'_>, pages: &Range<usize>) {
    let is_apart = |block: &Block<'_>, index| {
        let folio = block.pages_of(index);
        let is_outside = folio.end <= pages.start || pages.end <= folio.start;
        let is_inside = pages.start <= folio.start && folio.end <= pages.end;
        is_outside || is_inside || folio.clone().all(|page| block.is_sealed(page))
    };
    if !(0..block.nr_folios()).all(|index| is_apart(block, index)) {
        if block.is_empty() { block.split(Order::PAGE) } else { block.divide(Order::PAGE) }
    }
}

/// The first of these pages whose content is not mapped.
fn first_out(block: &Block<'_>, pages: &Range<usize>) -> Option<FolioId> {
    let is_out = |&page: &usize| {
        matches!(block.state(block.index_of(page)), State::Swapped(_) | State::Standby(_)) && !block.is_sealed(page)
    };
    pages.clone().find(is_out).map(|page| block.id().page(page))
}
