//! What the arguments of system calls point to, by call number: for calls made through `syscall` or outside the C
//! library.
//!
//! Calls that the C library's functions make as they are stand in [`table`]. Here are the others: those without a
//! function, and those whose function differs or has code of its own. Transfers, messages, masks and memory calls have
//! code of their own in [`by_number`](super::by_number). Numbers that are missing take no pointers, or none that the
//! kernel follows during the call.

// Names of the libc crate.
#![allow(non_upper_case_globals)]

use std::ffi::c_long;

use libc::*;

use crate::calls::copied::Argument;
use crate::calls::copied::Argument::{Plain, Read, Reads, Text, Writes, Written};
use crate::calls::copied::Length::Word;
use crate::calls::table;
use crate::memory::cover::UNKNOWN_BYTES;

/// Memory of unknown layout.
const UNKNOWN: Argument = Argument::Unknown(UNKNOWN_BYTES);

// Numbers that the libc crate lacks.
const CACHESTAT: c_long = 451;
const FUTEX2_WAKE: c_long = 454;
const FUTEX2_WAIT: c_long = 455;
const FUTEX2_REQUEUE: c_long = 456;
const STATMOUNT: c_long = 457;
const LISTMOUNT: c_long = 458;
const LSM_GET_SELF_ATTR: c_long = 459;
const LSM_SET_SELF_ATTR: c_long = 460;
const LSM_LIST_MODULES: c_long = 461;
const SETXATTRAT: c_long = 463;
const GETXATTRAT: c_long = 464;
const LISTXATTRAT: c_long = 465;
const REMOVEXATTRAT: c_long = 466;
const OPEN_TREE_ATTR: c_long = 467;
const FILE_GETATTR: c_long = 468;
const FILE_SETATTR: c_long = 469;
const LISTNS: c_long = 470;

const TIME: usize = size_of::<timespec>();
/// Bytes of the kernel's signal set.
const SET: usize = 8;
const INFO: usize = size_of::<siginfo_t>();

/// The arguments of a call that may be pointers. Empty for unknown numbers.
pub fn arguments(number: c_long) -> &'static [Argument] {
    [table::arguments, apart].iter().map(|of| of(number)).find(|found| !found.is_empty()).unwrap_or(&[])
}

/// Those of a call that has no row in the table.
fn apart(number: c_long) -> &'static [Argument] {
    [files, times, threads, attributes, others]
        .iter()
        .map(|of| of(number))
        .find(|found| !found.is_empty())
        .unwrap_or(&[])
}

fn files(number: c_long) -> &'static [Argument] {
    match number {
        SYS_open | SYS_chroot => &[Text],
        SYS_pivot_root => &[Text, Text],
        SYS_openat | SYS_fchmodat2 | SYS_faccessat2 => &[Plain, Text],
        SYS_openat2 => &[Plain, Text, Reads(Word(3), 1)],
        SYS_getcwd => &[Writes(Word(1), 1)],
        SYS_getdents => &[Plain, Writes(Word(2), 1)],
        SYS_quotactl_fd => &[Plain, Plain, Plain, UNKNOWN],
        SYS_sysfs => &[Plain, UNKNOWN, UNKNOWN],
        CACHESTAT => &[Plain, Read(16), Written(40)],
        STATMOUNT => &[UNKNOWN, Writes(Word(2), 1)],
        LISTMOUNT | LISTNS => &[UNKNOWN, Writes(Word(2), 8)],
        FILE_GETATTR | FILE_SETATTR => &[Plain, Text, Writes(Word(3), 1)],
        SYS_io_setup => &[Plain, Written(8)],
        SYS_io_cancel => &[Plain, UNKNOWN, Written(32)],
        SYS_io_getevents => &[Plain, Plain, Plain, Writes(Word(2), 32), Read(TIME)],
        _ => &[],
    }
}

/// Clocks and timers.
fn times(number: c_long) -> &'static [Argument] {
    match number {
        SYS_clock_gettime => &[Plain, Written(TIME)],
        SYS_gettimeofday => &[Written(TIME), Written(8)],
        SYS_time => &[Written(8)],
        SYS_timer_create => &[Plain, Read(size_of::<sigevent>()), Written(4)],
        _ => &[],
    }
}

/// Attributes of files, mounts and security modules, since Linux 6.8.
fn attributes(number: c_long) -> &'static [Argument] {
    match number {
        SETXATTRAT | GETXATTRAT => &[Plain, Text, Plain, Text, UNKNOWN],
        LISTXATTRAT => &[Plain, Text, Plain, Writes(Word(4), 1)],
        REMOVEXATTRAT => &[Plain, Text, Plain, Text],
        OPEN_TREE_ATTR => &[Plain, Text, Plain, Reads(Word(4), 1)],
        LSM_GET_SELF_ATTR => &[Plain, UNKNOWN, Written(4)],
        LSM_SET_SELF_ATTR => &[Plain, UNKNOWN],
        LSM_LIST_MODULES => &[UNKNOWN, Written(4)],
        _ => &[],
    }
}

/// All other calls.
fn others(number: c_long) -> &'static [Argument] {
    match number {
        SYS_poll => &[Argument::Polled(1), Plain, Plain],
        SYS_setsockopt => &[Plain, Plain, Plain, UNKNOWN],
        SYS_waitid => &[Plain, Plain, Written(INFO), Plain, Written(size_of::<rusage>())],
        SYS_rt_sigpending => &[Written(SET)],
        SYS_rt_sigtimedwait => &[Read(SET), Written(INFO), Read(TIME)],
        SYS_rt_sigqueueinfo => &[Plain, Plain, Read(INFO)],
        SYS_rt_tgsigqueueinfo => &[Plain, Plain, Plain, Read(INFO)],
        SYS_signalfd | SYS_signalfd4 => &[Plain, Read(SET)],
        SYS_setrlimit => &[Plain, Read(16)],
        SYS_getrlimit => &[Plain, Written(16)],
        SYS_prlimit64 => &[Plain, Plain, Read(16), Written(16)],
        SYS_sched_getattr => &[Plain, Writes(Word(2), 1)],
        SYS_sched_setattr | SYS_ptrace => &[Plain, UNKNOWN, UNKNOWN, UNKNOWN],
        SYS_get_robust_list => &[Plain, Written(8), Written(8)],
        SYS_setgroups => &[Plain, Reads(Word(0), 4)],
        SYS_capset => &[Written(8), Read(24)],
        SYS_finit_module => &[Plain, Text],
        SYS_getrandom => &[Writes(Word(1), 1)],
        SYS_mq_notify => &[Plain, UNKNOWN], // a cookie, if a thread is to be told
        SYS_kexec_load => &[Plain, Plain, UNKNOWN],
        SYS_kexec_file_load => &[Plain, Plain, Plain, Reads(Word(2), 1)],
        SYS_add_key => &[Text, Text, Reads(Word(3), 1)],
        SYS_request_key => &[Text, Text, Text],
        SYS_keyctl | SYS_prctl => &[Plain, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN],
        SYS_perf_event_open | SYS_seccomp | SYS_landlock_create_ruleset => &[UNKNOWN, UNKNOWN, UNKNOWN],
        SYS_landlock_add_rule => &[Plain, Plain, UNKNOWN],
        // The last is an address of which a page's place is asked.
        SYS_get_mempolicy => &[Written(4), UNKNOWN, Plain, Argument::Unknown(1)],
        SYS_set_mempolicy => &[Plain, UNKNOWN],
        SYS_mbind => &[Plain, Plain, Plain, UNKNOWN],
        SYS_move_pages => &[Plain, Plain, Reads(Word(1), 8), Reads(Word(1), 4), Writes(Word(1), 4)],
        SYS_migrate_pages => &[Plain, Plain, UNKNOWN, UNKNOWN],
        SYS_kcmp => &[Plain, Plain, Plain, Plain, Argument::Unknown(12)], // a number, or the slot of an epoll
        SYS_process_madvise => &[Plain, Reads(Word(2), size_of::<iovec>())],
        _ => &[],
    }
}

/// Threads, and the words that they wait on.
fn threads(number: c_long) -> &'static [Argument] {
    match number {
        SYS_clone => &[Plain, Plain, UNKNOWN, UNKNOWN],
        SYS_clone3 => &[UNKNOWN],
        FUTEX2_WAKE | FUTEX2_REQUEUE => &[UNKNOWN],
        FUTEX2_WAIT => &[UNKNOWN, Plain, Plain, Plain, Read(TIME)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_stands_once() {
        let twice = (0..table::NR_NUMBERS as c_long)
            .filter(|&number| !table::arguments(number).is_empty() && !apart(number).is_empty())
            .collect::<Vec<_>>();
        assert!(twice.is_empty(), "{twice:?}");
    }

    #[test]
    fn rows_have_the_shapes_of_their_calls() {
        let shape = |number| format!("{:?}", arguments(number));
        assert_eq!(shape(SYS_wait4), format!("[Plain, Written(4), Plain, Written({})]", size_of::<rusage>()));
        assert_eq!(shape(SYS_getsockname), "[Plain, Named(2), Written(4)]");
        assert_eq!(shape(SYS_fsetxattr), "[Plain, Text, Reads(Word(3), 1), Plain, Plain]");
        assert_eq!(shape(SYS_semop), "[Plain, Reads(Word(2), 6), Plain]");
        assert_eq!(shape(SYS_bind), "[Plain, Reads(Int(2), 1), Plain]");
        assert_eq!(shape(SYS_epoll_wait), "[Plain, Writes(Int(2), 12), Plain, Plain]");
        assert_eq!(shape(SYS_poll), "[Polled(1), Plain, Plain]");
        assert_eq!(shape(SYS_mount), "[Text, Text, Text, Plain, Unknown(4096)]");
        assert_eq!(shape(SYS_syslog), "[Plain, Writes(Int(2), 1), Plain]");
        assert_eq!(shape(-1) + &shape(c_long::MAX), "[][]");
    }
}
