//! The signals that a program has blocked in name only: those that this crate's handlers need open ([`crate::sigbus`]).
//! The program reads that they are blocked. One that is sent is handled at once all the same. One that the processor
//! raises ends the process, as in the kernel.

use crate::static_tls;
use crate::static_tls::StaticTls;
use crate::vforked;

static_tls! {
    static BLOCKED: u64 = "folioswap_blocked";
}

/// What the calling thread has blocked in name, as a mask of the kernel's.
#[must_use]
pub fn blocked() -> u64 {
    vforked::blocked().unwrap_or_else(|| BLOCKED.get())
}

/// Sets [`blocked`], in a new thread or at the start.
pub fn begin_thread(blocked: u64) {
    BLOCKED.set(blocked);
}

/// Changes [`blocked`] as `rt_sigprocmask` does, by signals of `which` only. Returns what was blocked before.
pub fn change(how: i32, set: Option<u64>, which: u64) -> u64 {
    let before = blocked();
    let Some(set) = set.map(|set| set & which) else { return before };
    let now = match how {
        libc::SIG_BLOCK => before | set,
        libc::SIG_UNBLOCK => before & !set,
        _ => set,
    };
    if now != before && !vforked::set_blocked(now) {
        BLOCKED.set(now);
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_reads_what_it_has_blocked() {
        assert_eq!(change(libc::SIG_BLOCK, Some(0b0110), 0b1100), 0);
        assert_eq!(change(libc::SIG_BLOCK, Some(0b1000), 0b1100), 0b0100);
        assert_eq!(change(libc::SIG_UNBLOCK, Some(0b0100), 0b1100), 0b1100);
        assert_eq!(change(libc::SIG_SETMASK, Some(0b0111), 0b1100), 0b1000);
        assert_eq!((change(libc::SIG_BLOCK, None, !0), blocked()), (0b0100, 0b0100));
        begin_thread(0);
    }
}
