//! Memory that data takes in compressed swap, for each byte swapped out: in the kernel's zram, and in our own
//! devices.
//!
//! It is sampled while a benchmark runs, because nothing is left at its end. The sample with the most data counts.

use folioswap::Arena;

#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Stored {
    /// Bytes that were swapped out and are still stored.
    pub original_bytes: u64,
    /// Memory that they take, including the store's own data.
    pub used_bytes: u64,
}

impl Stored {
    /// Parses the `mm_stat` line of a zram: original, compressed and used bytes, and further fields.
    pub fn of_mm_stat(text: &str) -> Option<Stored> {
        let mut numbers = text.split_whitespace().map(str::parse);
        let original_bytes = numbers.next()?.ok()?;
        let used_bytes = numbers.nth(1)?.ok()?;
        Some(Stored { original_bytes, used_bytes })
    }

    /// What an arena's devices in compressed RAM hold. None if there is no such device.
    pub fn of_arena(arena: &Arena) -> Option<Stored> {
        let uses = arena.devices().into_iter().filter_map(|device| device.memory);
        let add = |sum: Stored, other: Stored| Stored {
            original_bytes: sum.original_bytes + other.original_bytes,
            used_bytes: sum.used_bytes + other.used_bytes,
        };
        uses.map(|memory| Stored { original_bytes: memory.content_bytes, used_bytes: memory.memory_bytes }).reduce(add)
    }

    /// Stored bytes per original byte.
    pub fn share(&self) -> Option<f64> {
        (self.original_bytes > 0).then(|| self.used_bytes as f64 / self.original_bytes as f64)
    }

    /// Keeps the sample with the most data; the later one if they are equal.
    pub fn keep_most(kept: &mut Option<Stored>, sample: Option<Stored>) {
        if sample.map(|sample| sample.original_bytes) >= kept.map(|kept| kept.original_bytes) {
            *kept = sample;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let stored =
            Stored::of_mm_stat(" 4096000  1360000  1474560        0  1474560       10        0        0        0\n");
        assert_eq!(stored, Some(Stored { original_bytes: 4_096_000, used_bytes: 1_474_560 }));
        assert_eq!(stored.and_then(|stored| stored.share()), Some(0.36));
        assert_eq!(Stored::default().share(), None);
        for line in ["", "1 2", "1 2 x", "x 2 3"] {
            assert_eq!(Stored::of_mm_stat(line), None, "{line}");
        }
    }

    #[test]
    fn the_sample_with_the_most_data_is_kept() {
        let sample = |original_bytes, used_bytes| Some(Stored { original_bytes, used_bytes });
        let mut kept = None;
        for next in [None, sample(5, 2), sample(9, 3), None, sample(9, 4), sample(8, 8), sample(0, 1)] {
            Stored::keep_most(&mut kept, next);
        }
        assert_eq!(kept, sample(9, 4));
    }
}
