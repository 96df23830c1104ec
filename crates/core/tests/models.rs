//! Folio table and slot map against plain models of them, on random sequences of calls. A failure prints the
//! shortest sequence that shows it and the seed that found it.
#![cfg(not(loom))]

use folioswap_core::sync::AtomicU32;
use folioswap_core::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// One thread only, so nobody ever has to wait.
struct Never;

impl Park for Never {
    fn wait(&self, _: &AtomicU32, _: u32) {
        unreachable!("a single thread waits for itself");
    }
    fn wake_all(&self, _: &AtomicU32) {
        unreachable!("nobody waits");
    }
}

const NR_FOLIOS: u32 = 3000;

fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Empty),
        any::<u32>().prop_map(|n| State::Swapped(SlotId::new(n))),
        any::<u32>().prop_map(|n| State::Resident(FrameId::new(n))),
        any::<u32>().prop_map(|n| State::Standby(FrameId::new(n))),
    ]
}

#[derive(Clone, Debug)]
enum TableCall {
    Ensure(u32, u32),
    Set(u32, State),
    Flags(u32, bool, bool, bool),
    LayDown(u32),
    Peek(u32),
}

fn table_call() -> impl Strategy<Value = TableCall> {
    let folio = || 0..NR_FOLIOS;
    prop_oneof![
        1 => (folio(), 0..600u32).prop_map(|(at, len)| TableCall::Ensure(at, len)),
        4 => (folio(), state()).prop_map(|(at, state)| TableCall::Set(at, state)),
        2 => (folio(), any::<[bool; 3]>()).prop_map(|(at, [a, b, c])| TableCall::Flags(at, a, b, c)),
        1 => folio().prop_map(TableCall::LayDown),
        4 => folio().prop_map(TableCall::Peek),
    ]
}

#[derive(Clone, Debug)]
enum SlotCall {
    Grow(usize),
    Allocate,
    AllocateNear(usize),
    Free(usize),
    Bad(usize),
}

fn slot_call() -> impl Strategy<Value = SlotCall> {
    prop_oneof![
        1 => (0..300usize).prop_map(SlotCall::Grow),
        6 => Just(SlotCall::Allocate),
        3 => (0..300usize).prop_map(SlotCall::AllocateNear),
        5 => (0..300usize).prop_map(SlotCall::Free),
        1 => (0..300usize).prop_map(SlotCall::Bad),
    ]
}

proptest! {
    #[test]
    fn the_folio_table_is_a_map(calls in prop::collection::vec(table_call(), 1..200)) {
        let table = FolioTable::new(NR_FOLIOS as usize);
        let before = table.bytes();
        let mut model = BTreeMap::new();
        let mut chunks = BTreeSet::new();
        let empty = Peek { state: State::Empty, locked: false, pinned: false, marker: false, dropped_behind: false };
        for call in calls {
            match call {
                TableCall::Ensure(at, len) => {
                    let end = (at + len).min(NR_FOLIOS);
                    table.ensure(FolioId::new(at)..FolioId::new(end));
                    chunks.extend((at..end).map(|folio| folio / 512));
                    prop_assert_eq!(table.bytes(), before + chunks.len() * 4096);
                }
                TableCall::Peek(at) => {
                    prop_assert_eq!(table.peek(FolioId::new(at)), *model.get(&at).unwrap_or(&empty));
                }
                TableCall::Set(at, state) if chunks.contains(&(at / 512)) => {
                    let mut locked = table.lock(FolioId::new(at), &Never);
                    let entry = model.entry(at).or_insert(empty);
                    prop_assert_eq!(locked.state(), entry.state);
                    locked.set(state);
                    entry.state = state;
                    prop_assert_eq!(locked.state(), state);
                    prop_assert_eq!(table.peek(FolioId::new(at)), Peek { locked: true, ..*entry });
                }
                TableCall::Flags(at, pinned, marker, dropped_behind) if chunks.contains(&(at / 512)) => {
                    let mut locked = table.try_lock(FolioId::new(at), &Never).unwrap();
                    locked.set_pinned(pinned);
                    locked.set_marker(marker);
                    locked.set_dropped_behind(dropped_behind);
                    let flags = (locked.pinned(), locked.marker(), locked.dropped_behind());
                    prop_assert_eq!(flags, (pinned, marker, dropped_behind));
                    let entry = model.entry(at).or_insert(empty);
                    *entry = Peek { pinned, marker, dropped_behind, ..*entry };
                }
                TableCall::LayDown(at) if chunks.contains(&(at / 512)) => {
                    let folio = table.lock(FolioId::new(at), &Never).into_raw();
                    prop_assert!(table.try_lock(folio, &Never).is_none());
                    prop_assert!(table.peek(folio).locked);
                    drop(table.locked_from_raw(folio, &Never));
                    table.wait_unlocked(folio, &Never);
                }
                _ => {}
            }
        }
        for at in 0..NR_FOLIOS {
            prop_assert_eq!(table.peek(FolioId::new(at)), *model.get(&at).unwrap_or(&empty));
        }
    }

    #[test]
    fn the_slot_map_is_a_set(calls in prop::collection::vec(slot_call(), 1..400)) {
        let map = SlotMap::new(Order::HUGE);
        let cpu = CpuId::new(0);
        let (mut nr_slots, mut next) = (0usize, 0usize);
        let (mut used, mut bad) = (BTreeSet::new(), BTreeSet::new());
        for call in calls {
            match call {
                SlotCall::Grow(to) => {
                    map.grow(to);
                    nr_slots = nr_slots.max(to);
                }
                SlotCall::Allocate | SlotCall::AllocateNear(_) => {
                    let (from, got) = match call {
                        SlotCall::AllocateNear(prev) => (prev + 1, map.allocate_near(SlotId::from_index(prev))),
                        _ => (next, map.allocate(cpu, Order::HUGE)),
                    };
                    let from = if from < nr_slots { from } else { 0 };
                    let expected = (from..nr_slots).chain(0..from).find(|slot| !used.contains(slot));
                    prop_assert_eq!(got, expected.map(SlotId::from_index));
                    if let Some(slot) = expected {
                        used.insert(slot);
                        next = slot + 1;
                    }
                }
                SlotCall::Free(slot) if used.contains(&slot) => {
                    map.free(SlotId::from_index(slot), Order::HUGE);
                    if !bad.contains(&slot) {
                        used.remove(&slot);
                    }
                }
                SlotCall::Bad(slot) if slot < nr_slots => {
                    map.mark_bad(SlotId::from_index(slot));
                    used.insert(slot);
                    bad.insert(slot);
                }
                SlotCall::Free(_) | SlotCall::Bad(_) => {}
            }
            map.verify();
            prop_assert_eq!((map.nr_slots(), map.nr_used(), map.nr_bad()), (nr_slots, used.len(), bad.len()));
        }
    }
}

#[test]
#[should_panic(expected = "was not taken")]
fn a_slot_is_not_freed_twice() {
    let map = SlotMap::new(Order::HUGE);
    map.grow(4);
    let slot = map.allocate(CpuId::new(0), Order::HUGE).unwrap();
    map.free(slot, Order::HUGE);
    map.free(slot, Order::HUGE);
}
