//! The parts of the engine that hold content: addresses with the folio table, RAM, and the swap space; and which
//! content is lost, or kept twice.

use std::sync::Arc;

use folioswap_core::{BLOCK_PAGES, FrameId, Order, SlotId, Stats};

use crate::memory::kept_copies::KeptCopies;
use crate::memory::lost::Lost;
use crate::memory::map_error::patiently;
use crate::memory::ram::Ram;
use crate::memory::table::Table;
use crate::process::cpu::current_cpu;
use crate::process::shared_stats::StatsHome;
use crate::swap::space::SwapSpace;

/// Where content lies. Each part keeps its state to itself.
pub(crate) struct Parts {
    table: Table,
    ram: Ram,
    swap: SwapSpace,
    lost: Lost,
    kept_copies: KeptCopies,
    stats: Arc<StatsHome>,
}

impl Parts {
    pub fn new(table: Table, ram: Ram, swap: SwapSpace, stats: Arc<StatsHome>) -> Self {
        let kept_copies = KeptCopies::new(ram.zones().nr_frames_max().div_ceil(BLOCK_PAGES));
        Parts { table, ram, swap, lost: Lost::default(), kept_copies, stats }
    }

    /// The managed addresses and the folio table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    pub fn ram(&self) -> &Ram {
        &self.ram
    }

    pub fn swap(&self) -> &SwapSpace {
        &self.swap
    }

    /// Pages whose content is lost.
    pub fn lost(&self) -> &Lost {
        &self.lost
    }

    /// Where folios in RAM keep copies in swap.
    pub fn kept_copies(&self) -> &KeptCopies {
        &self.kept_copies
    }

    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Frees the frames of a mapped folio whose pages have gone; they get new memory.
    pub fn free_lost(&self, frame: FrameId, order: Order) {
        if order == Order::HUGE && self.ram().frames().is_locked() {
            // SAFETY: the home of frames that the folio has just left; nobody else has them.
            if !patiently("made again", || unsafe { self.ram().mapper().populate(self.ram().frames().home(frame)) }) {
                self.ram().zone(frame).disown(frame); // it may still be on a list
                self.ram().note_small(frame);
            }
            self.ram().release(frame);
        } else if order == Order::HUGE {
            self.ram().release_unpopulated(frame);
            self.ram().frame_freed().signal();
        } else {
            // SAFETY: the folio has just left these frames, and nobody else has them.
            unsafe { self.ram().backing().repopulate(frame, order) };
            self.ram().release(frame);
        }
    }

    pub fn count_swap_in(&self, order: Order) {
        self.stats().swapped_in_folios.add(1);
        self.stats().swapped_in_bytes.add(order.bytes() as u64);
        self.stats().swpin.add(order, 1);
    }

    pub fn count_swap_out(&self, order: Order) {
        self.stats().swapped_out_folios.add(1);
        self.stats().swapped_out_bytes.add(order.bytes() as u64);
        self.stats().swpout.add(order, 1);
        if order == Order::HUGE {
            self.stats().thp_swpout.add(1);
        }
    }

    /// Slots on the first device that has them on the list of the frame's node, because the folio was used on that
    /// node. If the zone spans several nodes, this CPU's node counts.
    pub fn allocate_near(&self, frame: FrameId, order: Order) -> Option<SlotId> {
        let cpu = current_cpu();
        match self.ram().node_of(frame) {
            Some(node) => self.swap().allocate_for(node, cpu, order),
            None => self.swap().allocate(cpu, order),
        }
    }
}
