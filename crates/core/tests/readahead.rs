//! Readahead on clean streams, where each advice is known, and on random mixtures, where it has to keep its promises.
#![cfg(not(loom))]

use folioswap_core::policy::readahead::{FIRST_WINDOW, STREAMS_MAX};
use folioswap_core::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const ROOM: Room = Room { max_window: 16, max_total: 96 };

fn ids(range: std::ops::Range<u32>) -> std::ops::Range<BlockId> {
    BlockId::new(range.start)..BlockId::new(range.end)
}

/// A thread that walks over blocks, with an engine that maps advised blocks at once. Returns the number of touches and
/// the blocks reported as passed.
fn walk(streams: &Streams, thread: u64, blocks: impl Iterator<Item = u32>, room: Room) -> (usize, BTreeSet<u32>) {
    let (mut mapped, mut behind, mut touches) = (BTreeSet::new(), BTreeSet::new(), 0);
    for at in blocks {
        if mapped.remove(&at) {
            continue;
        }
        touches += 1;
        let Some(advice) = streams.observe(thread, BlockId::new(at), room) else { continue };
        for window in advice.windows.iter() {
            let marker = advice.marker(window);
            mapped.extend(BlockId::each(window.clone()).filter(|&block| block != marker).map(BlockId::get));
        }
        for block in BlockId::each(advice.behind) {
            assert!(behind.insert(block.get()), "{block:?} was reported passed before");
        }
    }
    (touches, behind)
}

#[test]
fn two_touches_make_a_stream_and_windows_double() {
    let streams = Streams::default();
    let observe = |block| streams.observe(1, BlockId::new(block), ROOM);
    assert_eq!(observe(100), None);
    let first = observe(101).unwrap();
    assert_eq!(first.windows[..], [ids(102..104), ids(104..108)]);
    assert!(!first.backward && first.behind.start >= first.behind.end);
    let second = observe(102).unwrap();
    assert_eq!(second.windows[..], [ids(108..116)]);
    assert_eq!(second.behind, ids(100..101));
    assert_eq!(observe(104).unwrap().windows[..], [ids(116..132)]);
    let third = observe(108).unwrap();
    assert_eq!(third.windows[..], [ids(132..148)], "a window holds 16 at most");
    assert_eq!(third.behind, ids(103..107));
    assert_eq!(third.marker(&third.windows[0]), BlockId::new(132));
    assert_eq!(observe(109).map(|advice| advice.windows.len()), Some(0), "a late window is no reason for more");
}

#[test]
fn a_backward_stream_is_the_mirror_image() {
    let streams = Streams::default();
    assert_eq!(streams.observe(1, BlockId::new(20), ROOM), None);
    let advice = streams.observe(1, BlockId::new(19), ROOM).unwrap();
    assert!(advice.backward);
    assert_eq!(advice.windows[..], [ids(17..19), ids(13..17)]);
    assert_eq!(advice.marker(&advice.windows[0]), BlockId::new(18));
    let advice = streams.observe(1, BlockId::new(18), ROOM).unwrap();
    assert_eq!((&advice.windows[..], advice.behind), (&[ids(5..13)][..], ids(20..21)));
    let advice = streams.observe(1, BlockId::new(16), ROOM).unwrap();
    assert_eq!(advice.windows[..], [ids(0..5)], "nothing lies below block 0");
}

#[test]
fn a_long_walk_touches_one_folio_a_window_and_leaves_everything_behind() {
    for backward in [false, true] {
        let streams = Streams::default();
        let (touches, behind) =
            if backward { walk(&streams, 1, (0..4096).rev(), ROOM) } else { walk(&streams, 1, 0..4096, ROOM) };
        assert!(touches <= 4096 / 16 + 8, "{touches} touches");
        assert!(behind.len() >= 4096 - 3 * 16, "{} of 4096 were reported passed", behind.len());
    }
}

#[test]
fn a_second_round_is_served_from_its_third_touch() {
    let streams = Streams::default();
    walk(&streams, 1, 0..512, ROOM);
    assert_eq!(streams.observe(1, BlockId::new(0), ROOM), None);
    let advice = streams.observe(1, BlockId::new(1), ROOM).unwrap();
    assert!(!advice.windows.is_empty());
    let (touches, _) = walk(&streams, 1, 2..512, ROOM);
    assert!(touches <= 512 / 16 + 16, "{touches} touches");
}

#[test]
fn streams_of_one_thread_and_of_many_do_not_disturb_each_other() {
    let streams = Streams::default();
    let copy = (0..1024).flat_map(|at| [at, 10_000 + at, 30_000 - at]);
    let (touches, _) = walk(&streams, 1, copy, ROOM);
    assert!(touches < 3 * 1024 / 8, "{touches} touches for three streams");

    let streams = Streams::default();
    let mut asked = [0; STREAMS_MAX];
    for at in 0..200 {
        for (thread, asked) in asked.iter_mut().enumerate() {
            let block = BlockId::from_index(thread * 1000 + at);
            let room = Room { max_window: 16, max_total: 640 };
            *asked += streams.observe(thread as u64, block, room).map_or(0, |advice| advice.windows.len());
        }
    }
    assert!(asked.iter().all(|&asked| asked > 0), "{asked:?}");
}

#[test]
fn random_touches_do_not_displace_a_stream() {
    let streams = Streams::default();
    streams.observe(1, BlockId::new(0), ROOM);
    streams.observe(1, BlockId::new(1), ROOM);
    for touch in 0..500u32 {
        streams.observe(2 + u64::from(touch % 100), BlockId::new(touch.wrapping_mul(7919) % 90_000 * 3), ROOM);
    }
    assert!(streams.observe(1, BlockId::new(2), ROOM).is_some());
}

#[test]
fn what_is_forgotten_starts_anew() {
    let streams = Streams::default();
    walk(&streams, 1, 0..64, ROOM);
    walk(&streams, 2, 1000..1064, ROOM);
    streams.forget_blocks(ids(0..100));
    assert!(!streams.is_empty());
    streams.forget_blocks(ids(900..1100));
    assert!(streams.is_empty());
    assert_eq!(streams.observe(1, BlockId::new(64), ROOM), None);
    streams.forget_all();
    assert_eq!(streams.len(), 0);
}

#[test]
fn no_room_no_windows() {
    for room in [Room { max_window: 0, max_total: 10 }, Room { max_window: 4, max_total: 0 }] {
        let streams = Streams::default();
        for at in 0..10 {
            let advice = streams.observe(1, BlockId::new(at), room);
            assert!(advice.is_none_or(|advice| advice.windows.is_empty()));
        }
    }
}

proptest! {
    #[test]
    fn promises_hold_on_any_touches(
        touches in prop::collection::vec((0u64..6, 0usize..4, 0u32..4), 1..600),
        max_window in 0usize..40,
        max_total in 0usize..200,
    ) {
        let streams = Streams::default();
        // Each thread's cursors: near both ends of the space and in the middle.
        let mut cursors = [[0u32, 50, u32::MAX - 3, 1_000_000]; 6];
        let room = Room { max_window, max_total };
        for (thread, cursor, step) in touches {
            let at = &mut cursors[thread as usize][cursor];
            *at = if cursor == 1 { at.saturating_sub(step) } else { at.saturating_add(step) };
            let touch = *at;
            let Some(advice) = streams.observe(thread, BlockId::new(touch), room) else { continue };
            let mut asked = 0;
            let mut edge = None;
            for window in advice.windows.iter() {
                let (start, end) = (window.start.get(), window.end.get());
                prop_assert!(start < end && (end - start) as usize <= max_window);
                prop_assert!(if advice.backward { end <= touch } else { start > touch }, "ahead of the touch");
                let near = if advice.backward { end } else { start };
                prop_assert!(edge.is_none_or(|edge| edge == near), "windows follow each other");
                edge = Some(if advice.backward { start } else { end });
                asked += (end - start) as usize;
            }
            prop_assert!(asked <= max_total);
            if let Some(edge) = edge {
                let ahead = if advice.backward { touch - edge } else { edge - 1 - touch };
                prop_assert!(ahead as usize <= max_total.max(FIRST_WINDOW));
            }
            if advice.behind.start < advice.behind.end {
                let (start, end) = (advice.behind.start.get(), advice.behind.end.get());
                prop_assert!(if advice.backward { start > touch } else { end <= touch }, "behind the touch");
            }
            prop_assert!(streams.len() <= STREAMS_MAX);
        }
    }
}
