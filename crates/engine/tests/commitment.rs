//! An arena commits little memory beyond its budget, which matters with strict overcommit (`vm.overcommit_memory=2`).
//! In a process of its own, because the figures are those of the process.

use folioswap::{Arena, Codec, DeviceSpec};

const MIB: usize = 1 << 20;

/// A line of a kernel file, in bytes.
fn line_of(file: &str, name: &str) -> usize {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Bytes of private writable memory of this process.
fn writable_bytes() -> usize {
    line_of("/proc/self/status", "VmData:")
}

/// Limits the private writable memory of this process.
fn deny_more_than(bytes: usize) {
    let limit = libc::rlimit { rlim_cur: bytes as u64, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel reads a local limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) }, 0);
}

#[test]
fn little_more_than_the_budget_is_writable() {
    // Stacks of threads, write buffers, and records for the most frames that the budget might ever have.
    let most_beside = 64 * MIB + line_of("/proc/meminfo", "MemTotal:") / 128;
    let before = writable_bytes();
    let front = DeviceSpec::Zram { size: 1 << 30, codec: Codec::default() };
    let arena = Arena::builder().memory(64 << 20).device(front).build().unwrap();
    let beside = |mib: usize| writable_bytes() - before - mib * MIB;
    assert!(beside(64) < most_beside, "{} MiB", beside(64) / MIB);
    arena.set_memory(96 << 20).unwrap();
    assert!(beside(96) < most_beside, "{} MiB", beside(96) / MIB);

    // Pages that compress to many different sizes.
    let mut region = arena.map(256 * MIB).unwrap();
    let word = |page: usize, at: usize| {
        if at < page % 512 { ((page * 512 + at) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { 7 }
    };
    for (page, bytes) in region.chunks_exact_mut(4096).enumerate() {
        bytes
            .chunks_exact_mut(8)
            .enumerate()
            .for_each(|(at, bytes)| bytes.copy_from_slice(&word(page, at).to_le_bytes()));
    }
    let mut pages = region.chunks_exact(4096).enumerate();
    assert!(pages.all(|(page, bytes)| {
        bytes.chunks_exact(8).enumerate().all(|(at, bytes)| bytes == word(page, at).to_le_bytes())
    }));
    // What the device holds, and the open areas for objects of each size.
    let held = arena.devices()[0].memory.unwrap().memory_bytes as usize / MIB;
    assert!(beside(96 + 256 + held) < most_beside + 256 * MIB, "{} MiB", beside(96 + 256 + held) / MIB);

    // A budget that the kernel refuses leaves the old one.
    deny_more_than(writable_bytes() + 16 * MIB);
    assert!(arena.set_memory(4 << 30).is_err() && arena.memory() == 96 << 20);
    region.fill(3);
    assert!(region.iter().all(|&byte| byte == 3));

    drop((region, arena));
    deny_more_than(libc::RLIM_INFINITY as usize);
    compressed_ram_that_is_denied_memory_is_full();
    deny_more_than(libc::RLIM_INFINITY as usize);
    compressed_ram_that_is_denied_memory_uses_what_it_has();
}

/// Called, as the next, by the test above once it has lifted its limit, because tests at the same time would change
/// each other's figures.
fn compressed_ram_that_is_denied_memory_is_full() {
    let front = DeviceSpec::Zram { size: 64 << 20, codec: Codec::default() };
    let behind = DeviceSpec::Ram { size: 128 << 20 };
    let arena = Arena::builder().memory(16 << 20).device(front).device(behind).build().unwrap();
    let mut region = arena.map(64 * MIB).unwrap();
    deny_more_than(writable_bytes() + MIB);
    let byte = |page: usize| 1 + (page % 251) as u8;
    region.chunks_exact_mut(4096).enumerate().for_each(|(page, bytes)| bytes.fill(byte(page)));
    let mut pages = region.chunks_exact(4096).enumerate();
    assert!(pages.all(|(page, bytes)| bytes.iter().all(|&found| found == byte(page))));
    let devices = arena.devices();
    assert_eq!(devices[0].memory.unwrap().content_bytes, 0);
    assert!(devices[1].used_bytes >= 32 << 20, "{devices:?}");
}

/// Objects of a size that it has not had yet go where larger ones have been.
fn compressed_ram_that_is_denied_memory_uses_what_it_has() {
    let device = DeviceSpec::Zram { size: 256 << 20, codec: Codec::default() };
    let arena = Arena::builder().memory(16 << 20).device(device).build().unwrap();
    let mut region = arena.map(64 * MIB).unwrap();
    // One word in so many compresses badly.
    let word = |at: usize, one_in: usize| {
        if at.is_multiple_of(one_in) { (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { 1 }
    };
    for one_in in [4, 8, 16, 32, 64] {
        let words = || 0..64 * MIB / 8;
        let of_bytes = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        region.chunks_exact_mut(8).zip(words()).for_each(|(bytes, at)| {
            bytes.copy_from_slice(&word(at, one_in).to_le_bytes());
        });
        assert!(region.chunks_exact(8).zip(words()).all(|(bytes, at)| of_bytes(bytes) == word(at, one_in)));
        deny_more_than(writable_bytes() + MIB);
    }
}
