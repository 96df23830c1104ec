//! The folio table: from a folio to where its content is, with a lock for each folio.
//!
//! An entry is 8 bytes: `word` (lock bit, waiters bit, state, flags, version) and `payload` (the frame or the slot).
//! Entries come in chunks of 512, made by [`FolioTable::ensure`] and never given back; a folio whose chunk was not made
//! reads as empty.
//!
//! **Locking.** State, payload and flags change only under the entry's lock ([`Locked`]). Who finds it held spins a
//! little, then sets the waiters bit by compare-and-swap *while the lock bit is set* and sleeps on the word as long as
//! it has that very value. Unlocking clears both bits in one operation and wakes all when the waiters bit was set; so
//! between setting the bit and sleeping, the word can only change to a value that makes the sleep return at once: no
//! wake-up is lost.
//!
//! **Reading without the lock.** [`FolioTable::peek`] is a sequence lock: `set` makes the version odd, stores the
//! payload, then stores state and an even version. A peek that sees one even version before and after has a pair that
//! belongs together. It is a hint all the same: it may be out of date before it is looked at.

use crate::id::{FolioId, FrameId, SlotId};
use crate::sync::{AtomicU32, OnceLock, Ordering, SPINS, spin_loop};
use std::fmt;
use std::ops::Range;

/// Entries in a chunk. A model checker tracks every atomic, so it gets fewer.
#[cfg(not(loom))]
pub const CHUNK_ENTRIES: usize = 512;
/// Entries in a chunk. A model checker tracks every atomic, so it gets fewer.
#[cfg(loom)]
pub const CHUNK_ENTRIES: usize = 2;

const LOCKED: u32 = 1 << 0;
const WAITERS: u32 = 1 << 1;
const STATE_SHIFT: u32 = 2;
const STATE_MASK: u32 = 3 << STATE_SHIFT;
const PINNED: u32 = 1 << 4;
const MARKER: u32 = 1 << 5;
const DROPPED_BEHIND: u32 = 1 << 6;
/// The version counts up from here to the top bit and wraps; its lowest bit is set while the payload is being changed.
const VERSION_ONE: u32 = 1 << 7;

/// How often a peek tries for a pair that belongs together before it reports the folio as locked and empty.
const PEEK_TRIES: usize = 64;

/// Sleeping and waking on a word, as a futex does it. The engine gives a futex, a model a condition variable.
pub trait Park: Sync {
    /// Sleeps until woken, or returns at once when `word` does not hold `expected`. May return for no reason.
    fn wait(&self, word: &AtomicU32, expected: u32);
    /// Wakes every thread that sleeps on `word`.
    fn wake_all(&self, word: &AtomicU32);
}

/// Where the content of a folio is.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum State {
    /// Never touched, dropped, or all zero: reads as zero and has neither frame nor slot.
    Empty,
    /// In its slots only.
    Swapped(SlotId),
    /// In RAM and mapped; the block is its home. Its slot, if any, is in the zone's record of the block.
    Resident(FrameId),
    /// In RAM at the block's own address, not mapped. Its slot, if any, is in the zone's record of the block.
    Standby(FrameId),
}

impl State {
    fn pack(self) -> (u32, u32) {
        let (tag, payload) = match self {
            State::Empty => (0, 0),
            State::Swapped(slot) => (1, slot.get()),
            State::Resident(frame) => (2, frame.get()),
            State::Standby(frame) => (3, frame.get()),
        };
        (tag << STATE_SHIFT, payload)
    }

    fn unpack(word: u32, payload: u32) -> State {
        match (word & STATE_MASK) >> STATE_SHIFT {
            0 => State::Empty,
            1 => State::Swapped(SlotId::new(payload)),
            2 => State::Resident(FrameId::new(payload)),
            _ => State::Standby(FrameId::new(payload)),
        }
    }
}

/// What an entry said a moment ago.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Peek {
    /// Where the content was.
    pub state: State,
    /// Somebody held the entry's lock.
    pub locked: bool,
    /// It may not be reclaimed.
    pub pinned: bool,
    /// It is the first folio of a readahead window.
    pub marker: bool,
    /// It left RAM because a stream had passed it.
    pub dropped_behind: bool,
}

impl Peek {
    /// Whether the folio is mapped.
    pub fn is_resident(&self) -> bool {
        matches!(self.state, State::Resident(_))
    }

    /// Whether nobody holds the entry and the folio reads as zero.
    pub fn is_empty(&self) -> bool {
        self.state == State::Empty && !self.locked
    }

    const EMPTY: Peek =
        Peek { state: State::Empty, locked: false, pinned: false, marker: false, dropped_behind: false };

    fn new(word: u32, state: State) -> Peek {
        Peek {
            state,
            locked: word & LOCKED != 0,
            pinned: word & PINNED != 0,
            marker: word & MARKER != 0,
            dropped_behind: word & DROPPED_BEHIND != 0,
        }
    }
}

struct Entry {
    word: AtomicU32,
    payload: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry>() == 8, "an entry of the folio table is 8 bytes");

impl Entry {
    fn new() -> Entry {
        Entry { word: AtomicU32::new(0), payload: AtomicU32::new(0) }
    }

    fn try_lock(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word & LOCKED == 0
            && self.word.compare_exchange(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Sets the waiters bit of a locked entry and sleeps. False, without sleep, when the entry changed meanwhile.
    fn sleep(&self, word: u32, park: &dyn Park) -> bool {
        debug_assert!(word & LOCKED != 0);
        let asleep = word | WAITERS;
        let set =
            word == asleep || self.word.compare_exchange(word, asleep, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if set {
            park.wait(&self.word, asleep);
        }
        set
    }

    fn lock(&self, park: &dyn Park) {
        for _ in 0..SPINS {
            if self.try_lock() {
                return;
            }
            spin_loop();
        }
        while !self.try_lock() {
            let word = self.word.load(Ordering::Relaxed);
            if word & LOCKED != 0 {
                self.sleep(word, park);
            }
        }
    }

    fn unlock(&self, park: &dyn Park) {
        let before = self.word.fetch_and(!(LOCKED | WAITERS), Ordering::Release);
        assert!(before & LOCKED != 0, "an entry is unlocked by whoever locked it");
        if before & WAITERS != 0 {
            park.wake_all(&self.word);
        }
    }

    fn wait_unlocked(&self, park: &dyn Park) {
        for _ in 0..SPINS {
            if self.word.load(Ordering::Acquire) & LOCKED == 0 {
                return;
            }
            spin_loop();
        }
        let mut slept = false;
        loop {
            let word = self.word.load(Ordering::Acquire);
            // Once the bit that this thread had set is gone, the lock it waited for has been released, whoever
            // holds it now.
            if word & LOCKED == 0 || (slept && word & WAITERS == 0) {
                return;
            }
            slept |= self.sleep(word, park);
        }
    }

    fn peek(&self) -> Peek {
        let mut word = self.word.load(Ordering::Acquire);
        for _ in 0..PEEK_TRIES {
            let payload = self.payload.load(Ordering::Acquire);
            let after = self.word.load(Ordering::Acquire);
            if word & VERSION_ONE == 0 && (word ^ after) & !(VERSION_ONE - 1) == 0 {
                return Peek::new(after, State::unpack(after, payload));
            }
            word = after;
            spin_loop();
        }
        Peek::new(word | LOCKED, State::Empty)
    }
}

/// Entries for all the folios of an arena, 8 bytes each, in chunks that exist only once asked for.
pub struct FolioTable {
    chunks: Box<[OnceLock<Box<[Entry]>>]>,
    nr_folios: usize,
}

impl FolioTable {
    /// A table for `nr_folios` folios, with no chunk yet. Costs 16 bytes for each 512 folios at once.
    pub fn new(nr_folios: usize) -> Self {
        assert!(nr_folios <= u32::MAX as usize, "a folio's index fits 32 bits");
        let nr_chunks = nr_folios.div_ceil(CHUNK_ENTRIES);
        FolioTable { chunks: (0..nr_chunks).map(|_| OnceLock::new()).collect(), nr_folios }
    }

    /// Folios that the table has room for.
    pub fn nr_folios(&self) -> usize {
        self.nr_folios
    }

    /// Makes the chunks that hold these folios. The only call that allocates; safe from many threads at once.
    pub fn ensure(&self, folios: Range<FolioId>) {
        let (start, end) = (folios.start.index(), folios.end.index());
        assert!(end <= self.nr_folios, "folio {end} lies beyond the table");
        if start >= end {
            return;
        }
        for chunk in &self.chunks[start / CHUNK_ENTRIES..end.div_ceil(CHUNK_ENTRIES)] {
            chunk.get_or_init(|| (0..CHUNK_ENTRIES).map(|_| Entry::new()).collect());
        }
    }

    /// Whether the folio's chunk was made.
    pub fn has(&self, folio: FolioId) -> bool {
        self.find(folio).is_some()
    }

    /// What the entry says now, without its lock. Empty when the folio's chunk was not made or the folio lies beyond
    /// the table. Never sleeps; state and payload belong together. Reported as locked and empty in the rare case that
    /// its holder stopped in the middle of [`Locked::set`].
    pub fn peek(&self, folio: FolioId) -> Peek {
        self.find(folio).map_or(Peek::EMPTY, Entry::peek)
    }

    /// Locks the entry; sleeps while somebody else holds it. Panics when the folio's chunk was not made.
    pub fn lock<'t>(&'t self, folio: FolioId, park: &'t dyn Park) -> Locked<'t> {
        let entry = self.entry(folio);
        entry.lock(park);
        Locked { entry, folio, park }
    }

    /// Locks the entry if nobody holds it. May fail, too, when the entry changed at this very moment. Panics when the
    /// folio's chunk was not made.
    pub fn try_lock<'t>(&'t self, folio: FolioId, park: &'t dyn Park) -> Option<Locked<'t>> {
        let entry = self.entry(folio);
        // Not `then_some`: a `Locked` made in vain would unlock somebody else's lock when dropped.
        entry.try_lock().then(|| Locked { entry, folio, park })
    }

    /// Returns once the lock that somebody holds has been released, at once when nobody holds it.
    pub fn wait_unlocked(&self, folio: FolioId, park: &dyn Park) {
        if let Some(entry) = self.find(folio) {
            entry.wait_unlocked(park);
        }
    }

    /// Takes up a lock again that [`Locked::into_raw`] had laid down, on any thread. The caller is the only one to do
    /// so for that lock. Panics when the entry is not locked.
    pub fn locked_from_raw<'t>(&'t self, folio: FolioId, park: &'t dyn Park) -> Locked<'t> {
        let entry = self.entry(folio);
        // Acquire: what the former holder wrote through other means is visible to the one who takes over.
        assert!(entry.word.load(Ordering::Acquire) & LOCKED != 0, "{folio:?} was to be locked and is not");
        Locked { entry, folio, park }
    }

    /// Bytes of memory that the table takes.
    pub fn bytes(&self) -> usize {
        let made = self.chunks.iter().filter(|chunk| chunk.get().is_some()).count();
        size_of::<Self>() + size_of_val(&*self.chunks) + made * CHUNK_ENTRIES * size_of::<Entry>()
    }

    fn find(&self, folio: FolioId) -> Option<&Entry> {
        let chunk = self.chunks.get(folio.index() / CHUNK_ENTRIES)?.get()?;
        Some(&chunk[folio.index() % CHUNK_ENTRIES])
    }

    fn entry(&self, folio: FolioId) -> &Entry {
        self.find(folio).unwrap_or_else(|| panic!("{folio:?} has no entry: it was never mapped"))
    }
}

impl fmt::Debug for FolioTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolioTable").field("nr_folios", &self.nr_folios).field("bytes", &self.bytes()).finish()
    }
}

/// A folio's entry, locked. Dropping it unlocks, and wakes who waits.
#[must_use = "dropping it unlocks the entry"]
pub struct Locked<'t> {
    entry: &'t Entry,
    folio: FolioId,
    park: &'t dyn Park,
}

impl Locked<'_> {
    /// The folio.
    pub fn folio(&self) -> FolioId {
        self.folio
    }

    /// Where its content is.
    pub fn state(&self) -> State {
        // Only the holder of the lock writes either, so relaxed loads give what was stored last.
        State::unpack(self.entry.word.load(Ordering::Relaxed), self.entry.payload.load(Ordering::Relaxed))
    }

    /// Says where its content is from now on. Visible to peeks at once.
    pub fn set(&mut self, state: State) {
        let (tag, payload) = state.pack();
        let before = self.entry.word.fetch_add(VERSION_ONE, Ordering::Relaxed);
        debug_assert!(before & LOCKED != 0 && before & VERSION_ONE == 0);
        // Release: a peek that sees the new payload also sees the odd version before it.
        self.entry.payload.store(payload, Ordering::Release);
        // A loop, because others set the waiters bit at any time.
        let mut word = self.entry.word.load(Ordering::Relaxed);
        loop {
            let next = ((word & !STATE_MASK) | tag).wrapping_add(VERSION_ONE);
            match self.entry.word.compare_exchange_weak(word, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// It may not be reclaimed.
    pub fn pinned(&self) -> bool {
        self.flag(PINNED)
    }

    /// Says whether it may not be reclaimed.
    pub fn set_pinned(&mut self, on: bool) {
        self.set_flag(PINNED, on);
    }

    /// It is the first folio of a readahead window.
    pub fn marker(&self) -> bool {
        self.flag(MARKER)
    }

    /// Says whether it is the first folio of a readahead window.
    pub fn set_marker(&mut self, on: bool) {
        self.set_flag(MARKER, on);
    }

    /// It left RAM because a stream had passed it.
    pub fn dropped_behind(&self) -> bool {
        self.flag(DROPPED_BEHIND)
    }

    /// Says whether it left RAM because a stream had passed it.
    pub fn set_dropped_behind(&mut self, on: bool) {
        self.set_flag(DROPPED_BEHIND, on);
    }

    /// Lays the lock down without unlocking, for I/O in flight that outlives this stack frame. Take it up again by
    /// [`FolioTable::locked_from_raw`], on any thread; until then everybody else waits.
    pub fn into_raw(self) -> FolioId {
        let folio = self.folio;
        // Release: whoever takes the lock up sees what this thread did under it.
        self.entry.word.fetch_or(LOCKED, Ordering::Release);
        std::mem::forget(self);
        folio
    }

    fn flag(&self, flag: u32) -> bool {
        self.entry.word.load(Ordering::Relaxed) & flag != 0
    }

    fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.entry.word.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.entry.word.fetch_and(!flag, Ordering::Relaxed);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.entry.unlock(self.park);
    }
}

impl fmt::Debug for Locked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locked").field("folio", &self.folio).field("state", &self.state()).finish()
    }
}
