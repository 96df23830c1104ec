//! Monitor mode: threads of the engine read faults from the userfaultfd and resolve them.
//!
//! Each of them is an event loop over the userfaultfd, a ring of reads, and the flows of the faults that it has read
//! and not resolved yet; the first also over what other processes ask for (`readers`). So no fault waits behind another
//! one's device, unless 64 reads are in flight. Where the kernel permits no ring, a read blocks its thread, and there
//! are more of them.
//!
//! Waking a thread on a halted virtual CPU takes 28 us, longer than many faults take. Therefore a thread that has
//! resolved a short fault polls for the next one for a moment, yielding its CPU to other threads. The kernel still
//! wakes another thread, if there is one, which finds nothing to read.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use folioswap_core::PAGE_SIZE;
use folioswap_sys::readers::Asked;
use folioswap_sys::signals;
use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::uffd::{Event, EventFd, Waiter, Woken};

use crate::engine::Engine;
use crate::fault::readers::Readers;
use crate::fault::resolve::{resolve_for, resolve_own};
use crate::process::cpu::{self, ServedCpu};
use crate::process::fatal::{self, EndOnPanic};
use crate::process::threads::Starting;
use crate::process::turns::{Need, Turns, Waits};
use crate::process::wakeup::Pass;

/// How long a thread polls for the next fault.
const WATCH: Duration = Duration::from_micros(30);

/// A thread polls only after faults shorter than this. Longer faults mostly wait for a disk: polling after those too
/// made random reads from a disk a third slower.
const SHORT: Duration = Duration::from_micros(50);

/// How soon a thread looks again whether a block is unlocked, or frames are free, for which a fault waits; and how soon
/// at last, while nothing happens.
const TURN: Duration = Duration::from_micros(50);
const LONGEST_TURN: Duration = Duration::from_millis(1);

/// How long other processes may wait before a busy thread looks whether they ask for something.
const READERS_WAIT: Duration = Duration::from_millis(5);

/// Faults that are held back while a thread forks. Further ones are woken, and come again, at once.
const MOST_HELD_BACK: usize = 256;

/// Most faults that are read before those are looked at that wait.
const MOST_AT_ONCE: usize = 4;

static_tls! {
    /// The thread whose fault this thread resolves; 0: none, because the last one is resolved.
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

/// Room for a fault that is being resolved. It is used again and again: outside the fork gate nothing is allocated or
/// freed, because a thread that forks may hold the heap.
struct Flight<F> {
    fault: Reported,
    begun: Instant,
    cpu: ServedCpu,
    /// What it waits for.
    need: Need,
    /// Whether another process asks for it, and no thread faulted.
    is_for_reader: bool,
    /// `None`: no fault is here.
    flow: Pin<Box<Option<F>>>,
}

/// Other processes that ask for memory: one is served at a time.
struct Asking<'e> {
    readers: Option<&'e Readers>,
    /// There may be one that waits: it is told of once.
    may_ask: bool,
    /// What is asked for next.
    next: Option<Asked>,
    /// Something is being brought in.
    is_served: bool,
}

/// The faults of one monitor thread.
struct Flights<'e, F, M> {
    engine: &'e Engine,
    turns: &'e Turns,
    asking: Asking<'e>,
    /// Makes the flow of a fault, or of what another process asks for. It returns whether the thread is to be woken.
    make: M,
    /// Those that wait, in the order in which they began, then room for others.
    all: Vec<Flight<F>>,
    nr_waiting: usize,
    /// Faults that came while another thread forks: woken after that, they come again.
    held_back: Vec<Reported>,
}

impl<F: Future<Output = bool>, M: Fn(Reported, Option<Asked>) -> F> Flights<'_, F, M> {
    /// Reads faults, and goes on with each until it waits, which it may not. Returns their number, and how long the
    /// shortest took that was resolved, if any was.
    fn begin_some(&mut self) -> (usize, Option<Duration>) {
        let mut shortest = None;
        for nr_read in 0..MOST_AT_ONCE {
            let Some(fault) = read(self.engine) else { return (nr_read, shortest) };
            if resolve_own(self.engine, fault.addr, fault.thread) {
                continue;
            }
            match self.engine.gate().try_enter(fault.thread) {
                Some(pass) => shortest = shorter(shortest, self.begin(pass, fault, None)),
                None => self.hold_back(fault),
            }
        }
        (MOST_AT_ONCE, shortest)
    }

    /// Begins what another process asks for, if one does. `true`: it is over, and there may be more, of which nobody
    /// tells this thread.
    fn begin_for_reader(&mut self) -> bool {
        let thread = signals::thread_id();
        let asking = &mut self.asking;
        if asking.is_served {
            return false;
        }
        asking.next = asking.next.or_else(|| asking.readers?.listener().receive().ok()?);
        asking.may_ask = asking.next.is_some();
        if let Some(asked) = asking.next
            && let Some(pass) = self.engine.gate().try_enter(thread)
        {
            asking.next = None;
            self.begin(pass, Reported { addr: asked.request.addr, thread }, Some(asked));
            return !self.asking.is_served;
        }
        false
    }

    /// Whether a thread has reported this fault already, and still waits for it: a signal, or a tracer, made it touch
    /// the page again. It is woken once the page is there.
    fn is_repeated(&self, fault: Reported) -> bool {
        let page = |fault: Reported| fault.addr / PAGE_SIZE;
        let mut waiting = self.all[..self.nr_waiting].iter().filter(|flight| !flight.is_for_reader);
        fault.thread != 0
            && waiting.any(|flight| flight.fault.thread == fault.thread && page(flight.fault) == page(fault))
    }

    /// Goes on with a new fault until it waits. Returns how long it took, if it is over.
    fn begin(&mut self, pass: Pass<'_>, fault: Reported, asked: Option<Asked>) -> Option<Duration> {
        if asked.is_none() && self.is_repeated(fault) {
            return None;
        }
        SERVED.set(fault.thread);
        if self.engine.ram().zones().all().len() > 1 {
            cpu::work_for(fault.thread); // takes frames near that thread's CPU
        }
        let (place, is_for_reader) = (self.nr_waiting, asked.is_some());
        if place == self.all.len() {
            let (begun, cpu, need) = (Instant::now(), cpu::served(), Need::Turn);
            self.all.push(Flight { fault, begun, cpu, need, is_for_reader, flow: Box::pin(None) });
        }
        drop(pass);
        self.nr_waiting += 1;
        let flight = &mut self.all[place];
        (flight.fault, flight.begun, flight.cpu, flight.is_for_reader) =
            (fault, Instant::now(), cpu::served(), is_for_reader);
        flight.flow.set(Some((self.make)(fault, asked)));
        self.asking.is_served |= is_for_reader;
        self.go_on_with(place)
    }

    /// Goes on with a fault. Returns how long it took, if it is over.
    fn go_on_with(&mut self, place: usize) -> Option<Duration> {
        let flight = &mut self.all[place];
        SERVED.set(flight.fault.thread);
        cpu::serve(flight.cpu);
        let flow = flight.flow.as_mut().as_pin_mut().expect("a fault is here");
        let polled = flow.poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(wakes) = polled else {
            flight.need = self.turns.needed();
            return None;
        };
        flight.flow.set(None);
        self.asking.is_served &= !flight.is_for_reader;
        SERVED.set(0); // before the thread goes on
        if wakes {
            wake(self.engine, flight.fault);
        }
        let took = flight.begun.elapsed();
        self.all[place..self.nr_waiting].rotate_left(1);
        self.nr_waiting -= 1;
        Some(took)
    }

    /// Goes on with all faults that may, the oldest first. Returns how long the shortest took that is over, if any is.
    fn go_on(&mut self) -> Option<Duration> {
        self.turns.collect();
        if !self.engine.gate().is_closed() {
            self.held_back.drain(..).for_each(|fault| wake(self.engine, fault));
        }
        let (mut shortest, mut place) = (None, 0);
        while place < self.nr_waiting {
            let took = if self.turns.may_go_on(self.all[place].need) { self.go_on_with(place) } else { None };
            place += usize::from(took.is_none());
            shortest = shorter(shortest, took);
        }
        shortest
    }

    fn hold_back(&mut self, fault: Reported) {
        if self.held_back.len() < self.held_back.capacity() {
            self.held_back.push(fault);
        } else {
            wake(self.engine, fault);
        }
    }

    /// Whether a fault waits for what nobody tells this thread.
    fn wait_for_a_turn(&self) -> bool {
        let mut needs = self.all[..self.nr_waiting].iter().map(|flight| flight.need);
        !self.held_back.is_empty() || self.asking.next.is_some() || needs.any(|need| need == Need::Turn)
    }
}

/// The shorter one, if there is any.
fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    a.into_iter().chain(b).min()
}

/// Body of a monitor thread. Returns when `stop` is signalled. `listens`: it serves other processes too.
pub(crate) fn run(engine: &Engine, stop: &EventFd, listens: bool, starting: Starting) {
    let _end = EndOnPanic("monitor");
    let turns = Turns::new();
    let readers = if listens { Readers::new() } else { None };
    let readers = readers.as_ref();
    let others = [turns.descriptor(), readers.map(|readers| readers.listener().descriptor())];
    let waiter = match Waiter::new(engine.uffd(), stop, others) {
        Ok(waiter) => waiter,
        Err(error) => fatal::die(&format!("waiting for faults: {error}")),
    };
    let make = |fault, asked: Option<Asked>| resolve_one(engine, fault, asked.zip(readers), Waits::ByTurns(&turns));
    let held_back = Vec::with_capacity(MOST_HELD_BACK);
    let asking = Asking { readers, may_ask: false, next: None, is_served: false };
    let mut flights = Flights { engine, turns: &turns, asking, make, all: Vec::new(), nr_waiting: 0, held_back };
    drop(starting);
    let (mut watch_until, mut turn) = (Instant::now(), TURN);
    let mut listens_at = Instant::now();
    loop {
        let begun = Instant::now();
        // Before the new ones, which would take the frames that those wait for.
        let shortest = flights.go_on();
        let (nr_new, new_shortest) = flights.begin_some();
        if begun >= listens_at {
            flights.begin_for_reader();
            listens_at = begun + READERS_WAIT;
        }
        if new_shortest.into_iter().chain(shortest).any(|took| took < SHORT) {
            watch_until = Instant::now() + WATCH;
        }
        if nr_new > 0 || shortest.is_some() {
            turn = TURN;
        }
        if nr_new == MOST_AT_ONCE {
            continue; // there may be more
        }
        if begun < watch_until && !engine.stopping() {
            folioswap_sys::cpu::yield_now();
        } else {
            if flights.asking.may_ask && flights.begin_for_reader() && !engine.stopping() {
                continue;
            }
            let moment = flights.wait_for_a_turn().then_some(turn);
            turn = (turn * 2).min(LONGEST_TURN);
            match waiter.wait(moment) {
                Ok(Woken::Stopped) => return,
                Ok(Woken::Event) => {}
                Ok(Woken::Told) => flights.asking.may_ask = true,
                Err(error) => fatal::die(&format!("waiting for faults: {error}")),
            }
        }
    }
}

/// Reads a fault from the userfaultfd, if there is one.
fn read(engine: &Engine) -> Option<Reported> {
    match engine.uffd().read_event() {
        Ok(Some(Event::Pagefault { addr, thread, .. })) => Some(Reported { addr, thread }),
        Ok(_) => None,
        Err(error) => fatal::die(&format!("reading faults: {error}")),
    }
}

/// Resolves a fault, or does what another process asks for. Returns whether the thread is to be woken: mapping the
/// folio woke the threads that waited at that moment, and this fault may have come later.
async fn resolve_one(engine: &Engine, fault: Reported, asked: Option<(Asked, &Readers)>, waits: Waits<'_>) -> bool {
    if let Some((asked, readers)) = asked {
        readers.serve(engine, asked, waits).await;
        return false;
    }
    resolve_for(engine, fault.addr, fault.thread, waits).await || is_told(engine, fault, waits).await
}

fn wake(engine: &Engine, fault: Reported) {
    let page = engine.table().addr(engine.table().page_at(fault.addr));
    if let Err(error) = engine.uffd().wake(page, PAGE_SIZE) {
        fatal::die(&format!("waking a thread: {error}"));
    }
}

/// Makes the kernel tell a thread that the content it touches is lost. Returns `false` before Linux 6.6: a SIGBUS is
/// sent instead, which ends the thread's wait, so no wakeup is needed.
async fn is_told(engine: &Engine, Reported { addr, thread }: Reported, waits: Waits<'_>) -> bool {
    let Some(_pass) = engine.gate().try_enter(thread) else { return true }; // it touches the page again after the fork
    let page = engine.table().page_at(addr);
    if engine.lock_for(page.block(), waits).await.poison(page.page_in_block()).is_ok() {
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use folioswap_core::Order;

    use super::*;
    use crate::config::swap_in_policy::SwapIn;
    use crate::tests::without_kernel::{Simulated, Unwanted, turns};

    #[test]
    fn what_becomes_free_goes_to_the_fault_that_has_waited_longest() {
        let simulated = Simulated::new(Some(Order::PAGE), SwapIn::Always, Unwanted);
        let (engine, turns) = (&simulated.engine, turns());
        let (free, ended) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let make = |fault: Reported, _: Option<Asked>| {
            let (turns, free, ended) = (&turns, &free, &ended);
            async move {
                Waits::ByTurns(turns).until(|| unreachable!("it waits by turns"), || free.borrow_mut().pop()).await;
                ended.borrow_mut().push(fault.addr / PAGE_SIZE);
                false
            }
        };
        let asking = Asking { readers: None, may_ask: false, next: None, is_served: false };
        let mut flights =
            Flights { engine, turns: &turns, asking, make, all: Vec::new(), nr_waiting: 0, held_back: Vec::new() };
        let begin = |flights: &mut Flights<'_, _, _>, addr| {
            let fault = Reported { addr: addr * PAGE_SIZE, thread: 1 };
            assert!(flights.begin(engine.gate().enter(1), fault, None).is_none());
        };
        (0..4).for_each(|addr| begin(&mut flights, addr));
        (0..4).for_each(|addr| begin(&mut flights, addr)); // a signal came, and it touches them again
        assert_eq!(flights.nr_waiting, 4);
        for (nr_free, next) in [(1, 4), (2, 5), (3, 6)] {
            free.borrow_mut().extend(vec![(); nr_free]);
            assert!(flights.go_on().is_some());
            begin(&mut flights, next);
        }
        assert_eq!((ended.take(), flights.nr_waiting, flights.all.len()), (vec![0, 1, 2, 3, 4, 5], 1, 4));
    }
}
