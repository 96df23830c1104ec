//! Batches freed slots on their way back to [`Clusters`]. Freed runs collect in their CPU's *batch*, which costs that
//! CPU's lock and a store. A worker gives full batches to the clusters; if it is late, the next free does so itself. An
//! [`Outbox`] is a locked buffer from which a batch is given: one serves the worker and flushes, one serves frees.
//!
//! **Invariants.** [`Clusters`] counts a batched run as taken. A run goes from batch to outbox to cluster, never back.
//! A batch is checked for being full and taken out whole under its lock.
//!
//! **Locking.** In this order, each optional: outboxes of a CPU (`off_path`, then `of_frees`), its batch, then the
//! clusters. The batch's lock is not held while clusters are locked. A free never waits for an outbox, so never for a
//! stalled worker; a flush does.
//!
//! **Memory order.** `nr_slots` of batch and outbox are written under their locks and read without, the batch first. A
//! batch is counted in the outbox before its own count drops (both stores release), so a reader never misses it. A
//! reader that sees an outbox's zero also sees the freed runs in the clusters' counts.

use super::clusters::Clusters;
use crate::id::{CpuId, SlotId};
use crate::order::Order;
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, lock, try_lock};

/// Runs in a full batch.
#[cfg(not(loom))]
const BATCH_RUNS: usize = 64;
/// Runs in a full batch. Fewer under a model checker, which tries every interleaving.
#[cfg(loom)]
const BATCH_RUNS: usize = 2;

/// A batch with this many slots is full, whatever its number of runs: 16 MiB. Batched slots are unavailable to
/// allocation.
const BATCH_SLOTS: usize = 8 * Order::HUGE.nr_pages();

type Run = (SlotId, Order);

/// What became of a freed run.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[must_use]
pub enum Freed {
    /// It waits in the batch.
    Collected,
    /// It waits in the batch, which is now full: the caller has to wake the worker.
    Filled,
    /// It waits in the batch; the full batch before it was given to the clusters by this call.
    Emptied,
    /// It was given to its cluster at once.
    Immediate,
}

/// Room for a batch, aligned to avoid false sharing between CPUs.
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

    /// Gives all runs to the clusters, lowest slot first, so that neighbours share a lock.
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

/// The buffer of a thread that gives a batch to the clusters.
struct Outbox {
    runs: Mutex<Runs>,
    nr_slots: AtomicU32,
}

/// The batch of a CPU, aligned to avoid false sharing.
#[repr(align(128))]
struct Record {
    batch: Mutex<Batch>,
    nr_slots: AtomicU32,
    /// For the worker and for flushes.
    off_path: Outbox,
    /// For frees that find the batch full.
    of_frees: Outbox,
}

/// A batch that was taken out: held in an outbox until the clusters have it.
struct Taken<'a> {
    runs: MutexGuard<'a, Runs>,
    outbox: &'a Outbox,
}

impl Taken<'_> {
    fn give(mut self, clusters: &Clusters) {
        self.runs.give(clusters);
        self.outbox.nr_slots.store(0, Ordering::Release);
    }
}

impl Outbox {
    fn new() -> Outbox {
        Outbox { runs: Mutex::new(Runs::new()), nr_slots: AtomicU32::new(0) }
    }
}

impl Record {
    fn new() -> Record {
        let batch = Batch { runs: Runs::new(), is_off: false };
        Record {
            batch: Mutex::new(batch),
            nr_slots: AtomicU32::new(0),
            off_path: Outbox::new(),
            of_frees: Outbox::new(),
        }
    }

    /// Slots on their way.
    fn nr_slots(&self) -> usize {
        let batch = self.nr_slots.load(Ordering::Acquire);
        let outboxes = [&self.off_path, &self.of_frees].map(|outbox| outbox.nr_slots.load(Ordering::Acquire));
        (batch + outboxes[0] + outboxes[1]) as usize
    }

    /// Puts a run into the batch, unless the batch is full or switched off.
    fn collect(&self, batch: &mut Batch, run: Run) -> Option<Freed> {
        if batch.is_off || batch.runs.is_full() {
            return None;
        }
        batch.runs.push(run);
        self.nr_slots.store(batch.runs.nr_slots as u32, Ordering::Release);
        Some(if batch.runs.is_full() { Freed::Filled } else { Freed::Collected })
    }

    /// The same after a full batch was seen: if it is still full, gives it to the clusters. `None` if batches are
    /// switched off or another free uses the outbox.
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

    /// Swaps the batch with the empty buffer of an outbox.
    fn take_out<'a>(&self, batch: &mut Batch, outbox: &'a Outbox, mut runs: MutexGuard<'a, Runs>) -> Taken<'a> {
        assert_eq!(runs.len, 0, "an outbox is empty when it is free");
        std::mem::swap(&mut batch.runs, &mut *runs);
        outbox.nr_slots.store(runs.nr_slots as u32, Ordering::Release);
        self.nr_slots.store(0, Ordering::Release);
        Taken { runs, outbox }
    }

    /// Gives the current batch back, and waits for batches taken out before. Returns whether there was anything.
    fn flush(&self, clusters: &Clusters) -> bool {
        if self.nr_slots() == 0 {
            return false;
        }
        let runs = lock(&self.off_path.runs);
        let taken = {
            // Held until the batch is taken out, so that no free takes it out unnoticed.
            let _no_free = lock(&self.of_frees.runs);
            self.take_out(&mut lock(&self.batch), &self.off_path, runs)
        };
        taken.give(clusters);
        true
    }
}

/// The freed slots of one device on their way back to its [`Clusters`], which the caller passes to every call. Every
/// call is safe from any thread.
pub struct SlotCache {
    cpus: Box<[Record]>,
}

impl SlotCache {
    /// A cache for `nr_cpus` CPUs; CPUs beyond that share their batches. Allocates somewhat more than 3 KiB per CPU; no
    /// other call allocates.
    pub fn new(nr_cpus: usize) -> SlotCache {
        assert!(nr_cpus > 0, "somebody frees");
        SlotCache { cpus: (0..nr_cpus).map(|_| Record::new()).collect() }
    }

    /// Frees a run as [`Clusters::free`] does, but deferred. Usually costs one uncontended lock; if the worker is late,
    /// it gives a whole batch of up to 64 runs to the clusters.
    pub fn free(&self, clusters: &Clusters, cpu: CpuId, slot: SlotId, order: Order) -> Freed {
        let index = cpu.index();
        // A division would cost as much as everything else here but the lock.
        let index = if index < self.cpus.len() { index } else { index % self.cpus.len() };
        let record = &self.cpus[index];
        let collected = record.collect(&mut lock(&record.batch), (slot, order));
        // A separate statement, so that the batch's lock is dropped first.
        collected.or_else(|| record.collect_anew(clusters, (slot, order))).unwrap_or_else(|| {
            clusters.free(slot, order);
            Freed::Immediate
        })
    }

    /// The worker's part: gives full batches back. Returns whether there were any.
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

    /// Gives all batches back. On return, everything freed before the call is free in the clusters. Returns whether
    /// anything was on its way. Waits for threads that are giving a batch back.
    pub fn flush(&self, clusters: &Clusters) -> bool {
        self.cpus.iter().fold(false, |any, record| record.flush(clusters) | any)
    }

    /// Like [`SlotCache::flush`], for a caller about to sleep until slots are freed. It locks each CPU's batch, so a
    /// free that comes too late for this flush sees, when it returns, everything that the caller wrote before the call.
    pub fn sweep(&self, clusters: &Clusters) -> bool {
        self.cpus.iter().fold(false, |any, record| {
            drop(lock(&record.batch));
            record.flush(clusters) | any
        })
    }

    /// Slots that were freed but are not free in the clusters yet. Reads three words per CPU; approximate during frees.
    pub fn nr_slots(&self) -> usize {
        self.cpus.iter().map(Record::nr_slots).sum()
    }

    /// From the return of this until [`SlotCache::switch_on`] nothing is batched: earlier frees are flushed, and every
    /// free goes straight to its cluster, racing calls included.
    pub fn switch_off(&self, clusters: &Clusters) {
        self.cpus.iter().for_each(|record| lock(&record.batch).is_off = true);
        self.flush(clusters);
    }

    /// Permits batches again.
    pub fn switch_on(&self) {
        self.cpus.iter().for_each(|record| lock(&record.batch).is_off = false);
    }

    /// Bytes of memory that this takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.cpus) + self.cpus.len() * 3 * size_of::<Buffer>()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    const CPU: CpuId = CpuId::new(0);

    /// A device with this many single slots in use.
    fn in_use(nr_slots: usize) -> (Clusters, Vec<SlotId>) {
        let clusters = Clusters::new(4 * 512, 1, false);
        clusters.grow(4 * 512);
        let slots = (0..nr_slots).map(|_| clusters.allocate(CPU, Order::PAGE).unwrap()).collect();
        (clusters, slots)
    }

    /// Takes the batch as the worker does; the worker is stalled for as long as this is held.
    fn stall(record: &Record) -> Taken<'_> {
        record.take_out(&mut lock(&record.batch), &record.off_path, lock(&record.off_path.runs))
    }

    /// Results of freeing these slots on a thread that must not block.
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
                    std::process::abort(); // that thread never ends, and the scope would wait for it
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
        assert_eq!((count(Freed::Filled), count(Freed::Emptied), count(Freed::Immediate)), (4, 3, 0));
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
        assert_eq!(freed[BATCH_RUNS - 1..], [Freed::Filled, Freed::Immediate, Freed::Immediate]);
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
        for outbox in [&record.off_path, &record.of_frees] {
            let taken = record.take_out(&mut lock(&record.batch), outbox, lock(&outbox.runs));
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
