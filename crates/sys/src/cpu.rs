//! CPUs (which one runs a thread, how many there are, scheduling), and the CPU time used.

use std::ffi::CStr;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;
use std::time::Duration;

use crate::{check, open_at};

/// Lets others run. Not the C library's call, which a filter of the program's may refuse.
pub fn yield_now() {
    // SAFETY: takes no pointers.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// The CPU that runs the calling thread now. It may run on another one right after. Costs about 20 ns.
pub fn current_cpu() -> usize {
    // SAFETY: takes no pointers.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

/// Index of the CPU among the fields of a thread's `stat` file, counted after its name.
const PROCESSOR: usize = 36;

/// The CPU that runs another thread of this process, or ran it last; `None` if the thread is gone. Costs a few
/// microseconds, does not allocate, and opens a descriptor meanwhile.
pub fn cpu_of(thread: u32) -> Option<usize> {
    let mut name = io::Cursor::new([0u8; 40]);
    write!(name, "/proc/self/task/{thread}/stat").ok()?;
    let mut said = [0u8; 1024];
    let file = open_at(libc::AT_FDCWD, CStr::from_bytes_until_nul(name.get_ref()).ok()?, libc::O_RDONLY).ok()?;
    // SAFETY: a buffer of this frame.
    let read = unsafe { libc::syscall(libc::SYS_read, file.as_raw_fd(), said.as_mut_ptr(), said.len()) };
    let len = check(read).ok()?;
    // The name is in parentheses, and may itself contain parentheses.
    let behind_name = said[..len].rsplit(|&byte| byte == b')').next()?;
    let field = behind_name.split(|&byte| byte == b' ').filter(|field| !field.is_empty()).nth(PROCESSOR)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Pins the calling thread to this CPU.
///
/// # Errors
/// EINVAL: there is no such CPU, or the process may not use it.
pub fn stay_on(cpu: usize) -> io::Result<()> {
    if cpu >= size_of::<libc::cpu_set_t>() * 8 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: all zeroes is an empty set, which has room for the CPU (checked). The kernel reads a local of this frame.
    // 0 is the calling thread.
    check(unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set).into()
    })?;
    Ok(())
}

/// CPUs that this process may use; at least 1. Found out once, and known to forked children: a seccomp filter may
/// refuse the question later.
pub fn nr_cpus() -> usize {
    static NR: OnceLock<usize> = OnceLock::new();
    *NR.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// Makes the calling thread SCHED_BATCH: when woken it does not preempt the running thread. Failure is ignored.
pub fn run_as_batch() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread. The parameters are a local of this frame and only read.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_BATCH, &parameters) };
}

/// CPU time that the calling thread has used.
pub fn thread_cpu_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time that all threads of the process have used.
pub fn process_cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills in a local of this frame. These clocks always exist.
    unsafe { libc::clock_gettime(id, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_in_the_clocks() {
        let before = thread_cpu_time();
        while thread_cpu_time() - before < Duration::from_millis(2) {}
        assert!(process_cpu_time() >= Duration::from_millis(2));
        assert!(nr_cpus() > 0);
        let _ = current_cpu();
    }

    #[test]
    fn the_cpu_of_another_thread() {
        let (told, ended) = (std::sync::mpsc::channel(), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: a NUL-terminated name, which the kernel copies.
                unsafe { libc::prctl(libc::PR_SET_NAME, c"a) R (b 1 2".as_ptr()) };
                let cpu = current_cpu();
                stay_on(cpu).unwrap();
                told.0.send((crate::signals::thread_id(), cpu)).unwrap();
                ended.wait();
            });
            let (thread, cpu) = told.1.recv().unwrap();
            assert_eq!((cpu_of(thread), cpu_of(u32::MAX)), (Some(cpu), None));
            assert_eq!(stay_on(1 << 20).unwrap_err().raw_os_error(), Some(libc::EINVAL));
            ended.wait();
        });
    }

    #[test]
    fn a_thread_that_waits_for_its_turns_is_the_only_one_that_does() {
        // SAFETY: takes no pointers. 0 is the calling thread.
        let policy = || unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        let before = policy();
        let waiting = std::thread::spawn(move || {
            run_as_batch();
            policy()
        });
        assert_eq!((waiting.join().unwrap(), policy()), (libc::SCHED_BATCH.into(), before));
    }
}
