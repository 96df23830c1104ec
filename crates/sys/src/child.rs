//! What a child process does between fork and exec.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::check;

/// Has the children of `command` killed when the calling thread ends, and in the control group of which `group` is
/// `cgroup.procs`, open for writing.
pub fn bind(command: &mut Command, group: Option<OwnedFd>) {
    // SAFETY: takes no pointers.
    let parent = unsafe { libc::getpid() };
    let before_exec = move || {
        // SAFETY: takes no pointers.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }.into())?;
        // SAFETY: as above.
        if unsafe { libc::getppid() } != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH)); // it ended before the signal was set
        }
        if let Some(group) = &group {
            // SAFETY: a buffer of one byte. A zero names the process that writes it.
            check(unsafe { libc::write(group.as_raw_fd(), c"0".as_ptr().cast(), 1) } as libc::c_long)?;
        }
        Ok(())
    };
    // SAFETY: system calls only, which are safe after fork.
    unsafe { command.pre_exec(before_exec) };
}

#[cfg(test)]
mod tests {
    use super::*;

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
