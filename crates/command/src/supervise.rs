//! Runs a child to its end, and forwards signals to it.
//!
//! The child stays in our process group, so that the terminal treats it as the foreground program. A signal to the
//! group, from the terminal or from a process, has reached it too. It is not forwarded. One that was sent to this
//! process alone is. A witness in the group tells which it was.

use crate::exit::{End, Failure};
use folioswap_child::{Received, Sent, Witness, began_ignoring, reap_others, send, stop_by};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, child_subreaper, getpgid, getpgrp, getpid, getppid, getsid,
    pidfd_open, waitid,
};
use std::collections::VecDeque;
use std::io::{ErrorKind, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Signals that end the command if no child is there to receive them.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Signals that stop a process, unless it catches them.
const STOPPING: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];

/// How long a signal waits before it is forwarded. timeout(1) and systemd send theirs to this process first, and then
/// to all others.
const UNTIL_ALL_HAVE_IT: Duration = Duration::from_millis(50);

/// A witness that ends sooner is not replaced.
const LEAST_LIFE: Duration = Duration::from_secs(1);

/// How long after the child a signal to the group stops this process at the latest.
const UNTIL_STOPPED: Duration = Duration::from_millis(50);

/// Takes the signals from its creation on, so that none of them ends the command between set-up and tear-down.
pub struct Supervisor {
    received: Received,
}

impl Supervisor {
    /// Has this thread, and those that are started later, take all signals.
    pub fn new() -> Result<Supervisor, Failure> {
        let received =
            Received::begin().map_err(|error| Failure::new(format!("signals could not be received: {error}")))?;
        Ok(Supervisor { received })
    }

    /// The signal that asks the command to end, if one came while there was no child.
    pub fn asked_to_end(&mut self) -> Option<i32> {
        let ends = |signal: &i32| ENDING.iter().any(|one| one.as_raw() == *signal) && !began_ignoring(*signal);
        self.received.take().iter().map(|sent| sent.signal).find(ends)
    }

    /// Gives signals the effect that they had when the command was started. Dropping the supervisor would leave them
    /// without any effect.
    pub fn release(self) {
        self.received.end();
    }

    /// Starts `command` and waits for its end. `started` is called with the child right after its start (to take its
    /// pipes).
    pub fn run(&mut self, command: &mut Command, started: impl FnOnce(&mut Child)) -> Result<End, Failure> {
        if let Some(signal) = self.asked_to_end() {
            return Ok(End::Signal(signal));
        }
        let (end, until_end) =
            std::io::pipe().map_err(|error| Failure::new(format!("a pipe could not be opened: {error}")))?;
        let is_group_stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _until_end = until_end; // closed at the end, also if this thread panics
            let (hand_over, handed_over) = channel::<Forwarder<'_>>();
            let forward = move || {
                if let Ok(forwarder) = handed_over.recv() {
                    forwarder.forward(&end);
                }
            };
            // Before the child: the program does not begin if there is no thread for its signals.
            std::thread::Builder::new()
                .spawn_scoped(scope, forward)
                .map_err(|error| Failure::new(format!("a thread could not be started: {error}")))?;
            let mut child = spawn(command)?;
            // After the child: what only the witness has got would be taken for what the child has got, too.
            let witness = Witness::start().ok();
            let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let forwarder = Forwarder {
                received: &self.received,
                witness,
                child: child.id(),
                pidfd: process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
                is_reaper: getpid().is_init() || child_subreaper().is_ok_and(|is_one| is_one.is_some()),
                is_group_stopped: &is_group_stopped,
                waiting: VecDeque::new(),
                begun: Instant::now(),
            };
            let _ = hand_over.send(forwarder); // it is waited for
            started(&mut child);
            if let Some(pid) = process {
                stop_with(pid, &is_group_stopped);
            }
            let ended = child.wait();
            ended.map(end_of).map_err(|error| Failure::new(format!("waiting for the program failed: {error}")))
        })
    }
}

fn spawn(command: &mut Command) -> Result<Child, Failure> {
    command.spawn().map_err(|error| {
        let program = command.get_program().to_string_lossy().into_owned();
        let status = match error.kind() {
            ErrorKind::NotFound => folioswap::ExitStatus::NotFound,
            ErrorKind::WouldBlock | ErrorKind::OutOfMemory => folioswap::ExitStatus::Failed, // no process
            _ => folioswap::ExitStatus::NotExecutable,
        };
        Failure::of(status, format!("program '{program}' could not be executed: {error}"))
    })
}

/// Forwards signals to the child.
struct Forwarder<'a> {
    received: &'a Received,
    /// None: all signals are forwarded.
    witness: Option<Witness>,
    child: u32,
    pidfd: Option<OwnedFd>,
    /// Whether processes that lose their parents become children of this one.
    is_reaper: bool,
    is_group_stopped: &'a AtomicBool,
    /// The signals that the group may yet get, and when they were taken, the oldest first.
    waiting: VecDeque<(Sent, Instant)>,
    /// When the witness was started.
    begun: Instant,
}

impl Forwarder<'_> {
    fn forward(mut self, end: &PipeReader) {
        loop {
            let limit = self.waiting.front().map(|(_, taken)| UNTIL_ALL_HAVE_IT.saturating_sub(taken.elapsed()));
            let reports = self.witness.as_ref().map(AsFd::as_fd);
            let (is_end, has_report) = self.received.wait(end.as_fd(), reports, limit);
            if is_end {
                return;
            }
            if self.is_reaper {
                reap_others(self.child);
            }
            // Before the question: of a signal to the group, the witness has its own by then. After it, too: so has
            // this process, of what was reported.
            self.take();
            if self.waiting.is_empty() && !has_report {
                continue; // a child has ended: the program, mostly
            }
            let reports = self.witness.as_ref().and_then(Witness::ask);
            self.take();
            if reports.is_none() && self.witness.is_some() {
                self.start_again();
            }
            if self.is_child_in_group() {
                reports.iter().flatten().for_each(|report| self.forget(*report));
            }
            self.pass_on();
        }
    }

    /// Replaces a witness that is lost, unless it was lost at once.
    fn start_again(&mut self) {
        let is_lasting = self.begun.elapsed() > LEAST_LIFE;
        self.witness = if is_lasting { Witness::start().ok() } else { None };
        self.begun = Instant::now();
    }

    /// Takes the signals that came. What the program sends to its parent is not for itself. The kernel drops signals
    /// that stop once one comes that continues, and the reverse.
    fn take(&mut self) {
        for sent in self.received.take().into_iter().filter(|sent| sent.sender != self.child) {
            self.note(sent, false);
            if stops(sent) || continues(sent) {
                self.waiting.retain(|(other, _)| !(if stops(sent) { continues(*other) } else { stops(*other) }));
            }
            self.waiting.push_back((sent, Instant::now()));
        }
    }

    /// Forgets a signal that the group has got. Of those that are not queued all that are the same go with it, as the
    /// kernel keeps one of a number: timeout(1) sends its one to this process alone just before.
    fn forget(&mut self, report: Sent) {
        if report.is_queued() {
            let first = self.waiting.iter().position(|(sent, _)| *sent == report);
            first.map(|first| self.waiting.remove(first));
        } else {
            self.waiting.retain(|(sent, _)| *sent != report);
        }
        self.note(report, true);
    }

    /// Notes whether the group is stopped, or should be.
    fn note(&self, sent: Sent, has_group: bool) {
        if has_group && stops(sent) {
            self.is_group_stopped.store(true, Ordering::Relaxed);
        } else if continues(sent) {
            self.is_group_stopped.store(false, Ordering::Relaxed);
        }
    }

    /// Forwards what the group will not get any more.
    fn pass_on(&mut self) {
        let may_come = self.witness.is_some() && self.is_child_in_group();
        let limit = if may_come { UNTIL_ALL_HAVE_IT } else { Duration::ZERO };
        while let Some(&(sent, _)) = self.waiting.front().filter(|(_, taken)| taken.elapsed() >= limit) {
            self.waiting.pop_front();
            if let Some(pidfd) = &self.pidfd {
                // The child may have ended meanwhile. Then the signal has no receiver.
                let _ = send(pidfd.as_fd(), sent.signal);
            }
        }
    }

    /// Whether a signal to this process's group reaches the child.
    fn is_child_in_group(&self) -> bool {
        let child = i32::try_from(self.child).ok().and_then(Pid::from_raw);
        child.is_some_and(|child| getpgid(Some(child)) == Ok(getpgrp()))
    }
}

fn stops(sent: Sent) -> bool {
    STOPPING.iter().any(|signal| signal.as_raw() == sent.signal)
}

fn continues(sent: Sent) -> bool {
    sent.signal == Signal::CONT.as_raw()
}

/// Waits until the child has ended. Whenever it stops, the command stops too, by the same signal, so that the shell
/// sees it. Continued, it continues the child: SIGCONT is forwarded.
fn stop_with(child: Pid, is_group_stopped: &AtomicBool) {
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
        // SIGSTOP to the group stops this process too. If it did meanwhile, the child has been continued with it.
        let begun = Instant::now();
        std::thread::sleep(UNTIL_STOPPED);
        let is_late = begun.elapsed() > 2 * UNTIL_STOPPED;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let still = if is_late { None } else { wait(options) };
        let is_awaited = is_group_stopped.swap(false, Ordering::Relaxed) || is_a_shells_job();
        if let Some(signal) = still.and_then(|status| status.stopping_signal()).filter(|_| is_awaited) {
            stop_by(signal);
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

fn end_of(child: ExitStatus) -> End {
    match (child.code(), child.signal()) {
        (Some(code), _) => End::Status(code as u8), // the kernel limits it to 0..=255
        (None, Some(signal)) => End::Signal(signal),
        (None, None) => End::Status(folioswap::ExitStatus::Failed.code()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_reported_as_a_shell_does() {
        let ends = [(0, End::Status(0)), (3 << 8, End::Status(3)), (9, End::Signal(9)), (9 | 1 << 7, End::Signal(9))];
        for (raw, end) in ends {
            assert_eq!(end_of(ExitStatus::from_raw(raw)), end);
        }
        assert_eq!([End::Status(3), End::Signal(9)].map(End::status), [3, 137]);
    }
}
