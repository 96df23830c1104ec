//! Freed slots on their way back to their clusters.

use folioswap_core::{Clusters, CpuId, Freed, Order, SlotCache, SlotId};
use loom::sync::Arc;

use crate::{PAIR, beside, check_within};

/// A device of two clusters, some of whose slots are in use until they are freed through the cache, all on one CPU. A
/// batch is two runs here.
struct Freeing {
    clusters: Clusters,
    cache: SlotCache,
    slots: Vec<SlotId>,
}

fn freeing(nr_in_use: usize) -> Arc<Freeing> {
    let clusters = Clusters::with_cluster_order(4, 1, false, PAIR);
    clusters.grow(4);
    let slots = (0..nr_in_use).map(|_| clusters.allocate(CpuId::new(0), Order::PAGE).unwrap()).collect();
    Arc::new(Freeing { clusters, cache: SlotCache::new(1), slots })
}

impl Freeing {
    fn free(&self, at: usize) -> Freed {
        self.cache.free(&self.clusters, CpuId::new(0), self.slots[at], Order::PAGE)
    }

    fn flush(&self) -> bool {
        self.cache.flush(&self.clusters)
    }

    fn work(&self) -> bool {
        self.cache.give_full(&self.clusters)
    }

    /// Every slot is free. A slot freed twice makes the clusters panic.
    fn check_free(&self) {
        assert_eq!((self.clusters.nr_used(), self.cache.nr_slots()), (0, 0));
        self.clusters.verify();
    }
}

#[test]
fn a_batch_is_given_back_once_whoever_comes_first() {
    check_within(3, || {
        let freeing = freeing(3);
        assert_eq!([freeing.free(0), freeing.free(1)], [Freed::Collected, Freed::Filled]);
        let worker = beside(&freeing, Freeing::work);
        let other = beside(&freeing, |freeing| freeing.free(2));
        freeing.flush();
        let nr_used = freeing.clusters.nr_used();
        assert!(nr_used <= 1, "what was freed before the flush is free after it, not {nr_used} in use");
        worker.join().unwrap();
        assert_ne!(other.join().unwrap(), Freed::Filled);
        freeing.flush();
        freeing.check_free();
    });
}

#[test]
fn a_free_takes_a_full_batch_or_the_worker_has() {
    check_within(3, || {
        let freeing = freeing(4);
        let worker = beside(&freeing, Freeing::work);
        let other = beside(&freeing, |freeing| [freeing.free(0), freeing.free(1)]);
        let mine = [freeing.free(2), freeing.free(3)];
        let all = [mine, other.join().unwrap()].concat();
        let count = |what| all.iter().filter(|&&freed| freed == what).count();
        let worked = worker.join().unwrap();
        // The worker or a free gives each full batch back; the last two frees may fill the batch again.
        assert!(count(Freed::Filled) >= 1 && count(Freed::Emptied) + usize::from(worked) <= count(Freed::Filled));
        freeing.flush();
        freeing.check_free();
    });
}

#[test]
fn a_flush_waits_for_the_worker() {
    check_within(4, || {
        let freeing = freeing(2);
        let _ = [freeing.free(0), freeing.free(1)];
        let worker = beside(&freeing, Freeing::work);
        freeing.flush();
        freeing.check_free();
        worker.join().unwrap();
    });
}

#[test]
fn a_flush_waits_for_a_free_that_gives_a_batch_back() {
    check_within(4, || {
        let freeing = freeing(3);
        let _ = [freeing.free(0), freeing.free(1)];
        let other = beside(&freeing, |freeing| freeing.free(2));
        let flushed = freeing.flush();
        let nr_used = freeing.clusters.nr_used();
        assert!(nr_used == 0 || nr_used == 1, "the batch is not back: {nr_used}");
        let freed = other.join().unwrap();
        assert!(flushed || freed == Freed::Emptied, "nothing was on its way, so a free had brought it all back");
        freeing.flush();
        freeing.check_free();
    });
}

#[test]
fn two_flushes_both_wait() {
    check_within(4, || {
        let freeing = freeing(2);
        let _ = freeing.free(0);
        let other = beside(&freeing, |freeing| {
            freeing.flush();
            assert!(freeing.clusters.nr_used() <= 1);
        });
        let _ = freeing.free(1);
        freeing.flush();
        freeing.check_free();
        other.join().unwrap();
    });
}

#[test]
fn from_removal_on_frees_go_straight_and_none_is_left_behind() {
    check_within(3, || {
        let freeing = freeing(3);
        let _ = [freeing.free(0), freeing.free(1)];
        let worker = beside(&freeing, Freeing::work);
        let other = beside(&freeing, |freeing| freeing.free(2));
        freeing.clusters.begin_removal();
        freeing.cache.switch_off(&freeing.clusters);
        assert!(freeing.cache.nr_slots() == 0 && freeing.clusters.nr_used() <= 1);
        let freed = other.join().unwrap();
        assert!(freed != Freed::Filled || freeing.clusters.nr_used() == 0);
        freeing.check_free();
        worker.join().unwrap();
    });
}

#[test]
fn slots_on_their_way_are_handed_out_after_a_flush() {
    check_within(4, || {
        let freeing = freeing(4);
        let _ = freeing.free(0);
        let worker = beside(&freeing, Freeing::work);
        let other = beside(&freeing, |freeing| freeing.free(1));
        let take = || freeing.clusters.allocate(CpuId::new(0), Order::PAGE);
        let got = take().or_else(|| {
            freeing.flush();
            take()
        });
        assert!(got.is_some(), "a full device with slots in batches does not fail");
        worker.join().unwrap();
        let _ = other.join().unwrap();
        freeing.flush();
        assert_eq!(freeing.clusters.nr_used(), 3);
        freeing.clusters.verify();
    });
}

#[test]
fn a_free_at_once_goes_its_way_beside_others() {
    check_within(4, || {
        let freeing = freeing(3);
        let other = beside(&freeing, |freeing| {
            let _ = freeing.free(0);
            freeing.flush()
        });
        if !freeing.clusters.try_free(freeing.slots[1], Order::PAGE) {
            let _ = freeing.free(1); // the cluster was locked, and nothing was done
        }
        other.join().unwrap();
        assert!(freeing.clusters.try_free(freeing.slots[2], Order::PAGE), "nobody else is there");
        freeing.flush();
        freeing.check_free();
    });
}
