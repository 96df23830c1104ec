//! The fault path of one folio: address -> folio table -> frames from the zone -> device reads into them -> map ->
//! table.
//!
//! [`Engine::resolve`] enters the fork gate; callers of the others are inside it. The block stays locked until the
//! folio is mapped; the policies for streams run after that.

use folioswap_core::{
    Ahead, BLOCK_PAGES, BlockId, Choice, FaultKind, FolioId, FrameId, List, Locked, Memory, Order, PAGE_SIZE, PIECE,
    Phase, SlotId, State,
};

use crate::device::checksum;
use crate::engine::Engine;
use crate::fault::parts::Arrival;
use crate::fault::take::Changed;
use crate::process::cpu::current_cpu;
use crate::process::fatal;
use crate::process::stopwatch::Stopwatch;
use crate::process::wakeup::Pass;
use crate::state::faults::Window;
use crate::swap::health::{SwapInError, Trouble};
use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;

/// Pages at either end of a block where a stream may enter it.
const EDGE_PAGES: usize = 16;

/// Consecutive faults of one page that is not managed, before they are taken for faults of something else: while what
/// is managed does not change, and altogether.
const MOST_OF_OTHERS: u32 = 3;
const MOST_WHILE_CHANGING: u32 = 1000;

/// Consecutive faults of one page whose folio is in RAM, before the program is ended.
const MOST_REPEATS: u32 = 100_000;

static_tls! {
    /// The page that this thread last found present, and how often in a row.
    static LAST: (usize, u32) = "folioswap_last_present";
}

static_tls! {
    /// How many changes of what is managed there had been then, and how many of these faults came without another.
    static UNCHANGED: (u64, u32) = "folioswap_unchanged";
}

/// What became of a swap-in. The outer error: the device cannot give back what it holds.
type Attempt = Result<Result<(), Changed>, SwapInError>;

impl Engine {
    /// Resolves the fault at `addr`. Returns `false` if the content is lost; the reason is printed to standard error.
    pub fn resolve(&self, addr: usize, thread: u32) -> bool {
        let resolved = self.fault(self.gate().enter(thread), self.table().page_at(addr), thread);
        self.outcome(resolved, addr, thread)
    }

    /// Whether the page at an address, which a thread touched, is managed. `None`: another thread forks.
    fn is_managed(&self, addr: usize, thread: u32) -> Option<bool> {
        let page = self.table().page_at(addr);
        let _pass = self.gate().try_enter(thread)?;
        Some(self.table().is_open(page.block()) && !self.table().lock(page.block()).is_sealed(page.page_in_block()))
    }

    /// Evaluates the result of a fault. Ends the program if the page keeps faulting though its folio is in RAM.
    pub fn outcome(&self, resolved: Result<bool, SwapInError>, addr: usize, thread: u32) -> bool {
        match resolved {
            Ok(was_absent) => {
                let (page, (last, repeats)) = (self.table().addr(self.table().page_at(addr)), LAST.get());
                let is_managed = if was_absent { Some(true) } else { self.is_managed(page, thread) };
                match was_absent {
                    true => LAST.set((0, 0)),
                    // It touches the page again. This thread must not wait: it may be needed for the fork.
                    false if is_managed.is_none() => {}
                    // It was given up: the next touch does not fault, once it is unmapped or replaced. If it does, the
                    // fault is another's.
                    false if is_managed == Some(false) => {
                        let changes = if self.gate().is_closed() { 0 } else { self.table().wait_for_change() };
                        let (before, unchanged) = UNCHANGED.get();
                        let unchanged = if last == page && before == changes { unchanged + 1 } else { 0 };
                        let repeats = if last == page { repeats } else { 0 };
                        LAST.set((page, repeats + 1));
                        UNCHANGED.set((changes, unchanged));
                        return unchanged < MOST_OF_OTHERS && repeats < MOST_WHILE_CHANGING;
                    }
                    false if last != page => LAST.set((page, 1)),
                    false if repeats < MOST_REPEATS => LAST.set((page, repeats + 1)),
                    false => fatal::die(&format!(
                        "the page at {page:#x} is missing though its folio is in RAM: the program dropped it by a way that folioswap does not see"
                    )),
                }
                true
            }
            Err(error) => {
                if error.is_news {
                    fatal::say(&format!("{error}; thread {thread} gets SIGBUS, or EFAULT from its system call"));
                }
                false
            }
        }
    }

    /// Makes the folio that holds the accessed page present, on behalf of the thread that touched it. The caller is
    /// inside the gate. Returns `false` if there was nothing to do: the page was present before the call, or is
    /// sealed or unmapped.
    ///
    /// # Errors
    /// The device cannot give back what it holds.
    pub fn fault(&self, pass: Pass<'_>, page: FolioId, thread: u32) -> Result<bool, SwapInError> {
        self.fault_in(pass, None, page, thread)
    }

    /// As [`Engine::fault`], for a caller that may hold the block's lock already.
    ///
    /// # Errors
    /// As [`Engine::fault`].
    pub fn fault_in(
        &self,
        pass: Pass<'_>,
        locked: Option<Locked<'_>>,
        page: FolioId,
        thread: u32,
    ) -> Result<bool, SwapInError> {
        let mut watch = Stopwatch::start(self.clock());
        let (block, within) = (page.block(), page.page_in_block());
        let Some(mut locked) = locked.or_else(|| self.lock_absent(block, within, &mut watch)) else {
            self.stats().record_fault(FaultKind::Wait, Order::PAGE, thread, watch.stop(Phase::Table));
            return Ok(true);
        };
        let kind = loop {
            let index = locked.index_of(within);
            let is_done = match locked.state(index) {
                State::Resident(_) => return Ok(self.fill_gaps(&mut locked, within..within + 1)),
                // Not managed, or moving: the thread touches it again once it is unmapped, replaced or moved.
                _ if locked.is_sealed(within) => return Ok(false),
                // The fault was reported before these addresses were unmapped, and a signal let the thread continue.
                State::Empty if !self.table().is_open(block) => return Ok(false),
                State::Empty => self.first_touch(&mut locked, within, &mut watch).map(|()| FaultKind::FirstTouch),
                State::Standby(frame) => {
                    self.use_neighbour(&mut locked, index);
                    if !self.leave_but_for(&mut locked, within, frame, &mut watch) {
                        self.map(&mut locked, index, frame, List::Active);
                        self.settle_slot(&mut locked, index, &mut watch);
                    }
                    Ok(FaultKind::Standby)
                }
                State::Swapped(_) => {
                    let done = self.swap_in(&mut locked, within, &mut watch).map_err(|error| {
                        let is_news = self.note_lost(&locked, locked.index_of(within));
                        error.at(self.table().addr(page), is_news)
                    })?;
                    done.map(|()| FaultKind::SwapIn)
                }
            };
            if let Ok(kind) = is_done {
                break kind;
            }
        };
        let in_stream = self.note_touch(&mut locked, within, kind);
        let order = locked.order();
        drop(locked);
        self.stats().record_fault(kind, order, thread, watch.stop(Phase::Map));
        if in_stream && !self.gate().is_closed() {
            self.follow_stream(block, thread, kind);
        }
        drop(pass);
        Ok(true)
    }

    /// Whether a page of a locked block can be mapped at once, without a read and without waiting for a frame.
    pub fn is_at_hand(&self, locked: &Locked<'_>, page: usize) -> bool {
        match locked.state(locked.index_of(page)) {
            State::Resident(_) | State::Standby(_) => true,
            State::Empty => {
                !self.table().is_open(locked.id())
                    || self.ram().zones().available() >= self.ram().zones().watermarks().low
            }
            State::Swapped(_) => false,
        }
    }

    /// Locks a block whose folio at `page` is not mapped. `None`: another thread mapped it while this one waited.
    fn lock_absent(&self, block: BlockId, page: usize, watch: &mut Stopwatch<'_>) -> Option<Locked<'_>> {
        if let Some(locked) = self.table().try_lock(block) {
            return Some(locked);
        }
        watch.long_part(Phase::Table);
        let locked = self.table().lock(block);
        if matches!(locked.state(locked.index_of(page)), State::Resident(_)) {
            return None;
        }
        watch.lap(Phase::Table);
        Some(locked)
    }

    /// Tells the policies about a resolved fault. Returns whether it may be part of a stream of blocks. A stream enters
    /// a whole block at its edge, which random accesses seldom hit. In a split block only a run of faults counts, not a
    /// single one.
    fn note_touch(&self, locked: &mut Locked<'_>, page: usize, kind: FaultKind) -> bool {
        let index = locked.index_of(page);
        let ahead = locked.history.ahead(index, locked.nr_folios());
        let at_edge = !(EDGE_PAGES..BLOCK_PAGES - EDGE_PAGES).contains(&page);
        let whole = locked.order() == Order::HUGE;
        let nr_folios = locked.nr_folios();
        let in_row = locked.history.note(index, nr_folios);
        if kind == FaultKind::SwapIn && nr_folios > 1 {
            locked.history.note_ahead(ahead);
        }
        let folio = locked.folio_mut(index);
        let marker = std::mem::take(&mut folio.ahead) == Ahead::Marker;
        let dropped = std::mem::replace(&mut folio.dropped_behind, false);
        if marker {
            self.stats().readahead_hits.add(1);
        }
        if dropped && kind == FaultKind::Standby {
            self.policy().refaulted();
        }
        (whole && at_edge) || marker || in_row
    }

    fn first_touch(&self, locked: &mut Locked<'_>, page: usize, watch: &mut Stopwatch<'_>) -> Result<(), Changed> {
        if let Some(order) = self.policy().order_of(locked)
            && order < Order::HUGE
            && locked.order() == Order::HUGE
        {
            locked.split(order);
        }
        if locked.order() == Order::HUGE
            && let Some(frame) = self.ram().take_zeroed()
        {
            watch.lap(Phase::Frame);
            self.map(locked, 0, frame, List::Inactive);
            return Ok(());
        }
        if locked.order() == Order::HUGE {
            watch.long_part(Phase::Frame);
        }
        let (index, taken) = self.supply(locked, page, watch)?;
        let order = locked.order();
        if order == Order::HUGE && taken.memory == Memory::Absent {
            self.map_fresh(locked, taken.frame, List::Inactive, watch);
            return Ok(());
        }
        let mut prepared = self.ram().prepare(taken, order);
        prepared.bytes_mut().fill(0);
        watch.lap(Phase::Frame);
        self.map(locked, index, prepared.into_frame(), List::Inactive);
        Ok(())
    }

    /// Handles a fault on a whole block on standby that would come back page by page if it had left RAM already: keeps
    /// only the touched page and evicts the rest. A whole block is touched more often than a page, so it would never
    /// leave by age, and it takes 512 times the room.
    fn leave_but_for(&self, locked: &mut Locked<'_>, page: usize, whole: FrameId, watch: &mut Stopwatch<'_>) -> bool {
        let clean = locked.order() == Order::HUGE && self.ram().zone(whole).list(whole) == Some(List::Clean);
        if !clean
            || locked.folio(0).ahead == Ahead::Marker
            || self.policy().choose(locked, page, self.ram()) != Choice::Part(Order::PAGE)
        {
            return false;
        }
        let Some(taken) = self.ram().try_take(self.table(), Order::PAGE, 0) else { return false };
        let mut prepared = self.ram().prepare(taken, Order::PAGE);
        watch.lap(Phase::Frame);
        // SAFETY: the block is locked and its folio is on standby, so its content is at home. The frames are freed
        // after the last use of `bytes`.
        let bytes = unsafe { self.ram().frames().bytes_at_home(whole, Order::HUGE) };
        let piece = page / PIECE.nr_pages() * PIECE.nr_pages();
        checksum::note_pages(locked, piece, &bytes[piece * PAGE_SIZE..][..PIECE.bytes()]);
        prepared.bytes_mut().copy_from_slice(&bytes[page * PAGE_SIZE..(page + 1) * PAGE_SIZE]);
        watch.lap(Phase::Read);
        self.ram().leave(locked, 0);
        self.split_block(locked, Order::PAGE);
        self.map(locked, page, prepared.into_frame(), List::Inactive);
        self.settle_slot(locked, page, watch);
        true
    }

    /// Notes the first touch of a folio that was read as a neighbour.
    fn use_neighbour(&self, locked: &mut Locked<'_>, index: usize) {
        if locked.folio(index).ahead == Ahead::Neighbour {
            locked.folio_mut(index).ahead = Ahead::No;
            locked.history.note_neighbour();
            self.policy().used_neighbour(locked);
            self.stats().readahead_hits.add(1);
        }
    }

    /// Swaps in a page with the whole block or with its folio.
    fn swap_in(&self, locked: &mut Locked<'_>, page: usize, watch: &mut Stopwatch<'_>) -> Attempt {
        match self.policy().choose(locked, page, self.ram()) {
            Choice::Whole if locked.order() < Order::HUGE && !locked.pinned && !self.is_on_failing(locked, page) => {
                let Ok(taken) = self.take_frame(Order::HUGE, locked, page, watch) else { return Ok(Err(Changed)) };
                // One unreadable part must not lose the others: read the folio alone instead.
                if let Ok(true) = self.gather(locked, taken, List::Inactive, watch) {
                    return Ok(Ok(()));
                }
            }
            Choice::Part(order) if order < locked.order() => self.split_block(locked, order),
            _ => {}
        }
        if self.read_group(locked, page, watch) {
            return Ok(Ok(()));
        }
        let attempt = self.read_in(locked, page, watch)?;
        if attempt.is_ok() {
            self.read_row(locked, page);
        }
        Ok(attempt)
    }

    /// Reads the folios that follow a page that was read, if it continues a row of touches in a split block. What
    /// cannot be read is said when it is touched.
    fn read_row(&self, locked: &mut Locked<'_>, page: usize) {
        let (index, nr_folios) = (locked.index_of(page), locked.nr_folios());
        let ahead = locked.history.ahead(index, nr_folios);
        if !ahead.is_empty() && !locked.pinned && !self.is_on_failing(locked, page) {
            let _ = self.read_parts(locked, ahead.iter(), Arrival::Mapped, current_cpu());
        }
    }

    /// Reads a page that continues no row, and its neighbours with it. `false`: it has to be read alone.
    fn read_group(&self, locked: &mut Locked<'_>, page: usize, watch: &mut Stopwatch<'_>) -> bool {
        let is_alone = locked.order() != Order::PAGE
            || locked.pinned
            || !locked.history.ahead(page, BLOCK_PAGES).is_empty()
            // Devices in memory give a page as fast as they can give many.
            || locked.folio(page).slot().is_none_or(|slot| self.swap().extent(slot).is_none())
            || self.is_on_failing(locked, page);
        if is_alone {
            return false;
        }
        let group = self.policy().neighbours(locked, page);
        if group.len() < 2 {
            return false;
        }
        watch.long_part(Phase::Frame);
        // What cannot be read is read again alone, or said when it is touched.
        let _ = self.read_around(locked, page, group);
        watch.lap(Phase::Read);
        matches!(locked.state(page), State::Resident(_))
    }

    /// Whether the folio that holds a page is on a failing device. The rest of the block is not read along with it
    /// then.
    fn is_on_failing(&self, locked: &Locked<'_>, page: usize) -> bool {
        locked.folio(locked.index_of(page)).slot().is_some_and(|slot| self.swap().is_failing(slot))
    }

    /// Reads the folio that holds a page, and maps it.
    fn read_in(&self, locked: &mut Locked<'_>, page: usize, watch: &mut Stopwatch<'_>) -> Attempt {
        let Ok((index, taken)) = self.supply(locked, page, watch) else { return Ok(Err(Changed)) };
        let order = locked.order();
        let State::Swapped(slot) = locked.state(index) else { unreachable!("a split leaves content where it is") };
        let mut prepared = self.ram().prepare(taken, order);
        if let Err(error) = self.read_folio(locked, index, slot, prepared.bytes_mut(), watch) {
            self.ram().release(prepared.into_frame());
            if order <= PIECE || locked.pinned {
                return Err(error);
            }
            // Read it in smaller parts, so that the readable ones are not lost.
            self.split_block(locked, PIECE);
            return self.read_in(locked, page, watch);
        }
        watch.lap(Phase::Read);
        self.map_read(locked, index, prepared.into_frame(), watch);
        Ok(Ok(()))
    }

    /// Maps a folio that has been read.
    pub fn map_read(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId, watch: &mut Stopwatch<'_>) {
        self.judge_drop(locked, index);
        self.map(locked, index, frame, List::Inactive);
        self.settle_slot(locked, index, watch);
        self.count_swap_in(locked.order());
    }

    pub fn count_swap_in(&self, order: Order) {
        self.stats().swapped_in_folios.add(1);
        self.stats().swapped_in_bytes.add(order.bytes() as u64);
        self.stats().swpin.add(order, 1);
    }

    /// Reads a folio's slots and verifies their content. Ends the stopwatch's frame phase.
    pub fn read_folio(
        &self,
        locked: &mut Locked<'_>,
        index: usize,
        slot: SlotId,
        bytes: &mut [u8],
        watch: &mut Stopwatch<'_>,
    ) -> Result<(), SwapInError> {
        let page = index * locked.order().nr_pages();
        if locked.order() < PIECE && locked.piece_hash(page / PIECE.nr_pages()).is_some() {
            watch.long_part(Phase::Frame);
            return self.hash_pages(locked, page, bytes);
        }
        if locked.order() < Order::HUGE && self.swap().memory(slot).is_some() {
            watch.lap(Phase::Frame);
        } else {
            watch.long_part(Phase::Frame);
        }
        // A device in memory verifies as it copies. A second try reads it like any other.
        let first = self.swap().memory(slot).map(|memory| Trouble::unless(memory.load(locked, page, bytes)));
        let addr = self.table().addr(locked.name(index));
        self.swap().read_verified(addr, slot, bytes, first, |bytes| checksum::verify(locked, page, bytes))
    }

    /// Judges whether it was right to drop a folio behind a stream, now that it is wanted again. It was wrong if fewer
    /// pages have left RAM since than RAM holds, because eviction by age would have kept the folio.
    pub fn judge_drop(&self, locked: &mut Locked<'_>, index: usize) {
        if std::mem::replace(&mut locked.folio_mut(index).dropped_behind, false) {
            let since = self.ram().nr_evictions().wrapping_sub(locked.left_at);
            if (since as usize) < self.ram().zones().counts().limit {
                self.policy().refaulted();
            }
        }
    }

    /// Frees the device's copy of a folio that was just mapped, unless the device has plenty of room.
    pub fn settle_slot(&self, locked: &mut Locked<'_>, index: usize, watch: &mut Stopwatch<'_>) {
        if locked.folio(index).slot().is_some_and(|slot| !self.swap().keeps_copies(slot)) {
            watch.lap(Phase::Map);
            self.release_slot(locked, index);
            watch.lap(Phase::Free);
        }
        self.note_copy(locked, index);
    }

    /// Tells the policies where this thread is, and acts on their advice.
    fn follow_stream(&self, block: BlockId, thread: u32, kind: FaultKind) {
        let Some((advice, drops)) = self.policy().follow(thread, block, kind, self.ram().budget_blocks()) else {
            return;
        };
        for window in advice.windows.iter() {
            self.faults().reads().push(Window {
                marker: Some(advice.marker(window)),
                backward: advice.backward,
                blocks: window.clone(),
                cpu: current_cpu(),
            });
        }
        if drops {
            self.drop_passed(advice.behind);
        }
    }

    /// Makes the blocks that a stream has passed the next ones to be reclaimed.
    fn drop_passed(&self, behind: std::ops::Range<BlockId>) {
        for index in behind.start.index()..behind.end.index() {
            let Some(mut locked) = self.table().try_lock(BlockId::from_index(index)) else { continue };
            if locked.pinned {
                continue;
            }
            for index in 0..locked.nr_folios() {
                if let State::Resident(frame) = locked.state(index) {
                    locked.folio_mut(index).dropped_behind = true;
                    self.ram().zone(frame).insert_tail(frame, List::Inactive);
                }
            }
        }
    }

    /// Splits a block into folios of `order`. When pieces are split into smaller folios, those in RAM give up their
    /// slots, whose hashes cover whole pieces.
    pub fn split_block(&self, locked: &mut Locked<'_>, order: Order) {
        self.stats().split.add(locked.order(), 1);
        for index in 0..locked.nr_folios() {
            let Some(frame) = locked.folio(index).frame() else { continue };
            if order < PIECE && locked.order() >= PIECE {
                self.release_slot(locked, index);
                if self.ram().zone(frame).list(frame) == Some(List::Clean) {
                    self.ram().put(frame, List::Laundry); // it has no copy any more
                }
            }
            if locked.folio(index).writing_to().is_some() {
                locked.folio_mut(index).cancel_write();
                self.ram().put(frame, List::Laundry); // its write no longer counts
            }
            self.ram().zone(frame).split(frame, order);
        }
        locked.split(order);
    }
}
