//! The 128-bit hashes of folio contents. They verify swap-in, and tell clean folios from dirty ones.
//!
//! Content is hashed in units: pieces of 64 KiB, or pages in smaller folios. So a part of a folio that is swapped in
//! alone can be verified alone. A unit fits the second-level cache, so a copied unit is hashed after its copy, from the
//! cache. In the other order the hash would wait for memory, and 2 MiB take 355 us instead of 253 us (AMD Zen 4, both
//! CPUs busy).
//!
//! The hashes are kept in the block's entry ([`Entry`](folioswap_core::Entry)). Each arena has a random key: equal
//! hashes are the only proof that a folio is clean, and without a key, two contents with the same hash are easily
//! constructed.

use folioswap_core::{HashKey, Locked, Order, PAGE_SIZE, PIECE};
use twox_hash::XxHash3_128;

/// Bytes per hash in folios of this order.
fn unit_bytes(order: Order) -> usize {
    if order < PIECE { PAGE_SIZE } else { PIECE.bytes() }
}

pub(crate) fn hash(key: &HashKey, unit: &[u8]) -> u128 {
    XxHash3_128::oneshot_with_secret(key, unit).expect("136 bytes of key are enough")
}

/// Notes the hash of the piece or page at `page`.
fn note_unit(block: &mut Locked<'_>, page: usize, unit: &[u8]) {
    let hash = hash(block.key(), unit);
    if unit.len() == PAGE_SIZE {
        block.set_page_hash(page, hash);
    } else {
        block.set_piece_hash(page / PIECE.nr_pages(), hash);
    }
}

/// Whether the noted hash of the piece or page at `page` matches. A piece may have been noted by its pages.
pub(crate) fn is_noted(block: &Locked<'_>, page: usize, unit: &[u8]) -> bool {
    let as_one =
        if unit.len() == PAGE_SIZE { block.page_hash(page) } else { block.piece_hash(page / PIECE.nr_pages()) };
    match as_one {
        Some(noted) => noted == hash(block.key(), unit),
        None if unit.len() == PAGE_SIZE => false,
        None => {
            units(page, unit, PAGE_SIZE).all(|(page, bytes)| block.page_hash(page) == Some(hash(block.key(), bytes)))
        }
    }
}

/// The units of a folio that begins at `page`, each with its first page.
fn units(page: usize, folio: &[u8], unit: usize) -> impl Iterator<Item = (usize, &[u8])> {
    folio.chunks(unit).enumerate().map(move |(index, bytes)| (page + index * unit / PAGE_SIZE, bytes))
}

/// Notes the hashes of the folio that begins at `page`. Returns whether they are the same as before.
pub(crate) fn note(block: &mut Locked<'_>, page: usize, folio: &[u8]) -> bool {
    let mut same = true;
    for (page, unit) in units(page, folio, unit_bytes(block.order())) {
        if !is_noted(block, page, unit) {
            same = false;
            note_unit(block, page, unit);
        }
    }
    same
}

/// Notes the folio that begins at `page` page by page, because it will be swapped in that way.
pub(crate) fn note_pages(block: &mut Locked<'_>, page: usize, folio: &[u8]) {
    units(page, folio, PAGE_SIZE).for_each(|(page, bytes)| note_unit(block, page, bytes));
}

/// Whether the folio that begins at `page` matches its noted hashes.
pub(crate) fn verify(block: &Locked<'_>, page: usize, folio: &[u8]) -> bool {
    units(page, folio, unit_bytes(block.order())).all(|(page, unit)| is_noted(block, page, unit))
}

/// Copies the folio that begins at `page` from memory that holds its slots, and verifies it on the way.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn load(block: &Locked<'_>, page: usize, from: &[u8], to: &mut [u8]) -> bool {
    assert_eq!(from.len(), to.len());
    let (unit, is_whole) = (unit_bytes(block.order()), from.len() == Order::HUGE.bytes());
    let mut right = true;
    for (index, (from, to)) in from.chunks(unit).zip(to.chunks_mut(unit)).enumerate() {
        if is_whole {
            folioswap_sys::pages::copy_streaming(from, to);
        } else {
            to.copy_from_slice(from); // it is about to be touched
        }
        right &= is_noted(block, page + index * unit / PAGE_SIZE, from);
    }
    right
}

/// Copies the folio that begins at `page` to memory, bypassing the caches, and notes its hashes on the way.
pub(crate) fn store(block: &mut Locked<'_>, page: usize, from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    let unit = unit_bytes(block.order());
    for (index, (from, to)) in from.chunks(unit).zip(to.chunks_mut(unit)).enumerate() {
        folioswap_sys::pages::copy_streaming(from, to);
        note_unit(block, page + index * unit / PAGE_SIZE, from);
    }
}

/// Whether all bytes are zero. Stops early at bytes that are not.
pub(crate) fn is_zero(folio: &[u8]) -> bool {
    folio.chunks(256).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::evict;
    use folioswap_core::{BlockId, FolioTable, State};

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 % 251) as u8).collect()
    }

    fn with_block(order: Order, test: impl FnOnce(&mut Locked<'_>)) {
        let table = FolioTable::new(1).keyed(std::array::from_fn(|at| (at * 37 + 11) as u8));
        table.ensure(BlockId::new(0)..BlockId::new(1));
        let mut block = table.lock(BlockId::new(0));
        if order < Order::HUGE {
            block.split(order);
        }
        test(&mut block);
    }

    #[test]
    fn what_was_noted_is_verified_and_nothing_else() {
        for k in [0, 3, 4, 6, 9] {
            let order = Order::new(k).unwrap();
            let right = sample(order.bytes());
            with_block(order, |block| {
                let page = block.nr_folios().min(2) * order.nr_pages() - order.nr_pages();
                assert!(!verify(block, page, &right), "nothing was noted yet");
                assert!(!note(block, page, &right));
                assert!(note(block, page, &right) && verify(block, page, &right));
                for at in [0, 1, right.len() / 2, right.len() - 1] {
                    let mut wrong = right.clone();
                    wrong[at] ^= 0x10;
                    assert!(!verify(block, page, &wrong), "byte {at} of a folio of {order}");
                }
            });
        }
    }

    #[test]
    fn copies_are_noted_and_verified_on_the_way() {
        for k in [0, 4, 9] {
            let order = Order::new(k).unwrap();
            let from = sample(order.bytes());
            let (mut stored, mut loaded) = (vec![0; from.len()], vec![0; from.len()]);
            with_block(order, |block| {
                store(block, 0, &from, &mut stored);
                assert!(from == stored && verify(block, 0, &from));
                assert!(load(block, 0, &stored, &mut loaded) && from == loaded);
                stored[from.len() - 1] ^= 1;
                assert!(!load(block, 0, &stored, &mut loaded));
            });
        }
    }

    #[test]
    fn a_whole_block_may_be_noted_by_its_pages() {
        let mut whole = sample(Order::HUGE.bytes());
        with_block(Order::HUGE, |block| {
            note_pages(block, 0, &whole);
            assert!(verify(block, 0, &whole) && note(block, 0, &whole));
            whole[77_777] ^= 1;
            assert!(!verify(block, 0, &whole) && !note(block, 0, &whole));
            assert!(verify(block, 0, &whole), "the piece that changed is noted as one now");
        });
    }

    /// Two pages with the same XXH3-128 hash without a key: if the lower half of a word equals that of the published
    /// secret, the product of the two halves is 0 whatever the upper half is, and the sum that includes the word stays
    /// the same.
    #[test]
    fn who_does_not_know_the_key_makes_no_two_pages_alike() {
        let arena = crate::Arena::builder().memory(16 << 20).folio(Order::PAGE).build().unwrap();
        let mut words = crate::ArenaVec::<u64>::zeroed(&arena, PAGE_SIZE / 8).unwrap();
        let upper = |upper: u64, lower: u64| upper << 32 | lower;
        let page = |change: u64| [upper(7 + change, 0x396c_feb8), upper(9 - change, 0x2c81_017c)];
        let engine = arena.engine();
        let block = engine.table().page_at(words.as_ptr() as usize).block();
        for change in [0, 1, 5] {
            [words[0], words[8]] = page(change);
            let mut locked = engine.lock(block);
            while locked.folio(0).frame().is_some() {
                // The kernel may hold it for a moment.
                if let Some(slot) = evict::wash_now(engine, &mut locked, 0) {
                    assert!(locked.write_one(0, slot));
                }
                if matches!(locked.state(0), State::Standby(_)) {
                    engine.ram().leave(&mut locked, 0);
                }
            }
            drop(locked);
            assert_eq!([words[0], words[8]], page(change), "what was written last");
        }
    }

    #[test]
    fn swapped_pieces_are_seen() {
        let mut whole = sample(4 * PIECE.bytes());
        whole[..8].fill(7);
        with_block(Order::new(6).unwrap(), |block| {
            note(block, 0, &whole);
            let (first, rest) = whole.split_at_mut(PIECE.bytes());
            first.swap_with_slice(&mut rest[..PIECE.bytes()]);
            assert!(!verify(block, 0, &whole));
        });
    }

    #[test]
    fn zero_is_zero_and_nothing_else_is() {
        let mut bytes = vec![0; 4096];
        assert!(is_zero(&bytes));
        for at in [0, 255, 256, 4095] {
            bytes[at] = 1;
            assert!(!is_zero(&bytes));
            bytes[at] = 0;
        }
    }
}
