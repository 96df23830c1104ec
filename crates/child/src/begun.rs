//! How this process was started, seen before Rust's runtime changes it, and children that are started in the same way.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::{MOST_SIGNAL, bit, check, mask};

/// The signals that this process was started to ignore and to block, and the standard streams that were closed.
static IGNORED: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicU64 = AtomicU64::new(0);
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// Where the arguments lie, one after the other, and their length.
static ARGUMENTS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static ARGUMENTS_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Rust's runtime ignores SIGPIPE and opens /dev/null for closed streams, before `main`. The loader calls this earlier.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn(libc::c_int, *const *mut libc::c_char) = look;

extern "C" fn look(nr_arguments: libc::c_int, arguments: *const *mut libc::c_char) {
    for signal in 1..=MOST_SIGNAL {
        // SAFETY: all zeroes is a valid action. The kernel fills it in.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            action
        };
        if action.sa_sigaction == libc::SIG_IGN {
            IGNORED.fetch_or(bit(signal), Ordering::Relaxed);
        }
    }
    BLOCKED.store(mask(libc::SIG_BLOCK, 0), Ordering::Relaxed);
    for stream in 0..=libc::STDERR_FILENO {
        // SAFETY: takes no pointers.
        if unsafe { libc::fcntl(stream, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << stream, Ordering::Relaxed);
        }
    }
    if let Some(last) = nr_arguments.checked_sub(1).and_then(|last| usize::try_from(last).ok()) {
        // SAFETY: the C library passes the arguments of `main`: strings that lie as the kernel has put them.
        unsafe {
            let (first, last) = (*arguments, *arguments.add(last));
            ARGUMENTS_BYTES.store(last.offset_from_unsigned(first) + libc::strlen(last), Ordering::Relaxed);
            ARGUMENTS.store(first.cast(), Ordering::Relaxed);
        }
    }
}

/// The mask with which this process was started.
pub(crate) fn began_blocking() -> u64 {
    BLOCKED.load(Ordering::Relaxed)
}

/// Whether this process was started with a signal ignored.
#[must_use]
pub fn began_ignoring(signal: i32) -> bool {
    IGNORED.load(Ordering::Relaxed) & bit(signal) != 0
}

/// Overwrites the command line that others see.
///
/// # Safety
/// Nobody reads this process's arguments any more.
pub(crate) unsafe fn erase_arguments() {
    let first = ARGUMENTS.load(Ordering::Relaxed);
    // SAFETY: the strings are writable, and the caller promises that nobody reads them. The length is 0 beside null.
    (0..ARGUMENTS_BYTES.load(Ordering::Relaxed)).for_each(|at| unsafe { first.add(at).write_volatile(0) });
}

/// Has the children of `command` killed when the calling thread ends, and in the control group of which `group` is
/// `cgroup.procs`, open for writing. They ignore and block the signals that this process was started to ignore and
/// block.
pub fn bind(command: &mut Command, group: Option<OwnedFd>) {
    // SAFETY: takes no pointers.
    let parent = unsafe { libc::getpid() };
    let before_exec = move || {
        die_with(parent)?;
        if let Some(group) = &group {
            // SAFETY: a buffer of one byte. A zero names the process that writes it.
            check(unsafe { libc::write(group.as_raw_fd(), c"0".as_ptr().cast(), 1) } as libc::c_long)?;
        }
        for signal in (1..=MOST_SIGNAL).filter(|&signal| began_ignoring(signal)) {
            // SAFETY: no handler is installed.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        mask(libc::SIG_SETMASK, began_blocking());
        Ok(())
    };
    // SAFETY: system calls only, which are safe after fork.
    unsafe { command.pre_exec(before_exec) };
}

/// Sets a variable of this process, once however often it was there. Children of a [`Command`] to which no variables
/// were given get all else in the environment as this process got it. (With some, they would get a map of them.)
pub fn set_variable(name: &str, value: &OsStr) {
    // SAFETY: threads of this process read and change the environment by functions of the standard library only, which
    // lock it.
    unsafe {
        std::env::remove_var(name);
        std::env::set_var(name, value);
    }
}

/// Closes the standard streams in the children of `command` that were closed when this process was started.
pub fn close_streams(command: &mut Command) {
    let closed = CLOSED.load(Ordering::Relaxed);
    let before_exec = move || {
        for stream in (0..=libc::STDERR_FILENO).filter(|stream| closed >> stream & 1 == 1) {
            // SAFETY: the runtime's /dev/null, in a process that executes another program next.
            unsafe { libc::close(stream) };
        }
        Ok(())
    };
    // SAFETY: as in `bind`.
    unsafe { command.pre_exec(before_exec) };
}

/// Has the kernel kill this process when the thread of `parent` ends that has started it.
pub(crate) fn die_with(parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }.into())?;
    // SAFETY: as above.
    if unsafe { libc::getppid() } == parent {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH)) // it ended before the signal was set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_gets_what_is_in_the_environment_twice_and_what_is_no_variable() {
        unsafe extern "C" {
            static mut environ: *const *const libc::c_char;
        }
        let lines =
            [c"TWICE=1", c"SET=1", c"NONE", c"TWICE=2", c"SET=2", c"PATH=/bin:/usr/bin"].map(std::ffi::CStr::as_ptr);
        let own = [&lines[..], &[std::ptr::null()]].concat();
        // SAFETY: other threads only hand the list on to children, and none of the lists is ever freed.
        let before = unsafe {
            let before = environ;
            environ = own.leak().as_ptr();
            before
        };
        set_variable("SET", OsStr::new("3"));
        let mut command = Command::new("/bin/cat");
        let output = command.arg("/proc/self/environ").output();
        // SAFETY: as above.
        unsafe { environ = before };
        let got = String::from_utf8(output.unwrap().stdout).unwrap();
        assert_eq!(
            got.split_terminator('\0').collect::<Vec<_>>(),
            ["TWICE=1", "NONE", "TWICE=2", "PATH=/bin:/usr/bin", "SET=3"]
        );
    }

    #[test]
    fn a_child_runs_and_a_refusal_is_an_error() {
        let mut command = Command::new("grep");
        command.args(["-c", "Name:", "/proc/self/status"]);
        bind(&mut command, None);
        assert!(command.output().unwrap().status.success());
        let read_only = std::fs::File::open("/dev/null").unwrap();
        bind(&mut command, Some(read_only.into()));
        assert_eq!(command.output().unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
