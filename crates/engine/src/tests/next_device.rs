//! A device's last slot and the next device's first slot have consecutive numbers, but must not be written or read in
//! one I/O. Devices are small here (`Layout::device_shift`), so that one can have all of its slots.

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;

use folioswap_core::{BLOCK_PAGES, CpuId, DeviceId, List, Order, PAGE_SIZE, SlotId, State};

use crate::arena::Arena;
use crate::arena::region::ArenaVec;
use crate::block::Block;
use crate::device::{Device, FileDevice};
use crate::engine::Engine;
use crate::fault::gather::gather;
use crate::fault::runs::{self, Arrival};
use crate::process::stopwatch::Stopwatch;
use crate::process::turns::asleep;
use crate::reclaim::write_out::{self, Batch};
use crate::reclaim::{evict, in_parts};
use crate::swap::block::Buffer;
use crate::swap::health::DeviceErrors;

/// An arena whose first device has only its last slot free, and a block of memory in which each page holds its number.
fn nearly_full(folio: Order) -> (Arena, ArenaVec<u64>) {
    let file = || Box::new(FileDevice::unlinked_in(&std::env::temp_dir(), None).unwrap()) as Box<dyn Device>;
    let arena = Arena::builder().memory(32 << 20).folio(folio).device_shift(16).build_on(vec![file(), file()]).unwrap();
    let space = &arena.engine().swap();
    let whole = || space.allocate_on_one(&[DeviceId::new(0)], CpuId::new(0), Order::HUGE);
    let last = std::iter::from_fn(whole).max().unwrap().plus(511);
    assert_eq!(space.devices().device_of(last.plus(1)), DeviceId::new(1), "the next number is another device's");
    space.put_back_slots(last, Order::PAGE);
    let mut words = ArenaVec::zeroed(&arena, Order::HUGE.bytes() / 8).unwrap();
    words.iter_mut().enumerate().for_each(|(at, word)| *word = (at * 8 / PAGE_SIZE) as u64 + 1);
    (arena, words)
}

fn lock<'e>(engine: &'e Engine, words: &ArenaVec<u64>) -> Block<'e> {
    engine.lock(engine.table().page_at(words.as_ptr() as usize).block())
}

/// Whether a slot holds the content of page `page`.
fn holds(engine: &Engine, slot: SlotId, page: usize) -> bool {
    let mut buffer = Buffer::new();
    let bytes = buffer.pages(1);
    engine.swap().read(slot, bytes).unwrap();
    bytes.chunks(8).all(|word| word == (page as u64 + 1).to_ne_bytes())
}

/// The slot to which a resident page must be written. Retries, because the kernel may use the page for a moment.
fn wash(engine: &Engine, locked: &mut Block<'_>, page: usize) -> SlotId {
    std::iter::repeat_with(|| evict::wash_now(engine, locked, page)).find_map(|slot| slot).unwrap()
}

/// The first two pages, unmapped, and the consecutive slots to which they must be written.
fn wash_two(engine: &Engine, locked: &mut Block<'_>) -> [SlotId; 2] {
    let [first, next] = [0, 1].map(|index| wash(engine, locked, index));
    assert_eq!(next.get(), first.get() + 1);
    assert_ne!(engine.swap().devices().device_of(first), engine.swap().devices().device_of(next));
    [first, next]
}

/// Moves the first two pages out of RAM, each to another device.
fn swap_two_out(engine: &Engine, locked: &mut Block<'_>) {
    for (index, slot) in wash_two(engine, locked).into_iter().enumerate() {
        assert!(locked.write_one(index, slot));
        engine.ram().leave(locked, index);
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
    for (index, slot) in two.into_iter().enumerate() {
        write_out::send(engine, &mut batch, &mut locked, index, slot);
    }
    write_out::write_batch(engine, batch.unwrap(), |engine, written| {
        write_out::settle_beside(engine, &mut locked, written)
    });
    assert_eq!(two.map(|slot| locked.folios().iter().any(|folio| folio.slot() == Some(slot))), [true; 2]);
    for (page, slot) in two.into_iter().enumerate() {
        assert!(holds(engine, slot, page), "page {page} was lost");
    }
}

#[test]
fn parts_of_a_block_are_written_to_each_device() {
    let (arena, words) = nearly_full(Order::HUGE);
    let engine = arena.engine();
    let mut locked = lock(engine, &words);
    while locked.unmap_to_laundry(0).is_err() {}
    assert!(in_parts::write(engine, &mut locked, Order::PAGE));
    let slots: Vec<_> = locked.folios().iter().map(|folio| folio.slot().unwrap()).collect();
    assert_ne!(engine.swap().devices().device_of(slots[0]), engine.swap().devices().device_of(slots[1]));
    let lost: Vec<_> = (0..slots.len()).filter(|&page| !holds(engine, slots[page], page)).collect();
    assert_eq!(lost, [], "pages that were lost");
}

#[test]
fn what_is_carried_elsewhere_is_written_to_each_device() {
    let (arena, words) = nearly_full(Order::PAGE);
    let engine = arena.engine();
    let places = [0, 1].map(|_| engine.swap().allocate(CpuId::new(0), Order::PAGE).unwrap());
    let mut locked = lock(engine, &words);
    let mut buffer = Buffer::new();
    let bytes = buffer.pages(2);
    for (page, bytes) in bytes.chunks_mut(PAGE_SIZE).enumerate() {
        bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&(page as u64 + 1).to_ne_bytes()));
        let slot = wash(engine, &mut locked, page);
        assert!(locked.write_one(page, slot));
        engine.ram().leave(&mut locked, page);
    }
    assert!(locked.put_elsewhere(0, bytes, &places));
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
    let taken = engine.ram().try_take(engine.table(), Order::HUGE, 0);
    let gathered = asleep(gather(engine, &mut locked, taken, List::Inactive, &mut Stopwatch::still()));
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
    let read = runs::read_parts(engine, &mut locked, 0..BLOCK_PAGES, Arrival::Mapped, CpuId::new(0));
    assert!(asleep(read).is_ok());
    assert!((0..2).all(|page| matches!(locked.state(page), State::Resident(_))));
    drop(locked);
    assert!(words.iter().enumerate().all(|(at, &word)| word == (at * 8 / PAGE_SIZE) as u64 + 1));
    assert_no_errors(&arena);
}

/// A device of 16 TiB that uses memory only for what was written.
#[derive(Default)]
struct Sparse(Mutex<HashMap<u64, Vec<u8>>>);

impl Device for Sparse {
    fn limit_bytes(&self) -> Option<u64> {
        Some(16 << 40)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let pages = self.0.lock().unwrap();
        for (at, page) in (offset..).step_by(PAGE_SIZE).zip(bytes.chunks_mut(PAGE_SIZE)) {
            page.copy_from_slice(&pages[&at]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let pages = (offset..).step_by(PAGE_SIZE).zip(bytes.chunks(PAGE_SIZE).map(<[u8]>::to_vec));
        self.0.lock().unwrap().extend(pages);
        Ok(())
    }

    fn name(&self) -> String {
        "sparse".into()
    }
}

#[test]
fn a_device_is_used_beyond_512_gib() {
    const BYTES: u64 = 520 << 30;
    let device: Box<dyn Device> = Box::<Sparse>::default();
    let arena = Arena::builder().memory(16 << 20).build_on(vec![device]).unwrap();
    let space = &arena.engine().swap();
    for _ in 0..BYTES / Order::HUGE.bytes() as u64 {
        assert!(space.allocate(CpuId::new(0), Order::HUGE).is_some());
    }
    let mut words = ArenaVec::<u64>::zeroed(&arena, (64 << 20) / 8).unwrap();
    words.iter_mut().zip(1..).for_each(|(word, number)| *word = number);
    assert!(words.iter().zip(1..).all(|(&word, number)| word == number));
    let device = &arena.devices()[0];
    assert!(device.used_bytes > BYTES && device.size_bytes == Some(16 << 40), "{device:?}");
    assert_no_errors(&arena);
}
