//! Files that forked children need, kept open from the start: a child may be of another user by then, or in another
//! root.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::descriptor::Descriptor;
use crate::{open_at, taken};

static PROC: OnceLock<Descriptor> = OnceLock::new();
/// [`leave_root`] was called.
static LEFT: AtomicBool = AtomicBool::new(false);
static USERFAULTFD: OnceLock<Descriptor> = OnceLock::new();
/// The kernel had swap when [`keep`] was called, or did not say.
static HAD_SWAP: AtomicBool = AtomicBool::new(true);

/// Keeps them open, hidden from the program. What is not there, or may not be opened, is not kept.
pub fn keep() {
    // SAFETY: all zeroes is a valid value, and the kernel fills in a local of this frame.
    let (asked, about) = unsafe {
        let mut about: libc::sysinfo = std::mem::zeroed();
        (libc::sysinfo(&raw mut about), about)
    };
    HAD_SWAP.store(asked != 0 || about.totalswap != 0, Ordering::Relaxed);
    let files =
        [(&PROC, c"/proc", libc::O_PATH | libc::O_DIRECTORY), (&USERFAULTFD, c"/dev/userfaultfd", libc::O_RDWR)];
    for (place, path, flags) in files {
        let opened = open_at(libc::AT_FDCWD, path, flags);
        if let Ok(descriptor) = opened.and_then(Descriptor::hidden) {
            let _ = place.set(descriptor); // it is called once
        }
    }
}

/// Those that are open.
pub fn all() -> impl Iterator<Item = &'static Descriptor> {
    proc().into_iter().chain(USERFAULTFD.get())
}

fn proc() -> Option<&'static Descriptor> {
    PROC.get().filter(|_| !LEFT.load(Ordering::Relaxed))
}

/// The program has left the root or the namespaces in which `/proc` was opened, by which code could reach what is
/// outside. Children use what is there then.
pub fn leave_root() {
    if let Some(proc) = PROC.get()
        && !LEFT.swap(true, Ordering::SeqCst)
    {
        proc.close();
    }
}

/// `/dev/userfaultfd`.
pub(crate) fn userfaultfd() -> Option<&'static Descriptor> {
    USERFAULTFD.get()
}

/// Opens a file below `/proc`.
pub(crate) fn open_in_proc(path: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    match proc() {
        Some(proc) => proc.with(|folder| open_at(folder, path, flags)),
        None => open_at(open_at(libc::AT_FDCWD, c"/proc", libc::O_PATH)?.as_raw_fd(), path, flags),
    }
}

/// The folder `/proc` by another descriptor, with which no call succeeds either.
///
/// # Errors
/// The kernel's; or the kernel had swap at the start: a page there would be taken for missing.
pub(crate) fn proc_again() -> io::Result<OwnedFd> {
    if HAD_SWAP.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    proc().ok_or(io::ErrorKind::NotFound)?.with(|folder| {
        // SAFETY: takes no pointers.
        taken(unsafe { libc::syscall(libc::SYS_fcntl, folder, libc::F_DUPFD_CLOEXEC, 0) })
    })
}

/// The root of the process, by a descriptor with which no call succeeds.
pub(crate) fn open_root() -> io::Result<OwnedFd> {
    open_at(libc::AT_FDCWD, c"/", libc::O_PATH)
}
