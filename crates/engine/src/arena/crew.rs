//! The threads of an arena.
//!
//! A program that fits its budget, or ends soon, never needs most of them. So only the one that delivers faults starts
//! at once. When memory first runs short, or a zeroed page is first wanted, two more start: the background thread, and
//! one that waits until memory does run short, and then starts the rest. An arena in a library has all of them at once:
//! the C library takes memory for a thread, and what touches the arena then may hold the lock of the allocator.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use folioswap_sys::uffd::EventFd;
use folioswap_sys::{c_thread, clock, futex, own_calls, own_table, signals, uring};

use crate::arena::background;
use crate::config::error::Error;
use crate::config::fault_mode::FaultMode;
use crate::engine::Engine;
use crate::fault::monitor;
use crate::fault::readahead;
use crate::fault::readers;
use crate::memory::waited;
use crate::process::fatal;
use crate::process::threads::{self, Thread};
use crate::reclaim::reclaimd::{self, ReclaimThread};
use crate::relocate::write_back;
use crate::swap::attached::Frees;
use crate::swap::block::Buffer;

/// Monitor threads that start at once.
const FIRST_MONITORS: usize = 1;

/// All of them: on so many CPUs there is one; at most as many; and as many where a read blocks its thread.
const CPUS_PER_MONITOR: usize = 4;
const MOST_MONITORS: usize = 4;
const MONITORS_THAT_SLEEP: usize = 8;

/// Everything works with fewer threads too.
fn say_fewer(error: &Error) {
    fatal::say(&format!("paging goes on with fewer threads: {error}"));
}

fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while begun.elapsed() < START_PATIENCE && !is_so() {
        futex::sleep(Duration::from_micros(50));
    }
}

/// The longest wait for threads to start.
const START_PATIENCE: Duration = Duration::from_secs(2);

/// The threads, and what starting more of them takes.
pub(super) struct Crew {
    engine: Arc<Engine>,
    mode: FaultMode,
    frees: Frees,
    /// Stops the monitor threads, and the one that serves readers.
    stop: Arc<EventFd>,
    threads: Mutex<Vec<Thread>>,
    /// Why a forked child lacks swap, until memory runs short.
    lacking: Mutex<Vec<Error>>,
    /// The others were started.
    works: AtomicBool,
    /// Monitor threads that were started, or are about to be.
    nr_begun: AtomicUsize,
    /// The companions of the reclaim threads were started.
    compresses: AtomicBool,
}

impl Crew {
    pub fn new(engine: Arc<Engine>, mode: FaultMode, frees: Frees) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Crew {
            engine,
            mode,
            frees,
            stop: Arc::new(EventFd::new().map_err(Error::system("making an event descriptor"))?),
            threads: Mutex::default(),
            lacking: Mutex::default(),
            works: AtomicBool::new(false),
            nr_begun: AtomicUsize::new(FIRST_MONITORS),
            compresses: AtomicBool::new(false),
        }))
    }

    pub fn threads(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.threads.lock().expect("nothing panics under this lock")
    }

    /// Starts what is needed at once.
    pub fn begin(self: &Arc<Self>) -> Result<(), Error> {
        self.begin_monitors(&mut self.threads())?;
        self.begin_others_late();
        Ok(())
    }

    /// As [`Crew::begin`], in a forked child, which has none of its parent's threads. `threads`: [`Crew::threads`].
    /// `open_swap` is called once faults are delivered, and returns why some swap could not be opened.
    pub fn begin_in_child(
        self: &Arc<Self>,
        mut threads: MutexGuard<'_, Vec<Thread>>,
        open_swap: impl FnOnce() -> Vec<Error>,
    ) -> Result<(), Error> {
        self.stop.renew().map_err(Error::system("making an event descriptor"))?;
        threads::begin_child();
        own_calls::begin_child();
        uring::begin_child();
        waited::begin_child();
        self.works.store(false, Ordering::Relaxed);
        self.nr_begun.store(FIRST_MONITORS, Ordering::Relaxed);
        self.compresses.store(false, Ordering::Relaxed);
        std::mem::take(&mut *threads).into_iter().for_each(std::mem::forget);
        self.begin_monitors(&mut threads)?;
        *self.lacking.lock().expect("nothing panics under this lock") = open_swap();
        self.begin_others_late();
        Ok(())
    }

    fn begin_others_late(self: &Arc<Self>) {
        let crew = Arc::downgrade(self);
        let begin = move || crew.upgrade().is_none_or(|crew| crew.begin_late());
        self.engine.ram().demand().begin_when_short(Box::new(begin));
    }

    /// In the gate: a child that another thread forks finds the lock free.
    fn take_lacking(&self) -> Vec<Error> {
        let _pass = self.engine.gate().enter(signals::thread_id());
        std::mem::take(&mut *self.lacking.lock().expect("nothing panics under this lock"))
    }

    fn begin_monitors(&self, threads: &mut Vec<Thread>) -> Result<(), Error> {
        for monitor in self.monitors(0..FIRST_MONITORS) {
            threads.push(monitor?);
        }
        Ok(())
    }

    fn begin_others(self: &Arc<Self>, threads: &mut Vec<Thread>) -> Result<(), Error> {
        let (crew, seen) = (Arc::clone(self), self.engine.ram().reclaim_wanted().now());
        let body = move |engine: &Engine, starting| {
            drop(starting); // it makes nothing until it is wanted
            engine.ram().reclaim_wanted().wait(seen);
            if !engine.stopping() {
                for error in crew.take_lacking() {
                    fatal::say(&format!("process {}, a forked child, lacks swap: {error}", std::process::id()));
                }
                crew.work();
            }
            drop(crew);
            reclaimd::run(engine, ReclaimThread::FIRST, || engine.ram().demand().note_reclaim());
        };
        let reclaim = threads::spawn("reclaim", &self.engine, body);
        threads.push(reclaim.inspect_err(|_| self.engine.ram().demand().note_no_reclaim())?);
        let frees = self.frees;
        threads.push(threads::spawn("background", &self.engine, move |engine, starting| {
            background::run(engine, frees, starting)
        })?);
        Ok(())
    }

    /// The same on any thread, perhaps one that faults. `false`: not now, because the process forks.
    fn begin_late(self: &Arc<Self>) -> bool {
        let _uncancelled = c_thread::uncancelled(); // the C library's functions for starting them may end this one
        let Ok(mut threads) = self.threads.try_lock() else { return false };
        if let Err(error) = self.begin_others(&mut threads) {
            say_fewer(&error);
        }
        true
    }

    /// Starts the others, when memory runs short or before. The one that waits becomes the first reclaim thread.
    pub fn work(&self) {
        if self.works.swap(true, Ordering::SeqCst) {
            return;
        }
        let engine = &self.engine;
        let mut started = vec![threads::spawn("readahead", engine, readahead::run)];
        for place in ReclaimThread::of_zones(engine.ram().zones().all().len()).skip(1) {
            started.push(threads::spawn("reclaim", engine, move |engine, starting| {
                reclaimd::run(engine, place, || drop(starting));
            }));
        }
        started.extend(self.more_monitors(self.nr_monitors()));
        if self.mode != FaultMode::Monitor {
            let stop = Arc::clone(&self.stop);
            started
                .push(threads::spawn("readers", engine, move |engine, starting| readers::run(engine, &stop, starting)));
        }
        self.add(started);
        self.compress();
        // Inside the gate: a child that is forked meanwhile would wait for the end of it for ever.
        let _inside = engine.enter();
        clock::calibrate();
    }

    /// Has all threads run, before a thread touches managed memory while it holds an allocator's lock.
    pub fn begin_all(&self) {
        self.work();
        self.engine.ram().demand().begin();
        wait_until(threads::have_begun);
    }

    /// Has all threads run, and what they make at their start made, before the program's filter may refuse it.
    pub fn prepare_for_limits(&self) {
        self.work();
        self.engine.ram().reclaim_wanted().signal(); // the one that waits becomes a reclaim thread
        wait_until(|| threads::have_begun() && self.engine.ram().demand().has_settled());
    }

    /// Starts the threads that compress, if a device does, memory has run short, and they are not running yet.
    pub fn compress(&self) {
        let engine = &self.engine;
        if !engine.swap().devices().compresses()
            || !self.works.load(Ordering::SeqCst)
            || self.compresses.swap(true, Ordering::SeqCst)
        {
            return;
        }
        let nr_cpus = folioswap_sys::cpu::nr_cpus();
        let companions = ReclaimThread::of_companions(engine.ram().zones().all().len(), nr_cpus);
        let buffer = Buffer::try_new().map_err(Error::system("taking memory for a block"));
        let tiering = buffer.and_then(|buffer| {
            threads::spawn("tiering", engine, |engine, starting| {
                drop(starting);
                write_back::run(engine, buffer);
            })
        });
        let mut started = vec![tiering];
        for place in companions {
            started.push(threads::spawn("reclaim", engine, move |engine, starting| {
                reclaimd::run(engine, place, || drop(starting));
            }));
        }
        self.add(started);
    }

    /// Everything works with fewer threads too, so the program goes on.
    fn add(&self, started: Vec<Result<Thread, Error>>) {
        let mut threads = self.threads();
        for thread in started {
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => say_fewer(&error),
            }
        }
    }

    /// Monitor threads under pressure.
    fn nr_monitors(&self) -> usize {
        let nr_cpus = folioswap_sys::cpu::nr_cpus();
        let has_ring = || own_table::run(|| uring::probe().is_ok()).unwrap_or(false);
        match self.mode {
            FaultMode::Monitor if has_ring() => nr_cpus.div_ceil(CPUS_PER_MONITOR).min(MOST_MONITORS),
            FaultMode::Monitor => MONITORS_THAT_SLEEP,
            _ => 0,
        }
    }

    /// Starts monitor threads until there are so many.
    fn more_monitors(&self, most: usize) -> Vec<Result<Thread, Error>> {
        let first = self.nr_begun.fetch_max(most, Ordering::SeqCst);
        self.monitors(first..most)
    }

    /// Has as many monitor threads run as where a read blocks its thread, if more than the first do. Not once a filter
    /// may refuse that.
    pub fn go_on_without_rings(&self) {
        if self.works.load(Ordering::SeqCst) && !own_calls::is_used() {
            self.add(self.more_monitors(MONITORS_THAT_SLEEP));
        }
    }

    /// Threads that resolve faults of others, if the mode has these.
    fn monitors(&self, numbers: Range<usize>) -> Vec<Result<Thread, Error>> {
        let monitor = |number| {
            let stop = Arc::clone(&self.stop);
            threads::spawn("monitor", &self.engine, move |engine, starting| {
                monitor::run(engine, &stop, number == 0, starting);
            })
        };
        if self.mode == FaultMode::Monitor { numbers.map(monitor).collect() } else { Vec::new() }
    }

    /// Stops all threads, and waits until they have ended.
    pub fn end(&self) {
        self.stop.signal();
        self.engine.ram().demand().background().signal();
        loop {
            // The one that waits may just have started others.
            let Some(thread) = self.threads().pop() else { return };
            thread.join();
        }
    }
}
