//! The words that the kernel clears at the end of threads, and of children in the same memory, for who waits for that.
//! It brings no page in for it, in either mode. So the words are held in RAM from before a thread starts until it has
//! ended. As nobody is told of that, it is found out when the next one comes.
//!
//! In direct mode, what the call reads and writes that makes such a thread or child is held, too: it cannot be repeated
//! where one is lost. That ends with the call, or where that returns past this library, with the thread's next caught
//! call.

use folioswap_sys::clock::Moment;
use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;

use crate::ground::lock::{Lock, Locked};
use crate::ground::real::own;
use crate::ground::{guard, state};
use crate::memory::access;

/// What a held word is to a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Cleared at its end.
    Cleared,
    /// What describes the child that it makes.
    Description,
    /// The ids that it is to get.
    Ids,
    /// Where its id goes.
    ChildId,
    /// Where its descriptor goes.
    Descriptor,
}

/// A held word, or several.
pub struct Word {
    addr: usize,
    len: usize,
    role: Role,
    /// The thread whose word it is; 0: not known.
    thread: u32,
    /// Whether it was seen other than zero, since when it is there, and whether it is managed.
    was_set: bool,
    since: Moment,
    is_held: bool,
}

static_tls! {
    /// Whether the calling thread holds what a call of its reads and writes.
    static HOLDS: bool = "folioswap_holds_for_clone";
}

static WORDS: Lock<Vec<Word>> = Lock::new(Vec::new());

/// A thread has begun after this time, and has its id in the word, if it ever gets there.
const LONGEST_START_NS: u64 = 10_000_000_000;

/// The list of these, locked.
pub type Words = Locked<Vec<Word>>;

pub fn words() -> Words {
    WORDS.lock()
}

impl Word {
    /// Holds the word, if it is managed.
    fn hold(&mut self) {
        if let Some(space) = state::space().filter(|_| !self.is_held && state::is_managed(self.addr)) {
            // SAFETY: the program has named it to the kernel.
            unsafe { space.hold(self.addr, self.len) };
            self.is_held = true;
        }
    }

    fn release(self) {
        if let Some(space) = state::space().filter(|_| self.is_held) {
            // SAFETY: held by `hold`.
            unsafe { space.release_hold(self.addr, self.len) };
        }
    }

    fn is_over(&mut self) -> bool {
        if self.thread != 0 {
            // SAFETY: takes no pointers. Signal 0 only checks whether the thread exists.
            let found = unsafe { own!(libc::SYS_tgkill, libc::getpid(), self.thread, 0) };
            return found < 0 && state::errno() == libc::ESRCH;
        }
        match value(self.addr) {
            None => true, // nobody can wait for it
            Some(0) => self.was_set || self.since.ns_until(Moment::now()) > LONGEST_START_NS,
            Some(_) => {
                self.was_set = true;
                false
            }
        }
    }
}

fn value(addr: usize) -> Option<u32> {
    // SAFETY: any bits are a number.
    unsafe { access::read(addr as *const u32) }
}

/// Ends the holds for the calling thread's last call that made a thread or child.
pub fn end_call() {
    if !HOLDS.replace(false) || guard::inside() {
        return;
    }
    let thread = guard::this_thread();
    let _guard = guard::enter();
    state::keeping_errno(|| {
        let is_over = |word: &mut Word| word.role != Role::Cleared && word.thread == thread;
        let over: Vec<Word> = words().extract_if(.., is_over).collect();
        over.into_iter().for_each(Word::release);
    });
}

/// Holds the word that the end of the calling thread clears.
pub fn hold_own(addr: usize) {
    hold(addr, size_of::<u32>(), Role::Cleared, guard::this_thread());
}

/// Holds a word of a thread, or of one that is about to be made, whose id is not known. It takes the place of another
/// with this role.
pub fn hold(addr: usize, len: usize, role: Role, thread: u32) {
    if addr == 0 || guard::inside() {
        return;
    }
    if role != Role::Cleared {
        HOLDS.set(true);
    }
    let _guard = guard::enter();
    state::keeping_errno(|| {
        let mut words = words();
        let mut over = Vec::new();
        for index in (0..words.len()).rev() {
            let word = &mut words[index];
            let is_replaced = word.role == role && (word.addr == addr || thread != 0 && word.thread == thread);
            if is_replaced || word.is_over() {
                over.push(words.swap_remove(index));
            }
        }
        let was_set = value(addr).is_some_and(|value| value != 0);
        let mut word = Word { addr, len, role, thread, was_set, since: Moment::now(), is_held: false };
        word.hold();
        words.push(word);
        drop(words);
        over.into_iter().for_each(Word::release);
    });
}

/// Holds those that are managed only now. Called under a guard.
pub fn hold_adopted() {
    words().iter_mut().for_each(Word::hold);
}

/// In a forked child: its thread has none.
pub fn begin_child() {
    words().clear();
}
