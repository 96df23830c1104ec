//! Records of what each process had in RAM at its end, managed or not, in shared memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What one process had in RAM, in bytes.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct ProcessMemory {
    /// Its pid.
    pub pid: u64,
    /// Its program's name, as the kernel has it: 15 bytes at most.
    pub name: [u8; 16],
    /// The peak of its resident memory.
    pub peak: u64,
    /// Managed memory in RAM at its end, plus the most that swap devices in memory may have.
    pub managed: u64,
    /// The most memory seen that nobody manages: neither the engine nor the kernel, which can drop file pages.
    pub outside: u64,
    /// The shared memory in that.
    pub shared: u64,
    /// Private pages of mapped files at its end, as the data of libraries; 0 where `outside` is little.
    pub of_files: u64,
    /// Stacks of threads and thread-local data, when `outside` was much; 0 where it never was.
    pub of_threads: u64,
}

/// Room for one process's numbers. All zero: unused.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ProcessRecord {
    pid: AtomicU64,
    numbers: [AtomicU64; 8],
}

impl ProcessRecord {
    /// Claims the record for a process and stores its numbers, unless the record is in use.
    pub fn claim(&self, process: &ProcessMemory) -> bool {
        if self.pid.compare_exchange(0, process.pid, Relaxed, Relaxed).is_err() {
            return false;
        }
        let name = u128::from_ne_bytes(process.name);
        let ProcessMemory { peak, managed, outside, shared, of_files, of_threads, .. } = *process;
        let numbers = [name as u64, (name >> 64) as u64, peak, managed, outside, shared, of_files, of_threads];
        self.numbers.iter().zip(numbers).for_each(|(place, number)| place.store(number, Relaxed));
        true
    }

    /// The process's numbers, if the record is used; to be read after the processes have ended.
    pub fn get(&self) -> Option<ProcessMemory> {
        let pid = self.pid.load(Relaxed);
        let [low, high, peak, managed, outside, shared, of_files, of_threads] =
            std::array::from_fn(|at| self.numbers[at].load(Relaxed));
        let name = (u128::from(low) | u128::from(high) << 64).to_ne_bytes();
        (pid != 0).then_some(ProcessMemory { pid, name, peak, managed, outside, shared, of_files, of_threads })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_processes() {
        let record = ProcessRecord::default();
        assert_eq!(record.get(), None);
        let mut name = [0; 16];
        name[..6].copy_from_slice(b"python");
        let process =
            ProcessMemory { pid: 7, name, peak: 100, managed: 60, outside: 15, shared: 5, of_files: 3, of_threads: 2 };
        assert!(record.claim(&process) && !record.claim(&ProcessMemory { pid: 8, ..process }));
        assert_eq!(record.get(), Some(process));
    }
}
