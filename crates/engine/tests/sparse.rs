//! Memory of which a program uses few pages here and there.

use folioswap::{Arena, DeviceSpec};

const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;
const NR_BLOCKS: usize = 128;

#[test]
fn little_is_written_of_blocks_that_are_hardly_used() {
    for pages in [1, 40] {
        let device = DeviceSpec::Ram { size: 64 << 20 };
        let arena = Arena::builder().memory(16 << 20).device(device).build().unwrap();
        let mut region = arena.map(NR_BLOCKS * BLOCK).unwrap();
        let used = |block: usize| (0..pages).map(move |page| block * BLOCK + (block * 37 + page) % 512 * PAGE);
        for at in (0..NR_BLOCKS).flat_map(used) {
            region[at] = (at / PAGE % 251) as u8 + 1;
        }
        for block in 0..NR_BLOCKS {
            let nr_used = region[block * BLOCK..][..BLOCK].iter().filter(|&&byte| byte != 0).count();
            assert!(nr_used == pages && used(block).all(|at| region[at] == (at / PAGE % 251) as u8 + 1));
        }
        let written = arena.stats().swapped_out_bytes as usize;
        let most = NR_BLOCKS * (pages + 32) * PAGE;
        assert!(written <= most, "{pages} pages of each block: {written} bytes, {most} at most");
    }
}
