//! What seeded tests share.

use fastrand::Rng;

/// The generator of a seed. The first numbers of neighbouring seeds are not alike.
pub fn rng(seed: u64) -> Rng {
    Rng::with_seed(seed).fork()
}

/// Prints the seed when a test panics.
pub struct Seed(pub u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this shows it: SEED={}", self.0);
        }
    }
}
