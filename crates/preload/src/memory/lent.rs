//! What calls have on loan while they sleep. A handler of the program's may leave such a call by a jump: nothing then
//! gives its bounce buffers back.
//!
//! So each thread lists them, with the place on the stack where their call keeps its [`Lent`]. When another call has
//! that same place, the first one is over: its buffers are freed. So no more stays on loan than there are such places.
//!
//! **Locking.** The list is the thread's own. A handler that interrupts a change of it leaves it alone.

use std::sync::atomic::{Ordering, compiler_fence};

use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;

use crate::ground::heap::PRIVATE;
use crate::ground::{guard, state};

/// What is listed of a block. Lies in that block.
pub struct Loan {
    next: *mut Loan,
    block: *mut u8,
    place: usize,
}

static_tls! {
    /// The address of the newest loan; zero: there is none.
    static NEWEST: usize = "folioswap_newest_loan";
}

static_tls! {
    /// Whether the list is being changed.
    static IS_CHANGING: bool = "folioswap_changes_loans";
}

/// Changes the list of the calling thread. It is right at each moment: a handler may leave this by a jump, too.
fn change(by: impl FnOnce()) {
    IS_CHANGING.set(true);
    compiler_fence(Ordering::SeqCst);
    by();
    compiler_fence(Ordering::SeqCst);
    IS_CHANGING.set(false);
}

fn add(block: *mut u8, loan: *mut Loan, place: usize) {
    // SAFETY: a part of the block that only this list uses.
    unsafe { loan.write(Loan { next: NEWEST.get() as *mut Loan, block, place }) };
    compiler_fence(Ordering::SeqCst);
    NEWEST.set(loan as usize);
}

/// Takes loans out of the list.
fn take_out(is_over: impl Fn(&Loan) -> bool, each: impl Fn(*mut u8)) {
    let mut link = NEWEST.at().cast::<*mut Loan>();
    // SAFETY: the thread's own list, whose loans lie in blocks that are not freed before they are taken out.
    unsafe {
        while let Some(loan) = (*link).as_mut() {
            if is_over(loan) {
                link.write_volatile(loan.next);
                compiler_fence(Ordering::SeqCst);
                each(loan.block);
            } else {
                link = &raw mut loan.next;
            }
        }
    }
}

/// Frees the blocks of calls that are over.
fn free(is_over: impl Fn(&Loan) -> bool) {
    take_out(is_over, |block| {
        let _guard = guard::enter();
        // SAFETY: the call that took it from this heap is over, and has not given it back.
        state::keeping_errno(|| unsafe { PRIVATE.release(block) });
    });
}

/// The loans of a call that is being made.
#[derive(Default)]
struct Lent {
    is_listed: bool,
}

impl Lent {
    fn place(&self) -> usize {
        &raw const *self as usize
    }

    fn list(&mut self, blocks: impl Iterator<Item = (*mut u8, *mut Loan)>) {
        let place = self.place();
        self.is_listed = true;
        change(|| {
            free(|loan| loan.place == place);
            blocks.for_each(|(block, loan)| add(block, loan, place));
        });
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.is_listed {
            let place = self.place();
            change(|| take_out(|loan| loan.place == place, |_| ()));
        }
    }
}

/// Makes a call that may sleep, with blocks of the private heap on loan. Beside each is where it has room for its
/// [`Loan`].
pub fn during<R>(blocks: impl Iterator<Item = (*mut u8, *mut Loan)>, call: impl FnOnce() -> R) -> R {
    let mut lent = Lent::default();
    if !IS_CHANGING.get() {
        lent.list(blocks);
    }
    call()
}

/// Called when a thread ends: it makes no more calls.
pub fn end_thread() {
    change(|| free(|_| true));
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    const NONE: Loan = Loan { next: null_mut(), block: null_mut(), place: 0 };

    fn blocks(all: &mut [Loan]) -> impl Iterator<Item = (*mut u8, *mut Loan)> {
        all.iter_mut().map(|loan| (null_mut(), &raw mut *loan))
    }

    fn nr_listed() -> usize {
        // SAFETY: listed loans, each of which lives as long as its call.
        let next = |&loan: &*mut Loan| unsafe { loan.as_ref() }.map(|loan| loan.next);
        std::iter::successors(Some(NEWEST.get() as *mut Loan), next).count() - 1
    }

    #[test]
    fn loans_end_with_their_calls() {
        let (mut two, mut one) = ([NONE; 2], [NONE]);
        during(blocks(&mut two), || {
            assert_eq!(nr_listed(), 2);
            during(blocks(&mut one), || assert_eq!(nr_listed(), 3));
            assert_eq!(nr_listed(), 2);
        });
        assert_eq!(nr_listed(), 0);
    }

    #[test]
    fn a_call_at_the_same_place_ends_another() {
        let call = |len: usize| {
            let loan = PRIVATE.allocate(size_of::<Loan>() + len, align_of::<Loan>());
            let mut lent = std::mem::ManuallyDrop::new(Lent::default());
            lent.list(std::iter::once((loan, loan.cast())));
            std::hint::black_box(&lent);
        };
        let before = PRIVATE.used();
        for _ in 0..100 {
            call(64 << 10);
            assert_eq!(nr_listed(), 1);
        }
        end_thread();
        assert!(nr_listed() == 0 && PRIVATE.used() < before + (1 << 20));
    }
}
