//! Faults resolved by threads of the engine that read the userfaultfd.
//!
//! Several threads read the same descriptor; each resolves what it read. A fault wakes one of them. What may have to wait for a device
//! ([`DeviceFaults`]) is never resolved by all of them at once, so those who need none are not behind those who do.
//!
//! To wake a thread on an idle CPU takes 28 us where that CPU is a virtual one that has been halted, longer than many faults take. So who
//! has resolved a short one is *on watch* for the next for a moment, and gives its CPU to whoever wants it. (The kernel wakes another
//! thread all the same, which finds nothing to read.)

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use folioswap_core::{Locked, PAGE_SIZE};
use folioswap_sys::signals;
use folioswap_sys::uffd::{Event, EventFd, Waiter, Woken};

use crate::engine::Engine;
use crate::fatal::{self, AbortOnPanic};
use crate::wakeup::Pass;

/// Threads that may wait for a device at the same time.
const NR_WAITING: usize = 8;

/// Threads that resolve faults: some of them always find those that wait for no device.
pub(crate) const NR_THREADS: usize = NR_WAITING + 2;

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
#[derive(Clone, Copy)]
struct Fault {
    addr: usize,
    thread: u32,
}

/// Faults that may have to wait for a device, or for a frame until reclaim has written to one. [`NR_WAITING`] of them are resolved at a
/// time, by the threads that read them; who reads a further one leaves it here, and those threads take it when they have resolved
/// their own.
#[derive(Default)]
pub(crate) struct DeviceFaults(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    nr_resolving: usize,
    queue: VecDeque<Fault>,
}

impl DeviceFaults {
    /// Whether the calling thread is to resolve a fault, and then [`DeviceFaults::next`]. Otherwise another one will.
    fn begin(&self, fault: Fault) -> bool {
        let mut waiting = self.0.lock().expect("nothing panics under this lock");
        if waiting.nr_resolving == NR_WAITING {
            waiting.queue.push_back(fault);
            return false;
        }
        waiting.nr_resolving += 1;
        true
    }

    /// What a thread that has resolved a fault has to resolve then.
    fn next(&self) -> Option<Fault> {
        let mut waiting = self.0.lock().expect("nothing panics under this lock");
        let next = waiting.queue.pop_front();
        if next.is_none() {
            waiting.nr_resolving -= 1;
        }
        next
    }
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

/// Resolves a fault now, or leaves it to threads that wait for devices.
fn resolve(engine: &Engine, fault: Fault) {
    let Some(pass) = engine.gate.try_enter(fault.thread) else { return report_again(engine, fault) };
    engine.serve(fault.thread);
    let page = engine.page_at(fault.addr);
    let locked = engine.try_lock(page.block());
    let at_hand = locked.filter(|locked| engine.is_at_hand(locked, page.page_in_block()));
    if at_hand.is_some() {
        return resolve_inside(engine, pass, at_hand, fault);
    }
    if !engine.device_faults.begin(fault) {
        return;
    }
    resolve_inside(engine, pass, None, fault);
    while let Some(fault) = engine.device_faults.next() {
        engine.serve(fault.thread);
        match engine.gate.try_enter(fault.thread) {
            Some(pass) => resolve_inside(engine, pass, None, fault),
            None => report_again(engine, fault),
        }
    }
}

/// A fork is going on, and its own faults must find a thread of ours awake: this fault is reported again.
fn report_again(engine: &Engine, fault: Fault) {
    std::thread::sleep(WHILE_FORKING);
    wake(engine, fault);
}

fn resolve_inside(engine: &Engine, pass: Pass<'_>, locked: Option<Locked<'_>>, fault: Fault) {
    let Fault { addr, thread } = fault;
    let resolved = engine.fault_in(pass, locked, engine.access_at(addr, thread));
    if super::outcome(engine, resolved, addr, thread) || is_told(engine, fault) {
        // Whoever mapped the folio woke those that waited then; this fault may have come later.
        wake(engine, fault);
    }
}

/// Has the kernel tell a thread that what it touches is lost. Before Linux 6.6 by a signal, which ends its sleep: `false`.
fn is_told(engine: &Engine, Fault { addr, thread }: Fault) -> bool {
    if engine.poison(engine.page_at(addr)).is_ok() {
        return true;
    }
    if !signals::ends_wait(thread, libc::SIGBUS) {
        fatal::die(&format!(
            "what thread {thread} touches at {addr:#x} is lost, and it cannot be told: SIGBUS is blocked or ignored, or a system call touches it (Linux 6.6 could tell)"
        ));
    }
    signals::send_sigbus(thread);
    false
}

fn wake(engine: &Engine, fault: Fault) {
    let page = engine.addr(engine.page_at(fault.addr));
    if let Err(error) = engine.uffd.wake(page, PAGE_SIZE) {
        fatal::die(&format!("waking a thread: {error}"));
    }
}
