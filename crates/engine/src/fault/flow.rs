//! One fault, from the touch of a page that is not mapped to its folio in place: lock the block, choose, take frames,
//! read, map, settle.
//!
//! [`Fault::run`] tells the story. The block stays locked until the folio is mapped, except while the fault waits for
//! frames ([`super::take`]); the policies for streams run after that. What is done to the block is mechanism
//! ([`Block`]), what is chosen is policy (`policy`).

use folioswap_core::{
    Ahead, BLOCK_PAGES, BlockId, Choice, FaultKind, FolioId, FrameId, List, Locked, Memory, Order, PAGE_SIZE, PIECE,
    Phase, State, Stay,
};

use crate::block::Block;
use crate::device::checksum;
use crate::engine::Engine;
use crate::fault::gather::gather;
use crate::fault::runs::{self, Arrival};
use crate::fault::take::{self, Changed};
use crate::process::cpu::current_cpu;
use crate::process::stopwatch::Stopwatch;
use crate::process::turns::Waits;
use crate::process::wakeup::Pass;
use crate::swap::health::SwapInError;
use crate::swap::read_queue::Window;

/// Pages at either end of a block where a stream may enter it.
const EDGE_PAGES: usize = 16;

/// What became of a swap-in. The outer error: the device cannot give back what it holds.
type Attempt = Result<Result<(), Changed>, SwapInError>;

/// A touch of a page that is not mapped.
#[must_use = "a fault is resolved by run"]
pub(crate) struct Fault<'e> {
    engine: &'e Engine,
    touched: FolioId,
    /// The thread that touched it.
    thread: u32,
    /// How it waits.
    waits: Waits<'e>,
    watch: Stopwatch,
}

/// What one look at the block led to.
enum Step {
    /// The touched page is mapped.
    Done(FaultKind),
    /// There was nothing to do: the page was present, or is not managed. `true`: a gap in it was filled.
    Nothing(bool),
    /// The block was changed by others meanwhile.
    Again,
}

impl<'e> Fault<'e> {
    /// A fault that begins now.
    pub fn new(engine: &'e Engine, page: FolioId, thread: u32, waits: Waits<'e>) -> Self {
        Fault { engine, touched: page, thread, waits, watch: Stopwatch::start() }
    }

    /// The touched page's place in its block.
    fn page(&self) -> usize {
        self.touched.page_in_block()
    }

    /// Makes the touched page present. The caller is inside the gate. Returns `false` if
    /// there was nothing to do: the page was present before the call, or is sealed or unmapped.
    ///
    /// # Errors
    /// The device cannot give back what it holds.
    pub async fn run(mut self, pass: Pass<'_>) -> Result<bool, SwapInError> {
        let Some(mut block) = self.lock().await else {
            self.record(FaultKind::Wait, Order::PAGE, Phase::Table);
            return Ok(true);
        };
        let kind = loop {
            match self.step(&mut block).await? {
                Step::Done(kind) => break kind,
                Step::Nothing(was_absent) => return Ok(was_absent),
                Step::Again => {}
            }
        };
        let in_stream = self.note_touch(&mut block, kind);
        let order = block.order();
        drop(block);
        self.record(kind, order, Phase::Map);
        if in_stream && !self.engine.gate().is_closed() {
            self.follow_stream(kind);
        }
        drop(pass);
        Ok(true)
    }

    fn record(&mut self, kind: FaultKind, order: Order, phase: Phase) {
        self.engine.stats().record_fault(kind, order, self.thread, self.watch.stop(phase));
    }

    /// Locks the block. `None`: another thread mapped the folio while this one waited.
    async fn lock(&mut self) -> Option<Block<'e>> {
        let id = self.touched.block();
        if let Some(block) = self.engine.try_lock_for(id, self.waits) {
            return Some(block);
        }
        self.watch.long_part(Phase::Table);
        let block = self.engine.lock_for(id, self.waits).await;
        if matches!(block.state(block.index_of(self.page())), State::Resident(_)) {
            return None;
        }
        self.watch.lap(Phase::Table);
        Some(block)
    }

    async fn step(&mut self, block: &mut Block<'_>) -> Result<Step, SwapInError> {
        let (index, page) = (block.index_of(self.page()), self.page());
        let done = match block.state(index) {
            State::Resident(_) => return Ok(Step::Nothing(block.fill_gaps(page..page + 1))),
            // Not managed, or moving: the thread touches it again once it is unmapped, replaced or moved.
            _ if block.is_sealed(page) => return Ok(Step::Nothing(false)),
            // The fault was reported before these addresses were unmapped, and a signal let the thread continue.
            State::Empty if !self.engine.table().is_open(block.id()) => return Ok(Step::Nothing(false)),
            State::Empty => self.first_touch(block).await.map(|()| FaultKind::FirstTouch),
            State::Standby(_) if self.engine.policy().splits_pieces(block, self.engine.ram()) => {
                // Pieces in RAM lose their copies: hashes of pages are not known.
                block.split_to(Order::PAGE);
                block.history.end_row();
                return Ok(Step::Again);
            }
            State::Standby(frame) => {
                self.map_again(block, index, frame);
                Ok(FaultKind::Standby)
            }
            State::Swapped(_) => {
                self.swap_in(block).await.map_err(|error| self.lost(block, error))?.map(|()| FaultKind::SwapIn)
            }
        };
        Ok(done.map_or(Step::Again, Step::Done))
    }

    /// Names the page whose content is lost, and whether that is news.
    fn lost(&self, block: &Block<'_>, error: SwapInError) -> SwapInError {
        let is_news = self.engine.lost().note(block.id(), block.pages_of(block.index_of(self.page())));
        error.at(self.engine.table().addr(self.touched), is_news)
    }

    async fn first_touch(&mut self, block: &mut Block<'_>) -> Result<(), Changed> {
        if let Some(order) = self.engine.policy().order_of(block)
            && order < Order::HUGE
            && block.order() == Order::HUGE
        {
            block.split(order);
        }
        if block.order() == Order::HUGE
            && let Some(frame) = self.engine.ram().take_zeroed()
        {
            self.watch.lap(Phase::Frame);
            block.map(0, frame, List::Inactive);
            return Ok(());
        }
        if block.order() == Order::HUGE {
            self.watch.long_part(Phase::Frame);
        }
        let (index, taken) = take::supply(self.engine, block, self.page(), &mut self.watch).await?;
        let order = block.order();
        if order == Order::HUGE && taken.memory == Memory::Absent {
            block.map_fresh(taken.frame, List::Inactive, &mut self.watch);
            return Ok(());
        }
        let mut prepared = self.engine.ram().prepare(taken, order);
        prepared.bytes_mut().fill(0);
        self.watch.lap(Phase::Frame);
        block.map(index, prepared.into_frame(), List::Inactive);
        Ok(())
    }

    /// Maps a folio on standby again.
    fn map_again(&mut self, block: &mut Block<'_>, index: usize, frame: FrameId) {
        if block.folio(index).ahead == Ahead::Neighbour {
            block.folio_mut(index).ahead = Ahead::No;
            block.history.note_neighbour();
            self.engine.ram().neighbours().used(block.id());
            self.engine.stats().readahead_hits.add(1);
        }
        if !self.leave_but_for(block, frame) {
            block.map(index, frame, List::Active);
            block.settle_slot(index, &mut self.watch);
        }
    }

    /// Handles a fault on a whole block on standby that would come back in parts if it had left RAM already: keeps only
    /// the touched part and evicts the rest. A whole block is touched more often than a page, so it would never leave
    /// by age, and it takes 512 times the room.
    fn leave_but_for(&mut self, block: &mut Block<'_>, whole: FrameId) -> bool {
        let (ram, page) = (self.engine.ram(), self.page());
        let clean = block.order() == Order::HUGE && ram.zone(whole).list(whole) == Some(List::Clean);
        if !clean || block.folio(0).ahead == Ahead::Marker {
            return false;
        }
        let Choice::Part(order) = self.engine.policy().choose(block, page, ram, self.engine.swap()) else {
            return false;
        };
        let Some(taken) = ram.try_take(self.engine.table(), order, 0) else { return false };
        let mut prepared = ram.prepare(taken, order);
        self.watch.lap(Phase::Frame);
        // SAFETY: the block is locked and its folio is on standby, so its content is at home. The frames are freed
        // after the last use of `bytes`.
        let bytes = unsafe { ram.frames().bytes_at_home(whole, Order::HUGE) };
        if order < PIECE {
            let piece = page / PIECE.nr_pages() * PIECE.nr_pages();
            checksum::note_pages(block, piece, &bytes[piece * PAGE_SIZE..][..PIECE.bytes()]);
        }
        let index = page / order.nr_pages();
        prepared.bytes_mut().copy_from_slice(&bytes[index * order.bytes()..][..order.bytes()]);
        self.watch.lap(Phase::Read);
        ram.leave(block, 0);
        block.folio_mut(0).set_out(); // its parts were dropped, so it says nothing when they come back
        block.split_to(order);
        block.map(index, prepared.into_frame(), List::Inactive);
        block.settle_slot(index, &mut self.watch);
        true
    }

    /// Swaps in the page with the whole block, with its neighbours, or with its folio.
    async fn swap_in(&mut self, block: &mut Block<'_>) -> Attempt {
        match self.engine.policy().choose(block, self.page(), self.engine.ram(), self.engine.swap()) {
            Choice::Whole if block.order() < Order::HUGE && !block.pinned && !self.is_on_failing(block) => {
                let page = self.page();
                let taken = take::take_frames(self.engine, Order::HUGE, block, page, &mut self.watch).await;
                let Ok(taken) = taken else {
                    return Ok(Err(Changed));
                };
                // One unreadable part must not lose the others: read the folio alone instead.
                if let Ok(true) = gather(self.engine, block, taken, List::Inactive, &mut self.watch).await {
                    return Ok(Ok(()));
                }
            }
            Choice::Part(order) if order < block.order() => {
                block.split_to(order);
                block.history.end_row();
            }
            _ => {}
        }
        if self.read_group(block).await {
            return Ok(Ok(()));
        }
        let attempt = self.read_alone(block).await?;
        if attempt.is_ok() {
            self.read_row(block).await;
        }
        Ok(attempt)
    }

    /// Reads a page that continues no row, and its neighbours with it. `false`: it has to be read alone.
    async fn read_group(&mut self, block: &mut Block<'_>) -> bool {
        let page = self.page();
        let is_alone = block.order() != Order::PAGE
            || block.pinned
            || !block.history.ahead(page, BLOCK_PAGES).is_empty()
            // Devices in memory give a page as fast as they can give many.
            || block.folio(page).slot().is_none_or(|slot| self.engine.swap().extent(slot).is_none())
            || self.is_on_failing(block);
        if is_alone {
            return false;
        }
        let group = self.engine.policy().neighbours(block, page, self.engine.ram());
        if group.len() < 2 {
            return false;
        }
        self.watch.long_part(Phase::Frame);
        // What cannot be read is read again alone, or said when it is touched.
        let _ = runs::read_around(self.engine, block, page, group).await;
        self.watch.lap(Phase::Read);
        matches!(block.state(page), State::Resident(_))
    }

    /// Reads the folio that holds the page, and maps it.
    async fn read_alone(&mut self, block: &mut Block<'_>) -> Attempt {
        let (index, prepared) = loop {
            let Ok((index, taken)) = take::supply(self.engine, block, self.page(), &mut self.watch).await else {
                return Ok(Err(Changed));
            };
            let State::Swapped(slot) = block.state(index) else { unreachable!("a split leaves content where it is") };
            let mut prepared = self.engine.ram().prepare(taken, block.order());
            let Err(error) = block.read_folio(index, slot, prepared.bytes_mut(), &mut self.watch).await else {
                break (index, prepared);
            };
            self.engine.ram().release(prepared.into_frame());
            if block.order() <= PIECE || block.pinned {
                return Err(error);
            }
            // Read it in smaller parts, so that the readable ones are not lost.
            block.split_to(PIECE);
        };
        self.watch.lap(Phase::Read);
        self.engine.policy().note_swap_in(block, index, self.engine.ram());
        block.map(index, prepared.into_frame(), List::Inactive);
        block.settle_slot(index, &mut self.watch);
        self.engine.count_swap_in(block.order());
        Ok(Ok(()))
    }

    /// Reads the folios that follow a page that was read, if it continues a row of touches in a split block. What
    /// cannot be read is said when it is touched.
    async fn read_row(&self, block: &mut Block<'_>) {
        let (index, nr_folios) = (block.index_of(self.page()), block.nr_folios());
        let ahead = block.history.ahead(index, nr_folios);
        let ram = self.engine.ram();
        if self.engine.policy().order_of(block).is_none() {
            match block.order() {
                Order::PAGE if !ahead.is_empty() => ram.neighbours().read_row(block.id(), ahead),
                PIECE => ram.neighbours().read_pieces((1 + ahead.len()) * PIECE.nr_pages(), ram.budget_pages()),
                _ => {}
            }
        }
        if !ahead.is_empty() && !block.pinned && !self.is_on_failing(block) {
            let _ = runs::read_parts(self.engine, block, ahead.iter(), Arrival::Mapped, current_cpu()).await;
        }
    }

    /// Whether the folio that holds the page is on a failing device. The rest of the block is not read along with it
    /// then.
    fn is_on_failing(&self, block: &Locked<'_>) -> bool {
        let slot = block.folio(block.index_of(self.page())).slot();
        slot.is_some_and(|slot| self.engine.swap().at(slot).health.is_failing())
    }

    /// Tells the policies about the resolved fault. Returns whether it may be part of a stream of blocks. A stream
    /// enters a whole block at its edge, which random accesses seldom hit. In a split block only a run of faults
    /// counts, not a single one.
    fn note_touch(&self, block: &mut Block<'_>, kind: FaultKind) -> bool {
        let index = block.index_of(self.page());
        let ahead = block.history.ahead(index, block.nr_folios());
        let at_edge = !(EDGE_PAGES..BLOCK_PAGES - EDGE_PAGES).contains(&self.page());
        let whole = block.order() == Order::HUGE;
        let nr_folios = block.nr_folios();
        let used_of_folio = self.engine.policy().used_of_folio(block, self.engine.ram());
        let in_row = block.history.note(index, nr_folios, used_of_folio);
        if kind == FaultKind::SwapIn && nr_folios > 1 {
            // Where frames are short, fewer are read, and the row goes on from there.
            let is_read = |&index: &usize| !matches!(block.state(index), State::Swapped(_));
            let nr_read = ahead.iter().take_while(is_read).count();
            block.history.note_ahead(ahead.first(nr_read));
        }
        let folio = block.folio_mut(index);
        let marker = std::mem::take(&mut folio.ahead) == Ahead::Marker;
        let dropped = folio.stay == Stay::Dropped;
        if dropped {
            folio.stay = Stay::Kept;
        }
        if marker {
            self.engine.stats().readahead_hits.add(1);
        }
        if dropped && kind == FaultKind::Standby {
            self.engine.policy().refaulted();
        }
        (whole && at_edge) || marker || in_row
    }

    /// Tells the policies where the thread is, and acts on their advice.
    fn follow_stream(&self, kind: FaultKind) {
        let budget = self.engine.ram().budget_blocks();
        let Some((advice, drops)) = self.engine.policy().follow(self.thread, self.touched.block(), kind, budget) else {
            return;
        };
        for window in advice.windows.iter() {
            self.engine.reads().push(Window {
                marker: Some(advice.marker(window)),
                is_asked: false,
                backward: advice.backward,
                blocks: window.clone(),
                cpu: current_cpu(),
            });
        }
        // Memory that is filled is likely to be read soon. It is dropped only for the sake of pages in use.
        let filled = kind == FaultKind::FirstTouch;
        if drops && (!filled || self.engine.ram().has_pages_in_use()) {
            drop_passed(self.engine, advice.behind, if filled { Stay::Kept } else { Stay::SwappedIn });
        }
    }
}

/// Makes the folios of this kind that a stream has passed the next ones to be reclaimed.
fn drop_passed(engine: &Engine, behind: std::ops::Range<BlockId>, stay: Stay) {
    let mut nr_kept = 0;
    for index in behind.start.index()..behind.end.index() {
        let Some(mut block) = engine.try_lock(BlockId::from_index(index)) else { continue };
        if block.pinned {
            continue;
        }
        nr_kept += usize::from(matches!(block.state(0), State::Resident(_)) && block.folio(0).stay != stay);
        for index in 0..block.nr_folios() {
            if let State::Resident(frame) = block.state(index)
                && block.folio(index).stay == stay
            {
                block.folio_mut(index).stay = Stay::Dropped;
                engine.ram().zone(frame).insert_tail(frame, List::Inactive);
            }
        }
    }
    engine.policy().note_kept(nr_kept);
}
