//! What an arena asks of a kernel that counts what programs could use (`vm.overcommit_memory=2`): not much beyond its budget.
//! In a process of its own, for it is the process that is looked at.

use folioswap::{Arena, Codec, DeviceSpec};

const MIB: usize = 1 << 20;

/// A line of a file of the kernel's, in bytes.
fn line_of(file: &str, name: &str) -> usize {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Bytes of private memory that this process could write.
fn writable_bytes() -> usize {
    line_of("/proc/self/status", "VmData:")
}

#[test]
fn little_more_than_the_budget_is_writable() {
    // Stacks of threads, buffers of writes; records of as many frames as the budget might ever have.
    let most_beside = 64 * MIB + line_of("/proc/meminfo", "MemTotal:") / 128;
    let before = writable_bytes();
    let front = DeviceSpec::Zram { size: 1 << 30, codec: Codec::default() };
    let arena = Arena::builder().memory(64 << 20).device(front).build().unwrap();
    let beside = |mib: usize| writable_bytes() - before - mib * MIB;
    assert!(beside(64) < most_beside, "{} MiB", beside(64) / MIB);
    arena.set_memory(96 << 20).unwrap();
    assert!(beside(96) < most_beside, "{} MiB", beside(96) / MIB);

    let mut region = arena.map(256 * MIB).unwrap();
    region.chunks_exact_mut(8).enumerate().for_each(|(at, word)| word.copy_from_slice(&(at as u64 / 7).to_le_bytes()));
    assert!(region.chunks_exact(8).enumerate().all(|(at, word)| word == (at as u64 / 7).to_le_bytes()));
    // What the device holds, and where objects of each size may lie next.
    let held = arena.devices()[0].memory.unwrap().memory_bytes as usize / MIB;
    assert!(beside(96 + 256 + held) < 4 * most_beside, "{} MiB", beside(96 + 256 + held) / MIB);
}
