//! Functions that name files and other objects by string, and what is told about them: those that are no system call
//! of their own. The others are in [`table`](crate::calls::table).

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{FILE, dev_t, gid_t, mode_t, size_t, ssize_t, timespec, timeval};

use crate::calls::copied::{self, copied};
use crate::ground::export::{export, real};
use crate::memory::cover::{repeat, text, touch};

type Text = *const c_char;

copied! {
    fn euidaccess(path: Text = text, mode: c_int) -> c_int;
    fn eaccess(path: Text = text, mode: c_int) -> c_int;
    fn lchmod(path: Text = text, mode: mode_t) -> c_int;
    fn __xmknod(version: c_int, path: Text = text, mode: mode_t, device: *mut dev_t = value) -> c_int;
    fn __xmknodat(version: c_int, at: c_int, path: Text = text, mode: mode_t, device: *mut dev_t = value) -> c_int;
    fn mkfifo(path: Text = text, mode: mode_t) -> c_int;
    fn mkfifoat(at: c_int, path: Text = text, mode: mode_t) -> c_int;
    fn lutimes(path: Text = text, times: *const [timeval; 2] = value) -> c_int;
    fn futimes(fd: c_int, times: *const [timeval; 2] = value) -> c_int;
    fn pathconf(path: Text = text, what: c_int) -> libc::c_long;
    fn ftok(path: Text = text, project: c_int) -> libc::key_t;
    fn mkostemp, mkostemp64(path: *mut c_char = text, flags: c_int) -> c_int;
    fn mkstemps, mkstemps64(path: *mut c_char = text, end: c_int) -> c_int;
    fn mkostemps, mkostemps64(path: *mut c_char = text, end: c_int, flags: c_int) -> c_int;
    fn freopen, freopen64(path: Text = text, mode: Text = text, stream: *mut FILE) -> *mut FILE;
    fn scandir, scandir64(path: Text = text, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int;
    fn scandirat, scandirat64(
        at: c_int, path: Text = text, list: *mut c_void, filter: *mut c_void, order: *mut c_void
    ) -> c_int;
    fn canonicalize_file_name(path: Text = text) -> *mut c_char;
    fn if_nametoindex(name: Text = text) -> c_uint;
    fn opendir(path: Text = text) -> *mut c_void;
    fn remove(path: Text = text) -> c_int;
    fn mkstemp, mkstemp64(path: *mut c_char = text) -> c_int;
    fn setmntent, __setmntent(path: Text = text, mode: Text = text) -> *mut FILE;
    fn tempnam(folder: Text = text, prefix: Text = text) -> *mut c_char;
    fn catopen(name: Text = text, flag: c_int) -> *mut c_void;
}

copied! {
    fn __xstat64, __xstat(version: c_int, path: Text = text, about: *mut libc::stat = value) -> c_int;
    fn __lxstat64, __lxstat(version: c_int, path: Text = text, about: *mut libc::stat = value) -> c_int;
    fn __fxstat64, __fxstat(version: c_int, fd: c_int, about: *mut libc::stat = value) -> c_int;
    fn __fxstatat, __fxstatat64(
        version: c_int, at: c_int, path: Text = text, about: *mut libc::stat = value, flags: c_int
    ) -> c_int;
    fn statfs64(path: Text = text, about: *mut libc::statfs64 = value) -> c_int;
    fn fstatfs64(fd: c_int, about: *mut libc::statfs64 = value) -> c_int;
    fn statvfs64(path: Text = text, about: *mut libc::statvfs64 = value) -> c_int;
    fn fstatvfs64(fd: c_int, about: *mut libc::statvfs64 = value) -> c_int;
    fn statvfs(path: Text = text, about: *mut libc::statvfs = value) -> c_int;
    fn fstatvfs(fd: c_int, about: *mut libc::statvfs = value) -> c_int;
    fn futimens(fd: c_int, times: *const [timespec; 2] = value) -> c_int;
    fn getentropy(buffer: *mut c_void = bytes(len), len: size_t) -> c_int;
}

// System administration: mounts, swap, host names, modules.
copied! {
    fn umount(path: Text = text) -> c_int;
}

// The names that programs built with buffer size checks call. The C library itself does the check.
copied! {
    fn __readlink_chk(path: Text = text, buffer: *mut c_char = bytes(len), len: size_t, room: size_t) -> ssize_t;
    fn __readlinkat_chk(
        at: c_int, path: Text = text, buffer: *mut c_char = bytes(len), len: size_t, room: size_t
    ) -> ssize_t;
    fn __getgroups_chk(count: c_int, list: *mut gid_t = values(count), room: size_t) -> c_int;
    fn __ttyname_r_chk(fd: c_int, name: *mut c_char = bytes(len), len: size_t, room: size_t) -> c_int;
    fn __ptsname_r_chk(fd: c_int, name: *mut c_char = bytes(len), len: size_t, room: size_t) -> c_int;
}

/// Functions that return what they are given, so that it cannot be a copy. For each its arguments, and what is faulted
/// in before the call, and again if the kernel missed a page.
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

touched! {
    fn realpath = c"realpath"(
        path: Text, buffer: *mut c_char
    ) -> *mut c_char { text(path), touch(buffer, libc::PATH_MAX as usize) }
    fn getwd = c"getwd"(buffer: *mut c_char) -> *mut c_char { touch(buffer, libc::PATH_MAX as usize) }
    fn __getwd_chk = c"__getwd_chk"(buffer: *mut c_char, room: size_t) -> *mut c_char { touch(buffer, room) }
    fn __getcwd_chk = c"__getcwd_chk"(
        buffer: *mut c_char, len: size_t, room: size_t
    ) -> *mut c_char { touch(buffer, len) }
    fn __realpath_chk = c"__realpath_chk"(
        path: Text, buffer: *mut c_char, room: size_t
    ) -> *mut c_char { text(path), touch(buffer, libc::PATH_MAX as usize) }
    fn getcwd = c"getcwd"(
        buffer: *mut c_char, len: size_t
    ) -> *mut c_char { touch(buffer, len.min(libc::PATH_MAX as usize)) }
}

/// Functions that change the path that they are given, so that they cannot be repeated, and return it.
macro_rules! changed {
    ($($name:ident = $text:literal)*) => {$(
        export! {
            fn $name(path: *mut c_char) -> *mut c_char {
                real!(REAL = $text: fn(*mut c_char) -> *mut c_char);
                let real = REAL.get();
                // SAFETY: the caller's call, with a copy of the path.
                unsafe {
                    let copy = copied::text(path);
                    let result = copy.bring_back(real(copy.at(path)));
                    if result == copy.at(path) { path } else { result }
                }
            }
        }
    )*};
}

changed! {
    mkdtemp = c"mkdtemp"
    mktemp = c"mktemp"
}
