//! What an arena's threads share, and the small moves that both ways, in and out, are made of.
//!
//! Lock order: a folio's entry lock, then one of the leaves (zone, slot map, streams, queue), never two leaves. A
//! second entry lock is only ever tried for, but for the source of a mapping that moves, whose target is new. No managed
//! memory is touched under any of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use folioswap_core::{DropBehind, FolioId, FolioTable, FrameId, List, Locked, Order, State, Stats, Streams, Zone};
use folioswap_sys::memory::{self, Reservation};
use folioswap_sys::uffd::Userfaultfd;
use folioswap_sys::{pagemap, signals};

use crate::address_space::AddressSpace;
use crate::fatal;
use crate::frames::Frames;
use crate::map::{MapError, Mapper};
use crate::readahead::ReadQueue;
use crate::space::SwapSpace;
use crate::wakeup::{Event, Gate, PARK};

/// An arena's counters: its own, or memory that it shares with the process that prints them.
pub(crate) enum StatsHome {
    Own(Box<Stats>),
    Shared(&'static Stats),
}

impl std::ops::Deref for StatsHome {
    type Target = Stats;

    fn deref(&self) -> &Stats {
        match self {
            StatsHome::Own(stats) => stats,
            StatsHome::Shared(stats) => stats,
        }
    }
}

/// The engine of one arena.
pub(crate) struct Engine {
    pub order: Order,
    pub span: Reservation,
    pub addresses: AddressSpace,
    pub table: FolioTable,
    pub zone: Zone,
    pub frames: Frames,
    pub space: SwapSpace,
    pub mapper: Box<dyn Mapper>,
    pub uffd: Arc<Userfaultfd>,
    pub stats: StatsHome,
    pub streams: Streams,
    pub drop_behind: DropBehind,
    pub reads: ReadQueue,
    pub gate: Gate,
    /// Frames are getting short.
    pub reclaim_wanted: Event,
    /// A frame has become free, or a folio clean.
    pub frame_freed: Event,
    pub stop: AtomicBool,
    /// This process has made a child that inherited some of its folios.
    pub has_forked: AtomicBool,
    /// The budget in bytes.
    pub memory: AtomicU64,
    /// Folios that have left RAM so far; wraps.
    pub nr_evictions: AtomicU32,
    /// Folios that are mapped.
    pub nr_mapped: AtomicUsize,
    /// One bit a folio: its addresses are in use. Changed before the folio is dropped, read with its lock held: a fault
    /// that was reported before its addresses were given up makes no page there. The kernel backs what is used of it.
    pub open: Box<[AtomicU64]>,
}

impl Engine {
    pub fn folio_bytes(&self) -> usize {
        self.order.bytes()
    }

    pub fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.span.addr()) < self.span.len()
    }

    /// The folio at an address of the span.
    pub fn folio_at(&self, addr: usize) -> FolioId {
        debug_assert!(self.contains(addr));
        FolioId::new(((addr - self.span.addr()) / self.folio_bytes()) as u32)
    }

    pub fn addr(&self, folio: FolioId) -> usize {
        self.span.addr() + folio.index() * self.folio_bytes()
    }

    /// Notes that addresses are in use, or not any more.
    pub fn set_open(&self, folios: std::ops::Range<usize>, open: bool) {
        for index in folios {
            let bit = 1 << (index % 64);
            if open {
                self.open[index / 64].fetch_or(bit, Ordering::SeqCst);
            } else {
                self.open[index / 64].fetch_and(!bit, Ordering::SeqCst);
            }
        }
    }

    pub fn is_open(&self, folio: FolioId) -> bool {
        self.open[folio.index() / 64].load(Ordering::SeqCst) >> (folio.index() % 64) & 1 == 1
    }

    pub fn lock(&self, folio: FolioId) -> Locked<'_> {
        self.table.lock(folio, &PARK)
    }

    /// Locks a folio that nobody holds; `None` too for one that was never mapped.
    pub fn try_lock(&self, folio: FolioId) -> Option<Locked<'_>> {
        if self.table.has(folio) { self.table.try_lock(folio, &PARK) } else { None }
    }

    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Puts a locked folio whose content is at home under its address, on the given list.
    pub fn map(&self, locked: &mut Locked<'_>, frame: FrameId, list: List) {
        let addr = self.addr(locked.folio());
        self.patiently("mapped", || self.mapper.map(addr, self.frames.home(frame)));
        self.note_mapped(locked, frame, list);
    }

    /// The same with fresh, zeroed memory instead of what is at home.
    pub fn map_fresh(&self, locked: &mut Locked<'_>, frame: FrameId, list: List) {
        let addr = self.addr(locked.folio());
        self.patiently("made", || self.mapper.map_fresh(addr, self.frames.home(frame)));
        self.note_mapped(locked, frame, list);
    }

    fn note_mapped(&self, locked: &mut Locked<'_>, frame: FrameId, list: List) {
        locked.set(State::Resident(frame));
        self.nr_mapped.fetch_add(1, Ordering::Relaxed);
        self.stats.resident_bytes.set((self.zone.counts().populated * self.folio_bytes()) as u64);
        if locked.pinned() {
            self.zone.remove(frame);
        } else {
            self.zone.insert(frame, list);
        }
    }

    /// Takes a locked, mapped folio home. The frame stays on the list where it was.
    pub fn unmap(&self, locked: &mut Locked<'_>, frame: FrameId) -> Result<(), MapError> {
        let (folio, home) = (self.addr(locked.folio()), self.frames.home(frame));
        if self.gate.closed_by(signals::thread_id()) {
            // What leaves now must not be inherited: the child would read zeros there.
            self.keep_from_child(folio);
        }
        match self.mapper.unmap(folio, home) {
            Err(MapError::Busy) if self.has_forked.load(Ordering::Relaxed) => {
                self.make_own(folio);
                self.mapper.unmap(folio, home)?;
            }
            other => other?,
        }
        locked.set(State::Standby(frame));
        self.nr_mapped.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the pages of a mapped folio this process's own again after a fork. A page that was shared with a child stays
    /// marked so until it is written to, also when the child has gone. And where a huge page was copied in part, the
    /// kernel (6.18) asks its first page alone whether the rest may move: it has to become a new huge page. What cannot
    /// be done now stays busy.
    fn make_own(&self, folio: usize) {
        let len = self.folio_bytes();
        let there = pagemap::scan(folio..folio + len).is_ok_and(|scan| scan.present_bytes == len as u64);
        if there && memory::populate_write(folio, len).is_ok() && self.order == Order::HUGE {
            let whole = pagemap::scan(folio..folio + len).is_ok_and(|scan| scan.huge_bytes == len as u64);
            if !whole {
                let _ = memory::collapse(folio, len);
            }
        }
    }

    /// Ends what a folio holds: it reads as zero from now on. Its frame goes back to the zone, its slots to the space.
    pub fn drop_content(&self, locked: &mut Locked<'_>) {
        let frame = match locked.state() {
            State::Empty => return,
            State::Swapped(slot) => {
                self.space.free(slot);
                locked.set(State::Empty);
                return;
            }
            State::Standby(frame) => frame,
            State::Resident(frame) => {
                match self.unmap(locked, frame) {
                    Ok(()) => {}
                    Err(error) => return self.abandon(locked, frame, error),
                }
                frame
            }
        };
        self.release_frame(frame);
        locked.set(State::Empty);
    }

    /// Drops a mapped folio that cannot be moved (in use by a system call or shared with a child): its pages are the
    /// kernel's to free, and the frame begins anew without memory.
    fn abandon(&self, locked: &mut Locked<'_>, frame: FrameId, error: MapError) {
        if let Err(refused) = memory::dontneed(self.addr(locked.folio()), self.folio_bytes()) {
            fatal::die(&format!("a folio could not be dropped: {error}, {refused}"));
        }
        self.nr_mapped.fetch_sub(1, Ordering::Relaxed);
        locked.set(State::Empty);
        self.release_slot(frame);
        self.zone.give_unpopulated(frame);
        self.frame_freed.signal();
    }

    /// Frees a frame, with the slot that its folio may have kept.
    pub fn release_frame(&self, frame: FrameId) {
        self.release_slot(frame);
        self.zone.give(frame);
        self.frame_freed.signal();
    }

    /// Frees the slot that the folio in this frame keeps.
    pub fn release_slot(&self, frame: FrameId) {
        if let Some(slot) = self.zone.slot(frame) {
            self.zone.set_slot(frame, None);
            self.space.free(slot);
        }
    }

    /// Repeats a map call while a page of the block is still held by I/O that has just ended.
    pub fn patiently(&self, what: &str, mut call: impl FnMut() -> Result<(), MapError>) {
        for attempt in 0..20_000 {
            match call() {
                Ok(()) => return,
                Err(MapError::Busy) if attempt < 100 => std::hint::spin_loop(),
                Err(MapError::Busy) => std::thread::sleep(std::time::Duration::from_micros(100)),
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
        let (regions, homes) = (pagemap::scan(regions)?, pagemap::scan(homes)?);
        let scan = pagemap::Scan {
            present_bytes: regions.present_bytes + homes.present_bytes,
            huge_bytes: regions.huge_bytes + homes.huge_bytes,
        };
        self.stats.huge_resident_bytes.set(scan.huge_bytes);
        Ok(scan)
    }

    /// Metadata in use, in bytes: table, zone, checksums and maps of slots.
    pub fn metadata_bytes(&self) -> usize {
        self.table.bytes() + self.zone.bytes() + self.space.metadata_bytes()
    }
}
