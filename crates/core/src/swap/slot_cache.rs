//! Freed slots on their way back to their clusters.
//!
//! A free that goes to its cluster at once pays for the cluster's lock, its counts, and now and then the lists and all
//! that follows from an emptied cluster. Here it pays for its CPU's own lock and a store: freed runs collect in the CPU's
//! *batch*. When one is full, a worker is to be told; it takes the batch and gives it to the clusters, sorted, so that
//! neighbours cost one lock. The worker is an optimisation, never a condition for progress: a free that still finds
//! the batch full takes it and gives it back itself, whole.
//!
//! A run in a batch is taken for [`Clusters`] and in use by nobody. Whoever needs counts that are exact, or the slots,
//! calls [`SlotCache::flush`] first: then all that was freed before the call is free, what others had taken out of a
//! batch meanwhile included.
//!
//! **Invariants.** A run is in one batch, in one hand, or with its cluster, and goes that way only. A batch is taken out
//! whole, in one step under its lock, by who has a hand free for it; whether it is full is seen under that lock too.
//!
//! **Locking.** In this order, each optional: the *hands* of a CPU, its batch, then what [`Clusters`] locks. A hand is the
//! lock and the buffer of somebody who gives a batch to the clusters: one for the worker and for flushes, one for frees.
//! The batch's lock is held for a push, or for swapping it with an empty buffer, and not while clusters are locked. A
//! free never waits for a hand: where the one for frees is in use (another thread of its CPU was interrupted there, or
//! a flush is about to take the batch), its run goes straight to the cluster. So nothing that a stalled worker holds is
//! waited for by a free; a flush does wait for it. Whoever has a hand waits for nothing but clusters.
//!
//! **Memory order.** `nr_slots` of batch and hands are written under their locks and read without. A batch is moved into a
//! hand before it is seen to be empty (both stores release), and readers look at the batch first: so slots on their
//! way are never overlooked. A hand's zero is stored after its runs are with the clusters: who reads it sees their counts.

use super::clusters::Clusters;
use crate::id::{CpuId, SlotId};
use crate::order::Order;
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, lock, try_lock};

/// Runs in a full batch.
#[cfg(not(loom))]
const BATCH_RUNS: usize = 64;
/// Runs in a full batch. A model checker tries every interleaving of each, so it gets fewer.
#[cfg(loom)]
const BATCH_RUNS: usize = 2;

/// Slots with which a batch is full, however few runs they are: 16 MiB. What lies in batches is missing to others.
const BATCH_SLOTS: usize = 8 * Order::HUGE.nr_pages();

type Run = (SlotId, Order);

/// What became of a freed run.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[must_use]
pub enum Freed {
    /// It waits in the batch, with others.
    Collected,
    /// The same, and the batch is full by it: the worker is to be told.
    Filled,
    /// It waits in the batch; the full one that was there before went to the clusters now.
    Emptied,
    /// It went to its cluster.
    Straight,
}

/// Where runs are put, on cache lines of its own: two CPUs write to neighbours.
#[repr(align(128))]
struct Buffer([Run; BATCH_RUNS]);

/// Runs that wait.
struct Runs {
    runs: Box<Buffer>,
    len: usize,
    nr_slots: usize,
}

impl Runs {
    fn new() -> Runs {
        Runs { runs: Box::new(Buffer([(SlotId::new(0), Order::PAGE); BATCH_RUNS])), len: 0, nr_slots: 0 }
    }

    fn is_full(&self) -> bool {
        self.len == BATCH_RUNS || self.nr_slots >= BATCH_SLOTS
    }

    fn push(&mut self, run: Run) {
        assert!(!self.is_full(), "a full batch is taken out first");
        self.runs.0[self.len] = run;
        self.len += 1;
        self.nr_slots += run.1.nr_pages();
    }

    /// Gives all of it to the clusters, lowest slot first.
    fn give(&mut self, clusters: &Clusters) {
        let runs = &mut self.runs.0[..self.len];
        runs.sort_unstable_by_key(|run| run.0);
        clusters.free_all(runs);
        (self.len, self.nr_slots) = (0, 0);
    }
}

/// What a CPU collects.
struct Batch {
    runs: Runs,
    /// Nothing is collected any more.
    is_off: bool,
}

/// Who gives a batch to the clusters, and from where.
struct Hand {
    runs: Mutex<Runs>,
    nr_slots: AtomicU32,
}

/// The batch of a CPU, on cache lines of its own.
#[repr(align(128))]
struct Record {
    batch: Mutex<Batch>,
    nr_slots: AtomicU32,
    /// Of the worker and of flushes.
    off_path: Hand,
    /// Of frees that find the batch full.
    of_frees: Hand,
}

/// A batch that was taken out: in the caller's hand until it is given to the clusters.
struct Taken<'a> {
    runs: MutexGuard<'a, Runs>,
    hand: &'a Hand,
}

impl Taken<'_> {
    fn give(mut self, clusters: &Clusters) {
        self.runs.give(clusters);
        self.hand.nr_slots.store(0, Ordering::Release);
    }
}

impl Hand {
    fn new() -> Hand {
        Hand { runs: Mutex::new(Runs::new()), nr_slots: AtomicU32::new(0) }
    }
}

impl Record {
    fn new() -> Record {
        let batch = Batch { runs: Runs::new(), is_off: false };
        Record { batch: Mutex::new(batch), nr_slots: AtomicU32::new(0), off_path: Hand::new(), of_frees: Hand::new() }
    }

    /// Slots that are on their way.
    fn nr_slots(&self) -> usize {
        let batch = self.nr_slots.load(Ordering::Acquire);
        let hands = [&self.off_path, &self.of_frees].map(|hand| hand.nr_slots.load(Ordering::Acquire));
        (batch + hands[0] + hands[1]) as usize
    }

    /// Puts a run into the batch, unless that is full or nothing is collected.
    fn collect(&self, batch: &mut Batch, run: Run) -> Option<Freed> {
        if batch.is_off || batch.runs.is_full() {
            return None;
        }
        batch.runs.push(run);
        self.nr_slots.store(batch.runs.nr_slots as u32, Ordering::Release);
        Some(if batch.runs.is_full() { Freed::Filled } else { Freed::Collected })
    }

    /// The same where a full batch was seen: if it still is, it goes to the clusters first. Not if nothing is collected, or
    /// somebody has the hand for it.
    fn collect_anew(&self, clusters: &Clusters, run: Run) -> Option<Freed> {
        let runs = try_lock(&self.of_frees.runs)?;
        let mut batch = lock(&self.batch);
        if batch.is_off || !batch.runs.is_full() {
            return self.collect(&mut batch, run);
        }
        let taken = self.take_out(&mut batch, &self.of_frees, runs);
        let collected = self.collect(&mut batch, run);
        drop(batch);
        taken.give(clusters);
        collected.and(Some(Freed::Emptied))
    }

    /// Takes the batch into a hand, whose buffer takes its place.
    fn take_out<'a>(&self, batch: &mut Batch, hand: &'a Hand, mut runs: MutexGuard<'a, Runs>) -> Taken<'a> {
        assert_eq!(runs.len, 0, "a hand is empty when it is free");
        std::mem::swap(&mut batch.runs, &mut *runs);
        hand.nr_slots.store(runs.nr_slots as u32, Ordering::Release);
        self.nr_slots.store(0, Ordering::Release);
        Taken { runs, hand }
    }

    /// Gives back what is in the batch now, and waits for those who took it out before. Says whether there was anything.
    fn flush(&self, clusters: &Clusters) -> bool {
        if self.nr_slots() == 0 {
            return false;
        }
        let runs = lock(&self.off_path.runs);
        let taken = {
            // Held until the batch is taken: no free takes it away unseen.
            let _no_free = lock(&self.of_frees.runs);
            self.take_out(&mut lock(&self.batch), &self.off_path, runs)
        };
        taken.give(clusters);
        true
    }
}

/// The freed slots of one device on their way back to its [`Clusters`], which every call is given. Every call is safe
/// from any thread.
pub struct SlotCache {
    cpus: Box<[Record]>,
}

impl SlotCache {
    /// For `nr_cpus` CPUs; others share their batches. Allocates about 2 KiB for each; nothing after that does.
    pub fn new(nr_cpus: usize) -> SlotCache {
        assert!(nr_cpus > 0, "somebody frees");
        SlotCache { cpus: (0..nr_cpus).map(|_| Record::new()).collect() }
    }

    /// Gives back a run, as [`Clusters::free`] does, soon. As a rule one uncontended lock; the clusters' for 64 runs when
    /// no worker came in time.
    pub fn free(&self, clusters: &Clusters, cpu: CpuId, slot: SlotId, order: Order) -> Freed {
        let index = cpu.index();
        // A division costs as much as all the rest but the lock.
        let index = if index < self.cpus.len() { index } else { index % self.cpus.len() };
        let record = &self.cpus[index];
        let collected = record.collect(&mut lock(&record.batch), (slot, order));
        // A statement of its own: the batch's lock is not held in what follows.
        collected.or_else(|| record.collect_anew(clusters, (slot, order))).unwrap_or_else(|| {
            clusters.free(slot, order);
            Freed::Straight
        })
    }

    /// The worker's part: gives full batches back. Says whether there were any.
    pub fn give_full(&self, clusters: &Clusters) -> bool {
        let mut any = false;
        for record in self.cpus.iter().filter(|record| record.nr_slots() > 0) {
            let runs = lock(&record.off_path.runs);
            let mut batch = lock(&record.batch);
            if batch.runs.is_full() {
                let taken = record.take_out(&mut batch, &record.off_path, runs);
                drop(batch);
                taken.give(clusters);
                any = true;
            }
        }
        any
    }

    /// Gives all batches back. When it returns, all that was freed before the call is with the clusters. Says whether
    /// anything was on its way. Waits for those who are giving a batch back at this moment.
    pub fn flush(&self, clusters: &Clusters) -> bool {
        self.cpus.iter().fold(false, |any, record| record.flush(clusters) | any)
    }

    /// The same for who is about to sleep until somebody frees: a free that this does not give back sees, once it has
    /// returned, all that the caller wrote before. Locks each CPU's batch for that.
    pub fn sweep(&self, clusters: &Clusters) -> bool {
        self.cpus.iter().fold(false, |any, record| {
            drop(lock(&record.batch));
            record.flush(clusters) | any
        })
    }

    /// Slots that were freed and are not with the clusters yet. Reads three words for each CPU; a sum over a moment.
    pub fn nr_slots(&self) -> usize {
        self.cpus.iter().map(Record::nr_slots).sum()
    }

    /// From when this returns until [`SlotCache::switch_on`], nothing is on its way: what was is flushed, and every free
    /// goes straight to its cluster, racing calls included.
    pub fn switch_off(&self, clusters: &Clusters) {
        self.cpus.iter().for_each(|record| lock(&record.batch).is_off = true);
        self.flush(clusters);
    }

    /// Frees are collected again.
    pub fn switch_on(&self) {
        self.cpus.iter().for_each(|record| lock(&record.batch).is_off = false);
    }

    /// Bytes of memory that this takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.cpus) + self.cpus.len() * 3 * size_of::<Buffer>()
    }
}

impl std::fmt::Debug for SlotCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotCache").field("nr_slots", &self.nr_slots()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    const CPU: CpuId = CpuId::new(0);

    /// A device with so many single slots in use.
    fn in_use(nr_slots: usize) -> (Clusters, Vec<SlotId>) {
        let clusters = Clusters::new(4 * 512, 1, false);
        clusters.grow(4 * 512);
        let slots = (0..nr_slots).map(|_| clusters.allocate(CPU, Order::PAGE).unwrap()).collect();
        (clusters, slots)
    }

    /// Takes the batch as the worker does, which then stalls for as long as this is held.
    fn stall(record: &Record) -> Taken<'_> {
        record.take_out(&mut lock(&record.batch), &record.off_path, lock(&record.off_path.runs))
    }

    /// What came of freeing these slots on a thread that nothing may hold up.
    fn free_unhindered(cache: &SlotCache, clusters: &Clusters, slots: &[SlotId]) -> Vec<Freed> {
        std::thread::scope(|scope| {
            let (done, waits) = mpsc::channel();
            scope.spawn(move || {
                let freed = slots.iter().map(|&slot| cache.free(clusters, CPU, slot, Order::PAGE));
                done.send(freed.collect()).unwrap();
            });
            match waits.recv_timeout(Duration::from_secs(20)) {
                Ok(freed) => freed,
                Err(_) => {
                    eprintln!("a free waits for who is stalled");
                    std::process::abort(); // that thread never ends, and this one would wait for it
                }
            }
        })
    }

    #[test]
    fn a_stalled_worker_holds_no_free_up() {
        let (clusters, slots) = in_use(5 * BATCH_RUNS);
        let cache = SlotCache::new(1);
        let (first, rest) = slots.split_at(BATCH_RUNS);
        assert_eq!(free_unhindered(&cache, &clusters, first)[BATCH_RUNS - 1], Freed::Filled);
        let stalled = stall(&cache.cpus[0]);
        let freed = free_unhindered(&cache, &clusters, rest);
        let count = |what| freed.iter().filter(|&&freed| freed == what).count();
        assert_eq!((count(Freed::Filled), count(Freed::Emptied), count(Freed::Straight)), (4, 3, 0));
        assert_eq!((clusters.nr_used(), cache.nr_slots()), (2 * BATCH_RUNS, 2 * BATCH_RUNS));
        stalled.give(&clusters);
        assert_eq!(clusters.nr_used(), BATCH_RUNS);
        assert!(cache.give_full(&clusters) && !cache.give_full(&clusters));
        assert_eq!((clusters.nr_used(), cache.nr_slots()), (0, 0));
        clusters.verify();
    }

    #[test]
    fn a_free_that_stalls_holds_no_other_up() {
        let (clusters, slots) = in_use(BATCH_RUNS + 2);
        let cache = SlotCache::new(1);
        let record = &cache.cpus[0];
        let stalled = lock(&record.of_frees.runs);
        let freed = free_unhindered(&cache, &clusters, &slots);
        assert_eq!(freed[BATCH_RUNS - 1..], [Freed::Filled, Freed::Straight, Freed::Straight]);
        assert_eq!(clusters.nr_used(), BATCH_RUNS);
        drop(stalled);
        assert!(cache.flush(&clusters) && !cache.flush(&clusters));
        assert_eq!(clusters.nr_used(), 0);
    }

    #[test]
    fn a_flush_waits_for_what_is_in_a_hand() {
        let (clusters, slots) = in_use(5);
        let cache = SlotCache::new(1);
        let _ = free_unhindered(&cache, &clusters, &slots);
        let record = &cache.cpus[0];
        for hand in [&record.off_path, &record.of_frees] {
            let taken = record.take_out(&mut lock(&record.batch), hand, lock(&hand.runs));
            std::thread::scope(|scope| {
                let flushing = scope.spawn(|| {
                    cache.flush(&clusters);
                    clusters.nr_used()
                });
                taken.give(&clusters);
                assert_eq!(flushing.join().unwrap(), 0);
            });
        }
        clusters.verify();
    }

    #[test]
    fn few_large_runs_fill_a_batch() {
        let clusters = Clusters::new(16 * 512, 1, false);
        clusters.grow(16 * 512);
        let huge: Vec<_> = std::iter::from_fn(|| clusters.allocate(CPU, Order::HUGE)).collect();
        let cache = SlotCache::new(1);
        let freed: Vec<_> = huge.iter().map(|&slot| cache.free(&clusters, CPU, slot, Order::HUGE)).collect();
        assert_eq!(freed[6..9], [Freed::Collected, Freed::Filled, Freed::Emptied]);
        assert_eq!((freed[15], clusters.nr_used()), (Freed::Filled, 8 * 512));
        assert!(cache.flush(&clusters));
        assert_eq!(clusters.nr_used(), 0);
        clusters.verify();
    }
}
