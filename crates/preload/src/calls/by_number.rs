//! System calls made by number, through `syscall` or outside the C library, where [`super::dispatch`] catches them.
//!
//! Transfers, messages, signal masks and memory calls go through the same code as the C library's functions. For all
//! other calls a table lists what their arguments point to (`numbers`).

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap::PAGE_SIZE;
use folioswap_sys::clock;
use folioswap_sys::pagemap::PAGEMAP_SCAN;
use libc::{iovec, nfds_t, timespec};

use crate::calls::copied::{self, Copied};
use crate::calls::ring_requests::{MOST_WAITERS, add_waiters};
use crate::calls::{
    bpf, clones, descriptors, filters, io, ioctl, limits, messages, mmap, numbers, process, references, remote, rights,
    ring_calls, sleeping, vectors,
};
use crate::faults::caught::SYS_IO_PGETEVENTS;
use crate::faults::{cleared, masks, net, only_thread, ours, robust, rseq, signals};
use crate::ground::export::export;
use crate::ground::guard;
use crate::ground::real::{By, kernel, own_result, raw, raw_result};
use crate::ground::selector;
use crate::ground::state::{self, Phase};
use crate::map::hand_over::{hand_over, note_shown};
use crate::map::{advice, footprint, program_break, protection, remap, segments};
use crate::memory::access;
use crate::memory::cover;
use crate::memory::{pages, resident};

type Words = [usize; 6];

export! {
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let words = [a, b, c, d, e, f];
        // SAFETY: passes the caller's arguments on unchanged.
        let result = unsafe { call(number, &words) };
        if (-4095..0).contains(&result) {
            state::fail(-result as i32);
            return -1;
        }
        result as c_long
    }
}

/// Makes a call with the kernel's result: a negative error number on failure. Keeps errno.
///
/// # Safety
/// As the system call.
pub unsafe fn call(number: c_long, words: &Words) -> isize {
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        let result = make(number, words);
        if result >= 0 && !guard::inside() {
            remote::note_call(number, words);
            descriptors::note_copy(number, words, result);
            if number == libc::SYS_prctl {
                note_shown(words);
            }
        }
        result
    }
}

/// # Safety
/// As the system call.
unsafe fn make(number: c_long, words: &Words) -> isize {
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        if guard::inside() {
            return own_result(number, words);
        }
        if matches!(state::phase(), Phase::Early | Phase::Passing) {
            return raw_result(number, words);
        }
        if matches!(number, libc::SYS_seccomp | libc::SYS_prctl)
            && let Some(result) = filters::set(number, words)
        {
            return result;
        }
        if let Some(result) = descriptors::by_number(number, words) {
            return result;
        }
        if let Some(result) = limits::by_number(number, words) {
            return result;
        }
        match number {
            libc::SYS_exit => {
                robust::end_thread();
                if only_thread::is_last_thread() {
                    return own_result(libc::SYS_exit_group, words); // a filter may permit the other only
                }
            }
            libc::SYS_exit_group => before_end(),
            libc::SYS_set_tid_address => cleared::hold_own(words[0]),
            libc::SYS_rseq => rseq::note(words[0], words[1], words[2]),
            libc::SYS_execve | libc::SYS_execveat if !state::direct() => {
                robust::bring_in();
                let _limits = limits::inherited();
                return signals::inherited(|| raw_result(number, words));
            }
            _ => {}
        }
        if let Some(result) = clones::by_number(number, words) {
            return result;
        }
        let kept = state::errno();
        rights::before(number, words);
        let result = memory(number, words).or_else(|| references::by_number(number, words));
        let result = result.or_else(|| ring_calls::by_number(number, words));
        let covered = || if state::direct() { in_direct_mode(number, words) } else { in_monitor_mode(number, words) };
        let result = result.or_else(covered);
        let result = match result {
            Some(-1) => -(state::errno() as isize),
            Some(result) => result,
            None => {
                let result = with_copies(number, words);
                if result >= 0 {
                    rights::after(number, words);
                }
                return result;
            }
        };
        state::fail(kept);
        result
    }
}

/// Linux 6.4. The kernel does not move pages that it has merged, so merging is a wish without effect.
const PR_SET_MEMORY_MERGE: usize = 67;
const PR_GET_MEMORY_MERGE: usize = 68;
static MERGES: AtomicBool = AtomicBool::new(false);

/// Turns merging off, if the program was started with it.
pub fn end_merging() {
    // SAFETY: takes no pointers.
    unsafe {
        if kernel!(libc::SYS_prctl, PR_GET_MEMORY_MERGE, 0usize, 0usize, 0usize, 0usize) == 1 {
            MERGES.store(true, Ordering::Relaxed);
            kernel!(libc::SYS_prctl, PR_SET_MEMORY_MERGE, 0usize, 0usize, 0usize, 0usize);
        }
    }
}

/// Calls on memory, which this library implements, whether the memory is managed or not.
unsafe fn memory(number: c_long, words: &Words) -> Option<isize> {
    let &[a, b, c, d, e, f] = words;
    let at = a as *mut _;
    // SAFETY: passes the caller's arguments on unchanged.
    Some(unsafe {
        match number {
            libc::SYS_mmap => mmap::mmap(at, b, c as c_int, d as c_int, e as c_int, f as i64) as isize,
            libc::SYS_munmap => mmap::munmap(at, b) as isize,
            libc::SYS_brk => program_break::by_number(a) as isize,
            libc::SYS_shmat => segments::shmat(a as c_int, b as *const _, c as c_int) as isize,
            libc::SYS_mremap => remap::mremap(at, b, c, d as c_int, e as *mut _) as isize,
            libc::SYS_madvise => advice::madvise(at, b, c as c_int) as isize,
            libc::SYS_process_madvise => advice::process_madvise(a as c_int, b as *const _, c, d as c_int, e as c_uint),
            libc::SYS_pkey_mprotect => protection::pkey_mprotect(at, b, c as c_int, d as c_int) as isize,
            libc::SYS_mprotect => protection::mprotect(at, b, c as c_int) as isize,
            libc::SYS_mlock => protection::mlock(at, b) as isize,
            libc::SYS_mlock2 => protection::mlock2(at, b, c as c_uint) as isize,
            libc::SYS_munlock => protection::munlock(at, b) as isize,
            libc::SYS_mlockall => protection::mlockall(a as c_int) as isize,
            libc::SYS_ioctl if b as u32 == PAGEMAP_SCAN => ioctl::ioctl(a as c_int, b as u64, c as *mut _) as isize,
            libc::SYS_ioctl => ioctl::perform(b as u64, c as *const _, || raw(number, words) as isize),
            libc::SYS_ptrace => match remote::trace_later(a as u32) {
                Some(result) => result as isize,
                None => remote::traced(a as u32, b as i32, c, || {
                    cover::repeat(|| remote::touch_traced([c, d]), || raw(number, words) as isize)
                }),
            },
            libc::SYS_mseal => {
                hand_over(&(a..a.saturating_add(pages::pages(b))));
                raw(number, words) as isize
            }
            libc::SYS_prctl if a == PR_SET_MEMORY_MERGE && b <= 1 && [c, d, e] == [0; 3] => {
                MERGES.store(b == 1, Ordering::Relaxed);
                0
            }
            libc::SYS_prctl if a == PR_GET_MEMORY_MERGE && [b, c, d, e] == [0; 4] => {
                MERGES.load(Ordering::Relaxed).into()
            }
            libc::SYS_munlockall => protection::munlockall() as isize,
            _ => return None,
        }
    })
}

/// Calls with code of their own in direct mode. Returns -1 and sets errno on failure.
unsafe fn in_direct_mode(number: c_long, words: &Words) -> Option<isize> {
    // SAFETY: passes the caller's arguments on unchanged.
    unsafe {
        transfer(number, words)
            .or_else(|| masked(number, words))
            .or_else(|| about_the_net(number, words))
            .or_else(|| special(number, words))
    }
}

/// The same in monitor mode, where the kernel waits for what is not in RAM. Only what it pins needs a cover
/// ([`pins`](crate::memory::transfer::pins)).
unsafe fn in_monitor_mode(number: c_long, words: &Words) -> Option<isize> {
    // SAFETY: passes the caller's arguments on unchanged.
    unsafe {
        if number == libc::SYS_futex && changes_words(words) {
            return Some(futex_in_monitor_mode(words));
        }
        let result = transfer(number, words);
        if !ours::has_ours() {
            return result;
        }
        result.or_else(|| masked(number, words)).or_else(|| about_the_net(number, words))
    }
}

/// Transfers of bytes, messages, and questions about locks.
unsafe fn transfer(number: c_long, words: &Words) -> Option<isize> {
    const BY: By = By::Number;
    let &[a, b, c, d, e, f] = words;
    let (fd, at, list, count) = (a as c_int, b as *mut c_void, b as *const iovec, c as c_int);
    let (c_flags, d_flags, offset) = (c as c_int, d as c_int, d as i64);
    // SAFETY: passes the caller's arguments on unchanged.
    Some(unsafe {
        match number {
            libc::SYS_read => io::read_by(BY, fd, at, c),
            libc::SYS_write => io::write_by(BY, fd, at, c),
            libc::SYS_pread64 => io::pread_by(BY, fd, at, c, offset),
            libc::SYS_pwrite64 => io::pwrite_by(BY, fd, at, c, offset),
            libc::SYS_readv => vectors::readv_by(BY, fd, list, count),
            libc::SYS_writev => vectors::writev_by(BY, fd, list, count),
            libc::SYS_preadv => vectors::preadv_by(BY, fd, list, count, offset),
            libc::SYS_pwritev => vectors::pwritev_by(BY, fd, list, count, offset),
            libc::SYS_preadv2 => vectors::preadv2_by(BY, fd, list, count, offset, f as c_int),
            libc::SYS_pwritev2 => vectors::pwritev2_by(BY, fd, list, count, offset, f as c_int),
            libc::SYS_process_vm_readv => {
                vectors::process_vm_readv_by(BY, fd, list, c as u64, d as *const _, e as u64, f as u64)
            }
            libc::SYS_process_vm_writev => {
                vectors::process_vm_writev_by(BY, fd, list, c as u64, d as *const _, e as u64, f as u64)
            }
            libc::SYS_recvfrom => io::recvfrom_by(BY, fd, at, c, d_flags, e as *mut _, f as *mut _),
            libc::SYS_fcntl => descriptors::control(b as c_int, c as *const _, || kernel!(number, a, b, c) as isize),
            libc::SYS_sendto => io::sendto_by(BY, fd, at, c, d_flags, e as *const _, f as u32),
            libc::SYS_sendmsg => messages::sendmsg_by(BY, fd, b as *const _, c_flags),
            libc::SYS_recvmsg => messages::recvmsg_by(BY, fd, b as *mut _, c_flags),
            libc::SYS_sendmmsg => messages::sendmmsg_by(BY, fd, b as *mut _, c as c_uint, d_flags) as isize,
            libc::SYS_recvmmsg => {
                messages::recvmmsg_by(BY, fd, b as *mut _, c as c_uint, d_flags, e as *mut _) as isize
            }
            _ => return None,
        }
    })
}

/// Called before the process ends at once.
fn before_end() {
    robust::end_process();
    footprint::at_sudden_end();
}

/// Makes a call whose last argument names the address of a signal set, and its length.
///
/// # Safety
/// `named` is null or the caller's argument.
unsafe fn with_named_set(named: usize, call: impl FnOnce(usize) -> c_long) -> c_long {
    // SAFETY: the caller upholds this function's own contract.
    let words = if named == 0 { None } else { unsafe { access::read(named as *const [usize; 2]) } };
    // SAFETY: as above; the caller's set.
    let set = words.and_then(|[at, _]| unsafe { ours::open_set(at) });
    let words = words.map(|[at, len]| [copied::or_theirs(&set, at), len]);
    call(copied::or_theirs(&words, named))
}

/// Calls that set a signal mask, permanently or while they wait, a signal action or a signal stack.
unsafe fn masked(number: c_long, words: &Words) -> Option<isize> {
    let &[a, b, c, d, e, f] = words;
    // SAFETY: the caller's call, with valid copies in place of its pointers.
    Some(unsafe {
        match number {
            libc::SYS_rt_sigprocmask => {
                let wanted = if b == 0 { None } else { access::read(b as *const u64) };
                let set = if a == libc::SIG_UNBLOCK as usize { wanted } else { ours::open_set(b).or(wanted) };
                let mut known = 0u64;
                let _stack = cover::stack();
                let result = kernel!(number, a, copied::or_theirs(&set, b), &raw mut known, d);
                if result < 0 {
                    return Some(result as isize);
                }
                ours::bring(masks::change(a as c_int, wanted, known), c as *mut u64, 0) as isize
            }
            libc::SYS_rt_sigsuspend => kernel!(number, copied::or_theirs(&ours::open_set(a), a), b) as isize,
            libc::SYS_rt_sigaction => signals::kernel_action(a as c_int, b as *const _, c as *mut _, d) as isize,
            libc::SYS_sigaltstack => signals::sigaltstack(a as *const _, b as *mut _) as isize,
            libc::SYS_ppoll => {
                let list = copied::polled(a as *mut u8, b as nfds_t);
                let (limit, set) = (copied::value(c as *mut timespec), ours::open_set(d));
                let result = kernel!(number, list.addr(), b, limit.addr(), copied::or_theirs(&set, d), e);
                copied::bring_all_back(&[list, limit], result) as isize
            }
            libc::SYS_select | libc::SYS_pselect6 => {
                let count = descriptors::looked_at(a as c_int, [b, c, d]);
                let sets = [b, c, d].map(|set| Copied::new(set, sleeping::set_bytes(count), true));
                let limit = copied::value(e as *mut timespec);
                let call =
                    |sixth| kernel!(number, count, sets[0].addr(), sets[1].addr(), sets[2].addr(), limit.addr(), sixth);
                let result = if number == libc::SYS_pselect6 { with_named_set(f, call) } else { call(f) };
                copied::bring_all_back(sets.iter().chain([&limit]), result) as isize
            }
            SYS_IO_PGETEVENTS => {
                let list = copied::bytes(d as *mut u8, if c as isize > 0 { c.saturating_mul(32) } else { 0 });
                let limit = copied::value(e as *const timespec);
                let call = |sixth| kernel!(number, a, b, c, list.addr(), limit.addr(), sixth);
                let result = with_named_set(f, call);
                list.bring_back(result) as isize
            }
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
                let list = copied::bytes(b as *mut u8, (c as c_int).max(0) as usize * 12);
                let has_time = number == libc::SYS_epoll_pwait2;
                let limit = copied::bytes(d as *const u8, if has_time { size_of::<timespec>() } else { 0 });
                let set = ours::open_set(e);
                let result = kernel!(number, a, list.addr(), c, limit.addr(), copied::or_theirs(&set, e), f);
                list.bring_back(result) as isize
            }
            _ => return None,
        }
    })
}

/// Calls that concern the net, and the processor's counter.
unsafe fn about_the_net(number: c_long, words: &Words) -> Option<isize> {
    match number {
        libc::SYS_prctl if words[0] == net::SET_DISPATCH && selector::is_armed() => Some(net::set_theirs(words)),
        libc::SYS_prctl if words[0] == net::SET_DISPATCH => {
            if words[1] == net::DISPATCH_ON {
                resident::hold(words[4], 1); // the kernel reads it at each call
            }
            // SAFETY: the caller's call.
            Some(unsafe { raw(number, words) as isize })
        }
        libc::SYS_prctl if words[..2] == [libc::PR_SET_TSC as usize, libc::PR_TSC_SIGSEGV as usize] => {
            clock::stop_counter();
            None
        }
        _ => None,
    }
}

/// The remaining calls with code of their own: futexes, System V messages, exec and asynchronous I/O.
unsafe fn special(number: c_long, words: &Words) -> Option<isize> {
    let &[a, b, c, d, e, _] = words;
    // SAFETY: the caller's call, with valid copies in place of its pointers.
    Some(unsafe {
        match number {
            libc::SYS_futex => futex(words),
            libc::SYS_futex_waitv => wait_for_several(words),
            libc::SYS_bpf => bpf::perform(words),
            libc::SYS_msgsnd | libc::SYS_msgrcv => {
                let len = c.saturating_add(size_of::<c_long>());
                let is_sent = number == libc::SYS_msgsnd;
                let message =
                    if is_sent { copied::bytes(b as *const u8, len) } else { copied::bytes(b as *mut u8, len) };
                let result = kernel!(number, a, message.addr(), c, d, e);
                let type_bytes = size_of::<c_long>() as isize;
                match message.bring_back(if result < 0 { -1 } else { result as isize + type_bytes }) {
                    0.. => result as isize,
                    failed => failed,
                }
            }
            libc::SYS_execve | libc::SYS_execveat => {
                let at = if number == libc::SYS_execve { [a, b, c] } else { [b, c, d] };
                let touch = || process::touch(at[0] as *const _, at[1] as *const _, at[2] as *const _);
                process::execute(touch, || raw(number, words) as isize)
            }
            libc::SYS_set_robust_list => {
                resident::hold(a, b.min(64));
                return None;
            }
            libc::SYS_mincore => {
                let present = Copied::new(c, b.div_ceil(PAGE_SIZE), true);
                let result = kernel!(number, a, b, present.addr());
                present.bring_back(result) as isize
            }
            _ => return None,
        }
    })
}

/// FUTEX_LOCK_PI2, since Linux 5.14.
const LOCK_PI2: c_int = 13;

/// A futex call, whose word may be missing or be evicted. Only a call that has not slept returns EFAULT for the word,
/// so the call may be repeated. The timeout is copied.
unsafe fn futex(words: &Words) -> isize {
    let mut words = *words;
    let what = words[1] as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    let timed = [libc::FUTEX_WAIT, libc::FUTEX_LOCK_PI, LOCK_PI2, libc::FUTEX_WAIT_BITSET, libc::FUTEX_WAIT_REQUEUE_PI];
    let is_timed = timed.contains(&what) && words[3] != 0;
    // SAFETY: the caller's time.
    let time = if is_timed { unsafe { access::read(words[3] as *const timespec) } } else { None };
    words[3] = copied::or_theirs(&time, words[3]);
    cover::repeat(
        || {
            cover::value(words[0] as *const u32);
            cover::value(words[4] as *const u32);
        },
        // SAFETY: passes the caller's arguments on unchanged.
        || unsafe { raw(libc::SYS_futex, &words) as isize },
    )
}

/// The same for a list of words.
unsafe fn wait_for_several(words: &Words) -> isize {
    let mut words = *words;
    // SAFETY: the caller's time.
    let time = if words[3] == 0 { None } else { unsafe { access::read(words[3] as *const timespec) } };
    words[3] = copied::or_theirs(&time, words[3]);
    let mut ranges = {
        let _guard = guard::enter();
        Vec::with_capacity(MOST_WAITERS + 1)
    };
    add_waiters(&mut ranges, words[0], words[1]);
    cover::repeat(
        || ranges.iter().for_each(|range| cover::touch(range.start as *const u8, range.len())),
        // SAFETY: passes the caller's arguments on, with a copy of the time.
        || unsafe { raw(libc::SYS_futex_waitv, &words) as isize },
    )
}

/// Whether the kernel writes a futex's words itself. It does not wait for a missing page then.
fn changes_words(words: &Words) -> bool {
    let only_read = [libc::FUTEX_WAIT, libc::FUTEX_WAKE, libc::FUTEX_WAIT_BITSET, libc::FUTEX_WAKE_BITSET];
    let what = words[1] as c_int & libc::FUTEX_CMD_MASK;
    what <= LOCK_PI2 && !only_read.contains(&what)
}

/// A futex call of this kind: it fails for a word that is missing before it has slept.
unsafe fn futex_in_monitor_mode(words: &Words) -> isize {
    let managed = [words[0], words[4]].map(|at| (at, state::overlaps(at, size_of::<u32>())));
    let touch = || managed.iter().filter(|(_, is)| *is).for_each(|&(at, _)| resident::bring_in(at, size_of::<u32>()));
    cover::repeat_if(
        managed.iter().any(|&(_, is)| is),
        touch,
        // SAFETY: passes the caller's arguments on unchanged.
        || unsafe { raw(libc::SYS_futex, words) as isize },
    )
}

/// Makes a call with copies of everything its pointers name, as far as this is known. Memory of unknown layout is
/// faulted in.
unsafe fn with_copies(number: c_long, words: &Words) -> isize {
    let arguments = if state::direct() { numbers::arguments(number) } else { &[] };
    // SAFETY: the caller's call.
    unsafe {
        if arguments.is_empty() {
            return raw_result(number, words);
        }
        let copies: [Option<Copied>; 6] =
            std::array::from_fn(|index| arguments.get(index).and_then(|argument| argument.copy(words, index)));
        let handed: Words =
            std::array::from_fn(|index| copies[index].as_ref().map_or(words[index], |copy| copy.addr()));
        let kept = state::errno();
        let result = copied::make(copies.iter().flatten(), || raw(number, &handed) as isize);
        let result = if result == -1 { -(state::errno() as isize) } else { result };
        state::fail(kept);
        result
    }
}
