//! Keeps a monitor thread on the CPU of the thread whose faults it resolves.
//!
//! Waking a thread on another CPU costs an interrupt, and so does each page that is moved for a program that runs
//! there: in a virtual machine 20 us and more each. On the same CPU a fault costs a few context switches, 9 us instead
//! of 40 to 100.
//!
//! The kernel wakes a thread on an idle CPU, if there is one, even where it slept on the waker's. But it prefers the
//! CPU where the thread slept if that is idle too, and it counts a CPU as idle that runs nothing but a `SCHED_IDLE`
//! thread. So a thread of that kind on the same CPU, the *waking thread*, wakes the one that faulted once the monitor
//! thread sleeps. Where something else wants the CPU it would have to wait: after a while the monitor thread does it
//! itself, and leaves the CPU.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use folioswap_sys::cpu::Cpus;
use folioswap_sys::{own_calls, signals};

use crate::engine::Engine;
use crate::process::cpu;
use crate::process::fatal::EndOnPanic;
use crate::process::threads::Starting;
use crate::process::wakeup::Event;

/// Faults from one look at the CPU of a thread that faults to the next: while the monitor thread stays, and before.
/// Those alternate, because threads may, too.
const FAULTS_A_LOOK: u32 = 16;
const FAULTS_A_FIRST_LOOK: [u32; 2] = [3, 4];

/// Looks in a row that must find the same CPU: at first, and at most.
const FIRST_LOOKS: u32 = 2;
const MOST_LOOKS: u32 = 512;

/// Looks without a disturbance after which the next stay needs fewer.
const CALM: u32 = 64;

/// How long the waking thread may take.
pub(super) const PATIENCE: Duration = Duration::from_millis(1);

/// What the monitor thread leaves to the waking thread.
#[derive(Default)]
pub(crate) struct Waking {
    /// An address for which a thread waits that is to be woken; 0: none.
    addr: AtomicUsize,
    left: Event,
    /// The waking thread's id; 0: there is none.
    thread: AtomicU32,
}

impl Waking {
    /// Body of the waking thread. Returns when the arena stops.
    pub fn run(&self, engine: &Engine, starting: Starting) {
        let _end = EndOnPanic("waking");
        drop(starting);
        folioswap_sys::cpu::run_as_idle();
        self.thread.store(signals::thread_id(), Ordering::SeqCst);
        self.wake_each(|| engine.stopping(), |addr| super::monitor::wake(engine, addr));
    }

    fn wake_each(&self, is_over: impl Fn() -> bool, wake: impl Fn(usize)) {
        while !is_over() {
            let seen = self.left.now();
            match self.take() {
                Some(addr) => wake(addr),
                None if is_over() => {} // that may have been signalled before `seen` was read
                None => self.left.wait(seen),
            }
        }
    }

    /// Lets the waking thread look whether the arena stops.
    pub fn signal(&self) {
        self.left.signal();
    }

    /// In a forked child: there is no such thread.
    pub fn forget(&self) {
        self.thread.store(0, Ordering::SeqCst);
        self.addr.store(0, Ordering::SeqCst);
        self.left.forget_waiters();
    }

    fn take(&self) -> Option<usize> {
        Some(self.addr.swap(0, Ordering::SeqCst)).filter(|&addr| addr != 0)
    }
}

/// Where a monitor thread runs.
pub(super) struct Beside<'e> {
    engine: &'e Engine,
    waking: Option<&'e Waking>,
    /// The CPUs that it was allowed before, while it stays on one.
    others: Option<Cpus>,
    /// Where the last look found a thread, and which, and how many looks in a row found one there.
    seen: Option<usize>,
    thread: u32,
    nr_seen: u32,
    /// Faults until the next look.
    until_look: u32,
    /// How many looks must find the same CPU.
    needed: u32,
    /// When it left something to the waking thread that had nothing to do.
    left_at: Instant,
}

impl<'e> Beside<'e> {
    /// Without a waking thread, a monitor thread runs anywhere.
    pub fn new(engine: &'e Engine, waking: Option<&'e Waking>) -> Self {
        Beside {
            engine,
            waking,
            others: None,
            seen: None,
            thread: 0,
            nr_seen: 0,
            until_look: 0,
            needed: FIRST_LOOKS,
            left_at: Instant::now(),
        }
    }

    /// Whether this thread stays on the CPU of another.
    pub fn stays(&self) -> bool {
        self.others.is_some()
    }

    /// A thread has faulted.
    pub fn follow(&mut self, thread: u32) {
        let Some(waking) = self.waking else { return };
        let is_another = self.stays() && thread != self.thread;
        if self.until_look > 0 && !is_another {
            self.until_look -= 1;
            return;
        }
        let waking_thread = waking.thread.load(Ordering::SeqCst);
        // A thread that is started would stay on the CPU, too.
        if waking_thread == 0 || !self.engine.ram().demand().has_settled() {
            return;
        }
        self.look(thread, waking_thread);
        let faults = if self.stays() { FAULTS_A_LOOK } else { FAULTS_A_FIRST_LOOK[self.nr_seen as usize % 2] };
        self.until_look = faults - 1;
    }

    fn look(&mut self, thread: u32, waking_thread: u32) {
        self.thread = thread;
        let cpu = cpu::of(thread);
        if cpu.is_none() || cpu != self.seen {
            self.leave();
            self.seen = cpu;
            return;
        }
        self.nr_seen += 1;
        if self.stays() {
            if self.nr_seen.is_multiple_of(CALM) {
                self.needed = (self.needed / 2).max(FIRST_LOOKS);
            }
        } else if self.nr_seen >= self.needed {
            self.nr_seen = 0;
            self.others = cpu.and_then(|cpu| stay(cpu, thread, waking_thread));
        }
    }

    /// Runs anywhere again, and so does the waking thread.
    pub fn leave(&mut self) {
        self.nr_seen = 0;
        if let (Some(others), Some(waking)) = (self.others.take(), self.waking) {
            for thread in [0, waking.thread.load(Ordering::SeqCst)] {
                let _ = others.hold(thread); // if these are gone, the kernel has chosen others
            }
        }
    }

    /// Wakes the threads that wait for this address, by the waking thread while it stays, else by `wake`.
    pub fn wake(&mut self, addr: usize, wake: impl Fn(usize)) {
        let Some(waking) = self.waking.filter(|_| self.stays()) else { return wake(addr) };
        match waking.addr.swap(addr, Ordering::SeqCst) {
            0 => self.left_at = Instant::now(),
            before => wake(before),
        }
        waking.left.signal();
    }

    /// Whether the waking thread has something to do yet.
    pub fn waits(&self) -> bool {
        self.waking.is_some_and(|waking| waking.addr.load(Ordering::SeqCst) != 0)
    }

    /// Does what the waking thread has not done in time, by `wake`.
    pub fn hurry(&mut self, wake: impl Fn(usize)) {
        if self.waits()
            && self.left_at.elapsed() >= PATIENCE
            && let Some(addr) = self.waking.and_then(Waking::take)
        {
            wake(addr);
            self.leave();
            self.needed = (self.needed * 2).min(MOST_LOOKS);
        }
    }
}

/// Has this thread and the waking one run on the CPU of a third only. Returns the CPUs that this one was allowed.
fn stay(cpu: usize, beside: u32, waking: u32) -> Option<Cpus> {
    own_calls::unless_used(|| {
        let (others, here) = (Cpus::of_this_thread().ok()?, Cpus::only(cpu)?);
        // A thread with a real-time policy would keep this one from its CPU.
        let is_better = others.count() > 1 && !folioswap_sys::cpu::is_real_time(beside);
        (is_better && here.hold(waking).is_ok() && here.hold(0).is_ok()).then_some(others)
    })
    .flatten()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, mpsc};
    use std::thread;

    use folioswap_core::Order;

    use super::*;
    use crate::config::swap_in_policy::SwapIn;
    use crate::process::wakeup::comes_true;
    use crate::tests::without_kernel::{Simulated, Unwanted};

    /// The waking thread comes to nothing after it has woken for this address.
    const LAST: usize = 1 << 20;

    fn cpus_of_this_thread() -> Vec<usize> {
        let mine = Cpus::of_this_thread().unwrap();
        (0..1024).filter(|&cpu| mine.has(cpu)).collect()
    }

    /// A thread that goes to a CPU when it is told, and then tells its id.
    fn movable() -> impl Fn(usize) -> u32 {
        let (ids, (moves, places)) = (mpsc::channel(), mpsc::channel());
        thread::spawn(move || {
            for cpu in places {
                folioswap_sys::cpu::stay_on(cpu).unwrap();
                ids.0.send(signals::thread_id()).unwrap();
            }
        });
        move |cpu| {
            moves.send(cpu).unwrap();
            ids.1.recv().unwrap()
        }
    }

    /// A thread that does what is left to it until it is over, and tells for which addresses.
    fn waking_thread(waking: &Arc<Waking>, is_over: &Arc<AtomicBool>) -> mpsc::Receiver<usize> {
        let (waking, is_over) = (Arc::clone(waking), Arc::clone(is_over));
        let (woken, all_woken) = mpsc::channel();
        thread::spawn(move || {
            waking.thread.store(signals::thread_id(), Ordering::SeqCst);
            let is_over = || is_over.load(Ordering::SeqCst);
            let wake = |addr| {
                woken.send(addr).unwrap();
                if addr == LAST {
                    comes_true("the end", is_over);
                }
            };
            waking.wake_each(is_over, wake);
        });
        all_woken
    }

    /// Looks at a thread until this one stays with it. Returns after how many faults.
    fn faults_until_it_stays(beside: &mut Beside<'_>, faulting: u32) -> usize {
        let stays = |_: &usize| {
            beside.follow(faulting);
            beside.stays()
        };
        (1..10_000).find(stays).unwrap()
    }

    #[test]
    fn a_thread_stays_with_the_one_that_faults_and_another_wakes_it() {
        let cpus = cpus_of_this_thread();
        if cpus.len() < 2 {
            println!("SKIP a thread that stays on another's CPU: there is one CPU");
            return;
        }
        let simulated = Simulated::new(Some(Order::PAGE), SwapIn::Always, Unwanted);
        let (waking, is_over) = (Arc::new(Waking::default()), Arc::new(AtomicBool::new(false)));
        let all_woken = waking_thread(&waking, &is_over);
        comes_true("the waking thread", || waking.thread.load(Ordering::SeqCst) != 0);
        let (go, other) = (movable(), movable()(cpus[1]));
        let mut beside = Beside::new(&simulated.engine, Some(&waking));
        let not_here = |_| panic!("another thread wakes");
        (0..100).for_each(|_| beside.follow(go(cpus[0])));
        assert!(!beside.stays(), "threads may yet be started");
        simulated.engine.ram().demand().note_no_reclaim();
        for place in [cpus[0], cpus[1], cpus[0]] {
            let faulting = go(place);
            if beside.stays() {
                (0..FAULTS_A_LOOK).for_each(|_| beside.follow(faulting));
                assert!(!beside.stays() && cpus_of_this_thread() == cpus);
            }
            faults_until_it_stays(&mut beside, faulting);
            assert_eq!(cpus_of_this_thread(), [place]);
            beside.wake(place + 5, not_here);
            assert_eq!(all_woken.recv().unwrap(), place + 5);
            assert!(!beside.waits());
            beside.hurry(not_here);
        }
        beside.follow(other);
        assert!(!beside.stays(), "another thread faults on another CPU");
        let faulting = go(cpus[0]);
        let in_turn = (0..100).filter(|at| {
            beside.follow(if at % 2 == 0 { faulting } else { other });
            beside.stays()
        });
        assert_eq!(in_turn.count(), 0, "threads on two CPUs fault in turn");

        faults_until_it_stays(&mut beside, faulting);
        beside.wake(LAST, not_here);
        assert_eq!(all_woken.recv().unwrap(), LAST);
        beside.leave();
        // This one does it, leaves, and comes back later each time.
        let (here, mut before) = (Cell::new(0), 0);
        for _ in 0..4 {
            let faults = faults_until_it_stays(&mut beside, faulting);
            assert!(faults > before);
            before = faults;
            beside.wake(7, |addr| here.set(addr));
            thread::sleep(PATIENCE);
            beside.hurry(|addr| here.set(addr));
            assert_eq!((here.take(), beside.waits(), beside.stays()), (7, false, false));
        }
        beside.wake(8, |addr| here.set(addr));
        assert_eq!(here.get(), 8);
        is_over.store(true, Ordering::SeqCst);
    }
}
