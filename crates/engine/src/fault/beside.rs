//! Keeps a monitor thread on the CPU of the thread whose faults it resolves.
//!
//! To wake a thread on another CPU takes an interrupt, and so does each page that is moved for a program that runs
//! there. In a virtual machine that is 20 us and more each. On the same CPU a fault takes a few changes of threads: 9
//! us instead of 40 to 100.
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

/// Faults from one look at the CPU of a thread that faults to the next. They alternate, because threads may, too.
const FAULTS_A_LOOK: [u32; 2] = [3, 4];

/// Looks in a row that must find the same CPU: at first, and at most.
const FIRST_LOOKS: u32 = 2;
const MOST_LOOKS: u32 = 512;

/// Looks without a disturbance after which the next stay needs fewer.
const CALM: u32 = 256;

/// How long the waking thread may take.
pub(super) const PATIENCE: Duration = Duration::from_millis(1);

/// What the monitor thread has the waking thread do.
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
        folioswap_sys::cpu::run_as_idle();
        drop(starting);
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
pub(super) struct Beside<'w> {
    waking: Option<&'w Waking>,
    /// The CPUs that it may use else, while it stays on one.
    others: Option<Cpus>,
    /// Where the last look found a thread, and how many in a row found it there.
    seen: Option<usize>,
    nr_seen: u32,
    /// Faults until the next look.
    until_look: u32,
    /// How many looks must find the same CPU.
    needed: u32,
    /// When it last left something to the waking thread.
    left_at: Instant,
}

impl<'w> Beside<'w> {
    /// Without a waking thread, a monitor thread runs anywhere.
    pub fn new(waking: Option<&'w Waking>) -> Self {
        let (others, seen, left_at) = (None, None, Instant::now());
        Beside { waking, others, seen, nr_seen: 0, until_look: 0, needed: FIRST_LOOKS, left_at }
    }

    /// Whether this thread stays on the CPU of another.
    pub fn stays(&self) -> bool {
        self.others.is_some()
    }

    /// A thread has faulted.
    pub fn follow(&mut self, thread: u32) {
        if self.until_look > 0 {
            self.until_look -= 1;
            return;
        }
        let Some(waking) = self.waking else { return };
        let waking_thread = waking.thread.load(Ordering::SeqCst);
        if waking_thread == 0 {
            return;
        }
        self.until_look = FAULTS_A_LOOK[self.nr_seen as usize % 2];
        let cpu = cpu::of(thread);
        if cpu.is_none() || cpu != self.seen {
            self.leave();
            self.seen = cpu;
            return;
        }
        self.nr_seen += 1;
        if self.nr_seen.is_multiple_of(CALM) {
            self.needed = (self.needed / 2).max(FIRST_LOOKS);
        }
        if !self.stays() && self.nr_seen >= self.needed {
            self.others = cpu.and_then(|cpu| stay(cpu, waking_thread));
        }
    }

    /// Runs anywhere again.
    fn leave(&mut self) {
        self.nr_seen = 0;
        if let Some(others) = self.others.take() {
            let _ = others.hold(0); // if these are gone, the kernel has chosen others
        }
    }

    /// Has a thread woken that waits for this address, by the waking thread or by `wake`.
    pub fn wake(&mut self, addr: usize, wake: impl Fn(usize)) {
        let Some(waking) = self.waking.filter(|_| self.stays()) else { return wake(addr) };
        let before = waking.addr.swap(addr, Ordering::SeqCst);
        waking.left.signal();
        self.left_at = Instant::now();
        if before != 0 {
            wake(before);
        }
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

/// Has this thread and another one run on a CPU only. Returns the CPUs that this one may use else.
fn stay(cpu: usize, other: u32) -> Option<Cpus> {
    own_calls::unless_used(|| {
        let (others, here) = (Cpus::of_this_thread().ok()?, Cpus::only(cpu)?);
        (here.hold(other).is_ok() && here.hold(0).is_ok()).then_some(others)
    })
    .flatten()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, mpsc};
    use std::thread;

    use super::*;
    use crate::process::wakeup::comes_true;

    const LAST: usize = 1 << 20;

    fn cpus_of_this_thread() -> Vec<usize> {
        let mine = Cpus::of_this_thread().unwrap();
        (0..1024).filter(|&cpu| mine.has(cpu)).collect()
    }

    /// A thread that goes to a CPU when it is told, and then tells its id. It ends with what tells it.
    fn movable<'s>(scope: &'s thread::Scope<'s, '_>) -> (mpsc::Sender<usize>, mpsc::Receiver<u32>) {
        let (ids, (moves, places)) = (mpsc::channel(), mpsc::channel());
        scope.spawn(move || {
            for cpu in places {
                folioswap_sys::cpu::stay_on(cpu).unwrap();
                ids.0.send(signals::thread_id()).unwrap();
            }
        });
        (moves, ids.1)
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
        let (waking, is_over) = (Arc::new(Waking::default()), Arc::new(AtomicBool::new(false)));
        let ((woken, all_woken), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
        thread::scope(|scope| {
            let (waking_here, is_over_here) = (Arc::clone(&waking), Arc::clone(&is_over));
            scope.spawn(move || {
                waking_here.thread.store(signals::thread_id(), Ordering::SeqCst);
                let wake = |addr| {
                    woken.send(addr).unwrap();
                    if addr == LAST {
                        released.recv().unwrap();
                    }
                };
                waking_here.wake_each(|| is_over_here.load(Ordering::SeqCst), wake);
            });
            let (moves, ids) = movable(scope);
            let go = |cpu| {
                moves.send(cpu).unwrap();
                ids.recv().unwrap()
            };
            comes_true("the waking thread", || waking.thread.load(Ordering::SeqCst) != 0);
            let mut beside = Beside::new(Some(&waking));
            let not_here = |_| panic!("another thread wakes");
            for place in [cpus[0], cpus[1], cpus[0]] {
                let faulting = go(place);
                if beside.stays() {
                    (0..5).for_each(|_| beside.follow(faulting));
                    assert!(!beside.stays() && cpus_of_this_thread() == cpus);
                }
                faults_until_it_stays(&mut beside, faulting);
                assert_eq!(cpus_of_this_thread(), [place]);
                beside.wake(place + 5, not_here);
                assert_eq!(all_woken.recv().unwrap(), place + 5);
                assert!(!beside.waits());
                beside.hurry(not_here);
            }
            // The waking thread comes to nothing more: this one does it, leaves, and comes back later each time.
            beside.wake(LAST, not_here);
            assert_eq!(all_woken.recv().unwrap(), LAST);
            beside.leave();
            let faulting = go(cpus[0]);
            let (here, mut before) = (Cell::new(0), 0);
            for _ in 0..4 {
                let faults = faults_until_it_stays(&mut beside, faulting);
                assert!(faults > before);
                before = faults;
                beside.wake(7, |addr| here.set(addr));
                beside.hurry(|addr| here.set(addr));
                assert_eq!((here.get(), beside.waits()), (0, true));
                thread::sleep(PATIENCE);
                beside.hurry(|addr| here.set(addr));
                assert_eq!((here.take(), beside.waits(), beside.stays()), (7, false, false));
            }
            beside.wake(8, |addr| here.set(addr));
            assert_eq!(here.get(), 8);
            is_over.store(true, Ordering::SeqCst);
            release.send(()).unwrap();
            drop(moves);
        });
    }
}
