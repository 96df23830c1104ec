//! The readahead thread: reads the blocks that streams will want next, several at once, and maps them before they are
//! touched. The first folio of each window stays unmapped, so that its fault shows how far the stream has come.
//!
//! Readahead takes free frames or those of clean folios, and leaves reclaim's reserve alone. If there are none, it
//! first maps what it has read; then it gives up, and the fault reads the folio. Some blocks are left out, the first of
//! a window too, as probes ([`OrderChoice`](folioswap_core::OrderChoice)). What the program has asked for is no guess:
//! it has no probes, and waits for reclaim, by turns with other windows. A split block is gathered into one folio if
//! the policy permits. Otherwise its folios are read as they are, contiguous slots in one read.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use folioswap_core::{Ahead, BlockId, CpuId, FrameId, List, Order, SlotId, State, Watermarks};

use crate::block::Block;
use crate::device::checksum;
use crate::engine::Engine;
use crate::fault::gather::gather;
use crate::fault::runs::{self, Arrival};
use crate::memory::demand::Awaited;
use crate::memory::frames::Prepared;
use crate::memory::map_error::MapError;
use crate::process::fatal::{self, EndOnPanic};
use crate::process::stopwatch::Stopwatch;
use crate::process::threads::Starting;
use crate::process::turns::{Waits, asleep};
use crate::swap::health::SwapInError;
use crate::swap::health::Trouble;
use crate::swap::read_queue::Window;
use crate::swap::transfer::{DEPTH, Direction, Transfers};

/// How long a block that the program has asked for waits for frames.
const PATIENCE: Duration = Duration::from_millis(100);

/// Blocks of a window that are read before other windows have their turn.
const AT_ONCE: usize = 8;

/// A block being read as one folio: locked, with frames taken.
struct Incoming<'t> {
    block: Block<'t>,
    prepared: Prepared<'t>,
    slot: SlotId,
    marker: bool,
}

/// Reads in flight, and those that have ended and are not mapped yet. A disk may end all of them at once, so the next
/// read is started before they are mapped.
struct Reads<'t> {
    in_flight: Transfers<Incoming<'t>>,
    ended: VecDeque<(Incoming<'t>, io::Result<()>)>,
}

impl<'t> Reads<'t> {
    fn new() -> Self {
        Reads { in_flight: Transfers::new(), ended: VecDeque::with_capacity(DEPTH) }
    }

    /// Makes room in flight by taking out what has ended.
    fn collect(&mut self) {
        while let Some(read) = self.in_flight.finish(false) {
            self.ended.push_back(read);
        }
    }

    /// The next read that has ended. With `wait`, waits for one if none has.
    fn next(&mut self, wait: bool) -> Option<(Incoming<'t>, io::Result<()>)> {
        self.ended.pop_front().or_else(|| self.in_flight.finish(wait))
    }

    fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.in_flight.nr_in_flight() == 0
    }
}

/// The thread's body. Returns when the arena stops.
pub(crate) fn run(engine: &Engine, starting: Starting) {
    let _end = EndOnPanic("readahead");
    let thread = folioswap_sys::signals::thread_id();
    let mut reads = Reads::new();
    drop(starting);
    while !engine.stopping() {
        let seen = engine.reads().now();
        match engine.reads().pop() {
            Some(window) => read_window(engine, &mut reads, thread, &window),
            None if !reads.is_empty() => {
                finish(engine, &mut reads, true);
            }
            None if engine.stopping() => {} // the stop may precede `seen`
            None => engine.reads().wait(seen),
        }
    }
    finish_all(engine, &mut reads);
}

/// Reads the first blocks of a window, and queues the rest.
fn read_window<'e>(engine: &'e Engine, reads: &mut Reads<'e>, thread: u32, window: &Window) {
    // Reclaim begins with the window, not when the window has used its frames up.
    if !has_frames_above(engine, thread, |watermarks| watermarks.high) {
        engine.ram().reclaim_wanted().signal();
    }
    let end = window.blocks.end.index().min(window.blocks.start.index() + AT_ONCE);
    for id in BlockId::each(window.blocks.start..BlockId::from_index(end)) {
        let mut patience = Patience::new(engine);
        loop {
            reads.collect();
            // Reclaim frees frames while the reads in flight end.
            while !reads.in_flight.has_room() || (!reads.is_empty() && !has_spare_frames(engine, thread)) {
                finish(engine, reads, true);
            }
            if engine.stopping() {
                return;
            }
            match read_block(engine, reads, thread, window, id) {
                Outcome::Done => break,
                Outcome::Partial if !window.is_asked => break,
                Outcome::NoFrames if !window.is_asked => return,
                Outcome::Partial | Outcome::NoFrames => {}
            }
            finish_all(engine, reads);
            if !patience.wait_for_frame() {
                return;
            }
        }
    }
    if end < window.blocks.end.index() {
        let blocks = BlockId::from_index(end)..window.blocks.end;
        engine.reads().push(Window { blocks, ..window.clone() });
    }
}

/// What became of a block. The last two: frames were short.
enum Outcome {
    Done,
    /// Some folios of a split block were read.
    Partial,
    NoFrames,
}

fn read_block<'e>(engine: &'e Engine, reads: &mut Reads<'e>, thread: u32, window: &Window, id: BlockId) -> Outcome {
    let marker = window.marker == Some(id);
    let _pass = match engine.gate().try_enter(thread) {
        Some(pass) => pass,
        None => {
            // The thread that closes the gate waits for those inside, and they may wait for a folio that is being
            // read.
            finish_all(engine, reads);
            engine.gate().enter(thread)
        }
    };
    let Some(mut block) = engine.try_lock(id) else { return Outcome::Done };
    if !window.is_asked && engine.policy().probes(&block) {
        return Outcome::Done;
    }
    if block.order() < Order::HUGE {
        while finish(engine, reads, false) {}
        return match read_split(engine, &mut block, marker, window) {
            Ok(()) if block.order() < Order::HUGE && has_more(&block) => Outcome::Partial,
            read => {
                report(read);
                Outcome::Done
            }
        };
    }
    match block.state(0) {
        _ if block.is_sealed(0) => {}
        State::Swapped(slot) => {
            if !start(engine, reads, block, slot, marker, window.cpu) {
                return Outcome::NoFrames;
            }
            finish(engine, reads, false);
        }
        State::Standby(frame) if !marker => restore(&mut block, 0, frame),
        State::Resident(_) if marker => mark(engine, &mut block, 0),
        _ => {}
    }
    Outcome::Done
}

/// Whether folios of a split block are on a device that could be read.
fn has_more(block: &Block<'_>) -> bool {
    let is_out = |index| matches!(block.state(index), State::Swapped(_));
    (0..block.nr_folios()).any(|index| is_out(index) && !block.is_sealed(index * block.order().nr_pages()))
}

/// Whether there are frames for a block besides reclaim's reserve.
fn has_spare_frames(engine: &Engine, thread: u32) -> bool {
    has_frames_above(engine, thread, |watermarks| watermarks.min + Order::HUGE.nr_pages())
}

/// Whether so many frames are available. Not while the process forks: the child must find no zone locked.
fn has_frames_above(engine: &Engine, thread: u32, mark: impl FnOnce(&Watermarks) -> usize) -> bool {
    engine.gate().try_enter(thread).is_some_and(|_pass| {
        let counts = engine.ram().zones().counts();
        counts.available() >= mark(&counts.watermarks)
    })
}

/// A wait for the frames of a block.
struct Patience<'e> {
    engine: &'e Engine,
    begun: Option<(Instant, Awaited<'e>)>,
    seen: u32,
}

impl<'e> Patience<'e> {
    fn new(engine: &'e Engine) -> Self {
        Patience { engine, begun: None, seen: engine.ram().frame_freed().now() }
    }

    /// Waits until reclaim has freed a frame. `false`: [`PATIENCE`] is over.
    fn wait_for_frame(&mut self) -> bool {
        let ram = self.engine.ram();
        let (begun, _) = self.begun.get_or_insert_with(|| (Instant::now(), ram.demand().await_frames(Order::HUGE)));
        let Some(left) = PATIENCE.checked_sub(begun.elapsed()) else { return false };
        ram.frame_freed().wait_for(self.seen, left);
        self.seen = ram.frame_freed().now();
        true
    }
}

/// Prints a read error. The block stays swapped, and the thread that touches it gets the error too.
fn report(read: Result<(), SwapInError>) {
    if let Err(error) = read {
        fatal::say(&error.to_string());
    }
}

/// Reads a split block.
fn read_split(engine: &Engine, block: &mut Block<'_>, marker: bool, window: &Window) -> Result<(), SwapInError> {
    let spare = || runs::take_spare(engine, Order::HUGE, window.cpu);
    if engine.policy().wants_whole(block)
        && !block.is_empty()
        && asleep(gather(engine, block, spare(), List::Inactive, &mut Stopwatch::still()))?
    {
        if marker && let State::Resident(_) = block.state(0) {
            mark(engine, block, 0);
        }
        return Ok(());
    }
    let met_first = if window.backward { block.nr_folios() - 1 } else { 0 };
    for index in 0..block.nr_folios() {
        let is_marker = marker && index == met_first;
        match block.state(index) {
            State::Standby(frame) if !is_marker => restore(block, index, frame),
            State::Standby(_) if block.folio(index).ahead == Ahead::Neighbour => {
                block.folio_mut(index).ahead = Ahead::Marker;
            }
            State::Resident(_) if is_marker => mark(engine, block, index),
            _ => {}
        }
    }
    let arrival = if marker { Arrival::Marked(met_first) } else { Arrival::Mapped };
    asleep(runs::read_parts(engine, block, 0..block.nr_folios(), arrival, window.cpu))
}

/// Starts one read. `false`: there is no frame to spare.
fn start<'e>(
    engine: &'e Engine,
    reads: &mut Reads<'e>,
    mut block: Block<'e>,
    slot: SlotId,
    marker: bool,
    cpu: CpuId,
) -> bool {
    let Some(mut prepared) = runs::spare_frame(engine, Order::HUGE, cpu) else { return false };
    match engine.swap().extent(slot) {
        Some(extent) if reads.in_flight.asynchronous() => {
            let bytes = prepared.bytes_mut();
            let (home, len) = (bytes.as_ptr() as usize, bytes.len());
            engine.writeback().transfers().begin();
            // SAFETY: the job owns the frames, which have memory and are known to nobody else. It keeps the block's
            // lock, so the folio keeps its slot, and the device is not removed.
            unsafe {
                reads.in_flight.start(Direction::Read, extent, home, len, Incoming { block, prepared, slot, marker })
            };
        }
        _ => {
            let read = asleep(block.read_folio(0, slot, prepared.bytes_mut(), &mut Stopwatch::still()));
            arrive(engine, Incoming { block, prepared, slot, marker }, read);
        }
    }
    true
}

fn finish_all(engine: &Engine, reads: &mut Reads<'_>) {
    while finish(engine, reads, true) {}
}

/// Verifies and maps a block whose read has ended. With `wait`, waits for one if none has. `false`: there was none.
/// Taking one at a time keeps the disk busy: new ones can be started in between.
fn finish(engine: &Engine, reads: &mut Reads<'_>, wait: bool) -> bool {
    let Some((mut incoming, read)) = reads.next(wait) else { return false };
    let Incoming { block, prepared, slot, .. } = &mut incoming;
    let is_right = |bytes: &[u8]| checksum::verify(block, 0, bytes);
    let first = read.map_err(Trouble::Read).and_then(|()| Trouble::unless(is_right(prepared.bytes())));
    let addr = engine.table().addr(block.name(0));
    let verified = engine.swap().read_verified(addr, *slot, prepared.bytes_mut(), Some(first), is_right, Waits::Asleep);
    let read = asleep(verified);
    arrive(engine, incoming, read);
    engine.writeback().transfers().end();
    true
}

/// Maps a block that has been read.
fn arrive(engine: &Engine, incoming: Incoming<'_>, read: Result<(), SwapInError>) {
    let Incoming { mut block, prepared, marker, .. } = incoming;
    let frame = prepared.into_frame();
    if read.is_err() {
        engine.ram().release(frame);
        return report(read);
    }
    runs::admit(engine, &mut block, 0, frame, if marker { Ahead::Marker } else { Ahead::No });
}

/// Maps a folio again that is still in RAM.
fn restore(block: &mut Block<'_>, index: usize, frame: FrameId) {
    if block.folio(index).ahead != Ahead::Marker && !block.is_sealed(index * block.order().nr_pages()) {
        block.folio_mut(index).ahead = Ahead::No;
        block.map(index, frame, List::Inactive);
        block.settle_slot(index, &mut Stopwatch::still());
    }
}

/// Unmaps the first folio of a window if it is mapped already, so that its next touch faults.
fn mark(engine: &Engine, block: &mut Block<'_>, index: usize) {
    if block.pinned {
        return;
    }
    match block.unmap(index) {
        Ok(()) => {
            block.folio_mut(index).ahead = Ahead::Marker;
            engine.ram().put(block.frame(index), List::Inactive);
        }
        Err(MapError::Missing | MapError::Busy | MapError::Refused(_)) => engine.stats().busy_victims.add(1),
    }
}
