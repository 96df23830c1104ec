//! What seeded tests share.

/// Prints the case when a test panics.
pub struct Blame<T: std::fmt::Debug>(pub T);

impl<T: std::fmt::Debug> Drop for Blame<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this shows it: {:?}", self.0);
        }
    }
}
