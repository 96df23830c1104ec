//! Chooses the pages to access: at random, uniformly or skewed. The same seed gives the same pages.

use std::fmt;
use std::str::FromStr;

use fastrand::Rng;

/// Mixes the bits so that each depends on all others. A permutation.
pub fn scramble(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// How often each page is chosen.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Distribution {
    /// All pages equally often.
    Uniform,
    /// The page of rank r has weight 1 / r^theta. Ranks are scattered over the region.
    Zipf {
        /// Above 0 and below 1.
        theta: f64,
    },
    /// Nine of ten accesses go to the first tenth of the region.
    HotCold,
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "uniform" => return Ok(Distribution::Uniform),
            None if text == "hotcold" => return Ok(Distribution::HotCold),
            None if text == "zipf" => return Ok(Distribution::Zipf { theta: 0.99 }),
            Some(("zipf", theta)) => match theta.parse() {
                Ok(theta) if 0.0 < theta && theta < 1.0 => return Ok(Distribution::Zipf { theta }),
                _ => {}
            },
            _ => {}
        }
        Err(format!("`{text}` is none of uniform, hotcold, zipf:THETA (THETA above 0 and below 1, as in zipf:0.99)"))
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Uniform => f.write_str("uniform"),
            Distribution::Zipf { theta } => write!(f, "zipf:{theta}"),
            Distribution::HotCold => f.write_str("hotcold"),
        }
    }
}

/// Chooses pages of a region.
pub struct Places {
    nr_pages: usize,
    zipf: Option<(Zipf, Scatter)>,
    hot_pages: usize,
}

impl Places {
    /// For a region of `nr_pages`, at least 1. Setting up Zipf takes 20 ns a page.
    pub fn new(distribution: Distribution, nr_pages: usize) -> Places {
        let zipf = match distribution {
            Distribution::Zipf { theta } => Some((Zipf::new(nr_pages, theta), Scatter::new(nr_pages))),
            _ => None,
        };
        let hot_pages = if distribution == Distribution::HotCold { nr_pages.div_ceil(10) } else { 0 };
        Places { nr_pages, zipf, hot_pages }
    }

    /// The next page.
    pub fn draw(&self, random: &mut Rng) -> usize {
        if let Some((zipf, scatter)) = &self.zipf {
            return scatter.place(zipf.rank(random.f64()));
        }
        if self.hot_pages == 0 {
            return random.usize(..self.nr_pages);
        }
        let cold_pages = self.nr_pages - self.hot_pages;
        if cold_pages == 0 || random.usize(..10) < 9 {
            random.usize(..self.hot_pages)
        } else {
            self.hot_pages + random.usize(..cold_pages)
        }
    }
}

/// Zipf ranks by the method of Gray et al. (Quickly generating billion-record synthetic databases), as in YCSB.
struct Zipf {
    nr: f64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(nr: usize, theta: f64) -> Zipf {
        let zeta: f64 = (1..=nr).map(|rank| (rank as f64).powf(-theta)).sum();
        let zeta2 = 1.0 + 0.5f64.powf(theta);
        let nr = nr as f64;
        let eta = (1.0 - (2.0 / nr).powf(1.0 - theta)) / (1.0 - zeta2 / zeta);
        Zipf { nr, theta, zeta, eta }
    }

    /// The rank, from 0, for a number from 0 to 1.
    fn rank(&self, unit: f64) -> usize {
        let weight = unit * self.zeta;
        let rank = if weight < 1.0 {
            0.0
        } else if weight < 1.0 + 0.5f64.powf(self.theta) {
            1.0
        } else {
            self.nr * (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - self.theta))
        };
        rank.clamp(0.0, self.nr - 1.0) as usize
    }
}

/// A fixed permutation of the numbers below `nr`: a Feistel network over the next power of four, applied again until
/// the result is below `nr`.
struct Scatter {
    nr: usize,
    half_bits: u32,
}

impl Scatter {
    fn new(nr: usize) -> Scatter {
        let bits = usize::BITS - (nr - 1).leading_zeros();
        Scatter { nr, half_bits: bits.div_ceil(2).max(1) }
    }

    fn place(&self, rank: usize) -> usize {
        let mask = (1 << self.half_bits) - 1;
        let mut place = rank;
        loop {
            let (mut left, mut right) = (place >> self.half_bits, place & mask);
            for round in 0..4 {
                (left, right) = (right, left ^ (scramble(right as u64 ^ (round << 60)) as usize & mask));
            }
            place = left << self.half_bits | right;
            if place < self.nr {
                return place;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for text in ["uniform", "hotcold", "zipf:0.99", "zipf:0.5"] {
            assert_eq!(text.parse::<Distribution>().expect("a name").to_string(), text);
        }
        for text in ["", "zipf:1", "zipf:0", "zipf:x", "normal", "uniform:2"] {
            assert!(text.parse::<Distribution>().expect_err("no name").contains("zipf:THETA"), "{text}");
        }
    }

    #[test]
    fn scattering_is_a_permutation() {
        for nr in [1, 2, 3, 4, 5, 63, 64, 65, 1000] {
            let scatter = Scatter::new(nr);
            let mut places: Vec<usize> = (0..nr).map(|rank| scatter.place(rank)).collect();
            places.sort_unstable();
            assert_eq!(places, (0..nr).collect::<Vec<_>>());
        }
    }

    fn counts(distribution: Distribution, nr_pages: usize, nr_draws: usize) -> Vec<usize> {
        let places = Places::new(distribution, nr_pages);
        let mut random = Rng::with_seed(7);
        let mut counts = vec![0; nr_pages];
        (0..nr_draws).for_each(|_| counts[places.draw(&mut random)] += 1);
        counts
    }

    #[test]
    fn pages_are_drawn_as_often_as_they_should_be() {
        let (nr, draws) = (1000, 1_000_000);
        assert!(counts(Distribution::Uniform, nr, draws).iter().all(|count| (800..1200).contains(count)));
        let hot: usize = counts(Distribution::HotCold, nr, draws)[..100].iter().sum();
        assert!((890_000..910_000).contains(&hot), "{hot}");
        let mut zipf = counts(Distribution::Zipf { theta: 0.99 }, nr, draws);
        zipf.sort_unstable_by(|a, b| b.cmp(a));
        let zeta: f64 = (1..=nr).map(|rank| (rank as f64).powf(-0.99)).sum();
        for rank in [1usize, 2] {
            let expected = draws as f64 * (rank as f64).powf(-0.99) / zeta;
            assert!((zipf[rank - 1] as f64 / expected - 1.0).abs() < 0.02, "{rank}: {} {expected}", zipf[rank - 1]);
        }
    }

    #[test]
    fn the_smallest_regions_have_places() {
        for distribution in [Distribution::Uniform, Distribution::HotCold, Distribution::Zipf { theta: 0.99 }] {
            for nr_pages in [1, 2, 3, 16] {
                assert_eq!(counts(distribution, nr_pages, 100).iter().sum::<usize>(), 100);
            }
        }
    }
}
