//! Transfers of bytes: read, write, send, recv and their kin.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use libc::{iovec, sockaddr, socklen_t};

use crate::calls::{copied, pagemap, references, remote, vectors};
use crate::ground::export::{aliases, export, made, made_both, real};
use crate::ground::real::By;
use crate::ground::state;
use crate::memory::cover;
use crate::memory::transfer::{self, Awaits, Kind, Pieces};

made! {
    fn real_read = c"read", SYS_read(fd: c_int, at: *mut c_void, len: usize) -> isize;
    fn real_pread = c"pread64", SYS_pread64(fd: c_int, at: *mut c_void, len: usize, offset: i64) -> isize;
    fn real_write = c"write", SYS_write(fd: c_int, at: *const c_void, len: usize) -> isize;
    fn real_pwrite = c"pwrite64", SYS_pwrite64(fd: c_int, at: *const c_void, len: usize, offset: i64) -> isize;
    fn real_recvfrom = c"recvfrom", SYS_recvfrom(
        fd: c_int, at: *mut c_void, len: usize, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t,
    ) -> isize;
    fn real_sendto = c"sendto", SYS_sendto(
        fd: c_int, at: *const c_void, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t,
    ) -> isize;
}
real!(RECV = c"recv": fn(c_int, *mut c_void, usize, c_int) -> isize);
real!(SEND = c"send": fn(c_int, *const c_void, usize, c_int) -> isize);
real!(ARC4RANDOM_BUF = c"arc4random_buf": fn(*mut c_void, usize) -> ());
real!(GETRANDOM = c"getrandom": fn(*mut c_void, usize, c_uint) -> isize);

/// How a transfer on a descriptor proceeds. `other` is used for streams, and for what fits a bounce buffer.
pub fn pieces(fd: c_int, buffer: *const c_void, len: usize, other: Pieces) -> Pieces {
    pieces_of(transfer::kind, fd, buffer, len, other)
}

/// How a read proceeds.
pub fn read_pieces(fd: c_int, buffer: *const c_void, len: usize, other: Pieces) -> Pieces {
    in_one_call(fd, buffer, len, pieces_of(transfer::kind_for_read, fd, buffer, len, other))
}

/// How a transfer proceeds that does so in these pieces: in one call, if the kernel is to wait for more than a piece.
fn in_one_call(fd: c_int, buffer: *const c_void, len: usize, pieces: Pieces) -> Pieces {
    let may_be_one = transfer::exceeds_bounce(len) && len <= transfer::MOST_MESSAGE_BYTES;
    let is_covered = may_be_one && pieces == Pieces::Available && cover::needed(buffer as usize, len);
    if is_covered && transfer::awaits_much(fd) { Pieces::Whole } else { pieces }
}

fn pieces_of(kind: fn(c_int) -> Kind, fd: c_int, buffer: *const c_void, len: usize, other: Pieces) -> Pieces {
    if cover::needed(buffer as usize, len) && transfer::exceeds_bounce(len) {
        match kind(fd) {
            Kind::Storage => Pieces::Storage,
            Kind::Characters => Pieces::Records,
            Kind::Datagrams => Pieces::Whole,
            Kind::Stream => other,
        }
    } else {
        transfer::pins(fd, buffer as usize, len).unwrap_or(other)
    }
}

made_both! {
    fn read, read_by(by, fd: c_int, buffer: *mut c_void, len: usize) -> isize {
        let len = transfer::at_most(buffer, len);
        let pieces = read_pieces(fd, buffer, len, Pieces::Available);
        // SAFETY: the caller's call; each piece lies in the caller's buffer or in a bounce buffer.
        let result = transfer::receive(buffer, len, pieces, |at, len, done| unsafe {
            if done > 0
                && pieces == Pieces::Available
                && let Some(result) = vectors::read_more(fd, &[iovec { iov_base: at, iov_len: len }])
            {
                return result;
            }
            remote::transfer(fd, len, None, |more| real_read(by, fd, at.byte_add(more), len - more))
        });
        pagemap::after_read(fd, buffer, result, None);
        result
    }
}

export! {
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: usize, room: usize) -> isize {
        check(len, room);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { read(fd, buffer, len) }
    }
}

/// Aborts as glibc's checking variants do when the buffer is too small.
pub fn check(len: usize, room: usize) {
    if len > room {
        crate::ground::state::say("*** buffer overflow detected ***: terminated");
        std::process::abort();
    }
}

made_both! {
    fn pread, pread_by(by, fd: c_int, buffer: *mut c_void, len: usize, offset: i64) -> isize {
        let len = transfer::at_most(buffer, len);
        let pieces = read_pieces(fd, buffer, len, Pieces::Available);
        // SAFETY: the caller's call; each piece lies in the caller's buffer or in a bounce buffer.
        let result = transfer::receive(buffer, len, pieces, |at, len, done| unsafe {
            let offset = offset.wrapping_add(done as i64);
            remote::transfer(fd, len, Some(offset), |more| {
                real_pread(by, fd, at.byte_add(more), len - more, offset.wrapping_add(more as i64))
            })
        });
        pagemap::after_read(fd, buffer, result, Some(offset));
        result
    }
}

export! {
    fn __pread_chk(fd: c_int, buffer: *mut c_void, len: usize, offset: i64, room: usize) -> isize {
        check(len, room);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { pread(fd, buffer, len, offset) }
    }

    fn __pread64_chk(fd: c_int, buffer: *mut c_void, len: usize, offset: i64, room: usize) -> isize {
        check(len, room);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { pread(fd, buffer, len, offset) }
    }
}

made_both! {
    fn write, write_by(by, fd: c_int, buffer: *const c_void, len: usize) -> isize {
        let len = transfer::at_most(buffer, len);
        let pieces = pieces(fd, buffer, len, Pieces::All(Awaits::More(by, fd)));
        // SAFETY: the caller's call; each piece lies in the caller's buffer or in a bounce buffer.
        transfer::send(buffer, len, pieces, |at, len, _| unsafe {
            remote::transfer_to(fd, len, None, |done, len| real_write(by, fd, at.byte_add(done), len))
        })
    }

    fn pwrite, pwrite_by(by, fd: c_int, buffer: *const c_void, len: usize, offset: i64) -> isize {
        let len = transfer::at_most(buffer, len);
        let pieces = pieces(fd, buffer, len, Pieces::All(Awaits::More(by, fd)));
        // SAFETY: the caller's call; each piece lies in the caller's buffer or in a bounce buffer.
        transfer::send(buffer, len, pieces, |at, len, done| unsafe {
            let offset = offset.wrapping_add(done as i64);
            remote::transfer_to(fd, len, Some(offset), |done, len| {
                real_pwrite(by, fd, at.byte_add(done), len, offset.wrapping_add(done as i64))
            })
        })
    }
}

/// How a transfer from a socket proceeds.
fn receiving(by: By, fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> Pieces {
    let is_once = flags & (libc::MSG_PEEK | libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0;
    let other = match flags & libc::MSG_WAITALL {
        _ if is_once => Pieces::Whole,
        0 => Pieces::Available,
        _ if len <= transfer::MOST_MESSAGE_BYTES => Pieces::Whole,
        _ if flags & libc::MSG_DONTWAIT != 0 => Pieces::All(Awaits::Nothing),
        _ => Pieces::All(Awaits::More(by, fd)),
    };
    in_one_call(fd, buffer, len, pieces(fd, buffer, len, other))
}

/// The flags for receiving a piece that begins `done` bytes in; `None`: there is no more.
fn receiving_flags(fd: c_int, pieces: Pieces, done: usize, flags: c_int) -> Option<c_int> {
    match done > 0 && pieces == Pieces::Available {
        true => vectors::has_more(fd).then_some(flags | libc::MSG_DONTWAIT),
        false => Some(flags),
    }
}

/// Whether a call discards what it receives, as TCP does with MSG_TRUNC. The kernel does not touch the buffer then.
pub fn discards(fd: c_int, flags: c_int) -> bool {
    const IPPROTO_MPTCP: c_int = 262;
    let protocol = || transfer::number_of(fd, libc::SO_PROTOCOL);
    flags & libc::MSG_TRUNC != 0 && protocol().is_some_and(|of| [libc::IPPROTO_TCP, IPPROTO_MPTCP].contains(&of))
}

/// The flags for sending one of the pieces of `all` bytes.
fn sending_flags(done: usize, len: usize, all: usize, flags: c_int) -> c_int {
    flags_of_part(flags, done == 0, done + len >= all)
}

/// The flags for sending the first part, the last one, or another. A later one raises no SIGPIPE, as the call has a
/// result, and connects no more. Only the last has the byte that is urgent.
pub fn flags_of_part(flags: c_int, is_first: bool, is_last: bool) -> c_int {
    let flags = if is_first { flags } else { (flags | libc::MSG_NOSIGNAL) & !libc::MSG_FASTOPEN };
    if is_last { flags } else { flags & !libc::MSG_OOB }
}

/// Receives by a call that gets a piece and its flags, and how much came before it.
fn received(
    by: By,
    fd: c_int,
    (buffer, len, flags): (*mut c_void, usize, c_int),
    call: impl Fn(*mut c_void, usize, c_int, usize) -> isize,
) -> isize {
    let len = len.min(transfer::MOST_BYTES);
    if discards(fd, flags) {
        return call(buffer, len, flags, 0);
    }
    let pieces = receiving(by, fd, buffer, len, flags);
    transfer::receive(buffer, len, pieces, |at, len, done| {
        receiving_flags(fd, pieces, done, flags).map_or(-1, |flags| call(at, len, flags, done))
    })
}

export! {
    fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize {
        // SAFETY: the caller's call; each piece lies in the caller's buffer or in a bounce buffer.
        received(By::Name, fd, (buffer, len, flags), |at, len, flags, _| unsafe { RECV.get()(fd, at, len, flags) })
    }

    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: usize, room: usize, flags: c_int) -> isize {
        check(len, room);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { recv(fd, buffer, len, flags) }
    }
}

/// Receives with a copy of the sender's address buffer, which the kernel always finds present.
///
/// # Safety
/// Each pointer is null or the program's, as for `recvfrom`.
unsafe fn with_address(
    from: *mut sockaddr,
    len: *mut socklen_t,
    call: impl Fn(*mut sockaddr, *mut socklen_t) -> isize,
) -> isize {
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        let copies = [copied::named(from, len), copied::value(len)];
        let result = call(copies[0].at(from), copies[1].at(len));
        copied::bring_all_back(&copies, result)
    }
}

made_both! {
    fn recvfrom, recvfrom_by(
        by, fd: c_int, buffer: *mut c_void, len: usize, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t,
    ) -> isize {
        // SAFETY: the caller's call; each piece lies in the caller's buffer or in a bounce buffer.
        unsafe {
            with_address(from, from_len, |from, from_len| {
                received(by, fd, (buffer, len, flags), |at, len, flags, done| {
                    let (from, from_len) = if done == 0 { (from, from_len) } else { (null_mut(), null_mut()) };
                    real_recvfrom(by, fd, at, len, flags, from, from_len)
                })
            })
        }
    }
}

export! {
    fn __recvfrom_chk(
        fd: c_int, buffer: *mut c_void, len: usize, room: usize, flags: c_int, from: *mut sockaddr,
        from_len: *mut socklen_t,
    ) -> isize {
        check(len, room);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { recvfrom(fd, buffer, len, flags, from, from_len) }
    }
}

/// Sends by a call that gets a piece and its flags.
fn sent(
    by: By,
    fd: c_int,
    (buffer, len, flags): (*const c_void, usize, c_int),
    call: impl Fn(*const c_void, usize, c_int) -> isize,
) -> isize {
    let len = len.min(transfer::MOST_BYTES);
    if references::refuses(fd, flags, || state::overlaps(buffer as usize, len)) {
        return -1;
    }
    let pieces = pieces(fd, buffer, len, Pieces::All(Awaits::More(by, fd)));
    transfer::send(buffer, len, pieces, |at, part, done| call(at, part, sending_flags(done, part, len, flags)))
}

export! {
    fn send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize {
        // SAFETY: the caller's call; each piece lies in the caller's buffer or in a bounce buffer.
        sent(By::Name, fd, (buffer, len, flags), |at, len, flags| unsafe { SEND.get()(fd, at, len, flags) })
    }
}

made_both! {
    fn sendto, sendto_by(
        by, fd: c_int, buffer: *const c_void, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t,
    ) -> isize {
        // SAFETY: the caller's call, in pieces that lie in its buffer or in a bounce buffer, with a copy of the
        // address.
        unsafe {
            let address = copied::bytes(to, to_len as usize);
            sent(by, fd, (buffer, len, flags), |at, len, flags| {
                real_sendto(by, fd, at, len, flags, address.at(to), to_len)
            })
        }
    }
}

export! {
    fn arc4random_buf(buffer: *mut c_void, len: usize) -> () {
        let real = ARC4RANDOM_BUF.get();
        // SAFETY: the caller's call; each piece lies in the caller's buffer or in a bounce buffer.
        transfer::receive(buffer, len, Pieces::All(Awaits::Nothing), |at, len, _| unsafe {
            real(at, len);
            len as isize
        });
    }

    fn getrandom(buffer: *mut c_void, len: usize, flags: c_uint) -> isize {
        let (real, len) = (GETRANDOM.get(), len.min(transfer::MOST_BYTES));
        // SAFETY: the caller's call; each piece lies in the caller's buffer or in a bounce buffer.
        transfer::receive(buffer, len, Pieces::All(Awaits::Nothing), |at, len, _| unsafe { real(at, len, flags) })
    }
}

aliases! {
    fn pread64 = pread(fd: c_int, buffer: *mut c_void, len: usize, offset: i64) -> isize;
    fn pwrite64 = pwrite(fd: c_int, buffer: *const c_void, len: usize, offset: i64) -> isize;
    fn __read = read(fd: c_int, buffer: *mut c_void, len: usize) -> isize;
    fn __write = write(fd: c_int, buffer: *const c_void, len: usize) -> isize;
    fn __pread64 = pread64(fd: c_int, buffer: *mut c_void, len: usize, offset: i64) -> isize;
    fn __pwrite64 = pwrite64(fd: c_int, buffer: *const c_void, len: usize, offset: i64) -> isize;
    fn __send = send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize;
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_not_managed_passes() {
        let mut bytes = [0u8; 8];
        let zero = std::fs::File::open("/dev/zero").unwrap();
        // SAFETY: a buffer of that many bytes.
        let got = unsafe { super::pread(std::os::fd::AsRawFd::as_raw_fd(&zero), bytes.as_mut_ptr().cast(), 8, 0) };
        assert_eq!(got, 8);
    }
}
