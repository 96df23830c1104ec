//! Calls with several buffers: readv, writev and their kin, process_vm_readv and vmsplice.
//!
//! Managed buffers are replaced by bounce buffers, up to 1 MiB in total. A longer list is cut there, and the call
//! transfers less than everything, as it may at any time.

use std::ffi::{c_int, c_uint, c_ulong};

use libc::{iovec, pid_t};

use crate::calls::cover::{self, Bounce, Kind};
use crate::calls::remote;
use crate::export::{export, real};
use crate::{guard, state};

real!(READV = c"readv": fn(c_int, *const iovec, c_int) -> isize);
real!(WRITEV = c"writev": fn(c_int, *const iovec, c_int) -> isize);
real!(PREADV = c"preadv64": fn(c_int, *const iovec, c_int, i64) -> isize);
real!(PWRITEV = c"pwritev64": fn(c_int, *const iovec, c_int, i64) -> isize);
real!(PREADV2 = c"preadv64v2": fn(c_int, *const iovec, c_int, i64, c_int) -> isize);
real!(PWRITEV2 = c"pwritev64v2": fn(c_int, *const iovec, c_int, i64, c_int) -> isize);
real!(VMSPLICE = c"vmsplice": fn(c_int, *const iovec, usize, c_uint) -> isize);
real!(VM_READ = c"process_vm_readv": fn(pid_t, *const iovec, c_ulong, *const iovec, c_ulong, c_ulong) -> isize);
real!(VM_WRITE = c"process_vm_writev": fn(pid_t, *const iovec, c_ulong, *const iovec, c_ulong, c_ulong) -> isize);

/// The most buffers that the kernel takes at once.
const MOST_BUFFERS: usize = 1024;

/// The most bytes that are replaced in one call, unless they form one message.
const MOST_BYTES: usize = 1 << 20;

/// A list of buffers in which bounce buffers replace the managed ones.
pub struct StandIn {
    list: Vec<iovec>,
    /// Index in the list, the program's buffer, its bounce buffer.
    bounces: Vec<(usize, iovec, Bounce)>,
    /// Part of the program's list is missing.
    is_cut: bool,
    /// A message that cannot be sent in one piece.
    pub is_too_long: bool,
}

/// Whether any buffer of the list, or the list itself, needs a cover.
///
/// # Safety
/// The list has `count` buffers.
unsafe fn needed(fd: c_int, list: *const iovec, count: usize) -> bool {
    if state::space().is_none() || guard::inside() || list.is_null() {
        return false;
    }
    // SAFETY: the caller passes a list of `count` buffers.
    let buffers = unsafe { std::slice::from_raw_parts(list, count) };
    cover::needed(list as usize, size_of_val(buffers))
        || buffers.iter().any(|buffer| {
            let (addr, len) = (buffer.iov_base as usize, buffer.iov_len);
            cover::needed(addr, len) || cover::pins(fd, addr, len)
        })
}

impl StandIn {
    /// A list for the kernel; `None` if the program's own list can be used. It may be cut, but not that of a message.
    ///
    /// # Safety
    /// The list has `count` buffers.
    pub unsafe fn where_needed(fd: c_int, list: *const iovec, count: usize) -> Option<StandIn> {
        // SAFETY: the caller upholds this function's own contract.
        unsafe {
            if count > MOST_BUFFERS || !needed(fd, list, count) {
                return None;
            }
            let mut stand_in = StandIn::new(list, count, MOST_BYTES)?;
            if stand_in.is_cut && matches!(cover::kind(fd), Kind::Datagrams) {
                stand_in = StandIn::new(list, count, cover::MOST_MESSAGE_BYTES)?;
                stand_in.is_too_long = stand_in.is_cut;
            }
            Some(stand_in)
        }
    }

    pub fn as_ptr(&self) -> *const iovec {
        self.list.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes of bounce buffers.
    pub fn nr_bytes(&self) -> usize {
        self.bounces.iter().map(|(_, buffer, _)| buffer.iov_len).sum()
    }

    /// `None` if there is no memory for it.
    ///
    /// # Safety
    /// The list has `count` buffers.
    unsafe fn new(list: *const iovec, count: usize, most: usize) -> Option<StandIn> {
        let _guard = guard::enter();
        // SAFETY: the caller passes a list of `count` buffers.
        let list = unsafe { std::slice::from_raw_parts(list, count) };
        let (own, bounces) = (Vec::with_capacity(count), Vec::new());
        let mut stand_in = StandIn { list: own, bounces, is_cut: false, is_too_long: false };
        let mut left = most;
        for &buffer in list {
            let mut own = buffer;
            if cover_needed_under_guard(&buffer) {
                let len = buffer.iov_len.min(left);
                stand_in.is_cut = len < buffer.iov_len;
                if len == 0 {
                    break;
                }
                let bounce = Bounce::new(buffer.iov_base as usize, len)?;
                left -= len;
                own = iovec { iov_base: bounce.as_ptr().cast(), iov_len: len };
                let theirs = iovec { iov_base: buffer.iov_base, iov_len: len };
                stand_in.bounces.push((stand_in.list.len(), theirs, bounce));
                stand_in.list.push(own);
                if stand_in.is_cut {
                    break;
                }
                continue;
            }
            stand_in.list.push(own);
        }
        Some(stand_in)
    }

    /// Fills the bounce buffers from the program's buffers.
    pub fn copy_out(&self) {
        for (_, theirs, bounce) in &self.bounces {
            // SAFETY: the program's buffer, and a block of that length.
            unsafe { std::ptr::copy_nonoverlapping(theirs.iov_base.cast::<u8>(), bounce.as_ptr(), theirs.iov_len) };
        }
    }

    /// Copies the result of the call to the program's buffers: `received` bytes over the whole list.
    pub fn copy_in(&self, received: isize) {
        let mut left = received.max(0) as usize;
        let mut bounces = self.bounces.iter();
        let mut next = bounces.next();
        for (index, buffer) in self.list.iter().enumerate() {
            let here = left.min(buffer.iov_len);
            if let Some((at, theirs, bounce)) = next
                && *at == index
            {
                // SAFETY: the kernel has filled in that much of the block, and the program's buffer is as long.
                unsafe { std::ptr::copy_nonoverlapping(bounce.as_ptr(), theirs.iov_base.cast::<u8>(), here) };
                next = bounces.next();
            }
            left -= here;
        }
    }
}

/// `cover::needed` is false under a guard, so this checks the range alone.
fn cover_needed_under_guard(buffer: &iovec) -> bool {
    buffer.iov_len > 0 && state::overlaps(buffer.iov_base as usize, buffer.iov_len)
}

/// # Safety
/// The list has `count` buffers, which may be written.
pub unsafe fn receive(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    call: impl Fn(*const iovec, c_int) -> isize,
) -> isize {
    // SAFETY: the caller upholds this function's own contract.
    let Some(stand_in) = (unsafe { StandIn::where_needed(fd, list, count.max(0) as usize) }) else {
        return call(list, count);
    };
    let result = call(stand_in.list.as_ptr(), stand_in.list.len() as c_int);
    stand_in.copy_in(result);
    result
}

/// # Safety
/// The list has `count` buffers, which may be read.
pub unsafe fn send(fd: c_int, list: *const iovec, count: c_int, call: impl Fn(*const iovec, c_int) -> isize) -> isize {
    // SAFETY: the caller upholds this function's own contract.
    let Some(stand_in) = (unsafe { StandIn::where_needed(fd, list, count.max(0) as usize) }) else {
        return call(list, count);
    };
    if stand_in.is_too_long {
        state::fail(libc::EMSGSIZE);
        return -1;
    }
    stand_in.copy_out();
    call(stand_in.list.as_ptr(), stand_in.list.len() as c_int)
}

export! {
    fn readv(fd: c_int, list: *const iovec, count: c_int) -> isize {
        // SAFETY: the caller's call, with an equivalent list.
        unsafe { receive(fd, list, count, |list, count| {
            remote::transfer_list(fd, (list, count as usize), None, || READV.get()(fd, list, count))
        }) }
    }
}

export! {
    fn writev(fd: c_int, list: *const iovec, count: c_int) -> isize {
        // SAFETY: as above.
        unsafe { send(fd, list, count, |list, count| {
            remote::transfer_list(fd, (list, count as usize), None, || WRITEV.get()(fd, list, count))
        }) }
    }
}

export! {
    fn preadv(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize {
        // SAFETY: as above.
        unsafe { receive(fd, list, count, |list, count| {
            remote::transfer_list(fd, (list, count as usize), Some(offset), || PREADV.get()(fd, list, count, offset))
        }) }
    }
}

export! {
    fn preadv64(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize {
        // SAFETY: an alias with the same contract.
        unsafe { preadv(fd, list, count, offset) }
    }
}

export! {
    fn pwritev(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize {
        // SAFETY: as above.
        unsafe { send(fd, list, count, |list, count| {
            remote::transfer_list(fd, (list, count as usize), Some(offset), || PWRITEV.get()(fd, list, count, offset))
        }) }
    }
}

export! {
    fn pwritev64(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize {
        // SAFETY: an alias with the same contract.
        unsafe { pwritev(fd, list, count, offset) }
    }
}

export! {
    fn preadv2(fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        // SAFETY: as above.
        unsafe { receive(fd, list, count, |list, count| PREADV2.get()(fd, list, count, offset, flags)) }
    }
}

export! {
    fn preadv64v2(fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        // SAFETY: an alias with the same contract.
        unsafe { preadv2(fd, list, count, offset, flags) }
    }
}

export! {
    fn pwritev2(fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        // SAFETY: as above.
        unsafe { send(fd, list, count, |list, count| PWRITEV2.get()(fd, list, count, offset, flags)) }
    }
}

export! {
    fn pwritev64v2(fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        // SAFETY: an alias with the same contract.
        unsafe { pwritev2(fd, list, count, offset, flags) }
    }
}

/// Faults in the buffers of a list.
///
/// # Safety
/// The list is null or has `count` buffers.
pub unsafe fn touch(list: *const iovec, count: usize) {
    if list.is_null() || count > MOST_BUFFERS {
        return;
    }
    // SAFETY: the caller passes a list of `count` buffers.
    for buffer in unsafe { std::slice::from_raw_parts(list, count) } {
        cover::touch(buffer.iov_base.cast_const(), buffer.iov_len);
    }
}

/// vmsplice puts the pages themselves into the pipe. They are faulted in until it has them. It may take fewer than all.
///
/// # Safety
/// As `vmsplice`.
pub unsafe fn give_pages(list: *const iovec, count: usize, call: impl Fn() -> isize) -> isize {
    // SAFETY: the caller upholds this function's own contract.
    cover::repeat(|| unsafe { touch(list, count) }, call)
}

export! {
    fn vmsplice(fd: c_int, list: *const iovec, count: usize, flags: c_uint) -> isize {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { give_pages(list, count, || VMSPLICE.get()(fd, list, count, flags)) }
    }
}

/// Repeats a call on memory of another process. If `pid` is this process, its ranges are faulted in too, and again if
/// they were evicted.
///
/// # Safety
/// The list has `count` ranges of that process.
pub unsafe fn repeat_remote<R: cover::Outcome>(
    pid: pid_t,
    list: *const iovec,
    count: c_ulong,
    call: impl Fn() -> R,
) -> R {
    // SAFETY: takes no pointers.
    let own = pid == unsafe { libc::getpid() };
    cover::repeat(
        || {
            let ranges = if list.is_null() || !state::direct() { 0 } else { (count as usize).min(MOST_BUFFERS) };
            cover::touch(list, ranges * size_of::<iovec>());
            if own {
                // SAFETY: the caller upholds this function's own contract.
                unsafe { touch(list, ranges) };
            }
        },
        call,
    )
}

/// As [`repeat_remote`]. Another process brings its ranges in, if it can.
///
/// # Safety
/// As [`repeat_remote`].
unsafe fn repeat_ranges(
    pid: pid_t,
    local: (*const iovec, usize),
    ranges: (*const iovec, usize),
    call: impl Fn() -> isize,
) -> isize {
    // SAFETY: the caller upholds this function's own contract.
    remote::transfer_ranges(pid, local, ranges, || unsafe { repeat_remote(pid, ranges.0, ranges.1 as c_ulong, &call) })
}

export! {
    fn process_vm_readv(
        pid: pid_t, local: *const iovec, count: c_ulong, remote: *const iovec, ranges: c_ulong, flags: c_ulong,
    ) -> isize {
        let real = VM_READ.get();
        // SAFETY: the caller's call, with an equivalent local list.
        unsafe {
            receive(-1, local, count as c_int, |local, count| {
                repeat_ranges(pid, (local, count as usize), (remote, ranges as usize), || real(pid, local, count as c_ulong, remote, ranges, flags))
            })
        }
    }
}

export! {
    fn process_vm_writev(
        pid: pid_t, local: *const iovec, count: c_ulong, remote: *const iovec, ranges: c_ulong, flags: c_ulong,
    ) -> isize {
        let real = VM_WRITE.get();
        // SAFETY: as above.
        unsafe {
            send(-1, local, count as c_int, |local, count| {
                repeat_ranges(pid, (local, count as usize), (remote, ranges as usize), || real(pid, local, count as c_ulong, remote, ranges, flags))
            })
        }
    }
}
