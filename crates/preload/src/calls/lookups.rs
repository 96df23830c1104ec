//! Names that the C library looks up in threads of its own (`getaddrinfo_a`). Those block all signals, so they cannot
//! resolve faults. In direct mode the lookups are done before the call returns.

use std::ffi::{c_char, c_int, c_void};

use libc::{addrinfo, sigevent};

use crate::ground::export::{export, real};
use crate::ground::real::kernel;
use crate::ground::state;

/// The C library's `struct gaicb`.
#[repr(C)]
pub struct Lookup {
    name: *const c_char,
    service: *const c_char,
    wanted: *const addrinfo,
    found: *mut addrinfo,
    outcome: c_int,
    reserved: [c_int; 5],
}

const NO_WAIT: c_int = 1;
const SI_ASYNCNL: c_int = -60;

/// A `sigevent` with the function to run in a thread.
#[repr(C)]
struct Event {
    value: *mut c_void,
    signal: c_int,
    kind: c_int,
    function: Option<extern "C" fn(*mut c_void)>,
    attributes: *const libc::pthread_attr_t,
}

/// Tells the program that its lookups are done.
///
/// # Safety
/// A valid event.
unsafe fn notify(event: &Event) {
    // SAFETY: the kernel copies the local. The function is the program's, and takes its value.
    unsafe {
        match (event.kind, event.function) {
            (libc::SIGEV_SIGNAL, _) => {
                let process = libc::getpid();
                // Number, error, code; then process, user and value.
                let mut about = [0u64; 16];
                about[0] = event.signal as u64;
                about[1] = u64::from(SI_ASYNCNL as u32);
                about[2] = process as u64 | u64::from(libc::getuid()) << 32;
                about[3] = event.value as u64;
                kernel!(libc::SYS_rt_sigqueueinfo, process, event.signal, about.as_ptr());
            }
            (libc::SIGEV_THREAD, Some(function)) => {
                extern "C" fn run(event: *mut c_void) -> *mut c_void {
                    // SAFETY: the box that `notify` made for this thread.
                    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
                    if let Some(function) = event.function {
                        function(event.value);
                    }
                    std::ptr::null_mut()
                }
                let own = Box::into_raw(Box::new(Event { function: Some(function), ..*event }));
                let mut thread = 0;
                if libc::pthread_create(&raw mut thread, event.attributes, run, own.cast()) == 0 {
                    libc::pthread_detach(thread);
                } else {
                    drop(Box::from_raw(own));
                }
            }
            _ => {}
        }
    }
}

export! {
    fn getaddrinfo_a(mode: c_int, list: *const *mut Lookup, count: c_int, event: *const sigevent) -> c_int {
        real!(REAL = c"getaddrinfo_a": fn(c_int, *const *mut Lookup, c_int, *const sigevent) -> c_int);
        // SAFETY: the caller's call, whose list has `count` entries, each null or a lookup.
        unsafe {
            if !state::direct() {
                return REAL.get()(mode, list, count, event);
            }
            for index in 0..count.max(0) as usize {
                if let Some(lookup) = (*list.add(index)).as_mut() {
                    let mut found = std::ptr::null_mut();
                    lookup.outcome = libc::getaddrinfo(lookup.name, lookup.service, lookup.wanted, &raw mut found);
                    lookup.found = found;
                }
            }
            if mode == NO_WAIT && !event.is_null() {
                notify(&*event.cast::<Event>());
            }
            0
        }
    }
}
