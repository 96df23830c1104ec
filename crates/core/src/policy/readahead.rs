//! Readahead: detects sequential streams in each thread's touches, and says which blocks to read before they are
//! needed.
//!
//! A *touch* is a fault on an unmapped block. Two adjacent touches start a stream, forward or backward. Blocks ahead
//! are then requested in *windows* of 2, 4, 8 ... blocks. The engine maps a window except its first block in stream
//! direction, the *marker*: the touch of a window's marker requests the window [`WINDOWS_AHEAD`] further on. Windows
//! may arrive late or never, so any touch between the last one and the end of the requested blocks continues the
//! stream.
//!
//! **Positions** grow in the direction of the stream: the block's index, negated if backward. `passed <= last < ahead`;
//! `[last + 1, ahead)` was requested and not reached yet. **Locking.** One mutex, a leaf; a call scans the 64 records a
//! few times. Nothing allocates.

use crate::id::BlockId;
use crate::sync::{Mutex, lock};
use std::ops::{Deref, Range};

/// Streams that are tracked at once.
pub const STREAMS_MAX: usize = 64;
/// Windows that are requested beyond the current one.
pub const WINDOWS_AHEAD: usize = 2;
/// Blocks in a stream's first window.
pub const FIRST_WINDOW: usize = 2;

/// Single touches that are remembered per thread.
const CANDIDATES_PER_THREAD: usize = 4;
/// A stream is forgotten after more than this many touches of its thread elsewhere: the thread has jumped.
const SKIPS_MAX: u32 = 8;
/// A stream is live while its thread has touched elsewhere less often than this since ...
const LIVE_SKIPS: u32 = 2;
/// ... and all threads together at most this often.
const LIVE_TOUCHES: u64 = 128;
/// A stream may be replaced if it was not continued for more than this many touches of all threads.
const STALE_TOUCHES: u64 = 256;

/// How far ahead streams may read, in blocks.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Room {
    /// Blocks that one window may hold.
    pub max_window: usize,
    /// Blocks that all streams together may have ahead.
    pub max_total: usize,
}

/// Up to [`WINDOWS_AHEAD`] windows, in reading order; a slice of ranges.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Windows {
    ranges: [Range<BlockId>; WINDOWS_AHEAD],
    len: usize,
}

impl Windows {
    const NONE: Windows = Windows { ranges: [const { BlockId::new(0)..BlockId::new(0) }; WINDOWS_AHEAD], len: 0 };

    fn push(&mut self, window: Range<BlockId>) {
        self.ranges[self.len] = window;
        self.len += 1;
    }
}

impl Deref for Windows {
    type Target = [Range<BlockId>];

    fn deref(&self) -> &Self::Target {
        &self.ranges[..self.len]
    }
}

/// What to do for a stream that was just continued. Blocks may lie beyond the end of the region; the engine skips
/// those.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct StreamAdvice {
    /// Blocks to read now, window after window.
    pub windows: Windows,
    /// Blocks that the stream has passed since its last advice, except the one just before the touch.
    pub behind: Range<BlockId>,
    /// The stream runs towards lower addresses.
    pub backward: bool,
}

impl StreamAdvice {
    /// The block of a window that the stream meets first, which must stay unmapped: the first one, or the last if
    /// backward.
    pub fn marker(&self, window: &Range<BlockId>) -> BlockId {
        if self.backward { BlockId::new(window.end.get() - 1) } else { window.start }
    }
}

/// One record: a stream, or (with direction 0) a single touch that may become one.
#[derive(Copy, Clone)]
struct Stream {
    thread: u64,
    /// 1, -1, or 0 for a single touch.
    direction: i64,
    /// Positions; see the opener of this file.
    last: i64,
    passed: i64,
    ahead: i64,
    /// Blocks in the window requested last.
    window: usize,
    /// First positions of the `nr_markers` windows that were requested and not reached, ascending.
    markers: [i64; WINDOWS_AHEAD],
    nr_markers: usize,
    /// When it was last continued, in touches of all threads.
    touched_at: u64,
    /// Touches of its thread elsewhere since then.
    skips: u32,
}

impl Stream {
    fn candidate(thread: u64, block: BlockId, now: u64) -> Stream {
        let at = i64::from(block.get());
        Stream {
            thread,
            direction: 0,
            last: at,
            passed: at,
            ahead: at + 1,
            window: 0,
            markers: [0; WINDOWS_AHEAD],
            nr_markers: 0,
            touched_at: now,
            skips: 0,
        }
    }

    fn nr_ahead(&self) -> usize {
        (self.ahead - self.last - 1) as usize
    }

    /// Whether the touch continues this established stream; touching the same block again does.
    fn continued_by(&self, block: BlockId) -> bool {
        let at = i64::from(block.get()) * self.direction;
        self.direction != 0 && self.last <= at && at <= self.ahead
    }

    fn is_live(&self, now: u64) -> bool {
        self.direction != 0 && self.skips < LIVE_SKIPS && now - self.touched_at <= LIVE_TOUCHES
    }

    /// Gives a single touch its direction.
    fn establish(&mut self, direction: i64) {
        self.direction = direction;
        self.last *= direction;
        self.passed = self.last;
        self.ahead = self.last + 1;
    }

    fn advance(&mut self, block: BlockId) {
        self.last = i64::from(block.get()) * self.direction;
        self.ahead = self.ahead.max(self.last + 1);
        let reached = self.markers[..self.nr_markers].iter().take_while(|&&marker| marker <= self.last).count();
        self.markers.copy_within(reached.., 0);
        self.nr_markers -= reached;
    }

    /// Requests the next windows, up to `allowed` blocks ahead and `max_window` blocks per window.
    fn ask(&mut self, allowed: usize, max_window: usize) -> Windows {
        let mut windows = Windows::NONE;
        while self.nr_markers < WINDOWS_AHEAD {
            let wanted = (self.window * 2).clamp(FIRST_WINDOW, max_window.max(FIRST_WINDOW)).min(max_window);
            // Positions end where block numbers do.
            let end = if self.direction > 0 { i64::from(u32::MAX) } else { 1 };
            let len = wanted.min(allowed.saturating_sub(self.nr_ahead())).min((end - self.ahead).max(0) as usize);
            if len == 0 {
                break;
            }
            let start = self.ahead;
            self.ahead += len as i64;
            self.window = len;
            self.markers[self.nr_markers] = start;
            self.nr_markers += 1;
            windows.push(self.blocks(start, self.ahead));
        }
        windows
    }

    /// The blocks passed and not yet reported, except the one before the touch: accesses may straddle blocks.
    fn leave_behind(&mut self) -> Range<BlockId> {
        let (start, end) = (self.passed, (self.last - 1).max(self.passed));
        self.passed = end;
        self.blocks(start, end)
    }

    /// The blocks at positions `start..end`.
    fn blocks(&self, start: i64, end: i64) -> Range<BlockId> {
        let block = |position: i64| BlockId::new(position as u32);
        if self.direction > 0 { block(start)..block(end) } else { block(1 - end)..block(1 - start) }
    }
}

struct Records {
    streams: [Option<Stream>; STREAMS_MAX],
    /// Touches so far.
    now: u64,
}

impl Records {
    fn each(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.streams.iter_mut().flatten()
    }

    /// Counts a touch elsewhere for the thread's other streams, and forgets those it has left.
    fn skip_others(&mut self, thread: u64, touched: Option<usize>) {
        for (index, record) in self.streams.iter_mut().enumerate() {
            if let Some(stream) = record
                && stream.thread == thread
                && Some(index) != touched
            {
                stream.skips += 1;
                if stream.skips > SKIPS_MAX {
                    *record = None;
                }
            }
        }
    }

    /// The stream or single touch that this touch continues, and the direction if that is new.
    fn find(&self, thread: u64, block: BlockId) -> Option<(usize, Option<i64>)> {
        let own = || {
            self.streams
                .iter()
                .enumerate()
                .filter_map(|(index, stream)| stream.as_ref().map(|stream| (index, stream)))
                .filter(|(_, stream)| stream.thread == thread)
        };
        if let Some((index, _)) = own().find(|(_, stream)| stream.continued_by(block)) {
            return Some((index, None));
        }
        let at = i64::from(block.get());
        own()
            .filter(|(_, stream)| stream.direction == 0 && (at - stream.last).abs() <= 1)
            .max_by_key(|(_, stream)| stream.touched_at)
            .map(|(index, stream)| (index, Some(at - stream.last)))
    }

    /// The record for a new touch: an unused one, else the oldest single touch's, else the oldest stream's if that was
    /// not continued for long. A thread with enough single touches replaces its own oldest one.
    fn vacancy(&self, thread: u64) -> Option<usize> {
        let oldest = |chosen: &dyn Fn(&Stream) -> bool| {
            let chosen = self.streams.iter().enumerate().filter_map(|(index, stream)| {
                stream.as_ref().filter(|stream| chosen(stream)).map(|stream| (stream.touched_at, index))
            });
            chosen.min()
        };
        let own = |stream: &Stream| stream.thread == thread && stream.direction == 0;
        if self.streams.iter().flatten().filter(|stream| own(stream)).count() >= CANDIDATES_PER_THREAD {
            return oldest(&own).map(|(_, index)| index);
        }
        self.streams
            .iter()
            .position(Option::is_none)
            .or_else(|| oldest(&|stream| stream.direction == 0).map(|(_, index)| index))
            .or_else(|| {
                oldest(&|_| true)
                    .filter(|&(touched_at, _)| self.now - touched_at > STALE_TOUCHES)
                    .map(|(_, index)| index)
            })
    }

    /// How many blocks the stream at `index` may have ahead, and the most blocks in one of its windows.
    ///
    /// Live streams share `max_total` evenly, and together have at most `max_total` ahead, except that each may always
    /// have [`FIRST_WINDOW`] blocks: an abandoned stream must not block a new one.
    fn share(&self, index: usize, room: Room) -> (usize, usize) {
        let (mut nr_live, mut others) = (1, 0);
        for (at, stream) in self.streams.iter().enumerate() {
            if let Some(stream) = stream
                && at != index
                && stream.is_live(self.now)
            {
                nr_live += 1;
                others += stream.nr_ahead();
            }
        }
        let share = room.max_total / nr_live;
        let left = room.max_total.saturating_sub(others);
        let allowed = share.min(left.max(FIRST_WINDOW));
        // The rest of the current window and WINDOWS_AHEAD more have to fit.
        (allowed, room.max_window.min((share / (WINDOWS_AHEAD + 1)).max(1)))
    }

    fn observe(&mut self, thread: u64, block: BlockId, room: Room) -> Option<StreamAdvice> {
        self.now += 1;
        let now = self.now;
        let found = self.find(thread, block);
        self.skip_others(thread, found.map(|(index, _)| index));
        let Some((index, direction)) = found else {
            if let Some(index) = self.vacancy(thread) {
                self.streams[index] = Some(Stream::candidate(thread, block, now));
            }
            return None;
        };
        let (allowed, max_window) = self.share(index, room);
        let stream = self.streams[index].as_mut()?;
        (stream.touched_at, stream.skips) = (now, 0);
        match direction {
            Some(0) => return None,
            Some(direction) => stream.establish(direction),
            None => {}
        }
        stream.advance(block);
        let windows = stream.ask(allowed, max_window);
        let behind = stream.leave_behind();
        let backward = stream.direction < 0;
        (!windows.is_empty() || behind.start < behind.end).then_some(StreamAdvice { windows, behind, backward })
    }
}

/// The streams of an arena's threads, at most [`STREAMS_MAX`].
pub struct Streams {
    records: Mutex<Box<Records>>,
}

impl Streams {
    /// Records that a thread touched an unmapped block. If this continues a stream, returns what to read ahead and what
    /// lies behind, unless there is neither.
    pub fn observe(&self, thread: u64, block: BlockId, room: Room) -> Option<StreamAdvice> {
        lock(&self.records).observe(thread, block, room)
    }

    /// Forgets the streams in blocks that were unmapped or will be touched at random from now on.
    pub fn forget_blocks(&self, blocks: Range<BlockId>) {
        for record in &mut lock(&self.records).streams {
            let at = record.map(|stream| BlockId::new(stream.last.unsigned_abs() as u32));
            if at.is_some_and(|at| blocks.contains(&at)) {
                *record = None;
            }
        }
    }

    /// Forgets every stream.
    pub fn forget_all(&self) {
        lock(&self.records).streams = [None; STREAMS_MAX];
    }

    /// Streams and single touches that are remembered.
    pub fn len(&self) -> usize {
        lock(&self.records).each().count()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Streams {
    fn default() -> Self {
        Streams { records: Mutex::new(Box::new(Records { streams: [None; STREAMS_MAX], now: 0 })) }
    }
}
