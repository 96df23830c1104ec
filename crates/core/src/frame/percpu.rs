//! Per-CPU lists of free frames: most takes and gives of single pages and of 64 KiB do not lock the zone.
//!
//! Each CPU has one list per class (order). An empty list is refilled with a batch from the buddy under one lock of the
//! zone, from pageblocks that are divided already; a list of two batches gives the older one back. All lists together
//! hold at most 1/256 of the limit, and nothing in a small zone. A thread that finds too few free frames drains the
//! lists. Invariants:
//! - the buddy sees a listed frame as held, without owner, so it is neither isolated nor merged;
//! - a frame is listed exactly when its mark in [`Marks`] says so. The mark detects a frame given twice, and tells
//!   whether a frame can be given without the zone's lock. Only the holder of the frame, or of its list's lock, changes
//!   it;
//! - frames are listed only where the limit and compaction (`Zone::pause_cpus`) permit it.
//!
//! **Locking.** One mutex per CPU, taken before the zone's. Only `Zone::verify` holds several, locked by rising
//! number. A frame moves between a list and the buddy with both locks held.

use super::buddy::{Memory, Taken};
use super::frames::Frames;
use super::lists::{FrameState, NONE};
use crate::id::FrameId;
use crate::order::{Order, PIECE};
use crate::packed::Packed;
use crate::sync::{AtomicU32, Mark, Mutex, OnceLock, Ordering};

/// The listed orders, and their largest batches.
pub(super) const CLASSES: [(Order, usize); 2] = [(Order::PAGE, 16), (PIECE, 4)];

/// Runs in the longest list: two batches.
pub(super) const LONGEST: usize = 32;

const _: () = assert!(2 * CLASSES[0].1 <= LONGEST && 2 * CLASSES[1].1 <= LONGEST);

/// The lists of all CPUs may hold at most 1/`SHARE` of the limit.
pub(super) const SHARE: usize = 256;

/// Batches smaller than this are not worth a list.
pub(super) const LEAST_BATCH: usize = 4;

/// A batch is at most 1/`FREE_SHARE` of the free frames, divided by the number of CPUs.
pub(super) const FREE_SHARE: usize = 8;

pub(super) fn class_of(order: Order) -> Option<usize> {
    CLASSES.iter().position(|&(listed, _)| listed == order)
}

/// Unknown here: ask the zone.
pub(super) const ASK: u8 = 0;
/// On a CPU's list.
pub(super) const LISTED: u8 = 1;
/// Handed out on a CPU, without owner since. The mark is `LOOSE` plus the class.
pub(super) const LOOSE: u8 = 2;

/// Frames whose marks are allocated at once: those of 128 MiB.
pub(super) const CHUNK: usize = 1 << 15;

/// One mark per frame. Marks are relaxed: what hands a frame to another thread orders it.
///
/// They are allocated when the limit is set, for as many frames as it permits. That is enough: a zone reuses pageblocks
/// that it gave up before it starts a new one, so it never uses a pageblock beyond the largest limit it had.
pub(super) struct Marks {
    first: u32,
    chunks: Box<[OnceLock<Box<[Mark]>>]>,
}

impl Marks {
    pub(super) fn new(first: u32, nr_frames: usize) -> Marks {
        Marks { first, chunks: (0..nr_frames.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect() }
    }

    pub(super) fn first(&self) -> u32 {
        self.first
    }

    pub(super) fn ensure(&self, nr_frames: usize) {
        for chunk in self.chunks.iter().take(nr_frames.div_ceil(CHUNK)) {
            chunk.get_or_init(|| (0..CHUNK).map(|_| Mark::new(ASK)).collect());
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.chunks) + self.chunks.iter().filter(|chunk| chunk.get().is_some()).count() * CHUNK
    }

    pub(super) fn get(&self, frame: u32) -> Option<&Mark> {
        let frame = (frame - self.first) as usize;
        self.chunks.get(frame / CHUNK)?.get().map(|chunk| &chunk[frame % CHUNK])
    }

    pub(super) fn of(&self, frame: u32) -> u8 {
        self.get(frame).map_or(ASK, |mark| mark.load(Ordering::Relaxed))
    }

    pub(super) fn is_listed(&self, frame: FrameId) -> bool {
        self.of(frame.get()) == LISTED
    }

    pub(super) fn change(&self, frame: u32, from: u8, to: u8) {
        let was = self.get(frame).expect("frames in use have marks").swap(to, Ordering::Relaxed);
        assert_eq!(was, from, "frame {frame} is not taken, or not listed: its mark is wrong");
    }

    /// Clears the mark, because only the zone knows the frame's state from now on. Panics if the frame is on a CPU's
    /// list.
    #[track_caller]
    pub(super) fn claim(&self, frame: FrameId) {
        let Some(mark) = self.get(frame.get()) else { return };
        let was = mark.load(Ordering::Relaxed);
        assert!(was != LISTED, "{frame:?} is in a CPU's list, not taken");
        if was != ASK {
            mark.store(ASK, Ordering::Relaxed);
        }
    }
}

/// Runs of one order, the most recent last.
pub(super) struct Listed {
    pub(super) heads: [u32; LONGEST],
    pub(super) len: usize,
    /// Runs moved at once.
    pub(super) batch: usize,
}

impl Listed {
    const EMPTY: Listed = Listed { heads: [NONE; LONGEST], len: 0, batch: 0 };

    pub(super) fn push(&mut self, head: u32) {
        assert!(self.len < 2 * self.batch, "a list holds two batches");
        self.heads[self.len] = head;
        self.len += 1;
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.heads[self.len])
    }

    pub(super) fn all(&self) -> &[u32] {
        &self.heads[..self.len]
    }
}

/// What a CPU's lock guards.
pub(super) struct Lists {
    pub(super) classes: [Listed; CLASSES.len()],
    /// Callers of `Zone::pause_cpus` that want the lists empty.
    pub(super) nr_pauses: u32,
}

impl Lists {
    pub(super) fn nr_frames(&self) -> usize {
        self.classes.iter().zip(CLASSES).map(|(listed, (order, _))| listed.len * order.nr_pages()).sum()
    }

    pub(super) fn batch(&self, class: usize) -> usize {
        if self.nr_pauses > 0 { 0 } else { self.classes[class].batch }
    }
}

/// A CPU's lists, aligned to avoid false sharing.
#[repr(align(128))]
pub(super) struct Cpu {
    pub(super) lists: Mutex<Lists>,
    /// Frames on the lists. Written under their lock, read without it.
    nr_frames: AtomicU32,
}

impl Cpu {
    pub(super) fn new() -> Cpu {
        let classes = [Listed::EMPTY; CLASSES.len()];
        Cpu { lists: Mutex::new(Lists { classes, nr_pauses: 0 }), nr_frames: AtomicU32::new(0) }
    }

    pub(super) fn note(&self, lists: &Lists) {
        self.nr_frames.store(lists.nr_frames() as u32, Ordering::Relaxed);
    }

    pub(super) fn nr_frames(&self) -> usize {
        self.nr_frames.load(Ordering::Relaxed) as usize
    }

    pub(super) fn take(&self, lists: &mut Lists, class: usize, marks: &Marks) -> Option<Taken> {
        let head = lists.classes[class].pop()?;
        marks.change(head, LISTED, LOOSE + class as u8);
        self.note(lists);
        Some(Taken { frame: FrameId::new(head), order: CLASSES[class].0, memory: Memory::Small })
    }

    pub(super) fn give(&self, lists: &mut Lists, class: usize, head: u32, marks: &Marks, mark: u8) {
        marks.change(head, mark, LISTED);
        lists.classes[class].push(head);
        self.note(lists);
    }

    /// Gives the oldest `nr` runs of a list back to the buddy.
    pub(super) fn shorten(&self, lists: &mut Lists, class: usize, nr: usize, frames: &mut Frames, marks: &Marks) {
        let listed = &mut lists.classes[class];
        for &head in &listed.heads[..nr] {
            marks.change(head, LISTED, ASK);
            let record = frames.records[head];
            let held = (record.place, record.order, record.owner) == (FrameState::Held, CLASSES[class].0, Packed::NONE);
            assert!(held, "frame {head} is in a CPU's list, and {:?}", record.place);
            frames.buddy.give(&mut frames.records, head);
        }
        listed.heads.copy_within(nr..listed.len, 0);
        listed.len -= nr;
        self.note(lists);
    }

    pub(super) fn drain(&self, lists: &mut Lists, frames: &mut Frames, marks: &Marks) {
        for class in 0..CLASSES.len() {
            let len = lists.classes[class].len;
            self.shorten(lists, class, len, frames, marks);
        }
    }
}
