//! How a process asks another to bring memory in, for which the kernel waits for no missing page: a datagram to a
//! socket that the other one's engine listens on, and one back when it is done.
//!
//! The socket's name is abstract and has the process's number. Nothing but addresses passes through it, and whoever may
//! not read the memory learns nothing: so it answers each process of the same user, and root.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::check;
use crate::uffd::{EventFd, unless_limited};

/// How long a process may take for a piece, in looks, and how long until the next look whether it is stopped.
const PATIENCE: usize = 100;
const UNTIL_LOOK: libc::timeval = libc::timeval { tv_sec: 0, tv_usec: 50_000 };

/// The address and the length of what is to be brought in.
type Request = [usize; 2];

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
    let fd =
        check(unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
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
#[derive(Clone, Copy)]
pub struct Asked {
    /// The address of what is to be brought in.
    pub addr: usize,
    /// Its length in bytes.
    pub len: usize,
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
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The next request of a process that may ask. Does not wait.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receive(&self) -> io::Result<Option<Asked>> {
        receive(&self.0)
    }

    /// Waits for a request. `None`: `stop` is signalled.
    ///
    /// # Errors
    /// The kernel's.
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

    /// Tells the process that asked. If it has gone, nobody needs the answer.
    pub fn answer(&self, asked: &Asked) {
        let done = [1u8];
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
    let (mut request, mut control) = ([0usize; 2], Control([0; CONTROL_BYTES]));
    // SAFETY: all zeroes is a valid address. Nothing is allocated here: a monitor thread asks outside the fork gate.
    let mut from: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut part = libc::iovec { iov_base: request.as_mut_ptr().cast(), iov_len: size_of::<Request>() };
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
    let user = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        let is_whole =
            !first.is_null() && (*first).cmsg_len >= libc::CMSG_LEN(size_of::<libc::ucred>() as u32) as usize;
        (is_whole && (*first).cmsg_type == libc::SCM_CREDENTIALS)
            .then(|| libc::CMSG_DATA(first).cast::<libc::ucred>().read_unaligned().uid)
    };
    // SAFETY: takes no pointers.
    let may_ask = user.is_some_and(|user| user == 0 || user == unsafe { libc::geteuid() });
    let asked = Asked { addr: request[0], len: request[1], from, from_len: header.msg_namelen };
    Ok((may_ask && read == size_of::<Request>()).then_some(asked))
}

/// Has another process bring memory in. `false`: it does not answer, or is no such process.
#[must_use]
pub fn ask(process: u32, addr: usize, len: usize) -> bool {
    try_ask(process, [addr, len]).is_ok()
}

fn try_ask(process: u32, request: Request) -> io::Result<()> {
    let socket = socket()?;
    let (name, len) = address(process);
    bind(&socket, &name, size_of::<libc::sa_family_t>() as libc::socklen_t)?; // a name of the kernel's choice
    set(&socket, libc::SO_RCVTIMEO, UNTIL_LOOK)?;
    set(&socket, libc::SO_SNDTIMEO, UNTIL_LOOK)?;
    let (fd, flags, bytes) = (socket.as_raw_fd(), libc::MSG_NOSIGNAL, size_of::<Request>());
    patiently(process, || {
        // SAFETY: the kernel reads the request, and an address of this length.
        unsafe { libc::syscall(libc::SYS_sendto, fd, request.as_ptr(), bytes, flags, &raw const name, len) }
    })?;
    let mut done = [0u8];
    // SAFETY: the kernel fills in a byte.
    patiently(process, || unsafe { libc::syscall(libc::SYS_recvfrom, fd, done.as_mut_ptr(), 1, 0, 0usize, 0usize) })
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
    fn send_with_descriptor(request: Request, descriptor: RawFd) {
        let socket = socket().unwrap();
        let (mut to, len) = address(std::process::id());
        let mut part = libc::iovec { iov_base: request.as_ptr().cast_mut().cast(), iov_len: size_of::<Request>() };
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
                while let Some(request) = listener.wait(&stop).unwrap() {
                    asked.send((request.addr, request.len)).unwrap();
                    listener.answer(&request);
                }
            });
            while !ask(std::process::id(), 0x1000, 0x2000) {
                std::thread::yield_now(); // it does not listen yet
            }
            assert_eq!(seen.recv().unwrap(), (0x1000, 0x2000));
            let (mut reader, writer) = io::pipe().unwrap();
            send_with_descriptor([0x3000, 0x4000], writer.as_raw_fd());
            drop(writer);
            assert_eq!(seen.recv().unwrap(), (0x3000, 0x4000));
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
