//! Runs hundreds of small programs on devices that fail by seeded plans. No wrong byte is ever seen, every loss is
//! reported with address and device, all content that was not destroyed is back when the device works again, and
//! nothing hangs.
//!
//! `FOLIOSWAP_PLANS` sets the number of plans; `FOLIOSWAP_PLAN` is the seed of a single one, as printed by a failure.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use folioswap_core::{Order, PAGE_SIZE, PIECE, Priority, State};

use crate::arena::Arena;
use crate::arena::advice::Advice;
use crate::arena::region::Region;
use crate::config::error::Error;
use crate::config::folio_size::FolioSize;
use crate::device::{Codec, Device, Opened, RamDevice, ZramDevice};
use crate::fault::flow::Fault;
use crate::process::fatal;
use crate::process::turns::{Waits, asleep};
use crate::tests::faulty::{self, Faulty, Plan, one_in};

/// Plans that run by default.
const NR_PLANS: u64 = 400;

/// Steps of a program.
const NR_STEPS: usize = 24;

/// Touches by the other thread of a program, if it has one.
const NR_TOUCHES: usize = 2000;

/// Longer than any plan takes.
const LIMIT: Duration = Duration::from_secs(60);

const MIB: usize = 1 << 20;

/// A program's memory, and the expected content of each page.
struct Program {
    seed: u64,
    numbers: Rng,
    plans: Vec<Arc<Plan>>,
    arena: Arena,
    region: Region,
    /// By page: the stamp from which its words are computed; 0 for zeros.
    stamps: Vec<u64>,
    /// Pages with a neighbour that was dropped while their piece of 64 KiB may have been unreadable. The piece had one
    /// hash for all of its pages, so the remaining pages can no longer be verified, and are lost.
    frail: Vec<bool>,
    nr_lost: usize,
    /// Lost pages that are frail.
    nr_frail_lost: usize,
}

fn ram(mib: usize) -> Box<dyn Device> {
    Box::new(RamDevice::new((mib * MIB) as u64, None).unwrap())
}

fn zram() -> Box<dyn Device> {
    Box::new(ZramDevice::new(8 << 20, Codec::default(), None).unwrap())
}

fn faulty(numbers: &mut Rng, plans: &mut Vec<Arc<Plan>>) -> Opened {
    let plan = Plan::new(numbers.u64(..));
    let name = format!("bad{}", plans.len());
    let mib = 4 + 2 * numbers.usize(..6);
    let sound = if one_in(numbers, 6) { zram() } else { ram(mib) };
    let device: Box<dyn Device> = Box::new(Faulty::new(sound, Arc::clone(&plan), &name));
    plans.push(plan);
    Opened { device, priority: Priority::given(numbers.usize(..2) as u32), node: None }
}

/// A word of a page.
fn word(stamp: u64, index: usize) -> u64 {
    if stamp == 0 { 0 } else { stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64 }
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut numbers = faulty::numbers(seed);
        let mut plans = Vec::new();
        // One program in eight has more memory than RAM, and then also a device that works.
        let (is_large, has_floor) = (one_in(&mut numbers, 8), !one_in(&mut numbers, 4));
        let mut devices: Vec<Opened> = (0..1 + numbers.usize(..2)).map(|_| faulty(&mut numbers, &mut plans)).collect();
        if has_floor || is_large {
            devices.push(ram(32).into());
        }
        // One in four has compressed RAM, before or among the others. It refuses what does not fit, and passes on cold
        // folios.
        if one_in(&mut numbers, 4) {
            devices.push(Opened { device: zram(), priority: Priority::given(numbers.usize(..3) as u32), node: None });
        }
        let folio = match numbers.usize(..4) {
            0 => FolioSize::Fixed(Order::PAGE),
            1 => FolioSize::Fixed(PIECE),
            2 => FolioSize::Fixed(Order::HUGE),
            _ => FolioSize::Auto,
        };
        let builder = Arena::builder().memory(16 << 20).folio(folio);
        let arena = builder.build_on(devices).unwrap();
        let len = if is_large { 22 * MIB } else { (1 + numbers.usize(..3)) * 2 * MIB };
        let region = arena.map(len).unwrap();
        Program {
            seed,
            numbers,
            plans,
            arena,
            region,
            stamps: vec![0; len / PAGE_SIZE],
            frail: vec![false; len / PAGE_SIZE],
            nr_lost: 0,
            nr_frail_lost: 0,
        }
    }

    fn run(mut self) -> usize {
        let is_crowded = one_in(&mut self.numbers, 4);
        let (arena, addr, len, seed) =
            (self.arena.clone(), self.region.as_ptr() as usize, self.region.len(), self.seed);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if is_crowded {
                scope.spawn(|| touch_at_random(&arena, addr, len, seed, &is_done));
            }
            let _done = Done(&is_done);
            for _ in 0..NR_STEPS {
                self.step();
            }
            self.check_all();
        });
        self.plans.iter().for_each(|plan| plan.end());
        (self.nr_lost, self.nr_frail_lost) = (0, 0);
        self.check_all();
        if !self.plans.iter().any(|plan| plan.destroys()) {
            let plans = &self.plans;
            assert_eq!(
                self.nr_lost, self.nr_frail_lost,
                "what was not destroyed is there when the devices work: {plans:?}"
            );
            if self.nr_lost == 0 {
                self.remove_all();
            }
            (self.nr_lost, self.nr_frail_lost) = (0, 0);
            self.check_all();
            assert_eq!(self.nr_lost, self.nr_frail_lost);
        }
        self.nr_lost
    }

    fn step(&mut self) {
        let pages = self.pages();
        match self.numbers.usize(..16) {
            0..6 => pages.for_each(|page| self.write(page)),
            6..9 => pages.for_each(|page| self.check(page)),
            9 => {
                self.region.advise(pages.start * PAGE_SIZE..pages.end * PAGE_SIZE, Advice::DontNeed);
                let piece = PIECE.nr_pages();
                self.frail[pages.start / piece * piece..pages.end.next_multiple_of(piece)].fill(true);
                self.stamps[pages].fill(0);
            }
            10 => {
                let advice = if one_in(&mut self.numbers, 2) { Advice::Cold } else { Advice::WillNeed };
                self.region.advise(pages.start * PAGE_SIZE..pages.end * PAGE_SIZE, advice);
            }
            11..14 => {
                self.arena.evict_all();
                while self.arena.engine().ram().evict_standby(self.arena.engine().table(), Order::PAGE) {}
            }
            14 => self.arena.engine().swap().want_whole_clusters(Order::HUGE),
            _ => self.change_devices(),
        }
    }

    /// A range of pages: a few, or many.
    fn pages(&mut self) -> Range<usize> {
        let most = if one_in(&mut self.numbers, 3) { 400 } else { 40 };
        let first = self.numbers.usize(..self.stamps.len());
        first..(first + 1 + self.numbers.usize(..most)).min(self.stamps.len())
    }

    fn change_devices(&mut self) {
        let devices = self.arena.devices();
        if devices.len() > 1 {
            let name = &devices[self.numbers.usize(..devices.len())].name;
            if name.starts_with("bad") {
                match self.arena.remove_device(name) {
                    Ok(()) | Err(Error::NoSuchDevice(_) | Error::SwapInUse { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        if self.arena.devices().len() < 5 {
            let added = self.arena.engine().swap().devices().add(faulty(&mut self.numbers, &mut self.plans));
            assert!(added.is_ok());
        }
    }

    fn remove_all(&self) {
        for device in self.arena.devices() {
            match self.arena.remove_device(&device.name) {
                Ok(()) | Err(Error::NoSuchDevice(_)) => {}
                // The rest fits on a device that works, or in RAM.
                Err(error) => assert!(device.name.starts_with("ram"), "{error}"),
            }
        }
    }

    /// Calls `look` with a page that is present and stays so. Returns `None` if the page is lost, which must be
    /// reported.
    fn look_at<T>(&mut self, page: usize, look: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let engine = self.arena.engine();
        let addr = self.region.as_ptr() as usize + page * PAGE_SIZE;
        let folio = engine.table().page_at(addr);
        loop {
            let fault = Fault::new(engine, engine.table().page_at(addr), 1, Waits::Asleep);
            if let Err(error) = asleep(fault.run(engine.gate().enter(1))) {
                let text = error.to_string();
                assert!(text.contains(&format!("{addr:#x}")) && text.contains("bad"), "{text}");
                self.nr_lost += 1;
                self.nr_frail_lost += usize::from(self.frail[page]);
                return None;
            }
            let locked = engine.lock(folio.block());
            if matches!(locked.state(locked.index_of(folio.page_in_block())), State::Resident(_)) {
                self.frail[page] = false;
                // Nobody unmaps it while its block is locked, so this thread does not fault.
                return Some(look(&mut self.region[page * PAGE_SIZE..(page + 1) * PAGE_SIZE]));
            }
        }
    }

    fn write(&mut self, page: usize) {
        // A new stamp each time; now and then a page of zeros.
        let stamp = if one_in(&mut self.numbers, 16) { 0 } else { self.numbers.u64(..) };
        let expected = self.stamps[page];
        let written = self.look_at(page, |bytes| {
            assert!(holds(bytes, expected));
            for (index, bytes) in bytes.chunks_exact_mut(8).enumerate() {
                bytes.copy_from_slice(&word(stamp, index).to_le_bytes());
            }
        });
        if written.is_some() {
            self.stamps[page] = stamp;
        }
    }

    fn check(&mut self, page: usize) {
        let (seed, expected) = (self.seed, self.stamps[page]);
        self.look_at(page, |bytes| assert!(holds(bytes, expected), "seed {seed}: page {page} holds other bytes"));
    }

    fn check_all(&mut self) {
        (0..self.stamps.len()).for_each(|page| self.check(page));
    }
}

/// Ends the other thread of a program when this one returns or panics.
struct Done<'d>(&'d AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Body of the other thread of a program: its faults race with those of the first.
fn touch_at_random(arena: &Arena, addr: usize, len: usize, seed: u64, is_done: &AtomicBool) {
    let (engine, mut numbers) = (arena.engine(), faulty::numbers(!seed));
    for _ in 0..NR_TOUCHES {
        if is_done.load(Ordering::SeqCst) {
            return;
        }
        let page = engine.table().page_at(addr + numbers.usize(..len / PAGE_SIZE) * PAGE_SIZE);
        let fault = Fault::new(engine, page, 2, Waits::Asleep);
        let _ = asleep(fault.run(engine.gate().enter(2))); // the first thread checks for losses
        std::thread::yield_now();
    }
}

fn holds(bytes: &[u8], stamp: u64) -> bool {
    bytes.chunks_exact(8).enumerate().all(|(index, bytes)| bytes == word(stamp, index).to_le_bytes())
}

/// A running plan. If it fails, its seed is printed and no further plan begins.
struct Named<'n> {
    seed: u64,
    next: &'n AtomicU64,
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("FOLIOSWAP_PLAN={} runs the plan that failed", self.seed);
            self.next.store(u64::MAX / 2, Ordering::SeqCst);
        }
    }
}

/// Ends the process when a plan takes too long.
fn watch(seeds: &[AtomicU64], is_done: &AtomicBool) {
    let mut seen: Vec<(u64, Instant)> = seeds.iter().map(|_| (0, Instant::now())).collect();
    while !is_done.load(Ordering::SeqCst) {
        for (seed, seen) in seeds.iter().zip(&mut seen) {
            let seed = seed.load(Ordering::SeqCst);
            if seen.0 != seed {
                *seen = (seed, Instant::now());
            } else if seen.1.elapsed() > LIMIT {
                fatal::die(&format!("the plan of seed {seed} hangs"));
            }
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

#[test]
fn seeded_plans() {
    let first = from_environment("FOLIOSWAP_PLAN");
    let nr_plans = first.map_or_else(|| from_environment("FOLIOSWAP_PLANS").unwrap_or(NR_PLANS), |_| 1);
    let first = first.unwrap_or(0);
    let begun = Instant::now();
    let (next, nr_lost, is_done) = (AtomicU64::new(first), AtomicU64::new(0), AtomicBool::new(false));
    let seeds = [AtomicU64::new(0), AtomicU64::new(0)];
    let hush = fatal::hush();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&seeds, &is_done));
        let workers: Vec<_> = seeds
            .iter()
            .map(|under_way| {
                let (next, nr_lost) = (&next, &nr_lost);
                scope.spawn(move || {
                    loop {
                        let seed = next.fetch_add(1, Ordering::SeqCst);
                        if seed >= first + nr_plans {
                            return;
                        }
                        under_way.store(seed, Ordering::SeqCst);
                        fatal::note_seed(seed);
                        let _named = Named { seed, next };
                        let lost = Program::new(seed).run();
                        nr_lost.fetch_add(lost as u64, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_done.store(true, Ordering::SeqCst);
        watcher.thread().unpark();
        assert!(results.iter().all(Result::is_ok), "a plan failed; its seed is above");
    });
    drop(hush);
    println!("{nr_plans} plans in {:?}, {} pages lost and told of", begun.elapsed(), nr_lost.into_inner());
}
