//! What a request of io_uring names, by its operation.

use std::ffi::c_int;
use std::ops::Range;

use libc::{iovec, msghdr, timespec};

use crate::calls::{references, vectors};
use crate::ground::{guard, state};
use crate::map::hand_over::hand_over;
use crate::map::{adopt, advice};
use crate::memory::access::{self, Access};
use crate::memory::cover;
use crate::memory::pages::pages;

/// A submission queue entry.
#[repr(C)]
pub struct Entry {
    operation: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    /// An offset in a file, or a second address.
    second: u64,
    addr: u64,
    len: u32,
    more: u32,
    pub user_data: u64,
    rest: [u64; 3],
}

const _: () = assert!(size_of::<Entry>() == 64);

/// The request begins when those before it have ended.
const DRAINS: u8 = 1 << 1;
/// The next request begins when this one has ended. Either way: a failure ends the chain, or does not.
const LINKS: u8 = 1 << 2 | 1 << 3;
/// The kernel chooses the buffer.
const CHOOSES_BUFFER: u8 = 1 << 5;
/// No completion follows if the request succeeds.
const IS_QUIET: u8 = 1 << 6;
/// The buffer of a send is a registered one, which is pinned.
const SEND_FIXED: u16 = 1 << 2;
const SEND_REPORTS: u16 = 1 << 3;
/// A send names a list of buffers (Linux 6.17).
const SEND_VECTORIZED: u16 = 1 << 5;

/// Where the first of the last words has the number of registered rights.
const PERSONALITY: u64 = 0xffff_0000;

const NOP: u8 = 0;
const READV: u8 = 1;
const WRITEV: u8 = 2;
const SENDMSG: u8 = 9;
const RECVMSG: u8 = 10;
const TIMEOUT: u8 = 11;
const TIMEOUT_REMOVE: u8 = 12;
const ACCEPT: u8 = 13;
const LINK_TIMEOUT: u8 = 15;
const CONNECT: u8 = 16;
const OPENAT: u8 = 18;
const FILES_UPDATE: u8 = 20;
const STATX: u8 = 21;
const READ: u8 = 22;
const WRITE: u8 = 23;
const MADVISE: u8 = 25;
const SEND: u8 = 26;
const RECV: u8 = 27;
const OPENAT2: u8 = 28;
const EPOLL_CTL: u8 = 29;
const PROVIDE_BUFFERS: u8 = 31;
const RENAMEAT: u8 = 35;
const LINKAT: u8 = 39;
const UNLINKAT: u8 = 36;
const MKDIRAT: u8 = 37;
const SYMLINKAT: u8 = 38;
const FSETXATTR: u8 = 41;
const GETXATTR: u8 = 44;
const SEND_ZC: u8 = 47;
const SENDMSG_ZC: u8 = 48;
const URING_CMD: u8 = 46;
const WAITID: u8 = 50;
const FUTEX_WAIT: u8 = 51;
const FUTEX_WAKE: u8 = 52;
const FUTEX_WAITV: u8 = 53;
const BIND: u8 = 56;
const EPOLL_WAIT: u8 = 59;
const READV_FIXED: u8 = 60;
const WRITEV_FIXED: u8 = 61;
const PIPE: u8 = 62;

/// Bytes of a structure that the kernel may access, at most.
const STRUCTURE_BYTES: usize = 256;
/// The longest value that a command of a socket tells or sets.
const VALUE_BYTES: usize = 64 << 10;

impl Entry {
    pub fn is_quiet(&self) -> bool {
        self.flags & IS_QUIET != 0
    }

    /// Whether the next request waits for this one.
    pub fn is_linked(&self) -> bool {
        self.flags & LINKS != 0
    }

    /// If the request provides buffers from which the kernel chooses: their group and numbers.
    pub fn provided(&self) -> Option<impl Iterator<Item = (u16, u16)> + use<>> {
        let (group, first) = (self.rest[0] as u16, self.second as u16);
        let names = (0..self.fd.clamp(0, 1 << 16)).map(move |index| (group, first.wrapping_add(index as u16)));
        (self.operation == PROVIDE_BUFFERS).then_some(names)
    }
}

/// A command that sets a socket's option, by the word behind the address, which names the level and the option.
const SETS_OPTION: u32 = 3;

/// Makes a zero-copy send of managed memory a plain one. No notification follows, as its completion says: it lacks
/// IORING_CQE_F_MORE. The option that permits others is made one that no socket has ([`references`]).
///
/// # Safety
/// The program's entry, which the kernel has not taken.
pub unsafe fn send_plainly(entry: *mut Entry) {
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        let entry = &mut *entry;
        let (addr, len) = (entry.addr as usize, entry.len as usize);
        if entry.operation == URING_CMD && entry.second as u32 == SETS_OPTION {
            let [level, name] = [entry.addr as c_int, (entry.addr >> 32) as c_int];
            if references::is_zero_copy(level, name) {
                entry.addr |= !0 << 32;
            }
            return;
        }
        let is_message = matches!(entry.operation, SENDMSG | SENDMSG_ZC);
        let is_send = is_message || matches!(entry.operation, SEND | SEND_ZC);
        let is_own_kind = matches!(entry.operation, SEND_ZC | SENDMSG_ZC);
        let refers = is_own_kind || is_send && entry.more & libc::MSG_ZEROCOPY as u32 != 0;
        if !refers || entry.priority & SEND_FIXED != 0 {
            return;
        }
        let is_managed = || match is_message {
            true => vectors::names_managed(addr as *const msghdr),
            false if entry.priority & SEND_VECTORIZED != 0 => vectors::is_managed(addr as *const iovec, len),
            false => state::overlaps(addr, len),
        };
        if adopt::is_pending() || is_managed() {
            entry.operation = if is_message { SENDMSG } else { SEND };
            entry.more &= !libc::MSG_ZEROCOPY as u32;
            if is_own_kind {
                entry.priority &= !SEND_REPORTS;
            }
        }
    }
}

/// Follows advice about memory, of which the engine must know. The kernel then gets a request that does nothing. If the
/// request waits for others, the kernel follows the advice in its turn, and the memory is no longer managed.
///
/// # Safety
/// The program's entry, which the kernel has not taken.
pub unsafe fn advise(entry: *mut Entry, is_chained: bool) {
    // SAFETY: the caller upholds this function's own contract.
    let entry = unsafe { &mut *entry };
    // The length has 64 bits since Linux 6.11. The kernel refuses a request with words that it does not use.
    let len = if entry.second != 0 { entry.second as usize } else { entry.len as usize };
    if entry.operation != MADVISE || entry.rest[0] & !PERSONALITY != 0 {
        return;
    }
    let addr = entry.addr as usize;
    if is_chained || entry.flags & DRAINS != 0 {
        return hand_over(&(addr..addr.saturating_add(pages(len))));
    }
    let kept = state::errno();
    // SAFETY: the program's own advice.
    if unsafe { advice::madvise(addr as *mut _, len, entry.more as c_int) } == 0 {
        (entry.operation, entry.second, entry.addr, entry.len, entry.more) = (NOP, 0, 0, 0, 0);
    }
    state::fail(kept); // the kernel repeats what has failed, and tells the error
}

/// Adds the list of buffers at an address, and the buffers.
pub fn add_list(ranges: &mut Vec<Range<usize>>, addr: usize, count: usize) {
    ranges.push(addr..addr.saturating_add(count.saturating_mul(size_of::<iovec>())));
    // SAFETY: the program's list, as far as it can be read.
    for buffer in unsafe { vectors::buffers(addr as *const iovec, count) } {
        ranges.push(buffer.iov_base as usize..(buffer.iov_base as usize).saturating_add(buffer.iov_len));
    }
}

fn add_message(ranges: &mut Vec<Range<usize>>, addr: usize) {
    ranges.push(addr..addr.saturating_add(size_of::<msghdr>()));
    // SAFETY: the program's header, as far as it can be read.
    if let Some(message) = unsafe { access::read(addr as *const msghdr) } {
        let name = message.msg_name as usize;
        let control = message.msg_control as usize;
        ranges.push(name..name.saturating_add(message.msg_namelen as usize));
        ranges.push(control..control.saturating_add(message.msg_controllen));
        add_list(ranges, message.msg_iov as usize, message.msg_iovlen);
    }
}

/// Words to wait on, as futex_waitv has them.
#[repr(C)]
#[derive(Clone, Copy)]
struct Waiter {
    value: u64,
    word: usize,
    flags: [u32; 2],
}

/// The most words that a call or a request waits on.
pub const MOST_WAITERS: usize = 128;

/// Adds the list of words to wait on at an address, and the words.
pub fn add_waiters(ranges: &mut Vec<Range<usize>>, addr: usize, count: usize) {
    let count = count.min(MOST_WAITERS);
    let len = count * size_of::<Waiter>();
    if !access::is_open(addr, len, Access::Read) {
        return; // the kernel says so
    }
    ranges.push(addr..addr + len);
    for index in 0..count {
        // SAFETY: an entry of the program's list, which can be read.
        let one = unsafe { (addr as *const Waiter).add(index).read_unaligned() };
        ranges.push(one.word..one.word.saturating_add(size_of::<u32>()));
    }
}

fn add_text(ranges: &mut Vec<Range<usize>>, addr: usize) {
    if cover::needed(addr, 1) {
        // SAFETY: the program's string, as far as it can be read.
        let len = unsafe { access::text_len(addr) };
        ranges.push(addr..addr + len.map_or(0, |len| len + 1));
    }
}

/// The managed memory that a request names.
pub fn named(entry: &Entry) -> Vec<Range<usize>> {
    let (addr, second, len) = (entry.addr as usize, entry.second as usize, entry.len as usize);
    let mut ranges = {
        let _guard = guard::enter();
        Vec::with_capacity(8)
    };
    let mut add = |addr: usize, len: usize| ranges.push(addr..addr.saturating_add(len));
    match entry.operation {
        READ | RECV | WRITE | SEND | SEND_ZC if entry.flags & CHOOSES_BUFFER == 0 => {
            let is_send = matches!(entry.operation, SEND | SEND_ZC);
            if is_send {
                add(second, STRUCTURE_BYTES); // where to
            }
            match is_send && entry.priority & SEND_VECTORIZED != 0 {
                true => add_list(&mut ranges, addr, len),
                false => add(addr, len),
            }
        }
        READV | WRITEV => add_list(&mut ranges, addr, len),
        SENDMSG | SENDMSG_ZC | RECVMSG => add_message(&mut ranges, addr),
        TIMEOUT | LINK_TIMEOUT => add(addr, size_of::<timespec>()),
        TIMEOUT_REMOVE => add(second, size_of::<timespec>()),
        ACCEPT => {
            add(addr, STRUCTURE_BYTES);
            add(second, 4);
        }
        CONNECT | BIND => add(addr, second.min(STRUCTURE_BYTES)),
        OPENAT | UNLINKAT | MKDIRAT => add_text(&mut ranges, addr),
        OPENAT2 => {
            add(second, len.min(STRUCTURE_BYTES));
            add_text(&mut ranges, addr);
        }
        STATX => {
            add(second, size_of::<libc::statx>());
            add_text(&mut ranges, addr);
        }
        RENAMEAT | LINKAT | SYMLINKAT => {
            add_text(&mut ranges, addr);
            add_text(&mut ranges, second);
        }
        FSETXATTR..=GETXATTR => {
            add(second, len);
            add_text(&mut ranges, addr);
            add_text(&mut ranges, entry.rest[1] as usize);
        }
        FILES_UPDATE => add(addr, len.saturating_mul(4)),
        EPOLL_CTL => add(addr, 12),
        EPOLL_WAIT => add(addr, len.saturating_mul(12)),
        PROVIDE_BUFFERS => add(addr, len.saturating_mul(entry.fd.max(0) as usize)),
        WAITID => add(second, size_of::<libc::siginfo_t>()),
        FUTEX_WAIT | FUTEX_WAKE => add(addr, 4),
        FUTEX_WAITV => add_waiters(&mut ranges, addr, len),
        // The buffers are registered.
        READV_FIXED | WRITEV_FIXED => add(addr, len.saturating_mul(size_of::<iovec>())),
        // A socket's value is at the word after its length. What other files take is unknown.
        URING_CMD => {
            add(addr, STRUCTURE_BYTES);
            let value_len = (entry.rest[0] >> 32) as usize;
            add(entry.rest[1] as usize, value_len.clamp(STRUCTURE_BYTES, VALUE_BYTES));
        }
        PIPE => add(addr, 8),
        _ => {}
    }
    ranges.retain(|range| cover::needed(range.start, range.len()));
    ranges
}
