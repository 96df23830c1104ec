//! Ends a program that cannot go on: one line on standard error, and an exit status of its own.

#[cfg(test)]
pub(crate) use quiet::{hush, note_seed};

/// Exit status of a program whose memory folioswap can no longer provide.
pub const EXIT_MEMORY: i32 = 70;

/// Prints `folioswap: MESSAGE` and ends the process at once. Memory is never handed out twice, and never silently
/// zeroed.
pub(crate) fn die(message: &str) -> ! {
    #[cfg(test)]
    quiet::end();
    say(message);
    folioswap_sys::signals::exit_now(EXIT_MEMORY)
}

/// Prints one line on standard error. Bypasses the process's stdio buffers and their locks, which a thread that faults
/// while it prints may hold.
pub(crate) fn say(message: &str) {
    #[cfg(test)]
    if quiet::is_hushed() {
        return;
    }
    folioswap_sys::own_table::write_to_stderr(["folioswap: ", message, "\n"]);
}

/// Aborts the process when dropped by a panic: a thread that resolves faults must not die and leave others asleep.
pub(crate) struct AbortOnPanic(pub &'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[cfg(test)]
            quiet::end();
            say(&format!("the {} thread panicked", self.0));
            std::process::abort();
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
    use std::sync::mpsc;
    use std::time::Duration;

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
