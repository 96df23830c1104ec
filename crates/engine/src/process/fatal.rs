//! Ends a program that cannot go on: one line on standard error, and an exit status of its own.

use std::fmt::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};

use folioswap_sys::{own_table, signals};

use crate::config::exit_status::ExitStatus;
use crate::process::shared_stats::SharedCounters;
#[cfg(test)]
pub(crate) use quiet::{hush, note_seed};

/// Prints `folioswap: MESSAGE` and ends the process at once. Memory is never handed out twice, and never silently
/// zeroed.
pub(crate) fn die(message: &str) -> ! {
    #[cfg(test)]
    quiet::end();
    say(message);
    signals::exit_now(ExitStatus::OutOfMemory.code().into())
}

/// Prints one line on standard error. Bypasses the process's stdio buffers and their locks, which a thread that faults
/// while it prints may hold.
pub(crate) fn say(message: &str) {
    #[cfg(test)]
    if quiet::is_hushed() {
        return;
    }
    own_table::write_to_stderr(["folioswap: ", message, "\n"]);
}

/// Panics of all threads are folioswap's own.
static ALL_ARE_OURS: AtomicBool = AtomicBool::new(false);

/// Where panics are counted.
static COUNTERS: OnceLock<&'static SharedCounters> = OnceLock::new();

/// For a program or library that consists of folioswap's code: each panic ends the process, with one line and
/// [`ExitStatus::Defect`]. It counts in `counters`.
pub fn end_on_panics(counters: Option<&'static SharedCounters>) {
    counters.map(|counters| COUNTERS.set(counters));
    ALL_ARE_OURS.store(true, Ordering::SeqCst);
    end_on_own_panics();
}

/// The same for panics on the engine's threads. Those of other threads are the program's.
pub(crate) fn end_on_own_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |about| {
            if ALL_ARE_OURS.load(Ordering::Relaxed) || own_table::inside() {
                end_by_panic(about);
            }
            before(about);
        }));
    });
}

/// The line is made without allocating: the thread may hold the allocator's lock.
fn end_by_panic(about: &PanicHookInfo<'_>) -> ! {
    let mut line = Line { bytes: [0; Line::MOST], len: 0 };
    let _ = write!(line, "{about}"); // what is too long is cut
    #[cfg(test)]
    quiet::end();
    own_table::write_to_stderr(["folioswap: ", line.text(), " (a defect of folioswap: please report it)\n"]);
    COUNTERS.get().inspect(|counters| counters.count_defect());
    signals::exit_now(ExitStatus::Defect.code().into())
}

/// One line of text.
struct Line {
    bytes: [u8; Line::MOST],
    len: usize,
}

impl Line {
    const MOST: usize = 1000;

    fn text(&self) -> &str {
        let bytes = &self.bytes[..self.len];
        std::str::from_utf8(bytes).unwrap_or_else(|cut| std::str::from_utf8(&bytes[..cut.valid_up_to()]).unwrap_or(""))
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            *self.bytes.get_mut(self.len).ok_or(fmt::Error)? = if byte == b'\n' { b' ' } else { byte };
            self.len += 1;
        }
        Ok(())
    }
}

/// Ends the process when dropped by a panic, if the program has replaced the hook: a thread that resolves faults must
/// not die and leave others asleep.
pub(crate) struct EndOnPanic(pub &'static str);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[cfg(test)]
            quiet::end();
            say(&format!("the {} thread panicked", self.0));
            signals::exit_now(ExitStatus::Defect.code().into());
        }
    }
}

/// For tests that make thousands of devices fail: their messages would bury all other output.
#[cfg(test)]
mod quiet {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    static HUSHED: AtomicBool = AtomicBool::new(false);

    /// The seeds begun last, including those that are running.
    static SEEDS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

    pub fn is_hushed() -> bool {
        HUSHED.load(Ordering::SeqCst)
    }

    /// Suppresses messages until it is dropped, except those that end the process.
    pub struct Hush;

    pub fn hush() -> Hush {
        HUSHED.store(true, Ordering::SeqCst);
        Hush
    }

    impl Drop for Hush {
        fn drop(&mut self) {
            HUSHED.store(false, Ordering::SeqCst);
        }
    }

    /// Notes a seed that begins, to be printed if the process ends.
    pub fn note_seed(seed: u64) {
        SEEDS[seed as usize % SEEDS.len()].store(seed, Ordering::SeqCst);
    }

    pub fn end() {
        if HUSHED.swap(false, Ordering::SeqCst) {
            super::say(&format!("the last seeds were {SEEDS:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use crate::process::threads;

    /// Set in a process that is to panic.
    const PANICS: &str = "FOLIOSWAP_TEST_PANICS";

    #[test]
    fn a_panic_on_a_thread_of_the_engine_ends_the_process_with_one_line_and_a_status() {
        if std::env::var_os(PANICS).is_some() {
            threads::spawn("test", &Arc::new(()), |_, _| panic!("first\nsecond")).unwrap().join();
            return;
        }
        let name =
            "process::fatal::tests::a_panic_on_a_thread_of_the_engine_ends_the_process_with_one_line_and_a_status";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", name, "--nocapture"]).env(PANICS, "1").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(ExitStatus::Defect.code().into()), "{said}");
        assert!(said.starts_with("folioswap: ") && said.contains("first second"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }

    #[test]
    fn a_fault_may_be_reported_while_its_thread_prints() {
        let (tell, told) = mpsc::channel();
        let printing = std::io::stderr().lock();
        std::thread::spawn(move || {
            say("said on behalf of a thread that has standard error locked");
            tell.send(()).unwrap();
        });
        assert!(told.recv_timeout(Duration::from_secs(20)).is_ok(), "it waits for the one that waits for it");
        drop(printing);
    }
}
