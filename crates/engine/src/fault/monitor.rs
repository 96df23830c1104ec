//! Monitor mode: threads of the engine read faults from the userfaultfd and resolve them.
//!
//! Each of them is an event loop over the userfaultfd, a ring of reads, and the flows of the faults that it has read
//! and not resolved yet. So no fault waits behind another one's device. Where the kernel permits no ring, a read blocks
//! its thread, and there are more of them.
//!
//! Waking a thread on a halted virtual CPU takes 28 us, longer than many faults take. Therefore a thread that has
//! resolved a short fault polls for the next one for a moment, yielding its CPU to other threads. The kernel still
//! wakes another thread, if there is one, which finds nothing to read.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use folioswap_core::PAGE_SIZE;
use folioswap_sys::signals;
use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::uffd::{Event, EventFd, Waiter, Woken};

use crate::engine::Engine;
use crate::fault::resolve::{resolve_for, resolve_own};
use crate::process::fatal::{self, EndOnPanic};
use crate::process::turns::{Need, Turns, Waits};

/// How long a thread polls for the next fault.
const WATCH: Duration = Duration::from_micros(30);

/// A thread polls only after faults shorter than this. Longer faults mostly wait for a disk: polling after those too
/// made random reads from a disk a third slower.
const SHORT: Duration = Duration::from_micros(50);

/// How often a thread looks whether a block is unlocked, or frames are free, for which a fault waits.
const TURN: Duration = Duration::from_micros(50);

/// Most faults that are read before those are looked at that wait.
const MOST_AT_ONCE: usize = 16;

static_tls! {
    /// The thread whose fault this thread resolves, or did last.
    static SERVED: u32 = "folioswap_served_thread";
}

/// Whether the calling thread works for a thread: it is that thread, or resolves a fault of it.
#[must_use]
pub fn works_for(thread: u32) -> bool {
    SERVED.get() == thread || signals::thread_id() == thread
}

/// A fault that the kernel reported.
#[derive(Clone, Copy)]
struct Reported {
    addr: usize,
    thread: u32,
}

/// A fault that is being resolved.
struct Flight<'f> {
    thread: u32,
    /// What it waits for.
    need: Need,
    flow: Pin<Box<dyn Future<Output = ()> + 'f>>,
}

impl Flight<'_> {
    /// Goes on with the fault. `false`: it waits again.
    fn is_over(&mut self, engine: &Engine, turns: &Turns) -> bool {
        SERVED.set(self.thread);
        engine.ram().work_for(self.thread);
        let over = self.flow.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        self.need = turns.needed();
        over
    }
}

/// Body of a monitor thread. Returns when `stop` is signalled.
pub(crate) fn run(engine: &Engine, stop: &EventFd) {
    let _end = EndOnPanic("monitor");
    let turns = Turns::new();
    let waiter = match Waiter::new(engine.faults().uffd(), stop, turns.descriptor()) {
        Ok(waiter) => waiter,
        Err(error) => fatal::die(&format!("waiting for faults: {error}")),
    };
    let mut in_flight: Vec<Flight<'_>> = Vec::new();
    let mut watch_until = None;
    loop {
        let begun = Instant::now();
        let nr_before = in_flight.len();
        let nr_read = begin_faults(engine, &turns, &mut in_flight);
        turns.collect();
        in_flight.retain_mut(|flight| !(turns.may_go_on(flight.need) && flight.is_over(engine, &turns)));
        if in_flight.len() < nr_before + nr_read {
            let now = Instant::now();
            watch_until = (now - begun < SHORT).then_some(now + WATCH);
        } else if nr_read == 0 {
            if watch_until.is_some_and(|end| begun < end) && !engine.stopping() {
                folioswap_sys::cpu::yield_now();
                continue;
            }
            let is_brief = in_flight.iter().any(|flight| flight.need == Need::Turn);
            match waiter.wait(is_brief.then_some(TURN)) {
                Ok(Woken::Stopped) => return,
                Ok(Woken::Event) => {}
                Err(error) => fatal::die(&format!("waiting for faults: {error}")),
            }
        }
    }
}

/// Reads faults and goes on with them until they wait, which they may not. Returns their number.
fn begin_faults<'f>(engine: &'f Engine, turns: &'f Turns, in_flight: &mut Vec<Flight<'f>>) -> usize {
    for nr_read in 0..MOST_AT_ONCE {
        let Some(fault) = read(engine) else { return nr_read };
        if resolve_own(engine, fault.addr, fault.thread) {
            continue;
        }
        let flow = Box::pin(serve(engine, fault, Waits::ByTurns(turns)));
        let mut flight = Flight { thread: fault.thread, need: Need::Turn, flow };
        if !flight.is_over(engine, turns) {
            in_flight.push(flight);
        }
    }
    MOST_AT_ONCE
}

/// Reads a fault from the userfaultfd, if there is one.
fn read(engine: &Engine) -> Option<Reported> {
    match engine.faults().uffd().read_event() {
        Ok(Some(Event::Pagefault { addr, thread, .. })) => Some(Reported { addr, thread }),
        Ok(_) => None,
        Err(error) => fatal::die(&format!("reading faults: {error}")),
    }
}

/// Resolves a fault, and wakes its thread: mapping the folio woke the threads that waited at that moment, and this
/// fault may have come later.
async fn serve(engine: &Engine, fault: Reported, waits: Waits<'_>) {
    if resolve_for(engine, fault.addr, fault.thread, waits).await || is_told(engine, fault, waits).await {
        let page = engine.table().addr(engine.table().page_at(fault.addr));
        if let Err(error) = engine.faults().uffd().wake(page, PAGE_SIZE) {
            fatal::die(&format!("waking a thread: {error}"));
        }
    }
}

/// Makes the kernel tell a thread that the content it touches is lost. Returns `false` before Linux 6.6: a SIGBUS is
/// sent instead, which ends the thread's wait, so no wakeup is needed.
async fn is_told(engine: &Engine, Reported { addr, thread }: Reported, waits: Waits<'_>) -> bool {
    let Some(_pass) = engine.gate().try_enter(thread) else { return true }; // it touches the page again after the fork
    let page = engine.table().page_at(addr);
    if engine.parts().lock_for(page.block(), waits).await.poison(page.page_in_block()).is_ok() {
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
