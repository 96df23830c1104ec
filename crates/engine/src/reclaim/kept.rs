//! Copies that can be given up: those in slots of folios that are in RAM and not on standby. When no other slots are
//! free, theirs are freed.
//!
//! There is one bit per pageblock. It is set when a folio in the pageblock keeps a copy, and cleared by the thread that
//! searches the pageblock. So a fault that finds swap full looks at bits, not at all folios. A set bit may be stale,
//! because copies go away in many ways; a clear bit is always right. Accesses are relaxed: a bit that is seen late is
//! found by the next search.

use folioswap_core::{FolioId, FrameId, List};

use crate::block::Block;
use crate::engine::Engine;

/// Pageblocks that one call searches. With small folios each has 512 of them.
const MOST_PAGEBLOCKS: usize = 4;

/// Frees copies of folios in RAM that are not on standby, in a few pageblocks. Returns whether there were any.
pub(crate) fn shed_copies(engine: &Engine) -> bool {
    (0..MOST_PAGEBLOCKS).map_while(|_| engine.kept_copies().take()).any(|pageblock| shed_copies_in(engine, pageblock))
}

fn shed_copies_in(engine: &Engine, pageblock: FrameId) -> bool {
    let mut freed = false;
    engine.ram().zone(pageblock).pageblocks().folios_in(pageblock, &mut |frame, folio, _| {
        #[cfg(test)]
        engine.kept_copies().nr_looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match engine.try_lock(folio.block()) {
            Some(mut block) => freed |= shed_copy(engine, &mut block, folio, frame),
            None => engine.kept_copies().note(frame), // try again later
        }
    });
    freed
}

/// Whether a folio is in these frames and keeps a copy that can be given up.
fn keeps_copy(engine: &Engine, block: &Block<'_>, index: usize, frame: FrameId) -> bool {
    let folio = block.folio(index);
    folio.frame() == Some(frame) && folio.slot().is_some() && engine.ram().zone(frame).list(frame) != Some(List::Clean)
}

fn shed_copy(engine: &Engine, block: &mut Block<'_>, folio: FolioId, frame: FrameId) -> bool {
    let index = block.index_of(folio.page_in_block());
    let sheds = keeps_copy(engine, block, index, frame);
    if sheds {
        block.release_slot(index);
    }
    sheds
}

/// The same for all of RAM, regardless of the bits. Walks all folios: only for callers with no other choice.
pub(crate) fn shed_all_copies(engine: &Engine) -> bool {
    let mut freed = false;
    for (frame, folio, _) in engine.ram().zones().all_folios() {
        if let Some(mut block) = engine.try_lock(folio.block()) {
            freed |= shed_copy(engine, &mut block, folio, frame);
        }
    }
    freed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::arena::region::ArenaVec;
    use crate::arena::tuning::Tuning;
    use crate::device::DeviceSpec;
    use crate::process::cpu::current_cpu;
    use folioswap_core::{BLOCK_PAGES, Order, PAGE_SIZE};
    use std::sync::atomic::Ordering::Relaxed;

    const MIB: usize = 1 << 20;

    fn nr_looks(engine: &Engine) -> usize {
        engine.kept_copies().nr_looks.load(Relaxed)
    }

    fn use_up_slots(engine: &Engine) {
        while engine.swap().allocate(current_cpu(), Order::PAGE).is_some() {}
    }

    #[test]
    fn copies_of_mapped_folios_make_room_in_a_full_space() {
        let device = DeviceSpec::Ram { size: 32 << 20 };
        let arena = Arena::builder().memory(32 << 20).device(device).folio(Order::HUGE).build().unwrap();
        let mut words = ArenaVec::<u64>::zeroed(&arena, 14 * MIB / 8).unwrap();
        words.fill(1);
        arena.evict_all();
        assert!(words.iter().all(|&word| word == 1), "mapped again, their copies kept");
        let engine = arena.engine();
        use_up_slots(engine);
        assert!(shed_copies(engine));
        assert!(engine.swap().allocate(current_cpu(), Order::PAGE).is_some());
        assert!(words.iter().all(|&word| word == 1));
    }

    #[test]
    fn a_full_space_without_copies_is_not_looked_through_for_each_folio() {
        let device = DeviceSpec::Ram { size: 32 << 20 };
        let arena = Arena::builder()
            .memory(16 << 20)
            .device(device)
            .folio(Order::PAGE)
            .tuning(Tuning { compaction: None, ..Tuning::default() })
            .build()
            .unwrap();
        let mut words = ArenaVec::<u64>::zeroed(&arena, 8 * MIB / 8).unwrap();
        words.fill(1);
        let engine = arena.engine();
        use_up_slots(engine);
        let before = nr_looks(engine);
        arena.evict_all();
        assert!(words.iter().all(|&word| word == 1), "there was no place to go to");
        assert_eq!(nr_looks(engine) - before, 0, "{} folios are in RAM", 8 * MIB / PAGE_SIZE);
    }

    #[test]
    fn a_search_in_vain_ends_after_a_few_pageblocks() {
        let device = DeviceSpec::Ram { size: 32 << 20 };
        let arena = Arena::builder()
            .memory(32 << 20)
            .device(device)
            .folio(Order::PAGE)
            .tuning(Tuning { compaction: None, ..Tuning::default() })
            .build()
            .unwrap();
        let mut words = ArenaVec::<u64>::zeroed(&arena, 20 * MIB / 8).unwrap();
        words.fill(1);
        let engine = arena.engine();
        engine.ram().zones().all_folios().for_each(|(frame, _, _)| engine.kept_copies().note(frame));
        let before = nr_looks(engine);
        assert!(!shed_copies(engine));
        assert!((1..=MOST_PAGEBLOCKS * BLOCK_PAGES).contains(&(nr_looks(engine) - before)));
    }

    /// However folios were swapped in and moved, every copy is noted.
    #[test]
    fn every_copy_is_noted() {
        for order in [None, Some(Order::PAGE), Order::new(4), Some(Order::HUGE)] {
            let builder = Arena::builder().memory(32 << 20).device(DeviceSpec::Ram { size: 256 << 20 });
            let builder = if let Some(order) = order { builder.folio(order) } else { builder };
            let arena = builder.build().unwrap();
            let mut words = ArenaVec::<u64>::zeroed(&arena, 64 * MIB / 8).unwrap();
            words.iter_mut().enumerate().for_each(|(at, word)| *word = at as u64);
            for stride in [1, 5003, 77_777] {
                let places = (0..1500).map(|turn| turn * stride % (words.len() / 4096) * 4096);
                assert_eq!(places.filter(|&at| words[at] != at as u64).count(), 0);
                arena.compact();
                check_all_noted(arena.engine());
            }
        }
    }

    fn check_all_noted(engine: &Engine) {
        for (frame, folio, _) in engine.ram().zones().all_folios() {
            let locked = engine.lock(folio.block());
            let index = locked.index_of(folio.page_in_block());
            if keeps_copy(engine, &locked, index, frame) {
                assert!(engine.kept_copies().is_noted(frame), "{folio:?} in {frame:?}");
            }
        }
    }
}
