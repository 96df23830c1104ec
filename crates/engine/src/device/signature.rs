//! Finds out what a block device holds, by the magic numbers of file systems, partition tables and the like.
//!
//! Nothing but the magic numbers is checked, so there are false positives; `,force=yes` overrides them. The existing
//! crates for this need the C library of util-linux, except one with a single release.

use std::io;
use std::os::fd::RawFd;

use folioswap_sys::direct_io;

/// Bytes read from the start of a device.
const HEAD_BYTES: u64 = 256 << 10;

/// Bytes read from its end, at least.
const TAIL_BYTES: u64 = 128 << 10;

/// Alignment of memory and offsets of direct reads.
const ALIGNMENT: usize = 4096;

const MD_RAID: &[u8] = b"\xfc\x4e\x2b\xa9";
const RAID: &str = "a part of a RAID (md)";
const SWAP: &str = "swap space of the kernel";
const LVM: &str = "a physical volume of LVM";
const PARTITIONS: &str = "a partition table";
const MINIX: &str = "a file system (minix)";
const FIRMWARE_RAID: &str = "a part of a RAID (of firmware)";

/// Offsets of magic numbers from the start of the device, and what they belong to. The first match counts.
const AT: &[(usize, &[u8], &str)] = &[
    (0x438, b"\x53\xef", "a file system (ext2, ext3 or ext4)"),
    (0, b"XFSB", "a file system (xfs)"),
    (0x1_0040, b"_BHRfS_M", "a file system (btrfs)"),
    (0x400, b"\x10\x20\xf5\xf2", "a file system (f2fs)"),
    (3, b"NTFS    ", "a file system (NTFS)"),
    (3, b"EXFAT   ", "a file system (exFAT)"),
    (0x52, b"FAT32   ", "a file system (FAT)"),
    (0x36, b"FAT16   ", "a file system (FAT)"),
    (0x36, b"FAT12   ", "a file system (FAT)"),
    (0x8001, b"CD001", "a file system (ISO 9660)"),
    (0, b"hsqs", "a file system (squashfs)"),
    (0x400, b"\xe2\xe1\xf5\xe0", "a file system (erofs)"),
    (0x8000, b"JFS1", "a file system (jfs)"),
    (0x1_0034, b"ReIsEr", "a file system (reiserfs)"),
    (0x1_0000, b"\x01\x16\x19\x70", "a file system (gfs2)"),
    (0x400, b"H+\x00\x04", "a file system (HFS+)"),
    (0x400, b"HX\x00\x05", "a file system (HFS+)"),
    (0x20, b"NXSB", "a file system (APFS)"),
    (0x8001, b"BEA01", "a file system (UDF)"),
    (0x8001, b"NSR0", "a file system (UDF)"),
    (3, b"ReFS\0", "a file system (ReFS)"),
    (0x400, b"OCFSV2", "a file system (ocfs2)"),
    (0x800, b"OCFSV2", "a file system (ocfs2)"),
    (0x1000, b"OCFSV2", "a file system (ocfs2)"),
    (0x2000, b"OCFSV2", "a file system (ocfs2)"),
    (0x2000, b"\x49\xe8\x95\xf9", "a file system (HPFS)"),
    (0x400, b"\xf5\xfc\x01\xa5", "a file system (VxFS)"),
    (0x2034, b"ReIsEr", "a file system (reiserfs)"),
    (0x1_0000, b"ReIsEr4", "a file system (reiser4)"),
    (0x255c, b"\x54\x19\x01\x00", "a file system (UFS)"),
    (0x1_055c, b"\x19\x01\x54\x19", "a file system (UFS)"),
    (0, b"\x45\x3d\xcd\x28", "a file system (cramfs)"),
    (0x200, b"\x45\x3d\xcd\x28", "a file system (cramfs)"),
    (0, b"\xce\xfa\xad\x1b", "a file system (bfs)"),
    (0, b"-rom1fs-", "a file system (romfs)"),
    (0, b"SFOZ", "a file system (zonefs)"),
    (0x1018, b"\xc6\x85\x73\xf6", "a part of a cache or file system (bcache, bcachefs)"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (0x4000, b"SKUL\xba\xbe", "an encrypted volume (LUKS)"),
    (0x8000, b"SKUL\xba\xbe", "an encrypted volume (LUKS)"),
    (0x1_0000, b"SKUL\xba\xbe", "an encrypted volume (LUKS)"),
    (0x2_0000, b"SKUL\xba\xbe", "an encrypted volume (LUKS)"),
    (3, b"-FVE-FS-", "an encrypted volume (BitLocker)"),
    (0, b"integrt\0", "a volume of dm-integrity"),
    (0, b"verity\0\0", "hashes of dm-verity"),
    (0, b"SnAp", "a snapshot (device mapper)"),
    (0x204, b"!Stra0tis", "a part of a pool of Stratis"),
    (0, b"dmvdo001", "a volume of VDO"),
    (0, b"bluestore block device", "a volume of Ceph"),
    (0, b"LABELONE", LVM),
    (0x200, b"LABELONE", LVM),
    (0x400, b"LABELONE", LVM),
    (0x600, b"LABELONE", LVM),
    (0, MD_RAID, RAID),
    (0x1000, MD_RAID, RAID),
    (0x200, b"EFI PART", PARTITIONS),
    (0x1000, b"EFI PART", PARTITIONS),
    (0x200, b"PM\0\0", PARTITIONS),
    (0, b"\x0b\xe5\xa9\x41", PARTITIONS),
    (0x200, b"\x57\x45\x56\x82", PARTITIONS),
    (0x1fc, b"\xda\xbe", PARTITIONS),
    (0x1fe, b"\x55\xaa", PARTITIONS),
    (0x406, b"\x34\x34", "a file system (nilfs2)"),
    (0x400, b"BD", "a file system (HFS)"),
    (0x410, b"\x7f\x13", MINIX),
    (0x410, b"\x8f\x13", MINIX),
    (0x410, b"\x68\x24", MINIX),
    (0x410, b"\x78\x24", MINIX),
    (0x418, b"\x5a\x4d", MINIX),
];

/// Offsets of magic numbers from the end of the device: they belong to RAID that firmware sets up.
const FROM_END: &[(u64, &[u8])] = &[
    (1 << 10, b"Intel Raid ISM Cfg Sig. "),
    (8 << 10, b"Intel Raid ISM Cfg Sig. "),
    (1 << 10, b"NVIDIA  "),
    (512, b"\xde\x11\xde\x11"),
    (512, b"$XIDE$"),
    (63 << 9, b"Promise Technology, Inc."),
    (255 << 9, b"Promise Technology, Inc."),
    (256 << 9, b"Promise Technology, Inc."),
    (16 << 9, b"Promise Technology, Inc."),
];

/// Page sizes: swap space of the kernel has its magic number at the end of the first page.
const PAGES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];

/// Magic numbers at the end of the first page of swap space, also while it holds a hibernation image.
const IN_SWAP: [&[u8]; 5] = [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND"];

/// Offset of the first uberblock of a ZFS pool (each has 1 KiB), and their magic number.
const ZFS_RECORDS: usize = 128 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// What a device of `size` bytes, open with O_DIRECT, holds. `None`: nothing that is known.
pub(crate) fn find(fd: RawFd, size: u64) -> io::Result<Option<&'static str>> {
    let tail_from = size.saturating_sub(TAIL_BYTES) & !(TAIL_BYTES / 2 - 1);
    let mut memory = vec![0; (HEAD_BYTES.max(2 * TAIL_BYTES)) as usize + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let memory = &mut memory[start..];
    let head = &mut memory[..size.min(HEAD_BYTES) as usize];
    direct_io::pread_exact(fd, head, 0)?;
    if let Some(found) = in_head(head) {
        return Ok(Some(found));
    }
    let tail = &mut memory[..(size - tail_from) as usize];
    direct_io::pread_exact(fd, tail, tail_from)?;
    Ok(in_tail(tail, tail_from, size))
}

fn has(bytes: &[u8], at: usize, magic: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(magic))
}

fn in_head(head: &[u8]) -> Option<&'static str> {
    let is_swap = || PAGES.iter().any(|page| IN_SWAP.iter().any(|magic| has(head, page - 10, magic)));
    let is_zfs = || {
        let mut records = head.get(ZFS_RECORDS..).unwrap_or_default().chunks_exact(1 << 10);
        records.any(|record| has(record, 0, &ZFS_MAGIC.to_le_bytes()) || has(record, 0, &ZFS_MAGIC.to_be_bytes()))
    };
    let known = AT.iter().find(|(at, magic, _)| has(head, *at, magic)).map(|(.., name)| *name);
    known.or_else(|| is_swap().then_some(SWAP)).or_else(|| is_zfs().then_some("a part of a pool of ZFS"))
}

/// The RAID formats with a magic number near the end: 1.0 and 0.90 of md, and those of firmware.
fn in_tail(tail: &[u8], tail_from: u64, size: u64) -> Option<&'static str> {
    let places = [(size & !0xfff).saturating_sub(8 << 10), (size & !0xffff).saturating_sub(64 << 10)];
    let is_at = |place: u64, magic: &[u8]| place.checked_sub(tail_from).is_some_and(|at| has(tail, at as usize, magic));
    let is_of_firmware =
        || FROM_END.iter().any(|&(before, magic)| size.checked_sub(before).is_some_and(|place| is_at(place, magic)));
    let is_raid = places.iter().any(|place| is_at(*place, MD_RAID));
    is_raid.then_some(RAID).or_else(|| is_of_firmware().then_some(FIRMWARE_RAID))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    /// What is found in an image of this size with `magic` at this offset.
    fn found(size: u64, at: u64, magic: &[u8]) -> Option<&'static str> {
        use std::os::unix::fs::FileExt;
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("folioswap-signature-{}-{number}", std::process::id()));
        let image = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        image.set_len(size).unwrap();
        image.write_all_at(magic, at).unwrap();
        find(image.as_raw_fd(), size).unwrap()
    }

    #[test]
    fn each_is_found_in_its_place_and_nowhere_else() {
        let size = (4 << 20) + (20 << 10);
        assert_eq!(found(size, 0, &[0; 8]), None);
        for &(at, magic, name) in AT {
            assert_eq!(found(size, at as u64, magic), Some(name), "{at:#x} {magic:?}");
            assert_eq!(found(size, at as u64 + (1 << 20) + 7, magic), None, "{at:#x} {magic:?}");
        }
        for page in PAGES {
            assert!(IN_SWAP.iter().all(|magic| found(size, page as u64 - 10, magic) == Some(SWAP)), "{page}");
        }
        assert_eq!(found(size, 128 << 10, &ZFS_MAGIC.to_le_bytes()), Some("a part of a pool of ZFS"));
        assert_eq!(found(size, (256 << 10) - 1024, &ZFS_MAGIC.to_be_bytes()), Some("a part of a pool of ZFS"));
    }

    /// The list is not its own witness: what mkfs makes is found, too.
    #[test]
    fn what_mkfs_makes_is_found() {
        let path = std::env::temp_dir().join(format!("folioswap-made-{}", std::process::id()));
        for (kind, options) in
            [("minix", "-1"), ("minix", "-2"), ("minix", "-3"), ("bfs", "-v"), ("cramfs", "/etc/apt")]
        {
            File::create(&path).and_then(|image| image.set_len(4 << 20)).unwrap();
            let made = std::process::Command::new(format!("mkfs.{kind}")).arg(options).arg(&path).output();
            match made {
                Ok(made) if made.status.success() => {}
                _ => {
                    println!("skipped: mkfs.{kind} {options}: {made:?}");
                    continue;
                }
            }
            let image = File::open(&path).unwrap();
            image.sync_all().unwrap();
            let found = find(image.as_raw_fd(), image.metadata().unwrap().len()).unwrap();
            assert_eq!(found, Some(&*format!("a file system ({kind})")), "{options}");
        }
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn the_end_is_looked_at_too() {
        for size in [2 << 20, (4 << 20) + (20 << 10), (4 << 20) + 512, (3 << 20) + (60 << 10)] {
            assert_eq!(found(size, (size & !0xfff) - (8 << 10), MD_RAID), Some(RAID), "1.0 of {size}");
            assert_eq!(found(size, (size & !0xffff) - (64 << 10), MD_RAID), Some(RAID), "0.90 of {size}");
            assert_eq!(found(size, size - (70 << 10) - 5, MD_RAID), None);
            for &(before, magic) in FROM_END {
                assert_eq!(found(size, size - before, magic), Some(FIRMWARE_RAID), "{before} from the end of {size}");
            }
        }
        assert_eq!(found(64 << 10, 0, b"XFSB"), Some("a file system (xfs)"), "of a small device");
        assert_eq!(found(4096, 0, &[0; 8]), None);
    }
}
