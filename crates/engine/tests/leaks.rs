//! An arena leaves nothing behind, and costs nothing while nobody uses it.

use std::fs;
use std::time::Duration;

use folioswap::{Arena, ArenaVec, FaultMode, Order};
use folioswap_sys::cpu;

fn count(path: &str) -> usize {
    fs::read_dir(path).unwrap().count()
}

/// Resident KiB of this process.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn use_an_arena(faults: FaultMode) {
    let arena = Arena::builder().memory(16 << 20).faults(faults).build().unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, (48 << 20) / 8).unwrap();
    words.iter_mut().enumerate().for_each(|(at, word)| *word = at as u64);
    assert!(words.iter().enumerate().all(|(at, &word)| word == at as u64));
}

/// One test for both, so that neither sees the other's threads.
#[test]
fn nothing_is_left_behind_and_idle_costs_nothing() {
    use_an_arena(FaultMode::Direct); // what is allocated only once stays
    let before = (count("/proc/self/fd"), count("/proc/self/task"));
    let resident = resident_kib();
    for _ in 0..10 {
        use_an_arena(FaultMode::Direct);
        use_an_arena(FaultMode::Auto);
    }
    // The kernel still lists joined threads, and workers of closed rings, for a moment.
    let after = || (count("/proc/self/fd"), count("/proc/self/task"));
    let ended = (0..600).any(|_| after() == before || (std::thread::sleep(Duration::from_millis(100)), false).1);
    assert!(ended, "descriptors and threads: {:?}, before {before:?}", after());
    let grown = resident_kib().saturating_sub(resident);
    assert!(grown < 4096, "{grown} KiB more than before");

    let arena = Arena::builder().memory(16 << 20).build().unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, (48 << 20) / 8).unwrap();
    words.fill(1);
    // Faults without a device, after each of which a monitor thread looks for the next fault.
    let quick = Arena::builder().memory(16 << 20).folio(Order::PAGE).build().unwrap();
    if quick.fault_mode() != FaultMode::Monitor {
        println!("SKIP a thread that looks for the next fault: faults are not for threads of the engine here");
    }
    ArenaVec::<u64>::zeroed(&quick, (4 << 20) / 8).unwrap().fill(1);
    // The sleep is not for synchronisation: idle time is measured. Writes in flight end before that, on a busy machine
    // after some seconds.
    let idle = || {
        let begun = cpu::process_cpu_time();
        std::thread::sleep(Duration::from_secs(2));
        cpu::process_cpu_time() - begun
    };
    let used: Vec<_> =
        std::iter::repeat_with(idle).take(30).take_while(|used| *used >= Duration::from_millis(2)).collect();
    assert!(used.len() < 30, "{used:?} of CPU in two idle seconds each");
}
