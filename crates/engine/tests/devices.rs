//! Devices that come and go while the arena runs, rotational disks, and space that is given back.

use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use folioswap::{
    Advice, Arena, ArenaBuilder, ArenaVec, DeviceSpec, Error, FolioSize, NodeId, Order, SwapDevice, Topology, Tuning,
};

const MIB: usize = 1 << 20;

/// Held by tests that look at the process's open files.
static FILES: Mutex<()> = Mutex::new(());

fn ram(mib: usize) -> DeviceSpec {
    DeviceSpec::Ram { size: (mib * MIB) as u64 }
}

/// A file in a directory of its own, so that it can be found among the process's files.
fn file(directory: &std::path::Path) -> DeviceSpec {
    DeviceSpec::File { path: directory.join("swap"), size: None }
}

fn directory(name: &str) -> std::path::PathBuf {
    let base = std::env::var_os("FOLIOSWAP_DIR").unwrap_or_else(|| "/var/tmp".into());
    let directory = std::path::Path::new(&base).join(format!("folioswap-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Disk space of this process's unlinked open files in a directory.
fn bytes_on_disk(directory: &std::path::Path) -> u64 {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ours = files.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target.starts_with(directory)));
    ours.filter_map(|fd| std::fs::metadata(fd.path()).ok()).map(|meta| meta.blocks() * 512).sum()
}

fn builder(mib: usize) -> ArenaBuilder {
    Arena::builder().memory((mib * MIB) as u64)
}

fn fill(words: &mut [u64], round: u64) {
    words.iter_mut().enumerate().for_each(|(at, word)| *word = (at as u64) << 8 | round);
}

fn check(words: &[u64], round: u64) {
    let wrong = words.iter().enumerate().filter(|&(at, &word)| word != (at as u64) << 8 | round).count();
    assert_eq!(wrong, 0, "wrong words in round {round}");
}

fn words(arena: &Arena, mib: usize, round: u64) -> ArenaVec<u64> {
    let mut words = ArenaVec::zeroed(arena, mib * MIB / 8).unwrap();
    fill(&mut words, round);
    words
}

fn names(arena: &Arena) -> Vec<String> {
    arena.devices().into_iter().map(|device| device.name).collect()
}

fn assert_sound(arena: &Arena) {
    let stats = arena.stats();
    assert_eq!((stats.verify_failures, stats.io_errors), (0, 0));
}

/// Runs `change` while four threads write and read. Each has gone through its memory once, and does so at least twice
/// afterwards.
fn under_load(arena: &Arena, mib_each: usize, change: impl FnOnce()) {
    let (over, nr_begun) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (over, nr_begun) = (&over, &nr_begun);
            scope.spawn(move || {
                let mut left = 2;
                let mut round = thread;
                let mut words = words(arena, mib_each, round);
                nr_begun.fetch_add(1, Ordering::SeqCst);
                while left > 0 {
                    left -= usize::from(over.load(Ordering::SeqCst));
                    check(&words, round);
                    round = (round + 4) % 256;
                    fill(&mut words, round);
                }
                check(&words, round);
            });
        }
        while nr_begun.load(Ordering::SeqCst) < 4 {
            thread::yield_now();
        }
        let _ends = Over(&over); // even if `change` panics: otherwise the threads would run forever
        change();
    });
    assert_sound(arena);
}

/// Ends the threads when dropped.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Removes a device, and retries as long as the error asks for it: on a busy machine its folios may be in use each
/// time.
fn remove(arena: &Arena, name: &str) {
    while let Err(error) = arena.remove_device(name) {
        assert!(error.to_string().contains("try once more"), "{error}");
    }
}

#[test]
fn a_device_is_removed_under_load() {
    let small = Order::new(4).unwrap();
    for folio in [FolioSize::Auto, FolioSize::Fixed(small), FolioSize::Fixed(Order::PAGE)] {
        let path = directory("load");
        let arena = builder(16).folio(folio).device(file(&path)).device(ram(64)).build().unwrap();
        under_load(&arena, 10, || {
            let name = names(&arena).remove(0);
            assert!(arena.devices()[0].used_bytes > 0);
            remove(&arena, &name);
            assert_eq!(names(&arena), ["ram:64M"]);
            assert!(arena.devices()[0].used_bytes > 0, "what was there is here now");
            assert_eq!(bytes_on_disk(&path), 0, "the file is gone");
        });
        std::fs::remove_dir(&path).unwrap();
    }
}

#[test]
fn devices_come_and_go_under_load() {
    let arena = builder(16).device(ram(48)).build().unwrap();
    under_load(&arena, 8, || {
        for round in 0..6 {
            arena.add_device(&ram(50 + round)).unwrap();
            let name = names(&arena).swap_remove(round % 2);
            remove(&arena, &name);
            assert_eq!(names(&arena).len(), 1);
        }
    });
}

#[test]
fn what_has_nowhere_to_go_stays() {
    let arena = builder(16).device(ram(64)).device(ram(8)).build().unwrap();
    let mut words = words(&arena, 48, 1);
    let error = arena.remove_device("ram:64M").unwrap_err();
    assert!(matches!(&error, Error::SwapInUse { name, .. } if name == "ram:64M"), "{error}");
    assert!(error.to_string().contains("more --memory"), "{error}");
    assert_eq!(names(&arena), ["ram:64M", "ram:8M"]);
    check(&words, 1);
    fill(&mut words, 2);
    check(&words, 2);
    arena.remove_device("ram:8M").unwrap();
    check(&words, 2);
    arena.add_device(&ram(64)).unwrap();
    assert_eq!(names(&arena), ["ram:64M", "ram:64M#2"]);
    arena.remove_device("ram:64M").unwrap();
    check(&words, 2);
    assert!(matches!(arena.remove_device("ram:64M"), Err(Error::NoSuchDevice(_))));
    assert_sound(&arena);
}

#[test]
fn the_only_device_can_go_when_ram_has_room() {
    for folio in [FolioSize::Auto, FolioSize::Fixed(Order::PAGE)] {
        let arena = builder(32).folio(folio).device(ram(64)).build().unwrap();
        let mut words = words(&arena, 12, 3);
        words.region().advise(.., Advice::Cold);
        drop(self::words(&arena, 40, 4)); // pushes the others out
        assert!(arena.devices()[0].used_bytes >= 8 * MIB as u64, "{folio} {:?}", arena.devices());
        let read = arena.stats().swapped_in_bytes;
        arena.remove_device("ram:64M").unwrap();
        assert!(arena.devices().is_empty());
        assert!(arena.stats().swapped_in_bytes >= read + 8 * MIB as u64, "it was read back");
        check(&words, 3);
        fill(&mut words, 4);
        arena.evict_all();
        check(&words, 4);
        arena.add_device(&ram(64)).unwrap();
        let all_out = wait_until(|| {
            arena.evict_all();
            arena.devices()[0].used_bytes >= 12 * MIB as u64
        });
        assert!(all_out, "{folio}: {:?}, {:?}", arena.devices(), arena.stats());
        check(&words, 4);
        assert_sound(&arena);
    }
}

#[test]
fn a_device_can_be_added_and_used_while_running() {
    let arena = builder(16).device(ram(16)).build().unwrap();
    let first = words(&arena, 20, 1);
    arena.add_device(&ram(64)).unwrap();
    let second = words(&arena, 40, 2);
    assert!(arena.devices()[1].used_bytes > 0);
    check(&first, 1);
    check(&second, 2);
    let more = (2..32).map(|_| arena.add_device(&ram(2))).collect::<Result<Vec<_>, _>>();
    more.unwrap();
    assert!(matches!(arena.add_device(&ram(2)), Err(Error::TooManyDevices(32))));
    assert_sound(&arena);
}

/// The devices by priority, with the bytes in use.
fn used(arena: &Arena) -> Vec<(String, i32, u64)> {
    arena.devices().into_iter().map(|device| (device.name, device.priority.get(), device.used_bytes)).collect()
}

#[test]
fn higher_priorities_are_used_first_and_equal_ones_in_turns() {
    let device = |text: &str| text.parse::<SwapDevice>().unwrap();
    for folio in [Order::HUGE, Order::PAGE] {
        let arena = builder(16).folio(folio).device(ram(64)).device(device("ram:32M,prio=7")).build().unwrap();
        let first = words(&arena, 28, 1);
        arena.evict_all();
        let shown = used(&arena);
        assert_eq!(
            shown.iter().map(|(name, priority, _)| (&name[..], *priority)).collect::<Vec<_>>(),
            [("ram:32M", 7), ("ram:64M", -2)]
        );
        assert!(shown[0].2 > 8 << 20 && shown[1].2 == 0, "{folio}: {shown:?}");
        arena.add_device(&device("ram:66M,prio=9")).unwrap();
        arena.add_device(&device("ram:68M,prio=9")).unwrap();
        let second = words(&arena, 60, 2);
        arena.evict_all();
        let shown = used(&arena);
        let (a, b) = (shown[0].2, shown[1].2);
        assert!(a.min(b) > 8 << 20 && a.abs_diff(b) <= 8 << 20, "{folio}: {shown:?}");
        check(&first, 1);
        check(&second, 2);
        assert_sound(&arena);
    }
}

#[test]
fn the_device_of_a_node_is_removed_under_load() {
    let topology: Topology = "node 0 cpus 0\nnode 1 cpus 1-63\ndevice ram:64M node 1".parse().unwrap();
    let arena = builder(16).topology(topology).device("ram:66M,node=0".parse::<SwapDevice>().unwrap()).device(ram(64));
    let arena = arena.build().unwrap();
    let nodes: Vec<_> = arena.devices().into_iter().map(|device| device.node.map(NodeId::get)).collect();
    assert_eq!(nodes, [Some(0), Some(1)]);
    under_load(&arena, 12, || {
        for name in ["ram:66M", "ram:64M"] {
            arena.remove_device(name).unwrap();
            assert_eq!(used(&arena)[0].1, -2, "the other moves up");
            arena.add_device(&name.parse::<DeviceSpec>().unwrap()).unwrap();
        }
    });
    let refused = arena.add_device(&"ram:2M,node=2".parse::<SwapDevice>().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("no NUMA node 2"), "{refused}");
}

#[test]
fn a_disk_that_turns_keeps_what_it_is_given() {
    let arena =
        builder(16).tuning(Tuning { rotational: Some(true), ..Tuning::default() }).device(ram(64)).build().unwrap();
    let mut words = words(&arena, 40, 1);
    check(&words, 1);
    fill(&mut words, 2);
    check(&words, 2);
    words.region().advise(8 * MIB..16 * MIB, Advice::DontNeed);
    assert!(words[MIB..2 * MIB].iter().all(|&word| word == 0));
    assert_sound(&arena);
    arena.add_device(&ram(60)).unwrap();
    arena.remove_device("ram:64M").unwrap();
    assert!(words[MIB..2 * MIB].iter().all(|&word| word == 0));
    check(&words[..MIB], 2);
}

/// Waits for something that the reclaim thread does by itself.
fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(120) {
        if is_so() {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn a_file_of_a_stated_size_has_its_space_from_the_start() {
    let path = directory("stated");
    let stated = DeviceSpec::File { path: path.join("swap"), size: Some(64 * MIB as u64) };
    let arena = builder(32).device(stated).device(file(&path)).build().unwrap();
    let reserved = arena.devices().into_iter().map(|device| (device.size_bytes, device.reserved_bytes));
    assert_eq!(reserved.collect::<Vec<_>>(), [(Some(64 * MIB as u64), 64 * MIB as u64), (None, 0)]);
    let kept = words(&arena, 60, 1);
    arena.evict_all();
    assert_eq!(arena.devices()[0].reserved_bytes, 64 * MIB as u64);
    check(&kept, 1);
    std::fs::remove_dir(&path).unwrap();
}

#[test]
fn dropped_memory_gives_its_disk_space_back_and_it_is_used_again() {
    let _alone = FILES.lock();
    let path = directory("discard");
    let arena = builder(32).device(file(&path)).build().unwrap();
    let kept = words(&arena, 24, 1);
    let dropped = words(&arena, 256, 2);
    arena.evict_all();
    let before = arena.devices()[0].reserved_bytes;
    let on_disk = bytes_on_disk(&path);
    assert!(before >= 256 * MIB as u64 && on_disk >= before, "{before} {on_disk}");
    drop(dropped);
    assert!(wait_until(|| arena.devices()[0].reserved_bytes <= before - 200 * MIB as u64), "{:?}", arena.devices());
    let after = bytes_on_disk(&path);
    if after == on_disk {
        println!("skipped: the file system keeps the space of holes");
    } else {
        assert!(after <= on_disk - 200 * MIB as u64, "{on_disk} -> {after}");
    }
    check(&kept, 1);
    // More than fits into slots never used before, so discarded clusters are used again.
    let again = words(&arena, before as usize / MIB - 40, 3);
    check(&again, 3);
    check(&kept, 1);
    assert!(arena.devices()[0].reserved_bytes > before / 2);
    assert_sound(&arena);
    std::fs::remove_dir(&path).unwrap();
}
