//! The concurrent parts under a model checker, which tries every interleaving up to a bound of preemptions:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p folioswap-core --test loom`.
//!
//! loom reports a thread that waits forever as a deadlock.
#![cfg(loom)]

mod clusters;
mod devices;
mod folio;
mod frames;
mod freed_slots;
mod policy;

use folioswap_core::{BlockId, Order};
use loom::sync::Arc;
use loom::thread;

const BLOCK: BlockId = BlockId::new(0);
const OTHER: BlockId = BlockId::new(1);

const HALF: Order = Order::new(8).unwrap();
const PAIR: Order = Order::new(1).unwrap();

/// Frames of a pageblock.
const PAGEBLOCK: usize = Order::HUGE.nr_pages();

fn check(model: impl Fn() + Sync + Send + 'static) {
    check_within(2, model);
}

fn check_within(nr_preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(nr_preemptions);
    builder.check(model);
}

/// Runs a part of the model on another thread.
fn beside<W, R: 'static>(world: &Arc<W>, run: impl FnOnce(&W) -> R + 'static) -> thread::JoinHandle<R>
where
    W: 'static,
{
    let world = Arc::clone(world);
    thread::spawn(move || run(&world))
}
