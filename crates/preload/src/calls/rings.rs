//! The rings of io_uring that the program has, and the memory that their requests name, which the kernel uses after
//! the call. `ring_calls` has the calls.
//!
//! In direct mode the memory of a request is held in RAM from its submission until its completion is seen. In both
//! modes sends that would refer to pages of the program become plain ones, and rings whose submissions are not seen are
//! refused. Rings are known by their descriptors, and by the mappings that the program makes of them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::calls::ring_requests::{self, Entry};
use crate::ground::lock::{Lock, Locked};
use crate::ground::{guard, state, waiting};
use crate::memory::cover;
use crate::memory::held::Held;
use folioswap::BLOCK_BYTES;

/// The kernel's `io_uring_params`, as words of 4 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Params {
    nr_entries: u32,
    nr_completions: u32,
    flags: u32,
    more: [u32; 7],
    submission: Offsets,
    completion: Offsets,
}

/// Offsets of the fields of a ring in its mapping: head, tail, mask, number of entries; then those of each kind.
#[repr(C)]
#[derive(Clone, Copy)]
struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    nr_entries: u32,
    rest: [u32; 6],
}

const _: () = assert!(size_of::<Params>() == 120);

impl Params {
    /// The error for what cannot be covered: a kernel thread that takes requests on its own, rings in the program's own
    /// memory, and entries of two sizes; in direct mode completions of two sizes, too.
    pub fn refusal(&self) -> Option<c_int> {
        if self.flags & SETUP_SQPOLL != 0 {
            return Some(libc::EPERM);
        }
        let completions = if state::direct() { SETUP_CQE_MIXED } else { 0 };
        (self.flags & (SETUP_NO_MMAP | SETUP_SQE_MIXED | completions) != 0).then_some(libc::EINVAL)
    }
}

const SETUP_SQPOLL: u32 = 1 << 1;
const SETUP_SQE128: u32 = 1 << 10;
const SETUP_CQE32: u32 = 1 << 11;
const SETUP_NO_MMAP: u32 = 1 << 14;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// Completions and entries of two sizes.
const SETUP_CQE_MIXED: u32 = 1 << 18;
const SETUP_SQE_MIXED: u32 = 1 << 19;
const OFFSET_SUBMISSION: i64 = 0;
const OFFSET_COMPLETION: i64 = 0x800_0000;
const OFFSET_ENTRIES: i64 = 0x1000_0000;
/// A completion that others of the same request follow.
const COMPLETION_MORE: u32 = 1 << 1;
/// Ranges of quiet requests that a ring keeps held, at most.
const MOST_QUIET: usize = 256;
/// Requests of one `user_data` that have not completed, and their memory.
#[derive(Default)]
struct Pending {
    nr_requests: usize,
    held: Vec<Hold>,
}

/// A hold, and the blocks that it is counted for.
pub struct Hold {
    _held: Held,
    blocks: Range<usize>,
}

/// Holds of provided buffers that end.
type Over = Vec<Arc<Vec<Hold>>>;

pub struct Ring {
    fds: Vec<c_int>,
    params: Params,
    /// Where the program has mapped the submission ring, the completion ring, and the entries. Zero: nowhere.
    mapped: [usize; 3],
    /// The completions before this one were seen.
    seen: u32,
    /// The entries before this one were covered.
    covered: u32,
    pending: HashMap<u64, Pending>,
    /// Buffers from which the kernel chooses, by their group and number: all that one request has provided. They are
    /// held until others have their numbers, because nothing tells that they are used up.
    provided: HashMap<(u16, u16), Arc<Vec<Hold>>>,
    /// The memory of the newest requests that tell nothing of their end.
    quiet: VecDeque<Hold>,
}

// SAFETY: the addresses are of shared mappings, which any thread may read.
unsafe impl Send for Ring {}

static RINGS: Lock<Vec<Ring>> = Lock::new(Vec::new());
static NR_RINGS: AtomicUsize = AtomicUsize::new(0);

/// How many holds each block has.
static BLOCKS: Lock<BTreeMap<usize, usize>> = Lock::new(BTreeMap::new());

/// The rings and the blocks, locked.
pub type Rings = (Locked<Vec<Ring>>, Locked<BTreeMap<usize, usize>>);

pub fn lock() -> Rings {
    (rings(), blocks())
}

fn rings() -> Locked<Vec<Ring>> {
    RINGS.lock()
}

fn blocks() -> Locked<BTreeMap<usize, usize>> {
    BLOCKS.lock()
}

impl Hold {
    /// `None`: requests would hold more than half of the budget.
    pub fn new(range: &Range<usize>) -> Option<Hold> {
        let most = state::space()?.memory() as usize / 2 / BLOCK_BYTES;
        let of = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        if of.len() > most {
            return None;
        }
        {
            let _guard = guard::enter();
            let mut counts = blocks();
            let nr_new = of.clone().filter(|block| !counts.contains_key(block)).count();
            if counts.len() + nr_new > most {
                return None;
            }
            of.clone().for_each(|block| *counts.entry(block).or_insert(0) += 1);
        }
        Some(Hold { _held: Held::new(range.start, range.len()), blocks: of })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _guard = guard::enter();
        let mut counts = blocks();
        for block in self.blocks.clone() {
            if let Some(count) = counts.get_mut(&block) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&block);
                }
            }
        }
    }
}

impl Ring {
    /// A word of one of the program's mappings.
    fn word(&self, mapping: usize, offset: u32) -> &AtomicU32 {
        // SAFETY: the mapping has the field at this offset, as the kernel has said, and the program has not unmapped it
        // since.
        unsafe { &*((self.mapped[mapping] + offset as usize) as *const AtomicU32) }
    }

    /// The entries that the kernel will take next, without those that it left the last time.
    fn entries(&mut self, most: u32) -> Vec<*mut Entry> {
        if self.mapped[0] == 0 || self.mapped[2] == 0 {
            return Vec::new();
        }
        let at = &self.params.submission;
        let (head, tail) =
            (self.word(0, at.head).load(Ordering::Acquire), self.word(0, at.tail).load(Ordering::Acquire));
        let mask = self.word(0, at.mask).load(Ordering::Relaxed);
        let size = if self.params.flags & SETUP_SQE128 != 0 { 128 } else { 64 };
        let nr_next = tail.wrapping_sub(head).min(most).min(mask + 1);
        let nr_covered = Some(self.covered.wrapping_sub(head)).filter(|&nr| nr <= nr_next).unwrap_or(0);
        self.covered = head.wrapping_add(nr_next);
        (nr_covered..nr_next)
            .map(|index| {
                let place = head.wrapping_add(index) & mask;
                // The array of indices is the third of the other offsets.
                let is_direct = self.params.flags & SETUP_NO_SQARRAY != 0;
                let entry =
                    if is_direct { place } else { self.word(0, at.rest[2] + 4 * place).load(Ordering::Relaxed) };
                (self.mapped[2] + (entry & mask) as usize * size) as *mut Entry
            })
            .collect()
    }

    /// Notes what a request has held. Returns what is held no more. In a chain, a quiet request has ended once the
    /// completion of the next one that is not quiet is there: `of_chain` has their holds meanwhile. `quiet` gets those
    /// of requests of whose end nothing tells.
    fn note_request(
        &mut self,
        entry: &Entry,
        mut holds: Vec<Hold>,
        of_chain: &mut Vec<Hold>,
        quiet: &mut Vec<Hold>,
    ) -> Over {
        let mut over = Over::default();
        if let Some(names) = entry.provided() {
            let all = Arc::new(std::mem::take(&mut holds));
            over.extend(names.filter_map(|name| self.provided.insert(name, Arc::clone(&all))));
        }
        if entry.is_quiet() {
            of_chain.extend(holds);
        } else {
            // Those without memory count too: another of the same `user_data` may have some.
            let pending = self.pending.entry(entry.user_data).or_default();
            pending.nr_requests += 1;
            pending.held.extend(holds);
            pending.held.append(of_chain);
        }
        if !entry.is_linked() {
            quiet.append(of_chain);
        }
        over
    }

    /// Takes out what completed requests have held.
    fn completed(&mut self) -> Vec<Hold> {
        let mut over = Vec::new();
        if self.mapped[1] == 0 {
            return over;
        }
        let at = &self.params.completion;
        let (tail, mask) =
            (self.word(1, at.tail).load(Ordering::Acquire), self.word(1, at.mask).load(Ordering::Relaxed));
        let size = if self.params.flags & SETUP_CQE32 != 0 { 32 } else { 16 };
        if tail.wrapping_sub(self.seen) > mask + 1 {
            self.seen = tail; // some are overwritten: their memory stays held
        }
        while self.seen != tail {
            // Completions are the second of the other offsets: 8 bytes of `user_data`, the result, flags.
            let offset = at.rest[1] as usize + (self.seen & mask) as usize * size;
            let completion = (self.mapped[1] + offset) as *const u64;
            // SAFETY: an entry of the ring that the kernel has filled in. It is not aligned to more than 8 bytes.
            let (user_data, flags) = unsafe { (*completion, (*completion.add(1) >> 32) as u32) };
            self.seen = self.seen.wrapping_add(1);
            if flags & COMPLETION_MORE == 0
                && let Some(pending) = self.pending.get_mut(&user_data)
            {
                pending.nr_requests = pending.nr_requests.saturating_sub(1);
                if pending.nr_requests == 0 {
                    over.extend(self.pending.remove(&user_data).into_iter().flat_map(|pending| pending.held));
                }
            }
        }
        over
    }
}

/// Whether a descriptor is a ring's.
pub fn is_known(fd: c_int) -> bool {
    if NR_RINGS.load(Ordering::Relaxed) == 0 || guard::inside() {
        return false;
    }
    let _guard = guard::enter();
    rings().iter().any(|ring| ring.fds.contains(&fd))
}

/// Whether there are rings, and this thread may change their descriptors: a child of vfork has its own, and this
/// process's memory.
fn concerns_rings() -> bool {
    NR_RINGS.load(Ordering::Relaxed) > 0 && !guard::inside() && waiting::is_own_process()
}

pub fn note_made(fd: c_int, params: Params) {
    forget(|known| known == fd);
    if params.flags & SETUP_NO_MMAP == 0 && waiting::is_own_process() {
        let _guard = guard::enter();
        let mut all = rings();
        let (fds, quiet) = (vec![fd], VecDeque::new());
        let (pending, provided) = (HashMap::new(), HashMap::new());
        all.push(Ring { fds, params, mapped: [0; 3], seen: 0, covered: 0, pending, provided, quiet });
        NR_RINGS.store(all.len(), Ordering::Relaxed);
    }
}

/// Forgets descriptors that are closed, and rings that have no others.
pub fn forget(fds: impl Fn(c_int) -> bool) {
    if !concerns_rings() {
        return;
    }
    let _guard = guard::enter();
    let mut all = rings();
    let mut gone = Vec::new();
    all.iter_mut().for_each(|ring| ring.fds.retain(|&fd| !fds(fd)));
    while let Some(index) = all.iter().position(|ring| ring.fds.is_empty()) {
        gone.push(all.swap_remove(index));
    }
    NR_RINGS.store(all.len(), Ordering::Relaxed);
    drop(all);
    drop(gone);
}

/// Notes a copy of a descriptor, which may be a ring's.
pub fn note_copy(fd: c_int, copy: c_int) {
    if copy < 0 || fd == copy || !concerns_rings() {
        return;
    }
    let _guard = guard::enter();
    if let Some(ring) = rings().iter_mut().find(|ring| ring.fds.contains(&fd)) {
        ring.fds.push(copy);
    }
}

/// Notes that the program has mapped part of a ring.
pub fn note_mapped(fd: c_int, offset: i64, addr: usize) {
    if NR_RINGS.load(Ordering::Relaxed) == 0 || guard::inside() {
        return;
    }
    let _guard = guard::enter();
    if let Some(ring) = rings().iter_mut().find(|ring| ring.fds.contains(&fd)) {
        match offset {
            OFFSET_SUBMISSION => {
                ring.mapped[0] = addr;
                if ring.mapped[1] == 0 {
                    ring.mapped[1] = addr; // one mapping for both, from Linux 5.4 on
                }
            }
            OFFSET_COMPLETION => ring.mapped[1] = addr,
            OFFSET_ENTRIES => ring.mapped[2] = addr,
            _ => {}
        }
    }
}

/// Notes that the program no longer has mapped what lies in a range. Its rings may go on.
pub fn note_unmapped(range: &Range<usize>) {
    if NR_RINGS.load(Ordering::Relaxed) == 0 || guard::inside() {
        return;
    }
    let _guard = guard::enter();
    let mut rings = rings();
    let places = rings.iter_mut().flat_map(|ring| &mut ring.mapped);
    places.filter(|at| range.contains(&**at)).for_each(|at| *at = 0);
}

/// Holds what a request names. What would be too much is brought in.
fn hold(ranges: Vec<Range<usize>>) -> Vec<Hold> {
    static SAID: AtomicBool = AtomicBool::new(false);
    let mut holds = {
        let _guard = guard::enter();
        Vec::with_capacity(ranges.len())
    };
    for range in ranges {
        match Hold::new(&range).or_else(|| end_quiet().then(|| Hold::new(&range)).flatten()) {
            Some(one) => holds.push(one),
            None => {
                if !SAID.swap(true, Ordering::Relaxed) {
                    state::say(
                        "requests of io_uring name more memory than half of the budget; some may fail with EFAULT: use --faults monitor",
                    );
                }
                cover::touch(range.start as *const u8, range.len());
            }
        }
    }
    holds
}

/// Ends the holds of quiet requests. Whether there was one.
fn end_quiet() -> bool {
    let _guard = guard::enter();
    let over: Vec<Hold> = rings().iter_mut().flat_map(|ring| ring.quiet.drain(..)).collect();
    !over.is_empty()
}

/// Ends the holds of requests whose completion is there.
pub fn harvest(fd: c_int) {
    let over = {
        let _guard = guard::enter();
        rings().iter_mut().find(|ring| ring.fds.contains(&fd)).map(Ring::completed)
    };
    let _guard = guard::enter();
    drop(over);
}

/// Covers the requests that the kernel is about to take. Returns what is to be held at least until it has taken them.
///
/// # Safety
/// The ring is the program's, and it submits requests now.
pub unsafe fn before_submission(fd: c_int, count: u32) -> Vec<Hold> {
    let entries = {
        let _guard = guard::enter();
        rings().iter_mut().find(|ring| ring.fds.contains(&fd)).map(|ring| ring.entries(count)).unwrap_or_default()
    };
    let mut is_chained = false;
    for &entry in &entries {
        // SAFETY: the program's entry, which the kernel has not taken. The program changes it no more.
        unsafe {
            ring_requests::advise(entry, is_chained);
            ring_requests::send_plainly(entry);
            is_chained = (*entry).is_linked();
        }
    }
    let (mut of_chain, mut quiet) = (Vec::new(), Vec::new());
    if !state::direct() {
        return quiet;
    }
    for entry in entries {
        // SAFETY: as above.
        let entry = unsafe { &*entry };
        let holds = hold(ring_requests::named(entry));
        let _guard = guard::enter();
        let ring_of = |ring: &&mut Ring| ring.fds.contains(&fd);
        let note = |ring: &mut Ring| ring.note_request(entry, holds, &mut of_chain, &mut quiet);
        let over = rings().iter_mut().find(ring_of).map(note);
        drop(over); // without the lock
    }
    let _guard = guard::enter();
    quiet.append(&mut of_chain);
    quiet
}

/// Keeps the memory of the newest quiet requests held.
pub fn keep_quiet(fd: c_int, holds: Vec<Hold>) {
    if holds.is_empty() {
        return;
    }
    let _guard = guard::enter();
    let keep = |ring: &mut Ring| {
        ring.quiet.extend(holds);
        let nr_over = ring.quiet.len().saturating_sub(MOST_QUIET);
        ring.quiet.drain(..nr_over).collect::<Vec<Hold>>()
    };
    let over = rings().iter_mut().find(|ring| ring.fds.contains(&fd)).map(keep);
    drop(over); // without the lock
}
