//! Limits of addresses and of data (RLIMIT_AS, RLIMIT_DATA) that the program sets itself. The engine's memory counts
//! in them too. So the kernel gets the program's limit and the engine's share, and the program reads its own.
//!
//! A limit from before the program began is not changed: the engine reserves what it permits. Nor is a limit of
//! addresses above all that is mapped: the program has taken the size that the kernel says, with the engine's share.

use std::ffi::c_long;
use std::sync::atomic::{AtomicU64, Ordering};

use folioswap_sys::{memory, own_calls, resident, vforked};
use libc::RLIM64_INFINITY;

use crate::calls::rights;
use crate::faults::{only_thread, ours};
use crate::ground::real::own_result;
use crate::ground::state::{self, Phase};
use crate::ground::{guard, heap, waiting};
use crate::memory::access;
use crate::memory::refused;

/// Room for what the engine makes later.
const SLACK_BYTES: u64 = 32 << 20;

/// Two limits of one kind, the soft one and the hard one.
type Limits = [u64; 2];

#[derive(Clone, Copy)]
struct Set {
    what: u32,
    /// The engine's share when it was first set; 0: it was not. It stays, so that the hard limit may be set again.
    share: u64,
    /// As the program set it, and as the kernel has it.
    theirs: Limits,
    kernels: Limits,
}

/// The place of one. Signal handlers and vfork children come here too, so there is no lock.
struct Place {
    what: u32,
    words: [AtomicU64; 5],
}

static PLACES: [Place; 2] = [Place::new(libc::RLIMIT_AS), Place::new(libc::RLIMIT_DATA)];

impl Place {
    const fn new(what: u32) -> Self {
        Place { what, words: [const { AtomicU64::new(0) }; 5] }
    }

    fn get(&self) -> Set {
        let [share, soft, hard, kernels_soft, kernels_hard] =
            std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed));
        Set { what: self.what, share, theirs: [soft, hard], kernels: [kernels_soft, kernels_hard] }
    }

    fn set(&self, set: Set) {
        let words = [set.share, set.theirs[0], set.theirs[1], set.kernels[0], set.kernels[1]];
        self.words.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
    }
}

/// The call, if it is about such a limit of this process. A vfork child's own limits are passed on as they are.
///
/// # Safety
/// As the system call.
pub unsafe fn by_number(number: c_long, words: &[usize; 6]) -> Option<isize> {
    let (what, new, old) = match number {
        libc::SYS_setrlimit if words[1] != 0 => (words[0], words[1], 0),
        libc::SYS_getrlimit if words[1] != 0 => (words[0], 0, words[1]),
        libc::SYS_prlimit64 if words[0] == 0 || words[0] as u32 == std::process::id() => (words[1], words[2], words[3]),
        _ => return None,
    };
    let place = PLACES.iter().find(|place| place.what == what as u32)?;
    if guard::inside() || !waiting::is_own_process() {
        return None;
    }
    if new != 0 {
        rights::before(number, words);
        if state::phase() == Phase::Passing {
            return None; // the engine could not start
        }
    }
    const FAULT: isize = -(libc::EFAULT as isize);
    // SAFETY: the caller's limits, which the kernel would read.
    let theirs = unsafe { access::read(new as *const Limits) };
    if new != 0 && theirs.is_none() {
        return Some(FAULT);
    }
    let (result, before) = change(place, theirs);
    // SAFETY: the caller's limits, to which the kernel would write once it has set the new ones.
    let is_told = result < 0 || state::keeping_errno(|| unsafe { ours::bring(before, old as *mut Limits, 0) == 0 });
    Some(if is_told { result } else { FAULT })
}

/// Sets a limit, if one is given. Returns the kernel's result, and what the program's limit was before.
fn change(place: &Place, theirs: Option<Limits>) -> (isize, Limits) {
    let mut set = place.get();
    let kernels = heap::limits(place.what);
    let before = if set.share > 0 && kernels == set.kernels { set.theirs } else { kernels };
    let Some(theirs) = theirs else { return (0, before) };
    let is_data = place.what == libc::RLIMIT_DATA && theirs[0] <= theirs[1];
    let taken = if is_data { keep_room(theirs[0]) } else { 0 };
    set.share = if set.share == 0 { share(place.what) } else { set.share + taken };
    let missing = if has_share(place.what, theirs[0]) { 0 } else { set.share };
    refused::be_silent(place.what);
    let mut given = theirs.map(|limit| limit.saturating_add(missing));
    let mut result = ask(place.what, &given);
    if result == -(libc::EPERM as isize) && theirs[0] <= theirs[1] && theirs[1] <= before[1] {
        // A hard limit may not be raised: the share has the room that there is.
        given = given.map(|limit| limit.min(kernels[1]));
        result = ask(place.what, &given);
    }
    match result {
        0.. => place.set(Set { theirs, kernels: given, ..set }),
        _ if place.get().share > 0 => place.set(Set { share: set.share, ..place.get() }),
        _ => {}
    }
    (result, before)
}

/// Whether the program's limit has the engine's share already.
fn has_share(what: u32, limit: u64) -> bool {
    // A filter may kill who opens a file.
    let is_read = what == libc::RLIMIT_AS && !own_calls::is_used();
    is_read && resident::mapped_bytes().is_some_and(|mapped| limit >= mapped)
}

/// What of a limit of data is kept for records, and takes part of the engine's share. The program would use it up.
const RECORDS_BYTES: u64 = 8 << 20;
const PART_FOR_RECORDS: u64 = 128;
const MOST_FOR_RECORDS: u64 = 64 << 20;

/// Keeps room for records in a limit of data. Returns how much was taken.
fn keep_room(limit: u64) -> u64 {
    if limit == RLIM64_INFINITY {
        return 0;
    }
    let _guard = guard::enter();
    let before = heap::opened_bytes();
    heap::PRIVATE.open_ahead((RECORDS_BYTES + limit / PART_FOR_RECORDS).min(MOST_FOR_RECORDS) as usize);
    (heap::opened_bytes() - before) as u64
}

/// The same for the limit that the program was started with.
pub fn keep_room_at_start() {
    keep_room(heap::limits(libc::RLIMIT_DATA)[0]);
}

/// The engine's share of what counts in a limit.
fn share(what: u32) -> u64 {
    let bytes = match what {
        libc::RLIMIT_AS => memory::reserved_bytes() + heap::reserved_bytes(),
        _ => memory::writable_bytes() + heap::opened_bytes(),
    };
    bytes as u64 + SLACK_BYTES
}

fn ask(what: u32, limits: &Limits) -> isize {
    let words = [0, what as usize, &raw const *limits as usize, 0, 0, 0];
    // SAFETY: the kernel reads the local.
    unsafe { own_result(libc::SYS_prlimit64, &words) }
}

/// The limits that the program has set, where nobody has changed them since.
fn in_force() -> [Option<Set>; 2] {
    PLACES.each_ref().map(|place| {
        let set = place.get();
        (set.share > 0 && heap::limits(set.what) == set.kernels).then_some(set)
    })
}

/// While it lives, the kernel's soft limits are the program's: one that is executed inherits them. Other threads of the
/// process may need the room meanwhile; then they are left.
pub struct Inherited([Option<Set>; 2]);

pub fn inherited() -> Inherited {
    if guard::inside() {
        return Inherited([None; 2]);
    }
    let set = in_force();
    if set.iter().all(Option::is_none) || !(vforked::is_child() || only_thread::has_one_thread()) {
        return Inherited([None; 2]);
    }
    for set in set.iter().flatten() {
        ask(set.what, &[set.theirs[0], set.kernels[1]]);
    }
    Inherited(set)
}

impl Drop for Inherited {
    fn drop(&mut self) {
        for set in self.0.iter().flatten() {
            state::keeping_errno(|| ask(set.what, &set.kernels));
        }
    }
}
