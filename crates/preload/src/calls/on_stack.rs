//! Functions of the C library that block the signals of faults, or have the kernel fill in a variable of their own. In
//! direct mode the next part of the stack, which may be a coroutine's, is kept in RAM meanwhile.

use std::ffi::{c_char, c_int, c_uint};

use libc::{FILE, pid_t, pthread_t, sigval, termios};

use crate::ground::export::{export, real};
use crate::memory::cover;

macro_rules! on_stack {
    ($(fn $name:ident = $text:literal($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        export! {
            fn $name($($arg: $type),*) -> $result {
                real!(REAL = $text: fn($($type),*) -> $result);
                let _stack = cover::stack();
                // SAFETY: passes the caller's arguments on unchanged.
                unsafe { REAL.get()($($arg),*) }
            }
        }
    )*};
}

on_stack! {
    fn pthread_kill = c"pthread_kill"(thread: pthread_t, signal: c_int) -> c_int;
    fn sigqueue = c"sigqueue"(process: pid_t, signal: c_int, value: sigval) -> c_int;
    fn pthread_sigqueue = c"pthread_sigqueue"(thread: pthread_t, signal: c_int, value: sigval) -> c_int;
    fn pclose = c"pclose"(stream: *mut FILE) -> c_int;
    fn alarm = c"alarm"(seconds: c_uint) -> c_uint;
    fn ualarm = c"ualarm"(first: c_uint, then: c_uint) -> c_uint;
    fn tcsetattr = c"tcsetattr"(fd: c_int, when: c_int, state: *const termios) -> c_int;
    fn isatty = c"isatty"(fd: c_int) -> c_int;
    fn ttyname = c"ttyname"(fd: c_int) -> *mut c_char;
    fn tcgetattr = c"tcgetattr"(fd: c_int, state: *mut termios) -> c_int;
    fn tcgetpgrp = c"tcgetpgrp"(fd: c_int) -> pid_t;
    fn tcgetsid = c"tcgetsid"(fd: c_int) -> pid_t;
}
