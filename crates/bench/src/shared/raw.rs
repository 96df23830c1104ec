//! Raw speed of the disk: direct I/O in chunks of 2 MiB over an unnamed file of the sweep's size, one read at a time.
//!
//! Reads go into one buffer again and again, or into as much memory as the sweep may keep. The second is the most
//! that a program using the data can get, because one buffer stays in the processor's cache. (A virtual disk gave 2.7
//! GB/s into one buffer, and 2.0 to 2.1 into 8 or more.)
//!
//! The file is written once before it is read, so that no read hits a hole. The first write can be slower than later
//! ones, because the disk has to allocate space. (A virtual disk on a file system that discards deleted blocks gave
//! 1.5 to 2.0 GB/s the first time, and 2.5 to 3.5 after that.)

use folioswap_command::exit::Failure;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

const CHUNK_BYTES: usize = 2 << 20;

/// Buffers in huge pages and aligned to them, like the engine's frames.
struct Buffers {
    bytes: Vec<u8>,
    aligned: usize,
}

impl Buffers {
    /// Allocates and touches `nr_chunks` buffers.
    fn new(nr_chunks: usize) -> Buffers {
        let mut bytes = vec![0u8; (nr_chunks + 1) * CHUNK_BYTES];
        let aligned = bytes.as_ptr().align_offset(CHUNK_BYTES);
        let chunks = &mut bytes[aligned..][..nr_chunks * CHUNK_BYTES];
        // Without huge pages the loop is a little slower, but still valid.
        let _ = folioswap_sys::memory::advise_hugepage(chunks.as_ptr() as usize, chunks.len());
        chunks.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8);
        Buffers { bytes, aligned }
    }

    fn chunk(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[self.aligned + index * CHUNK_BYTES..][..CHUNK_BYTES]
    }
}

/// Threads that access one file in [`at_once`], and therefore chunks in flight.
const THREADS: u64 = 4;

/// The direction of the I/O.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Way {
    /// Write everything, on a file whose space was just [reserved](RawFile::beside).
    Write,
    /// Each thread writes one chunk and reads the next.
    Both,
    /// Read everything.
    Read,
}

impl Way {
    /// In the order that a new file needs.
    pub const ALL: [Way; 3] = [Way::Write, Way::Both, Way::Read];

    fn writes(self, nth: usize) -> bool {
        match self {
            Way::Write => true,
            Way::Both => nth.is_multiple_of(2),
            Way::Read => false,
        }
    }
}

/// An unnamed file, or a block device.
pub struct RawFile {
    file: File,
    nr_chunks: u64,
}

impl RawFile {
    /// Creates a file of at least `bytes` in `directory`. Its space is reserved and was never written.
    fn reserve(directory: &Path, bytes: u64) -> Result<RawFile, Failure> {
        let failed = |error: std::io::Error| failure(&directory.display().to_string(), error);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).map_err(|error| failed(error.into()))?;
        let nr_chunks = bytes.div_ceil(CHUNK_BYTES as u64).max(1);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, nr_chunks * CHUNK_BYTES as u64)
            .map_err(|error| failed(error.into()))?;
        Ok(RawFile { file: file.into(), nr_chunks })
    }

    /// Creates a file of at least `bytes` in `directory` and writes it.
    pub fn create(directory: &Path, bytes: u64) -> Result<RawFile, Failure> {
        let raw = RawFile::reserve(directory, bytes)?;
        let mut buffer = Buffers::new(1);
        (0..raw.nr_chunks)
            .try_for_each(|index| raw.file.write_all_at(buffer.chunk(0), index * CHUNK_BYTES as u64))
            .map_err(|error| failure(&directory.display().to_string(), error))?;
        Ok(raw)
    }

    /// The block device at `path`, whose first `bytes` are overwritten. If `path` does not exist, reserves space in
    /// its directory.
    pub fn beside(path: &Path, bytes: u64) -> Result<RawFile, Failure> {
        if !path.exists() {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            return RawFile::reserve(parent.unwrap_or(Path::new(".")), bytes);
        }
        let (fd, size) = folioswap_sys::direct_io::block_device(path)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        Ok(RawFile { file: fd.into(), nr_chunks: (bytes.min(size) / CHUNK_BYTES as u64).max(1) })
    }

    /// Reads or writes every [`THREADS`]th chunk of the file once, from chunk `first` on.
    fn pass(&self, way: Way, first: u64) -> std::io::Result<()> {
        let mut buffer = Buffers::new(1);
        (first..self.nr_chunks).step_by(THREADS as usize).enumerate().try_for_each(|(nth, index)| {
            let (chunk, offset) = (buffer.chunk(0), index * CHUNK_BYTES as u64);
            if way.writes(nth) { self.file.write_all_at(chunk, offset) } else { self.file.read_exact_at(chunk, offset) }
        })
    }

    /// Reads the whole file once into memory of this size, which is reused when it is full. Returns GB/s.
    pub fn read_round(&self, memory_bytes: u64) -> Result<f64, Failure> {
        let nr_buffers = (memory_bytes / CHUNK_BYTES as u64).max(1);
        let mut buffers = Buffers::new(nr_buffers as usize);
        let begin = Instant::now();
        for index in 0..self.nr_chunks {
            let buffer = buffers.chunk((index % nr_buffers) as usize);
            self.file
                .read_exact_at(buffer, index * CHUNK_BYTES as u64)
                .map_err(|error| Failure::new(format!("the raw read loop could not read its file: {error}")))?;
        }
        Ok((self.nr_chunks * CHUNK_BYTES as u64) as f64 / begin.elapsed().as_secs_f64() / 1e9)
    }
}

/// The error to report for a file in `place`.
fn failure(place: &str, error: std::io::Error) -> Failure {
    Failure::new(format!("the raw loop's file in {place}: {error}"))
}

/// Processes all of several files once, in parallel, each with threads of its own. Returns GB/s until the last one is
/// done.
pub fn at_once(files: &[&RawFile], way: Way) -> Result<f64, Failure> {
    let begin = Instant::now();
    let ended: Vec<std::io::Result<()>> = std::thread::scope(|scope| {
        let each = |file| (0..THREADS).map(move |first| (file, first));
        let pass = |(file, first): (&RawFile, u64)| file.pass(way, first);
        let threads = files.iter().copied().flat_map(each).map(|of| scope.spawn(move || pass(of)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread that reads does not panic")).collect()
    });
    let failed = |error| Failure::new(format!("the raw loop could not {way:?}: {error}"));
    ended.into_iter().collect::<std::io::Result<()>>().map_err(failed)?;
    let nr_chunks: u64 = files.iter().map(|file| file.nr_chunks).sum();
    Ok((nr_chunks * CHUNK_BYTES as u64) as f64 / begin.elapsed().as_secs_f64() / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_is_read() {
        let raw = RawFile::create(Path::new("/var/tmp"), 5 << 20).expect("a disk with O_DIRECT at /var/tmp");
        assert_eq!(raw.nr_chunks, 3);
        assert!(raw.read_round(0).expect("readable") > 0.0);
        assert!(raw.read_round(4 << 20).expect("readable") > 0.0);
        let other = RawFile::beside(Path::new("/var/tmp/no-such-file"), 4 << 20).expect("the same disk");
        for way in Way::ALL {
            assert!(at_once(&[&raw, &other], way).expect("two files") > 0.0);
        }
    }
}
