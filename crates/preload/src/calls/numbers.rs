//! What the arguments of system calls point to, by call number: for calls made through `syscall` or outside the C
//! library.
//!
//! Transfers, messages, masks and memory calls have code of their own in [`by_number`](super::by_number). Numbers that
//! are missing here take no pointers, or none that the kernel follows during the call.

// Names of the libc crate.
#![allow(non_upper_case_globals)]

use std::ffi::c_long;

use libc::*;

/// What an argument points to. The kernel only reads what is marked as read, and may also write what is marked as
/// written.
#[derive(Clone, Copy)]
pub enum Argument {
    /// A number.
    Plain,
    /// A C string.
    Text,
    /// This many bytes, read.
    Read(usize),
    /// This many bytes, written.
    Written(usize),
    /// An array, read: the index of the argument that holds its length, and the bytes of an item.
    Reads(usize, usize),
    /// The same, written.
    Writes(usize, usize),
    /// An array of `pollfd`, whose length is in the argument of this index.
    Polled(usize),
    /// A written buffer whose length is stored where the argument of this index points.
    Named(usize),
    /// Memory of unknown layout. Faulted in, and again if it was evicted.
    Unknown,
}

use Argument::*;

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

const TIME: usize = size_of::<timespec>();
const STAT: usize = size_of::<stat>();
/// Bytes of the kernel's signal set.
const SET: usize = 8;
const INFO: usize = size_of::<siginfo_t>();

/// The arguments of a call that may be pointers. Empty for unknown numbers.
pub fn arguments(number: c_long) -> &'static [Argument] {
    [files, times, threads, attributes, others]
        .iter()
        .map(|of| of(number))
        .find(|found| !found.is_empty())
        .unwrap_or(&[])
}

/// Calls on files.
fn files(number: c_long) -> &'static [Argument] {
    match number {
        SYS_open | SYS_creat | SYS_access | SYS_mkdir | SYS_rmdir | SYS_unlink | SYS_chmod | SYS_chown | SYS_lchown
        | SYS_truncate | SYS_chdir | SYS_chroot | SYS_mknod | SYS_acct | SYS_swapon | SYS_swapoff | SYS_umount2
        | SYS_memfd_create | SYS_mq_unlink | SYS_fsopen => &[Text],
        SYS_rename | SYS_link | SYS_symlink | SYS_pivot_root | SYS_removexattr | SYS_lremovexattr => &[Text, Text],
        SYS_openat
        | SYS_mkdirat
        | SYS_mknodat
        | SYS_fchownat
        | SYS_unlinkat
        | SYS_fchmodat
        | SYS_fchmodat2
        | SYS_faccessat
        | SYS_faccessat2
        | SYS_inotify_add_watch
        | SYS_open_tree
        | SYS_fspick
        | SYS_fremovexattr => &[Plain, Text],
        SYS_openat2 => &[Plain, Text, Reads(3, 1)],
        SYS_renameat | SYS_renameat2 | SYS_linkat | SYS_move_mount => &[Plain, Text, Plain, Text],
        SYS_symlinkat => &[Text, Plain, Text],
        SYS_fanotify_mark => &[Plain, Plain, Plain, Plain, Text],
        SYS_stat | SYS_lstat => &[Text, Written(STAT)],
        SYS_fstat => &[Plain, Written(STAT)],
        SYS_newfstatat => &[Plain, Text, Written(STAT)],
        SYS_statx => &[Plain, Text, Plain, Plain, Written(size_of::<statx>())],
        SYS_statfs => &[Text, Written(size_of::<statfs>())],
        SYS_fstatfs => &[Plain, Written(size_of::<statfs>())],
        SYS_ustat => &[Plain, Written(32)],
        SYS_readlink => &[Text, Writes(2, 1)],
        SYS_readlinkat => &[Plain, Text, Writes(3, 1)],
        SYS_getcwd => &[Writes(1, 1)],
        SYS_getdents | SYS_getdents64 => &[Plain, Writes(2, 1)],
        SYS_utime => &[Text, Read(16)],
        SYS_utimes => &[Text, Read(2 * TIME)],
        SYS_utimensat | SYS_futimesat => &[Plain, Text, Read(2 * TIME)],
        SYS_setxattr | SYS_lsetxattr => &[Text, Text, Reads(3, 1)],
        SYS_fsetxattr => &[Plain, Text, Reads(3, 1)],
        SYS_getxattr | SYS_lgetxattr => &[Text, Text, Writes(3, 1)],
        SYS_fgetxattr => &[Plain, Text, Writes(3, 1)],
        SYS_listxattr | SYS_llistxattr => &[Text, Writes(2, 1)],
        SYS_flistxattr => &[Plain, Writes(2, 1)],
        SYS_name_to_handle_at => &[Plain, Text, Unknown, Written(8)],
        SYS_open_by_handle_at => &[Plain, Unknown],
        SYS_mount => &[Text, Text, Text, Plain, Unknown],
        SYS_fsconfig => &[Plain, Plain, Text, Unknown],
        SYS_mount_setattr => &[Plain, Text, Plain, Writes(4, 1)],
        SYS_quotactl_fd => &[Plain, Plain, Plain, Unknown],
        CACHESTAT => &[Plain, Read(16), Written(40)],
        STATMOUNT => &[Unknown, Writes(2, 1)],
        LISTMOUNT => &[Unknown, Writes(2, 8)],
        FILE_GETATTR | FILE_SETATTR => &[Plain, Text, Writes(3, 1)],
        SYS_quotactl => &[Plain, Text, Plain, Unknown],
        SYS_sendfile => &[Plain, Plain, Written(8)],
        SYS_splice | SYS_copy_file_range => &[Plain, Written(8), Plain, Written(8)],
        SYS_pipe | SYS_pipe2 => &[Written(8)],
        SYS_fcntl => &[Plain, Plain, Unknown],
        SYS_mq_open => &[Text, Plain, Plain, Read(size_of::<mq_attr>())],
        SYS_io_setup => &[Plain, Written(8)],
        SYS_io_cancel => &[Plain, Unknown, Written(32)],
        SYS_io_getevents => &[Plain, Plain, Plain, Writes(2, 32), Read(TIME)],
        _ => &[],
    }
}

/// Clocks and timers.
fn times(number: c_long) -> &'static [Argument] {
    match number {
        SYS_nanosleep => &[Read(TIME), Written(TIME)],
        SYS_clock_nanosleep => &[Plain, Plain, Read(TIME), Written(TIME)],
        SYS_clock_gettime | SYS_clock_getres => &[Plain, Written(TIME)],
        SYS_clock_settime => &[Plain, Read(TIME)],
        SYS_clock_adjtime => &[Plain, Written(size_of::<timex>())],
        SYS_adjtimex => &[Written(size_of::<timex>())],
        SYS_gettimeofday | SYS_settimeofday => &[Written(TIME), Written(8)],
        SYS_time => &[Written(8)],
        SYS_times => &[Written(size_of::<tms>())],
        SYS_getitimer => &[Plain, Written(2 * TIME)],
        SYS_setitimer => &[Plain, Read(2 * TIME), Written(2 * TIME)],
        SYS_timer_create => &[Plain, Read(size_of::<sigevent>()), Written(4)],
        SYS_timer_gettime | SYS_timerfd_gettime => &[Plain, Written(2 * TIME)],
        SYS_timer_settime | SYS_timerfd_settime => &[Plain, Plain, Read(2 * TIME), Written(2 * TIME)],
        _ => &[],
    }
}

/// Attributes of files, mounts and security modules, since Linux 6.8.
fn attributes(number: c_long) -> &'static [Argument] {
    match number {
        SETXATTRAT | GETXATTRAT => &[Plain, Text, Plain, Text, Unknown],
        LISTXATTRAT => &[Plain, Text, Plain, Writes(4, 1)],
        REMOVEXATTRAT => &[Plain, Text, Plain, Text],
        OPEN_TREE_ATTR => &[Plain, Text, Plain, Reads(4, 1)],
        LSM_GET_SELF_ATTR => &[Plain, Unknown, Written(4)],
        LSM_SET_SELF_ATTR => &[Plain, Unknown],
        LSM_LIST_MODULES => &[Unknown, Written(4)],
        _ => &[],
    }
}

/// All other calls.
fn others(number: c_long) -> &'static [Argument] {
    match number {
        SYS_socketpair => &[Plain, Plain, Plain, Written(8)],
        SYS_bind | SYS_connect => &[Plain, Reads(2, 1)],
        SYS_accept | SYS_accept4 | SYS_getsockname | SYS_getpeername => &[Plain, Named(2), Written(4)],
        SYS_setsockopt => &[Plain, Plain, Plain, Unknown],
        SYS_getsockopt => &[Plain, Plain, Plain, Named(4), Written(4)],
        SYS_poll => &[Polled(1)],
        SYS_epoll_ctl => &[Plain, Plain, Plain, Read(12)],
        SYS_epoll_wait => &[Plain, Writes(2, 12)],
        SYS_wait4 => &[Plain, Written(4), Plain, Written(size_of::<rusage>())],
        SYS_waitid => &[Plain, Plain, Written(INFO), Plain, Written(size_of::<rusage>())],
        SYS_rt_sigpending => &[Written(SET)],
        SYS_rt_sigtimedwait => &[Read(SET), Written(INFO), Read(TIME)],
        SYS_rt_sigqueueinfo => &[Plain, Plain, Read(INFO)],
        SYS_rt_tgsigqueueinfo => &[Plain, Plain, Plain, Read(INFO)],
        SYS_pidfd_send_signal => &[Plain, Plain, Read(INFO)],
        SYS_signalfd | SYS_signalfd4 => &[Plain, Read(SET)],
        SYS_getrusage => &[Plain, Written(size_of::<rusage>())],
        SYS_getrlimit => &[Plain, Written(16)],
        SYS_setrlimit => &[Plain, Read(16)],
        SYS_prlimit64 => &[Plain, Plain, Read(16), Written(16)],
        SYS_sysinfo => &[Written(size_of::<sysinfo>())],
        SYS_uname => &[Written(size_of::<utsname>())],
        SYS_sched_getaffinity => &[Plain, Plain, Writes(1, 1)],
        SYS_sched_setaffinity => &[Plain, Plain, Reads(1, 1)],
        SYS_sched_getparam => &[Plain, Written(4)],
        SYS_sched_setparam => &[Plain, Read(4)],
        SYS_sched_setscheduler => &[Plain, Plain, Read(4)],
        SYS_sched_getattr => &[Plain, Writes(2, 1)],
        SYS_sched_setattr | SYS_ptrace => &[Plain, Unknown, Unknown, Unknown],
        SYS_sched_rr_get_interval => &[Plain, Written(TIME)],
        SYS_getcpu => &[Written(4), Written(4)],
        SYS_get_robust_list => &[Plain, Written(8), Written(8)],
        SYS_getgroups => &[Plain, Writes(0, 4)],
        SYS_setgroups => &[Plain, Reads(0, 4)],
        SYS_getresuid | SYS_getresgid => &[Written(4), Written(4), Written(4)],
        SYS_capget | SYS_capset => &[Written(8), Written(24)],
        SYS_sethostname | SYS_setdomainname => &[Reads(1, 1)],
        SYS_syslog => &[Plain, Writes(2, 1)],
        SYS_modify_ldt => &[Plain, Writes(2, 1)],
        SYS_init_module => &[Reads(1, 1), Plain, Text],
        SYS_finit_module => &[Plain, Text],
        SYS_delete_module => &[Text],
        SYS_getrandom => &[Writes(1, 1)],
        SYS_semop => &[Plain, Reads(2, 6)],
        SYS_semtimedop => &[Plain, Reads(2, 6), Plain, Read(TIME)],
        SYS_semctl => &[Plain, Plain, Plain, Unknown],
        SYS_shmctl | SYS_msgctl => &[Plain, Plain, Unknown],
        SYS_mq_timedsend => &[Plain, Reads(2, 1), Plain, Plain, Read(TIME)],
        SYS_mq_timedreceive => &[Plain, Writes(2, 1), Plain, Written(4), Read(TIME)],
        SYS_mq_notify => &[Plain, Read(size_of::<sigevent>())],
        SYS_mq_getsetattr => &[Plain, Read(64), Written(64)],
        SYS_add_key => &[Text, Text, Reads(3, 1)],
        SYS_request_key => &[Text, Text, Text],
        SYS_keyctl | SYS_prctl => &[Plain, Unknown, Unknown, Unknown, Unknown],
        SYS_arch_prctl => &[Plain, Unknown],
        SYS_bpf => &[Plain, Unknown],
        SYS_perf_event_open | SYS_seccomp | SYS_landlock_create_ruleset => &[Unknown, Unknown, Unknown],
        SYS_landlock_add_rule => &[Plain, Plain, Unknown],
        SYS_get_mempolicy => &[Written(4), Unknown],
        SYS_set_mempolicy => &[Plain, Unknown],
        SYS_mbind => &[Plain, Plain, Plain, Unknown],
        SYS_move_pages => &[Plain, Plain, Reads(1, 8), Reads(1, 4), Writes(1, 4)],
        SYS_migrate_pages => &[Plain, Plain, Unknown, Unknown],
        SYS_process_madvise => &[Plain, Reads(2, size_of::<iovec>())],
        _ => &[],
    }
}

/// Threads, and the words that they wait on.
fn threads(number: c_long) -> &'static [Argument] {
    match number {
        SYS_clone => &[Plain, Plain, Unknown, Unknown],
        SYS_clone3 => &[Unknown],
        SYS_futex_waitv => &[Unknown, Plain, Plain, Read(TIME)],
        FUTEX2_WAKE | FUTEX2_REQUEUE => &[Unknown],
        FUTEX2_WAIT => &[Unknown, Plain, Plain, Plain, Read(TIME)],
        _ => &[],
    }
}
