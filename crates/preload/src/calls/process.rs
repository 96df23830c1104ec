//! Starting programs. Arguments and environment are faulted in for the kernel to read.
//!
//! posix_spawn's child runs with all signals blocked and cannot resolve a fault, so what it reads is copied to
//! unmanaged memory first.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libc::{FILE, pid_t};

use crate::calls::cover;
use crate::export::{export, real};
use crate::{guard, state};

type List = *const *const c_char;
type Spawn = unsafe extern "C-unwind" fn(*mut pid_t, *const c_char, *const c_void, *const c_void, List, List) -> c_int;

real!(EXECVE = c"execve": fn(*const c_char, List, List) -> c_int);
real!(EXECV = c"execv": fn(*const c_char, List) -> c_int);
real!(EXECVP = c"execvp": fn(*const c_char, List) -> c_int);
real!(EXECVPE = c"execvpe": fn(*const c_char, List, List) -> c_int);
real!(SPAWN = c"posix_spawn": fn(*mut pid_t, *const c_char, *const c_void, *const c_void, List, List) -> c_int);
real!(SPAWNP = c"posix_spawnp": fn(*mut pid_t, *const c_char, *const c_void, *const c_void, List, List) -> c_int);
real!(SYSTEM = c"system": fn(*const c_char) -> c_int);
real!(POPEN = c"popen": fn(*const c_char, *const c_char) -> *mut FILE);

pub fn touch(path: *const c_char, arguments: List, environment: List) {
    cover::text(path);
    cover::texts(arguments);
    cover::texts(environment);
}

export! {
    fn execve(path: *const c_char, arguments: List, environment: List) -> c_int {
        let real = EXECVE.get();
        // SAFETY: passes the caller's arguments on unchanged.
        cover::repeat(|| touch(path, arguments, environment), || unsafe { real(path, arguments, environment) })
    }
}

export! {
    fn execv(path: *const c_char, arguments: List) -> c_int {
        let real = EXECV.get();
        // SAFETY: passes the caller's arguments on unchanged.
        cover::repeat(|| touch(path, arguments, environment()), || unsafe { real(path, arguments) })
    }
}

export! {
    fn execvp(path: *const c_char, arguments: List) -> c_int {
        let real = EXECVP.get();
        // SAFETY: passes the caller's arguments on unchanged.
        cover::repeat(|| touch(path, arguments, environment()), || unsafe { real(path, arguments) })
    }
}

export! {
    fn execvpe(path: *const c_char, arguments: List, environment: List) -> c_int {
        let real = EXECVPE.get();
        // SAFETY: passes the caller's arguments on unchanged.
        cover::repeat(|| touch(path, arguments, environment), || unsafe { real(path, arguments, environment) })
    }
}

export! {
    fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int {
        real!(FEXECVE = c"fexecve": fn(c_int, List, List) -> c_int);
        let (real, none) = (FEXECVE.get(), std::ptr::null());
        // SAFETY: passes the caller's arguments on unchanged.
        cover::repeat(|| touch(none, arguments, environment), || unsafe { real(fd, arguments, environment) })
    }
}

export! {
    fn execveat(at: c_int, path: *const c_char, arguments: List, environment: List, flags: c_int) -> c_int {
        real!(EXECVEAT = c"execveat": fn(c_int, *const c_char, List, List, c_int) -> c_int);
        let real = EXECVEAT.get();
        // SAFETY: passes the caller's arguments on unchanged.
        let call = || unsafe { real(at, path, arguments, environment, flags) };
        cover::repeat(|| touch(path, arguments, environment), call)
    }
}

fn environment() -> List {
    unsafe extern "C" {
        static environ: List;
    }
    // SAFETY: the C library's own list.
    unsafe { environ }
}

/// A copy of a null-terminated list of strings.
struct Copies {
    list: Vec<*const c_char>,
    _texts: Vec<CString>,
}

impl Copies {
    /// # Safety
    /// `list` is null, or a list of C strings that ends with a null.
    unsafe fn new(list: List) -> Option<Copies> {
        if list.is_null() {
            return None;
        }
        let mut texts = Vec::new();
        let mut at = list;
        // SAFETY: the caller upholds this function's own contract.
        unsafe {
            while !(*at).is_null() {
                texts.push(CStr::from_ptr(*at).to_owned());
                at = at.add(1);
            }
        }
        let list = texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Some(Copies { list, _texts: texts })
    }

    fn pointer(copies: &Option<Copies>) -> List {
        copies.as_ref().map_or(std::ptr::null(), |copies| copies.list.as_ptr())
    }
}

/// # Safety
/// As `posix_spawn`.
unsafe fn spawn(
    real: Spawn,
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: List,
    environment: List,
) -> c_int {
    // SAFETY: the caller's call, with copies of the strings, which live until it returns.
    unsafe {
        if !state::direct() {
            return real(pid, path, actions, attributes, arguments, environment);
        }
        let copies = {
            let _guard = guard::enter();
            (CStr::from_ptr(path).to_owned(), Copies::new(arguments), Copies::new(environment))
        };
        let mut child = 0;
        let result = real(
            &raw mut child,
            copies.0.as_ptr(),
            actions,
            attributes,
            Copies::pointer(&copies.1),
            Copies::pointer(&copies.2),
        );
        if result == 0 && !pid.is_null() {
            *pid = child;
        }
        result
    }
}

export! {
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: List,
        environment: List,
    ) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { spawn(SPAWN.get(), pid, path, actions, attributes, arguments, environment) }
    }
}

export! {
    fn posix_spawnp(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: List,
        environment: List,
    ) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { spawn(SPAWNP.get(), pid, path, actions, attributes, arguments, environment) }
    }
}

/// A copy of a string in unmanaged memory, if it needs one.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn copy(text: *const c_char) -> Option<CString> {
    // SAFETY: the caller upholds this function's own contract.
    cover::needed(text as usize, 1).then(|| unsafe { CStr::from_ptr(text).to_owned() })
}

export! {
    fn system(command: *const c_char) -> c_int {
        // SAFETY: the caller's call, with a copy of the command.
        unsafe {
            let copy = copy(command);
            SYSTEM.get()(copy.as_ref().map_or(command, |copy| copy.as_ptr()))
        }
    }
}

export! {
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: the caller's call, with valid copies in place of its pointers.
        unsafe {
            let copies = (copy(command), copy(mode));
            let command = copies.0.as_ref().map_or(command, |copy| copy.as_ptr());
            POPEN.get()(command, copies.1.as_ref().map_or(mode, |copy| copy.as_ptr()))
        }
    }
}
