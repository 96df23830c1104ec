//! A stock of zeroed pageblocks, so that a fault need not clear 2 MiB at the first touch of a whole folio.
//!
//! The background thread fills it while whole folios are touched for the first time: one block for each `TOUCHES_EACH`
//! touches so far, at most `MOST` per zone, and only with frames available without a write. Its frames are held and do
//! not count as free. They are given back when a fault finds no frame, when the budget is lowered, or when reclaim
//! begins and there was no first touch since it last did.

use std::sync::atomic::Ordering;

use folioswap_core::{CpuId, Memory, Order};

use crate::memory::ram::Ram;
use crate::memory::table::Table;
use crate::process::lifecycle::Lifecycle;

/// Fills the stock, if that was asked for.
pub(crate) fn fill(ram: &Ram, table: &Table, lifecycle: &Lifecycle) {
    if !ram.stock().take_wanted() {
        return;
    }
    let thread = folioswap_sys::signals::thread_id();
    loop {
        let _pass = lifecycle.gate().enter(thread);
        if lifecycle.stopping() || !stock_one(ram, table) {
            return;
        }
    }
}

/// Clears one more pageblock for the stock. `false`: there are enough, or no frames.
fn stock_one(ram: &Ram, table: &Table) -> bool {
    let stock = ram.stock();
    let zone = ram.zones().on(CpuId::new(stock.touched_on.load(Ordering::Relaxed)));
    let nr_here = stock.change(|blocks| blocks.iter().filter(|&&frame| std::ptr::eq(ram.zone(frame), zone)).count());
    if nr_here >= stock.target(zone) {
        return false;
    }
    let Some(taken) = ram.try_take_in(table, zone, Order::HUGE, zone.counts().watermarks.low) else { return false };
    if !ram.try_make_huge(taken) {
        return false; // without a huge page a first touch gains little
    }
    if taken.memory != Memory::Absent {
        // SAFETY: taken from the zone above, so nobody else uses it, and `try_make_huge` has given it memory at home.
        unsafe { ram.frames().clear(taken.frame) };
    }
    stock.change(|blocks| blocks.push(taken.frame));
    if ram.zones().counts().surplus > 0 {
        ram.reclaim_wanted().signal(); // the budget was lowered meanwhile: reclaim takes the stock first
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::device::DeviceSpec;
    use crate::process::wakeup::comes_true;

    const BLOCK: usize = Order::HUGE.bytes();

    #[test]
    fn what_first_touches_get_is_zero_and_the_stock_goes_back_when_it_is_needed() {
        let device = DeviceSpec::Ram { size: 512 << 20 };
        let arena = Arena::builder().memory(256 << 20).device(device).build().unwrap();
        let stock = arena.engine().ram().stock();
        let mut region = arena.map(192 << 20).unwrap();
        for round in 1..=2u8 {
            for bytes in region.chunks_mut(BLOCK) {
                assert!(bytes.iter().all(|&byte| byte == 0), "round {round}");
                bytes.fill(round);
            }
            comes_true("the stock is not filled", || stock.nr.load(Ordering::Relaxed) >= 2);
            region.advise(.., crate::arena::advice::Advice::DontNeed);
        }
        // More than the whole budget is needed.
        let mut second = arena.map(300 << 20).unwrap();
        second.chunks_mut(BLOCK).for_each(|bytes| bytes.fill(7));
        for _ in 0..3 {
            assert!(second.chunks(BLOCK).all(|bytes| bytes.iter().all(|&byte| byte == 7)));
        }
        comes_true("the stock is kept from reclaim", || stock.nr.load(Ordering::Relaxed) == 0);
        arena.engine().ram().zones().verify();
    }

    #[test]
    fn a_smaller_budget_has_it_back() {
        let arena = Arena::builder().memory(256 << 20).build().unwrap();
        let mut region = arena.map(64 << 20).unwrap();
        region.fill(1);
        let stock = arena.engine().ram().stock();
        comes_true("the stock is not filled", || stock.nr.load(Ordering::Relaxed) >= 2);
        drop(region);
        arena.set_memory(16 << 20).unwrap();
        comes_true("the stock keeps what the budget has no room for", || {
            arena.engine().ram().zones().counts().surplus == 0
        });
        assert!(arena.measure().unwrap().resident_bytes <= 16 << 20);
        arena.engine().ram().zones().verify();
    }
}
