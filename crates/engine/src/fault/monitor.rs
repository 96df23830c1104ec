//! Faults resolved by threads of the engine that read the userfaultfd.
//!
//! Several threads read the same descriptor; each resolves what it read, so that a slow read for one fault does not
//! keep the others waiting. A fault wakes one of them.
//!
//! To wake a thread on an idle CPU takes 28 us where that CPU is a virtual one that has been halted, longer than many faults take. So who
//! has resolved a short one is *on watch* for the next for a moment, and gives its CPU to whoever wants it. (The kernel wakes another
//! thread all the same, which finds nothing to read.)

use std::time::{Duration, Instant};

use folioswap_core::PAGE_SIZE;
use folioswap_sys::signals;
use folioswap_sys::uffd::{Event, EventFd, Waiter, Woken};

use crate::engine::Engine;
use crate::fatal::{self, AbortOnPanic};

/// Threads that resolve faults.
pub(crate) const NR_THREADS: usize = 8;

/// How long a thread is on watch.
const WATCH: Duration = Duration::from_micros(30);

/// A short fault takes less. Most that take longer wait for a disk: with a watch after those too, reading at random from one was a third
/// slower.
const SHORT: Duration = Duration::from_micros(50);

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
        let mut next = read(engine);
        while let Some(fault) = next {
            let begun = Instant::now();
            resolve(engine, fault);
            next = if begun.elapsed() < SHORT { watch(engine) } else { None };
        }
    }
}

/// A fault that is to be resolved.
struct Fault {
    addr: usize,
    thread: u32,
}

/// Takes over a fault, if there is one.
fn read(engine: &Engine) -> Option<Fault> {
    match engine.uffd.read_event() {
        Ok(Some(Event::Pagefault { addr, thread, .. })) => Some(Fault { addr, thread }),
        Ok(_) => None,
        Err(error) => fatal::die(&format!("reading faults: {error}")),
    }
}

/// The next fault, if one comes soon and no other thread is on watch.
fn watch(engine: &Engine) -> Option<Fault> {
    let _on_watch = engine.on_watch.try_lock().ok()?;
    let begun = Instant::now();
    while begun.elapsed() < WATCH && !engine.stopping() {
        if let fault @ Some(_) = read(engine) {
            return fault;
        }
        std::thread::yield_now();
    }
    None
}

fn resolve(engine: &Engine, Fault { addr, thread }: Fault) {
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
