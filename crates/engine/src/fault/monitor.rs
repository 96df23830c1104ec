//! Faults resolved by threads of the engine that read the userfaultfd.
//!
//! Several threads read the same descriptor; each resolves what it read, so that a slow read for one fault does not
//! keep the others waiting. A fault wakes one of them.
//!
//! To wake a thread on an idle CPU takes 28 us where that CPU is a virtual one that has been halted, more than most faults that no disk
//! has to do with. So who has resolved such a fault is *on watch* for the next one for a moment, and gives its CPU to whoever wants it.

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

/// A fault that takes longer had a device to wait for. (With a watch after those too, reading at random from a disk was a third slower.)
const QUICK: Duration = Duration::from_micros(50);

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
        if resolve_next(engine).is_some_and(|took| took < QUICK)
            && let Ok(_on_watch) = engine.on_watch.try_lock()
        {
            watch(engine);
        }
    }
}

/// Resolves faults as they come, until none has come for a moment or one was slow: another thread of ours is awake then.
fn watch(engine: &Engine) {
    let mut since = Instant::now();
    while since.elapsed() < WATCH && !engine.stopping() {
        match resolve_next(engine) {
            Some(took) if took >= QUICK => return,
            Some(_) => since = Instant::now(),
            None => std::thread::yield_now(),
        }
    }
}

/// Resolves a fault, if there is one to be read, and says how long that took.
fn resolve_next(engine: &Engine) -> Option<Duration> {
    match engine.uffd.read_event() {
        Ok(Some(Event::Pagefault { addr, thread, .. })) => {
            let begun = Instant::now();
            resolve(engine, addr, thread);
            Some(begun.elapsed())
        }
        Ok(_) => None,
        Err(error) => fatal::die(&format!("reading faults: {error}")),
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
