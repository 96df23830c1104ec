//! The readahead thread: reads the folios that streams will want next, several at once, and maps them before they are
//! touched. The first folio of each window stays unmapped: its fault tells that the stream has come this far.
//!
//! Readahead takes frames that are free or clean, never those that reclaim keeps in reserve, and gives up rather than
//! wait: a folio that is not read ahead is read when it faults.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;

use folioswap_core::{FolioId, FrameId, List, Locked, SlotId, State};

use crate::checksum;
use crate::engine::Engine;
use crate::fatal::{self, AbortOnPanic};
use crate::map::MapError;
use crate::transfer::{Direction, Transfers};
use crate::wakeup::Event;

/// Windows that may wait to be read; what comes on top is not read ahead.
const QUEUE: usize = 256;

/// Folios to be read; the marker is left unmapped.
pub(crate) struct Window {
    pub folios: Range<FolioId>,
    pub marker: Option<FolioId>,
}

/// Windows that are to be read.
pub(crate) struct ReadQueue {
    windows: Mutex<VecDeque<Window>>,
    pushed: Event,
}

impl ReadQueue {
    pub fn new() -> Self {
        ReadQueue { windows: Mutex::new(VecDeque::with_capacity(QUEUE)), pushed: Event::default() }
    }

    /// Asks for a window. Never allocates: it is called in signal handlers.
    pub fn push(&self, window: Window) {
        let mut windows = self.windows.lock().expect("nothing panics under this lock");
        if windows.len() < QUEUE {
            windows.push_back(window);
            drop(windows);
            self.pushed.signal();
        }
    }

    fn pop(&self) -> Option<Window> {
        self.windows.lock().expect("nothing panics under this lock").pop_front()
    }

    /// Wakes the thread so that it sees that the arena stops.
    pub fn wake(&self) {
        self.pushed.signal();
    }
}

/// A folio being read: locked, its frame taken.
struct Incoming<'t> {
    locked: Locked<'t>,
    frame: FrameId,
    slot: SlotId,
    marker: bool,
}

type Reads<'t> = Transfers<Incoming<'t>>;

/// The thread's body; returns when the arena stops.
pub(crate) fn run(engine: &Engine) {
    let _abort = AbortOnPanic("readahead");
    let thread = folioswap_sys::signals::thread_id();
    let mut reads = Reads::new();
    while !engine.stopping() {
        let seen = engine.reads.pushed.now();
        match engine.reads.pop() {
            Some(window) => read_window(engine, &mut reads, thread, window),
            None if reads.nr_in_flight() > 0 => finish(engine, &mut reads, 1),
            None => engine.reads.pushed.wait(seen),
        }
    }
    while reads.nr_in_flight() > 0 {
        finish(engine, &mut reads, 1);
    }
}

fn read_window<'e>(engine: &'e Engine, reads: &mut Reads<'e>, thread: u32, window: Window) {
    for index in window.folios.start.index()..window.folios.end.index() {
        let folio = FolioId::new(index as u32);
        let marker = window.marker == Some(folio);
        while !reads.has_room() {
            finish(engine, reads, 1);
        }
        finish(engine, reads, 0);
        if engine.stopping() {
            return;
        }
        let _pass = match engine.gate.try_enter(thread) {
            Some(pass) => pass,
            None => {
                // Whoever closes the gate waits for those inside, and they may wait for a folio that is being read.
                while reads.nr_in_flight() > 0 {
                    finish(engine, reads, 1);
                }
                engine.gate.enter(thread)
            }
        };
        let Some(locked) = engine.try_lock(folio) else { continue };
        match locked.state() {
            State::Swapped(slot) => {
                let started = start(engine, reads, locked, slot, marker);
                if !started {
                    return;
                }
            }
            State::Standby(frame) if !marker => restore(engine, locked, frame),
            State::Resident(frame) if marker => mark(engine, locked, frame),
            _ => {}
        }
    }
}

/// Starts one read; `false` when there is no frame to spare.
fn start<'e>(engine: &'e Engine, reads: &mut Reads<'e>, locked: Locked<'e>, slot: SlotId, marker: bool) -> bool {
    let Some((frame, fresh)) = engine.try_take_frame(engine.zone.watermarks().min) else { return false };
    if fresh {
        engine.patiently("made", || engine.mapper.populate(engine.frames.home(frame)));
    }
    let incoming = Incoming { locked, frame, slot, marker };
    match engine.space.extent(slot) {
        Some(extent) if reads.asynchronous() => {
            let home = engine.frames.home(frame);
            reads.start(Direction::Read, extent, home, engine.folio_bytes(), incoming);
        }
        _ => {
            let bytes = engine.frames.bytes(frame, &incoming.locked);
            match engine.space.memory(slot) {
                Some((memory, offset)) => {
                    let found = memory.load(offset, bytes);
                    arrive(engine, incoming, Ok(found));
                }
                None => {
                    let read = engine.space.read(slot, bytes).map(|()| checksum::hash(bytes));
                    arrive(engine, incoming, read);
                }
            }
        }
    }
    true
}

fn finish<'e>(engine: &'e Engine, reads: &mut Reads<'e>, min: usize) {
    reads.finish(min, |incoming, read| {
        let found = read.map(|()| checksum::hash(engine.frames.bytes(incoming.frame, &incoming.locked)));
        arrive(engine, incoming, found);
    });
}

/// Maps a folio that was read. One that could not be read stays swapped: the thread that touches it is told.
fn arrive(engine: &Engine, incoming: Incoming<'_>, found: std::io::Result<checksum::Checksum>) {
    let Incoming { mut locked, frame, slot, marker } = incoming;
    let verified = match found {
        Ok(found) => engine.verify(slot, found),
        Err(error) => Err(engine.swap_in_error(slot, &error.to_string())),
    };
    if let Err(error) = verified {
        fatal::say(&error.to_string());
        engine.zone.give(frame);
        return;
    }
    engine.judge_drop(&mut locked, slot);
    engine.zone.set_owner(frame, locked.folio(), Some(slot));
    engine.stats.swapped_in_folios.add(1);
    engine.stats.swapped_in_bytes.add(engine.folio_bytes() as u64);
    engine.stats.readahead_folios.add(1);
    if marker {
        locked.set(State::Standby(frame));
        locked.set_marker(true);
        // As young as the rest of its window: on standby it would be the next to go, before it was ever touched.
        engine.zone.insert(frame, List::Inactive);
    } else {
        engine.map(&mut locked, frame, List::Inactive);
        engine.settle_slot(frame);
    }
}

/// Maps a folio back that is still in RAM.
fn restore(engine: &Engine, mut locked: Locked<'_>, frame: FrameId) {
    if !locked.marker() {
        engine.map(&mut locked, frame, List::Inactive);
        engine.settle_slot(frame);
    }
}

/// Unmaps the first folio of a window that is in RAM already, so that its next touch is seen.
fn mark(engine: &Engine, mut locked: Locked<'_>, frame: FrameId) {
    if locked.pinned() {
        return;
    }
    match engine.unmap(&mut locked, frame) {
        Ok(()) => {
            locked.set_marker(true);
            engine.zone.insert(frame, List::Inactive);
        }
        Err(MapError::Missing | MapError::Busy | MapError::Refused(_)) => engine.stats.busy_victims.add(1),
    }
}
