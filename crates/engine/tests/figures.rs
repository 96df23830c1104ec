//! Each device's own figures: they add up to the totals, and count that device only.

use folioswap::{Arena, ArenaVec, DeviceInfo, DeviceSpec, FolioSize, Order, SwapDevice, Tuning};

const MIB: usize = 1 << 20;

fn arena(devices: &[&str], folio: FolioSize) -> Arena {
    // Compaction does I/O of its own.
    let mut builder =
        Arena::builder().memory(16 << 20).folio(folio).tuning(Tuning { compaction: None, ..Tuning::default() });
    for device in devices {
        builder = builder.device(device.parse::<SwapDevice>().unwrap());
    }
    builder.build().unwrap()
}

fn file(name: &str) -> String {
    let base = std::env::var_os("FOLIOSWAP_DIR").unwrap_or_else(|| "/var/tmp".into());
    let path = std::path::Path::new(&base).join(format!("folioswap-figures-{name}-{}", std::process::id()));
    path.display().to_string()
}

/// Writes 64 MiB, and checks them page by page: in sequence, which is read ahead, or in steps of `stride`.
fn sweep(arena: &Arena, stride: usize) {
    let mut words = ArenaVec::<u64>::zeroed(arena, 64 * MIB / 8).unwrap();
    words.iter_mut().enumerate().for_each(|(at, word)| *word = at as u64 | 1 << 60);
    let pages = words.len() / 512;
    for turn in 0..pages {
        let at = turn * stride % pages * 512;
        assert_eq!(words[at], at as u64 | 1 << 60);
    }
}

fn sum(devices: &[DeviceInfo], of: impl Fn(&DeviceInfo) -> u64) -> u64 {
    devices.iter().map(of).sum()
}

#[test]
fn the_devices_add_up_to_the_whole() {
    // Only these orders: a page of a larger folio with one hash is read together with the rest of its piece.
    for (name, folio, stride) in
        [("huge", FolioSize::Fixed(Order::HUGE), 1), ("small", FolioSize::Fixed(Order::PAGE), 5003)]
    {
        let arena = arena(&[&format!("{},prio=3", file(name)), "ram:96M,prio=3"], folio);
        sweep(&arena, stride);
        let (devices, stats) = (arena.devices(), arena.stats());
        assert_eq!((stats.io_errors, stats.verify_failures), (0, 0));
        let (read, written) =
            (sum(&devices, |device| device.io.reads.bytes), sum(&devices, |device| device.io.writes.bytes));
        assert!(stats.swapped_out_bytes > 40 << 20 && stats.swapped_in_bytes > 40 << 20, "{stats:?}");
        assert_eq!(read, stats.swapped_in_bytes, "{devices:?}");
        // A folio that was touched during its write does not count as swapped out.
        let swapped_out = stats.swapped_out_bytes;
        assert!((swapped_out..swapped_out + (8 << 20)).contains(&written), "{swapped_out}: {devices:?}");
        for device in &devices {
            assert!(device.io.writes.bytes > 16 << 20 && device.io.reads.bytes > 16 << 20, "{device:?}");
            assert!(
                device.io.peak_used_bytes >= device.used_bytes && device.io.peak_used_bytes <= 96 << 20,
                "{device:?}"
            );
            assert_eq!(device.io.in_flight, 0, "{device:?}");
        }
        let [file, ram] = devices.as_slice() else { panic!("two devices: {devices:?}") };
        for transfers in [&file.io.reads, &file.io.writes] {
            assert_eq!(transfers.latency.count(), transfers.calls);
            assert!(transfers.latency.quantile(0.5) > 1000 && transfers.latency.quantile(0.99) < 10_000_000_000);
        }
        assert!(file.io.mean_in_flight() >= 1.0 && file.io.mean_in_flight() <= file.io.most_in_flight as f64);
        assert_eq!((ram.io.reads.latency.count(), ram.io.most_in_flight), (0, 0), "memory is not timed");
        assert!(ram.io.reads.calls > 0 && ram.io.writes.calls > 0);
    }
}

#[test]
fn a_device_that_comes_later_begins_at_zero() {
    let arena = arena(&["ram:64M"], FolioSize::Fixed(Order::HUGE));
    sweep(&arena, 1);
    arena.add_device(&DeviceSpec::Ram { size: 32 << 20 }).unwrap();
    let [first, second] = &arena.devices()[..] else { panic!("two devices") };
    assert!(first.io.writes.bytes > 40 << 20);
    assert_eq!(second.io, folioswap::DeviceIo::default());
    arena.remove_device("ram:64M").unwrap();
    arena.add_device(&DeviceSpec::Ram { size: 64 << 20 }).unwrap();
    assert!(
        arena.devices().iter().all(|device| device.io == folioswap::DeviceIo::default()),
        "of a place that is used again"
    );
}
