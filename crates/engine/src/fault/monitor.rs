//! Monitor mode: threads of the engine read faults from the userfaultfd and resolve them.
//!
//! Several threads read the same descriptor, and each resolves the faults that it reads. The kernel wakes one of them
//! per fault. Faults that may wait for a device (`DeviceFaults`) never occupy all threads, so faults that
//! need no device are not queued behind them.
//!
//! Waking a thread on a halted virtual CPU takes 28 us, longer than many faults take. Therefore a thread that has
//! resolved a short fault polls for the next one for a moment (it is *on watch*), yielding its CPU to other threads.
//! The kernel still wakes another thread, which finds nothing to read.

use std::time::{Duration, Instant};

use folioswap_core::{Locked, PAGE_SIZE, State};
use folioswap_sys::signals;
use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::uffd::{Event, EventFd, Waiter, Woken};

use crate::block::Block;
use crate::engine::Engine;
use crate::fault::flow::Fault;
use crate::fault::resolve::{is_resolved, resolve_own};
use crate::process::fatal::{self, EndOnPanic};
use crate::process::wakeup::Pass;
use crate::state::faults::{NR_WAITING, Reported};

/// Threads that resolve faults. The spare ones are always available for faults that need no device.
pub(crate) const NR_THREADS: usize = NR_WAITING + 2;

/// How long a thread polls for the next fault.
const WATCH: Duration = Duration::from_micros(30);

/// A thread polls only after faults shorter than this. Longer faults mostly wait for a disk: polling after those too
/// made random reads from a disk a third slower.
const SHORT: Duration = Duration::from_micros(50);

/// Delay before a fault is delivered again while another thread forks.
const WHILE_FORKING: Duration = Duration::from_micros(200);

static_tls! {
    /// The thread whose fault this thread resolves, or did last.
    static SERVED: u32 = "folioswap_served_thread";
}

/// Whether the calling thread works for a thread: it is that thread, or resolves a fault of it.
#[must_use]
pub fn works_for(thread: u32) -> bool {
    SERVED.get() == thread || signals::thread_id() == thread
}

/// Body of a monitor thread. Returns when `stop` is signalled.
pub(crate) fn run(engine: &Engine, stop: &EventFd) {
    let _end = EndOnPanic("monitor");
    let waiter = match Waiter::new(engine.faults().uffd(), stop) {
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

/// Reads a fault from the userfaultfd, if there is one.
fn read(engine: &Engine) -> Option<Reported> {
    match engine.faults().uffd().read_event() {
        Ok(Some(Event::Pagefault { addr, thread, .. })) => Some(Reported { addr, thread }),
        Ok(_) => None,
        Err(error) => fatal::die(&format!("reading faults: {error}")),
    }
}

/// Polls for the next fault for a moment, unless another thread already does.
fn watch(engine: &Engine) -> Option<Reported> {
    engine.faults().watch(|| {
        let begun = Instant::now();
        while begun.elapsed() < WATCH && !engine.stopping() {
            if let fault @ Some(_) = read(engine) {
                return fault;
            }
            folioswap_sys::cpu::yield_now();
        }
        None
    })
}

/// Resolves a fault now, or queues it for the threads that wait for devices.
fn resolve(engine: &Engine, fault: Reported) {
    if resolve_own(engine, fault.addr, fault.thread) {
        return;
    }
    let Some(pass) = engine.gate().try_enter(fault.thread) else { return report_again(engine, fault) };
    SERVED.set(fault.thread);
    engine.ram().work_for(fault.thread);
    let page = engine.table().page_at(fault.addr);
    let block = engine.try_lock(page.block());
    let at_hand = block.filter(|block| is_at_hand(engine, block, page.page_in_block()));
    if at_hand.is_some() {
        return resolve_inside(engine, pass, at_hand, fault);
    }
    if !engine.faults().device_faults().begin(fault) {
        return;
    }
    resolve_inside(engine, pass, None, fault);
    while let Some(fault) = engine.faults().device_faults().next() {
        SERVED.set(fault.thread);
        engine.ram().work_for(fault.thread);
        match engine.gate().try_enter(fault.thread) {
            Some(pass) => resolve_inside(engine, pass, None, fault),
            None => report_again(engine, fault),
        }
    }
}

/// Whether a page of a locked block can be mapped at once, without a read and without waiting for a frame.
fn is_at_hand(engine: &Engine, block: &Locked<'_>, page: usize) -> bool {
    match block.state(block.index_of(page)) {
        State::Resident(_) | State::Standby(_) => true,
        State::Empty => {
            !engine.table().is_open(block.id())
                || engine.ram().zones().available() >= engine.ram().zones().watermarks().low
        }
        State::Swapped(_) => false,
    }
}

/// A fork is in progress. If this thread waited at the gate, none might be left for the faults of the forking thread.
/// So it wakes the faulting thread, which touches the page again and faults anew.
fn report_again(engine: &Engine, fault: Reported) {
    folioswap_sys::futex::sleep(WHILE_FORKING);
    wake(engine, fault);
}

fn resolve_inside(engine: &Engine, pass: Pass<'_>, block: Option<Block<'_>>, fault: Reported) {
    let Reported { addr, thread } = fault;
    let resolved = Fault::new(engine, engine.table().page_at(addr), thread).run(pass, block);
    if is_resolved(engine, resolved, addr, thread) || is_told(engine, fault) {
        // Mapping the folio woke the threads that waited at that moment; this fault may have come later.
        wake(engine, fault);
    }
}

/// Makes the kernel tell a thread that the content it touches is lost. Returns `false` before Linux 6.6: a SIGBUS is
/// sent instead, which ends the thread's wait, so no wakeup is needed.
fn is_told(engine: &Engine, Reported { addr, thread }: Reported) -> bool {
    let Some(_pass) = engine.gate().try_enter(thread) else { return true }; // it touches the page again after the fork
    let page = engine.table().page_at(addr);
    if engine.lock(page.block()).poison(page.page_in_block()).is_ok() {
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

fn wake(engine: &Engine, fault: Reported) {
    let page = engine.table().addr(engine.table().page_at(fault.addr));
    if let Err(error) = engine.faults().uffd().wake(page, PAGE_SIZE) {
        fatal::die(&format!("waking a thread: {error}"));
    }
}
