//! What the disk alone gives: a loop of direct reads of 2 MiB, one at a time, over a file of the sweep's size.
//!
//! The file has no name, so nothing is left behind; it is written once before it is read, so that no read meets a hole.

use crate::exit::{Failure, Status};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

const PIECE_BYTES: usize = 2 << 20;

/// The file, and the aligned buffer that is read into.
pub struct RawFile {
    file: File,
    buffer: Vec<u8>,
    aligned: usize,
    nr_pieces: u64,
}

impl RawFile {
    /// Makes and writes a file of at least `bytes` in `directory`.
    pub fn create(directory: &Path, bytes: u64) -> Result<RawFile, Failure> {
        let failed = |error: std::io::Error| {
            let status = match error.kind() {
                std::io::ErrorKind::StorageFull => Status::SwapTooSmall,
                _ => Status::SwapUnusable,
            };
            Failure::new(status, format!("the raw read loop's file in {}: {error}", directory.display()))
        };
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).map_err(|error| failed(error.into()))?;
        let nr_pieces = bytes.div_ceil(PIECE_BYTES as u64).max(1);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, nr_pieces * PIECE_BYTES as u64)
            .map_err(|error| failed(error.into()))?;
        let mut buffer = vec![0u8; 2 * PIECE_BYTES];
        // O_DIRECT wants the buffer aligned; to a huge page and in one, as the engine's frames are.
        let aligned = buffer.as_ptr().align_offset(PIECE_BYTES);
        let piece = &mut buffer[aligned..][..PIECE_BYTES];
        // Without huge pages the loop is a little slower, but no less true.
        let _ = folioswap_sys::memory::advise_hugepage(piece.as_ptr() as usize, PIECE_BYTES);
        piece.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8);
        let raw = RawFile { file: file.into(), buffer, aligned, nr_pieces };
        let piece = &raw.buffer[raw.aligned..][..PIECE_BYTES];
        for index in 0..raw.nr_pieces {
            raw.file.write_all_at(piece, index * PIECE_BYTES as u64).map_err(failed)?;
        }
        Ok(raw)
    }

    /// Reads the whole file once: GB/s.
    pub fn read_round(&mut self) -> Result<f64, Failure> {
        let piece = &mut self.buffer[self.aligned..][..PIECE_BYTES];
        let begin = Instant::now();
        for index in 0..self.nr_pieces {
            self.file.read_exact_at(piece, index * PIECE_BYTES as u64).map_err(|error| {
                Failure::new(Status::SwapUnusable, format!("the raw read loop could not read its file: {error}"))
            })?;
        }
        Ok((self.nr_pieces * PIECE_BYTES as u64) as f64 / begin.elapsed().as_secs_f64() / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_is_read() {
        let mut raw = RawFile::create(Path::new("/var/tmp"), 5 << 20).expect("a disk with O_DIRECT at /var/tmp");
        assert_eq!(raw.nr_pieces, 3);
        assert!(raw.read_round().expect("readable") > 0.0);
    }
}
