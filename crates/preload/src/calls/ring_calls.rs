//! The calls of io_uring, and libaio's submission, made by number.
//!
//! What cannot be covered is refused as by kernels that lack it: rings of some kinds
//! ([`Params::refusal`](rings::Params::refusal)), registered rings and, in direct mode, buffer rings.

use std::ffi::{c_int, c_long};

use libc::iovec;

use crate::calls::rings::{self, Hold, Params};
use crate::calls::{copied, ring_requests, vectors};
use crate::faults::ours;
use crate::ground::real::{kernel, raw};
use crate::ground::{guard, state};
use crate::memory::access::{self, Access};
use crate::memory::cover;

type Words = [usize; 6];

const ENTER_EXT_ARG: usize = 1 << 3;
const REGISTER_BUFFERS: usize = 0;
const REGISTER_FILES: usize = 2;
const REGISTER_FILES_UPDATE: usize = 6;
const REGISTER_FILES2: usize = 13;
const REGISTER_FILES_UPDATE2: usize = 14;
const REGISTER_BUFFERS2: usize = 15;
const REGISTER_BUFFERS_UPDATE: usize = 16;
const REGISTER_RING_FDS: usize = 20;
const REGISTER_PBUF_RING: usize = 22;
/// Since Linux 6.13.
const REGISTER_RESIZE_RINGS: usize = 33;
/// Items that a registration may name, at most.
const MOST_LISTED: usize = 1 << 20;
/// Bytes that a registration may name beside them, at most.
const REGISTRATION_BYTES: usize = 4096;

/// These calls, made by number: the kernel's result, or -1 and errno. `None`: not one of them.
///
/// # Safety
/// As the system call.
pub unsafe fn by_number(number: c_long, words: &Words) -> Option<isize> {
    // SAFETY: the caller upholds this function's own contract.
    Some(unsafe {
        match number {
            libc::SYS_io_uring_setup => set_up(words),
            libc::SYS_io_uring_enter => enter(words),
            // A submission to one would name an index, not a ring.
            libc::SYS_io_uring_register if words[1] == REGISTER_RING_FDS => refused(libc::EINVAL),
            libc::SYS_io_uring_register if state::direct() => register(words),
            libc::SYS_io_submit if state::direct() => submit(words),
            _ => return None,
        }
    })
}

fn refused(error: c_int) -> isize {
    state::fail(error);
    -1
}

unsafe fn set_up(words: &Words) -> isize {
    // SAFETY: the caller's call, with a copy of the parameters.
    unsafe {
        let theirs = words[1] as *mut Params;
        let read = access::read(theirs).filter(|_| access::is_open(words[1], size_of::<Params>(), Access::Write));
        let Some(mut params) = read else { return raw(libc::SYS_io_uring_setup, words) as isize };
        if let Some(error) = params.refusal() {
            return refused(error);
        }
        let fd = kernel!(libc::SYS_io_uring_setup, words[0], &raw mut params) as isize;
        if fd >= 0 {
            theirs.write_unaligned(params);
            rings::note_made(fd as c_int, params);
        }
        fd
    }
}

unsafe fn enter(words: &Words) -> isize {
    let &[fd, count, wanted, flags, argument, argument_len] = words;
    let fd = fd as c_int;
    // SAFETY: the caller's call, with copies of what its arguments name.
    unsafe {
        if !rings::is_known(fd) {
            return enter_with(words, argument, argument_len);
        }
        rings::harvest(fd);
        let quiet = rings::before_submission(fd, count as u32);
        let result = enter_with(&[fd as usize, count, wanted, flags, argument, argument_len], argument, argument_len);
        rings::keep_quiet(fd, quiet);
        rings::harvest(fd);
        result
    }
}

/// The call, with copies of the signal set and the time limit that it names.
unsafe fn enter_with(words: &Words, argument: usize, argument_len: usize) -> isize {
    let mut words = *words;
    let is_extended = words[3] & ENTER_EXT_ARG != 0 && argument_len == 24;
    // SAFETY: the caller's call. The argument is a signal set, or three words: a set, its length, and a time limit.
    unsafe {
        if !ours::has_ours() || argument == 0 {
            return raw(libc::SYS_io_uring_enter, &words) as isize;
        }
        if !is_extended {
            let set = ours::open_set(argument);
            words[4] = copied::or_theirs(&set, argument);
            return raw(libc::SYS_io_uring_enter, &words) as isize;
        }
        let Some(mut extended) = access::read(argument as *const [usize; 3]) else {
            return raw(libc::SYS_io_uring_enter, &words) as isize;
        };
        let set = ours::open_set(extended[0]);
        extended[0] = copied::or_theirs(&set, extended[0]);
        let limit = copied::value(extended[2] as *const libc::timespec);
        extended[2] = limit.addr();
        words[4] = extended.as_ptr() as usize;
        raw(libc::SYS_io_uring_enter, &words) as isize
    }
}

/// A list that a registration names.
struct Listed {
    at: usize,
    count: usize,
    item_bytes: usize,
    /// A word for each item; zero: none.
    tags: usize,
}

impl Listed {
    /// The buffers of a list that can be read.
    fn buffers(&self) -> impl Iterator<Item = iovec> {
        let parts = (0..self.count).step_by(vectors::MOST_BUFFERS).map(|first| {
            let at = (self.at as *const iovec).wrapping_add(first);
            // SAFETY: part of the program's list, as far as it can be read.
            unsafe { vectors::buffers(at, (self.count - first).min(vectors::MOST_BUFFERS)) }
        });
        parts.flatten().copied()
    }
}

/// The list of a registration that has one.
///
/// # Safety
/// The arguments of the program's call.
unsafe fn listed(what: usize, argument: usize, count: usize) -> Option<Listed> {
    let item_bytes = match what {
        REGISTER_BUFFERS | REGISTER_BUFFERS2 | REGISTER_BUFFERS_UPDATE => size_of::<iovec>(),
        _ => size_of::<c_int>(),
    };
    // SAFETY: the structures have 16 or 32 bytes. Their fields are an index or a count, and then addresses.
    let [at, count, tags] = unsafe {
        match what {
            REGISTER_BUFFERS | REGISTER_FILES => [argument, count, 0],
            REGISTER_FILES_UPDATE => [access::read(argument as *const [usize; 2])?[1], count, 0],
            REGISTER_BUFFERS2 | REGISTER_FILES2 => {
                let [count, _, at, tags] = access::read(argument as *const [usize; 4])?;
                [at, count as u32 as usize, tags]
            }
            REGISTER_BUFFERS_UPDATE | REGISTER_FILES_UPDATE2 => {
                let [_, at, tags, count] = access::read(argument as *const [usize; 4])?;
                [at, count as u32 as usize, tags]
            }
            _ => return None,
        }
    };
    Some(Listed { at, count: count.min(MOST_LISTED), item_bytes, tags })
}

/// Registers buffers and other things with a ring. Buffers are in RAM when the kernel pins them.
unsafe fn register(words: &Words) -> isize {
    let &[_, what, argument, count, ..] = words;
    if matches!(what, REGISTER_PBUF_RING | REGISTER_RESIZE_RINGS) {
        return refused(libc::EINVAL);
    }
    // SAFETY: the caller's call.
    let list = unsafe { listed(what, argument, count) };
    let mut holds = Vec::new();
    if let Some(list) = list.as_ref().filter(|list| list.item_bytes == size_of::<iovec>()) {
        for buffer in list.buffers() {
            let (at, len) = (buffer.iov_base as usize, buffer.iov_len);
            if cover::needed(at, len) {
                // ENOMEM is what the kernel says of more than RLIMIT_MEMLOCK.
                let Some(one) = Hold::new(&(at..at.saturating_add(len))) else { return refused(libc::ENOMEM) };
                let _guard = guard::enter();
                holds.push(one);
            }
        }
    }
    let touch = || {
        cover::structure(argument as *const u8, REGISTRATION_BYTES);
        if let Some(list) = &list {
            cover::touch(list.at as *const u8, list.count * list.item_bytes);
            cover::touch(list.tags as *const u64, list.count * size_of::<u64>());
        }
    };
    // SAFETY: as above.
    cover::repeat(touch, || unsafe { raw(libc::SYS_io_uring_register, words) as isize })
}

/// libaio. The kernel pins the memory, or uses it, during this call. So it is held until then.
unsafe fn submit(words: &Words) -> isize {
    let &[_, count, list, ..] = words;
    let mut words = *words;
    let mut holds = Vec::new();
    // SAFETY: the caller's call, perhaps with fewer requests.
    unsafe {
        let is_open = |nr: usize| access::is_open(list, nr * size_of::<usize>(), Access::Read);
        let count = if count as isize > 0 && is_open(count) { count } else { 0 };
        for index in 0..count {
            let at = *(list as *const *const [u64; 8]).add(index);
            let Some(request) = access::read(at) else { break };
            let mut ranges = {
                let _guard = guard::enter();
                Vec::with_capacity(8)
            };
            ranges.push(at as usize..at as usize + size_of::<[u64; 8]>());
            let (what, addr, len) = (request[2] as u16, request[3] as usize, request[4] as usize);
            match what {
                7 | 8 => ring_requests::add_list(&mut ranges, addr, len),
                _ => ranges.push(addr..addr.saturating_add(len)),
            }
            ranges.retain(|range| cover::needed(range.start, range.len()));
            let nr_ranges = ranges.len();
            let own: Vec<Hold> = ranges.iter().map_while(Hold::new).collect();
            if own.len() < nr_ranges && index > 0 {
                words[1] = index; // the program submits the others later
                break;
            }
            ranges.drain(..own.len());
            ranges.iter().for_each(|range| cover::touch(range.start as *const u8, range.len()));
            let _guard = guard::enter();
            holds.extend(own);
        }
        cover::touch(list as *const u8, count * size_of::<usize>());
        raw(libc::SYS_io_submit, &words) as isize
    }
}
