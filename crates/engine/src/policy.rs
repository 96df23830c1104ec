//! The policies that decide about swap-in: the order of folios, streams and their readahead, and what is dropped behind
//! a stream.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use folioswap_core::{
    BlockId, Choice, DropBehind, FaultKind, Locked, Order, OrderChoice, PIECE, Pressure, Room, State, Stay,
    StreamAdvice, Streams, Wish,
};

use folioswap_core::policy::readahead::FIRST_WINDOW;

use crate::config::swap_in_policy::SwapIn;
use crate::memory::ram::Ram;
use crate::swap::space::SwapSpace;

/// Longest readahead window, in bytes: two windows of 4 huge pages in flight keep a disk busy.
const WINDOW_BYTES: usize = 8 << 20;

pub(crate) struct Policy {
    /// Order of all folios. `None`: the order of each block is chosen from measurements.
    fixed_order: Option<Order>,
    /// Whether folios are swapped in whole ([`SwapIn`]).
    swap_in: AtomicU8,
    streams: Streams,
    drop_behind: DropBehind,
    order_choice: OrderChoice,
}

impl Policy {
    pub fn new(fixed_order: Option<Order>, swap_in: SwapIn) -> Self {
        Policy {
            fixed_order,
            swap_in: AtomicU8::new(swap_in.number()),
            streams: Streams::default(),
            drop_behind: DropBehind::default(),
            order_choice: OrderChoice::default(),
        }
    }

    pub fn fixed_order(&self) -> Option<Order> {
        self.fixed_order
    }

    pub fn set_swap_in(&self, policy: SwapIn) {
        self.swap_in.store(policy.number(), Ordering::Relaxed);
    }

    /// The fixed order of a block's folios, at most the largest that its sealed pages permit: a block of small mappings
    /// has no folios above 64 KiB. `None`: measurements choose it.
    pub fn order_of(&self, locked: &Locked<'_>) -> Option<Order> {
        let wanted = locked.fixed_order.or(self.fixed_order);
        match locked.sealed_order() {
            Order::HUGE => wanted,
            most => Some(wanted.unwrap_or(PIECE).min(most)),
        }
    }

    pub fn swap_in(&self) -> SwapIn {
        SwapIn::from_number(self.swap_in.load(Ordering::Relaxed))
    }

    /// Whether a whole block may be divided so that its pages leave RAM one by one.
    pub fn may_divide(&self, locked: &Locked<'_>) -> bool {
        !locked.pinned && self.order_of(locked).is_none() && locked.wish != Wish::Whole
    }

    /// Notes that a folio is swapped in, and judges whether it was right to drop it, if a stream did.
    pub fn note_swap_in(&self, block: &mut Locked<'_>, index: usize, ram: &Ram) {
        if std::mem::replace(&mut block.folio_mut(index).stay, Stay::SwappedIn) == Stay::Dropped {
            let since = ram.nr_evictions().wrapping_sub(block.left_at);
            if self.drop_behind.left_early(since as usize, ram.zones().counts().limit) {
                self.refaulted();
            }
        }
    }

    /// Whether a whole block that leaves RAM is likely to come back page by page.
    pub fn comes_back_by_pages(&self, locked: &Locked<'_>, ram: &Ram) -> bool {
        let policy = self.swap_in();
        let by_measure = || {
            self.order_of(locked).is_none()
                && self.order_choice.believes_sparse(locked.id())
                && !ram.neighbours().in_pieces(locked.id())
        };
        !policy.allows_whole(locked.wish) || by_measure()
    }

    /// Whether a block in pieces that is touched is to be split into pages: its pieces are touched more often than
    /// their pages, so they would stay in RAM although little of them is used.
    pub fn splits_pieces(&self, locked: &Locked<'_>, ram: &Ram) -> bool {
        locked.order() == PIECE
            && !locked.pinned
            && self.order_of(locked).is_none()
            && !ram.neighbours().in_pieces(locked.id())
    }

    /// Whether a split block that a stream is about to reach should become one folio.
    pub fn wants_whole(&self, locked: &Locked<'_>) -> bool {
        let policy = self.swap_in();
        !locked.pinned
            && !locked.has_sealed()
            && policy.allows_whole(locked.wish)
            && self.order_of(locked).is_none_or(|order| order == Order::HUGE)
    }

    /// In a forked child: its parent's opinions are forgotten.
    pub fn forget(&self) {
        self.order_choice.forget();
        self.streams.forget_all();
    }

    /// Whether a block in the window of a stream stays on the device, so that its faults show whether the stream uses
    /// what it reads.
    pub fn probes(&self, locked: &Locked<'_>) -> bool {
        let is_swapped = |index| matches!(locked.state(index), State::Swapped(_));
        !locked.pinned
            && self.swap_in().allows_whole(locked.wish)
            && self.order_of(locked).is_none()
            && (0..locked.nr_folios()).any(is_swapped)
            && self.order_choice.probes(locked.id())
    }

    /// Chooses what is swapped in with a page of a locked block.
    pub fn choose(&self, locked: &mut Locked<'_>, page: usize, ram: &Ram, swap: &SwapSpace) -> Choice {
        let policy = self.swap_in();
        if !policy.allows_whole(locked.wish) {
            return Choice::Part(Order::PAGE);
        }
        match self.order_of(locked) {
            Some(Order::HUGE) => Choice::Whole,
            Some(order) => Choice::Part(order),
            None => {
                let (id, nr_folios, index) = (locked.id(), locked.nr_folios(), locked.index_of(page));
                let now = ram.nr_evictions();
                let nr_left_since = match locked.state(index) {
                    State::Swapped(_) => now.wrapping_sub(locked.left_at) as usize,
                    _ => 0,
                };
                let folio_left_since = locked.folio(index).nr_evicted_since(now).map(|nr_left| nr_left as usize);
                if let Some(nr_left_since) = folio_left_since.filter(|_| nr_folios > 1) {
                    ram.neighbours().came_back(id, nr_left_since, ram.budget_pages());
                    if Pressure::is_soon(nr_left_since, ram.budget_pages()) {
                        ram.note_soon();
                    }
                }
                let used_of_folio = self.used_of_folio(locked, ram);
                let budget_blocks = ram.budget_blocks();
                let pressure = Pressure { budget_blocks, nr_left_since, folio_left_since, used_of_folio };
                match self.order_choice.choose(id, &mut locked.history, nr_folios, index, pressure) {
                    Choice::Part(most) if most > Order::PAGE => Choice::Part(part(locked, index, ram, swap)),
                    choice => choice,
                }
            }
        }
    }

    /// How many pages are used at least of a touched folio of a block.
    pub fn used_of_folio(&self, locked: &Locked<'_>, ram: &Ram) -> usize {
        match self.order_of(locked) {
            Some(_) => locked.order().nr_pages(),
            None => ram.neighbours().used_of_folio(locked.id(), locked.order()),
        }
    }

    /// The pages to read with a page of a block that comes back by pages.
    pub fn neighbours(&self, locked: &Locked<'_>, page: usize, ram: &Ram) -> Range<usize> {
        if self.order_of(locked).is_some() || !self.swap_in().allows_whole(locked.wish) {
            return page..page + 1;
        }
        let nr_pages = ram.neighbours().group(locked.id()).nr_pages();
        let first = page / nr_pages * nr_pages;
        first..first + nr_pages
    }

    /// Notes that a stream has found so many blocks in RAM.
    pub fn note_kept(&self, nr_blocks: usize) {
        self.drop_behind.kept(nr_blocks);
    }

    /// A folio that was dropped behind a stream was needed again.
    pub fn refaulted(&self) {
        self.drop_behind.refaulted();
    }

    /// Notes that a thread has reached a block. If it is in a stream, returns what to read ahead, and whether to drop
    /// the blocks behind it.
    pub fn follow(
        &self,
        thread: u32,
        block: BlockId,
        kind: FaultKind,
        budget_blocks: usize,
    ) -> Option<(StreamAdvice, bool)> {
        let fills = kind == FaultKind::FirstTouch; // filling memory says little about its later use
        let longest = match self.fixed_order.is_some() || fills || self.order_choice.trusts_streams() {
            true => WINDOW_BYTES / Order::HUGE.bytes(),
            false => FIRST_WINDOW,
        };
        let room = Room { max_window: longest.min(budget_blocks / 16), max_total: budget_blocks / 4 };
        let advice = self.streams.observe(u64::from(thread), block, room)?;
        let nr_behind = advice.behind.end.index() - advice.behind.start.index();
        if !fills && !self.order_choice.streamed(advice.behind.clone()) {
            self.streams.forget_blocks(block..BlockId::from_index(block.index() + 1));
            return None;
        }
        let drops = self.drop_behind.passed(nr_behind, budget_blocks);
        Some((advice, drops))
    }

    pub fn forget_streams(&self, blocks: Range<BlockId>) {
        self.streams.forget_blocks(blocks);
    }
}

/// The order of the folios of a block that does not come back whole. Devices in memory give a page as fast as they can
/// give many.
fn part(locked: &Locked<'_>, index: usize, ram: &Ram, swap: &SwapSpace) -> Order {
    match locked.folio(index).slot() {
        Some(slot) if swap.extent(slot).is_some() => ram.neighbours().part(locked.id(), locked.order()),
        _ => Order::PAGE,
    }
}
