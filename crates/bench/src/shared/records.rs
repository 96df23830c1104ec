//! The content of memory: words that are all different, or rows of a table, which compress to about a third.
//!
//! A row of 128 bytes is like one of a table of orders: number, version, time, customer (one of 4,096), town, state,
//! currency, words of a comment, small integers, rates in floating point, 4 random bytes, and two columns
//! that are equal in all rows. Words come from lists, the first ones more often. Four rows form an order and share its
//! time, customer, town, state and currency. No two rows are equal. Windows wider than 4 KiB find more repetitions.
//!
//! Every word is a function of the row's number and version, so that exactly one value is right. No word is 0, and
//! each differs from its value in the previous version. Words from lists are right in many rows, but number, time and
//! random bytes are not: no row passes in another place or version.

use crate::shared::access::scramble;
use clap::ValueEnum;

/// The content of memory.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, ValueEnum)]
pub enum Data {
    /// Words that are all different
    #[default]
    Plain,
    /// Rows of a table, which compress to about a third in pages of 4K
    Records,
}

pub const ROW_WORDS: usize = 16;

type Row = [u64; ROW_WORDS];

const ORDER_ROWS: u64 = 4;

const STATES: [u64; 8] = words(b"new     paid    packed  shipped arrived returnedrefundedlost    ");
const CURRENCIES: [u64; 4] = words(b"EUR     USD     GBP     JPY     ");
const RATES: [f64; 8] = [0.19, 0.07, 0.2, 0.055, 0.21, 0.1, 0.025, 0.25];
const TOWNS: [u64; 32] = words(
    b"Berlin  Hamburg Munich  Cologne Leipzig Dresden Bremen  Essen   Paris   Lyon    Nantes  Lille   London  Leeds   \
      Bristol York    Madrid  Sevilla Bilbao  Lisbon  Porto   Rome    Milan   Turin   Naples  Vienna  Graz    Prague  \
      Brno    Warsaw  Krakow  Gdansk  ",
);
const COMMENT: [u64; 64] = words(
    b"please  deliver to      the     front   door    leave   with    a       neighborring    twice   call    before  \
      gift    wrap    fragile glass   second  floor   garden  gate    ask     for     receipt invoice mail    no      \
      hurry   express monday  9       after   5       weekend returns old     one     spare   part    battery charger \
      cable   screen  keyboardblack   white   blue    green   large   small   medium  cotton  wool    leather steel   \
      wood    plastic paper   coffee  tea     bread   flour   sugar   ",
);

/// Converts a text to words of 8 bytes.
const fn words<const NR: usize>(text: &[u8]) -> [u64; NR] {
    let (pieces, rest) = text.as_chunks::<8>();
    assert!(pieces.len() == NR && rest.is_empty());
    let mut words = [0; NR];
    let mut at = 0;
    while at < NR {
        words[at] = u64::from_le_bytes(pieces[at]);
        at += 1;
    }
    words
}

/// Maps random bits to an index into a list. The first entries are the most frequent.
fn skewed(chance: u64, len: usize) -> usize {
    (chance & (chance >> 8)) as usize % len
}

fn row(number: u64, version: u32) -> Row {
    let (turn, later) = (version as usize, u64::from(version));
    let (order, line) = (scramble(number / ORDER_ROWS), scramble(!number));
    let of = |list: &[u64], chance: u64| list[(skewed(chance, list.len()) + turn) % list.len()];
    let rate = |chance: u64| RATES[(skewed(chance, RATES.len()) + turn) % RATES.len()].to_bits();
    [
        u64::from(number as u32) | later << 32,
        // Time of the order in microseconds, and the customer.
        1_700_000_000_000_000 + later * 86_400_000_000 + number / ORDER_ROWS * 2039 + (order & 1023),
        1_000_000 + (skewed(order >> 10, 4096) as u64 + later) % 4096,
        of(&TOWNS, order >> 24),
        of(&STATES, order >> 34 & order >> 36),
        of(&CURRENCIES, order >> 44 & order >> 46),
        // Due date, shop and quantity.
        (19_600 + number / 4096 + later) | (order >> 54 & 7) << 32 | (1 + (line & line >> 3 & 7)) << 48,
        // Price in cents, tax and discount.
        99 + 100 * (line >> 7 & 127) + later,
        rate(line >> 14 & line >> 16),
        rate(line >> 26 & line >> 29),
        // A checksum that depends on the version, and the version of its algorithm.
        scramble(line ^ later) >> 32 | 3 << 32,
        of(&COMMENT, line >> 32),
        of(&COMMENT, line >> 40),
        of(&COMMENT, line >> 48 & line >> 50),
        // Place in the warehouse, and flags.
        0x5a00_0000_0000_0001 | later << 8,
        0x0100_0000_0000_0000 | later << 16,
    ]
}

/// Writes rows in this version. `first` is the index of the first word and must begin a row. The last row may be
/// partial.
pub fn write(words: &mut [u64], first: u64, version: u32) {
    let (rows, rest) = words.as_chunks_mut::<ROW_WORDS>();
    let mut number = row_number(first);
    for words in rows {
        *words = row(number, version);
        number += 1;
    }
    rest.copy_from_slice(&row(number, version)[..rest.len()]);
}

/// The number of words that differ from what [`write()`] writes.
pub fn count_bad(words: &[u64], first: u64, version: u32) -> u64 {
    let (rows, rest) = words.as_chunks::<ROW_WORDS>();
    let mut number = row_number(first);
    let mut bad_words = 0;
    for words in rows {
        let right = row(number, version);
        // This loop uses wide registers. Which words differ rarely matters.
        if words.iter().zip(&right).fold(0, |difference, (word, right)| difference | (word ^ right)) != 0 {
            bad_words += differing(words, &right);
        }
        number += 1;
    }
    bad_words + differing(rest, &row(number, version))
}

fn differing(words: &[u64], right: &Row) -> u64 {
    words.iter().zip(right).filter(|(word, right)| word != right).count() as u64
}

/// The version that a row claims. Its other words show whether the claim is true.
pub fn version_of(row: &[u64]) -> u32 {
    row.first().map_or(0, |word| (word >> 32) as u32)
}

fn row_number(first: u64) -> u64 {
    assert!(first.is_multiple_of(ROW_WORDS as u64), "a row begins at word {first}");
    first / ROW_WORDS as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Index of a word in the middle of a region of gigabytes.
    const FIRST: u64 = 3 << 27;

    fn megabyte(version: u32) -> Vec<u64> {
        let mut words = vec![0; (1 << 20) / size_of::<u64>()];
        write(&mut words, FIRST, version);
        words
    }

    #[test]
    fn rows_are_right_wherever_they_end() {
        let all = megabyte(7);
        for len in [1, 15, 16, 17, 4096] {
            let mut words = vec![0; len];
            write(&mut words, FIRST, 7);
            assert_eq!((&words[..], count_bad(&words, FIRST, 7)), (&all[..len], 0));
        }
        assert!(all.chunks(ROW_WORDS).all(|row| version_of(row) == 7));
        assert!(all.iter().all(|word| *word != 0));
    }

    #[test]
    fn each_wrong_word_is_counted() {
        let mut words = megabyte(7);
        for at in 0..40 {
            for wrong in [0, words[at] ^ 1, words[at] ^ 1 << 63, words[at] ^ 1 << (at % 64), !words[at]] {
                let right = std::mem::replace(&mut words[at], wrong);
                assert_eq!(count_bad(&words[..47], FIRST, 7), 1, "word {at}");
                words[at] = right;
            }
        }
        words[..64].fill(0);
        assert_eq!(count_bad(&words, FIRST, 7), 64);
    }

    #[test]
    fn every_word_differs_from_its_like_in_the_next_version() {
        for version in [1, 2, 3, 8, 255] {
            let words = megabyte(version);
            for other in [version - 1, version + 1] {
                assert_eq!(count_bad(&words, FIRST, other), words.len() as u64, "{version} {other}");
            }
            // List entries recur, but no row passes as one of another version.
            for other in (1..100).filter(|other| *other != version) {
                assert!(words.chunks(ROW_WORDS).zip(0..).take(64).all(|(row, nr)| count_bad(
                    row,
                    FIRST + nr * 16,
                    other
                ) > 2));
            }
        }
    }

    #[test]
    fn no_row_passes_in_the_place_of_another() {
        let words = megabyte(7);
        for other in [16, 32, 64, 512, 8192, 1 << 18, 1 << 30] {
            for (row, nr) in words.chunks(ROW_WORDS).zip(0..) {
                let bad = count_bad(row, FIRST + nr * 16 + other, 7);
                assert!(bad > 2, "row {nr}, {other} words away: {bad}");
            }
        }
        let mut rows: Vec<&[u64]> = words.chunks(ROW_WORDS).collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), words.len() / ROW_WORDS);
    }

    /// The compressed size as a share of the whole, in pieces of `bytes`.
    fn share(words: &[u64], bytes: usize) -> f64 {
        let pieces = words.chunks(bytes / size_of::<u64>());
        let compressed: usize = pieces.map(|piece| lz4_flex::block::compress(bytemuck::cast_slice(piece)).len()).sum();
        compressed as f64 / size_of_val(words) as f64
    }

    #[test]
    fn pages_compress_to_a_third_and_wider_windows_further() {
        for version in [1, 2, 300] {
            let words = megabyte(version);
            let (page, sixteen) = (share(&words, 4096), share(&words, 65536));
            assert!((0.31..0.36).contains(&page), "{page}");
            assert!((0.6..0.9).contains(&(sixteen / page)), "{sixteen} against {page}");
        }
        let mut plain: Vec<u64> = (0..1 << 17).map(scramble).collect();
        assert!(share(&plain, 4096) > 0.95, "what does not compress");
        plain.fill(1);
        assert!(share(&plain, 4096) < 0.05, "what compresses to nothing");
    }
}
