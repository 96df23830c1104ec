//! Calls after which the kernel refers to pages of the program: vmsplice, and sends with MSG_ZEROCOPY.
//!
//! Such a reference does not keep a page where it is, and nothing shows it. The kernel's own swap would leave the page
//! to who refers to it. The engine takes it home and uses its frame again, so the pipe or socket would deliver the
//! content of other memory. So what is managed, or may be later, is copied into a pipe, and zero-copy sends are refused
//! as by kernels that lack them.

use std::ffi::{c_int, c_long, c_uint, c_void};

use libc::{iovec, pollfd, socklen_t};

use crate::calls::{copied, vectors};
use crate::ground::export::{export, real};
use crate::ground::real::kernel;
use crate::ground::{guard, state};
use crate::map::adopt;
use crate::memory::held::{self, Grant, Held};
use crate::memory::{access, cover};

real!(SETSOCKOPT = c"setsockopt": fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int);

/// A write that takes this much from a full pipe's reader is made whole by the kernel.
const PIPE_BUF: usize = 4096;

/// Flags of vmsplice that the kernel knows.
const KNOWN: c_uint = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// `vmsplice`, made by number: -1 and errno on failure.
///
/// # Safety
/// As `vmsplice`.
pub unsafe fn splice_memory(fd: c_int, list: *const iovec, count: usize, flags: c_uint) -> isize {
    // SAFETY: the caller's call, or an equivalent one.
    unsafe {
        let as_it_is = || kernel!(libc::SYS_vmsplice, fd, list, count, flags) as isize;
        if guard::inside() || flags & !KNOWN != 0 || !(adopt::is_pending() || vectors::is_managed(list, count)) {
            return as_it_is();
        }
        if kernel!(libc::SYS_fcntl, fd, libc::F_GETPIPE_SZ) < 0 {
            return -1; // no pipe: EBADF, as vmsplice says
        }
        let mode = kernel!(libc::SYS_fcntl, fd, libc::F_GETFL) as c_int;
        if mode & libc::O_ACCMODE == libc::O_RDONLY {
            let call =
                |list: *const iovec, count: c_int, _| kernel!(libc::SYS_vmsplice, fd, list, count, flags) as isize;
            return vectors::receive(fd, list, count as c_int, -1, call);
        }
        let is_blocking = flags & libc::SPLICE_F_NONBLOCK == 0;
        vectors::send_some(list, count as c_int, |list, count| {
            let list = std::slice::from_raw_parts(list, count as usize);
            let kept = state::errno();
            let filled = fill_pipe(fd, list, is_blocking, mode & libc::O_NONBLOCK != 0);
            if filled >= 0 {
                state::fail(kept);
            }
            filled
        })
    }
}

/// Writes as much to a pipe as fits. Waits for room first if there is none, and if that is wanted.
///
/// # Safety
/// The buffers may be read.
unsafe fn fill_pipe(fd: c_int, list: &[iovec], is_blocking: bool, returns_at_once: bool) -> isize {
    let put = |list: &[iovec]| {
        // SAFETY: the caller's buffers. Offset -1 is that of a stream.
        unsafe { kernel!(libc::SYS_pwritev2, fd, list.as_ptr(), list.len(), -1i64, 0usize, libc::RWF_NOWAIT) as isize }
    };
    loop {
        let result = put(list);
        if result >= 0 || !is_blocking || state::errno() != libc::EAGAIN {
            let by_pages = result < 0 && state::errno() == libc::EOPNOTSUPP;
            // SAFETY: the caller's buffers.
            return if by_pages { unsafe { fill_by_pages(fd, list, is_blocking) } } else { result };
        }
        if returns_at_once {
            if !has_room(fd, -1) {
                return -1; // interrupted
            }
            continue;
        }
        // A write that waits goes on after signals as the program wants it to.
        let Some(first) = list.iter().find(|buffer| buffer.iov_len > 0) else { return 0 };
        let len = first.iov_len.min(PIPE_BUF);
        // SAFETY: the caller's buffer.
        let begun = unsafe { kernel!(libc::SYS_write, fd, first.iov_base, len) as isize };
        if begun < len as isize {
            return begun;
        }
        let rest = vectors::part(list, len, usize::MAX);
        return if rest.is_empty() { begun } else { begun + state::keeping_errno(|| put(&rest)).max(0) };
    }
}

/// The same for a kernel, or a named pipe, that only takes writes that may wait. A pipe that is writable has room for
/// a page.
///
/// # Safety
/// The buffers may be read.
unsafe fn fill_by_pages(fd: c_int, list: &[iovec], is_blocking: bool) -> isize {
    let mut done = 0;
    for buffer in list {
        let mut at = 0;
        while at < buffer.iov_len {
            if !has_room(fd, if is_blocking && done == 0 { -1 } else { 0 }) {
                return if done > 0 { done } else { -1 };
            }
            let len = (buffer.iov_len - at).min(PIPE_BUF);
            // SAFETY: part of the caller's buffer.
            let result = unsafe { kernel!(libc::SYS_write, fd, buffer.iov_base.wrapping_byte_add(at), len) as isize };
            if result < 0 {
                return if done > 0 { done } else { -1 };
            }
            (done, at) = (done + result, at + result as usize);
        }
    }
    done
}

/// Whether a write finds room within `limit_ms`, or an error. If not, sets errno.
fn has_room(fd: c_int, limit_ms: c_int) -> bool {
    let mut one = pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: a list of one.
    let result = unsafe { kernel!(libc::SYS_poll, &raw mut one, 1usize, limit_ms) };
    if result == 0 {
        state::fail(libc::EAGAIN);
    }
    result > 0
}

export! {
    fn vmsplice(fd: c_int, list: *const iovec, count: usize, flags: c_uint) -> isize {
        real!(END_IF_CANCELLED = c"pthread_testcancel": fn() -> ());
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe {
            END_IF_CANCELLED.get()(); // as in the C library's
            splice_memory(fd, list, count, flags)
        }
    }
}

/// Whether an option would have a socket refer to pages. The answer of a kernel without it is ENOPROTOOPT.
pub fn is_zero_copy(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY && state::may_manage() && !guard::inside()
}

/// Whether an option gives an AF_XDP socket its area.
fn is_area(level: c_int, name: c_int) -> bool {
    const XDP_UMEM_REG: c_int = 4;
    level == libc::SOL_XDP && name == XDP_UMEM_REG && !guard::inside()
}

/// Holds the area that the kernel is to pin: it waits for no missing page of that. Once pinned, it stays in RAM.
///
/// # Safety
/// The value of [`is_area`]'s option.
unsafe fn hold_area(at: *const c_void) -> Option<(Held, Grant)> {
    // SAFETY: any two words are an address and a length.
    let [start, len] = unsafe { access::read(at.cast::<[usize; 2]>()) }?;
    let range = start..start.checked_add(len)?;
    let grant = Grant::of(held::span(&range))?;
    Some((Held::new(start, len), grant))
}

export! {
    fn setsockopt(fd: c_int, level: c_int, name: c_int, at: *const c_void, len: socklen_t) -> c_int {
        if is_zero_copy(level, name) {
            state::fail(libc::ENOPROTOOPT);
            return -1;
        }
        // SAFETY: the caller's value.
        let _held = if is_area(level, name) { unsafe { hold_area(at) } } else { None };
        // What the value points to, such as the instructions of a filter, is touched if the call was made in vain.
        let touch = || cover::structure(at, len as usize);
        // SAFETY: the caller's call, with a copy of the value.
        cover::repeat(touch, || unsafe {
            let copy = copied::bytes(at, len as usize);
            SETSOCKOPT.get()(fd, level, name, copy.at(at), len)
        })
    }
}

/// Whether a send must not be made: the socket, which another program has set up, would refer to managed memory.
/// ENOBUFS has a program send without MSG_ZEROCOPY.
pub fn refuses(fd: c_int, flags: c_int, is_managed: impl Fn() -> bool) -> bool {
    if flags & libc::MSG_ZEROCOPY == 0 || !state::may_manage() || guard::inside() {
        return false;
    }
    if !adopt::is_pending() && !is_managed() {
        return false;
    }
    let (mut on, mut len): (c_int, socklen_t) = (0, size_of::<c_int>() as socklen_t);
    let kept = state::errno();
    // SAFETY: the kernel fills in the locals.
    unsafe { kernel!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &raw mut on, &raw mut len) };
    state::fail(if on != 0 { libc::ENOBUFS } else { kept });
    on != 0
}

/// These calls when they are made by number: the kernel's result, -1 and errno on failure.
///
/// # Safety
/// As the system call.
pub unsafe fn by_number(number: c_long, &[a, b, c, d, e, _]: &[usize; 6]) -> Option<isize> {
    match number {
        // SAFETY: passes the caller's arguments on unchanged.
        libc::SYS_vmsplice => Some(unsafe { splice_memory(a as c_int, b as *const iovec, c, d as c_uint) }),
        libc::SYS_setsockopt if is_zero_copy(b as c_int, c as c_int) => {
            state::fail(libc::ENOPROTOOPT);
            Some(-1)
        }
        libc::SYS_setsockopt if is_area(b as c_int, c as c_int) => {
            // SAFETY: as above.
            let set = unsafe { setsockopt(a as c_int, b as c_int, c as c_int, d as *const c_void, e as socklen_t) };
            Some(set as isize)
        }
        _ => None,
    }
}
