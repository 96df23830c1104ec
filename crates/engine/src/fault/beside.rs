//! Keeps a monitor thread on the CPU of the thread whose faults it resolves.
//!
//! To wake a thread on another CPU takes an interrupt, and so does each page that is moved for a program that runs there.
//! In a virtual machine that is 20 us and more each. On the same CPU a fault takes two changes of threads: 8 us instead
//! of 40 to 100.
//!
//! The kernel wakes a thread on an idle CPU, if there is one, even where it slept on the waker's CPU. But it prefers the
//! CPU where the thread slept if that is idle too, and it counts a CPU as idle that runs only a `SCHED_IDLE` thread. So
//! the monitor thread is one while it wakes a thread. It holds no lock then: it may have to wait for its CPU until
//! nothing else wants it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use folioswap_sys::cpu::{self, Cpus};
use folioswap_sys::{futex, own_calls};

/// Faults from one look at the CPU of a thread that faults to the next.
const FAULTS_A_LOOK: u32 = 4;

/// Looks in a row that must find the same CPU: at first, and at most.
const FIRST_LOOKS: u32 = 2;
const MOST_LOOKS: u32 = 512;

/// Looks without a disturbance after which the next stay needs fewer.
const CALM: u32 = 256;

/// How long others may keep the CPU, while the thread that was woken does not use it.
const DISTURBED: Duration = Duration::from_millis(1);

/// How long [`keep_priority`] waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Threads of this process that are `SCHED_IDLE`, and whether none may be any more.
static NR_IDLE: AtomicUsize = AtomicUsize::new(0);
static KEEP_PRIORITY: AtomicBool = AtomicBool::new(false);

/// Called before the process gives up rights: it might not be permitted to raise a thread's priority again.
pub fn keep_priority() {
    KEEP_PRIORITY.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    while NR_IDLE.load(Ordering::SeqCst) > 0 && begun.elapsed() < PATIENCE {
        futex::sleep(Duration::from_micros(50)); // such a thread may wait for this one's CPU
    }
}

/// In a forked child: its parent's threads are not here.
pub(crate) fn begin_child() {
    NR_IDLE.store(0, Ordering::SeqCst);
}

/// Where one monitor thread runs.
pub(super) struct Beside {
    /// Its CPU while it stays on one, and those that it may use else.
    stay: Option<(usize, Cpus)>,
    /// Where the last look found a thread, and how many in a row found it there.
    seen: Option<usize>,
    nr_seen: u32,
    /// Faults until the next look.
    left: u32,
    /// How many looks must find the same CPU.
    needed: u32,
}

impl Beside {
    pub fn new() -> Self {
        Beside { stay: None, seen: None, nr_seen: 0, left: 0, needed: FIRST_LOOKS }
    }

    /// Whether this thread stays on the CPU of another.
    pub fn is_beside(&self) -> bool {
        self.stay.is_some()
    }

    /// A thread has faulted.
    pub fn follow(&mut self, thread: u32) {
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        self.left = FAULTS_A_LOOK - 1;
        let is_possible = !own_calls::is_used() && !KEEP_PRIORITY.load(Ordering::Relaxed);
        let cpu = if is_possible { cpu::cpu_of(thread) } else { None };
        if cpu.is_none() || cpu != self.seen {
            self.leave();
            self.seen = cpu;
            return;
        }
        self.nr_seen += 1;
        if self.nr_seen.is_multiple_of(CALM) {
            self.needed = (self.needed / 2).max(FIRST_LOOKS);
        }
        if self.stay.is_none()
            && self.nr_seen >= self.needed
            && let Some(cpu) = cpu
        {
            self.stay = stay(cpu).map(|others| (cpu, others));
        }
    }

    /// Runs anywhere again.
    fn leave(&mut self) {
        self.nr_seen = 0;
        if let Some((_, others)) = self.stay.take() {
            let _ = others.run_here(); // if these are gone, the kernel has chosen others
        }
    }

    /// Calls what wakes a thread, which may be on this thread's CPU.
    pub fn wake(&mut self, thread: u32, wake: impl FnOnce()) {
        if self.stay.is_none() {
            return wake();
        }
        NR_IDLE.fetch_add(1, Ordering::SeqCst);
        if KEEP_PRIORITY.load(Ordering::SeqCst) {
            NR_IDLE.fetch_sub(1, Ordering::SeqCst);
            return wake();
        }
        let (begun, used_before) = (Instant::now(), cpu::time_of(thread));
        let _ = cpu::set_idle(true);
        wake();
        let is_back = cpu::set_idle(false);
        NR_IDLE.fetch_sub(1, Ordering::SeqCst);
        let took = begun.elapsed();
        if is_back.is_err() {
            KEEP_PRIORITY.store(true, Ordering::SeqCst); // rights were given up by a way that is not seen
        }
        if took > DISTURBED {
            let used = cpu::time_of(thread).zip(used_before).map_or(Duration::ZERO, |(now, before)| now - before);
            if took.saturating_sub(used) > DISTURBED {
                self.leave();
                self.needed = (self.needed * 2).min(MOST_LOOKS);
            }
        }
    }
}

/// Has this thread run on a CPU only, if it may be `SCHED_IDLE` meanwhile. Returns the CPUs that it may use else.
fn stay(cpu: usize) -> Option<Cpus> {
    let others = Cpus::of_this_thread().ok()?;
    (cpu::may_stop_idling() && cpu::stay_on(cpu).is_ok()).then_some(others)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use folioswap_sys::signals;

    use super::*;

    /// Looks at a thread until this one stays with it. Returns after how many faults.
    fn faults_until_beside(beside: &mut Beside, faulting: u32) -> u32 {
        (1..10_000)
            .find(|_| {
                beside.follow(faulting);
                beside.is_beside()
            })
            .unwrap()
    }

    fn runs_on_one_cpu() -> bool {
        let mine = Cpus::of_this_thread().unwrap();
        (0..1024).filter(|&cpu| mine.has(cpu)).count() == 1
    }

    #[test]
    fn a_thread_stays_with_the_one_that_faults_and_is_idle_while_it_wakes_it() {
        let mine = Cpus::of_this_thread().unwrap();
        let cpus: Vec<_> = (0..1024).filter(|&cpu| mine.has(cpu)).collect();
        if cpus.len() < 2 || !cpu::may_stop_idling() {
            println!("SKIP a thread that stays on another's CPU: there is one CPU, or this lacks CAP_SYS_NICE");
            return;
        }
        let (ids, (moves, places)) = (mpsc::channel(), mpsc::channel());
        thread::scope(|scope| {
            scope.spawn(move || {
                for cpu in places {
                    cpu::stay_on(cpu).unwrap();
                    ids.0.send(signals::thread_id()).unwrap();
                }
            });
            let mut beside = Beside::new();
            let go = |cpu| {
                moves.send(cpu).unwrap();
                ids.1.recv().unwrap()
            };
            for place in [cpus[0], cpus[1], cpus[0]] {
                let faulting = go(place);
                if beside.is_beside() {
                    assert!((0..FAULTS_A_LOOK).any(|_| {
                        beside.follow(faulting);
                        !beside.is_beside()
                    }));
                    assert!(!runs_on_one_cpu());
                }
                faults_until_beside(&mut beside, faulting);
                assert!(runs_on_one_cpu() && cpu::current_cpu() == place);
            }
            let faulting = go(cpus[0]);
            beside.wake(faulting, || assert!(cpu::is_idle()));
            assert!(!cpu::is_idle() && beside.is_beside());
            // Something else keeps the CPU: it leaves, and comes back later each time.
            let mut before = 0;
            for _ in 0..4 {
                beside.wake(faulting, || thread::sleep(2 * DISTURBED));
                assert!(!beside.is_beside() && !runs_on_one_cpu());
                let faults = faults_until_beside(&mut beside, faulting);
                assert!(faults > before);
                before = faults;
            }
            drop(moves);
        });
    }
}
