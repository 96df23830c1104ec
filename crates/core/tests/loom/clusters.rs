//! A device's slots: per-CPU clusters when few slots are left, and during removal and discard.

use folioswap_core::{ClusterId, Clusters, CpuId, Order, SlotId};
use loom::sync::Arc;
use loom::thread;

use crate::{PAIR, check_within};

/// Clusters of two slots for two CPUs, all free.
fn clusters(nr_slots: usize, wants_discard: bool) -> Arc<Clusters> {
    let clusters = Clusters::with_cluster_order(nr_slots, 2, wants_discard, PAIR);
    clusters.grow(nr_slots);
    Arc::new(clusters)
}

/// Allocates one slot on another thread.
fn one_slot(clusters: &Arc<Clusters>, cpu: u32) -> thread::JoinHandle<Option<SlotId>> {
    let clusters = Arc::clone(clusters);
    thread::spawn(move || clusters.allocate(CpuId::new(cpu), Order::PAGE))
}

#[test]
fn the_last_slots_go_to_one_cpu_each() {
    check_within(4, || {
        let clusters = clusters(2, false);
        let other = one_slot(&clusters, 1);
        let mine = clusters.allocate(CpuId::new(0), Order::PAGE).expect("there is one for each");
        let others = other.join().unwrap().expect("there is one for each");
        assert_ne!(mine, others);
        assert_eq!((clusters.allocate(CpuId::new(0), Order::PAGE), clusters.nr_used()), (None, 2));
        clusters.verify();
    });
}

#[test]
fn three_threads_of_two_cpus_share_three_slots() {
    check_within(4, || {
        let clusters = clusters(3, false);
        let others = [one_slot(&clusters, 1), one_slot(&clusters, 1)];
        let mine = clusters.allocate(CpuId::new(0), Order::PAGE).expect("there is one for each");
        let [a, b] = others.map(|other| other.join().unwrap().expect("there is one for each"));
        assert!(a != b && a != mine && b != mine);
        clusters.verify();
    });
}

#[test]
fn a_free_and_a_steal_pass_each_other() {
    check_within(4, || {
        let clusters = clusters(2, false);
        let first = clusters.allocate(CpuId::new(0), Order::PAGE).unwrap();
        let other = one_slot(&clusters, 1);
        // The other CPU steals from this CPU's cluster, gets the freed slot, or finds the cluster empty.
        clusters.free(first, Order::PAGE);
        let stolen = other.join().unwrap().expect("the second slot was free all along");
        let rest = clusters.allocate(CpuId::new(0), Order::PAGE).expect("one of two is free");
        assert_ne!(stolen, rest);
        assert_eq!((clusters.allocate(CpuId::new(1), Order::PAGE), clusters.nr_used()), (None, 2));
        clusters.verify();
    });
}

#[test]
fn a_slot_of_a_full_cluster_is_freed_while_another_looks_for_one() {
    check_within(4, || {
        let clusters = clusters(2, true);
        let run = clusters.allocate(CpuId::new(0), PAIR).unwrap();
        let other = one_slot(&clusters, 1);
        clusters.free(run, Order::PAGE);
        let got = other.join().unwrap();
        assert!(got.is_none_or(|got| got == run));
        assert_eq!(clusters.allocate(CpuId::new(0), Order::PAGE).is_some(), got.is_none());
        clusters.verify();
    });
}

#[test]
fn a_free_slot_is_isolated_or_handed_out_and_never_both() {
    check_within(4, || {
        let clusters = clusters(2, false);
        let run = clusters.allocate(CpuId::new(0), PAIR).unwrap();
        clusters.free(run, Order::PAGE);
        let other = one_slot(&clusters, 1);
        let mut isolated = None;
        clusters.isolate_in(ClusterId::new(0), 1, &mut |slot, _| isolated = Some(slot));
        let got = other.join().unwrap();
        assert!(isolated.is_some() != got.is_some() && isolated.or(got) == Some(run));
        clusters.verify();
        clusters.free(run, Order::PAGE);
        clusters.free(run.plus(1), Order::PAGE);
        assert_eq!(clusters.nr_used(), 0);
        clusters.verify();
    });
}

#[test]
fn removal_and_allocation_pass_each_other() {
    check_within(4, || {
        let clusters = clusters(4, false);
        let others = [one_slot(&clusters, 0), one_slot(&clusters, 1)];
        clusters.begin_removal();
        // Everything handed out was handed out before `begin_removal` returned.
        let nr_used = clusters.nr_used();
        let got = others.map(|other| other.join().unwrap());
        assert_eq!((got.iter().flatten().count(), clusters.nr_used()), (nr_used, nr_used));
        assert!(got[0].is_none() || got[0] != got[1]);
        assert_eq!(clusters.allocate(CpuId::new(0), Order::PAGE), None);
        clusters.verify();
        clusters.cancel_removal();
        assert!(clusters.allocate(CpuId::new(0), Order::PAGE).is_some());
    });
}

#[test]
fn a_cluster_is_discarded_or_used_again_and_never_both() {
    check_within(4, || {
        let clusters = clusters(2, true);
        let run = clusters.allocate(CpuId::new(0), PAIR).unwrap();
        let other = one_slot(&clusters, 1);
        clusters.free(run, PAIR);
        let discards = clusters.take_discards(1);
        let got = other.join().unwrap();
        assert!(discards.is_empty() || got.is_none(), "a slot was handed out while it was being discarded");
        clusters.verify();
        discards.into_iter().for_each(|cluster| clusters.discarded(cluster));
        assert!(clusters.allocate(CpuId::new(0), Order::PAGE).is_some());
        clusters.verify();
    });
}

#[test]
fn what_is_new_is_handed_out_once_it_is_there() {
    check_within(4, || {
        let clusters = Arc::new(Clusters::with_cluster_order(4, 2, false, PAIR));
        clusters.grow(1);
        let others = [one_slot(&clusters, 0), one_slot(&clusters, 1)];
        clusters.grow(2);
        let got = others.map(|other| other.join().unwrap());
        assert!(got.iter().any(Option::is_some) && got[0] != got[1]);
        for slot in got.into_iter().flatten() {
            clusters.free(slot, Order::PAGE);
        }
        clusters.verify();
    });
}
