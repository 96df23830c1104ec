//! Makes system calls fail with ENOSYS for the calling thread and everything that it starts later, across exec.

use std::io;

use crate::check;

/// The kernel's identifier of the architecture whose system calls are meant.
pub(crate) const MACHINE: u32 = 0xc000_003e;

/// Classic BPF: load a word of the filter's input, jump if equal, return.
pub(crate) const LOAD: u16 = 0x20;
pub(crate) const JUMP_IF_EQUAL: u16 = 0x15;
pub(crate) const RETURN: u16 = 0x06;

/// Offsets of the system call's number and of the architecture in the filter's input.
pub(crate) const NUMBER_AT: u32 = 0;
pub(crate) const MACHINE_AT: u32 = 4;

/// An instruction of a filter.
pub(crate) fn step(code: u16, if_equal: u8, if_not: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: if_equal, jf: if_not, k }
}

/// Makes these calls fail with ENOSYS from now on, for good. Existing threads are not affected.
///
/// Without CAP_SYS_ADMIN the kernel requires `PR_SET_NO_NEW_PRIVS` first. Set-user-ID programs that the thread starts
/// then run without their owner's privileges.
///
/// # Errors
/// EINVAL and the like if the kernel or a sandbox has no filters.
pub fn refuse<const N: usize>(calls: [libc::c_long; N]) -> io::Result<()> {
    let nr_calls = N as u8;
    let mut filter = vec![
        step(LOAD, 0, 0, MACHINE_AT),
        step(JUMP_IF_EQUAL, 0, nr_calls + 1, MACHINE), // other architectures' programs pass
        step(LOAD, 0, 0, NUMBER_AT),
    ];
    filter.extend((1..).zip(calls).map(|(nr, call)| step(JUMP_IF_EQUAL, nr_calls - nr + 1, 0, call as u32)));
    filter.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which has the length of the vector that it points to. Both outlive the
    // call.
    let install = || unsafe {
        check(libc::syscall(libc::SYS_prctl, libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program))
    };
    match install() {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: takes no pointers.
            check(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
            install().map(drop)
        }
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error number of a call whose arguments are all zero.
    fn error_of(call: libc::c_long) -> i32 {
        // SAFETY: these calls refuse a null pointer.
        check(unsafe { libc::syscall(call, 0, 0, 0) }).map_or_else(|error| error.raw_os_error().unwrap(), |_| 0)
    }

    #[test]
    fn a_thread_and_those_it_starts_are_refused_what_is_named_and_no_other() {
        let before = error_of(libc::SYS_io_setup);
        let refused = std::thread::spawn(|| {
            refuse([libc::SYS_io_setup, libc::SYS_io_uring_setup]).unwrap();
            let own = [libc::SYS_io_setup, libc::SYS_io_uring_setup, libc::SYS_getpid].map(error_of);
            let started = std::thread::spawn(|| error_of(libc::SYS_io_setup)).join().unwrap();
            (own, started)
        });
        assert_eq!(refused.join().unwrap(), ([libc::ENOSYS, libc::ENOSYS, 0], libc::ENOSYS));
        assert_eq!(error_of(libc::SYS_io_setup), before, "a thread that was there");
    }
}
