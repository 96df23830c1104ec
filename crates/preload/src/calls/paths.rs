//! Calls that name files and other objects by string, and what the kernel returns about them.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use libc::{FILE, dev_t, gid_t, mode_t, size_t, ssize_t, timeval, uid_t, utimbuf};

use crate::calls::copied::copied;

type Text = *const c_char;

copied! {
    fn euidaccess(path: Text, mode: c_int) -> c_int { path: text }
    fn eaccess(path: Text, mode: c_int) -> c_int { path: text }
    fn linkat(a: c_int, from: Text, b: c_int, to: Text, flags: c_int) -> c_int { from: text, to: text }
    fn symlinkat(from: Text, at: c_int, to: Text) -> c_int { from: text, to: text }
    fn renameat2(a: c_int, from: Text, b: c_int, to: Text, flags: c_uint) -> c_int { from: text, to: text }
    fn fchownat(at: c_int, path: Text, user: uid_t, group: gid_t, flags: c_int) -> c_int { path: text }
    fn lchown(path: Text, user: uid_t, group: gid_t) -> c_int { path: text }
    fn fchmodat(at: c_int, path: Text, mode: mode_t, flags: c_int) -> c_int { path: text }
    fn lchmod(path: Text, mode: mode_t) -> c_int { path: text }
    fn mknod(path: Text, mode: mode_t, device: dev_t) -> c_int { path: text }
    fn mknodat(at: c_int, path: Text, mode: mode_t, device: dev_t) -> c_int { path: text }
    fn __xmknod(version: c_int, path: Text, mode: mode_t, device: *mut dev_t) -> c_int { path: text, device: value }
    fn __xmknodat(version: c_int, at: c_int, path: Text, mode: mode_t, device: *mut dev_t) -> c_int { path: text, device: value }
    fn mkfifo(path: Text, mode: mode_t) -> c_int { path: text }
    fn mkfifoat(at: c_int, path: Text, mode: mode_t) -> c_int { path: text }
    fn utime(path: Text, times: *const utimbuf) -> c_int { path: text, times: value }
    fn utimes(path: Text, times: *const [timeval; 2]) -> c_int { path: text, times: value }
    fn lutimes(path: Text, times: *const [timeval; 2]) -> c_int { path: text, times: value }
    fn futimes(fd: c_int, times: *const [timeval; 2]) -> c_int { times: value }
    fn futimesat(at: c_int, path: Text, times: *const [timeval; 2]) -> c_int { path: text, times: value }
    fn pathconf(path: Text, what: c_int) -> libc::c_long { path: text }
    fn ftok(path: Text, project: c_int) -> libc::key_t { path: text }
    fn acct(path: Text) -> c_int { path: text }
    fn mkostemp(path: *mut c_char, flags: c_int) -> c_int { path: text }
    fn mkostemp64(path: *mut c_char, flags: c_int) -> c_int { path: text }
    fn mkstemps(path: *mut c_char, end: c_int) -> c_int { path: text }
    fn mkstemps64(path: *mut c_char, end: c_int) -> c_int { path: text }
    fn mkostemps(path: *mut c_char, end: c_int, flags: c_int) -> c_int { path: text }
    fn mkostemps64(path: *mut c_char, end: c_int, flags: c_int) -> c_int { path: text }
    fn freopen(path: Text, mode: Text, stream: *mut FILE) -> *mut FILE { path: text, mode: text }
    fn freopen64(path: Text, mode: Text, stream: *mut FILE) -> *mut FILE { path: text, mode: text }
    fn scandir(path: Text, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int { path: text }
    fn scandir64(path: Text, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int { path: text }
    fn scandirat(at: c_int, path: Text, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int { path: text }
    fn scandirat64(at: c_int, path: Text, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int { path: text }
    fn canonicalize_file_name(path: Text) -> *mut c_char { path: text }
    fn open_by_handle_at(mount: c_int, handle: *const [u32; 34], flags: c_int) -> c_int { handle: value }
    fn memfd_create(name: Text, flags: c_uint) -> c_int { name: text }
    fn inotify_add_watch(fd: c_int, path: Text, mask: u32) -> c_int { path: text }
    fn fanotify_mark(fd: c_int, flags: c_uint, mask: u64, at: c_int, path: Text) -> c_int { path: text }
    fn if_nametoindex(name: Text) -> c_uint { name: text }
}

copied! {
    fn __xstat64(version: c_int, path: Text, about: *mut libc::stat) -> c_int { path: text, about: value }
    fn __lxstat64(version: c_int, path: Text, about: *mut libc::stat) -> c_int { path: text, about: value }
    fn __fxstat64(version: c_int, fd: c_int, about: *mut libc::stat) -> c_int { about: value }
    fn __fxstatat(version: c_int, at: c_int, path: Text, about: *mut libc::stat, flags: c_int) -> c_int { path: text, about: value }
    fn __fxstatat64(version: c_int, at: c_int, path: Text, about: *mut libc::stat, flags: c_int) -> c_int { path: text, about: value }
    fn statfs64(path: Text, about: *mut libc::statfs64) -> c_int { path: text, about: value }
    fn __statfs(path: Text, about: *mut libc::statfs) -> c_int { path: text, about: value }
    fn fstatfs64(fd: c_int, about: *mut libc::statfs64) -> c_int { about: value }
    fn statvfs64(path: Text, about: *mut libc::statvfs64) -> c_int { path: text, about: value }
    fn fstatvfs64(fd: c_int, about: *mut libc::statvfs64) -> c_int { about: value }
}

copied! {
    fn getxattr(path: Text, name: Text, at: *mut c_void, len: size_t) -> ssize_t { path: text, name: text, at: bytes(len) }
    fn lgetxattr(path: Text, name: Text, at: *mut c_void, len: size_t) -> ssize_t { path: text, name: text, at: bytes(len) }
    fn fgetxattr(fd: c_int, name: Text, at: *mut c_void, len: size_t) -> ssize_t { name: text, at: bytes(len) }
    fn setxattr(path: Text, name: Text, at: *const c_void, len: size_t, flags: c_int) -> c_int { path: text, name: text, at: bytes(len) }
    fn lsetxattr(path: Text, name: Text, at: *const c_void, len: size_t, flags: c_int) -> c_int { path: text, name: text, at: bytes(len) }
    fn fsetxattr(fd: c_int, name: Text, at: *const c_void, len: size_t, flags: c_int) -> c_int { name: text, at: bytes(len) }
    fn listxattr(path: Text, list: *mut c_char, len: size_t) -> ssize_t { path: text, list: bytes(len) }
    fn llistxattr(path: Text, list: *mut c_char, len: size_t) -> ssize_t { path: text, list: bytes(len) }
    fn flistxattr(fd: c_int, list: *mut c_char, len: size_t) -> ssize_t { list: bytes(len) }
    fn removexattr(path: Text, name: Text) -> c_int { path: text, name: text }
    fn lremovexattr(path: Text, name: Text) -> c_int { path: text, name: text }
    fn fremovexattr(fd: c_int, name: Text) -> c_int { name: text }
}

// System administration: mounts, swap, host names, modules.
copied! {
    fn umount(path: Text) -> c_int { path: text }
    fn umount2(path: Text, flags: c_int) -> c_int { path: text }
    fn swapon(path: Text, flags: c_int) -> c_int { path: text }
    fn swapoff(path: Text) -> c_int { path: text }
    fn fsopen(kind: Text, flags: c_uint) -> c_int { kind: text }
    fn fspick(at: c_int, path: Text, flags: c_uint) -> c_int { path: text }
    fn move_mount(a: c_int, from: Text, b: c_int, to: Text, flags: c_uint) -> c_int { from: text, to: text }
    fn open_tree(at: c_int, path: Text, flags: c_uint) -> c_int { path: text }
    fn mount_setattr(at: c_int, path: Text, flags: c_uint, what: *mut c_void, len: size_t) -> c_int { path: text, what: bytes(len) }
    fn sethostname(name: *const c_char, len: size_t) -> c_int { name: bytes(len) }
    fn setdomainname(name: *const c_char, len: size_t) -> c_int { name: bytes(len) }
    fn init_module(image: *const c_void, len: c_ulong, options: Text) -> c_int { image: bytes(len as usize), options: text }
    fn delete_module(name: Text, flags: c_uint) -> c_int { name: text }
}

// The names that programs built with buffer size checks call. The C library itself does the check.
copied! {
    fn __readlink_chk(path: Text, buffer: *mut c_char, len: size_t, room: size_t) -> ssize_t { path: text, buffer: bytes(len) }
    fn __readlinkat_chk(at: c_int, path: Text, buffer: *mut c_char, len: size_t, room: size_t) -> ssize_t { path: text, buffer: bytes(len) }
    fn __getgroups_chk(count: c_int, list: *mut gid_t, room: size_t) -> c_int { list: values(count.max(0) as usize) }
    fn __ttyname_r_chk(fd: c_int, name: *mut c_char, len: size_t, room: size_t) -> c_int { name: bytes(len) }
    fn __ptsname_r_chk(fd: c_int, name: *mut c_char, len: size_t, room: size_t) -> c_int { name: bytes(len) }
}
