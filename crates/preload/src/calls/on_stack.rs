//! Functions of the C library that block the signals of faults, or have the kernel fill in a variable of their own. In
//! direct mode the next part of the stack, which may be a coroutine's, is brought in first.

use std::ffi::{c_char, c_int};

use libc::{pid_t, pthread_t, termios};

use crate::ground::export::{export, real};
use crate::memory::cover;

macro_rules! on_stack {
    ($(fn $name:ident = $text:literal($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        export! {
            fn $name($($arg: $type),*) -> $result {
                real!(REAL = $text: fn($($type),*) -> $result);
                cover::stack();
                // SAFETY: passes the caller's arguments on unchanged.
                unsafe { REAL.get()($($arg),*) }
            }
        }
    )*};
}

on_stack! {
    fn pthread_kill = c"pthread_kill"(thread: pthread_t, signal: c_int) -> c_int;
    fn isatty = c"isatty"(fd: c_int) -> c_int;
    fn ttyname = c"ttyname"(fd: c_int) -> *mut c_char;
    fn tcgetattr = c"tcgetattr"(fd: c_int, state: *mut termios) -> c_int;
    fn tcgetpgrp = c"tcgetpgrp"(fd: c_int) -> pid_t;
    fn tcgetsid = c"tcgetsid"(fd: c_int) -> pid_t;
}
