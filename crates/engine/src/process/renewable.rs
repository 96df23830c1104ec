//! What a forked child replaces: a thread of its parent may have been using it at the fork.

use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that can be replaced while others refer to it. Replaced values are never freed.
pub(crate) struct Renewable<T>(AtomicPtr<T>);

impl<T> Renewable<T> {
    pub fn new(value: T) -> Self {
        Renewable(AtomicPtr::new(Box::into_raw(Box::new(value))))
    }

    /// Replaces the value, in a forked child.
    pub fn renew(&self, value: T) {
        self.0.store(Box::into_raw(Box::new(value)), Ordering::Release);
    }
}

impl<T> std::ops::Deref for Renewable<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: made by `Box::into_raw`, and freed only with this object.
        unsafe { &*self.0.load(Ordering::Acquire) }
    }
}

impl<T> Drop for Renewable<T> {
    fn drop(&mut self) {
        // SAFETY: as above. Nobody else has this object.
        drop(unsafe { Box::from_raw(*self.0.get_mut()) });
    }
}
