//! A page with one system call instruction, from which the engine's calls pass the program's seccomp filters.
//!
//! A program may put a filter on all threads of its process, also on the engine's. The kernel tells a filter where the
//! instruction lies. So a preloaded library puts a few steps in front of the program's ([`exempting`]): they allow the
//! engine's calls from this page, and leave all others to the program's filter. The page lies at the same address in
//! all processes of a run, so that a filter that is inherited across exec exempts the engine there, too.
//!
//! What an attacker who controls the program's flow gains by jumping there: the calls of `EXEMPT`. They open no file,
//! connect nothing, start nothing, and make no memory executable.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use libc::{c_long, sock_filter};

use crate::memory::{self, PAGE_SIZE};
use crate::seccomp::{JUMP_IF_EQUAL, LOAD, MACHINE, MACHINE_AT, NUMBER_AT, RETURN, step};
use crate::{check, futex, random, said};

/// Where the page is; 0: there is none.
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// Whether calls are made from there.
static USED: AtomicBool = AtomicBool::new(false);
/// Threads that make calls which are not exempt.
static NR_OTHERS: AtomicUsize = AtomicUsize::new(0);

/// The instruction, and the return.
const CODE: [u8; 3] = [0x0f, 0x05, 0xc3];

/// Bytes from the start of the page to the instruction after the call, which the kernel reports.
const AFTER_CALL: usize = 2;

/// What fills the rest of the page: a breakpoint.
const FILL: u8 = 0xcc;

/// Addresses for the page: those that neither the kernel nor a sanitizer uses for something else.
const FIRST: usize = 0x7d00_0000_0000;
const NR_PLACES: usize = (1 << 40) / PAGE_SIZE;

/// An address for the page, drawn at random.
pub fn draw_address() -> io::Result<usize> {
    let mut drawn = [0; size_of::<usize>()];
    random::fill(&mut drawn)?;
    Ok(FIRST + usize::from_ne_bytes(drawn) % NR_PLACES * PAGE_SIZE)
}

/// Puts the page there, at the start of the process. Not called again once it has succeeded.
///
/// # Errors
/// EEXIST: the place is taken. EACCES: the system permits no such page.
pub fn prepare(addr: usize) -> io::Result<()> {
    memory::reserve_at(addr, PAGE_SIZE)?;
    // SAFETY: this call's own mapping of one page, which nobody else knows, and which is executable once it is written.
    unsafe {
        memory::protect(addr, PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE)?;
        let page = addr as *mut u8;
        page.write_bytes(FILL, PAGE_SIZE);
        page.copy_from_nonoverlapping(CODE.as_ptr(), CODE.len());
        memory::protect(addr, PAGE_SIZE, libc::PROT_READ | libc::PROT_EXEC)?;
    }
    PAGE.store(addr, Ordering::SeqCst);
    Ok(())
}

/// Whether there is such a page.
pub fn is_prepared() -> bool {
    PAGE.load(Ordering::Relaxed) != 0
}

/// Makes calls from the page from now on, if there is one. Waits for those of [`unless_used`].
pub fn begin() {
    USED.store(is_prepared(), Ordering::SeqCst);
    // A child that a system call has made may have copied the number, and not the threads: it does not wait for long.
    for _ in 0..MOST_WAITS {
        if NR_OTHERS.load(Ordering::SeqCst) == 0 {
            return;
        }
        futex::sleep(WAIT);
    }
}

/// How long [`begin`] sleeps, and how often.
const WAIT: Duration = Duration::from_micros(50);
const MOST_WAITS: u32 = 2000;

/// Makes short calls that are not exempt, unless a filter may forbid them.
pub fn unless_used<R>(calls: impl FnOnce() -> R) -> Option<R> {
    if is_used() {
        return None;
    }
    NR_OTHERS.fetch_add(1, Ordering::SeqCst);
    let result = if is_used() { None } else { Some(calls()) };
    NR_OTHERS.fetch_sub(1, Ordering::SeqCst);
    result
}

/// In a forked child, which has none of its parent's threads, and none of its own yet.
pub fn begin_child() {
    NR_OTHERS.store(0, Ordering::SeqCst);
}

/// Whether calls are to be made by [`call`].
pub fn is_used() -> bool {
    USED.load(Ordering::SeqCst)
}

/// Makes a call from the page. Returns the kernel's result, a negative error number on failure. Keeps errno.
///
/// # Safety
/// As the system call. [`is_used`] has returned `true`.
pub unsafe fn call(number: c_long, &[a, b, c, d, e, f]: &[usize; 6]) -> isize {
    let page = PAGE.load(Ordering::Relaxed);
    let result;
    // SAFETY: the page holds the instruction and a return, and is never unmapped by this process. The call is the
    // caller's. The compiler knows of the stack that the return address takes, and of the registers that change.
    unsafe {
        std::arch::asm!(
            "call {page}",
            page = in(reg) page,
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

struct Exempt {
    number: c_long,
    /// If so, only where this argument, masked, has this value.
    only: Option<(u32, u32, u32)>,
}

const fn any(number: c_long) -> Exempt {
    Exempt { number, only: None }
}

const fn only(number: c_long, argument: u32, mask: u32, value: u32) -> Exempt {
    Exempt { number, only: Some((argument, mask, value)) }
}

/// `PR_SET_SYSCALL_USER_DISPATCH`.
const SET_DISPATCH: u32 = 59;

/// The types of `ioctl` requests to a userfaultfd, and of `PAGEMAP_SCAN`.
const USERFAULTFD: u32 = 0xaa00;
const PAGEMAP: u32 = 0x6600;
/// Asks a socket whether urgent data is next. The libc crate lacks it.
pub const SIOCATMARK: u32 = 0x8905;

/// The flags of a thread.
const THREAD: u32 = (libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD) as u32;

/// The calls that are exempt, the most frequent first.
const EXEMPT: &[Exempt] = &[
    any(libc::SYS_futex),
    any(libc::SYS_rt_sigprocmask),
    only(libc::SYS_ioctl, 1, 0xff00, USERFAULTFD),
    only(libc::SYS_ioctl, 1, u32::MAX, SIOCATMARK),
    any(libc::SYS_fstat),
    any(libc::SYS_statx),
    any(libc::SYS_fstatfs),
    any(libc::SYS_gettid),
    any(libc::SYS_pread64),
    any(libc::SYS_pwrite64),
    any(libc::SYS_io_uring_enter),
    any(libc::SYS_madvise),
    any(libc::SYS_process_madvise),
    any(libc::SYS_read),
    any(libc::SYS_write),
    any(libc::SYS_writev),
    any(libc::SYS_preadv),
    any(libc::SYS_preadv2),
    any(libc::SYS_pwritev),
    any(libc::SYS_epoll_pwait),
    any(libc::SYS_ppoll),
    any(libc::SYS_mincore),
    any(libc::SYS_msync),
    only(libc::SYS_mmap, 2, libc::PROT_EXEC as u32, 0),
    only(libc::SYS_mprotect, 2, libc::PROT_EXEC as u32, 0),
    only(libc::SYS_pkey_mprotect, 2, libc::PROT_EXEC as u32, 0),
    any(libc::SYS_munmap),
    any(libc::SYS_mremap),
    any(libc::SYS_mlock),
    any(libc::SYS_mlock2),
    any(libc::SYS_munlock),
    any(libc::SYS_fallocate),
    any(libc::SYS_ftruncate),
    only(libc::SYS_ioctl, 1, 0xff00, PAGEMAP),
    any(libc::SYS_fcntl),
    any(libc::SYS_flock),
    any(libc::SYS_close),
    any(libc::SYS_lseek),
    any(libc::SYS_clock_gettime),
    any(libc::SYS_clock_nanosleep),
    any(libc::SYS_nanosleep),
    any(libc::SYS_sched_yield),
    any(libc::SYS_getcpu),
    any(libc::SYS_getpid),
    any(libc::SYS_getrusage),
    any(libc::SYS_getrandom),
    any(libc::SYS_getsockopt),
    any(libc::SYS_sigaltstack),
    any(libc::SYS_rt_sigaction),
    any(libc::SYS_rt_sigpending),
    any(libc::SYS_rt_sigtimedwait),
    only(libc::SYS_prctl, 0, u32::MAX, SET_DISPATCH),
    only(libc::SYS_prctl, 0, u32::MAX, libc::PR_SET_NAME as u32),
    any(libc::SYS_exit),
    any(libc::SYS_exit_group),
    // What a process that a filtered one has forked or executed needs at its start.
    any(libc::SYS_userfaultfd),
    any(libc::SYS_eventfd2),
    any(libc::SYS_epoll_create1),
    any(libc::SYS_epoll_ctl),
    any(libc::SYS_memfd_create),
    any(libc::SYS_close_range),
    any(libc::SYS_socketpair),
    any(libc::SYS_sendmsg),
    any(libc::SYS_recvmsg),
    any(libc::SYS_set_robust_list),
    any(libc::SYS_get_robust_list),
    any(libc::SYS_mbind),
    any(libc::SYS_sched_getscheduler),
    only(libc::SYS_sched_setscheduler, 0, u32::MAX, 0),
    only(libc::SYS_prlimit64, 0, u32::MAX, 0),
    only(libc::SYS_clone, 0, THREAD, THREAD),
];

/// Classic BPF: load a constant, jump, mask.
const LOAD_CONSTANT: u16 = 0x00;
const JUMP: u16 = 0x05;
const AND: u16 = 0x54;

/// Offsets in the filter's input: where the call was made, and the first argument. The low half comes first.
const PLACE_AT: u32 = 8;
const ARGUMENTS_AT: u32 = 16;

/// The longest filter that the kernel takes.
const MOST_STEPS: usize = 4096;

/// The program's filter with the exemption in front. With `returns`, every return from a signal handler is allowed,
/// too: a fault that is a signal ends by one. `None`: there is no page, or the filter would be too long.
pub fn exempting(filter: &[sock_filter], returns: bool) -> Option<Vec<sock_filter>> {
    let page = PAGE.load(Ordering::Relaxed);
    if page == 0 {
        return None;
    }
    let allow = step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
    let number = step(LOAD, 0, 0, NUMBER_AT);
    let mut allowed = vec![number];
    for Exempt { number: call, only } in EXEMPT {
        match only {
            None => allowed.extend([step(JUMP_IF_EQUAL, 0, 1, *call as u32), allow]),
            Some((argument, mask, value)) => allowed.extend([
                step(JUMP_IF_EQUAL, 0, 5, *call as u32),
                step(LOAD, 0, 0, ARGUMENTS_AT + 8 * argument),
                step(AND, 0, 0, *mask),
                step(JUMP_IF_EQUAL, 0, 1, *value),
                allow,
                number,
            ]),
        }
    }
    let mut steps = Vec::new();
    if returns {
        steps.extend([number, step(JUMP_IF_EQUAL, 0, 1, libc::SYS_rt_sigreturn as u32), allow]);
    }
    let place = page + AFTER_CALL;
    steps.extend([
        step(LOAD, 0, 0, PLACE_AT),
        step(JUMP_IF_EQUAL, 1, 0, place as u32),
        step(JUMP, 0, 0, allowed.len() as u32 + 3),
        step(LOAD, 0, 0, PLACE_AT + 4),
        step(JUMP_IF_EQUAL, 1, 0, (place >> 32) as u32),
        step(JUMP, 0, 0, allowed.len() as u32),
    ]);
    steps.extend(allowed);
    steps.push(step(LOAD_CONSTANT, 0, 0, 0)); // as the kernel begins
    steps.extend_from_slice(filter);
    (steps.len() <= MOST_STEPS).then_some(steps)
}

/// What the kernel's strict mode permits, as a filter: other calls end the thread.
pub fn strict() -> Vec<sock_filter> {
    let [allow, end] = [libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_KILL_THREAD].map(|how| step(RETURN, 0, 0, how));
    let mut steps =
        vec![step(LOAD, 0, 0, MACHINE_AT), step(JUMP_IF_EQUAL, 1, 0, MACHINE), end, step(LOAD, 0, 0, NUMBER_AT)];
    for call in [libc::SYS_read, libc::SYS_write, libc::SYS_exit, libc::SYS_rt_sigreturn] {
        steps.extend([step(JUMP_IF_EQUAL, 0, 1, call as u32), allow]);
    }
    steps.push(end);
    steps
}

/// Has a filter end the process where it ends the thread. For a process of which no thread but the engine's would be
/// left.
pub fn end_the_process(filter: &mut [sock_filter]) {
    for step in filter {
        if step.code == RETURN && step.k & libc::SECCOMP_RET_ACTION_FULL == libc::SECCOMP_RET_KILL_THREAD {
            step.k = libc::SECCOMP_RET_KILL_PROCESS;
        }
    }
}

/// Whether this thread has a seccomp filter. `false` also if that cannot be read.
pub fn is_filtered() -> bool {
    let status = said::read("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0"))
}

/// Calls that the C library makes for the engine, when it starts threads and opens files.
const PLAIN: [c_long; 10] = [
    libc::SYS_clone3,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_mprotect,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sched_getaffinity,
    libc::SYS_openat,
    libc::SYS_statx,
    libc::SYS_io_uring_setup,
    libc::SYS_clone,
];

/// Whether a child that makes the calls of the engine's start survives them. A filter of somebody else may kill it.
///
/// # Errors
/// The kernel's, if there could be no child.
pub fn survives_start() -> io::Result<bool> {
    // SAFETY: a child with a copy of the memory, which makes raw calls only. All are refused for their arguments (no
    // descriptor, no address, no flags), or change nothing that outlives the child. The parent fills in a local.
    unsafe {
        // No signal at its end: where SIGCHLD is ignored, the kernel would keep no status of it.
        let child = libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0);
        if child == 0 {
            try_all();
            libc::syscall(libc::SYS_exit_group, 0);
        }
        check(child)?;
        let mut status = 0;
        while libc::syscall(libc::SYS_wait4, child, &raw mut status, libc::__WALL, 0) < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(libc::WIFEXITED(status))
    }
}

/// # Safety
/// The process ends afterwards.
unsafe fn try_all() {
    let plain = |number: c_long, words: &[usize; 6]| {
        let [a, b, c, d, e, f] = *words;
        // SAFETY: as the caller says.
        unsafe { libc::syscall(number, a, b, c, d, e, f) }
    };
    for Exempt { number, only } in
        EXEMPT.iter().filter(|one| ![libc::SYS_exit, libc::SYS_exit_group].contains(&one.number))
    {
        let mut words = [usize::MAX; 6];
        if let Some((argument, mask, value)) = *only {
            words[argument as usize] = (value | !mask) as usize;
        }
        if is_used() {
            // SAFETY: as the caller says.
            unsafe { call(*number, &words) };
        } else {
            plain(*number, &words);
        }
    }
    for number in PLAIN {
        plain(number, &[usize::MAX; 6]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_from_the_page_pass_a_filter_that_refuses_them() {
        prepare(draw_address().unwrap()).unwrap();
        begin();
        let refuse = step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EXDEV as u32);
        let mut filter = vec![step(LOAD, 0, 0, NUMBER_AT)];
        for call in [libc::SYS_gettid, libc::SYS_openat, libc::SYS_ioctl] {
            filter.extend([step(JUMP_IF_EQUAL, 0, 1, call as u32), refuse]);
        }
        filter.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
        let filter = exempting(&filter, false).unwrap();
        let results = std::thread::spawn(move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            // SAFETY: the kernel copies the filter. The calls after it take no pointers that it follows.
            unsafe {
                libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                let set =
                    libc::syscall(libc::SYS_prctl, libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
                let plain = libc::syscall(libc::SYS_gettid);
                let mut words = [0; 6];
                let own = call(libc::SYS_gettid, &words);
                let opened = call(libc::SYS_openat, &words);
                words[0] = usize::MAX;
                let others = call(libc::SYS_ioctl, &words);
                words[1] = USERFAULTFD as usize;
                [set as isize, plain as isize, opened, others, call(libc::SYS_ioctl, &words), own]
            }
        });
        let results = results.join().unwrap();
        let refused = -(libc::EXDEV as isize);
        assert_eq!(results[..5], [0, -1, refused, refused, -(libc::EBADF as isize)]);
        assert!(results[5] > 0, "{results:?}");
    }

    #[test]
    fn nothing_kills_this_process() {
        assert!(survives_start().unwrap());
    }

    #[test]
    fn a_filter_that_is_too_long_is_not_changed() {
        let _ = prepare(draw_address().unwrap());
        assert!(exempting(&vec![step(RETURN, 0, 0, 0); MOST_STEPS], true).is_none());
    }
}
