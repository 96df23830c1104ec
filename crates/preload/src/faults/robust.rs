//! Robust mutexes of threads that end. The kernel walks a thread's list of them when it ends, marks each word, and
//! wakes who waits for it. It brings in no page for that, in either mode, and stops at the first that is missing. So
//! what it would do is done here, just before.
//!
//! The same for a process, as far as its list names mutexes that it shares with others.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ground::real::own;
use crate::ground::{guard, state};
use crate::memory::access::{self, Access};

/// The kernel looks at no more entries.
const MOST_ENTRIES: usize = 2048;

/// In the address of an entry: its mutex hands its holder's priority on.
const INHERITS: usize = 1;

/// The head of a thread's list, as the kernel knows it.
#[repr(C)]
struct Head {
    first: Cell<usize>,
    /// From an entry to its mutex's word.
    to_word: isize,
    /// An entry whose mutex is just being locked or unlocked.
    pending: Cell<usize>,
}

/// An entry of the list, with its lowest bit, and whether it is the pending one.
#[derive(Clone, Copy)]
struct Entry {
    tagged: usize,
    is_pending: bool,
}

impl Entry {
    fn word(self, head: &Head) -> usize {
        (self.tagged & !INHERITS).wrapping_add_signed(head.to_word)
    }
}

/// The calling thread's list, if it has entries, and is not this library's.
fn head() -> Option<&'static Head> {
    if state::space().is_none() || guard::inside() {
        return None;
    }
    let (mut at, mut len) = (0usize, 0usize);
    // SAFETY: the kernel fills in the locals.
    if unsafe { own!(libc::SYS_get_robust_list, 0, &raw mut at, &raw mut len) } != 0 || len != size_of::<Head>() {
        return None;
    }
    if at == 0 || !access::is_open(at, len, Access::Write) {
        return None;
    }
    // SAFETY: the thread's own list, which may be accessed and lives as long as it. Only this thread changes it.
    let head = unsafe { &*(at as *const Head) };
    (head.first.get() != at || head.pending.get() != 0).then_some(head)
}

/// Calls `see` with each entry. What is read comes into RAM. `see` may give the entry's mutex to others.
fn each(head: &Head, mut see: impl FnMut(Entry)) {
    let end = &raw const *head as usize;
    let pending = head.pending.get();
    let mut tagged = head.first.get();
    for _ in 0..MOST_ENTRIES {
        let at = tagged & !INHERITS;
        // SAFETY: an entry begins with the address of the next.
        let Some(next) = (at != end).then(|| unsafe { access::read(at as *const usize) }).flatten() else { break };
        if at != pending & !INHERITS {
            see(Entry { tagged, is_pending: false });
        }
        tagged = next;
    }
    if pending != 0 {
        see(Entry { tagged: pending, is_pending: true });
    }
}

/// Marks the word of a mutex whose owner is about to end, and wakes a thread that waits for it.
fn give_up(head: &Head, entry: Entry) {
    let at = entry.word(head);
    if !at.is_multiple_of(align_of::<u32>()) || !access::is_open(at, size_of::<u32>(), Access::Write) {
        return;
    }
    // SAFETY: a word of a mutex, which may be accessed. Other threads use it by atomic operations, too.
    let word = unsafe { AtomicU32::from_ptr(at as *mut u32) };
    let inherits = entry.tagged & INHERITS != 0;
    let wake = || {
        // As the kernel, for waiters in other processes, too.
        for _ in 0..MOST_TRIES {
            word.load(Ordering::Relaxed); // brings the page in
            // SAFETY: passes an address only.
            if unsafe { own!(libc::SYS_futex, at, libc::FUTEX_WAKE, 1) } >= 0 {
                break;
            }
        }
    };
    let mut now = word.load(Ordering::SeqCst);
    if entry.is_pending && !inherits && now == 0 {
        return wake(); // it was unlocked, and a waiter not yet woken
    }
    while now & libc::FUTEX_TID_MASK == guard::this_thread() {
        let marked = now & libc::FUTEX_WAITERS | libc::FUTEX_OWNER_DIED;
        match word.compare_exchange(now, marked, Ordering::SeqCst, Ordering::SeqCst) {
            // The kernel knows of those that wait for a mutex of the other kind, and wakes one itself.
            Ok(_) if now & libc::FUTEX_WAITERS != 0 && !inherits => return wake(),
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

/// How often a wake-up is tried, because the word left RAM meanwhile.
const MOST_TRIES: usize = 100;

/// Called when the calling thread ends, and runs no more code of the program's.
pub fn end_thread() {
    let Some(head) = head() else { return };
    state::keeping_errno(|| each(head, |entry| give_up(head, entry)));
    head.first.set(&raw const *head as usize);
    head.pending.set(0);
}

/// Called when the process ends at once. Threads of its own are not told any more.
pub fn end_process() {
    let Some(head) = head() else { return };
    state::keeping_errno(|| {
        each(head, |entry| {
            if !state::is_managed(entry.word(head)) {
                give_up(head, entry);
            }
        });
    });
}

/// Called before the kernel may look at the list, as for a program that is executed: brings it in. Entries that cannot
/// leave RAM again come first.
pub fn bring_in() {
    let Some(head) = head() else { return };
    state::keeping_errno(|| {
        put_unmanaged_first(head);
        each(head, |entry| {
            access::is_open(entry.word(head), size_of::<u32>(), Access::Read);
        });
    });
}

/// What an entry has in front of it, as the C library makes them: the address of the one before.
const LINK: usize = size_of::<usize>();

/// Moves the entries that are not managed, as those of mutexes in shared memory, to the front: the kernel stops at the
/// first that is missing.
fn put_unmanaged_first(head: &Head) {
    let end = &raw const *head as usize;
    let (mut before, mut tagged) = (end, head.first.get());
    for _ in 0..MOST_ENTRIES {
        let at = tagged & !INHERITS;
        if at == end || !access::is_open(at - LINK, 2 * LINK, Access::Write) {
            break;
        }
        // SAFETY: an entry of the thread's own list, which may be written. Only this thread changes it.
        let entry = unsafe { links(at) };
        let next = entry[1].get();
        let can_move = || access::is_open((next & !INHERITS) - LINK, 2 * LINK, Access::Write);
        if state::is_managed(at) || before == end || !can_move() {
            before = at;
        } else {
            head.pending.set(tagged); // while it is in no place
            let first = head.first.get();
            // SAFETY: as above: its neighbours, the first entry, and the head, whose link back lies before it, too.
            unsafe {
                links(before)[1].set(next);
                links(next & !INHERITS)[0].set(before);
                entry[0].set(end);
                entry[1].set(first);
                links(first & !INHERITS)[0].set(at);
            }
            head.first.set(tagged);
            head.pending.set(0);
        }
        tagged = next;
    }
}

/// The links of an entry: to the one before, and to the next.
///
/// # Safety
/// An entry, or the head, of the calling thread's list.
unsafe fn links(at: usize) -> &'static [Cell<usize>; 2] {
    // SAFETY: the caller's promise.
    unsafe { &*((at - LINK) as *const [Cell<usize>; 2]) }
}
