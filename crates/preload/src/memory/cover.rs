//! Covers for system calls in direct mode, where the kernel cannot fault a page in: the call fails with EFAULT.
//!
//! - *bounce*: up to 256 KiB go through unmanaged memory. Safe for every call, even for a datagram, which the kernel
//!   drops when it cannot copy it out, or for a read that sleeps for hours.
//! - *hold*: longer transfers of files and block devices are held in RAM. Such calls do not sleep long. Up to a quarter
//!   of the budget goes in one call, as without a budget, so that appended records stay whole.
//! - *touch*: memory of unknown layout, and what a function returns a pointer to, is faulted in before the call, and
//!   again if it failed with EFAULT. Such calls fail before they have any effect, or what their structures point to is
//!   held. All other arguments are copied (`calls::copied`).
//!
//! In monitor mode the kernel waits for a missing page, so only pinned buffers are covered (`transfer::pins`).
//!
//! Here is what is touched, and calls that are repeated. The others are `bounce`, `held`, and `transfer`, which
//! chooses.

use std::ffi::{c_char, c_int};

use folioswap::{PAGE_SIZE, Waited};
use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;

use crate::ground::{guard, state};
use crate::memory::access::{self, Access};
use crate::memory::held::Held;
use crate::memory::resident;

/// How often a call that failed with EFAULT is repeated at most.
const MOST_REPEATS: usize = 100;

static_tls! {
    /// How often the call that is being made has been repeated.
    static REPEATS: usize = "folioswap_repeats";
}

/// Whether the kernel may find pages of the range missing.
pub fn needed(addr: usize, len: usize) -> bool {
    state::direct() && len > 0 && state::overlaps(addr, len) && !guard::inside()
}

/// Faults in the managed part of a range.
pub fn touch<T>(at: *const T, len: usize) {
    if needed(at as usize, len) {
        resident::bring_in(at as usize, len);
    }
}

/// Faults in a C string. Does nothing for null.
pub fn text(at: *const c_char) {
    if needed(at as usize, 1)
        // SAFETY: the program passed a C string. Reading it faults all of it in.
        && let Some(len) = unsafe { access::text_len(at as usize) }
    {
        touch(at, len + 1);
    }
}

/// Faults in one value. Does nothing for null.
pub fn value<T>(at: *const T) {
    touch(at, size_of::<T>());
}

/// Keeps the next part of the stack in RAM, for a function of the C library that blocks the signals of faults, or has
/// the kernel read or write a variable of its own. What a jump leaves stays there.
#[must_use]
pub fn stack() -> Option<Waited> {
    if state::direct() && !guard::inside() { resident::keep_stack() } else { None }
}

/// Upper bound of what the kernel accesses behind most pointers of unknown type.
pub const UNKNOWN_BYTES: usize = 512;

/// The longest structure of unknown layout and length.
const MOST_STRUCTURE_BYTES: usize = 1 << 20;

/// How often more of a structure is brought in.
const MOST_TRIES: u32 = 3;

/// Faults in a structure of unknown layout that has at least `len` bytes. If the call was made in vain, more of it, and
/// what words in it point to.
pub fn structure<T>(at: *const T, len: usize) {
    let nr_repeats = REPEATS.get() as u32;
    if !(1..=MOST_TRIES).contains(&nr_repeats) || !state::direct() {
        return touch(at, len);
    }
    touch(at, (len << (4 * nr_repeats)).min(MOST_STRUCTURE_BYTES.max(len)));
    for offset in (0..len.min(MOST_STRUCTURE_BYTES)).step_by(size_of::<usize>()) {
        // SAFETY: a word of the program's memory, whatever it is.
        if let Some(word) = unsafe { access::read(at.wrapping_byte_add(offset).cast::<usize>()) } {
            touch(word as *const u8, PAGE_SIZE << (2 * nr_repeats));
        }
    }
}

/// What a word of a structure points to is brought in this far, if the call could lose what it gets no place for.
const POINTED_BYTES: usize = 64 << 10;

/// The most words of a structure that are looked at for that.
const MOST_WORDS: usize = 16;

/// Keeps what the words of a structure point to in RAM, for a call that takes things out before it stores them.
pub fn held_inside<T>(at: *const T, len: usize) -> Vec<Held> {
    let mut held = Vec::new();
    if !state::direct() || guard::inside() || !access::is_open(at as usize, len, Access::Read) {
        return held;
    }
    for offset in (0..(len / size_of::<usize>()).min(MOST_WORDS)).map(|word| word * size_of::<usize>()) {
        // SAFETY: a word of the program's memory, which can be read, whatever it is.
        let word = unsafe { at.wrapping_byte_add(offset).cast::<usize>().read_unaligned() };
        if word < usize::MAX - POINTED_BYTES && needed(word, POINTED_BYTES) {
            let one = Held::new(word, POINTED_BYTES);
            let _guard = guard::enter();
            held.push(one);
        }
    }
    held
}

/// The beginning of a structure as it was before a call that reads it and writes to it. If the call was made in vain,
/// it may have written already, and would take that for what the program asks.
pub struct Before {
    addr: usize,
    bytes: [u8; UNKNOWN_BYTES],
    len: usize,
}

impl Before {
    /// Of a structure of this length; of none if it cannot be read.
    pub fn of(addr: usize, len: usize) -> Before {
        let mut before = Before { addr, bytes: [0; UNKNOWN_BYTES], len: 0 };
        let len = len.min(UNKNOWN_BYTES);
        if state::direct() && !guard::inside() && access::is_open(addr, len, Access::Read) {
            // SAFETY: the program's memory, which can be read.
            unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, before.bytes.as_mut_ptr(), len) };
            before.len = len;
        }
        before
    }

    /// Called before each try of the call. Before a repeat, what has changed is as it was.
    pub fn bring_back(&self) {
        if REPEATS.get() == 0 || self.len == 0 || !access::is_open(self.addr, self.len, Access::Read) {
            return;
        }
        let at = self.addr as *mut u8;
        for (offset, &byte) in self.bytes[..self.len].iter().enumerate() {
            // SAFETY: the program's memory, which can be read. What has changed could be written, too.
            unsafe {
                if at.add(offset).read_volatile() != byte {
                    at.add(offset).write_volatile(byte);
                }
            }
        }
    }
}

/// Faults in a null-terminated list of C strings, and the strings.
pub fn texts(list: *const *const c_char) {
    if list.is_null() || !state::direct() {
        return;
    }
    let mut at = list;
    loop {
        value(at);
        // SAFETY: the program passed a list that ends with a null.
        let Some(entry) = (unsafe { access::read(at) }).filter(|entry| !entry.is_null()) else { return };
        text(entry);
        // SAFETY: as above; this entry was not the terminating null.
        at = unsafe { at.add(1) };
    }
}

/// The result of a call.
pub trait Outcome: Sized {
    /// Whether the call failed and set errno.
    fn is_failure(&self) -> bool;
    /// What a call returns when it fails.
    fn failure() -> Self;
    /// What a call returns that cannot write to the program's memory. Sets errno.
    fn refused() -> Self {
        state::fail(libc::EFAULT);
        Self::failure()
    }
    /// How many bytes it says were transferred, if it says that.
    fn length(&self) -> usize {
        0
    }
}

impl Outcome for c_int {
    fn is_failure(&self) -> bool {
        *self < 0
    }
    fn failure() -> c_int {
        -1
    }
}

impl Outcome for isize {
    fn is_failure(&self) -> bool {
        *self < 0
    }
    fn failure() -> isize {
        -1
    }
    fn length(&self) -> usize {
        (*self).max(0) as usize
    }
}

impl Outcome for i64 {
    fn is_failure(&self) -> bool {
        *self < 0
    }
    fn failure() -> i64 {
        -1
    }
}

impl Outcome for () {
    fn is_failure(&self) -> bool {
        false
    }
    fn failure() {}
}

/// A number that is 0 on failure.
impl Outcome for u32 {
    fn is_failure(&self) -> bool {
        *self == 0
    }
    fn failure() -> u32 {
        0
    }
}

impl<T> Outcome for *mut T {
    fn is_failure(&self) -> bool {
        self.is_null()
    }
    fn failure() -> *mut T {
        std::ptr::null_mut()
    }
}

/// Runs `touch` and then `call`, and repeats both while `call` fails with EFAULT.
pub fn repeat<R: Outcome>(touch: impl Fn(), call: impl Fn() -> R) -> R {
    repeat_if(state::direct() && !guard::inside(), touch, call)
}

/// The same, or only `call`.
pub fn repeat_if<R: Outcome>(repeats: bool, touch: impl Fn(), call: impl Fn() -> R) -> R {
    if !repeats {
        return call();
    }
    let kept = state::errno();
    for nr_repeats in 0.. {
        REPEATS.set(nr_repeats);
        touch();
        state::fail(kept);
        let result = call();
        if nr_repeats == MOST_REPEATS || !result.is_failure() || state::errno() != libc::EFAULT {
            return result;
        }
    }
    unreachable!("the last repeat returns")
}
