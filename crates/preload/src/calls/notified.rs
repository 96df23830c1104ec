//! Notifications by a thread (`SIGEV_THREAD`). The C library makes a helper thread by itself, with all signals blocked,
//! and another for each notification. The helper reads what the C library has allocated for the timer or the queue:
//! that must not be managed memory. From its first own allocation on it is as the program's other threads
//! ([`crate::faults::threads::join`]).

use std::ffi::c_int;

use folioswap::Waited;
use libc::{clockid_t, mqd_t, sigevent, timer_t};

use crate::calls::copied;
use crate::ground::export::{export, real};
use crate::ground::{guard, state, waiting};
use crate::memory::{access, cover};

/// If an event is to be told by a thread: a guard, under which the C library allocates from the private heap, and a
/// hold on the stack, where it blocks all signals to make a thread.
///
/// # Safety
/// The event is null or the program's.
unsafe fn for_helper(event: *const sigevent) -> Option<(guard::Guard, Option<Waited>)> {
    if event.is_null() || guard::inside() || !state::may_manage() {
        return None;
    }
    // SAFETY: the caller upholds this function's own contract.
    let kind = unsafe { access::read(&raw const (*event).sigev_notify) }?;
    (kind == libc::SIGEV_THREAD).then(|| {
        waiting::now(); // the C library makes a thread
        let stack = cover::stack();
        (guard::enter(), stack)
    })
}

export! {
    fn timer_create(clock: clockid_t, event: *mut sigevent, timer: *mut timer_t) -> c_int {
        real!(CREATE = c"timer_create": fn(clockid_t, *mut sigevent, *mut timer_t) -> c_int);
        // SAFETY: the caller's call, with valid copies in place of its pointers.
        unsafe {
            let copies = (copied::value(event), copied::value(timer));
            let result = {
                let _guard = for_helper(event);
                CREATE.get()(clock, copies.0.at(event), copies.1.at(timer))
            };
            copies.1.bring_back(result)
        }
    }

    fn mq_notify(queue: mqd_t, event: *const sigevent) -> c_int {
        real!(NOTIFY = c"mq_notify": fn(mqd_t, *const sigevent) -> c_int);
        // SAFETY: the caller's call, with a valid copy in place of its pointer.
        unsafe {
            let copy = copied::value(event);
            let _guard = for_helper(event);
            NOTIFY.get()(queue, copy.at(event))
        }
    }
}
