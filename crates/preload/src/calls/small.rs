//! Calls with paths and structures: their memory is faulted in before the call, and again if the kernel missed a page.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use libc::{
    FILE, epoll_event, gid_t, mode_t, off_t, pid_t, rlimit, rusage, size_t, sockaddr, socklen_t, timespec, uid_t,
    utsname,
};

use crate::calls::access;
use crate::calls::cover::{repeat, structure, text, touch, value};
use crate::export::{export, real};

/// For each function: its arguments, and what to fault in.
macro_rules! touched {
    ($(fn $name:ident = $text:literal ($($arg:ident: $type:ty),*) -> $result:ty { $($touch:expr),* })*) => {$(
        export! {
            fn $name($($arg: $type),*) -> $result {
                real!(REAL = $text: fn($($type),*) -> $result);
                let real = REAL.get();
                // SAFETY: passes the caller's arguments on unchanged, repeatedly while a page is missing.
                repeat(|| { $($touch;)* }, || unsafe { real($($arg),*) })
            }
        }
    )*};
}

// Upper bound of what the kernel accesses behind a pointer of unknown type.
pub const UNKNOWN_BYTES: usize = 512;

touched! {
    fn creat = c"creat"(path: *const c_char, mode: mode_t) -> c_int { text(path) }
    fn creat64 = c"creat64"(path: *const c_char, mode: mode_t) -> c_int { text(path) }
    fn fopen = c"fopen"(path: *const c_char, mode: *const c_char) -> *mut FILE { text(path) }
    fn fopen64 = c"fopen64"(path: *const c_char, mode: *const c_char) -> *mut FILE { text(path) }
    fn opendir = c"opendir"(path: *const c_char) -> *mut c_void { text(path) }
    fn access = c"access"(path: *const c_char, mode: c_int) -> c_int { text(path) }
    fn faccessat = c"faccessat"(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int { text(path) }
    fn unlink = c"unlink"(path: *const c_char) -> c_int { text(path) }
    fn unlinkat = c"unlinkat"(at: c_int, path: *const c_char, flags: c_int) -> c_int { text(path) }
    fn remove = c"remove"(path: *const c_char) -> c_int { text(path) }
    fn rename = c"rename"(from: *const c_char, to: *const c_char) -> c_int { text(from), text(to) }
    fn renameat = c"renameat"(a: c_int, from: *const c_char, b: c_int, to: *const c_char) -> c_int { text(from), text(to) }
    fn link = c"link"(from: *const c_char, to: *const c_char) -> c_int { text(from), text(to) }
    fn symlink = c"symlink"(from: *const c_char, to: *const c_char) -> c_int { text(from), text(to) }
    fn mkdir = c"mkdir"(path: *const c_char, mode: mode_t) -> c_int { text(path) }
    fn mkdirat = c"mkdirat"(at: c_int, path: *const c_char, mode: mode_t) -> c_int { text(path) }
    fn rmdir = c"rmdir"(path: *const c_char) -> c_int { text(path) }
    fn chdir = c"chdir"(path: *const c_char) -> c_int { text(path) }
    fn chmod = c"chmod"(path: *const c_char, mode: mode_t) -> c_int { text(path) }
    fn chown = c"chown"(path: *const c_char, user: uid_t, group: gid_t) -> c_int { text(path) }
    fn truncate = c"truncate"(path: *const c_char, len: off_t) -> c_int { text(path) }
    fn truncate64 = c"truncate64"(path: *const c_char, len: off_t) -> c_int { text(path) }
    fn mkstemp = c"mkstemp"(path: *mut c_char) -> c_int { text(path) }
    fn mkstemp64 = c"mkstemp64"(path: *mut c_char) -> c_int { text(path) }
    fn mkdtemp = c"mkdtemp"(path: *mut c_char) -> *mut c_char { text(path) }
    fn readlink = c"readlink"(path: *const c_char, buffer: *mut c_char, len: size_t) -> isize { text(path), touch(buffer, len) }
    fn readlinkat = c"readlinkat"(at: c_int, path: *const c_char, buffer: *mut c_char, len: size_t) -> isize { text(path), touch(buffer, len) }
    fn realpath = c"realpath"(path: *const c_char, buffer: *mut c_char) -> *mut c_char { text(path), touch(buffer, libc::PATH_MAX as usize) }
    fn getwd = c"getwd"(buffer: *mut c_char) -> *mut c_char { touch(buffer, libc::PATH_MAX as usize) }
    fn __getwd_chk = c"__getwd_chk"(buffer: *mut c_char, room: size_t) -> *mut c_char { touch(buffer, room) }
    fn __getcwd_chk = c"__getcwd_chk"(buffer: *mut c_char, len: size_t, room: size_t) -> *mut c_char { touch(buffer, len) }
    fn __realpath_chk = c"__realpath_chk"(path: *const c_char, buffer: *mut c_char, room: size_t) -> *mut c_char { text(path), touch(buffer, libc::PATH_MAX as usize) }
    fn mktemp = c"mktemp"(path: *mut c_char) -> *mut c_char { text(path) }
    fn name_to_handle_at = c"name_to_handle_at"(at: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int) -> c_int { text(path), touch(handle, 136), value(mount) }
    fn getcwd = c"getcwd"(buffer: *mut c_char, len: size_t) -> *mut c_char { touch(buffer, len) }
}

touched! {
    fn stat = c"stat"(path: *const c_char, about: *mut libc::stat) -> c_int { text(path), value(about) }
    fn stat64 = c"stat64"(path: *const c_char, about: *mut libc::stat) -> c_int { text(path), value(about) }
    fn lstat = c"lstat"(path: *const c_char, about: *mut libc::stat) -> c_int { text(path), value(about) }
    fn lstat64 = c"lstat64"(path: *const c_char, about: *mut libc::stat) -> c_int { text(path), value(about) }
    fn fstat = c"fstat"(fd: c_int, about: *mut libc::stat) -> c_int { value(about) }
    fn fstat64 = c"fstat64"(fd: c_int, about: *mut libc::stat) -> c_int { value(about) }
    fn fstatat = c"fstatat"(at: c_int, path: *const c_char, about: *mut libc::stat, flags: c_int) -> c_int { text(path), value(about) }
    fn fstatat64 = c"fstatat64"(at: c_int, path: *const c_char, about: *mut libc::stat, flags: c_int) -> c_int { text(path), value(about) }
    fn __xstat = c"__xstat"(version: c_int, path: *const c_char, about: *mut libc::stat) -> c_int { text(path), value(about) }
    fn __lxstat = c"__lxstat"(version: c_int, path: *const c_char, about: *mut libc::stat) -> c_int { text(path), value(about) }
    fn __fxstat = c"__fxstat"(version: c_int, fd: c_int, about: *mut libc::stat) -> c_int { value(about) }
    fn statx = c"statx"(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, about: *mut libc::statx) -> c_int { text(path), value(about) }
    fn statfs = c"statfs"(path: *const c_char, about: *mut libc::statfs) -> c_int { text(path), value(about) }
    fn fstatfs = c"fstatfs"(fd: c_int, about: *mut libc::statfs) -> c_int { value(about) }
    fn statvfs = c"statvfs"(path: *const c_char, about: *mut libc::statvfs) -> c_int { text(path), value(about) }
    fn fstatvfs = c"fstatvfs"(fd: c_int, about: *mut libc::statvfs) -> c_int { value(about) }
    fn utimensat = c"utimensat"(at: c_int, path: *const c_char, times: *const [timespec; 2], flags: c_int) -> c_int { text(path), value(times) }
    fn futimens = c"futimens"(fd: c_int, times: *const [timespec; 2]) -> c_int { value(times) }
    fn quotactl = c"quotactl"(what: c_int, device: *const c_char, id: c_int, at: *mut c_void) -> c_int { text(device), structure(at, UNKNOWN_BYTES) }
    fn mount = c"mount"(source: *const c_char, path: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void) -> c_int { text(source), text(path), text(kind), structure(data, 4096) }
    fn fsconfig = c"fsconfig"(fd: c_int, what: c_uint, key: *const c_char, data: *const c_void, more: c_int) -> c_int { text(key), structure(data, 4096) }
    fn arch_prctl = c"arch_prctl"(what: c_int, at: *mut c_ulong) -> c_int { value(at) }
    fn __arch_prctl = c"__arch_prctl"(what: c_int, at: *mut c_ulong) -> c_int { value(at) }
    fn semctl = c"semctl"(set: c_int, number: c_int, what: c_int, at: *mut c_void) -> c_int { structure(at, UNKNOWN_BYTES) }
    fn getrusage = c"getrusage"(who: c_int, usage: *mut rusage) -> c_int { value(usage) }
    fn getrlimit = c"getrlimit"(what: c_int, limit: *mut rlimit) -> c_int { value(limit) }
    fn getrlimit64 = c"getrlimit64"(what: c_int, limit: *mut rlimit) -> c_int { value(limit) }
    fn sysinfo = c"sysinfo"(about: *mut libc::sysinfo) -> c_int { value(about) }
    fn uname = c"uname"(about: *mut utsname) -> c_int { value(about) }
    fn getentropy = c"getentropy"(buffer: *mut c_void, len: size_t) -> c_int { touch(buffer, len) }
    fn getdents64 = c"getdents64"(fd: c_int, buffer: *mut c_void, len: size_t) -> isize { touch(buffer, len) }
    fn sched_getaffinity = c"sched_getaffinity"(pid: pid_t, len: size_t, set: *mut c_void) -> c_int { touch(set, len) }
    fn sched_setaffinity = c"sched_setaffinity"(pid: pid_t, len: size_t, set: *const c_void) -> c_int { touch(set, len) }
}

/// How much of an `ioctl` argument the kernel may access: the size in the request, and at least [`UNKNOWN_BYTES`].
pub fn unknown(request: c_ulong) -> usize {
    UNKNOWN_BYTES.max(request as usize >> 16 & 0x3fff)
}

/// The length behind a socket call's length pointer.
fn named(len: *const socklen_t) -> usize {
    // SAFETY: null or the caller's. Reading it faults it in.
    unsafe { access::read(len) }.unwrap_or(0) as usize
}

touched! {
    fn bind = c"bind"(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int { touch(addr, len as usize) }
    fn connect = c"connect"(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int { touch(addr, len as usize) }
    fn __connect = c"__connect"(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int { touch(addr, len as usize) }
    fn getsockname = c"getsockname"(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int { touch(addr, named(len)), value(len) }
    fn getpeername = c"getpeername"(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int { touch(addr, named(len)), value(len) }
    fn epoll_ctl = c"epoll_ctl"(fd: c_int, what: c_int, other: c_int, event: *mut epoll_event) -> c_int { value(event) }
}
