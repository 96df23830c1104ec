//! userfaultfd and SIGBUS on the real kernel: move, copy, write protection, and both ways of delivering faults.
//!
//! If the kernel or its settings do not permit a test, it prints the reason and returns.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use folioswap_sys::memory::{self, Reservation};
use folioswap_sys::pagemap::{self, Scan};
use folioswap_sys::sigbus::{self, Handled};
use folioswap_sys::signals;
use folioswap_sys::uffd::{Delivery, Event, EventFd, Features, MoveError, Userfaultfd, Waiter, Woken};

const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// A userfaultfd; `None`, with a printed reason, if the test cannot run.
fn open(delivery: Delivery, enough: impl Fn(Features) -> bool) -> Option<Userfaultfd> {
    match Userfaultfd::open(delivery) {
        Ok((uffd, features, _)) if enough(features) => Some(uffd),
        Ok((_, features, _)) => {
            println!("skipped: the kernel has only {features:?}");
            None
        }
        Err(error) => {
            println!("skipped: {delivery:?}: {error}");
            None
        }
    }
}

/// Registered addresses for two huge pages: the target, and the source, which is populated first.
fn target_and_source(uffd: &Userfaultfd, huge: bool) -> (Reservation, usize, usize) {
    let area = memory::anonymous_huge(2 * HUGE).unwrap();
    let (target, source) = (area.addr(), area.addr() + HUGE);
    if !huge {
        memory::advise_nohugepage(area.addr(), area.len()).unwrap();
    }
    populate(source, HUGE);
    uffd.register(area.addr(), area.len()).unwrap();
    (area, target, source)
}

fn move_pages(uffd: &Userfaultfd, target: usize, source: usize, len: usize) -> Result<(), MoveError> {
    // SAFETY: the tests pass memory of their own, to which they hold no references.
    unsafe { uffd.move_pages(target, source, len) }
}

fn copy(uffd: &Userfaultfd, target: usize, source: usize, len: usize) -> Result<(), MoveError> {
    // SAFETY: as in `move_pages`. The copied data are integers.
    unsafe { uffd.copy(target, source, len) }
}

fn zeropage(uffd: &Userfaultfd, addr: usize, len: usize) -> Result<(), MoveError> {
    // SAFETY: as in `move_pages`.
    unsafe { uffd.zeropage(addr, len) }
}

fn poison(uffd: &Userfaultfd, addr: usize, len: usize) -> Result<(), MoveError> {
    // SAFETY: as in `move_pages`. Only the kernel reads there.
    unsafe { uffd.poison(addr, len) }
}

fn populate(addr: usize, len: usize) {
    // SAFETY: the tests pass readable and writable memory of their own.
    unsafe { memory::populate_write(addr, len).unwrap() }
}

fn dontneed(addr: usize, len: usize) {
    // SAFETY: the tests pass memory of their own, to which they hold no references.
    unsafe { memory::dontneed(addr, len).unwrap() }
}

fn write(addr: usize, value: u64) {
    // SAFETY: the tests pass aligned addresses in readable and writable memory of their own.
    unsafe { (addr as *mut u64).write_volatile(value) }
}

fn read(addr: usize) -> u64 {
    // SAFETY: as in `write`.
    unsafe { (addr as *const u64).read_volatile() }
}

fn scan(addr: usize) -> Scan {
    pagemap::scan(addr..addr + HUGE).unwrap()
}

#[test]
fn a_huge_page_moved_out_and_back_stays_huge() {
    let _alone = alone();
    let Some(uffd) = open(Delivery::Sigbus, |features| features.has_move) else { return };
    let (_area, target, source) = target_and_source(&uffd, true);
    write(source + 8, 77);
    let before = scan(source);
    move_pages(&uffd, target, source, HUGE).unwrap();
    assert_eq!((scan(target), scan(source)), (before, Scan::default()));
    assert_eq!(read(target + 8), 77);
    move_pages(&uffd, source, target, HUGE).unwrap();
    assert_eq!((scan(source), scan(target)), (before, Scan::default()));
    assert_eq!(read(source + 8), 77);
    if before.huge_bytes == 0 {
        println!("skipped in part: the kernel gave no huge page");
    }
}

#[test]
fn errors_of_move_have_names() {
    let _alone = alone();
    let Some(uffd) = open(Delivery::Sigbus, |features| features.has_move) else { return };
    let (_area, target, source) = target_and_source(&uffd, false);
    move_pages(&uffd, target, source, PAGE).unwrap();
    assert_eq!(move_pages(&uffd, target, source + PAGE, PAGE), Err(MoveError::Present));
    assert_eq!(move_pages(&uffd, target + PAGE, source, PAGE), Err(MoveError::Missing));
    assert_eq!(move_pages(&uffd, target + 1, source + PAGE, PAGE), Err(MoveError::Invalid));
    assert_eq!(copy(&uffd, target, source + PAGE, PAGE), Err(MoveError::Present));
    zeropage(&uffd, target + PAGE, PAGE).unwrap();
    assert_eq!(zeropage(&uffd, target + PAGE, PAGE), Err(MoveError::Present));
    // Source page 4 is dropped, so a move of three pages from page 3 on stops after one.
    dontneed(source + 4 * PAGE, PAGE);
    let partial = move_pages(&uffd, target + 3 * PAGE, source + 3 * PAGE, 3 * PAGE);
    assert_eq!(partial, Err(MoveError::Partial { moved: PAGE }));
}

#[test]
fn a_page_shared_by_fork_is_busy() {
    let _alone = alone();
    let Some(uffd) = open(Delivery::Sigbus, |features| features.has_move) else { return };
    let (_area, target, source) = target_and_source(&uffd, false);
    // SAFETY: the child sleeps until it is killed, and runs none of the parent's code.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        loop {
            // SAFETY: takes no pointers.
            unsafe { libc::pause() };
        }
    }
    let result = move_pages(&uffd, target, source, PAGE);
    // SAFETY: the child is ours, and no status is requested.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!(result, Err(MoveError::Busy));
}

#[test]
fn a_monitor_resolves_missing_pages() {
    let _alone = alone();
    let Some(uffd) = open(Delivery::Monitor, |_| true) else { return };
    let area = memory::anonymous_huge(2 * HUGE).unwrap();
    let (region, source) = (area.addr(), area.addr() + HUGE);
    populate(source, PAGE);
    write(source, 5);
    uffd.register(region, HUGE).unwrap();
    let (uffd, stop) = (Arc::new(uffd), Arc::new(EventFd::new().unwrap()));
    let blocked = signals::block_all(); // the new thread inherits it
    let monitor = std::thread::spawn({
        let (uffd, stop) = (Arc::clone(&uffd), Arc::clone(&stop));
        move || {
            let mut seen = Vec::new();
            let waiter = Waiter::new(&uffd, &stop, [None; 2]).unwrap();
            while waiter.wait(None).unwrap() == Woken::Event {
                let Some(event) = uffd.read_event().unwrap() else { continue };
                let Event::Pagefault { addr, .. } = event else { panic!("{event:?}") };
                let addr = addr & !(PAGE - 1);
                seen.push(event);
                copy(&uffd, addr, source, PAGE).unwrap();
            }
            seen
        }
    });
    drop(blocked);
    read(region + 24);
    assert_eq!(read(region), 5);
    write(region, 6);
    assert_eq!(read(region), 6);
    stop.signal();
    let thread = signals::thread_id();
    let seen = monitor.join().unwrap();
    assert_eq!(seen, [Event::Pagefault { addr: region, write: false, thread }]);
    assert_eq!(uffd.read_event().unwrap(), None);
    uffd.unregister(region, HUGE).unwrap();
    assert_eq!(read(region + PAGE), 0);
}

/// Makes the kernel read a byte in a system call. Returns the error number, or 0.
fn kernel_reads(addr: usize) -> i32 {
    let (_reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the call fails if the byte cannot be read.
    match unsafe { libc::write(writer.as_raw_fd(), addr as *const libc::c_void, 1) } {
        1 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap(),
    }
}

#[test]
fn a_poisoned_page_is_an_error_until_it_is_dropped() {
    let _alone = alone();
    let Some(uffd) = open(Delivery::Sigbus, |features| features.has_move) else { return };
    let (_area, target, source) = target_and_source(&uffd, false);
    if poison(&uffd, target, 2 * PAGE) == Err(MoveError::Invalid) {
        return println!("skipped: no UFFDIO_POISON");
    }
    assert_eq!((kernel_reads(target), kernel_reads(target + PAGE)), (libc::EFAULT, libc::EFAULT));
    assert_eq!(poison(&uffd, target, PAGE), Err(MoveError::Present));
    assert_eq!(move_pages(&uffd, target, source, PAGE), Err(MoveError::Present));
    dontneed(source, PAGE);
    assert!(move_pages(&uffd, source, target, PAGE).is_err(), "it is no content");
    assert!(pagemap::Pagemap::open().unwrap().is_filled(target).unwrap(), "nothing can be mapped there");
    dontneed(target, PAGE);
    move_pages(&uffd, target, source + PAGE, PAGE).unwrap();
    assert_eq!((kernel_reads(target), kernel_reads(target + PAGE)), (0, libc::EFAULT));
}

#[test]
fn which_sleeping_threads_a_signal_would_wake_is_known() {
    let _alone = alone();
    let Some(uffd) = open(Delivery::Monitor, |features| features.has_thread_id) else { return };
    let area = memory::anonymous_huge(2 * HUGE).unwrap();
    let (region, source) = (area.addr(), area.addr() + HUGE);
    populate(source, PAGE);
    uffd.register(region, HUGE).unwrap();
    let stop = EventFd::new().unwrap();
    let waiter = Waiter::new(&uffd, &stop, [None; 2]).unwrap();
    let set_mask = |how| {
        // SAFETY: all zeroes is a valid set, to which one signal is added.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut set, libc::SIGBUS);
            libc::pthread_sigmask(how, &set, std::ptr::null_mut());
        }
    };
    type Touch = fn(usize);
    let touches: [(Touch, i32, bool); 3] = [
        (|page| assert_eq!(read(page), 0), libc::SIG_UNBLOCK, true),
        (|page| assert_eq!(read(page), 0), libc::SIG_BLOCK, false),
        (|page| assert_eq!(kernel_reads(page), 0), libc::SIG_UNBLOCK, false),
    ];
    for (nr, (touch, how, expected)) in touches.into_iter().enumerate() {
        let page = region + nr * PAGE;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                set_mask(how);
                touch(page);
            });
            let event = loop {
                assert_eq!(waiter.wait(None).unwrap(), Woken::Event);
                if let Some(event) = uffd.read_event().unwrap() {
                    break event;
                }
            };
            let Event::Pagefault { thread, .. } = event else { panic!("{event:?}") };
            let known = signals::ends_wait(thread, libc::SIGBUS);
            copy(&uffd, page, source, PAGE).unwrap();
            assert_eq!(known, expected, "{nr}");
        });
    }
    assert!(!signals::ends_wait(u32::MAX, libc::SIGBUS), "there is no such thread");
}

/// Serialises the tests: the handler belongs to the process, and a fork makes the pages of all tests busy.
static ALONE: Mutex<()> = Mutex::new(());
static RESOLVER: AtomicUsize = AtomicUsize::new(0);
static SEEN_ADDR: AtomicUsize = AtomicUsize::new(0);
static SEEN_WRITE: AtomicUsize = AtomicUsize::new(0);

struct Resolver {
    uffd: Userfaultfd,
    region: usize,
    source: usize,
}

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn resolve(addr: usize, write: bool) -> Handled {
    // SAFETY: null, or a value that the test leaked.
    let Some(resolver) = (unsafe { (RESOLVER.load(Ordering::SeqCst) as *const Resolver).as_ref() }) else {
        return Handled::No;
    };
    if !(resolver.region..resolver.region + HUGE).contains(&addr) {
        return Handled::No;
    }
    SEEN_ADDR.store(addr, Ordering::SeqCst);
    SEEN_WRITE.store(usize::from(write), Ordering::SeqCst);
    match copy(&resolver.uffd, addr & !(PAGE - 1), resolver.source, PAGE) {
        Ok(()) | Err(MoveError::Present) => Handled::Yes,
        Err(_) => Handled::No,
    }
}

#[test]
fn the_faulting_thread_resolves_its_fault_in_the_handler() {
    let _alone = alone();
    let Some(uffd) = open(Delivery::Sigbus, |_| true) else { return };
    let area = memory::anonymous_huge(2 * HUGE).unwrap();
    let (region, source) = (area.addr(), area.addr() + HUGE);
    area.leak();
    populate(source, PAGE);
    write(source + 16, 9);
    uffd.register(region, HUGE).unwrap();
    RESOLVER.store(Box::into_raw(Box::new(Resolver { uffd, region, source })) as usize, Ordering::SeqCst);
    sigbus::install(resolve).unwrap();
    sigbus::install(resolve).unwrap();
    assert!(sigbus::is_fronted(libc::SIGBUS));
    assert_eq!(read(region + 16), 9);
    assert_eq!((SEEN_ADDR.load(Ordering::SeqCst), SEEN_WRITE.load(Ordering::SeqCst)), (region + 16, 0));
    write(region + PAGE + 24, 3);
    assert_eq!((read(region + PAGE + 16), read(region + PAGE + 24)), (9, 3));
    assert_eq!(SEEN_WRITE.load(Ordering::SeqCst), 1);
}

/// Runs `body` in a forked child, and returns its wait status.
fn in_child(body: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `body`, which only makes system calls and accesses memory, and exits at once.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        body();
        signals::exit_now(0);
    }
    let mut status = 0;
    // SAFETY: the status is a local of this frame. The child is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

extern "C" fn leave_with_3(_signal: libc::c_int) {
    signals::exit_now(3);
}

#[test]
fn what_is_not_ours_goes_to_the_chained_action() {
    let _alone = alone();
    sigbus::install(resolve).unwrap();
    // The default action: the signal ends the process, whether it was sent or caused by an access. (The test runtime's
    // own action ignores a sent signal.)
    let mut default = sigbus::chained_action();
    default.sa_sigaction = libc::SIG_DFL;
    let sent = in_child(|| {
        sigbus::set_chained_action(default);
        signals::send_sigbus(signals::thread_id());
    });
    assert!(libc::WIFSIGNALED(sent) && libc::WTERMSIG(sent) == libc::SIGBUS, "{sent:#x}");
    let caused = in_child(|| {
        sigbus::set_chained_action(default);
        // SAFETY: new memory of an empty file, which nobody knows.
        let beyond_end = unsafe {
            let file = libc::memfd_create(c"empty".as_ptr(), 0);
            libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, file, 0)
        };
        read(beyond_end as usize);
    });
    assert!(libc::WIFSIGNALED(caused) && libc::WTERMSIG(caused) == libc::SIGBUS, "{caused:#x}");
    // The program's own action.
    let mut action = sigbus::chained_action();
    action.sa_sigaction = leave_with_3 as *const () as usize;
    action.sa_flags = 0;
    let own = in_child(|| {
        sigbus::set_chained_action(action);
        signals::send_sigbus(signals::thread_id());
    });
    assert!(libc::WIFEXITED(own) && libc::WEXITSTATUS(own) == 3, "{own:#x}");
}

#[test]
fn a_change_behind_the_handler_leaves_it_in_front() {
    let _alone = alone();
    sigbus::install(resolve).unwrap();
    let action = |new: *const signals::Action| {
        let mut old = sigbus::chained_action();
        // SAFETY: null or an action of the caller's frame, whose handler only ends the process; one of this frame.
        assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, new, &mut old) }, 0);
        old
    };
    let (ours, before) = (action(std::ptr::null()), sigbus::chained_action());
    let mut changed = before;
    changed.sa_sigaction = leave_with_3 as *const () as usize;
    for (new, found) in [(changed, before), (before, changed)] {
        let seen = sigbus::behind(|| sigbus::behind(|| action(&new)).unwrap()).unwrap();
        assert_eq!(seen.sa_sigaction, found.sa_sigaction);
        assert_eq!(sigbus::chained_action().sa_sigaction, new.sa_sigaction);
        assert_eq!(action(std::ptr::null()).sa_sigaction, ours.sa_sigaction);
    }
}
