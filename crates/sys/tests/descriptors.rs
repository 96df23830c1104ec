//! The engine's descriptors in a process that closes and replaces descriptors it did not open. One test, because all of
//! it shares a descriptor table.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use folioswap_sys::descriptor::Descriptor;
use folioswap_sys::hidden_numbers::{is_hidden, next_hidden};
use folioswap_sys::own_table;

fn file(text: &str) -> OwnedFd {
    let path = std::env::temp_dir().join(format!("folioswap-descriptors-{}", std::process::id()));
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    fs::remove_file(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.rewind().unwrap();
    file.into()
}

fn read(descriptor: &Descriptor) -> String {
    descriptor.with(|number| {
        let mut bytes = [0; 64];
        // SAFETY: the kernel writes at most the length of `bytes`.
        let read = unsafe { libc::pread(number, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        String::from_utf8_lossy(&bytes[..read.max(0) as usize]).into_owned()
    })
}

fn targets() -> Vec<String> {
    let entries = fs::read_dir("/proc/thread-self/fd").unwrap();
    entries.filter_map(|entry| Some(fs::read_link(entry.ok()?.path()).ok()?.to_string_lossy().into_owned())).collect()
}

fn close(number: RawFd) {
    // SAFETY: takes no pointers. The number's owner in this test checks it before each use.
    unsafe { libc::close(number) };
}

#[test]
fn a_hidden_descriptor_outlives_what_the_program_does_to_its_number() {
    let hidden = Descriptor::hidden(file("swap")).unwrap();
    let number = hidden.number();
    let log = File::from(file("the program's"));
    assert!(is_hidden(number) && !is_hidden(log.as_raw_fd()));
    assert!(next_hidden(3).is_some_and(|first| first <= number));
    assert_eq!(read(&hidden), "swap");

    // The engine's table has its own descriptors and none of the program's.
    let own = own_table::run(targets).unwrap();
    assert_eq!(own.iter().filter(|target| target.contains("folioswap-descriptors")).count(), 1, "{own:?}");
    assert!(!own.iter().any(|target| target.contains("pipe:") || target.contains("/dev/vd")), "{own:?}");
    let (tell, told) = std::sync::mpsc::channel();
    own_table::spawn("test", 256 << 10, move || tell.send(targets()).unwrap()).unwrap().join();
    let of_a_thread = told.recv().unwrap();
    assert_eq!(of_a_thread.iter().filter(|target| target.contains("folioswap-descriptors")).count(), 1);

    // The number is closed, and reused for another file.
    close(number);
    assert_eq!(read(&hidden), "swap");
    // SAFETY: takes no pointers.
    assert_eq!(unsafe { libc::dup2(log.as_raw_fd(), number) }, number);
    assert_eq!(read(&hidden), "swap");
    let written = hidden.with(|number| {
        // SAFETY: the kernel reads four bytes.
        unsafe { libc::pwrite(number, b"SWAP".as_ptr().cast(), 4, 0) }
    });
    assert_eq!((written, read(&hidden).as_str()), (4, "SWAP"));

    // What the program has put at this number stays open when our descriptor is dropped.
    drop(hidden);
    assert!(!is_hidden(number));
    let mut bytes = [0; 13];
    log.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"the program's");
    assert!(fs::read_link(format!("/proc/self/fd/{number}")).is_ok(), "closed what is the program's");
    close(number);
    assert!(!own_table::run(targets).unwrap().iter().any(|target| target.contains("folioswap-descriptors")));

    // If one of the engine's threads drops a descriptor, the next drop on this thread closes its number.
    let (first, second) = (Descriptor::hidden(file("1")).unwrap(), Descriptor::hidden(file("2")).unwrap());
    let number = first.number();
    own_table::run(|| drop(first)).unwrap();
    drop(second);
    assert!(fs::read_link(format!("/proc/self/fd/{number}")).is_err());

    // A forked child has none.
    let hidden = Descriptor::hidden(file("swap")).unwrap();
    // SAFETY: the child makes one system call and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes no pointers.
        let open = unsafe { libc::fcntl(hidden.number(), libc::F_GETFD) } >= 0;
        folioswap_sys::signals::exit_now(i32::from(open));
    }
    let mut status = -1;
    // SAFETY: the status is a local of this frame. The child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(read(&hidden), "swap");
}
