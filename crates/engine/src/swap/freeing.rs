//! When the background thread is woken to free slots ([`super::free`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crate::process::wakeup::Event;

/// What wakes it.
pub(crate) struct Freeing {
    background: Arc<Event>,
    /// The thread will look at all batches again without being woken, or it frees nothing.
    pub on_watch: AtomicBool,
}

impl Freeing {
    /// `synchronous`: the thread frees nothing.
    pub fn new(synchronous: bool, background: Arc<Event>) -> Self {
        Freeing { background, on_watch: AtomicBool::new(synchronous) }
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        self.background.signal();
    }

    /// Whether the caller must wake the thread to look at what was just freed. Only one caller gets `true` per watch.
    pub fn begin_watch(&self) -> bool {
        // Pairs with the fence in `free::sweep`: the sweep sees what was freed, or this load sees that the
        // watch has ended.
        fence(Ordering::SeqCst);
        !self.on_watch.load(Ordering::Relaxed) && !self.on_watch.swap(true, Ordering::SeqCst)
    }
}
