//! Tests of flows without an arena and without a kernel ([`super::without_kernel`]): one thread says who goes on when.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use fastrand::Rng;
use folioswap_core::{BLOCK_BYTES, BLOCK_PAGES, BlockId, FaultKind, Order, PAGE_SIZE, PIECE, State, Taken};
use folioswap_sys::readers::{Request, What};
use folioswap_sys::signals;

use super::without_kernel::{NR_FIT, Simulated, Unwanted, block, go_on, turns};
use crate::compact::direct::OnOwnThread;
use crate::config::swap_in_policy::SwapIn;
use crate::engine::{DirectReclaim, Engine};
use crate::fault::holds;
use crate::fault::readers::HeldForOthers;
use crate::process::turns::{Waits, asleep};
use crate::process::wakeup::{comes_true, sleeps};
use crate::reclaim::evict;

fn nr_faults(simulated: &Simulated, kind: FaultKind) -> u64 {
    simulated.engine.stats().snapshot().fault(kind).count()
}

#[test]
fn a_page_that_was_never_touched_is_zero() {
    for (order, nr_pages) in [(None, BLOCK_PAGES), (Some(PIECE), PIECE.nr_pages()), (Some(Order::PAGE), 1)] {
        let simulated = Simulated::new(order, SwapIn::Always, Unwanted);
        let page = block(0).page(37);
        assert!(simulated.touch(page).unwrap());
        assert_eq!((simulated.mapped(page), simulated.nr_frames_in_use()), (Some(0), nr_pages));
        assert!(matches!(simulated.state(page), State::Resident(_)));
        assert!(!simulated.touch(page).unwrap(), "there is nothing to do");
        // Frames that held something are zeroed.
        simulated.write(page, 7);
        simulated.engine.lock(page.block()).drop_block();
        assert_eq!((simulated.mapped(page), simulated.nr_frames_in_use()), (None, 0));
        assert_eq!(simulated.read(page), 0);
        assert_eq!((simulated.store.take_reads(), nr_faults(&simulated, FaultKind::FirstTouch)), (vec![], 2));
    }
}

#[test]
fn memory_that_is_given_up_gets_no_page() {
    let simulated = Simulated::new(None, SwapIn::Always, Unwanted);
    let page = block(0).page(0);
    simulated.engine.table().close(page.block());
    assert!(!simulated.touch(page).unwrap());
    assert_eq!((simulated.mapped(page), simulated.nr_frames_in_use()), (None, 0));
}

#[test]
fn a_block_that_went_out_whole_comes_in_by_one_read() {
    let simulated = Simulated::new(Some(Order::HUGE), SwapIn::Always, Unwanted);
    let id = block(0);
    simulated.fill(id, 3);
    simulated.send_out(id);
    assert_eq!(simulated.nr_frames_in_use(), 0);
    assert!(matches!(simulated.state(id.page(0)), State::Swapped(_)));
    assert!(simulated.touch(id.page(100)).unwrap());
    assert_eq!(simulated.store.take_reads(), [Order::HUGE.bytes()]);
    assert!((0..BLOCK_PAGES).all(|page| simulated.is_filled(id.page(page), 3)));
    assert_eq!(nr_faults(&simulated, FaultKind::SwapIn), 1);
}

#[test]
fn one_page_of_a_block_that_went_out_whole_comes_in_by_its_piece() {
    let simulated = Simulated::new(None, SwapIn::Never, Unwanted);
    let id = block(0);
    simulated.fill(id, 3);
    // As one piece with one hash.
    simulated.engine.policy().set_swap_in(SwapIn::Always);
    simulated.send_out(id);
    simulated.engine.policy().set_swap_in(SwapIn::Never);
    assert!(simulated.touch(id.page(37)).unwrap());
    assert_eq!(simulated.store.take_reads(), [PIECE.bytes()], "to verify it");
    assert!(simulated.is_filled(id.page(37), 3));
    assert_eq!((simulated.mapped(id.page(38)), simulated.nr_frames_in_use()), (None, 1));
    // From then on each page of the piece has its own hash.
    assert!(simulated.touch(id.page(45)).unwrap());
    assert_eq!(simulated.store.take_reads(), [PAGE_SIZE]);
    assert!(simulated.is_filled(id.page(45), 3));
}

/// Direct reclaim that drops a block, and counts its calls.
struct Drops {
    victim: BlockId,
    nr_calls: Arc<AtomicUsize>,
}

impl DirectReclaim for Drops {
    fn reclaim(&self, engine: &Engine, order: Order) -> bool {
        assert_eq!(order, Order::HUGE);
        self.nr_calls.fetch_add(1, Ordering::Relaxed);
        engine.try_lock(self.victim).expect("nobody holds it").drop_block();
        true
    }

    fn compact(&self, _engine: &Engine) -> Option<Taken> {
        unreachable!("frames are not scattered")
    }

    fn shed_copies(&self, _engine: &Engine) -> bool {
        unreachable!("frames are freed")
    }
}

#[test]
fn a_fault_without_frames_has_one_reclaimed() {
    let nr_calls = Arc::new(AtomicUsize::new(0));
    let simulated = Simulated::new(None, SwapIn::Always, Drops { victim: block(2), nr_calls: Arc::clone(&nr_calls) });
    (0..NR_FIT).for_each(|number| simulated.write(block(number).page(0), 1));
    assert_eq!(nr_calls.load(Ordering::Relaxed), 0);
    let page = block(NR_FIT).page(5);
    assert!(simulated.touch(page).unwrap());
    assert_eq!((simulated.mapped(page), nr_calls.load(Ordering::Relaxed)), (Some(0), 1));
    assert_eq!(simulated.state(block(2).page(0)), State::Empty);
    assert_eq!(simulated.engine.stats().direct_reclaims.get(), 1);
}

#[test]
fn a_read_that_fails_twice_loses_no_more_than_it_must() {
    let simulated = Simulated::new(Some(Order::HUGE), SwapIn::Always, Unwanted);
    let id = block(0);
    simulated.fill(id, 9);
    simulated.send_out(id);
    simulated.store.nr_failing.store(1, Ordering::Relaxed);
    assert!(simulated.touch(id.page(0)).unwrap());
    assert_eq!(simulated.store.take_reads(), [Order::HUGE.bytes(); 2], "a second try");
    simulated.send_out(id);
    simulated.store.nr_failing.store(2, Ordering::Relaxed);
    assert!(simulated.touch(id.page(20)).unwrap());
    assert_eq!(simulated.store.take_reads(), [Order::HUGE.bytes(), Order::HUGE.bytes(), PIECE.bytes()]);
    assert!((16..32).all(|page| simulated.is_filled(id.page(page), 9)));
    assert_eq!(simulated.nr_frames_in_use(), PIECE.nr_pages(), "those of the failed reads are free");
}

#[test]
fn content_that_cannot_be_read_is_lost_and_that_is_news_once() {
    let simulated = Simulated::new(Some(Order::PAGE), SwapIn::Always, Unwanted);
    let id = block(0);
    simulated.write(id.page(4), 5);
    simulated.send_out(id);
    simulated.store.nr_failing.store(4, Ordering::Relaxed);
    let error = simulated.touch(id.page(4)).unwrap_err();
    assert!(error.is_news && error.to_string().contains(&format!("{:#x}", id.page(4).offset_bytes())), "{error}");
    assert!(!simulated.touch(id.page(4)).unwrap_err().is_news);
    assert_eq!(simulated.store.take_reads(), [PAGE_SIZE; 4]);
    assert!(matches!(simulated.state(id.page(4)), State::Swapped(_)));
    assert_eq!(simulated.nr_frames_in_use(), 0);
    // It may be readable later.
    assert_eq!(simulated.read(id.page(4)), 5);
}

#[test]
fn two_faults_on_one_block_read_it_once() {
    let simulated = Simulated::new(Some(Order::HUGE), SwapIn::Always, Unwanted);
    let id = block(0);
    simulated.fill(id, 3);
    simulated.send_out(id);
    // A page of a piece with one hash is read by way of scratch memory. All of that is lent, so the first fault waits
    // with its block locked.
    simulated.engine.policy().set_swap_in(SwapIn::Never);
    let mut scratches = Vec::new();
    let turns = turns();
    let waits = Waits::ByTurns(&turns);
    while let Some(scratch) = go_on(&mut (Box::pin(simulated.engine.ram().frames().scratch(waits)) as _)) {
        scratches.push(scratch);
    }
    let mut first = simulated.fault(id.page(8), waits);
    let mut second = simulated.fault(id.page(8), waits);
    assert!(go_on(&mut first).is_none() && go_on(&mut second).is_none());
    assert!(simulated.engine.try_lock(id).is_none(), "nobody changes it meanwhile");
    scratches.clear();
    assert!(go_on(&mut second).is_none(), "it waits for the block");
    assert!(go_on(&mut first).unwrap().unwrap());
    assert_eq!(simulated.store.take_reads(), [PIECE.bytes()]);
    assert!(go_on(&mut second).unwrap().unwrap());
    assert_eq!(simulated.store.take_reads(), []);
    assert!(simulated.is_filled(id.page(8), 3));
    assert_eq!([FaultKind::SwapIn, FaultKind::Wait].map(|kind| nr_faults(&simulated, kind)), [1, 1]);
}

/// A fault that waits for frames gives up its block's lock.
#[test]
fn a_block_that_changes_while_its_fault_waits_is_looked_at_again() {
    let changes: [fn(&Simulated); 3] = [
        |simulated| {
            simulated.engine.table().close(block(NR_FIT));
            simulated.engine.lock(block(NR_FIT)).drop_block();
        },
        |simulated| simulated.engine.lock(block(NR_FIT)).split_to(PIECE),
        |simulated| simulated.engine.lock(block(NR_FIT)).drop_block(),
    ];
    let ends = [(false, None, 0), (true, Some(21), 1), (true, Some(0), 0)];
    for (change, (is_resolved, byte, nr_reads)) in changes.into_iter().zip(ends) {
        let simulated = Simulated::new(Some(Order::HUGE), SwapIn::Always, Unwanted);
        let id = block(NR_FIT);
        simulated.fill(id, 1);
        simulated.send_out(id);
        (0..NR_FIT).for_each(|number| simulated.write(block(number).page(0), 1));
        let turns = turns();
        let mut fault = simulated.fault(id.page(20), Waits::ByTurns(&turns));
        assert!(go_on(&mut fault).is_none(), "there are no frames");
        assert_eq!(simulated.engine.ram().demand().nr_awaited(), BLOCK_PAGES);
        change(&simulated);
        simulated.engine.lock(block(0)).drop_block();
        assert_eq!(go_on(&mut fault).unwrap().unwrap(), is_resolved);
        assert_eq!((simulated.mapped(id.page(20)), simulated.store.take_reads().len()), (byte, nr_reads));
        assert_eq!(simulated.engine.ram().demand().nr_awaited(), 0);
    }
}

/// What a program reads is what it wrote last, whatever goes out for it: a real run against a model, with the arena's
/// own direct reclaim.
#[test]
fn memory_larger_than_ram_is_what_was_written() {
    for (order, swap_in) in [(None, SwapIn::Always), (None, SwapIn::Never), (Some(PIECE), SwapIn::Always)] {
        let simulated = Simulated::new(order, swap_in, OnOwnThread);
        let seed = 0x5eed;
        let mut rng = Rng::with_seed(seed);
        let mut model = vec![0; 3 * NR_FIT * BLOCK_PAGES];
        for step in 0..20_000 {
            let at = if rng.bool() { rng.usize(..model.len()) } else { step % model.len() };
            let page = block(at / BLOCK_PAGES).page(at % BLOCK_PAGES);
            assert_eq!(simulated.read(page), model[at], "page {at} at step {step} of seed {seed:#x}");
            if rng.u8(..3) > 0 {
                model[at] = rng.u8(..);
                simulated.write(page, model[at]);
            }
        }
        assert!(nr_faults(&simulated, FaultKind::SwapIn) > 0 && simulated.nr_frames_in_use() <= NR_FIT * BLOCK_PAGES);
        simulated.engine.ram().zones().verify();
    }
}

#[test]
fn memory_that_is_to_leave_waits_for_whoever_works_on_its_block() {
    let simulated = Simulated::new(None, SwapIn::Always, Unwanted);
    let (engine, id) = (&simulated.engine, block(0));
    simulated.fill(id, 3);
    let locked = engine.lock(id);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let evicting = scope.spawn(|| {
            tell.send(signals::thread_id()).unwrap();
            evict::evict(engine, id, &(0..BLOCK_PAGES));
        });
        let thread = told.recv().unwrap();
        comes_true("it waits for the block", || evicting.is_finished() || sleeps(thread));
        assert!(!evicting.is_finished(), "it has gone by");
        drop(locked);
    });
    assert!(matches!(simulated.state(id.page(0)), State::Standby(_)));
}

#[test]
fn what_others_hold_stays_until_they_release_it_or_end() {
    let simulated = Simulated::new(Some(Order::PAGE), SwapIn::Never, Unwanted);
    let (engine, held) = (&simulated.engine, HeldForOthers::default());
    let (own, gone) = (std::process::id(), u32::MAX / 4);
    let request = |number: usize, what, process| Request {
        addr: engine.table().addr(block(number).page(3)),
        len: 2 * PAGE_SIZE,
        what,
        process,
    };
    let serve = |request: &Request| asleep(held.serve(engine, request, Waits::Asleep));
    let is_pinned = |number: usize| engine.lock(block(number)).pinned;
    for number in 0..2 {
        simulated.fill(block(number), 5);
        simulated.send_out(block(number));
    }
    for _ in 0..2 {
        assert_eq!(serve(&request(0, What::Hold, own)), Some(true));
        assert!(is_pinned(0) && !is_pinned(1) && simulated.is_filled(block(0).page(4), 5));
    }
    assert_eq!(serve(&request(0, What::Release, own)), None);
    assert!(is_pinned(0), "the other hold stands");
    assert_eq!(serve(&request(1, What::Release, own)), None, "of nothing");
    assert_eq!(serve(&request(0, What::Release, own)), None);
    assert!(!is_pinned(0));
    // Half of the budget.
    for number in 0..NR_FIT / 2 {
        assert_eq!(serve(&request(number, What::Hold, gone)), Some(true));
        assert!(is_pinned(number));
        assert_eq!(serve(&request(number + 1, What::BringIn, own)), Some(true));
        assert!(!is_pinned(number), "the process that held it has ended");
        assert_eq!(serve(&request(number, What::Hold, own)), Some(true));
    }
    assert_eq!(serve(&request(NR_FIT / 2, What::Hold, own)), Some(false));
}

#[test]
fn the_end_of_a_hold_leaves_a_later_one_of_a_block_that_was_not_managed_before() {
    for is_mapped_over in [false, true] {
        let simulated = Simulated::new(Some(Order::PAGE), SwapIn::Never, Unwanted);
        let engine = &simulated.engine;
        let addr = |number: usize| engine.table().block_addr(block(number));
        let is_pinned = |number: usize| engine.lock(block(number)).pinned;
        let (first, second) = (addr(0)..addr(1), addr(1)..addr(2));
        let both = first.start..second.end;
        engine.table().close(block(1));
        assert_eq!(holds::hold(engine, &both, BLOCK_BYTES as u64), Some(true), "one block is managed");
        if is_mapped_over {
            holds::forget(engine, &second);
        }
        engine.table().open(block(1));
        assert_eq!(holds::hold(engine, &second, u64::MAX), Some(true));
        holds::release(engine, &both);
        assert_eq!([0, 1].map(is_pinned), [false, true], "the other hold stands");
        holds::release(engine, &second);
        assert!(!is_pinned(1));
        // The holds of what is managed end with it.
        assert_eq!(holds::hold(engine, &both, u64::MAX), Some(true));
        holds::forget(engine, &second);
        assert_eq!([0, 1].map(is_pinned), [true, false]);
        holds::release(engine, &both);
        assert!(!is_pinned(0));
    }
}
