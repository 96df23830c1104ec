//! A descriptor for all processes that know a key: also those of other users, in another root or PID namespace, for
//! which `/proc/PID/fd` leads nowhere. They ask at an abstract socket, so they must be in the same network namespace.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::str::FromStr;
use std::time::Duration;

use crate::{own_table, random};

/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(1);

/// When it is tried again to answer.
const AGAIN: Duration = Duration::from_millis(10);

/// What a process must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The socket's, which everybody sees.
    name: u64,
    secret: u64,
}

impl Key {
    /// A new one.
    ///
    /// # Errors
    /// As [`random::fill`].
    pub fn draw() -> io::Result<Key> {
        let mut bytes = [0; 16];
        random::fill(&mut bytes)?;
        let drawn = u128::from_ne_bytes(bytes);
        Ok(Key { name: (drawn >> 64) as u64, secret: drawn as u64 })
    }

    fn address(self) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("folioswap-{:016x}", self.name))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.name, self.secret)
    }
}

impl FromStr for Key {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = u128::from_str_radix(text, 16).map_err(drop)?;
        Ok(Key { name: (number >> 64) as u64, secret: number as u64 })
    }
}

/// A descriptor for which others may ask. They wait until they are answered.
pub struct Offer {
    listener: UnixListener,
    key: Key,
    offered: OwnedFd,
}

impl Offer {
    /// Offers a descriptor.
    pub fn new(key: Key, offered: OwnedFd) -> io::Result<Offer> {
        Ok(Offer { listener: UnixListener::bind_addr(&key.address()?)?, key, offered })
    }

    /// Hands out copies until the process ends, on a thread.
    pub fn answer(self) -> io::Result<()> {
        let answer = move || {
            loop {
                match self.listener.accept() {
                    Ok((stream, _)) => _ = hand_over(&stream, self.key, &self.offered), // who has gone needs none
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(_) => std::thread::sleep(AGAIN), // no descriptor or memory is left now; who asks waits
                }
            }
        };
        std::thread::Builder::new().name("offer".into()).spawn(answer).map(drop)
    }
}

fn hand_over(mut stream: &UnixStream, key: Key, offered: &OwnedFd) -> io::Result<()> {
    let mut secret = [0; 8];
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.read_exact(&mut secret)?;
    if secret == key.secret.to_ne_bytes() {
        own_table::send(stream.as_raw_fd(), offered.as_raw_fd())?;
    }
    Ok(())
}

/// Asks for a copy of the descriptor.
///
/// # Errors
/// ECONNREFUSED: nobody offers it in this network namespace. EMFILE: the key is wrong, or this process has no number
/// left.
pub fn ask(key: Key) -> io::Result<OwnedFd> {
    let stream = UnixStream::connect_addr(&key.address()?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    (&stream).write_all(&key.secret.to_ne_bytes())?;
    let received = own_table::receive(stream.as_raw_fd(), 0)?;
    // SAFETY: the kernel has just put it into this process's table, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(received) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn who_knows_the_key_gets_the_file() {
        let key = Key::draw().unwrap();
        assert_eq!(key.to_string().parse(), Ok(key));
        assert!(ask(key).is_err(), "nobody offers it");
        Offer::new(key, File::open("/proc/self/cmdline").unwrap().into()).unwrap().answer().unwrap();
        let mut text = String::new();
        File::from(ask(key).unwrap()).read_to_string(&mut text).unwrap();
        assert!(!text.is_empty());
        assert!(ask(Key { secret: !key.secret, ..key }).is_err(), "another key");
    }
}
