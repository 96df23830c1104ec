//! Tests whether this kernel's `UFFDIO_MOVE` works: moves one huge page out and in, and checks it.

use folioswap_core::Order;
use folioswap_sys::memory::{self, Reservation};
use folioswap_sys::pagemap;
use folioswap_sys::uffd::{Delivery, MoveError, Userfaultfd};

use crate::config::error::Error;
use crate::config::mapping::Mapping;

const LEN: usize = Order::HUGE.bytes();

/// Words from one that is checked to the next: more than one is in each page.
const STEP: usize = 101;

/// Result of the self-test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelfTest {
    /// Whether a page kept its content when it was moved out and in. The error says why not.
    pub moves: Result<(), String>,
    /// Whether it was a huge page before, and still was after.
    pub stays_huge: bool,
}

impl SelfTest {
    /// The mapping chosen by `auto` on this kernel.
    pub fn mapping(&self) -> Mapping {
        if self.moves.is_ok() { Mapping::Move } else { Mapping::Copy }
    }
}

/// Moves one huge page out and in, checks its content and whether it is still huge. Takes about 0.3 ms.
pub fn self_test() -> SelfTest {
    let mut stays_huge = false;
    let moves = move_out_and_in(&mut stays_huge).map_err(|failed| failed.reason);
    SelfTest { moves, stays_huge }
}

/// Why the test has failed.
struct Failed {
    reason: String,
    /// The reason is the kernel. Else there was no memory for the test, or the page was in use.
    is_lasting: bool,
}

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        Failed { reason: error.to_string(), is_lasting: false }
    }
}

fn lasting(reason: impl ToString) -> Failed {
    Failed { reason: reason.to_string(), is_lasting: true }
}

fn move_out_and_in(stays_huge: &mut bool) -> Result<(), Failed> {
    let (uffd, features, _) = Userfaultfd::open(Delivery::Sigbus)?;
    if !features.has_move {
        return Err(lasting("this kernel has no UFFDIO_MOVE (it came with Linux 6.8)"));
    }
    let area = memory::anonymous_huge(2 * LEN)?;
    let (here, there) = (area.addr(), area.addr() + LEN);
    // SAFETY: readable and writable memory of this function's own.
    unsafe { memory::populate_write(here, LEN) }?;
    let pattern = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // SAFETY: `here` is LEN bytes of this function's own memory, readable, writable and populated.
    let words = unsafe { std::slice::from_raw_parts_mut(here as *mut u64, LEN / 8) };
    words.iter_mut().enumerate().step_by(STEP).for_each(|(at, word)| *word = pattern(at));
    let huge_before = pagemap::scan(here..here + LEN)?.huge_bytes == LEN as u64;
    uffd.register(area.addr(), 2 * LEN)?;
    let move_to = |to: usize, from: usize| {
        // SAFETY: two separate parts of this function's own memory. `words` is not used any more.
        unsafe { uffd.move_pages(to, from, LEN) }.map_err(|error| match error {
            MoveError::Busy | MoveError::Partial { .. } | MoveError::Other(libc::ENOMEM) => Failed::from(error),
            error => lasting(error),
        })
    };
    move_to(there, here)?;
    if pagemap::scan(here..here + LEN)?.present_bytes != 0 {
        return Err(lasting("a page that was moved out is still there"));
    }
    move_to(here, there)?;
    // SAFETY: `here` has its LEN bytes of memory back, and nobody writes it.
    let words = unsafe { std::slice::from_raw_parts(here as *const u64, LEN / 8) };
    if words.iter().enumerate().step_by(STEP).any(|(at, word)| *word != pattern(at)) {
        return Err(lasting("a page that was moved out and in came back changed"));
    }
    let back = pagemap::scan(here..here + LEN)?;
    *stays_huge = huge_before && back.huge_bytes == LEN as u64;
    Ok(())
}

/// Whether this kernel drops a page table of which no page is left with its pages: Linux 6.14, as it is built for x86.
/// A huge page that is moved there stays huge then. Takes about 0.2 ms.
pub(crate) fn drops_tables(uffd: &Userfaultfd) -> bool {
    let stays_huge = || -> Result<bool, Box<dyn std::error::Error>> {
        let area = Reservation::new(2 * LEN, LEN)?;
        area.protect_rw(area.range())?;
        let (here, there) = (area.addr(), area.addr() + LEN);
        memory::advise_hugepage(here, LEN)?;
        memory::advise_nohugepage(there, LEN)?;
        // SAFETY: readable and writable memory of this function's own, to which it holds no reference.
        unsafe {
            memory::populate_write(here, LEN)?;
            (there as *mut u8).write_volatile(1);
            memory::dontneed(there, LEN)?;
            uffd.register(there, LEN)?;
            uffd.move_pages(there, here, LEN)?;
        }
        Ok(pagemap::scan(there..there + LEN)?.huge_bytes == LEN as u64)
    };
    stays_huge().unwrap_or(false)
}

/// The mapping to use: the requested one if it works here, or for `auto` the best that works. Where the test itself
/// lacks memory, moving is taken to work.
pub(crate) fn choose(wanted: Mapping) -> Result<Mapping, Error> {
    if wanted == Mapping::Copy {
        return Ok(Mapping::Copy);
    }
    match move_out_and_in(&mut false) {
        Err(Failed { reason, is_lasting: true }) if wanted == Mapping::Move => Err(Error::NoMove(reason)),
        Err(Failed { is_lasting: true, .. }) => Ok(Mapping::Copy),
        _ => Ok(Mapping::Move),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_passes_or_says_why_not() {
        let found = self_test();
        match &found.moves {
            Ok(()) => assert_eq!(found.mapping(), Mapping::Move),
            Err(reason) => {
                println!("skipped: {reason}");
                assert_eq!(found.mapping(), Mapping::Copy);
            }
        }
    }
}
