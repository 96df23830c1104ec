//! What this library knows of the program's mappings beside what the engine manages.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use folioswap::{BLOCK_BYTES, PAGE_SIZE, RangeSet};

use crate::ground::heap::ORDINARY as ORDINARY_HEAP;
use crate::ground::lock::{Lock, Locked};
use crate::ground::state::{self, Outcome};
use crate::memory::open_pages;
use crate::memory::pages::PLAIN;

/// Private anonymous memory that was mapped without access, and becomes managed once it is readable and writable.
static RESERVED: Lock<RangeSet> = Lock::new(RangeSet::new());

/// Memory that children get zeroed (`MADV_WIPEONFORK`), managed or not; and managed memory that they do not get
/// (`MADV_DONTFORK`).
static WIPED: Lock<RangeSet> = Lock::new(RangeSet::new());
static NOT_FORKED: Lock<RangeSet> = Lock::new(RangeSet::new());

/// Memory with guards (`MADV_GUARD_INSTALL`) that was managed before, and will be again without them.
static GUARDED: Lock<RangeSet> = Lock::new(RangeSet::new());

/// Memory that is not managed and that the program has locked. The kernel locks what it grows by, too.
static LOCKED: Lock<RangeSet> = Lock::new(RangeSet::new());

/// Memory with a protection key. What a thread may do with it changes without a call.
static KEYED: Lock<RangeSet> = Lock::new(RangeSet::new());

/// Private anonymous memory that is not managed: there is room for it, or it fits into the ordinary share of the
/// budget. How much it is, too, for those who must not wait.
static ORDINARY: Lock<RangeSet> = Lock::new(RangeSet::new());
static ORDINARY_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The ordinary share of the budget.
static SHARE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Whether the program may have `/proc/self/mem` open, by which it writes to memory of any protection.
static HAS_MEMORY_FILE: AtomicBool = AtomicBool::new(false);

/// Notes that the program may have opened that file.
pub fn note_memory_file() {
    HAS_MEMORY_FILE.store(true, Ordering::Relaxed);
}

/// Whether memory without access may have content.
pub fn has_memory_file() -> bool {
    HAS_MEMORY_FILE.load(Ordering::Relaxed)
}

/// Whether the program has a userfaultfd of its own. Then calls may wait for a thread of the program's.
static HAS_USERFAULTFD: AtomicBool = AtomicBool::new(false);

/// Notes that it has one.
pub fn note_userfaultfd() {
    HAS_USERFAULTFD.store(true, Ordering::Relaxed);
}

pub fn has_userfaultfd() -> bool {
    HAS_USERFAULTFD.load(Ordering::Relaxed)
}

/// Held from when memory is taken out of a set until it is managed. Else another thread that finds it neither in the
/// set nor managed could write to it before its content is dropped. Taken before the engine's locks.
static BEGINNING: Lock<()> = Lock::new(());

pub fn beginning() -> Locked<()> {
    BEGINNING.lock()
}

fn lock(set: &'static Lock<RangeSet>) -> Locked<RangeSet> {
    set.lock()
}

pub fn reserved() -> Locked<RangeSet> {
    lock(&RESERVED)
}

/// Takes what is reserved in the blocks around a part that becomes managed, to be managed too: else the kernel could
/// not join their mappings again when they have one protection, and a program has only so many. Nothing where another
/// thread may do something with it meanwhile ([`crate::map::adopt::hold`]).
pub fn take_neighbours(part: &Range<usize>) -> Vec<Range<usize>> {
    let blocks = part.start / BLOCK_BYTES * BLOCK_BYTES..part.end.next_multiple_of(BLOCK_BYTES);
    if has_userfaultfd() || locked().overlaps(&blocks) {
        return Vec::new();
    }
    reserved().remove(blocks)
}

pub fn wiped() -> Locked<RangeSet> {
    lock(&WIPED)
}

pub fn not_forked() -> Locked<RangeSet> {
    lock(&NOT_FORKED)
}

pub fn locked() -> Locked<RangeSet> {
    lock(&LOCKED)
}

pub fn guarded() -> Locked<RangeSet> {
    lock(&GUARDED)
}

pub fn keyed() -> Locked<RangeSet> {
    lock(&KEYED)
}

pub fn ordinary() -> Locked<RangeSet> {
    lock(&ORDINARY)
}

pub const NR_SETS: usize = 7;

/// All of these, locked, in the order in which they are locked everywhere.
pub fn all() -> [Locked<RangeSet>; NR_SETS] {
    [reserved(), wiped(), not_forked(), locked(), guarded(), keyed(), ordinary()]
}

/// How much private anonymous memory is not managed.
pub fn ordinary_bytes() -> usize {
    ORDINARY_BYTES.load(Ordering::Relaxed)
}

/// Sets the program's ordinary share of the budget.
pub fn set_share(bytes: usize) {
    SHARE_BYTES.store(bytes, Ordering::Relaxed);
}

/// How much of the program's ordinary share has been used, if `in_heap` bytes of its heap are in RAM: what is free
/// there is in the share, too.
pub fn share_with(in_heap: usize) -> usize {
    (in_heap + ordinary_bytes()).min(SHARE_BYTES.load(Ordering::Relaxed))
}

/// Whether so much is left of the program's ordinary share.
pub fn has_share(bytes: usize) -> bool {
    let used = ORDINARY_HEAP.used() + ordinary_bytes();
    used.saturating_add(bytes) <= SHARE_BYTES.load(Ordering::Relaxed)
}

pub fn note_ordinary(range: Range<usize>) {
    let mut set = ordinary();
    set.add(range);
    ORDINARY_BYTES.store(set.total(), Ordering::Relaxed);
}

pub fn take_ordinary(range: Range<usize>) {
    let mut set = ordinary();
    set.remove(range);
    ORDINARY_BYTES.store(set.total(), Ordering::Relaxed);
}

/// Notes how much is ordinary, after a change of these sets.
fn note_total([.., ordinary]: &[Locked<RangeSet>; NR_SETS]) {
    ORDINARY_BYTES.store(ordinary.total(), Ordering::Relaxed);
}

/// Changes all sets that are not empty.
fn change_all(mut change: impl FnMut(&mut RangeSet)) {
    let mut all = all();
    all.iter_mut().filter(|set| !set.is_empty()).for_each(|set| change(set));
    note_total(&all);
}

/// Notes that children do not get a range: what is managed, or may be later. The kernel keeps the rest from them, which
/// may be unmapped unseen.
pub fn note_not_forked(range: &Range<usize>, is_managed: bool) {
    let may_be_later = || [reserved(), guarded(), ordinary()].map(|set| set.parts(range)).concat();
    let parts = if is_managed { vec![range.clone()] } else { may_be_later() };
    let mut set = not_forked();
    parts.into_iter().for_each(|part| set.add(part));
}

/// Whether children get a part of managed memory only. The kernel would have more than one mapping there.
pub fn is_divided(managed: &Range<usize>) -> bool {
    let is_part = |parts: Vec<Range<usize>>| !parts.is_empty() && parts != [managed.clone()];
    is_part(wiped().parts(managed)) || is_part(not_forked().parts(managed))
}

/// Forgets a range that is unmapped or replaced, unless the call that does so fails.
pub fn forget_by<R: Outcome>(range: &Range<usize>, call: impl FnOnce() -> R) -> R {
    open_pages::note_closed(range);
    let leaving = leave(range);
    let result = call();
    if result.has_failed() {
        leaving.stay();
    }
    result
}

/// Forgets a range that is unmapped or replaced.
pub fn forget(range: &Range<usize>) {
    open_pages::note_closed(range); // until it is known what comes there
    change_all(|set| _ = set.remove(range.clone()));
}

/// Notes that a new range is as open as another.
fn note_alike(range: &Range<usize>, new: &Range<usize>) {
    match !range.is_empty() && open_pages::has(range) {
        true => open_pages::note_open(new),
        false => open_pages::note_closed(new),
    }
}

/// What is known of a mapping that is about to move: as soon as the kernel has moved it, another thread may map
/// something at its old place, of which other things are known.
pub struct Leaving([Vec<Range<usize>>; NR_SETS]);

/// Takes what is known of a mapping that the kernel is about to move.
pub fn leave(old: &Range<usize>) -> Leaving {
    let mut all = all();
    let take = |set: &mut Locked<RangeSet>| match set.is_empty() || old.is_empty() {
        true => Vec::new(),
        false => set.remove(old.clone()),
    };
    let leaving = Leaving(all.each_mut().map(take));
    note_total(&all);
    leaving
}

impl Leaving {
    /// Puts it back: the kernel has not moved the mapping.
    pub fn stay(self) {
        let mut all = all();
        all.iter_mut().zip(self.0).for_each(|(set, parts)| parts.into_iter().for_each(|part| set.add(part)));
        note_total(&all);
    }

    fn is_ordinary(&self, page: &Range<usize>) -> bool {
        let [.., ordinary] = &self.0;
        ordinary.iter().any(|part| part.start < page.end && page.start < part.end)
    }
}

/// Notes that a mapping, or a part of one, is at another place, or has another length: what is known of it moves along,
/// and what has grown is as the last page, but without guards. `stays`: the old mapping is still there, without guards
/// too.
pub fn moved(leaving: &Leaving, old: &Range<usize>, new: &Range<usize>, stays: bool) {
    let last = old.end.saturating_sub(PAGE_SIZE).max(old.start)..old.end;
    // What shared memory grows by has nothing behind it.
    let is_private = state::overlaps(last.start, last.len()) || leaving.is_ordinary(&last);
    match old.start == new.start {
        true if new.end > old.end && is_private => note_alike(&last, &(old.end..new.end)),
        true => open_pages::note_closed(&(new.end.min(old.end)..new.end.max(old.end))),
        false => {
            let end = if is_private { new.end } else { new.start + old.len().min(new.len()) };
            note_alike(old, &(new.start..end));
            open_pages::note_closed(&(end..new.end));
            open_pages::note_closed(old);
        }
    }
    let mut all = all();
    for (set, parts) in all.iter_mut().zip(&leaving.0) {
        set.remove(new.clone());
        let parts = parts.iter().map(|part| part.start.max(old.start)..part.end.min(old.end));
        for part in parts.filter(|part| !part.is_empty()) {
            let at = |addr: usize| (addr - old.start + new.start).min(new.end);
            set.add(at(part.start)..if part.end == old.end { new.end } else { at(part.end) });
            if stays {
                set.add(part);
            }
        }
    }
    note_total(&all);
    let [.., guarded, _, _] = &mut all;
    guarded.remove(new.end.min(new.start + old.len())..new.end);
    if stays {
        guarded.remove(old.clone());
    }
}

/// Notes which of the mappings that are there are readable and writable.
pub fn note_all_open() {
    let all = folioswap_sys::maps::all().unwrap_or_else(|error| {
        state::say(&format!("the list of mappings cannot be read: {error}"));
        Vec::new()
    });
    // A mapped file may be shorter than its mapping.
    let plain = all.iter().filter(|(_, protection, is_file)| protection & PLAIN == PLAIN && !is_file);
    plain.for_each(|(range, ..)| open_pages::add(range));
    keyed().iter().for_each(|range| open_pages::remove(&range));
}
