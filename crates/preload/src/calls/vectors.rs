//! Calls with several buffers: readv, writev and their kin, and process_vm_readv.
//!
//! Managed buffers are replaced by bounce buffers. Longer transfers of files are held in RAM, so that they stay one
//! call, or, beyond a part of the budget, a few.

use std::ffi::{c_int, c_ulong};
use std::ops::Range;

use libc::{iovec, msghdr, pid_t};

use crate::calls::remote::{self, Kept, List};
use crate::ground::export::{aliases, made, made_both, real};
use crate::ground::real::{By, kernel, own};
use crate::ground::{guard, state};
use crate::memory::access::{self, Access};
use crate::memory::bounce::Bounce;
use crate::memory::cover::{self, Outcome};
use crate::memory::held::{self, Grant, Held};
use crate::memory::size_limit;
use crate::memory::transfer::{self, Awaits, Kind};

made! {
    fn real_readv = c"readv", SYS_readv(fd: c_int, list: *const iovec, count: c_int) -> isize;
    fn real_writev = c"writev", SYS_writev(fd: c_int, list: *const iovec, count: c_int) -> isize;
    fn real_preadv = c"preadv64", SYS_preadv(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize;
    fn real_pwritev = c"pwritev64", SYS_pwritev(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize;
    fn real_process_vm_readv = c"process_vm_readv", SYS_process_vm_readv(
        pid: pid_t, local: *const iovec, count: c_ulong, remote: *const iovec, ranges: c_ulong, flags: c_ulong,
    ) -> isize;
    fn real_process_vm_writev = c"process_vm_writev", SYS_process_vm_writev(
        pid: pid_t, local: *const iovec, count: c_ulong, remote: *const iovec, ranges: c_ulong, flags: c_ulong,
    ) -> isize;
}
real!(PREADV2 = c"preadv64v2": fn(c_int, *const iovec, c_int, i64, c_int) -> isize);
real!(PWRITEV2 = c"pwritev64v2": fn(c_int, *const iovec, c_int, i64, c_int) -> isize);

/// The most buffers that the kernel takes at once.
pub const MOST_BUFFERS: usize = 1024;

/// The most bytes that are replaced at a time for a byte stream, of which each call may transfer a part.
const MOST_STREAM_BYTES: usize = 1 << 20;

/// The most bytes of a file that are replaced at a time.
const MOST_FILE_BYTES: usize = 4 << 20;

/// In place of a descriptor: a transfer to or from the memory of a process.
pub const ANOTHER_PROCESS: c_int = -1;

/// A list of buffers in which bounce buffers replace the managed ones.
pub struct StandIn {
    list: Vec<iovec>,
    /// Index in the list, the program's buffer, its bounce buffer.
    bounces: Vec<(usize, iovec, Bounce)>,
    /// Part of the program's list is missing.
    pub is_cut: bool,
    /// A message that cannot be sent in one piece.
    pub is_too_long: bool,
}

/// The program's list, if it is one that the kernel may take.
///
/// # Safety
/// The list has `count` buffers.
unsafe fn possible<'a>(list: *const iovec, count: usize) -> Option<&'a [iovec]> {
    if list.is_null() || count == 0 || count > MOST_BUFFERS || state::space().is_none() || guard::inside() {
        return None;
    }
    if !access::is_open(list as usize, count * size_of::<iovec>(), Access::Read) {
        return None; // the kernel says so
    }
    // SAFETY: the caller passes a list of `count` buffers.
    Some(unsafe { std::slice::from_raw_parts(list, count) })
}

/// Whether any buffer of the list, or the list itself, needs a cover.
fn is_needed(fd: c_int, list: &[iovec]) -> bool {
    cover::needed(list.as_ptr() as usize, size_of_val(list))
        || list.iter().any(|buffer| {
            let (addr, len) = (buffer.iov_base as usize, buffer.iov_len);
            cover::needed(addr, len) || transfer::pins(fd, addr, len).is_some()
        })
}

/// Bytes of all buffers of a list.
pub fn bytes_of(list: &[iovec]) -> usize {
    list.iter().fold(0usize, |sum, buffer| sum.saturating_add(buffer.iov_len))
}

/// Whether the kernel refuses a list for a buffer's length or address: also for that of one without bytes.
pub fn is_refused(list: &[iovec]) -> bool {
    // It cuts a single buffer before it looks at the addresses.
    let most = if list.len() == 1 { transfer::MOST_BYTES } else { usize::MAX };
    list.iter().any(|buffer| {
        let (addr, len) = (buffer.iov_base as usize, buffer.iov_len);
        len > isize::MAX as usize || transfer::is_impossible(addr, len.min(most))
    })
}

/// A copy of a list.
fn copy_of(list: &[iovec]) -> Vec<iovec> {
    let _guard = guard::enter();
    list.to_vec()
}

impl StandIn {
    /// The buffers of a message, for the kernel; `None` if the program's own list can be used. It may be cut for a byte
    /// stream.
    ///
    /// # Safety
    /// The list has `count` buffers.
    pub unsafe fn of_message(fd: c_int, list: *const iovec, count: usize, received: bool) -> Option<StandIn> {
        // SAFETY: the caller upholds this function's own contract.
        let list = unsafe { possible(list, count) }.filter(|list| is_needed(fd, list))?;
        if is_refused(list) {
            return Some(StandIn::unreplaced(copy_of(list)));
        }
        let mut stand_in = StandIn::new(list, transfer::MOST_MESSAGE_BYTES, received)?;
        stand_in.is_too_long = stand_in.is_cut && !matches!(transfer::kind(fd), Kind::Stream);
        Some(stand_in)
    }

    /// The same of a message that is received and discarded: the kernel gets the program's buffers, which it does not
    /// touch.
    ///
    /// # Safety
    /// The list has `count` buffers.
    pub unsafe fn of_discarded(list: *const iovec, count: usize) -> Option<StandIn> {
        // SAFETY: the caller upholds this function's own contract.
        unsafe { possible(list, count) }.map(|list| StandIn::unreplaced(copy_of(list)))
    }

    /// The program's own buffers.
    fn unreplaced(list: Vec<iovec>) -> StandIn {
        StandIn { list, bounces: Vec::new(), is_cut: false, is_too_long: false }
    }

    fn list(&self) -> &[iovec] {
        &self.list
    }

    pub fn as_ptr(&self) -> *const iovec {
        self.list.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> usize {
        bytes_of(&self.list)
    }

    /// Bytes of bounce buffers.
    pub fn nr_bytes(&self) -> usize {
        self.bounces.iter().map(|(_, _, bounce)| bounce.room()).sum()
    }

    /// `None` if there is no memory for it.
    fn new(list: &[iovec], most: usize, is_received: bool) -> Option<StandIn> {
        let _guard = guard::enter();
        let (own, bounces) = (Vec::with_capacity(list.len()), Vec::new());
        let mut stand_in = StandIn { list: own, bounces, is_cut: false, is_too_long: false };
        let access = if is_received { Access::Write } else { Access::Read };
        let mut left = most;
        for &theirs in list {
            let mut own = theirs;
            if cover_needed_under_guard(&theirs) {
                own.iov_len = theirs.iov_len.min(left);
                left -= own.iov_len;
                stand_in.is_cut = own.iov_len < theirs.iov_len;
                if own.iov_len == 0 {
                    break;
                }
                // What may not be accessed is the kernel's to refuse.
                if let Some(bounce) = Bounce::fitting(theirs.iov_base as usize, own.iov_len, access).ok()? {
                    own.iov_base = bounce.as_ptr().cast();
                    stand_in.bounces.push((stand_in.list.len(), theirs, bounce));
                }
            }
            stand_in.list.push(own);
            if stand_in.is_cut {
                break;
            }
        }
        Some(stand_in)
    }

    /// Fills the bounce buffers from the program's buffers.
    pub fn copy_out(&self) {
        for (_, theirs, bounce) in &self.bounces {
            // SAFETY: the program's buffer, of which the bounce buffer covers what may be read.
            unsafe { bounce.fill(theirs.iov_base as usize) };
        }
    }

    /// Copies the result of the call to the program's buffers: `received` bytes over the whole list. Returns what the
    /// program gets: less, or a failure, if another thread has taken buffers away during the call.
    pub fn copy_in(&self, received: isize) -> isize {
        let all = received.max(0) as usize;
        let mut left = all;
        let mut bounces = self.bounces.iter();
        let mut next = bounces.next();
        for (index, buffer) in self.list.iter().enumerate() {
            let here = left.min(buffer.iov_len);
            if let Some((at, theirs, bounce)) = next
                && *at == index
            {
                // SAFETY: the program's buffer, of which the bounce buffer covers what may be written.
                let taken = unsafe { bounce.empty(theirs.iov_base as usize, here) };
                if taken < here.min(bounce.room()) {
                    return match all - left + taken {
                        0 => isize::refused(),
                        done => done as isize,
                    };
                }
                next = bounces.next();
            }
            left -= here;
        }
        received
    }
}

/// `cover::needed` is false under a guard, so this checks the range alone.
fn cover_needed_under_guard(buffer: &iovec) -> bool {
    buffer.iov_len > 0 && state::overlaps(buffer.iov_base as usize, buffer.iov_len)
}

/// How a list is transferred.
struct Plan {
    /// The most bytes at a time.
    most: usize,
    /// Buffers are held, rather than replaced, where the budget permits that.
    is_held: bool,
    /// Continues until everything is transferred.
    goes_on: bool,
    /// Reads only what is there.
    is_stream: bool,
    /// The kernel must get all of it at once.
    is_message: bool,
}

fn plan(fd: c_int, total: usize, is_received: bool) -> Plan {
    let is_stream = false;
    let plan = |most, is_held, goes_on, is_message| Plan { most, is_held, goes_on, is_stream, is_message };
    if writes_to_process(fd, is_received) {
        return plan(MOST_STREAM_BYTES, false, true, false);
    }
    if total <= MOST_STREAM_BYTES {
        return plan(MOST_STREAM_BYTES, false, false, false);
    }
    if fd == ANOTHER_PROCESS {
        return plan(MOST_STREAM_BYTES, true, true, false);
    }
    match if is_received { transfer::kind_for_read(fd) } else { transfer::kind(fd) } {
        Kind::Storage => plan(MOST_FILE_BYTES, true, true, false),
        Kind::Characters => plan(MOST_FILE_BYTES, false, true, false),
        Kind::Datagrams => plan(transfer::MOST_MESSAGE_BYTES, false, false, true),
        Kind::Stream if is_received && transfer::awaits_much(fd) => {
            plan(transfer::MOST_MESSAGE_BYTES, false, false, false)
        }
        Kind::Stream => Plan { is_stream: is_received, ..plan(MOST_STREAM_BYTES, false, true, false) },
    }
}

/// Whether a process's memory is written where folios are copied.
fn writes_to_process(fd: c_int, is_received: bool) -> bool {
    fd == ANOTHER_PROCESS && !is_received && remote::may_be_copied()
}

/// The program's list, or nothing if the kernel cannot take it.
///
/// # Safety
/// The list has `count` buffers.
pub unsafe fn buffers<'a>(list: *const iovec, count: usize) -> &'a [iovec] {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { possible(list, count) }.unwrap_or_default()
}

/// Whether any buffer of a list is managed.
///
/// # Safety
/// The list has `count` buffers.
pub unsafe fn is_managed(list: *const iovec, count: usize) -> bool {
    // SAFETY: the caller upholds this function's own contract.
    let list = unsafe { possible(list, count) };
    list.is_some_and(|list| list.iter().any(cover_needed_under_guard))
}

/// Whether any buffer of a message is managed.
///
/// # Safety
/// The message is null or has a list of its buffers.
pub unsafe fn names_managed(message: *const msghdr) -> bool {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { access::read(message).is_some_and(|message| is_managed(message.msg_iov, message.msg_iovlen)) }
}

/// At most `most` bytes of a list, from the byte `from` on.
pub fn part(list: &[iovec], from: usize, most: usize) -> Vec<iovec> {
    let _guard = guard::enter();
    let mut part = Vec::with_capacity(list.len());
    let (mut skip, mut left) = (from, most);
    for buffer in list {
        let before = skip.min(buffer.iov_len);
        skip -= before;
        let len = left.min(buffer.iov_len - before);
        if len > 0 {
            part.push(iovec { iov_base: buffer.iov_base.wrapping_byte_add(before), iov_len: len });
            left -= len;
        }
    }
    part
}

/// The ranges of a list, joined where they touch.
fn ranges_of(list: &[iovec]) -> Vec<Range<usize>> {
    let _guard = guard::enter();
    let mut ranges: Vec<Range<usize>> = Vec::with_capacity(list.len());
    for buffer in list {
        let (start, end) = (buffer.iov_base as usize, (buffer.iov_base as usize).saturating_add(buffer.iov_len));
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

/// Keeps all buffers of a list in RAM; `None` if that is too much.
fn held(list: &[iovec]) -> Option<(Grant, Vec<Held>)> {
    let ranges = ranges_of(list);
    let grant = Grant::of(ranges.iter().map(held::span).sum())?;
    let mut held = {
        let _guard = guard::enter();
        Vec::with_capacity(ranges.len())
    };
    held.extend(ranges.iter().map(|range| Held::new(range.start, range.len())));
    Some((grant, held))
}

/// Transfers a list. `call` transfers a part of it that begins `done` bytes in. `place` is where a read of a file
/// begins, -1 for the file's own position.
///
/// # Safety
/// The list has `count` buffers, which may be read, or, if data is received, written.
unsafe fn transfer(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    is_received: bool,
    place: i64,
    call: impl Fn(*const iovec, c_int, usize) -> isize,
) -> isize {
    let kept = state::errno();
    // SAFETY: the caller upholds this function's own contract.
    let possible = unsafe { possible(list, count.max(0) as usize) };
    let needed = possible.filter(|list| writes_to_process(fd, is_received) || is_needed(fd, list));
    state::fail(kept);
    let Some(theirs) = needed else { return call(list, count, 0) };
    if is_refused(theirs) {
        return call(copy_of(theirs).as_ptr(), count, 0);
    }
    let theirs = &part(theirs, 0, usize::MAX); // it may lie in its own buffers
    let total = bytes_of(theirs).min(transfer::MOST_BYTES);
    let plan = state::keeping_errno(|| plan(fd, total, is_received));
    if plan.is_message && !is_received && total > plan.most {
        state::fail(libc::EMSGSIZE);
        return -1;
    }
    let call = |list, count, done| match done {
        1.. if plan.is_held && !is_received => size_limit::go_on(|| call(list, count, done)),
        _ => call(list, count, done),
    };
    let mut done = 0;
    loop {
        let all = part(theirs, done, total - done);
        let may_hold = plan.is_held && total - done > plan.most;
        let _kept_out = if may_hold { guard::keep_handlers_out() } else { None }; // as in `cover`
        let held = if may_hold { held(&all) } else { None };
        let own = if held.is_some() { all } else { part(theirs, done, plan.most.min(total - done)) };
        let want = bytes_of(&own);
        let result = if held.is_some() {
            call(own.as_ptr(), own.len() as c_int, done)
        } else {
            let Some(stand_in) = StandIn::new(&own, want, is_received) else {
                state::fail(libc::ENOMEM);
                return if done > 0 { done as isize } else { -1 };
            };
            if !is_received {
                stand_in.copy_out();
            }
            // SAFETY: the stand-in's buffers may be written.
            let more = (done > 0 && plan.is_stream && place == -1).then(|| unsafe { read_more(fd, stand_in.list()) });
            let result = more.flatten().unwrap_or_else(|| call(stand_in.as_ptr(), stand_in.len() as c_int, done));
            if is_received { stand_in.copy_in(result) } else { result }
        };
        if result < 0 && done > 0 {
            state::fail(kept);
            return done as isize;
        }
        if result < 0 {
            return result;
        }
        done += result as usize;
        if !plan.goes_on || (result as usize) < want || done >= total {
            return done as isize;
        }
    }
}

/// Receives into a list of buffers, from `place` in a file or, if that is -1, from its own position. `call` gets a
/// list, and the bytes that were received before it.
///
/// # Safety
/// The list has `count` buffers, which may be written.
pub unsafe fn receive(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    place: i64,
    call: impl Fn(*const iovec, c_int, usize) -> isize,
) -> isize {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { transfer(fd, list, count, true, place, call) }
}

/// Sends a list of buffers. `call` gets a list, and the bytes that were sent before it.
///
/// # Safety
/// The list has `count` buffers, which may be read.
unsafe fn send(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    call: impl Fn(*const iovec, c_int, usize) -> isize,
) -> isize {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { transfer(fd, list, count, false, -1, call) }
}

/// How many bytes from the start of a list on may be read.
fn readable_bytes(list: &[iovec]) -> usize {
    let mut all = 0;
    for buffer in list {
        let here = access::prefix(buffer.iov_base as usize, buffer.iov_len, Access::Read);
        all += here;
        if here < buffer.iov_len {
            break;
        }
    }
    all
}

/// Sends in one call what `call` takes of a list, up to what may not be read.
///
/// # Safety
/// The list has `count` buffers, which may be read.
pub unsafe fn send_some(list: *const iovec, count: c_int, call: impl Fn(*const iovec, c_int) -> isize) -> isize {
    // SAFETY: the caller upholds this function's own contract.
    let possible = unsafe { possible(list, count.max(0) as usize) };
    let Some(theirs) = possible else { return call(list, count) };
    if is_refused(theirs) {
        return call(copy_of(theirs).as_ptr(), count);
    }
    let mut own = part(theirs, 0, MOST_STREAM_BYTES);
    let readable = readable_bytes(&own);
    if readable > 0 {
        own = part(&own, 0, readable);
    }
    if !is_needed(ANOTHER_PROCESS, &own) {
        return call(own.as_ptr(), own.len() as c_int);
    }
    let Some(stand_in) = StandIn::new(&own, MOST_STREAM_BYTES, false) else {
        state::fail(libc::ENOMEM);
        return -1;
    };
    stand_in.copy_out();
    call(stand_in.as_ptr(), stand_in.len() as c_int)
}

/// Where a transfer goes on. -1 is the file's own position.
fn offset_after(offset: i64, done: usize) -> i64 {
    if offset == -1 { offset } else { offset.wrapping_add(done as i64) }
}

made_both! {
    fn readv, readv_by(by, fd: c_int, list: *const iovec, count: c_int) -> isize {
        // SAFETY: the caller's call, with an equivalent list.
        unsafe { receive(fd, list, count, -1, |list, count, _| {
            remote::transfer_list(fd, (list, count as usize), None, || real_readv(by, fd, list, count))
        }) }
    }
}

made_both! {
    fn writev, writev_by(by, fd: c_int, list: *const iovec, count: c_int) -> isize {
        // SAFETY: as above.
        unsafe { send(fd, list, count, |list, count, done| {
            if done > 0 && !transfer::goes_on(Awaits::More(by, fd), libc::POLLOUT) {
                return -1;
            }
            remote::transfer_list_to(fd, (list, count as usize), None, |(list, count), _| {
                real_writev(by, fd, list, count as c_int)
            })
        }) }
    }
}

made_both! {
    fn preadv, preadv_by(by, fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize {
        // SAFETY: as above.
        unsafe { receive(fd, list, count, offset, |list, count, done| {
            let offset = offset.wrapping_add(done as i64);
            remote::transfer_list(fd, (list, count as usize), Some(offset), || real_preadv(by, fd, list, count, offset))
        }) }
    }
}

made_both! {
    fn pwritev, pwritev_by(by, fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize {
        // SAFETY: as above.
        unsafe { send(fd, list, count, |list, count, done| {
            let offset = offset.wrapping_add(done as i64);
            remote::transfer_list_to(fd, (list, count as usize), Some(offset), |(list, count), offset| {
                real_pwritev(by, fd, list, count as c_int, offset)
            })
        }) }
    }
}

made_both! {
    fn preadv2, preadv2_by(by, fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        // SAFETY: as above. On 64-bit processors the kernel ignores the offset's second word.
        unsafe { receive(fd, list, count, offset, |list, count, done| {
            let offset = offset_after(offset, done);
            let place = (offset != -1).then_some(offset);
            remote::transfer_list(fd, (list, count as usize), place, || match by {
                By::Name => PREADV2.get()(fd, list, count, offset, flags),
                By::Number => kernel!(libc::SYS_preadv2, fd, list, count, offset, 0, flags) as isize,
            })
        }) }
    }
}

made_both! {
    fn pwritev2, pwritev2_by(by, fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        // SAFETY: as above.
        unsafe { send(fd, list, count, |list, count, done| {
            let offset = offset_after(offset, done);
            let place = (offset != -1).then_some(offset);
            remote::transfer_list_to(fd, (list, count as usize), place, |(list, count), offset| match by {
                By::Name => PWRITEV2.get()(fd, list, count as c_int, offset, flags),
                By::Number => kernel!(libc::SYS_pwritev2, fd, list, count, offset, 0, flags) as isize,
            })
        }) }
    }
}

/// Makes a call on the memory of a process, from the byte `done` of its ranges on. It brings them in, if it can: their
/// beginning at a time, as all of them may be more than fits.
fn repeat_ranges(pid: pid_t, local: List, ranges: List, done: usize, call: impl Fn(List, List) -> isize) -> isize {
    let rest = if done > 0 { remote::rest(ranges, done) } else { Vec::new() };
    let ranges = if done > 0 { (rest.as_ptr(), rest.len()) } else { ranges };
    remote::transfer_ranges(pid, local, ranges, call)
}

/// The same for a call that writes. Where folios are copied it writes to pieces that are kept in RAM, from buffers that
/// are present.
fn write_ranges(pid: pid_t, local: List, ranges: List, done: usize, call: impl Fn(List, List) -> isize) -> isize {
    let listed = |list, done| if remote::may_be_copied() { remote::rest(list, done) } else { Vec::new() };
    let (from, rest) = (listed(local, 0), listed(ranges, done));
    let total = bytes_of(&from).min(bytes_of(&rest));
    if total == 0 || rest.iter().any(|range| range.iov_len > isize::MAX as usize) {
        return repeat_ranges(pid, local, ranges, done, call);
    }
    let mut written = 0;
    while written < total {
        let to = part(&rest, written, MOST_STREAM_BYTES.min(total - written))[0];
        let from = part(&from, written, to.iov_len);
        let _kept = Kept::for_write(pid, to.iov_base as usize, to.iov_len);
        let result = remote::transfer_ranges(pid, (from.as_ptr(), from.len()), (&raw const to, 1), &call);
        if result < 0 && written == 0 {
            return result;
        }
        written += result.max(0) as usize;
        if (result.max(0) as usize) < to.iov_len {
            break;
        }
    }
    written as isize
}

made_both! {
    fn process_vm_readv, process_vm_readv_by(
        by, pid: pid_t, local: *const iovec, count: c_ulong, remote: *const iovec, ranges: c_ulong, flags: c_ulong,
    ) -> isize {
        // SAFETY: the caller's call, with an equivalent local list.
        unsafe {
            receive(ANOTHER_PROCESS, local, count as c_int, -1, |local, count, done| {
                repeat_ranges(pid, (local, count as usize), (remote, ranges as usize), done, |local, ranges| {
                    real_process_vm_readv(by, pid, local.0, local.1 as c_ulong, ranges.0, ranges.1 as c_ulong, flags)
                })
            })
        }
    }
}

made_both! {
    fn process_vm_writev, process_vm_writev_by(
        by, pid: pid_t, local: *const iovec, count: c_ulong, remote: *const iovec, ranges: c_ulong, flags: c_ulong,
    ) -> isize {
        // SAFETY: as above.
        unsafe {
            send(ANOTHER_PROCESS, local, count as c_int, |local, count, done| {
                write_ranges(pid, (local, count as usize), (remote, ranges as usize), done, |local, ranges| {
                    real_process_vm_writev(by, pid, local.0, local.1 as c_ulong, ranges.0, ranges.1 as c_ulong, flags)
                })
            })
        }
    }
}

/// Reads what a stream has, without waiting. It fails where there is nothing, or where the kernel would wait. `None`:
/// there is more, of a kind that cannot be read in this way.
///
/// # Safety
/// The buffers may be written.
pub unsafe fn read_more(fd: c_int, list: &[iovec]) -> Option<isize> {
    if !has_more(fd) {
        return Some(-1);
    }
    // SAFETY: the caller upholds this function's own contract.
    let result = unsafe { own!(libc::SYS_preadv2, fd, list.as_ptr(), list.len(), -1i64, 0usize, libc::RWF_NOWAIT) };
    (result >= 0 || state::errno() != libc::EOPNOTSUPP).then_some(result as isize)
}

/// Whether a stream has more to read. Its end, or an error that the next call is to return, does not count, nor does
/// what follows urgent data: a call ends there.
pub fn has_more(fd: c_int) -> bool {
    let mut about = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel reads and fills in locals.
    unsafe { own!(libc::SYS_ppoll, &raw mut about, 1, &raw const now, 0usize, 8) };
    about.revents & (libc::POLLIN | libc::POLLERR) == libc::POLLIN && !transfer::is_at_mark(fd)
}

aliases! {
    fn preadv64 = preadv(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize;
    fn pwritev64 = pwritev(fd: c_int, list: *const iovec, count: c_int, offset: i64) -> isize;
    fn preadv64v2 = preadv2(fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> isize;
    fn pwritev64v2 = pwritev2(fd: c_int, list: *const iovec, count: c_int, offset: i64, flags: c_int) -> isize;
}
