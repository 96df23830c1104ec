//! Several buffers at once: readv, writev, sendmsg, recvmsg.
//!
//! Those of the buffers that are managed are stood in for, up to a megabyte in all; a list that is longer is cut
//! there, and the call gives or takes less than all, as it may at any time.

use std::ffi::{c_int, c_void};

use libc::{iovec, msghdr};

use crate::cover::{self, Bounce};
use crate::export::{export, real};
use crate::{guard, state};

real!(READV = c"readv": fn(c_int, *const iovec, c_int) -> isize);
real!(WRITEV = c"writev": fn(c_int, *const iovec, c_int) -> isize);
real!(PREADV = c"preadv64": fn(c_int, *const iovec, c_int, i64) -> isize);
real!(PWRITEV = c"pwritev64": fn(c_int, *const iovec, c_int, i64) -> isize);
real!(SENDMSG = c"sendmsg": fn(c_int, *const msghdr, c_int) -> isize);
real!(RECVMSG = c"recvmsg": fn(c_int, *mut msghdr, c_int) -> isize);

/// The most bytes that are stood in for in one call.
const MOST_BYTES: usize = 1 << 20;

/// A list of buffers of which the managed ones are stood in for.
struct StandIn {
    list: Vec<iovec>,
    /// Index in the list, the program's buffer, what stands in for it.
    bounces: Vec<(usize, iovec, Bounce)>,
}

/// Whether any buffer of the list, or the list itself, is managed.
///
/// # Safety
/// A list of that many buffers.
unsafe fn needed(fd: c_int, list: *const iovec, count: usize) -> bool {
    if state::space().is_none() || guard::inside() || list.is_null() {
        return false;
    }
    // SAFETY: the caller's list.
    let buffers = unsafe { std::slice::from_raw_parts(list, count) };
    cover::needed(list as usize, size_of_val(buffers))
        || buffers.iter().any(|buffer| {
            let (addr, len) = (buffer.iov_base as usize, buffer.iov_len);
            cover::needed(addr, len) || cover::pins(fd, addr, len)
        })
}

impl StandIn {
    /// `None` when there is no memory for it.
    ///
    /// # Safety
    /// A list of that many buffers.
    unsafe fn new(list: *const iovec, count: usize) -> Option<StandIn> {
        let _guard = guard::enter();
        // SAFETY: the caller's list.
        let list = unsafe { std::slice::from_raw_parts(list, count) };
        let mut stand_in = StandIn { list: Vec::with_capacity(count), bounces: Vec::new() };
        let mut left = MOST_BYTES;
        for &buffer in list {
            let mut own = buffer;
            if cover_needed_under_guard(&buffer) {
                let len = buffer.iov_len.min(left);
                if len == 0 {
                    break;
                }
                let bounce = Bounce::new(buffer.iov_base as usize, len)?;
                left -= len;
                own = iovec { iov_base: bounce.as_ptr().cast(), iov_len: len };
                let whole = len == buffer.iov_len;
                let theirs = iovec { iov_base: buffer.iov_base, iov_len: len };
                stand_in.bounces.push((stand_in.list.len(), theirs, bounce));
                stand_in.list.push(own);
                if !whole {
                    break;
                }
                continue;
            }
            stand_in.list.push(own);
        }
        Some(stand_in)
    }

    /// Fills the stand-ins from the program's buffers.
    fn copy_out(&self) {
        for (_, theirs, bounce) in &self.bounces {
            // SAFETY: the program's buffer, and a block of that length.
            unsafe { std::ptr::copy_nonoverlapping(theirs.iov_base.cast::<u8>(), bounce.as_ptr(), theirs.iov_len) };
        }
    }

    /// Gives the program's buffers what the call brought: `received` bytes over the whole list.
    fn copy_in(&self, received: isize) {
        let mut left = received.max(0) as usize;
        let mut bounces = self.bounces.iter();
        let mut next = bounces.next();
        for (index, buffer) in self.list.iter().enumerate() {
            let here = left.min(buffer.iov_len);
            if let Some((at, theirs, bounce)) = next
                && *at == index
            {
                // SAFETY: a block of which the kernel has filled in that much, and the program's buffer.
                unsafe { std::ptr::copy_nonoverlapping(bounce.as_ptr(), theirs.iov_base.cast::<u8>(), here) };
                next = bounces.next();
            }
            left -= here;
        }
    }
}

/// `cover::needed` looks at the caller, which is this library's own code here.
fn cover_needed_under_guard(buffer: &iovec) -> bool {
    buffer.iov_len > 0 && state::overlaps(buffer.iov_base as usize, buffer.iov_len)
}

/// # Safety
/// A list of that many buffers to be filled.
unsafe fn receive(fd: c_int, list: *const iovec, count: c_int, call: impl Fn(*const iovec, c_int) -> isize) -> isize {
    // SAFETY: handed on.
    let Some(stand_in) = (unsafe { stand_in(fd, list, count) }) else { return call(list, count) };
    let result = call(stand_in.list.as_ptr(), stand_in.list.len() as c_int);
    stand_in.copy_in(result);
    result
}

/// # Safety
/// A list of that many buffers to be read.
unsafe fn send(fd: c_int, list: *const iovec, count: c_int, call: impl Fn(*const iovec, c_int) -> isize) -> isize {
    // SAFETY: handed on.
    let Some(stand_in) = (unsafe { stand_in(fd, list, count) }) else { return call(list, count) };
    stand_in.copy_out();
    call(stand_in.list.as_ptr(), stand_in.list.len() as c_int)
}

/// # Safety
/// A list of that many buffers.
unsafe fn stand_in(fd: c_int, list: *const iovec, count: c_int) -> Option<StandIn> {
    let count = usize::try_from(count).ok().filter(|&count| count <= 1024)?;
    // SAFETY: handed on.
    unsafe { if needed(fd, list, count) { StandIn::new(list, count) } else { None } }
}

export! {
    fn readv(fd: c_int, list: *const iovec, count: c_int) -> isize {
        // SAFETY: the caller's own call, with a list as good as its own.
        unsafe { receive(fd, list, count, |list, count| READV.get()(fd, list, count)) }
    }
}

export! {
    fn writev(fd: c_int, list: *const iovec, count: c_int) -> isize {
        // SAFETY: as above.
        unsafe { send(fd, list, count, |list, count| WRITEV.get()(fd, list, count)) }
    }
}

export! {
    fn preadv(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize {
        // SAFETY: as above.
        unsafe { receive(fd, list, count, |list, count| PREADV.get()(fd, list, count, offset)) }
    }
}

export! {
    fn preadv64(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize {
        // SAFETY: the same function under another name.
        unsafe { preadv(fd, list, count, offset) }
    }
}

export! {
    fn pwritev(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize {
        // SAFETY: as above.
        unsafe { send(fd, list, count, |list, count| PWRITEV.get()(fd, list, count, offset)) }
    }
}

export! {
    fn pwritev64(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize {
        // SAFETY: the same function under another name.
        unsafe { pwritev(fd, list, count, offset) }
    }
}

/// Brings in a message's name and control data.
///
/// # Safety
/// A message's header.
unsafe fn touch_header(message: *const msghdr) {
    // SAFETY: the caller's header; reading it brings it in.
    let header = unsafe { *message };
    cover::touch(header.msg_name.cast::<c_void>(), header.msg_namelen as usize);
    cover::touch(header.msg_control.cast::<c_void>(), header.msg_controllen);
}

export! {
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
        if !state::direct() || message.is_null() {
            // SAFETY: the caller's own call.
            return unsafe { SENDMSG.get()(fd, message, flags) };
        }
        // SAFETY: the caller's header, of which a copy is changed.
        unsafe {
            touch_header(message);
            let header = *message;
            send(fd, header.msg_iov, header.msg_iovlen as c_int, |list, count| {
                let mut own = header;
                own.msg_iov = list.cast_mut();
                own.msg_iovlen = count as usize;
                SENDMSG.get()(fd, &raw const own, flags)
            })
        }
    }
}

export! {
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
        if !state::direct() || message.is_null() {
            // SAFETY: the caller's own call.
            return unsafe { RECVMSG.get()(fd, message, flags) };
        }
        // SAFETY: the caller's header, of which a copy is handed on; what the kernel says in it is handed back.
        unsafe {
            touch_header(message);
            let header = *message;
            let after = std::cell::Cell::new(header);
            let result = receive(fd, header.msg_iov, header.msg_iovlen as c_int, |list, count| {
                let mut own = header;
                own.msg_iov = list.cast_mut();
                own.msg_iovlen = count as usize;
                let result = RECVMSG.get()(fd, &raw mut own, flags);
                after.set(own);
                result
            });
            let after = after.get();
            (*message).msg_namelen = after.msg_namelen;
            (*message).msg_controllen = after.msg_controllen;
            (*message).msg_flags = after.msg_flags;
            result
        }
    }
}
