//! Records a process's memory at its end, so that `run` can report what was not managed.
//!
//! Runs with the last destructors, from `exit` or the return from `main`, or at `_exit`. A process that ends otherwise
//! (by a signal, exec) is not recorded. For those, `run` asks the kernel for the largest one.

use std::convert::Infallible;
use std::ffi::c_int;

use crate::faults::robust;
use crate::ground::export::{export, real};
use crate::map::footprint;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    robust::bring_in();
    footprint::at_end();
}

real!(EXIT_AT_ONCE = c"_exit": fn(c_int) -> Infallible);
real!(EXIT_QUICKLY = c"quick_exit": fn(c_int) -> Infallible);

export! {
    fn _exit(status: c_int) -> Infallible {
        robust::end_process();
        footprint::at_sudden_end();
        // SAFETY: takes no pointers.
        unsafe { EXIT_AT_ONCE.get()(status) }
    }

    #[allow(non_snake_case)] // the C library's name
    fn _Exit(status: c_int) -> Infallible {
        // SAFETY: takes no pointers.
        unsafe { _exit(status) }
    }

    fn quick_exit(status: c_int) -> Infallible {
        robust::bring_in(); // handlers of the program's come first
        // SAFETY: takes no pointers.
        unsafe { EXIT_QUICKLY.get()(status) }
    }
}
