//! Swap in compressed RAM: the content that comes back, the memory used, and where content goes that does not fit.

use folioswap::{Advice, Arena, Codec, DeviceInfo, DeviceSpec, FolioSize, Region, SwapDevice};
use folioswap_core::{Order, PAGE_SIZE};

const MIB: usize = 1 << 20;

fn zram(mib: usize, codec: Codec) -> DeviceSpec {
    DeviceSpec::Zram { size: (mib * MIB) as u64, codec }
}

/// A page that compresses about three to one, and depends on its number.
fn fill_page(page: &mut [u8], number: usize, round: u8) {
    for (at, byte) in page.iter_mut().enumerate() {
        *byte = if at % 32 < 6 { (number.wrapping_mul(0x9e37_79b9) >> (at % 29)) as u8 ^ at as u8 } else { round | 1 };
    }
}

/// A page that does not compress.
fn fill_noise(page: &mut [u8], number: usize, _round: u8) {
    let mut state = number as u64 + 1;
    for byte in page.iter_mut() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 56) as u8;
    }
}

type Fill = fn(&mut [u8], usize, u8);

fn fill(region: &mut Region, fill: Fill, round: u8) {
    region.chunks_mut(PAGE_SIZE).enumerate().for_each(|(number, page)| fill(page, number, round));
}

fn is_right(region: &Region, fill: Fill, round: u8) -> bool {
    let mut expected = vec![0; PAGE_SIZE];
    region.chunks(PAGE_SIZE).enumerate().all(|(number, page)| {
        fill(&mut expected, number, round);
        page == expected
    })
}

fn arena(devices: &[SwapDevice]) -> Arena {
    let builder = Arena::builder().memory(16 << 20);
    devices.iter().cloned().fold(builder, |builder, device| builder.device(device)).build().unwrap()
}

fn info(arena: &Arena, name: &str) -> DeviceInfo {
    arena.devices().into_iter().find(|device| device.name.starts_with(name)).unwrap()
}

#[test]
fn every_folio_comes_back_from_less_memory_than_it_is() {
    for codec in [Codec::Lz4, Codec::Zstd] {
        for size in [
            FolioSize::Auto,
            FolioSize::Fixed(Order::PAGE),
            FolioSize::Fixed(Order::new(4).unwrap()),
            FolioSize::Fixed(Order::HUGE),
        ] {
            let arena = arena(&[zram(24, codec).into()]);
            let mut region = arena.map_with(36 * MIB, size).unwrap();
            fill(&mut region, fill_page, 2);
            arena.evict_all();
            let memory = info(&arena, "zram").memory.unwrap();
            assert!(memory.content_bytes >= 20 << 20, "{memory:?}");
            assert!(memory.memory_bytes * 2 < memory.content_bytes, "{codec:?} {size:?}: {memory:?}");
            assert!(is_right(&region, fill_page, 2), "{codec:?} {size:?}");
            fill(&mut region, fill_page, 4);
            assert!(is_right(&region, fill_page, 4), "{codec:?} {size:?}");
            arena.evict_all();
            let memory = info(&arena, "zram").memory.unwrap();
            assert!(memory.content_bytes >= 20 << 20 && memory.memory_bytes <= memory.limit_bytes, "{memory:?}");
            // Groups that freed objects left partly empty come on top; how many depends on the order of the frees.
            assert!(memory.kept_bytes * 2 < memory.content_bytes, "{codec:?} {size:?}: {memory:?}");
            drop(region);
            let _ = arena.stats();
            let memory = info(&arena, "zram").memory.unwrap();
            assert_eq!(memory.content_bytes, 0);
            assert!(memory.memory_bytes <= 4 << 20, "what is not needed is given back: {memory:?}");
        }
    }
}

#[test]
fn a_part_comes_back_alone_and_a_part_goes() {
    let arena = arena(&[zram(64, Codec::Lz4).into()]);
    let mut region = arena.map_with(32 * MIB, FolioSize::Fixed(Order::HUGE)).unwrap();
    fill(&mut region, fill_page, 6);
    arena.evict_all();
    arena.set_swap_in(folioswap::SwapIn::Never);
    let mut expected = vec![0; PAGE_SIZE];
    for number in (0..region.len() / PAGE_SIZE).step_by(7) {
        fill_page(&mut expected, number, 6);
        assert!(region[number * PAGE_SIZE..][..PAGE_SIZE] == expected, "page {number}");
    }
    for number in (0..region.len() / PAGE_SIZE).step_by(2) {
        region.advise(number * PAGE_SIZE..(number + 1) * PAGE_SIZE, Advice::DontNeed);
    }
    arena.evict_all();
    for number in 0..region.len() / PAGE_SIZE {
        fill_page(&mut expected, number, 6);
        let page = &region[number * PAGE_SIZE..][..PAGE_SIZE];
        assert!(if number % 2 == 0 { page.iter().all(|&byte| byte == 0) } else { page == expected }, "page {number}");
    }
}

#[test]
fn what_does_not_compress_goes_to_the_next_device() {
    let next: SwapDevice = DeviceSpec::Ram { size: 128 << 20 }.into();
    let arena = arena(&[zram(64, Codec::Lz4).into(), next]);
    for size in [FolioSize::Fixed(Order::HUGE), FolioSize::Fixed(Order::PAGE)] {
        let mut region = arena.map_with(48 * MIB, size).unwrap();
        fill(&mut region, fill_noise, 0);
        assert!(is_right(&region, fill_noise, 0));
        arena.evict_all();
        assert!(info(&arena, "ram").used_bytes >= 40 << 20, "{size:?}");
        assert_eq!(info(&arena, "zram").memory.unwrap().content_bytes, 0, "{size:?}");
    }
}

#[test]
fn what_does_not_compress_and_has_nowhere_else_to_go_is_kept_as_it_is() {
    let arena = arena(&[zram(96, Codec::Lz4).into()]);
    let mut region = arena.map(64 * MIB).unwrap();
    fill(&mut region, fill_noise, 0);
    assert!(is_right(&region, fill_noise, 0));
    arena.evict_all();
    let memory = info(&arena, "zram").memory.unwrap();
    assert!(memory.content_bytes >= 48 << 20 && memory.memory_bytes >= memory.content_bytes, "{memory:?}");
}

#[test]
fn when_it_is_full_the_next_device_takes_over() {
    for size in [FolioSize::Auto, FolioSize::Fixed(Order::PAGE), FolioSize::Fixed(Order::HUGE)] {
        let next: SwapDevice = DeviceSpec::Ram { size: 256 << 20 }.into();
        let arena = arena(&[zram(16, Codec::Lz4).into(), next]);
        let mut region = arena.map_with(96 * MIB, size).unwrap();
        let memory_bytes = || info(&arena, "zram").memory.unwrap().memory_bytes;
        for round in [2, 4] {
            fill(&mut region, fill_page, round);
            let after_writing = memory_bytes();
            assert!((8 << 20..=16 << 20).contains(&after_writing), "{after_writing} bytes, {size:?}");
            assert!(is_right(&region, fill_page, round), "{size:?}");
            assert!(memory_bytes() <= 16 << 20, "{size:?}");
        }
        assert!(info(&arena, "ram").used_bytes >= 16 << 20, "{size:?}");
        assert_eq!(arena.stats().io_errors, 0);
    }
}

#[test]
fn half_of_it_dropped_page_by_page_is_room_for_as_much() {
    let arena = arena(&[zram(24, Codec::Lz4).into()]);
    let mut region = arena.map_with(44 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    let halves = |page: &mut [u8], number: usize, round| {
        page.fill(round);
        fill_noise(&mut page[..PAGE_SIZE / 2], number, round);
    };
    let fill_half = |region: &mut Region, odd: usize, round| {
        for (number, page) in region.chunks_mut(PAGE_SIZE).enumerate().filter(|(number, _)| number % 2 == odd) {
            halves(page, number, round);
        }
    };
    fill_half(&mut region, 0, 3);
    fill_half(&mut region, 1, 3);
    arena.evict_all();
    for number in (0..region.len() / PAGE_SIZE).step_by(2) {
        region.advise(number * PAGE_SIZE..(number + 1) * PAGE_SIZE, Advice::DontNeed);
    }
    fill_half(&mut region, 0, 5);
    let mut expected = vec![0; PAGE_SIZE];
    for (number, page) in region.chunks(PAGE_SIZE).enumerate() {
        halves(&mut expected, number, if number % 2 == 0 { 5 } else { 3 });
        assert!(page == expected, "page {number}");
    }
}

#[test]
fn one_that_is_removed_leaves_its_folios_to_another_when_the_front_is_full() {
    let devices = [
        zram(8, Codec::Lz4).into(),
        DeviceSpec::Ram { size: 48 << 20 }.into(),
        DeviceSpec::Ram { size: 96 << 20 }.into(),
    ];
    let arena = arena(&devices);
    let mut region = arena.map_with(72 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    fill(&mut region, fill_noise, 0);
    arena.evict_all();
    arena.remove_device("ram:48M").unwrap();
    assert!(is_right(&region, fill_noise, 0));
    assert_eq!(info(&arena, "zram").memory.unwrap().content_bytes, 0, "what does not compress is elsewhere");
}

#[test]
fn it_can_be_removed() {
    let arena = arena(&[zram(64, Codec::Lz4).into()]);
    let mut region = arena.map(64 * MIB).unwrap();
    fill(&mut region, fill_page, 8);
    arena.add_device(&DeviceSpec::Ram { size: 128 << 20 }).unwrap();
    arena.remove_device("zram:64M").unwrap();
    assert!(is_right(&region, fill_page, 8));
    arena.add_device(&zram(64, Codec::Zstd)).unwrap();
    arena.remove_device("ram:128M").unwrap();
    assert!(is_right(&region, fill_page, 8));
}

/// Waits for another thread's work.
fn comes_true(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_true() {
        assert!(begun.elapsed().as_secs() < 60, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_cold_goes_on_to_the_device_behind() {
    let file =
        || DeviceSpec::File { path: std::env::temp_dir().join(format!("zram-{}", std::process::id())), size: None };
    for (size, behind) in [
        (FolioSize::Fixed(Order::HUGE), DeviceSpec::Ram { size: 256 << 20 }),
        (FolioSize::Fixed(Order::PAGE), file()),
        (FolioSize::Fixed(Order::new(4).unwrap()), file()),
        (FolioSize::Auto, file()),
    ] {
        let behind: SwapDevice = behind.into();
        let arena = arena(&[zram(32, Codec::Lz4).into(), behind]);
        // The cold folios leave RAM first, and take so much of the front that the hot ones do not fit too.
        let mut cold = arena.map_with(72 * MIB, size).unwrap();
        fill(&mut cold, fill_page, 2);
        arena.evict_all();
        let mut hot = arena.map_with(48 * MIB, size).unwrap();
        for round in [4, 6] {
            fill(&mut hot, fill_page, round);
            assert!(is_right(&hot, fill_page, round));
            arena.evict_all();
        }
        comes_true("the front is relieved", || {
            let memory = info(&arena, "zram").memory.unwrap();
            arena.stats().written_back_bytes > 0 && memory.kept_bytes * 8 <= memory.limit_bytes * 7
        });
        let before = arena.stats();
        assert!(is_right(&hot, fill_page, 6));
        let after = arena.stats();
        assert!(after.swapped_in_bytes - before.swapped_in_bytes >= 24 << 20, "hot content was out of RAM");
        assert!(is_right(&cold, fill_page, 2), "{size:?}");
        assert_eq!((after.verify_failures, after.io_errors), (0, 0));
    }
}

#[test]
fn what_goes_on_and_will_come_back_by_pages_is_read_by_pages() {
    let path = std::env::temp_dir().join(format!("zram-pages-{}", std::process::id()));
    let arena = arena(&[zram(32, Codec::Lz4).into(), DeviceSpec::File { path, size: None }.into()]);
    let mut cold = arena.map_with(72 * MIB, FolioSize::Fixed(Order::HUGE)).unwrap();
    fill(&mut cold, fill_page, 2);
    arena.evict_all();
    arena.set_swap_in(folioswap::SwapIn::Never);
    let mut hot = arena.map(48 * MIB).unwrap();
    fill(&mut hot, fill_page, 4);
    arena.evict_all();
    comes_true("the front is relieved", || arena.stats().written_back_bytes >= 8 << 20);
    let read_bytes = || arena.devices().iter().find(|device| device.memory.is_none()).unwrap().io.reads.bytes;
    let (nr_blocks, mut nr_read, mut expected) = (cold.len() / (2 * MIB), 0, vec![0; PAGE_SIZE]);
    for index in 0..nr_blocks {
        let number = index * 11 % nr_blocks * 512 + 7 * index; // not a stream
        let before = read_bytes();
        fill_page(&mut expected, number, 2);
        assert!(cold[number * PAGE_SIZE..][..PAGE_SIZE] == expected, "page {number}");
        let read = read_bytes() - before;
        assert!(read == 0 || read == PAGE_SIZE as u64, "{read} bytes for page {number}");
        nr_read += read as usize / PAGE_SIZE;
    }
    assert!(nr_read >= 2, "none was behind");
}
