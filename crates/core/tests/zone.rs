//! The zone against a plain model of it, on random sequences of calls. A failure prints the shortest sequence that
//! shows it and the seed that found it.
#![cfg(not(loom))]

use folioswap_core::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug)]
enum ZoneCall {
    Limit(usize),
    Take(usize),
    Give(usize, bool),
    Surplus,
    Own(usize, u32, Option<u32>),
    Insert(usize, List, bool),
    Remove(usize),
    Oldest(List),
    Rotate(usize, List),
    Disown(usize),
    ChangeOwner(usize, u32),
    Balance,
}

const NR_BLOCKS: usize = 40;

fn zone_call() -> impl Strategy<Value = ZoneCall> {
    let list = || prop_oneof![Just(List::Active), Just(List::Inactive), Just(List::Laundry), Just(List::Standby)];
    let block = || 0..NR_BLOCKS;
    prop_oneof![
        1 => (0..=NR_BLOCKS).prop_map(ZoneCall::Limit),
        8 => (0..6usize).prop_map(ZoneCall::Take),
        3 => (block(), any::<bool>()).prop_map(|(at, populated)| ZoneCall::Give(at, populated)),
        2 => Just(ZoneCall::Surplus),
        3 => (block(), 0..100u32, prop::option::of(0..100u32)).prop_map(|(at, f, s)| ZoneCall::Own(at, f, s)),
        8 => (block(), list(), any::<bool>()).prop_map(|(at, list, tail)| ZoneCall::Insert(at, list, tail)),
        2 => block().prop_map(ZoneCall::Remove),
        3 => list().prop_map(ZoneCall::Oldest),
        2 => (block(), list()).prop_map(|(at, list)| ZoneCall::Rotate(at, list)),
        1 => block().prop_map(ZoneCall::Disown),
        1 => (block(), 0..100u32).prop_map(|(at, folio)| ZoneCall::ChangeOwner(at, folio)),
        1 => Just(ZoneCall::Balance),
    ]
}

/// What a zone is, without links: who holds what, and four queues with the oldest in front.
#[derive(Default)]
struct ZoneModel {
    limit: usize,
    free: VecDeque<FrameId>,
    /// Owner and slot of each block that is taken.
    taken: BTreeMap<FrameId, Option<(FolioId, Option<SlotId>)>>,
    lists: [VecDeque<FrameId>; 4],
}

impl ZoneModel {
    fn populated(&self) -> usize {
        self.taken.len() + self.free.len()
    }

    fn free(&self) -> usize {
        let fresh = self.limit.saturating_sub(self.populated());
        self.limit.saturating_sub(self.taken.len()).min(self.free.len() + fresh)
    }

    fn list_of(&self, frame: FrameId) -> Option<usize> {
        self.lists.iter().position(|list| list.contains(&frame))
    }

    fn off(&mut self, frame: FrameId) -> Option<List> {
        let list = self.list_of(frame)?;
        self.lists[list].retain(|&other| other != frame);
        Some([List::Active, List::Inactive, List::Laundry, List::Standby][list])
    }

    fn check(&self, zone: &Zone) -> Result<(), TestCaseError> {
        zone.verify();
        let counts = zone.counts();
        let [active, inactive, laundry, standby] = [0, 1, 2, 3].map(|list| self.lists[list].len());
        let expected = ZoneCounts {
            free: self.free(),
            standby,
            active,
            inactive,
            laundry,
            in_use: self.taken.len(),
            limit: self.limit,
            populated: self.populated(),
        };
        prop_assert_eq!(counts, expected);
        prop_assert_eq!(zone.available(), expected.free + standby);
        prop_assert_eq!(zone.surplus(), self.populated().saturating_sub(self.limit));
        for frame in (0..NR_BLOCKS).map(FrameId::from_index) {
            let owner = self.taken.get(&frame).copied().flatten();
            prop_assert_eq!(zone.owner(frame), owner.map(|(folio, _)| folio));
            prop_assert_eq!(zone.slot(frame), owner.and_then(|(_, slot)| slot));
            if owner.is_some() {
                prop_assert_eq!(zone.list(frame).map(|list| list as usize), self.list_of(frame));
            }
        }
        Ok(())
    }

    fn apply(&mut self, zone: &Zone, call: ZoneCall) -> Result<(), TestCaseError> {
        match call {
            ZoneCall::Insert(..)
            | ZoneCall::Remove(_)
            | ZoneCall::Oldest(_)
            | ZoneCall::Rotate(..)
            | ZoneCall::Balance => self.apply_to_lists(zone, call)?,
            _ => self.apply_to_blocks(zone, call)?,
        }
        self.check(zone)
    }

    fn apply_to_blocks(&mut self, zone: &Zone, call: ZoneCall) -> Result<(), TestCaseError> {
        let frame_at = |at: usize| FrameId::from_index(at);
        match call {
            ZoneCall::Limit(limit) => {
                zone.set_limit(limit);
                self.limit = limit;
            }
            ZoneCall::Take(reserve) => {
                let expected = self.free() > reserve;
                let taken = zone.take(reserve);
                prop_assert_eq!(taken.is_some(), expected);
                if let Some(Taken { frame, fresh }) = taken {
                    prop_assert_eq!(fresh, self.free.is_empty(), "a block with memory is preferred");
                    prop_assert!(fresh || self.free.pop_back() == Some(frame));
                    prop_assert!(self.taken.insert(frame, None).is_none(), "taken twice");
                }
            }
            ZoneCall::Give(at, populated) if self.taken.contains_key(&frame_at(at)) => {
                self.off(frame_at(at));
                self.taken.remove(&frame_at(at));
                if populated {
                    zone.give(frame_at(at));
                    self.free.push_back(frame_at(at));
                } else {
                    zone.give_unpopulated(frame_at(at));
                }
            }
            ZoneCall::Surplus => {
                let expected = if self.populated() > self.limit { self.free.pop_front() } else { None };
                let got = zone.take_surplus();
                prop_assert_eq!(got, expected);
                got.into_iter().for_each(|frame| zone.give_unpopulated(frame));
            }
            ZoneCall::Own(at, folio, slot) if self.taken.contains_key(&frame_at(at)) => {
                let (folio, slot) = (FolioId::new(folio), slot.map(SlotId::new));
                zone.set_owner(frame_at(at), folio, None);
                zone.set_slot(frame_at(at), slot);
                self.taken.insert(frame_at(at), Some((folio, slot)));
            }
            ZoneCall::Disown(at) if self.taken.contains_key(&frame_at(at)) => {
                zone.disown(frame_at(at));
                self.off(frame_at(at));
                self.taken.insert(frame_at(at), None);
            }
            ZoneCall::ChangeOwner(at, folio) => {
                if let Some(Some((owner, _))) = self.taken.get_mut(&frame_at(at)) {
                    *owner = FolioId::new(folio);
                    zone.change_owner(frame_at(at), *owner);
                }
            }
            _ => {} // of a block that is not taken
        }
        Ok(())
    }

    fn apply_to_lists(&mut self, zone: &Zone, call: ZoneCall) -> Result<(), TestCaseError> {
        let frame_at = |at: usize| FrameId::from_index(at);
        match call {
            ZoneCall::Insert(at, list, tail) => {
                let frame = frame_at(at);
                // Only what has an owner goes on a list; from another list, too.
                if self.taken.get(&frame).is_some_and(Option::is_some) {
                    self.off(frame);
                    if tail {
                        zone.insert_tail(frame, list);
                        self.lists[list as usize].push_front(frame);
                    } else {
                        zone.insert(frame, list);
                        self.lists[list as usize].push_back(frame);
                    }
                }
            }
            ZoneCall::Remove(at) if self.taken.contains_key(&frame_at(at)) => {
                prop_assert_eq!(zone.remove(frame_at(at)), self.off(frame_at(at)));
            }
            ZoneCall::Oldest(list) => {
                let oldest = self.lists[list as usize].front();
                let expected = oldest.map(|frame| (*frame, self.taken[frame].unwrap().0));
                prop_assert_eq!(zone.oldest(list), expected);
            }
            ZoneCall::Rotate(at, list) if self.taken.contains_key(&frame_at(at)) => {
                zone.rotate(frame_at(at), list);
                if self.list_of(frame_at(at)) == Some(list as usize) {
                    self.off(frame_at(at));
                    self.lists[list as usize].push_back(frame_at(at));
                }
            }
            ZoneCall::Balance => {
                zone.balance();
                let mapped = self.lists[0].len() + self.lists[1].len();
                while self.lists[1].len() * 3 < mapped {
                    let oldest = self.lists[0].pop_front().unwrap();
                    self.lists[1].push_back(oldest);
                }
            }
            _ => {} // of a block that is not taken
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn the_zone_is_four_queues(calls in prop::collection::vec(zone_call(), 1..300)) {
        let zone = Zone::new(Order::HUGE, NR_BLOCKS);
        let mut model = ZoneModel::default();
        model.apply(&zone, ZoneCall::Limit(NR_BLOCKS / 2))?;
        for call in calls {
            model.apply(&zone, call)?;
        }
    }

    #[test]
    fn watermarks_are_ordered_and_below_half(nr_blocks in 0usize..100_000) {
        let Watermarks { min, low, high } = Watermarks::for_blocks(nr_blocks);
        prop_assert!(min <= low && low <= high);
        prop_assert!(high * 2 < nr_blocks.max(1));
    }
}

#[test]
#[should_panic(expected = "not taken")]
fn a_block_is_not_freed_twice() {
    let zone = Zone::new(Order::HUGE, 4);
    zone.set_limit(4);
    let frame = zone.take(0).unwrap().frame;
    zone.give(frame);
    zone.give(frame);
}

#[test]
fn a_block_on_its_way_to_the_kernel_is_not_surplus_twice() {
    let zone = Zone::new(Order::HUGE, 4);
    zone.set_limit(4);
    let frames: Vec<_> = (0..4).map(|_| zone.take(0).unwrap().frame).collect();
    frames.iter().for_each(|&frame| zone.give(frame));
    zone.set_limit(3);
    let leaving = zone.take_surplus().unwrap();
    assert_eq!(leaving, frames[0], "the coldest goes");
    assert_eq!((zone.surplus(), zone.take_surplus()), (0, None));
    assert_eq!(zone.counts().populated, 4, "its memory is still there");
    zone.give_unpopulated(leaving);
    assert_eq!(zone.counts().populated, 3);
    zone.set_limit(4);
    (0..3).for_each(|_| assert!(!zone.take(0).unwrap().fresh));
    assert_eq!(zone.take(0), Some(Taken { frame: leaving, fresh: true }));
    zone.verify();
}
