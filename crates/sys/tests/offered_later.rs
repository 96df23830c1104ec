//! A process whose descriptors are all taken for a moment: it answers again afterwards. A test of its own, because the
//! limit holds for all threads.

use std::fs::File;
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use folioswap_sys::offered::{Key, Offer, ask};

fn limit_descriptors(nr: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills in a local, and reads it.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, nr);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        before
    }
}

#[test]
fn who_asks_after_a_shortage_of_descriptors_is_answered() {
    let key = Key::draw().unwrap();
    Offer::new(key, File::open("/proc/self/cmdline").unwrap().into()).unwrap().answer().unwrap();
    let name = format!("folioswap-{}", &key.to_string()[..16]);
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    let before = limit_descriptors(0);
    let _ = stream.write_all(&[0; 8]); // another secret
    std::thread::sleep(Duration::from_millis(200)); // this one, or the next, cannot be accepted
    limit_descriptors(before);
    assert!(ask(key).is_ok());
}
