//! Streams and drop-behind.

use folioswap_core::{BlockId, DropBehind, Room, Streams};
use loom::sync::Arc;

use crate::{beside, check_within};

#[test]
fn streams_of_two_threads_are_two_whoever_ends() {
    const ROOM: Room = Room { max_window: 4, max_total: 12 };
    check_within(4, || {
        let streams = Arc::new(Streams::default());
        let walk = |streams: &Streams, thread: u32| {
            let [first, second] =
                [0, 1].map(|at| streams.observe(thread.into(), BlockId::new(100 * thread + at), ROOM));
            assert_eq!(first, None, "one touch is no stream");
            second
        };
        let ends = beside(&streams, move |streams| {
            let advice = walk(streams, 2);
            streams.forget_blocks(BlockId::new(200)..BlockId::new(300));
            advice
        });
        for (thread, advice) in [(1, walk(&streams, 1)), (2, ends.join().unwrap())] {
            let windows = advice.expect("two touches are one").windows;
            assert_eq!(windows[0].start, BlockId::new(100 * thread + 2), "each its own");
            let nr_ahead = windows[windows.len() - 1].end.index() - windows[0].start.index();
            assert!((2..=ROOM.max_total).contains(&nr_ahead));
        }
        assert_eq!(streams.len(), 1);
    });
}

#[test]
fn drop_behind_goes_on_once_for_two_who_pass_half_a_budget() {
    check_within(4, || {
        let drop_behind = Arc::new(DropBehind::default());
        let other = beside(&drop_behind, |drop_behind| drop_behind.passed(50, 100));
        let mine = drop_behind.passed(50, 100);
        assert_ne!(mine, other.join().unwrap(), "who came second");
        assert!(drop_behind.is_on());
        let other = beside(&drop_behind, |drop_behind| (0..4).for_each(|_| drop_behind.refaulted()));
        (0..4).for_each(|_| drop_behind.refaulted());
        other.join().unwrap();
        assert!(!drop_behind.is_on(), "no refault is lost");
    });
}
