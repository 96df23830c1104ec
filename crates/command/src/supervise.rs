//! Runs a child to its end: forwards signals to it, and turns its end into our exit status.
//!
//! The child stays in our process group, so that the terminal treats it as the foreground program. A signal from the
//! terminal reaches the whole group, so it is not forwarded. A signal that a process sent to us alone is.

use crate::exit::Failure;
use folioswap_sys::child;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpgid, getpgrp, getpid, getppid, getsid, kill_process,
    pidfd_open, pidfd_send_signal, waitid,
};
use signal_hook::consts::signal;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::{Origin, WithOrigin};
use signal_hook::low_level::siginfo::Cause;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Signals that are forwarded.
const PASSED_ON: &[i32] = &[
    signal::SIGINT,
    signal::SIGTERM,
    signal::SIGHUP,
    signal::SIGQUIT,
    signal::SIGUSR1,
    signal::SIGUSR2,
    signal::SIGWINCH,
    signal::SIGALRM,
    signal::SIGCONT,
    signal::SIGURG,
    signal::SIGIO,
];

/// Signals that end the command if no child is there to receive them.
const ENDING: &[i32] = &[signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGQUIT];

/// How long after the child a signal of the terminal's stops this process at the latest.
const UNTIL_STOPPED: Duration = Duration::from_millis(20);

/// Catches the signals from its creation on, so that none of them ends the command between set-up and tear-down.
pub struct Supervisor {
    signals: SignalsInfo<WithOrigin>,
}

impl Supervisor {
    /// Installs the signal handlers.
    pub fn new() -> Result<Supervisor, Failure> {
        child::note();
        let signals = SignalsInfo::<WithOrigin>::new(PASSED_ON)
            .map_err(|error| Failure::new(format!("signal handlers could not be installed: {error}")))?;
        child::attend(PASSED_ON);
        Ok(Supervisor { signals })
    }

    /// The signal that asks the command to end, if one came while there was no child.
    pub fn asked_to_end(&mut self) -> Option<i32> {
        let ends = |signal: &i32| ENDING.contains(signal) && !child::began_ignoring(*signal);
        self.signals.pending().map(|origin| origin.signal).find(ends)
    }

    /// Restores the default effect of the signals, which is to end the command. Dropping the supervisor would leave
    /// them without any effect.
    pub fn release(self) -> Result<(), Failure> {
        let usual = Arc::new(AtomicBool::new(true));
        for signal in ENDING.iter().filter(|&&signal| !child::began_ignoring(signal)) {
            signal_hook::flag::register_conditional_default(*signal, Arc::clone(&usual))
                .map_err(|error| Failure::new(format!("signal handlers could not be reset: {error}")))?;
        }
        Ok(())
    }

    /// Starts `command` and waits for its end. `started` is called with the child right after its start (to take its
    /// pipes).
    pub fn run(&mut self, command: &mut Command, started: impl FnOnce(&mut Child)) -> Result<u8, Failure> {
        if let Some(signal) = self.asked_to_end() {
            return Ok(status_of_signal(signal));
        }
        let mut child = command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            let status = match error.kind() {
                ErrorKind::NotFound => folioswap::ExitStatus::NotFound,
                ErrorKind::WouldBlock | ErrorKind::OutOfMemory => folioswap::ExitStatus::Failed, // no process
                _ => folioswap::ExitStatus::NotExecutable,
            };
            Failure::of(status, format!("program '{program}' could not be executed: {error}"))
        })?;
        let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let signals = &mut self.signals;
        std::thread::scope(|scope| {
            let (ended, end) = channel::<()>();
            scope.spawn(move || {
                while end.try_recv() == Err(TryRecvError::Empty) {
                    for origin in signals.wait() {
                        if from_terminal(&origin) {
                            continue;
                        }
                        let is_over = || process.is_some_and(has_continued);
                        if origin.signal == signal::SIGCONT && is_over() {
                            continue;
                        }
                        if let (Some(pidfd), Some(signal)) = (&pidfd, Signal::from_named_raw(origin.signal)) {
                            // The child may have ended meanwhile. Then the signal has no receiver.
                            let _ = pidfd_send_signal(pidfd, signal);
                        }
                        if origin.signal == signal::SIGCONT {
                            let _ = process.is_some_and(has_continued); // by this one: the next one counts again
                        }
                    }
                }
            });
            let _wake = Wake(Some(ended));
            started(&mut child);
            if let Some(pid) = process {
                stop_with(pid);
            }
            child.wait()
        })
        .map(status_of_exit)
        .map_err(|error| Failure::new(format!("waiting for the program failed: {error}")))
    }
}

/// Whether the child has been continued since its last stop that was seen: by a signal to the group, which has reached
/// it too. It may have stopped again by then, because it uses the terminal in the background, and must not be continued
/// for the first stop's sake.
fn has_continued(child: Pid) -> bool {
    let seen = |options| waitid(WaitId::Pid(child), options | WaitIdOptions::NOHANG).ok().flatten();
    let stopped = seen(WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT).and_then(|status| status.stopping_signal());
    stopped.is_some_and(|by| [signal::SIGTTIN, signal::SIGTTOU].contains(&by))
        || seen(WaitIdOptions::CONTINUED).is_some()
}

/// Waits until the child has ended. Whenever it stops, the command stops too, by the same signal, so that the shell
/// sees it. Continued, it continues the child: SIGCONT is forwarded.
fn stop_with(child: Pid) {
    let wait = |options| loop {
        match waitid(WaitId::Pid(child), options) {
            Err(Errno::INTR) => {}
            other => return other.ok().flatten(),
        }
    };
    loop {
        let seen = wait(WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT);
        if !seen.is_some_and(|status| status.stopped()) {
            return;
        }
        // A terminal's signal stops this process too. If it did meanwhile, the child has been continued with it.
        let begun = Instant::now();
        std::thread::sleep(UNTIL_STOPPED);
        let is_late = begun.elapsed() > 2 * UNTIL_STOPPED;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let still = if is_late { None } else { wait(options) };
        let signal = still.and_then(|status| status.stopping_signal()).and_then(Signal::from_named_raw);
        if let Some(signal) = signal.filter(|_| is_a_shells_job()) {
            let _ = kill_process(getpid(), signal);
        }
    }
}

/// Whether a shell with job control has started this process. Another parent may not look for stopped children, and
/// could continue the program alone.
fn is_a_shells_job() -> bool {
    let Some(parent) = getppid() else { return false };
    getpgid(Some(parent)).is_ok_and(|group| group != getpgrp())
        && matches!((getsid(Some(parent)), getsid(None)), (Ok(theirs), Ok(ours)) if theirs == ours)
}

/// Wakes the forwarding thread when the child has ended, also if this thread panics.
struct Wake(Option<Sender<()>>);

impl Drop for Wake {
    fn drop(&mut self) {
        drop(self.0.take());
        // SIGURG is ignored by default, so it is the handled signal that disturbs nobody.
        let _ = signal_hook::low_level::raise(signal::SIGURG);
    }
}

/// Whether the kernel's terminal driver sent the signal, to the whole foreground group.
fn from_terminal(origin: &Origin) -> bool {
    origin.process.is_none() && matches!(origin.cause, Cause::Kernel)
}

/// The exit status as a shell reports it.
pub fn status_of_exit(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8, // the kernel limits it to 0..=255
        (None, Some(signal)) => status_of_signal(signal),
        (None, None) => folioswap::ExitStatus::Failed.code(),
    }
}

/// The exit status of what a signal has ended.
pub fn status_of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_reported_as_a_shell_does() {
        assert_eq!(status_of_exit(ExitStatus::from_raw(0)), 0);
        assert_eq!(status_of_exit(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(status_of_exit(ExitStatus::from_raw(9)), 137);
    }
}
