//! The consistency check of a whole zone: every record, chain and count against the others.
//!
//! **Locking.** The caller holds the zone's mutex. Only reads; allocates nothing.

use super::buddy::{BLOCK, Block, Memory, chain_of};
use super::frames::Frames;
use super::lists::{Chain, FrameState, List, NONE, Record, Size};
use crate::order::{MAX_ORDER, Order};
use crate::packed::Packed;

/// Sums over the records of all pageblocks.
#[derive(Default)]
struct Found {
    /// Heads expected in each chain of runs.
    runs: [usize; MAX_ORDER as usize + 3],
    /// Folios and frames on each list of each class.
    lists: [[(usize, usize); 4]; 2],
    free: usize,
    taken: usize,
    isolated: usize,
    leaving: usize,
}

/// Panics at the first inconsistency.
pub(super) fn verify(frames: &Frames) {
    let blocks = &frames.buddy.blocks;
    assert!(blocks.len() <= frames.buddy.nr_blocks_max);
    assert_eq!(frames.records.len(), blocks.len() * BLOCK, "records of the pageblocks");
    assert!(frames.limit.is_multiple_of(BLOCK) && frames.limit <= frames.buddy.nr_blocks_max * BLOCK);
    let mut found = Found::default();
    for (index, block) in blocks.iter().enumerate() {
        verify_block(frames, frames.buddy.id_of(index).first_frame(), block, &mut found);
    }
    assert_eq!(
        (found.free, found.taken, found.isolated, found.leaving),
        (frames.buddy.free, frames.buddy.taken, frames.buddy.isolated, frames.buddy.leaving),
        "frames free, taken, isolated and leaving"
    );
    verify_runs(frames, &found);
    verify_lists(frames, &found);
}

fn verify_block(frames: &Frames, first: u32, block: &Block, found: &mut Found) {
    let (mut at, end, taken_before) = (first, first + BLOCK as u32, found.taken);
    while at < end {
        let record = &frames.records[at];
        let nr_frames = record.order.nr_pages() as u32;
        assert!(record.place != FrameState::Inner, "frame {at} is the inner frame of nothing");
        assert!(at.is_multiple_of(nr_frames), "frame {at} heads order {}", record.order);
        assert!(record.order == Order::HUGE || block.memory == Memory::Small, "frame {at} in undivided memory");
        for inner in at + 1..at + nr_frames {
            let Record { place, owner, .. } = frames.records[inner];
            assert_eq!((place, owner), (FrameState::Inner, Packed::NONE), "frame {inner} is an inner one");
        }
        verify_head(frames, at, record, block, found);
        at += nr_frames;
    }
    assert_eq!(found.taken - taken_before, block.nr_taken as usize, "frames taken in the pageblock of {first}");
}

fn verify_head(frames: &Frames, at: u32, record: &Record, block: &Block, found: &mut Found) {
    let nr_frames = record.order.nr_pages();
    let absent = record.place == FrameState::Absent;
    assert_eq!(absent, block.memory == Memory::Absent, "frame {at} has memory or not");
    assert!(record.place.taken() || record.owner == Packed::NONE, "frame {at} is free and has an owner");
    match record.place {
        FrameState::Absent => found.runs[chain_of(record.order, block.memory)] += 1,
        FrameState::Free => {
            found.runs[chain_of(record.order, block.memory)] += 1;
            found.free += nr_frames;
            if record.order < Order::HUGE {
                let buddy = &frames.records[at ^ nr_frames as u32];
                let joined = buddy.place != FrameState::Free || buddy.order != record.order;
                assert!(joined, "frame {at} and its buddy are both free");
            }
        }
        FrameState::Held => found.taken += nr_frames,
        FrameState::On(list) => {
            assert!(record.owner != Packed::NONE, "frame {at} is on a list for nobody");
            found.taken += nr_frames;
            let (nr_folios, nr_listed) = &mut found.lists[Size::of(record.order) as usize][list as usize];
            (*nr_folios, *nr_listed) = (*nr_folios + 1, *nr_listed + nr_frames);
        }
        FrameState::Isolated => {
            assert!(record.order < Order::HUGE, "frame {at} is isolated with the rest of its pageblock");
            found.isolated += nr_frames;
        }
        FrameState::Leaving => {
            assert_eq!(record.order, Order::HUGE, "frame {at} leaves without the rest of its pageblock");
            found.leaving += nr_frames;
        }
        FrameState::Inner => unreachable!("the caller looked"),
    }
}

fn verify_runs(frames: &Frames, found: &Found) {
    for (index, chain) in frames.buddy.chains.iter().enumerate() {
        verify_chain(frames, chain, |at, record| {
            assert!(matches!(record.place, FrameState::Free | FrameState::Absent), "frame {at} is not a run");
            assert_eq!(chain_of(record.order, frames.buddy.memory(at)), index, "frame {at} is in another's chain");
        });
        assert_eq!(chain.len, found.runs[index], "runs in chain {index}");
    }
}

fn verify_lists(frames: &Frames, found: &Found) {
    for (size, list) in Size::ALL.into_iter().flat_map(|size| List::ALL.map(|list| (size, list))) {
        let folios = frames.lists.of(size, list);
        verify_chain(frames, &folios.chain, |at, record| {
            assert_eq!((Size::of(record.order), record.place), (size, FrameState::On(list)), "the list of frame {at}");
        });
        let expected = found.lists[size as usize][list as usize];
        assert_eq!((folios.chain.len, folios.nr_frames), expected, "folios and frames on {size:?} {list:?}");
    }
}

fn verify_chain(frames: &Frames, chain: &Chain, check: impl Fn(u32, &Record)) {
    let (mut at, mut prev, mut len) = (chain.head, NONE, 0);
    while at != NONE {
        let record = &frames.records[at];
        assert_eq!(record.prev, prev, "the links of frame {at}");
        check(at, record);
        (prev, at, len) = (at, record.next, len + 1);
        assert!(len <= frames.records.len(), "a chain has a loop");
    }
    assert_eq!((chain.tail, chain.len), (prev, len), "the end of a chain");
}
