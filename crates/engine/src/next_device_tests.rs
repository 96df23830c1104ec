//! The last slot of a device and the first one of the next are neighbours as numbers, and nothing else: what lies in both is
//! neither written nor read in one go. Devices are small here (`DEVICE_SHIFT`), so that one can have all the slots it may.

use folioswap_core::{Access, CpuId, DeviceId, FrameId, List, Locked, Order, PAGE_SIZE, SlotId, State};

use crate::arena::Arena;
use crate::device::{Device, FileDevice};
use crate::engine::Engine;
use crate::failing::DeviceErrors;
use crate::outgoing::Batch;
use crate::reclaim::Washed;
use crate::region::ArenaVec;
use crate::removal::Buffer;
use crate::stopwatch::Stopwatch;

/// An arena whose first device has only its last slot free, and a block of it, each page of which holds its number.
fn nearly_full(folio: Order) -> (Arena, ArenaVec<u64>) {
    let file = || Box::new(FileDevice::unlinked_in(&std::env::temp_dir(), None).unwrap()) as Box<dyn Device>;
    let arena = Arena::builder().memory(32 << 20).folio(folio).build_on(vec![file(), file()]).unwrap();
    let space = &arena.engine().space;
    let whole = || space.allocate_on_one(&[DeviceId::new(0)], CpuId::new(0), Order::HUGE);
    let last = std::iter::from_fn(whole).max().unwrap().plus(511);
    assert_eq!(space.device_of(last.plus(1)), DeviceId::new(1), "the next number is another device's");
    space.free_now(last, Order::PAGE);
    let mut words = ArenaVec::zeroed(&arena, Order::HUGE.bytes() / 8).unwrap();
    words.iter_mut().enumerate().for_each(|(at, word)| *word = (at * 8 / PAGE_SIZE) as u64 + 1);
    (arena, words)
}

fn lock<'e>(engine: &'e Engine, words: &ArenaVec<u64>) -> Locked<'e> {
    engine.lock(engine.page_at(words.as_ptr() as usize).block())
}

/// Whether a slot holds what page `page` does.
fn holds(engine: &Engine, slot: SlotId, page: usize) -> bool {
    let mut buffer = Buffer::new();
    let bytes = buffer.pages(1);
    engine.space.read(slot, bytes).unwrap();
    bytes.chunks(8).all(|word| word == (page as u64 + 1).to_ne_bytes())
}

/// The first two pages, unmapped, and the neighbouring slots that they are to go to.
fn wash_two(engine: &Engine, locked: &mut Locked<'_>) -> [(FrameId, SlotId); 2] {
    let [first, next] = [0, 1].map(|index| {
        let frame = locked.folio(index).frame().unwrap();
        (frame, engine.wash_now(locked, index, frame).unwrap())
    });
    assert_eq!(next.1.get(), first.1.get() + 1);
    assert_ne!(engine.space.device_of(first.1), engine.space.device_of(next.1));
    [first, next]
}

/// The first two pages, each on a device of its own and not in RAM.
fn swap_two_out(engine: &Engine, locked: &mut Locked<'_>) {
    for (index, (frame, slot)) in wash_two(engine, locked).into_iter().enumerate() {
        assert!(engine.write_one(locked, index, frame, slot));
        engine.leave(locked, index, frame);
    }
}

fn assert_no_errors(arena: &Arena) {
    assert!(arena.devices().iter().all(|device| device.errors == DeviceErrors::default()), "{:?}", arena.devices());
}

#[test]
fn a_batch_ends_with_its_device() {
    let (arena, words) = nearly_full(Order::PAGE);
    let engine = arena.engine();
    let mut locked = lock(engine, &words);
    let two = wash_two(engine, &mut locked);
    let mut batch: Option<Batch<'_>> = None;
    for (index, (frame, slot)) in two.into_iter().enumerate() {
        engine.send(&mut batch, &mut locked, index, frame, slot);
    }
    engine.write_batch(batch.unwrap(), |engine, written| engine.settle_beside(&mut locked, written));
    assert_eq!(two.map(|(_, slot)| locked.folios().iter().any(|folio| folio.slot() == Some(slot))), [true; 2]);
    for (page, (_, slot)) in two.into_iter().enumerate() {
        assert!(holds(engine, slot, page), "page {page} was lost");
    }
}

#[test]
fn parts_of_a_block_are_written_to_each_device() {
    let (arena, words) = nearly_full(Order::HUGE);
    let engine = arena.engine();
    let mut locked = lock(engine, &words);
    let State::Resident(frame) = locked.state(0) else { panic!("it was just written") };
    engine.unmap(&mut locked, 0, frame).unwrap();
    engine.zones.of(frame).insert(frame, List::Laundry);
    assert!(matches!(engine.write_parts(&mut locked, frame, Order::PAGE), Washed::Clean));
    let slots: Vec<_> = locked.folios().iter().map(|folio| folio.slot().unwrap()).collect();
    assert_ne!(engine.space.device_of(slots[0]), engine.space.device_of(slots[1]));
    let lost: Vec<_> = (0..slots.len()).filter(|&page| !holds(engine, slots[page], page)).collect();
    assert_eq!(lost, [], "pages that were lost");
}

#[test]
fn what_is_carried_elsewhere_is_written_to_each_device() {
    let (arena, words) = nearly_full(Order::PAGE);
    let engine = arena.engine();
    let places = [0, 1].map(|_| engine.space.allocate(CpuId::new(0), Order::PAGE).unwrap());
    let mut locked = lock(engine, &words);
    let mut buffer = Buffer::new();
    let bytes = buffer.pages(2);
    for (page, bytes) in bytes.chunks_mut(PAGE_SIZE).enumerate() {
        bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&(page as u64 + 1).to_ne_bytes()));
        let frame = locked.folio(page).frame().unwrap();
        let slot = engine.wash_now(&mut locked, page, frame).unwrap();
        assert!(engine.write_one(&mut locked, page, frame, slot));
        engine.leave(&mut locked, page, frame);
    }
    assert!(engine.put_elsewhere(&mut locked, 0, bytes, &places));
    for (page, slot) in places.into_iter().enumerate() {
        assert_eq!(locked.state(page), State::Swapped(slot));
        assert!(holds(engine, slot, page), "page {page} was lost");
    }
}

#[test]
fn what_lies_on_two_devices_is_gathered_from_both() {
    let (arena, words) = nearly_full(Order::PAGE);
    let engine = arena.engine();
    let mut locked = lock(engine, &words);
    swap_two_out(engine, &mut locked);
    let taken = engine.try_take_frame(Order::HUGE, 0);
    let gathered = engine.gather(&mut locked, taken, List::Inactive, &mut Stopwatch::still());
    assert!(gathered.is_ok_and(|gathered| gathered), "all of it can be read");
    drop(locked);
    assert!(words.iter().enumerate().all(|(at, &word)| word == (at * 8 / PAGE_SIZE) as u64 + 1));
    assert_no_errors(&arena);
}

#[test]
fn what_lies_on_two_devices_is_read_ahead_from_both() {
    let (arena, words) = nearly_full(Order::PAGE);
    let engine = arena.engine();
    let mut locked = lock(engine, &words);
    swap_two_out(engine, &mut locked);
    assert!(engine.read_parts(&mut locked, None, CpuId::new(0)).is_ok());
    assert!((0..2).all(|page| matches!(locked.state(page), State::Resident(_))));
    drop(locked);
    assert!(words.iter().enumerate().all(|(at, &word)| word == (at * 8 / PAGE_SIZE) as u64 + 1));
    assert_no_errors(&arena);
}

#[test]
fn an_access_that_overruns_does_not_read_past_a_device() {
    let (arena, words) = nearly_full(Order::PAGE);
    let engine = arena.engine();
    let mut locked = lock(engine, &words);
    swap_two_out(engine, &mut locked);
    let access = Access { page: locked.name(0), offset: PAGE_SIZE - 8, thread: 1 };
    while !engine.overruns.wants_next(access) {
        engine.overruns.note(Access { page: locked.name(1), ..access });
    }
    // One of them is no trial.
    assert!((0..4).all(|_| !engine.read_both(&mut locked, access, &mut Stopwatch::still())));
    assert_no_errors(&arena);
}
