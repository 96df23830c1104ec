//! How a process asks another to bring memory in, for which the kernel waits for no missing page, or to hold it while
//! it writes there: a datagram to a socket that the other one's engine listens on, and one back when it is done.
//!
//! The socket's name is abstract and has the process's number. Nothing but addresses passes through it, and whoever may
//! not read the memory learns nothing: so it answers each process of the same user, and root.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::uffd::{EventFd, unless_limited};
use crate::{check, futex, own_calls, taken};

/// How long a process may take for a piece, in looks, and how long until the next look whether it is stopped.
const PATIENCE: usize = 100;
const UNTIL_LOOK: libc::timeval = libc::timeval { tv_sec: 0, tv_usec: 50_000 };

/// How long until the next attempt, if the other process holds too much.
const UNTIL_ROOM: Duration = Duration::from_millis(1);

/// The address and the length of what is asked for, and [`What`].
type Words = [usize; 3];

/// What a process asks another to do with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// To bring it in.
    BringIn,
    /// To bring it in and to keep it in RAM.
    Hold,
    /// To keep it no longer. There is no answer.
    Release,
}

impl What {
    const ALL: [What; 3] = [What::BringIn, What::Hold, What::Release];
}

/// Whether a process with this number exists. Also `true` if the program has a filter, which may refuse the question.
pub fn exists(process: u32) -> bool {
    if own_calls::is_used() {
        return true;
    }
    // SAFETY: sends no signal.
    let asked = check(unsafe { libc::syscall(libc::SYS_kill, process, 0) });
    !asked.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
}

fn address(process: u32) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = format!("\0folioswap-readers-{process}");
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    (address, (offset_of!(libc::sockaddr_un, sun_path) + name.len()) as libc::socklen_t)
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    taken(unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })
}

fn bind(socket: &OwnedFd, address: &libc::sockaddr_un, len: libc::socklen_t) -> io::Result<()> {
    // SAFETY: the kernel reads an address of this length.
    check(unsafe { libc::syscall(libc::SYS_bind, socket.as_raw_fd(), &raw const *address, len) }).map(drop)
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: T) -> io::Result<()> {
    let (level, len) = (libc::SOL_SOCKET, size_of::<T>());
    // SAFETY: the kernel reads a value of this length.
    let result =
        unsafe { libc::syscall(libc::SYS_setsockopt, socket.as_raw_fd(), level, option, &raw const value, len) };
    check(result).map(drop)
}

/// What another process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The address of the memory.
    pub addr: usize,
    /// Its length in bytes.
    pub len: usize,
    /// What is to be done with it.
    pub what: What,
    /// The process that asks.
    pub process: u32,
}

/// A request that is to be answered.
#[derive(Clone, Copy)]
pub struct Asked {
    /// What it is.
    pub request: Request,
    /// Where the answer goes.
    from: libc::sockaddr_un,
    from_len: libc::socklen_t,
}

/// The socket on which this process is asked, in the calling thread's descriptor table.
pub struct Listener(OwnedFd);

impl Listener {
    /// # Errors
    /// The kernel's: EADDRINUSE if another process has this number, in another PID namespace.
    pub fn new() -> io::Result<Self> {
        let socket = socket()?;
        set(&socket, libc::SO_PASSCRED, 1 as libc::c_int)?;
        let (name, len) = address(std::process::id());
        bind(&socket, &name, len)?;
        Ok(Listener(socket))
    }

    /// Becomes readable when there is a request.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The next request of a process that may ask. Does not wait.
    pub fn receive(&self) -> io::Result<Option<Asked>> {
        receive(&self.0)
    }

    /// Waits for a request. `None`: `stop` is signalled.
    pub fn wait(&self, stop: &EventFd) -> io::Result<Option<Asked>> {
        loop {
            let wanted = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut ready = [wanted(self.descriptor()), wanted(stop.number())];
            let (entries, nr_entries) = (ready.as_mut_ptr(), ready.len());
            // SAFETY: the kernel fills in two entries of this frame. No timeout, and no mask.
            let result = unsafe { libc::syscall(libc::SYS_ppoll, entries, nr_entries, 0usize, 0usize, 0usize) };
            match check(result) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                polled => unless_limited(polled, None)?,
            }
            if stop.is_signalled() {
                return Ok(None);
            }
            if let Some(asked) = self.receive()? {
                return Ok(Some(asked));
            }
        }
    }

    /// Tells the process that asked whether it is done. If it has gone, nobody needs the answer.
    pub fn answer(&self, asked: &Asked, is_done: bool) {
        let done = [u8::from(is_done)];
        let (fd, flags) = (self.descriptor(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        let (from, len) = (&raw const asked.from, asked.from_len);
        // SAFETY: the kernel reads a byte, and an address of this length.
        unsafe { libc::syscall(libc::SYS_sendto, fd, done.as_ptr(), 1, flags, from, len) };
    }
}

/// A control message with a process's credentials.
const CONTROL_BYTES: usize = size_of::<libc::cmsghdr>() + size_of::<libc::ucred>().next_multiple_of(8);

fn receive(socket: &OwnedFd) -> io::Result<Option<Asked>> {
    // Room for the credentials and nothing else: the kernel drops descriptors that somebody sends along.
    #[repr(C, align(8))]
    struct Control([u8; CONTROL_BYTES]);
    let (mut words, mut control): (Words, _) = ([0; 3], Control([0; CONTROL_BYTES]));
    // SAFETY: all zeroes is a valid address. Nothing is allocated here: a monitor thread asks outside the fork gate.
    let mut from: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut part = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of::<Words>() };
    // SAFETY: all zeroes is a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = (&raw mut from).cast();
    header.msg_namelen = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = ((&raw mut control).cast(), control.0.len());
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names buffers of this frame with their lengths.
    let result = check(unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut header, flags) });
    let read = match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => return Ok(None),
        other => other?,
    };
    // SAFETY: the kernel has filled in the header's control messages. The first is looked at only if it is whole.
    let sender = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        let is_whole =
            !first.is_null() && (*first).cmsg_len >= libc::CMSG_LEN(size_of::<libc::ucred>() as u32) as usize;
        (is_whole && (*first).cmsg_type == libc::SCM_CREDENTIALS)
            .then(|| libc::CMSG_DATA(first).cast::<libc::ucred>().read_unaligned())
    };
    // SAFETY: takes no pointers.
    let user = unsafe { libc::geteuid() };
    let sender = sender.filter(|sender| sender.uid == 0 || sender.uid == user);
    let what = What::ALL.get(words[2]).filter(|_| read as usize == size_of::<Words>());
    let ([addr, len, _], from_len) = (words, header.msg_namelen);
    let asked = |(sender, what): (libc::ucred, &What)| Asked {
        request: Request { addr, len, what: *what, process: sender.pid as u32 },
        from,
        from_len,
    };
    Ok(sender.zip(what).map(asked))
}

/// Has another process bring memory in. `false`: it does not answer, or is no such process.
#[must_use]
pub fn ask(process: u32, addr: usize, len: usize) -> bool {
    try_ask(process, addr, len, What::BringIn).is_ok()
}

/// Memory of another process that this one keeps in RAM, until dropped.
pub struct HeldThere {
    process: u32,
    addr: usize,
    len: usize,
}

impl HeldThere {
    /// Has another process hold memory. `None`: it does not answer, or is stopped and moves nothing; or it holds too
    /// much already, so many times in a row.
    #[must_use]
    pub fn new(process: u32, addr: usize, len: usize, nr_tries: usize) -> Option<Self> {
        if is_stopped(process) {
            return None;
        }
        for _ in 0..nr_tries {
            match try_ask(process, addr, len, What::Hold) {
                Ok(true) => return Some(HeldThere { process, addr, len }),
                Ok(false) => futex::sleep(UNTIL_ROOM),
                Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => return None,
                Err(_) => {
                    let _ = try_ask(process, addr, len, What::Release); // it may do so later
                    return None;
                }
            }
        }
        None
    }
}

impl Drop for HeldThere {
    fn drop(&mut self) {
        let _ = try_ask(self.process, self.addr, self.len, What::Release); // it has gone, and with it the memory
    }
}

/// Returns whether the other process did it.
fn try_ask(process: u32, addr: usize, len: usize, what: What) -> io::Result<bool> {
    let socket = socket()?;
    let (name, name_len) = address(process);
    bind(&socket, &name, size_of::<libc::sa_family_t>() as libc::socklen_t)?; // a name of the kernel's choice
    set(&socket, libc::SO_RCVTIMEO, UNTIL_LOOK)?;
    set(&socket, libc::SO_SNDTIMEO, UNTIL_LOOK)?;
    let words: Words = [addr, len, what as usize];
    let (fd, flags, bytes) = (socket.as_raw_fd(), libc::MSG_NOSIGNAL, size_of::<Words>());
    // From then on nobody else can answer.
    // SAFETY: the kernel reads an address of this length.
    check(unsafe { libc::syscall(libc::SYS_connect, fd, &raw const name, name_len) })?;
    patiently(process, || {
        // SAFETY: the kernel reads the request.
        unsafe { libc::syscall(libc::SYS_sendto, fd, words.as_ptr(), bytes, flags, 0usize, 0usize) }
    })?;
    let mut done = [0u8];
    if what != What::Release {
        // SAFETY: the kernel fills in a byte.
        patiently(process, || unsafe {
            libc::syscall(libc::SYS_recvfrom, fd, done.as_mut_ptr(), 1, 0, 0usize, 0usize)
        })?;
    }
    Ok(done[0] != 0)
}

/// Makes a call until it does not time out, or the other process cannot answer.
fn patiently(process: u32, mut call: impl FnMut() -> libc::c_long) -> io::Result<()> {
    for _ in 0..PATIENCE {
        match check(call()) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && !is_stopped(process) => {}
            result => return result.map(drop),
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Whether all threads of a process are stopped, by a signal or its tracer. One of them would answer.
fn is_stopped(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = std::fs::read(thread.path().join("stat")).unwrap_or_default();
        // The name is in parentheses, and may itself contain parentheses.
        let behind_name = stat.rsplit(|&byte| byte == b')').next().unwrap_or_default();
        matches!(behind_name, [b' ', b'T' | b't', ..])
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc;

    use super::*;

    /// Sends a request and a descriptor to the socket of this process.
    fn send_with_descriptor(words: Words, descriptor: RawFd) {
        let socket = socket().unwrap();
        let (mut to, len) = address(std::process::id());
        let mut part = libc::iovec { iov_base: words.as_ptr().cast_mut().cast(), iov_len: size_of::<Words>() };
        let mut control = [0u64; 3];
        // SAFETY: a valid header, which names buffers of this frame with their lengths.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_name, header.msg_namelen) = ((&raw mut to).cast(), len);
            (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
            (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
            let message = &mut *libc::CMSG_FIRSTHDR(&raw const header);
            (message.cmsg_level, message.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            message.cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            libc::CMSG_DATA(message).cast::<RawFd>().write(descriptor);
            check(libc::sendmsg(socket.as_raw_fd(), &raw const header, 0) as libc::c_long).unwrap();
        }
    }

    #[test]
    fn what_is_asked_for_is_brought_in_before_the_answer() {
        let stop = EventFd::new().unwrap();
        let (asked, seen) = mpsc::channel();
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| {
                let listener = Listener::new().unwrap();
                while let Some(one) = listener.wait(&stop).unwrap() {
                    asked.send((one.request.addr, one.request.len, one.request.what)).unwrap();
                    listener.answer(&one, true);
                }
            });
            while !ask(std::process::id(), 0x1000, 0x2000) {
                std::thread::yield_now(); // it does not listen yet
            }
            assert_eq!(seen.recv().unwrap(), (0x1000, 0x2000, What::BringIn));
            let (mut reader, writer) = io::pipe().unwrap();
            send_with_descriptor([0x3000, 0x4000, 0], writer.as_raw_fd());
            drop(writer);
            assert_eq!(seen.recv().unwrap(), (0x3000, 0x4000, What::BringIn));
            let held = HeldThere::new(std::process::id(), 0x5000, 0x6000, 1).unwrap();
            assert_eq!(seen.recv().unwrap(), (0x5000, 0x6000, What::Hold));
            drop(held);
            assert_eq!(seen.recv().unwrap(), (0x5000, 0x6000, What::Release));
            // SAFETY: changes the flags of this descriptor.
            unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
            let at_end = reader.read(&mut [0]);
            stop.signal();
            answering.join().unwrap();
            assert_eq!(at_end.unwrap(), 0, "what was sent along is open in this process");
        });
        assert!(!ask(std::process::id(), 0x1000, 0x2000));
    }
}
