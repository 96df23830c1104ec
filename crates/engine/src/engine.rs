//! State shared by an arena's threads, and the primitives that swap-in and swap-out are built from.
//!
//! Lock order: the lock of a block of the folio table; then the compactor's lock, in a fault that compacts; then one
//! leaf lock (a zone with its per-CPU frames, freed slots and clusters, streams, order choice, or queue). Never hold
//! two leaf locks. A second block is locked only with `try_lock`. One exception: a moving mapping locks its source
//! after its target, which is new and which nobody else waits for. Managed memory is never touched under any of these
//! locks.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use folioswap_core::{
    Access, BlockId, DropBehind, FolioId, FolioTable, FrameId, List, Locked, Memory, NodeId, Order, OrderChoice,
    Overruns, PAGE_SIZE, Phase, State, Streams, Zones,
};
use folioswap_sys::clock::Clock;
use folioswap_sys::futex;
use folioswap_sys::memory::{self, Reservation};
use folioswap_sys::pagemap::{self, Pagemap};
use folioswap_sys::uffd::Userfaultfd;

use crate::arena::address_space::AddressSpace;
use crate::compact::compactor::Compactor;
use crate::fault::device_faults::DeviceFaults;
use crate::fault::lost_pages::Lost;
use crate::fault::read_queue::ReadQueue;
use crate::memory::frames::Frames;
use crate::memory::mapper::{MapError, Mapper};
use crate::memory::zeroed_stock::ZeroedStock;
use crate::process::cpu::{self, current_cpu};
use crate::process::fatal;
use crate::process::shared_stats::StatsHome;
use crate::process::stopwatch::Stopwatch;
use crate::process::wakeup::{Event, Gate};
use crate::reclaim::buffers::{Buffers, Written};
use crate::reclaim::kept_copies::KeptCopies;
use crate::swap::space::SwapSpace;

/// The engine of one arena.
pub(crate) struct Engine {
    /// Order of all folios. `None`: the order of each block is chosen from measurements.
    pub fixed_order: Option<Order>,
    pub span: Reservation,
    pub addresses: AddressSpace,
    pub table: FolioTable,
    pub zones: Zones,
    /// NUMA node of each zone; empty if a zone covers several nodes.
    pub zone_nodes: Box<[NodeId]>,
    pub frames: Frames,
    pub space: SwapSpace,
    pub buffers: Buffers,
    /// Written folios whose blocks were locked when their write ended. They are settled later.
    pub unsettled: Mutex<Vec<Written>>,
    pub zeroed: ZeroedStock,
    pub compactor: Compactor,
    pub mapper: Box<dyn Mapper>,
    pub uffd: Arc<Userfaultfd>,
    pub pagemap: Arc<Pagemap>,
    pub lost: Lost,
    pub stats: Arc<StatsHome>,
    pub clock: Clock,
    pub streams: Streams,
    pub drop_behind: DropBehind,
    pub overruns: Overruns,
    pub order_choice: OrderChoice,
    /// Whether folios are swapped in whole ([`SwapIn`](crate::SwapIn)).
    pub swap_in: AtomicU8,
    pub reads: ReadQueue,
    pub gate: Gate,
    /// Held by the monitor thread that polls for the next fault instead of sleeping.
    pub on_watch: Mutex<()>,
    pub device_faults: DeviceFaults,
    /// Signalled when frames run short: wakes reclaim.
    pub reclaim_wanted: Event,
    /// Signalled when a frame was freed or a folio became clean.
    pub frame_freed: Event,
    /// How long a thread waits for `frame_freed` before it looks for the cause.
    pub patience: Duration,
    /// 1 + the count of `frame_freed` at the last message about waiting for devices: each stall is reported once.
    pub stall_said: AtomicU64,
    /// Pageblocks whose folios have copies in slots that can be given up.
    pub kept_copies: KeptCopies,
    pub stop: AtomicBool,
    /// This process has forked a child that inherited some of its folios.
    pub has_forked: AtomicBool,
    /// The budget, in bytes.
    pub memory: AtomicU64,
    /// Serializes growth of a locked budget.
    pub growing: Mutex<()>,
    /// Pageblocks that keep their small pages before a huge page is tried again. Set when the kernel had no huge page.
    pub huge_pages_short: AtomicUsize,
    /// Pages evicted from RAM so far; wraps.
    pub nr_evictions: AtomicU32,
    /// Whole folios that found no contiguous frames since the compaction thread last looked.
    pub whole_wanted: AtomicUsize,
    /// Mapped pages.
    pub nr_mapped: AtomicUsize,
    /// One bit per block: its addresses are in use. The bit is changed before the block is dropped, and read under the
    /// block's lock, so a fault that was reported before its addresses were unmapped makes no page there. Memory is
    /// backed on first use.
    pub open: Box<[AtomicU64]>,
}

impl Engine {
    /// From now on this thread serves `thread`, and takes frames near that thread's CPU. With one zone all are equal.
    pub fn work_for(&self, thread: u32) {
        if self.zones.all().len() >= 2 {
            cpu::work_for(thread);
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

    /// The access by a thread to an address of the span.
    pub fn access_at(&self, addr: usize, thread: u32) -> Access {
        Access { page: self.page_at(addr), offset: addr % PAGE_SIZE, thread }
    }

    pub fn addr(&self, folio: FolioId) -> usize {
        self.span.addr() + folio.offset_bytes()
    }

    pub fn block_addr(&self, block: BlockId) -> usize {
        self.span.addr() + block.offset_bytes()
    }

    /// Marks the addresses of blocks as in use, or as no longer in use.
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

    /// Locks a block that nobody holds. Also `None` for a block that was never mapped.
    pub fn try_lock(&self, block: BlockId) -> Option<Locked<'_>> {
        self.table.try_lock(block)
    }

    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The budget in blocks.
    pub fn budget_blocks(&self) -> usize {
        self.zones.counts().limit / Order::HUGE.nr_pages()
    }

    /// The address, the home address and the length in bytes of a folio of a locked block.
    fn places(&self, locked: &Locked<'_>, index: usize, frame: FrameId) -> (usize, usize, usize) {
        (self.addr(locked.name(index)), self.frames.home(frame), locked.order().bytes())
    }

    /// Maps a folio of a locked block from its home to its address, and puts it on `list`.
    pub fn map(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId, list: List) {
        self.clear_table(locked);
        self.end_lost_folio(locked, index);
        let (addr, home, len) = self.places(locked, index, frame);
        // SAFETY: the folio's place and its frames' home; the block is locked.
        self.patiently("mapped", || unsafe { self.mapper.map(addr, home, len) });
        // A whole folio may consist of small pages, if the kernel had no huge page.
        locked.small_table |= locked.order() < Order::HUGE || self.zones.of(frame).memory(frame) != Memory::Huge;
        self.note_mapped(locked, index, frame, list);
    }

    /// Maps a whole block like [`Engine::map`], but with fresh, zeroed memory instead of the content at home.
    pub fn map_fresh(&self, locked: &mut Locked<'_>, frame: FrameId, list: List, watch: &mut Stopwatch<'_>) {
        self.clear_table(locked);
        let (addr, home, _) = self.places(locked, 0, frame);
        // SAFETY: the folio's place and its frames' home; the block is locked.
        if !self.patiently("made", || unsafe { self.mapper.map_fresh(addr, home) }) {
            self.note_small(frame);
            locked.small_table = true;
        }
        watch.lap(Phase::Frame); // allocating and clearing the page takes all but a microsecond
        self.note_mapped(locked, 0, frame, list);
    }

    /// Moving a huge page to addresses that have a page table of small pages would split it, so the table is dropped
    /// first. Before Linux 6.14 the table stays, and the huge page is split.
    fn clear_table(&self, locked: &mut Locked<'_>) {
        if locked.order() == Order::HUGE && locked.small_table {
            let addr = self.block_addr(locked.id());
            // SAFETY: the caller has locked the block. Nothing of it is mapped, because its only folio is just being
            // brought in.
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

    /// Updates the statistics after the number of frames with memory changed.
    pub fn note_resident(&self) {
        self.stats.resident_bytes.set((self.zones.populated() * Order::PAGE.bytes()) as u64);
    }

    /// Moves a mapped folio of a locked block to its home. Its frames stay on their list.
    pub fn unmap(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId) -> Result<(), MapError> {
        // SAFETY: the folio's place and its frames' home; the block is locked.
        self.unmap_by(locked, index, frame, |addr, home, len| unsafe { self.mapper.unmap(addr, home, len) })
    }

    /// As [`Engine::unmap`], for content that nobody needs any more.
    fn unmap_unneeded(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId) -> Result<(), MapError> {
        // SAFETY: as in `unmap`.
        self.unmap_by(locked, index, frame, |addr, home, len| unsafe { self.mapper.unmap_unneeded(addr, home, len) })
    }

    fn unmap_by(
        &self,
        locked: &mut Locked<'_>,
        index: usize,
        frame: FrameId,
        unmap: impl Fn(usize, usize, usize) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let (addr, home, len) = self.places(locked, index, frame);
        if self.gate.is_closed() {
            // A fork is in progress (faults of the forking thread still pass the gate). The child must not inherit
            // these addresses: it would read zeros there.
            self.keep_from_child(addr, len);
        }
        match unmap(addr, home, len) {
            // Shared with a child, or a page of zeros was replaced by the kernel's zero page when a fork split the huge
            // page.
            Err(MapError::Busy | MapError::Refused(libc::EEXIST)) if self.has_forked.load(Ordering::Relaxed) => {
                self.make_own(addr, len);
                unmap(addr, home, len)?;
            }
            other => other?,
        }
        locked.folio_mut(index).set_in_ram(frame, false);
        self.nr_mapped.fetch_sub(locked.order().nr_pages(), Ordering::Relaxed);
        Ok(())
    }

    /// Makes the pages of a mapped folio exclusive to this process again after a fork. A page that was shared with a
    /// child stays marked as shared until it is written to, even after the child exited. If a huge page was copied only
    /// in part, the kernel (6.18) checks only its first page to decide whether all may move, so it must become a new
    /// huge page. What cannot be fixed now stays busy.
    fn make_own(&self, addr: usize, len: usize) {
        let there = self.pagemap.scan(addr..addr + len).is_ok_and(|scan| scan.present_bytes == len as u64);
        // SAFETY: the addresses of a mapped folio in an open region (readable, writable). The caller has locked its
        // block, so the folio stays there.
        if there && unsafe { memory::populate_write(addr, len) }.is_ok() && len == Order::HUGE.bytes() {
            let whole = self.pagemap.scan(addr..addr + len).is_ok_and(|scan| scan.huge_bytes == len as u64);
            if !whole {
                let _ = memory::collapse(addr, len);
            }
        }
    }

    /// Discards the content of all folios of a block. The block then reads as zero, as one folio.
    pub fn drop_block(&self, locked: &mut Locked<'_>) {
        for index in 0..locked.nr_folios() {
            self.drop_content(locked, index);
        }
        locked.join();
    }

    /// Discards the content of a folio, which then reads as zero. Its frames go back to the zone, its slots to the
    /// space.
    pub fn drop_content(&self, locked: &mut Locked<'_>, index: usize) {
        let frame = match locked.state(index) {
            State::Empty => return,
            State::Swapped(_) => None,
            State::Standby(frame) => Some(frame),
            State::Resident(frame) => match self.unmap_unneeded(locked, index, frame) {
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

    /// Discards a mapped folio that cannot be moved (in use by a system call, or shared with a child). The kernel frees
    /// its pages when their last user is done; the frames get new memory.
    fn abandon(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId, error: MapError) {
        let order = locked.order();
        // SAFETY: the caller has locked the block. The content of the folio is no longer needed.
        if let Err(refused) = unsafe { self.frames.drop_memory(self.addr(locked.name(index)), order.bytes()) } {
            fatal::die(&format!("a folio could not be dropped: {error}, {refused}"));
        }
        self.nr_mapped.fetch_sub(order.nr_pages(), Ordering::Relaxed);
        locked.folio_mut(index).set_out();
        if order == Order::HUGE && self.frames.is_locked() {
            // SAFETY: the home of frames that the folio has just left; nobody else has them.
            if !self.patiently("made again", || unsafe { self.mapper.populate(self.frames.home(frame)) }) {
                self.zones.of(frame).disown(frame); // it is still on a list
                self.note_small(frame);
            }
            self.release_frame(frame);
        } else if order == Order::HUGE {
            self.zones.of(frame).give_unpopulated(frame);
            self.note_resident();
            self.frame_freed.signal();
        } else {
            let home = self.frames.home(frame);
            // SAFETY: the home of frames that the folio has just left; nobody else has them.
            self.patiently("made again", || unsafe { self.mapper.repopulate(home, order.bytes()) });
            self.release_frame(frame);
        }
    }

    /// Frees the frames of a folio.
    pub fn release_frame(&self, frame: FrameId) {
        self.zones.of(frame).give_on(current_cpu(), frame);
        self.frame_freed.signal();
    }

    /// Frees the slots that hold a folio's copy.
    pub fn release_slot(&self, locked: &mut Locked<'_>, index: usize) {
        if let Some(slot) = locked.folio(index).slot() {
            let order = locked.order();
            locked.folio_mut(index).set_slot(None);
            self.space.free_slots(slot, order);
        }
    }

    /// To be called before the bytes of a folio at home are changed: its copies become stale.
    pub fn spoil(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId) {
        self.release_slot(locked, index);
        locked.folio_mut(index).cancel_write();
        self.zones.of(frame).insert(frame, List::Laundry);
    }

    /// Repeats a map call while a page is still pinned by I/O that has just ended, or while the kernel is out of
    /// memory.
    pub fn patiently<R>(&self, what: &str, mut call: impl FnMut() -> Result<R, MapError>) -> R {
        for attempt in 0..20_000 {
            match call() {
                Ok(done) => return done,
                Err(MapError::Busy) if attempt < 100 => std::hint::spin_loop(),
                Err(MapError::Busy) => futex::sleep(Duration::from_micros(100)),
                // May be temporary: other processes may have taken the memory that this process gave back a moment ago.
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

    /// Scans the page tables of regions and frames for bytes in RAM, and notes the huge ones in the statistics.
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

    /// Metadata in use, in bytes: folio table, zones, and the slot records of the devices.
    pub fn metadata_bytes(&self) -> usize {
        self.table.bytes() + self.zones.bytes() + self.space.metadata_bytes()
    }
}
