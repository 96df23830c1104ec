//! Monitor mode on devices that hang or lose content: which threads get an error, how, and which threads wait.

use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use folioswap_core::{BLOCK_PAGES, BlockId, Order, PAGE_SIZE, State};
use folioswap_sys::{signals, uring};

use crate::arena::Arena;
use crate::arena::advice::Advice;
use crate::arena::by_address::RawSpace;
use crate::arena::region::Region;
use crate::config::fault_mode::FaultMode;
use crate::config::folio_size::FolioSize;
use crate::device::DeviceSpec;
use crate::process::wakeup::comes_true;
use crate::tests::bad_device::{Faults, at_page, bad_device, send_out};

const MIB: usize = 1 << 20;

/// Longer than anything here takes unless it hangs.
const LIMIT: Duration = Duration::from_secs(30);

/// An arena with a monitor on a bad device. `None` where the system does not permit a monitor.
fn monitored(memory: usize) -> Option<(Arena, Arc<Faults>)> {
    let (device, faults) = bad_device();
    match Arena::builder().memory(memory as u64).faults(FaultMode::Monitor).build_on(vec![device]) {
        Ok(arena) => Some((arena, faults)),
        Err(error) => {
            println!("SKIP faults through a monitor: {error}");
            None
        }
    }
}

/// A region in folios of one order, filled.
fn filled(arena: &Arena, len: usize, order: Order) -> Region {
    let mut region = arena.map_with(len, FolioSize::Fixed(order)).unwrap();
    (0..len).step_by(PAGE_SIZE).for_each(|at| region[at] = at_page(at));
    region
}

fn page_is_right(region: &Region, at: usize) -> bool {
    region[at] == at_page(at)
}

fn state(arena: &Arena, region: &Region, at: usize) -> State {
    let page = arena.engine().table().page_at(region.as_ptr() as usize + at);
    let locked = arena.engine().lock(page.block());
    locked.state(locked.index_of(page.page_in_block()))
}

#[test]
fn faults_that_need_no_device_are_not_behind_those_that_wait_for_one() {
    const NR_WAITING: usize = 24;
    if let Err(error) = uring::probe() {
        return println!("SKIP reads that hang: {error}");
    }
    let Some((arena, faults)) = monitored(64 * MIB) else { return };
    let waiting = filled(&arena, NR_WAITING * 2 * MIB, Order::PAGE);
    send_out(&arena);
    let standby = filled(&arena, 2 * MIB, Order::PAGE);
    comes_true("a page is on standby", || {
        arena.evict_all();
        matches!(state(&arena, &standby, 0), State::Standby(_))
    });
    let fresh = arena.map(2 * MIB).unwrap();
    faults.hang();
    let (done, is_done) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = &waiting;
        for block in 0..NR_WAITING {
            scope.spawn(move || assert!(page_is_right(waiting, block * 2 * MIB)));
        }
        comes_true("all of them are read at once", || arena.devices()[0].io.in_flight == NR_WAITING as u64);
        scope.spawn(|| {
            assert!(page_is_right(&standby, 0));
            assert_eq!(fresh[0], 0);
            done.send(()).unwrap();
        });
        let passed_by = is_done.recv_timeout(LIMIT);
        faults.go_on();
        assert!(passed_by.is_ok(), "a first touch waits for reads that hang");
    });
}

/// Runs one test of this program in a process of its own, which does `what`. Returns its status and standard error.
fn in_process(test: &str, what: &str) -> (std::process::ExitStatus, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([&format!("tests::monitor::{test}"), "--exact", "--nocapture", "--test-threads=1"])
        .env("FOLIOSWAP_LOST", what)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = child.stderr.take().unwrap();
    let reader = thread::spawn(move || std::io::read_to_string(&mut errors).unwrap());
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
            let (status, said) = (child.wait().unwrap(), reader.join().unwrap());
            let nr_lines = said.lines().count();
            panic!("{what}: it did not end ({status}), and said {nr_lines} lines: {:?}", said.lines().next());
        }
        thread::yield_now();
    };
    (status, reader.join().unwrap())
}

/// A region whose content is lost.
fn lost_page() -> Option<(Arena, Arc<Faults>, Region)> {
    let (arena, faults) = monitored(16 * MIB)?;
    let region = filled(&arena, 2 * MIB, Order::PAGE);
    send_out(&arena);
    faults.reads_fail.store(true, Ordering::SeqCst);
    Some((arena, faults, region))
}

/// Makes the kernel read a page, as a system call does. Returns whether it could.
fn kernel_reads(region: &Region, at: usize) -> bool {
    let (reader, writer) = std::io::pipe().unwrap();
    let addr = region.as_ptr() as usize + at;
    // SAFETY: the byte is in a mapped region, and the kernel returns EFAULT if it cannot be read.
    let written = unsafe { libc::write(writer.as_raw_fd(), addr as *const libc::c_void, 1) };
    let error = std::io::Error::last_os_error();
    drop(reader);
    assert!(written == 1 || error.raw_os_error() == Some(libc::EFAULT), "{error}");
    written == 1
}

extern "C" fn go_on(_signal: libc::c_int) {}

/// Sets the disposition of SIGBUS in this process, which runs nothing else.
fn set_sigbus(what: &str) {
    // SAFETY: all-zero bytes are a valid action and a valid set, both live through the calls, and the handler does
    // nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = match what {
            "ignored" => libc::SIG_IGN,
            "handled" => go_on as *const () as usize,
            _ => libc::SIG_DFL,
        };
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        if what == "blocked" {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut set, libc::SIGBUS);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
    }
}

#[test]
fn who_touches_what_is_lost_is_told_and_does_not_sleep() {
    if let Ok(what) = std::env::var("FOLIOSWAP_LOST") {
        let Some((_arena, _faults, region)) = lost_page() else { signals::exit_now(77) };
        set_sigbus(&what);
        if what == "handled" {
            let read: Vec<bool> = [0, 0, 0, PAGE_SIZE].map(|at| kernel_reads(&region, at)).into();
            signals::exit_now(i32::from(read != [false; 4]));
        }
        std::hint::black_box(region[0]);
        signals::exit_now(1);
    }
    for what in ["default", "blocked", "ignored", "handled"] {
        let (status, said) = in_process("who_touches_what_is_lost_is_told_and_does_not_sleep", what);
        if status.code() == Some(77) {
            return;
        }
        let nr_lines = said.lines().filter(|line| line.contains("swap-in of")).count();
        match what {
            "handled" => assert_eq!((status.code(), nr_lines), (Some(0), 2), "one line for each folio: {said}"),
            _ => assert_eq!((status.signal(), nr_lines), (Some(libc::SIGBUS), 1), "{what}: {status} {said}"),
        }
    }
}

#[test]
fn what_was_lost_is_an_error_no_more_once_it_is_dropped_moved_or_read() {
    let Some((arena, faults, mut region)) = lost_page() else { return };
    assert_eq!([0, PAGE_SIZE, 2 * PAGE_SIZE].map(|at| kernel_reads(&region, at)), [false; 3]);
    region.advise(0..PAGE_SIZE, Advice::DontNeed);
    assert_eq!((region[0], kernel_reads(&region, PAGE_SIZE)), (0, false), "dropped alone");
    // A mapping that grows and has to move for that.
    let neighbour = arena.map(2 * MIB).unwrap();
    let (space, addr) = (arena.raw(), region.as_ptr() as usize);
    std::mem::forget(region);
    faults.reads_fail.store(false, Ordering::SeqCst);
    // SAFETY: the region's owner was forgotten, so this is the only use of its memory.
    let moved = unsafe { space.remap(addr, 2 * MIB, 4 * MIB).unwrap() };
    assert_ne!(moved, addr);
    // SAFETY: the bytes lie in the mapping made above.
    let read = |at: usize| unsafe { ((moved + at) as *const u8).read_volatile() };
    assert_eq!([0, 1, 2].map(|page| read(page * PAGE_SIZE)), [0, at_page(PAGE_SIZE), at_page(2 * PAGE_SIZE)]);
    let reused = arena.map(2 * MIB).unwrap();
    assert!(reused.iter().step_by(PAGE_SIZE).all(|&byte| byte == 0));
    drop(neighbour);
    // SAFETY: mapped above and not used any more.
    unsafe { space.unmap(moved, 4 * MIB) };
}

#[test]
fn what_was_lost_comes_back_with_the_device() {
    for order in [Order::PAGE, Order::HUGE] {
        let Some((arena, faults)) = monitored(16 * MIB) else { return };
        let region = filled(&arena, 4 * MIB, order);
        send_out(&arena);
        faults.reads_fail.store(true, Ordering::SeqCst);
        let pages = [0, 5, 100, BLOCK_PAGES, 2 * BLOCK_PAGES - 1].map(|page| page * PAGE_SIZE);
        assert_eq!(pages.map(|at| kernel_reads(&region, at)), [false; 5]);
        assert_eq!(pages.map(|at| kernel_reads(&region, at)), [false; 5], "again");
        faults.reads_fail.store(false, Ordering::SeqCst);
        arena.add_device(&DeviceSpec::Ram { size: 64 << 20 }).unwrap(); // new room starts a retry
        comes_true("all of it can be read", || pages.iter().all(|&at| kernel_reads(&region, at)));
        assert!((0..region.len()).step_by(PAGE_SIZE).all(|at| page_is_right(&region, at)), "{order}");
    }
}

/// A part of a mapping that cannot be brought in is held nevertheless, and so are the parts after it.
#[test]
fn holds_add_up_when_content_is_lost() {
    let (device, faults) = bad_device();
    let arena = Arena::builder().memory(16 << 20).build_on(vec![device]).unwrap();
    let region = filled(&arena, 6 * MIB, Order::PAGE);
    send_out(&arena);
    let (space, addr): (RawSpace, usize) = (arena.raw(), region.as_ptr() as usize);
    let first = arena.engine().table().page_at(addr).block().index();
    let held = || [0, 1, 2].map(|nr| arena.engine().lock(BlockId::from_index(first + nr)).pinned);
    // SAFETY: the region is mapped.
    unsafe {
        assert!(space.hold(addr + 2 * MIB, 4 * MIB));
        faults.reads_fail.store(true, Ordering::SeqCst);
        assert!(!space.hold(addr, 6 * MIB), "its first block is lost");
        faults.reads_fail.store(false, Ordering::SeqCst);
        space.release_hold(addr, 6 * MIB);
        assert_eq!(held(), [false, true, true], "the first hold stands");
        space.release_hold(addr + 2 * MIB, 4 * MIB);
    }
    assert_eq!(held(), [false; 3]);
}

/// Forks, and lets the child run `work` as a face does. Returns whether it found all as it should be.
fn child_is_right(arena: &Arena, work: impl FnOnce() -> bool) -> bool {
    let _blocked = signals::block_all();
    let (forking, ()) = arena.prepare_fork(|| ());
    // SAFETY: the child goes on with its arena before it touches managed memory, and ends with `exit_now`. The C
    // library's allocator is usable after fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        signals::exit_now(if forking.child().is_ok() && work() { 0 } else { 1 });
    }
    forking.parent();
    let mut status = 0;
    // SAFETY: the status is a local of this frame. The child is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn a_child_has_what_its_parent_had_and_neither_sees_the_others_writes() {
    for device in [None, Some(DeviceSpec::Ram { size: 128 << 20 })] {
        let mut builder = Arena::builder().memory(16 << 20).faults(FaultMode::Monitor);
        if let Some(device) = device {
            builder = builder.device(device);
        }
        let Ok(arena) = builder.build() else {
            println!("skipped: no userfaultfd for a monitor");
            return;
        };
        let region = filled(&arena, 32 * MIB, Order::new(4).unwrap());
        let all_right = || (0..region.len()).step_by(PAGE_SIZE).all(|at| page_is_right(&region, at));
        let write = |value: u8| {
            for at in (0..region.len()).step_by(3 * PAGE_SIZE) {
                // SAFETY: within the region, which nobody else uses.
                unsafe { (region.as_ptr() as *mut u8).add(at + 1).write_volatile(value) };
            }
        };
        let has = |value: u8| {
            let mut pages = (0..region.len()).step_by(3 * PAGE_SIZE);
            // SAFETY: as above.
            pages.all(|at| unsafe { region.as_ptr().add(at + 1).read_volatile() } == value)
        };
        for round in 1..3 {
            write(round);
            let in_child = || {
                let mut right = has(round) && all_right();
                write(100);
                right &= has(100) && all_right();
                right && child_is_right(&arena, || has(100) && all_right())
            };
            assert!(child_is_right(&arena, in_child), "round {round}");
            assert!(has(round) && all_right(), "round {round}");
        }
        let used = |arena: &Arena| arena.devices().iter().map(|device| device.used_bytes).sum::<u64>();
        drop(region);
        comes_true("slots are held for children that are gone", || used(&arena) == 0);
    }
}
