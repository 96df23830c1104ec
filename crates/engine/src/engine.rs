//! What an arena's threads share, and the small moves that both ways, in and out, are made of.
//!
//! Lock order: the lock of a block of the folio table, then that of the compactor, in a fault that compacts, then one of
//! the leaves (zone with the frames that CPUs keep, freed slots and clusters, streams, choice, queue), never two leaves. A second block is
//! only ever tried for, but for the source of a mapping that moves, whose target is new. No managed memory is touched
//! under any of them.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use folioswap_core::{
    Access, BlockId, CpuId, DropBehind, FolioId, FolioTable, FrameId, List, Locked, Memory, NodeId, Order, OrderChoice,
    Overruns, PAGE_SIZE, Phase, State, Stats, Streams, Zones,
};
use folioswap_sys::clock::Clock;
use folioswap_sys::futex;
use folioswap_sys::memory::{self, Reservation};
use folioswap_sys::pagemap::{self, Pagemap};
use folioswap_sys::uffd::Userfaultfd;

use crate::address_space::AddressSpace;
use crate::compactd::Compactor;
use crate::fatal;
use crate::fault::monitor::DeviceFaults;
use crate::frames::Frames;
use crate::freeing::Freeing;
use crate::kept::KeptCopies;
use crate::lost::Lost;
use crate::map::{MapError, Mapper};
use crate::outgoing::{Buffers, Written};
use crate::readahead::ReadQueue;
use crate::shared_stats::{InMemory, SharedCounters};
use crate::slot_compaction::SlotCompactor;
use crate::space::SwapSpace;
use crate::stopwatch::Stopwatch;
use crate::wakeup::{Event, Gate};
use crate::zeroed::ZeroedStock;

/// An arena's counters: its own, or memory that it shares with the process that prints them.
pub(crate) enum StatsHome {
    Own(Box<InMemory>),
    Shared(&'static SharedCounters),
}

impl std::ops::Deref for StatsHome {
    type Target = Stats;

    fn deref(&self) -> &Stats {
        match self {
            StatsHome::Own(stats) => stats.get(),
            StatsHome::Shared(counters) => counters.stats(),
        }
    }
}

/// Faults of one thread for which its CPU is asked for once.
const FAULTS_ON_ONE_CPU: u32 = 32;

thread_local! {
    /// The CPU of the thread for which this one works, if not its own.
    static SERVED: Cell<Option<CpuId>> = const { Cell::new(None) };
    /// That thread, and for how many of its faults more it is taken to be on that CPU.
    static ASKED: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// The CPU that runs this thread, or the thread for which it works: for what is kept by CPU, and near it.
pub(crate) fn current_cpu() -> CpuId {
    SERVED.get().unwrap_or_else(|| CpuId::new(folioswap_sys::cpu::current_cpu() as u32))
}

/// The engine of one arena.
pub(crate) struct Engine {
    /// The order of all folios; none: each block's own is chosen by what is measured.
    pub fixed_order: Option<Order>,
    pub span: Reservation,
    pub addresses: AddressSpace,
    pub table: FolioTable,
    pub zones: Zones,
    /// The node of each zone; none where a zone is of several.
    pub zone_nodes: Box<[NodeId]>,
    pub frames: Frames,
    pub space: SwapSpace,
    pub freeing: Freeing,
    pub buffers: Buffers,
    /// Written folios whose blocks were locked when their write ended.
    pub unsettled: Mutex<Vec<Written>>,
    pub zeroed: ZeroedStock,
    pub compactor: Compactor,
    pub slot_compactor: SlotCompactor,
    pub mapper: Box<dyn Mapper>,
    pub uffd: Arc<Userfaultfd>,
    pub pagemap: Arc<Pagemap>,
    pub lost: Lost,
    pub stats: StatsHome,
    pub clock: Clock,
    pub streams: Streams,
    pub drop_behind: DropBehind,
    pub overruns: Overruns,
    pub order_choice: OrderChoice,
    /// Whether folios come back in one piece ([`SwapIn`](crate::SwapIn)).
    pub swap_in: AtomicU8,
    pub reads: ReadQueue,
    pub gate: Gate,
    /// Held by the monitor thread that looks for the next fault without sleeping.
    pub on_watch: Mutex<()>,
    pub device_faults: DeviceFaults,
    /// Frames are getting short.
    pub reclaim_wanted: Event,
    /// Whether who relieves fronts waits to be told.
    pub wants_relief: AtomicBool,
    /// Compressed RAM in front of other devices is about to be full.
    pub front_filled: Event,
    /// A frame has become free, or a folio clean.
    pub frame_freed: Event,
    /// How long a thread waits for that before it asks why.
    pub patience: Duration,
    /// 1 + the count of `frame_freed` at which it was last said that devices are waited for.
    pub stall_said: AtomicU64,
    /// Where copies are that can be given up.
    pub kept_copies: KeptCopies,
    pub stop: AtomicBool,
    /// This process has made a child that inherited some of its folios.
    pub has_forked: AtomicBool,
    /// The budget in bytes.
    pub memory: AtomicU64,
    /// Held while a locked budget grows.
    pub growing: Mutex<()>,
    /// Pageblocks that are not made huge again before it is tried again: the kernel had no huge page.
    pub huge_pages_short: AtomicUsize,
    /// Pages that have left RAM so far; wraps.
    pub nr_evictions: AtomicU32,
    /// Whole folios that found no contiguous frames since the compaction thread last looked.
    pub whole_wanted: AtomicUsize,
    /// Pages that are mapped.
    pub nr_mapped: AtomicUsize,
    /// One bit a block: its addresses are in use. Changed before the block is dropped, read with its lock held: a fault
    /// that was reported before its addresses were given up makes no page there. The kernel backs what is used of it.
    pub open: Box<[AtomicU64]>,
}

impl Engine {
    /// From now on this thread works for that one: what it takes is near the CPU on which that thread has faulted. Where all memory is
    /// near all CPUs it does not matter, and nothing is asked.
    pub fn serve(&self, thread: u32) {
        if self.zones.all().len() < 2 {
            return;
        }
        match ASKED.get() {
            (same, left @ 1..) if same == thread => ASKED.set((thread, left - 1)),
            _ => {
                SERVED.set(folioswap_sys::cpu::cpu_of(thread).map(CpuId::from_index));
                ASKED.set((thread, FAULTS_ON_ONE_CPU - 1));
            }
        }
    }

    pub fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.span.addr()) < self.span.len()
    }

    /// The page at an address of the span.
    pub fn page_at(&self, addr: usize) -> FolioId {
        debug_assert!(self.contains(addr));
        FolioId::from_index((addr - self.span.addr()) / Order::PAGE.bytes())
    }

    /// The access of a thread to an address of the span.
    pub fn access_at(&self, addr: usize, thread: u32) -> Access {
        Access { page: self.page_at(addr), offset: addr % PAGE_SIZE, thread }
    }

    pub fn addr(&self, folio: FolioId) -> usize {
        self.span.addr() + folio.offset_bytes()
    }

    pub fn block_addr(&self, block: BlockId) -> usize {
        self.span.addr() + block.offset_bytes()
    }

    /// Notes that addresses are in use, or not any more.
    pub fn set_open(&self, blocks: std::ops::Range<usize>, open: bool) {
        for index in blocks {
            let bit = 1 << (index % 64);
            if open {
                self.open[index / 64].fetch_or(bit, Ordering::SeqCst);
            } else {
                self.open[index / 64].fetch_and(!bit, Ordering::SeqCst);
            }
        }
    }

    pub fn is_open(&self, block: BlockId) -> bool {
        self.open[block.index() / 64].load(Ordering::SeqCst) >> (block.index() % 64) & 1 == 1
    }

    pub fn lock(&self, block: BlockId) -> Locked<'_> {
        self.table.lock(block)
    }

    /// Locks a block that nobody holds; `None` too for one that was never mapped.
    pub fn try_lock(&self, block: BlockId) -> Option<Locked<'_>> {
        self.table.try_lock(block)
    }

    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Blocks that RAM holds.
    pub fn budget_blocks(&self) -> usize {
        self.zones.counts().limit / Order::HUGE.nr_pages()
    }

    /// The address of a folio of a locked block, where it is at home, and its bytes.
    fn places(&self, locked: &Locked<'_>, index: usize, frame: FrameId) -> (usize, usize, usize) {
        (self.addr(locked.name(index)), self.frames.home(frame), locked.order().bytes())
    }

    /// Puts a folio of a locked block, whose content is at home, under its address, on the given list.
    pub fn map(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId, list: List) {
        self.clear_table(locked);
        self.end_lost_folio(locked, index);
        let (addr, home, len) = self.places(locked, index, frame);
        self.patiently("mapped", || self.mapper.map(addr, home, len));
        // A whole folio may be in small pages, where the kernel had no huge one.
        locked.small_table |= locked.order() < Order::HUGE || self.zones.of(frame).memory(frame) != Memory::Huge;
        self.note_mapped(locked, index, frame, list);
    }

    /// The same for a whole block with fresh, zeroed memory instead of what is at home.
    pub fn map_fresh(&self, locked: &mut Locked<'_>, frame: FrameId, list: List, watch: &mut Stopwatch<'_>) {
        self.clear_table(locked);
        let (addr, home, _) = self.places(locked, 0, frame);
        if !self.patiently("made", || self.mapper.map_fresh(addr, home)) {
            self.note_small(frame);
            locked.small_table = true;
        }
        watch.lap(Phase::Frame); // all but a microsecond of it is the making
        self.note_mapped(locked, 0, frame, list);
    }

    /// A huge page moved to where a table of small pages is would be split: the table goes first. Before Linux 6.14 it
    /// stays, and the huge page is split.
    fn clear_table(&self, locked: &mut Locked<'_>) {
        if locked.order() == Order::HUGE && locked.small_table {
            let addr = self.block_addr(locked.id());
            // SAFETY: the caller has locked the block, and nothing of it is mapped: its one folio is being brought in.
            if let Err(error) = unsafe { self.frames.drop_memory(addr, Order::HUGE.bytes()) } {
                fatal::say(&format!("a block's page table could not be cleared: {error}"));
            }
            locked.small_table = false;
        }
    }

    fn note_mapped(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId, list: List) {
        let pages = locked.order().nr_pages();
        locked.folio_mut(index).set_in_ram(frame, true);
        self.nr_mapped.fetch_add(pages, Ordering::Relaxed);
        if locked.pinned {
            self.zones.of(frame).set_owner(frame, locked.name(index));
            self.zones.of(frame).remove(frame);
        } else {
            self.zones.of(frame).insert_for(locked.name(index), frame, list);
        }
    }

    /// The number of frames that have memory has changed.
    pub fn note_resident(&self) {
        self.stats.resident_bytes.set((self.zones.populated() * Order::PAGE.bytes()) as u64);
    }

    /// Takes a mapped folio of a locked block home. Its frames stay on the list where they were.
    pub fn unmap(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId) -> Result<(), MapError> {
        let (addr, home, len) = self.places(locked, index, frame);
        if self.gate.is_closed() {
            // For a fault of the thread that forks, whichever thread resolves it. What leaves now must not be inherited: the child would
            // read zeros there.
            self.keep_from_child(addr, len);
        }
        match self.mapper.unmap(addr, home, len) {
            // Shared with a child; or a page of zeros that became the kernel's own when a fork split the huge page.
            Err(MapError::Busy | MapError::Refused(libc::EEXIST)) if self.has_forked.load(Ordering::Relaxed) => {
                self.make_own(addr, len);
                self.mapper.unmap(addr, home, len)?;
            }
            other => other?,
        }
        locked.folio_mut(index).set_in_ram(frame, false);
        self.nr_mapped.fetch_sub(locked.order().nr_pages(), Ordering::Relaxed);
        Ok(())
    }

    /// Makes the pages of a mapped folio this process's own again after a fork. A page that was shared with a child stays
    /// marked so until it is written to, also when the child has gone. And where a huge page was copied in part, the
    /// kernel (6.18) asks its first page alone whether the rest may move: it has to become a new huge page. What cannot
    /// be done now stays busy.
    fn make_own(&self, addr: usize, len: usize) {
        let there = self.pagemap.scan(addr..addr + len).is_ok_and(|scan| scan.present_bytes == len as u64);
        // SAFETY: a folio's place in an open region (readable, writable), whose block the caller has locked, so that it stays there.
        if there && unsafe { memory::populate_write(addr, len) }.is_ok() && len == Order::HUGE.bytes() {
            let whole = self.pagemap.scan(addr..addr + len).is_ok_and(|scan| scan.huge_bytes == len as u64);
            if !whole {
                let _ = memory::collapse(addr, len);
            }
        }
    }

    /// Ends what all folios of a block hold: it reads as zero from now on, as one folio.
    pub fn drop_block(&self, locked: &mut Locked<'_>) {
        for index in 0..locked.nr_folios() {
            self.drop_content(locked, index);
        }
        locked.join();
    }

    /// Ends what a folio holds: it reads as zero from now on. Its frames go back to the zone, its slots to the space.
    pub fn drop_content(&self, locked: &mut Locked<'_>, index: usize) {
        let frame = match locked.state(index) {
            State::Empty => return,
            State::Swapped(_) => None,
            State::Standby(frame) => Some(frame),
            State::Resident(frame) => match self.unmap(locked, index, frame) {
                Ok(()) => Some(frame),
                Err(error) => {
                    self.abandon(locked, index, frame, error);
                    None
                }
            },
        };
        if let Some(frame) = frame {
            self.release_frame(frame);
        }
        self.release_slot(locked, index);
        self.end_lost_folio(locked, index);
        locked.folio_mut(index).set_empty();
    }

    /// Drops a mapped folio that cannot be moved (in use by a system call or shared with a child): its pages are the
    /// kernel's to free, and the frames begin anew.
    fn abandon(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId, error: MapError) {
        let order = locked.order();
        // SAFETY: the caller has locked the block, and ends the content of this folio.
        if let Err(refused) = unsafe { self.frames.drop_memory(self.addr(locked.name(index)), order.bytes()) } {
            fatal::die(&format!("a folio could not be dropped: {error}, {refused}"));
        }
        self.nr_mapped.fetch_sub(order.nr_pages(), Ordering::Relaxed);
        locked.folio_mut(index).set_out();
        if order == Order::HUGE && self.frames.is_locked() {
            if !self.patiently("made again", || self.mapper.populate(self.frames.home(frame))) {
                self.zones.of(frame).disown(frame); // it is on a list still
                self.note_small(frame);
            }
            self.release_frame(frame);
        } else if order == Order::HUGE {
            self.zones.of(frame).give_unpopulated(frame);
            self.note_resident();
            self.frame_freed.signal();
        } else {
            self.patiently("made again", || self.mapper.repopulate(self.frames.home(frame), order.bytes()));
            self.release_frame(frame);
        }
    }

    /// Frees the frames of a folio.
    pub fn release_frame(&self, frame: FrameId) {
        self.zones.of(frame).give_on(current_cpu(), frame);
        self.frame_freed.signal();
    }

    /// Frees the slots that a folio keeps.
    pub fn release_slot(&self, locked: &mut Locked<'_>, index: usize) {
        if let Some(slot) = locked.folio(index).slot() {
            let order = locked.order();
            locked.folio_mut(index).set_slot(None);
            self.free_slots(slot, order);
        }
    }

    /// To be called before bytes of a folio that is in RAM and not mapped are changed: no copy holds the same any more.
    pub fn spoil(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId) {
        self.release_slot(locked, index);
        locked.folio_mut(index).cancel_write();
        self.zones.of(frame).insert(frame, List::Laundry);
    }

    /// Repeats a map call while a page of the block is still held by I/O that has just ended.
    pub fn patiently<R>(&self, what: &str, mut call: impl FnMut() -> Result<R, MapError>) -> R {
        for attempt in 0..20_000 {
            match call() {
                Ok(done) => return done,
                Err(MapError::Busy) if attempt < 100 => std::hint::spin_loop(),
                Err(MapError::Busy) => futex::sleep(Duration::from_micros(100)),
                // Others may have it for a moment: what this process gave back it may want again a little later.
                Err(MapError::Refused(libc::ENOMEM)) if attempt < 2000 => {
                    futex::sleep(Duration::from_millis(1));
                }
                Err(MapError::Refused(libc::ENOMEM)) => fatal::die(
                    "the kernel has no memory left for a folio: give this program's machine or container more, or a smaller --memory",
                ),
                Err(error) => fatal::die(&format!("a folio could not be {what}: {error}")),
            }
        }
        fatal::die(&format!("a folio could not be {what}: its frames stayed in use for two seconds"));
    }

    /// What is in RAM of regions and frames, as the page tables say; noted in the statistics.
    pub fn measure(&self) -> std::io::Result<pagemap::Scan> {
        let regions = self.span.addr()..self.span.addr() + self.span.len();
        let homes = self.frames.range().start..self.frames.nursery().end;
        let (regions, homes) = (self.pagemap.scan(regions)?, self.pagemap.scan(homes)?);
        let scan = pagemap::Scan {
            present_bytes: regions.present_bytes + homes.present_bytes,
            huge_bytes: regions.huge_bytes + homes.huge_bytes,
        };
        self.stats.huge_resident_bytes.set(scan.huge_bytes);
        Ok(scan)
    }

    /// Metadata in use, in bytes: table, zone, checksums and maps of slots.
    pub fn metadata_bytes(&self) -> usize {
        self.table.bytes() + self.zones.bytes() + self.space.metadata_bytes()
    }
}
