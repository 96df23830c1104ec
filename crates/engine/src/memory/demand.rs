//! How threads that need frames and threads that free them tell each other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use folioswap_core::Order;

use crate::process::wakeup::Event;

/// Starts what was not started before memory ran short.
pub(crate) type Begin = Box<dyn Fn() -> bool + Send + Sync>;

/// The demand for an arena's frames.
#[derive(Default)]
pub(crate) struct Demand {
    reclaim_wanted: Event,
    /// Shared with the swap space.
    background: Arc<Event>,
    frame_freed: Event,
    /// Pages that threads wait for which leave reclaim to others.
    nr_awaited: AtomicUsize,
    begin: OnceLock<Begin>,
    begins_when_short: AtomicBool,
    let_go: OnceLock<fn() -> bool>,
    lacks_reclaim: AtomicBool,
    reclaims: AtomicBool,
}

/// A thread waits for frames for a folio of this order.
pub(crate) struct Awaited<'d> {
    demand: &'d Demand,
    order: Order,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.demand.nr_awaited.fetch_sub(self.order.nr_pages(), Ordering::Relaxed);
    }
}

impl Demand {
    /// In a forked child: no thread waits.
    pub fn forget_waiters(&self) {
        self.reclaim_wanted.forget_waiters();
        self.background.forget_waiters();
        self.frame_freed.forget_waiters();
        self.nr_awaited.store(0, Ordering::Relaxed);
        self.reclaims.store(false, Ordering::Relaxed);
    }

    /// Signalled when frames run short: wakes reclaim. The thread that asks for it may be the one that starts reclaim
    /// ([`Demand::begin_when_short`]).
    pub fn reclaim_wanted(&self) -> &Event {
        self.begin();
        &self.reclaim_wanted
    }

    /// Wakes the background thread.
    pub fn background(&self) -> &Arc<Event> {
        &self.background
    }

    /// Signalled when a frame was freed or a folio became clean.
    pub fn frame_freed(&self) -> &Event {
        &self.frame_freed
    }

    /// Starts what has waited for its first need.
    pub fn begin(&self) {
        if self.begins_when_short.load(Ordering::Relaxed) && self.begins_when_short.swap(false, Ordering::Relaxed) {
            let has_begun = self.begin.get().is_none_or(|begin| begin());
            self.begins_when_short.fetch_or(!has_begun, Ordering::Relaxed);
        }
    }

    /// Has reclaim and the making of zeroed pages started by `begin` when frames first run short, or a zeroed page is
    /// first wanted. Any thread may call `begin`, which returns `false` if it must be called again.
    pub fn begin_when_short(&self, begin: Begin) {
        let _ = self.begin.set(begin); // the parent's parent may have set the same
        self.begins_when_short.store(true, Ordering::Relaxed);
    }

    /// What is asked to release holds that are over, when nothing else can be freed. Returns whether it did.
    pub fn ask_when_stuck(&self, let_go: fn() -> bool) {
        let _ = self.let_go.set(let_go); // the parent's
    }

    /// Releases holds that are over. `false`: there were none.
    pub fn let_go(&self) -> bool {
        self.let_go.get().is_some_and(|let_go| let_go())
    }

    /// Notes that no thread reclaims: whoever needs frames has to.
    pub fn note_no_reclaim(&self) {
        self.lacks_reclaim.store(true, Ordering::Relaxed);
    }

    pub fn note_reclaim(&self) {
        self.reclaims.store(true, Ordering::Release);
    }

    /// Whether a thread reclaims, or none will.
    pub fn has_settled(&self) -> bool {
        self.reclaims.load(Ordering::Acquire) || self.lacks_reclaim()
    }

    pub fn lacks_reclaim(&self) -> bool {
        self.lacks_reclaim.load(Ordering::Relaxed)
    }

    /// Has the reclaim threads free frames for a folio of this order besides those that they keep free, as long as the
    /// result lives.
    pub fn await_frames(&self, order: Order) -> Awaited<'_> {
        self.nr_awaited.fetch_add(order.nr_pages(), Ordering::Relaxed);
        self.reclaim_wanted().signal();
        Awaited { demand: self, order }
    }

    /// Pages that reclaim is to free besides those that it keeps free.
    pub fn nr_awaited(&self) -> usize {
        self.nr_awaited.load(Ordering::Relaxed)
    }
}
