//! Messages: sendmsg, recvmsg, sendmmsg and recvmmsg. Address, control data and buffers go through copies, because the
//! kernel drops a datagram that it cannot copy out.

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::ptr::without_provenance_mut;

use libc::{mmsghdr, msghdr, timespec};

use crate::calls::copied::{self, Copied};
use crate::calls::vectors::{StandIn, buffers, names_managed, part};
use crate::calls::{io, references};
use crate::ground::export::{made, made_both};
use crate::ground::{guard, state};
use crate::memory::access::{self, Access};
use crate::memory::bounce::Bounce;
use crate::memory::cover::Outcome;
use crate::memory::transfer::no_memory;

made! {
    fn real_sendmsg = c"sendmsg", SYS_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    fn real_recvmsg = c"recvmsg", SYS_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    fn real_sendmmsg = c"sendmmsg", SYS_sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn real_recvmmsg = c"recvmmsg", SYS_recvmmsg(
        fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int, limit: *mut timespec,
    ) -> c_int;
}

/// The most messages that the kernel takes at once.
const MOST_MESSAGES: usize = 1024;

/// What follows the length of a message. Behind the last one it may lie beyond the program's memory.
const PADDING_BYTES: usize = size_of::<mmsghdr>() - offset_of!(mmsghdr, msg_len) - size_of::<c_uint>();

/// The most bytes of bounce buffers for several messages.
const MOST_BYTES: usize = 64 << 20;

/// A message header, with copies of the parts that need one.
struct Message {
    own: msghdr,
    name: Copied,
    control: Copied,
    list: Option<StandIn>,
}

impl Message {
    /// A message that is to be sent, or received with these flags.
    ///
    /// # Safety
    /// The header and everything that it names are the program's.
    unsafe fn new(fd: c_int, header: &msghdr, receives: Option<c_int>) -> Message {
        let received = receives.is_some();
        // SAFETY: the caller upholds this function's own contract.
        unsafe {
            let name = Copied::new(header.msg_name as usize, header.msg_namelen as usize, received);
            let control = Copied::new(header.msg_control as usize, header.msg_controllen, received);
            let list = match receives {
                Some(flags) if io::discards(fd, flags) => StandIn::of_discarded(header.msg_iov, header.msg_iovlen),
                _ => StandIn::of_message(fd, header.msg_iov, header.msg_iovlen, received),
            };
            let mut own = *header;
            own.msg_name = name.addr() as *mut _;
            own.msg_control = control.addr() as *mut _;
            if let Some(list) = &list {
                if !received {
                    list.copy_out();
                }
                (own.msg_iov, own.msg_iovlen) = (list.as_ptr().cast_mut(), list.len());
            }
            Message { own, name, control, list }
        }
    }

    /// Whether the message is to be sent, and is longer than one piece can be.
    fn is_too_long(&self) -> bool {
        self.list.as_ref().is_some_and(|list| list.is_too_long)
    }

    /// Copies back what was received: `bytes` of data, and the kernel's results in the header. Returns what the
    /// program gets.
    ///
    /// # Safety
    /// The header is the program's, or was.
    unsafe fn bring_back(&self, header: *mut msghdr, bytes: isize) -> isize {
        // SAFETY: the caller upholds this function's own contract.
        unsafe {
            let is_told = (self.own.msg_name.is_null() || put(&raw mut (*header).msg_namelen, self.own.msg_namelen))
                && put(&raw mut (*header).msg_controllen, self.own.msg_controllen)
                && put(&raw mut (*header).msg_flags, self.own.msg_flags);
            if !is_told {
                return isize::refused();
            }
            let bytes = copied::bring_all_back([&self.name, &self.control], bytes);
            match &self.list {
                Some(list) if bytes >= 0 => list.copy_in(bytes),
                _ => bytes,
            }
        }
    }
}

/// Makes a call with a copy of a header: this stack may have left RAM when a message has come, and the kernel writes to
/// the header.
fn apart(header: &mut msghdr, call: impl Fn(*mut msghdr) -> isize) -> isize {
    let Some(place) = Bounce::new(0, size_of::<msghdr>()) else { return no_memory() };
    let copy = place.as_ptr().cast::<msghdr>();
    // SAFETY: the bounce buffer is as long, and begins with a page.
    unsafe {
        copy.write(*header);
        let result = call(copy);
        *header = copy.read();
        result
    }
}

/// Writes a part of the program's header, of which others may be read only. `false`: it may not be written.
///
/// # Safety
/// The header is the program's, or was.
unsafe fn put<T>(at: *mut T, value: T) -> bool {
    let may = access::is_open(at as usize, size_of::<T>(), Access::Write);
    if may {
        // SAFETY: the caller upholds this function's own contract, and it may be written. It need not be aligned.
        unsafe { at.write_unaligned(value) };
    }
    may
}

/// Sends a message, one that is longer than a copy can be in parts: `call` gets the header and the flags to use.
///
/// # Safety
/// The header and everything that it names are the program's.
unsafe fn send(fd: c_int, header: *const msghdr, flags: c_int, call: &dyn Fn(*const msghdr, c_int) -> isize) -> isize {
    if !state::direct() || guard::inside() || header.is_null() {
        return call(header, flags);
    }
    // SAFETY: the caller upholds this function's own contract.
    let Some(theirs) = (unsafe { access::read(header) }) else { return call(header, flags) };
    // SAFETY: as above.
    let mut message = unsafe { Message::new(fd, &theirs, None) };
    if message.is_too_long() {
        state::fail(libc::EMSGSIZE);
        return -1;
    }
    let cut = message.list.as_ref().filter(|list| list.is_cut).map(StandIn::bytes);
    let flags_of_first = io::flags_of_part(flags, true, cut.is_none());
    let sent = apart(&mut message.own, |header| call(header, flags_of_first));
    if cut.is_none_or(|len| usize::try_from(sent) != Ok(len)) {
        return sent;
    }
    // SAFETY: the list was read above.
    let rest = part(unsafe { buffers(theirs.msg_iov, theirs.msg_iovlen) }, sent as usize, usize::MAX);
    drop(message); // its copies have room for the next part
    let header = msghdr {
        msg_iov: rest.as_ptr().cast_mut(),
        msg_iovlen: rest.len(),
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        ..theirs
    };
    // SAFETY: the rest of the program's message.
    sent + unsafe { send(fd, &raw const header, io::flags_of_part(flags, false, true), call) }.max(0)
}

/// Receives a message: `call` gets the header to use.
///
/// # Safety
/// The header and everything that it names are the program's.
unsafe fn receive(fd: c_int, header: *mut msghdr, flags: c_int, call: impl Fn(*mut msghdr) -> isize) -> isize {
    if !state::direct() || guard::inside() || header.is_null() {
        return call(header);
    }
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        let Some(theirs) = access::read(header.cast_const()) else { return call(header) };
        let mut message = Message::new(fd, &theirs, Some(flags));
        let result = apart(&mut message.own, call);
        if result >= 0 { message.bring_back(header, result) } else { result }
    }
}

/// What a call returns whose message of this index has no place to go.
fn several_done(index: usize) -> c_int {
    if index == 0 { c_int::refused() } else { index as c_int }
}

/// Sends several messages, or receives them with these flags: `call` gets the headers to use.
///
/// # Safety
/// The list has `count` headers, which are the program's with everything that they name.
unsafe fn several(
    fd: c_int,
    list: *mut mmsghdr,
    count: c_uint,
    receives: Option<c_int>,
    call: impl Fn(*mut mmsghdr, c_uint) -> c_int,
) -> c_int {
    let received = receives.is_some();
    if !state::direct() || guard::inside() || list.is_null() || count == 0 {
        return call(list, count);
    }
    let wanted = (count as usize).min(MOST_MESSAGES);
    let access = if received { Access::Write } else { Access::Read };
    let open = access::prefix(list as usize, wanted * size_of::<mmsghdr>(), access) + PADDING_BYTES;
    let count = match open / size_of::<mmsghdr>() {
        0 => return call(list, count),
        readable => readable,
    };
    // SAFETY: the caller upholds this function's own contract. Reading a header faults it in.
    unsafe {
        let (mut messages, mut own) = {
            let _guard = guard::enter();
            (Vec::<Message>::with_capacity(count), Vec::<mmsghdr>::with_capacity(count + 1))
        };
        let mut nr_bytes = 0;
        for index in 0..count {
            let theirs = list.add(index);
            let message = Message::new(fd, &(*theirs).msg_hdr, receives);
            nr_bytes += message.list.as_ref().map_or(0, StandIn::nr_bytes);
            // A call may take fewer messages than it is given.
            if !received && message.is_too_long() || index > 0 && nr_bytes > MOST_BYTES {
                break;
            }
            let is_cut = message.list.as_ref().is_some_and(|list| list.is_cut);
            messages.push(message);
            own.push(mmsghdr { msg_hdr: messages[index].own, msg_len: (*theirs).msg_len });
            let is_told = || access::is_open(&raw const (*theirs).msg_len as usize, size_of::<c_uint>(), Access::Write);
            // What follows would come in the middle of it; or the kernel ends where it cannot store a length.
            if !received && (is_cut || !is_told()) {
                break;
            }
        }
        if own.is_empty() {
            state::fail(libc::EMSGSIZE);
            return -1;
        }
        if received && own.len() == count && count < wanted {
            // The kernel fails at the next header, and has the socket tell that later.
            let nowhere = msghdr { msg_iov: without_provenance_mut(usize::MAX), msg_iovlen: 1, ..own[0].msg_hdr };
            own.push(mmsghdr { msg_hdr: nowhere, msg_len: 0 });
        }
        let result = call(own.as_mut_ptr(), own.len() as c_uint);
        for index in 0..result.max(0) as usize {
            let theirs = list.add(index);
            if received {
                messages[index].own = own[index].msg_hdr;
                if messages[index].bring_back(&raw mut (*theirs).msg_hdr, own[index].msg_len as isize) < 0 {
                    return several_done(index);
                }
            }
            if !put(&raw mut (*theirs).msg_len, own[index].msg_len) {
                return several_done(index);
            }
        }
        result
    }
}

made_both! {
    fn sendmsg, sendmsg_by(by, fd: c_int, message: *const msghdr, flags: c_int) -> isize {
        // SAFETY: the caller's call, with an equivalent header.
        unsafe {
            if references::refuses(fd, flags, || names_managed(message)) {
                return -1;
            }
            send(fd, message, flags, &|message, flags| real_sendmsg(by, fd, message, flags))
        }
    }

    fn recvmsg, recvmsg_by(by, fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
        // SAFETY: as above.
        unsafe { receive(fd, message, flags, |message| real_recvmsg(by, fd, message, flags)) }
    }

    fn sendmmsg, sendmmsg_by(by, fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        // SAFETY: as above.
        unsafe {
            if references::refuses(fd, flags, || true) {
                return -1;
            }
            several(fd, list, count, None, |list, count| real_sendmmsg(by, fd, list, count, flags))
        }
    }

    fn recvmmsg, recvmmsg_by(
        by, fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int, limit: *mut timespec,
    ) -> c_int {
        // SAFETY: as above. The limit is writable too.
        unsafe {
            let copy = copied::value(limit);
            let result = several(fd, list, count, Some(flags), |list, count| {
                real_recvmmsg(by, fd, list, count, flags, copy.at(limit))
            });
            copy.bring_back(result)
        }
    }
}
