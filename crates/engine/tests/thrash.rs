//! Folios of a chosen size never thrash: on the same accesses they move at most four times the bytes that single pages
//! move.

use folioswap::{Arena, ArenaVec, DeviceSpec, FaultMode, FolioSize, Order, Tuning};

const MIB: usize = 1 << 20;
const BUDGET: usize = 48 * MIB;
const MEMORY: usize = 3 * BUDGET;
const PAGE_WORDS: usize = 512;
const NR_PAGES: usize = MEMORY / 4096;

/// Bytes moved by changing a word of each of these pages, after all memory has been written once. Checks each word.
fn moved(folio: FolioSize, pages: &[usize]) -> u64 {
    let arena = Arena::builder()
        .memory(BUDGET as u64)
        .folio(folio)
        .faults(FaultMode::Direct)
        .tuning(Tuning { compaction: None, ..Tuning::default() })
        .device(DeviceSpec::Ram { size: 2 * MEMORY as u64 })
        .build()
        .unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, MEMORY / 8).unwrap();
    let mut expected: Vec<u64> = (1..=NR_PAGES as u64).collect();
    for (page, &word) in expected.iter().enumerate() {
        words[page * PAGE_WORDS] = word;
    }
    let before = arena.stats();
    for &page in pages {
        assert_eq!(words[page * PAGE_WORDS], expected[page], "page {page}");
        expected[page] += 1 << 32;
        words[page * PAGE_WORDS] = expected[page];
    }
    let after = arena.stats();
    assert_eq!((after.verify_failures, after.io_errors), (0, 0));
    let moved = after.swapped_in_bytes - before.swapped_in_bytes + after.swapped_out_bytes - before.swapped_out_bytes;
    assert!((0..NR_PAGES).all(|page| words[page * PAGE_WORDS] == expected[page]));
    moved
}

fn check(name: &str, pages: Vec<usize>) {
    let (auto, single) = (moved(FolioSize::Auto, &pages), moved(FolioSize::Fixed(Order::PAGE), &pages));
    println!("{name:30} auto {:6} MiB, 4K {:6} MiB, {:.2}", auto >> 20, single >> 20, auto as f64 / single as f64);
    // What is in RAM at the start is in whole blocks; some are written more than once before they are found sparse.
    assert!(auto <= 4 * single + 2 * BUDGET as u64, "{name}: {auto} bytes moved, {single} by single pages");
}

fn random(seed: u64, nr: usize) -> Vec<usize> {
    let mut rng = fastrand::Rng::with_seed(seed).fork();
    (0..nr).map(|_| rng.usize(..NR_PAGES)).collect()
}

fn strided(hundredths: usize, nr: usize) -> Vec<usize> {
    (0..nr).map(|at| at * hundredths / 100 % NR_PAGES).collect()
}

#[test]
fn random_pages_and_rows() {
    check("random", random(1, 30_000));
    let rows = random(2, 4000).into_iter().flat_map(|page| (page..page + 8).filter(|&page| page < NR_PAGES));
    check("rows of 8", rows.collect());
}

#[test]
fn strides() {
    check("one page in 15.47", strided(1547, 30_000));
    check("one page in 2", strided(200, 60_000));
    check("one page in 5", strided(500, 60_000));
    check("one page in 512", strided(51_200, 3000));
}

#[test]
fn phases() {
    let mut pages: Vec<usize> = (0..2 * NR_PAGES).map(|at| at % NR_PAGES).collect();
    pages.extend(random(3, 20_000));
    pages.extend((0..NR_PAGES).rev());
    pages.extend(strided(51_200, 3000));
    check("phases", pages);
}
