//! Starting programs. Arguments and environment are faulted in for the kernel to read.
//!
//! posix_spawn's child runs with all signals blocked and cannot resolve a fault, so what it reads is copied to
//! unmanaged memory first.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libc::{FILE, pid_t};

use crate::calls::other_library::{self, List};
use crate::calls::{limits, remote};
use crate::faults::robust;
use crate::faults::signals::inherited;
use crate::ground::export::{export, real};
use crate::ground::{guard, state};
use crate::memory::access::{self, Access};
use crate::memory::cover::{self, Outcome};
use crate::memory::held::Held;
use folioswap::PAGE_SIZE;

type Spawn = unsafe extern "C-unwind" fn(*mut pid_t, *const c_char, *const c_void, *const c_void, List, List) -> c_int;

real!(EXECVE = c"execve": fn(*const c_char, List, List) -> c_int);
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

/// Executes a program by `call`, for which `touch` brings in what the kernel reads.
pub fn execute<R: Outcome + From<i8>>(touch: impl Fn(), call: impl Fn() -> R) -> R {
    robust::bring_in();
    cover::repeat(touch, || {
        let _limits = limits::inherited();
        inherited(|| if remote::begin_traced() { call() } else { R::from(-1) })
    })
}

export! {
    fn execve(path: *const c_char, arguments: List, environment: List) -> c_int {
        let real = EXECVE.get();
        // SAFETY: passes the caller's arguments on, but for this library in the environment.
        let call = |environment| unsafe { real(path, arguments, environment) };
        execute(
            || touch(path, arguments, environment),
            || other_library::at(libc::AT_FDCWD, path, environment, call),
        )
    }

    fn execv(path: *const c_char, arguments: List) -> c_int {
        // SAFETY: the caller's call, as the C library makes it.
        unsafe { execve(path, arguments, environment()) }
    }

    fn execvp(path: *const c_char, arguments: List) -> c_int {
        // SAFETY: the caller's call, as the C library makes it.
        unsafe { execvpe(path, arguments, environment()) }
    }

    fn execvpe(path: *const c_char, arguments: List, environment: List) -> c_int {
        let real = EXECVPE.get();
        // SAFETY: passes the caller's arguments on, but for this library in the environment.
        let call = |environment| unsafe { real(path, arguments, environment) };
        execute(|| touch(path, arguments, environment), || other_library::in_path(path, environment, call))
    }

    fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int {
        real!(FEXECVE = c"fexecve": fn(c_int, List, List) -> c_int);
        let (real, none) = (FEXECVE.get(), std::ptr::null());
        // SAFETY: passes the caller's arguments on, but for this library in the environment.
        let call = |environment| unsafe { real(fd, arguments, environment) };
        execute(|| touch(none, arguments, environment), || other_library::at(fd, c"".as_ptr(), environment, call))
    }

    fn execveat(at: c_int, path: *const c_char, arguments: List, environment: List, flags: c_int) -> c_int {
        real!(EXECVEAT = c"execveat": fn(c_int, *const c_char, List, List, c_int) -> c_int);
        let real = EXECVEAT.get();
        // SAFETY: passes the caller's arguments on, but for this library in the environment.
        let call = |environment| unsafe { real(at, path, arguments, environment, flags) };
        execute(|| touch(path, arguments, environment), || other_library::at(at, path, environment, call))
    }
}

fn environment() -> List {
    unsafe extern "C" {
        static environ: List;
    }
    // SAFETY: the C library's own list.
    unsafe { environ }
}

/// A copy of a null-terminated list of strings. What the kernel always finds is not copied, nor what cannot be read.
struct Copies {
    list: Vec<*const c_char>,
    _texts: Vec<Option<CString>>,
}

impl Copies {
    /// # Safety
    /// `list` is null, or a list of C strings that ends with a null.
    unsafe fn new(list: List) -> Option<Copies> {
        if list.is_null() {
            return None;
        }
        let mut copies = Copies { list: Vec::new(), _texts: Vec::new() };
        let mut at = list;
        loop {
            let begins_page = at == list || (at as usize) % PAGE_SIZE < size_of::<usize>();
            if begins_page && !access::is_open(at as usize, size_of::<usize>(), Access::Read) {
                return None;
            }
            // SAFETY: the caller upholds this function's own contract. The entry can be read.
            let (text, copy) = unsafe { (*at, copy(*at)) };
            let _guard = guard::enter();
            copies.list.push(copy.as_ref().map_or(text, |copy| copy.as_ptr()));
            copies._texts.push(copy);
            if text.is_null() {
                return Some(copies);
            }
            at = at.wrapping_add(1);
        }
    }

    /// What the child gets for a list: the program's own if there is no copy.
    fn pointer(copies: &Option<Copies>, theirs: List) -> List {
        copies.as_ref().map_or(theirs, |copies| copies.list.as_ptr())
    }
}

/// Keeps C strings in RAM: those that the C library hands to a child, which cannot resolve faults.
///
/// # Safety
/// `list` is null, or a list of C strings that ends with a null.
unsafe fn held_texts(list: List) -> Vec<Held> {
    let mut held = Vec::new();
    let mut at = list;
    // SAFETY: the caller upholds this function's own contract. Reading faults the memory in.
    unsafe {
        while !list.is_null() && !(*at).is_null() {
            hold_text(&mut held, *at);
            at = at.add(1);
        }
    }
    hold(&mut held, list as usize, (at as usize - list as usize) + size_of::<usize>());
    held
}

fn hold(held: &mut Vec<Held>, addr: usize, len: usize) {
    if cover::needed(addr, len) {
        let one = Held::new(addr, len);
        let _guard = guard::enter();
        held.push(one);
    }
}

/// # Safety
/// `text` is null or a C string.
unsafe fn hold_text(held: &mut Vec<Held>, text: *const c_char) {
    if cover::needed(text as usize, 1)
        // SAFETY: the caller upholds this function's own contract.
        && let Some(len) = unsafe { access::text_len(text as usize) }
    {
        hold(held, text as usize, len + 1);
    }
}

/// The C library's `posix_spawn_file_actions_t`.
#[repr(C)]
struct FileActions {
    nr_allocated: c_int,
    nr_used: c_int,
    list: *const FileAction,
    reserved: [c_int; 16],
}

/// One of them. What the words are depends on the kind.
#[repr(C)]
struct FileAction {
    kind: c_int,
    words: [*const c_char; 3],
}

const ACTION_OPEN: c_int = 2;
const ACTION_CHDIR: c_int = 3;

/// Keeps what a child of posix_spawn reads in RAM.
///
/// # Safety
/// As `posix_spawn`.
unsafe fn held_for_child(actions: *const c_void, attributes: *const c_void) -> Vec<Held> {
    let mut held = Vec::new();
    hold(&mut held, attributes as usize, size_of::<libc::posix_spawnattr_t>());
    hold(&mut held, actions as usize, size_of::<FileActions>());
    if actions.is_null() {
        return held;
    }
    // SAFETY: the caller upholds this function's own contract. The C library has made the list.
    unsafe {
        let actions = &*actions.cast::<FileActions>();
        let nr_used = actions.nr_used.max(0) as usize;
        hold(&mut held, actions.list as usize, nr_used * size_of::<FileAction>());
        for index in 0..nr_used {
            let action = &*actions.list.add(index);
            match action.kind {
                ACTION_OPEN => hold_text(&mut held, action.words[1]),
                ACTION_CHDIR => hold_text(&mut held, action.words[0]),
                _ => {}
            }
        }
    }
    held
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
            return inherited(|| real(pid, path, actions, attributes, arguments, environment));
        }
        let copies = (copy(path), Copies::new(arguments), Copies::new(environment));
        let path = copies.0.as_ref().map_or(path, |copy| copy.as_ptr());
        let _held = held_for_child(actions, attributes);
        let mut child = 0;
        let lists = [Copies::pointer(&copies.1, arguments), Copies::pointer(&copies.2, environment)];
        let call = || real(&raw mut child, path, actions, attributes, lists[0], lists[1]);
        let _stack = cover::stack();
        let result = inherited(call);
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
        cover::text(path);
        // SAFETY: passes the caller's arguments on, but for this library in the environment.
        let call = |environment| unsafe { spawn(SPAWN.get(), pid, path, actions, attributes, arguments, environment) };
        other_library::at(libc::AT_FDCWD, path, environment, call)
    }

    fn posix_spawnp(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: List,
        environment: List,
    ) -> c_int {
        cover::text(path);
        // The child looks for PATH in this process's environment, and cannot fault.
        // SAFETY: the process's own environment.
        let _held = state::direct().then(|| unsafe { held_texts(self::environment()) });
        // SAFETY: passes the caller's arguments on, but for this library in the environment.
        let call = |environment| unsafe { spawn(SPAWNP.get(), pid, path, actions, attributes, arguments, environment) };
        other_library::in_path(path, environment, call)
    }

    fn wordexp(words: *const c_char, found: *mut c_void, flags: c_int) -> c_int {
        real!(WORDEXP = c"wordexp": fn(*const c_char, *mut c_void, c_int) -> c_int);
        // SAFETY: passes the caller's arguments on unchanged. The commands in them get the environment.
        unsafe {
            let _held = held_texts(environment());
            let _stack = cover::stack();
            WORDEXP.get()(words, found, flags)
        }
    }
}

/// A copy of a string in unmanaged memory, if it needs one and can be read.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn copy(text: *const c_char) -> Option<CString> {
    if !cover::needed(text as usize, 1) {
        return None;
    }
    // SAFETY: the caller upholds this function's own contract.
    unsafe { access::text_len(text as usize) }?;
    let _guard = guard::enter();
    // SAFETY: the string can be read.
    Some(unsafe { CStr::from_ptr(text).to_owned() })
}

export! {
    fn system(command: *const c_char) -> c_int {
        // SAFETY: the caller's call, with a copy of the command.
        unsafe {
            let _held = held_texts(environment());
            let copy = copy(command);
            let _stack = cover::stack();
            SYSTEM.get()(copy.as_ref().map_or(command, |copy| copy.as_ptr()))
        }
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: the caller's call, with valid copies in place of its pointers.
        unsafe {
            let _held = held_texts(environment());
            let copies = (copy(command), copy(mode));
            let command = copies.0.as_ref().map_or(command, |copy| copy.as_ptr());
            let _stack = cover::stack();
            POPEN.get()(command, copies.1.as_ref().map_or(mode, |copy| copy.as_ptr()))
        }
    }
}
