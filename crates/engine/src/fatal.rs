//! The end of the program when it cannot go on: one line on standard error, and an exit status that says so.

use std::io::Write;

/// Exit status of a program whose memory folioswap can no longer provide.
pub const EXIT_MEMORY: i32 = 70;

/// Prints `folioswap: MESSAGE` and ends the process at once: memory is never handed out twice nor silently zeroed.
pub(crate) fn die(message: &str) -> ! {
    say(message);
    folioswap_sys::signals::exit_now(EXIT_MEMORY)
}

/// Prints one line on standard error without going through the process's own buffers.
pub(crate) fn say(message: &str) {
    // Standard error may be closed; there is nowhere else to say it.
    let _ = std::io::stderr().write_all(format!("folioswap: {message}\n").as_bytes());
}

/// Ends the process when dropped by a panic: a thread that resolves faults must not die and leave others asleep.
pub(crate) struct AbortOnPanic(pub &'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say(&format!("the {} thread panicked", self.0));
            std::process::abort();
        }
    }
}
