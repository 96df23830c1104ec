//! Managed memory becomes ordinary memory of the program's again, with its content: because a userfaultfd of the
//! program's own is to take it, or because the kernel is about to refuse to move its pages.

use std::ops::Range;

use folioswap_core::{BLOCK_PAGES, BlockId, FolioId, Locked, Order, State};
use folioswap_sys::{memory, signals};

use super::Engine;
use super::folio::pages_of;
use super::manage::{blocks_of, pages_in};
use crate::process::fatal;

impl Engine {
    /// Hands the managed parts of a range over to the kernel. What has left RAM comes in; pages without content stay
    /// missing. Returns the parts that stay managed: their content is lost.
    pub fn hand_over(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let _blocked = signals::block_all(); // a signal handler might touch the range, and would wait for this thread
        let _changing = self.table().changing();
        let managed = self.managed_parts(range.clone());
        let blocks = blocks_of(range);
        self.policy().forget_streams(BlockId::from_index(blocks.start)..BlockId::from_index(blocks.end));
        for block in self.close_untouched(range) {
            if self.table().is_open(block) {
                self.hand_over_in(block, pages_in(block, range));
            }
        }
        self.look_for_whole();
        let stays = self.managed_parts(range.clone());
        for part in managed {
            let mut at = part.start;
            for kept in stays.iter().filter(|kept| kept.start < part.end && part.start < kept.end) {
                self.end_delivery(at..kept.start);
                at = kept.end;
            }
            self.end_delivery(at..part.end);
        }
        stays
    }

    /// The kernel serves the faults of these pages from now on, and forks have them.
    fn end_delivery(&self, part: Range<usize>) {
        if part.is_empty() {
            return;
        }
        if let Err(error) = self.faults().uffd().unregister(part.start, part.len()) {
            fatal::say(&format!("memory that is no longer managed still has its faults delivered: {error}"));
        }
        let _ = memory::dofork(part.start, part.len());
    }

    /// Hands pages of a block over, or leaves them as they are.
    fn hand_over_in(&self, block: BlockId, pages: Range<usize>) {
        let thread = signals::thread_id();
        let is_part = pages.len() < BLOCK_PAGES;
        let fixed = is_part.then(|| self.table().lock(block).fixed_order.replace(Order::PAGE)); // nothing is joined again
        self.hand_over_pages(block, &pages, thread);
        if let Some(fixed) = fixed {
            self.table().lock(block).fixed_order = fixed;
        }
    }

    fn hand_over_pages(&self, block: BlockId, pages: &Range<usize>, thread: u32) {
        loop {
            let pass = self.gate().enter(thread);
            let mut locked = self.table().lock(block);
            self.make_apart(&mut locked, pages);
            if let Some(page) = first_out(&locked, pages) {
                match self.fault_in(pass, Some(locked), page, thread) {
                    Ok(_) => continue,
                    Err(error) => return fatal::say(&error.to_string()),
                }
            }
            let nr_pages = locked.order().nr_pages();
            for index in pages.start / nr_pages..pages.end.div_ceil(nr_pages) {
                if let State::Resident(frame) = locked.state(index)
                    && !locked.is_sealed(index * nr_pages)
                {
                    let order = locked.order();
                    locked.folio_mut(index).set_out();
                    self.free_lost(frame, order); // its pages are the program's now
                    self.release_slot(&mut locked, index);
                    self.end_lost_folio(&locked, index);
                    locked.folio_mut(index).set_empty();
                }
            }
            if (0..BLOCK_PAGES).all(|page| pages.contains(&page) || locked.is_sealed(page)) {
                self.table().close(block);
                locked.join();
                locked.reset_advice();
            } else {
                locked.set_sealed(pages.clone(), true);
                self.isolate(&mut locked);
            }
            return;
        }
    }

    /// Divides the folios of a block so that each lies in these pages as a whole or not at all, or is sealed.
    fn make_apart(&self, locked: &mut Locked<'_>, pages: &Range<usize>) {
        let is_apart = |locked: &Locked<'_>, index| {
            let folio = pages_of(locked, index);
            let is_outside = folio.end <= pages.start || pages.end <= folio.start;
            let is_inside = pages.start <= folio.start && folio.end <= pages.end;
            is_outside || is_inside || folio.clone().all(|page| locked.is_sealed(page))
        };
        if (0..locked.nr_folios()).all(|index| is_apart(locked, index)) {
        } else if locked.is_empty() {
            locked.split(Order::PAGE);
        } else if locked.order() == Order::HUGE && locked.folio(0).frame().is_some() {
            self.divide_whole(locked, Order::PAGE);
        } else {
            self.split_block(locked, Order::PAGE);
        }
    }
}

/// The first of these pages whose content is not mapped.
fn first_out(locked: &Locked<'_>, pages: &Range<usize>) -> Option<FolioId> {
    let is_out = |&page: &usize| {
        matches!(locked.state(locked.index_of(page)), State::Swapped(_) | State::Standby(_)) && !locked.is_sealed(page)
    };
    pages.clone().find(is_out).map(|page| locked.id().page(page))
}
