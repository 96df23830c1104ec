//! Faults resolved by threads of the engine that read the userfaultfd.
//!
//! Several threads read the same descriptor; each resolves what it read, so that a slow read for one fault does not
//! keep the others waiting. A fault wakes one of them.

use std::time::Duration;

use folioswap_core::PAGE_SIZE;
use folioswap_sys::signals;
use folioswap_sys::uffd::{Event, EventFd, Waiter, Woken};

use crate::engine::Engine;
use crate::fatal::{self, AbortOnPanic};

/// Threads that resolve faults.
pub(crate) const NR_THREADS: usize = 8;

/// How long a fault waits before it is reported again, while another thread forks.
const WHILE_FORKING: Duration = Duration::from_micros(200);

/// A thread's body; returns when `stop` is signalled.
pub(crate) fn run(engine: &Engine, stop: &EventFd) {
    let _abort = AbortOnPanic("monitor");
    let waiter = match Waiter::new(&engine.uffd, stop) {
        Ok(waiter) => waiter,
        Err(error) => fatal::die(&format!("waiting for faults: {error}")),
    };
    loop {
        match waiter.wait() {
            Ok(Woken::Stopped) => return,
            Ok(Woken::Event) => {}
            Err(error) => fatal::die(&format!("waiting for faults: {error}")),
        }
        match engine.uffd.read_event() {
            Ok(Some(Event::Pagefault { addr, thread, .. })) => resolve(engine, addr, thread),
            Ok(_) => {}
            Err(error) => fatal::die(&format!("reading faults: {error}")),
        }
    }
}

fn resolve(engine: &Engine, addr: usize, thread: u32) {
    match engine.gate.try_enter(thread) {
        // A fork is going on, and its own faults must find a thread of ours awake: this one is reported again.
        None => std::thread::sleep(WHILE_FORKING),
        Some(pass) => {
            engine.serve(thread);
            if !super::resolve_inside(engine, pass, addr, thread) {
                return signals::send_sigbus(thread);
            }
        }
    }
    // Whoever mapped the folio woke those that waited then; this fault may have come later.
    let page = engine.addr(engine.page_at(addr));
    if let Err(error) = engine.uffd.wake(page, PAGE_SIZE) {
        fatal::die(&format!("waking a thread: {error}"));
    }
}
