//! How long a pair of allocate and free takes, on one thread and on two, beside one mutex over the same structure:
//! `cargo run --release -p folioswap-core --example alloc_speed`.

#[cfg(not(loom))]
mod speed {
    use folioswap_core::{Clusters, CpuId, Order, SlotId};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    const ROUNDS: u32 = 100;
    const PAIRS: usize = 20_000;
    /// Runs that a thread has out at a time, as the folios that are being written.
    const OUT: usize = 32;

    trait Allocate: Sync {
        fn take(&self, cpu: CpuId, order: Order) -> SlotId;
        fn give(&self, slot: SlotId, order: Order);
    }

    impl Allocate for Clusters {
        fn take(&self, cpu: CpuId, order: Order) -> SlotId {
            self.allocate(cpu, order).expect("there is room")
        }
        fn give(&self, slot: SlotId, order: Order) {
            self.free(slot, order);
        }
    }

    struct OneLock(Mutex<Clusters>);

    impl Allocate for OneLock {
        fn take(&self, cpu: CpuId, order: Order) -> SlotId {
            self.0.lock().expect("nobody panics").take(cpu, order)
        }
        fn give(&self, slot: SlotId, order: Order) {
            self.0.lock().expect("nobody panics").give(slot, order);
        }
    }

    fn pairs(space: &impl Allocate, cpu: CpuId, order: Order) {
        let mut out: Vec<_> = (0..OUT).map(|_| space.take(cpu, order)).collect();
        for nr in 0..PAIRS {
            let slot = &mut out[nr % OUT];
            space.give(*slot, order);
            *slot = space.take(cpu, order);
        }
        out.into_iter().for_each(|slot| space.give(slot, order));
    }

    /// Nanoseconds for a pair on each thread, from when the first thread starts until the last one ends: threads that
    /// the machine runs one after the other do not look like threads that run at once. Best of all rounds, as other
    /// work on the machine only ever makes it slower.
    fn best(space: &impl Allocate, nr_threads: u32, order: Order) -> f64 {
        let arrived = AtomicU32::new(0);
        let timed = |cpu| {
            let round = |nr: u32| {
                // Spinning: who arrives is on a processor and stays there.
                arrived.fetch_add(1, Ordering::AcqRel);
                while arrived.load(Ordering::Acquire) < (nr + 1) * nr_threads {
                    std::hint::spin_loop();
                }
                let start = Instant::now();
                pairs(space, CpuId::new(cpu), order);
                (start, Instant::now())
            };
            (0..ROUNDS).map(round).collect::<Vec<_>>()
        };
        let times: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..nr_threads)
                .map(|cpu| {
                    scope.spawn({
                        let timed = &timed;
                        move || timed(cpu)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("nobody panics")).collect()
        });
        let wall = |nr: usize| {
            let start = times.iter().map(|thread| thread[nr].0).min().expect("one thread at least");
            let end = times.iter().map(|thread| thread[nr].1).max().expect("one thread at least");
            (end - start).as_nanos() as f64 / PAIRS as f64
        };
        (0..ROUNDS as usize).map(wall).fold(f64::INFINITY, f64::min)
    }

    pub fn main() {
        let slots = 1 << 20;
        let made = || {
            let clusters = Clusters::new(slots, 2, false);
            clusters.grow(slots);
            clusters
        };
        println!("memory: {:.2} bytes a slot", made().bytes() as f64 / slots as f64);
        println!("{:>5} {:>16} {:>12} {:>12} {:>12}", "order", "", "1 thread", "2 threads", "speed-up");
        for exponent in [0, 4, 9] {
            let order = Order::new(exponent).expect("an order");
            let show = |name: &str, one: f64, two: f64| {
                println!("{order:>5} {name:>16} {one:>9.1} ns {two:>9.1} ns {:>11.2}x", 2.0 * one / two);
            };
            let clusters = made();
            show("Clusters", best(&clusters, 1, order), best(&clusters, 2, order));
            let locked = OneLock(Mutex::new(made()));
            show("one mutex", best(&locked, 1, order), best(&locked, 2, order));
        }
    }
}

#[cfg(not(loom))]
fn main() {
    speed::main();
}

#[cfg(loom)]
fn main() {}
