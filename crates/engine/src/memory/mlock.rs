//! A locked budget: all frames have memory from the start, which is locked in RAM while the arena runs.
//!
//! The kernel moves pages only between two locked ranges or two unlocked ones. Therefore homes, nurseries and all
//! region addresses are locked (`MLOCK_ONFAULT`, which faults nothing in). Without CAP_IPC_LOCK all of it counts
//! against RLIMIT_MEMLOCK. A pageblock changes between huge and small pages in place. Moving one page out and back
//! splits a huge page (0.5 to 0.8 ms); zeros in locked memory are not replaced by the kernel's zero page.
//! `MADV_COLLAPSE` makes a huge page (3 ms): it is allocated before the small ones are freed, so frames never have less
//! than the budget. If the kernel has none, the small pages stay and can hold a whole folio. Memory that others still
//! hold is given back and allocated anew: a folio dropped while pinned, a huge page to be split that a pipe uses, a
//! page written while a child shares it.

use folioswap_core::{Order, PAGE_SIZE};
use folioswap_sys::control_group;
use folioswap_sys::memory::{self, Reservation};

use crate::config::error::Error;
use crate::config::limits::MIN_MEMORY;
use crate::config::size::Bytes;
use crate::device::topology::Topology;
use crate::memory::frames::{Frames, bytes_behind_homes};
use crate::memory::map_error::MapError;
use crate::memory::ram::Ram;
use crate::memory::zones::Zoning;

/// Checks whether a locked budget of this size could be allocated now in an arena, as
/// [`ArenaBuilder::build`](crate::ArenaBuilder::build) does. Takes no memory.
///
/// # Errors
/// [`Error::LockLimit`], [`Error::NoMemoryToLock`].
pub fn check_lock(memory_bytes: u64) -> Result<(), Error> {
    check_available(memory_bytes)?;
    check_limit(memory_bytes)
}

/// Checks whether this process may lock the addresses of such an arena, by trying: several privileges allow it.
pub(crate) fn check_limit(memory_bytes: u64) -> Result<(), Error> {
    let wanted = wanted_by(memory_bytes);
    let addresses = Reservation::new((wanted as usize).next_multiple_of(PAGE_SIZE), PAGE_SIZE)
        .map_err(|error| Error::NoAddresses { wanted_bytes: wanted, error })?;
    lock(addresses.addr(), addresses.len(), wanted)
}

/// Bytes of addresses that the smallest budget locks.
pub(crate) fn least_to_lock() -> u64 {
    wanted_by(MIN_MEMORY)
}

fn wanted_by(memory_bytes: u64) -> u64 {
    let nr_zones = Zoning::new(&Topology::of_machine(), memory_bytes as usize / Order::HUGE.bytes()).nr_zones;
    bytes_to_lock(memory_bytes, nr_zones)
}

/// Bytes of addresses that an arena without regions locks.
fn bytes_to_lock(memory_bytes: u64, nr_zones: usize) -> u64 {
    memory_bytes + bytes_behind_homes(nr_zones) as u64
}

/// Locks a range of addresses. `wanted_bytes`: the total that the arena locks, for the error message.
pub(crate) fn lock(addr: usize, len: usize, wanted_bytes: u64) -> Result<(), Error> {
    memory::lock_on_fault(addr, len).map_err(|error| match memory::memlock_limit() {
        Some(limit_bytes) if limit_bytes < wanted_bytes => Error::LockLimit { wanted_bytes, limit_bytes },
        _ => Error::system("locking memory in RAM")(error),
    })
}

/// Locks the homes of an arena's budget, and the ranges behind the homes. Regions are locked as they are mapped.
pub(crate) fn lock_all(frames: &Frames, memory_bytes: u64) -> Result<(), Error> {
    let nr_pageblocks = memory_bytes as usize / Order::HUGE.bytes();
    let all_bytes = bytes_to_lock((nr_pageblocks * Order::HUGE.bytes()) as u64, frames.nr_zones());
    std::iter::once(frames.behind())
        .chain(frames.parts(0, nr_pageblocks))
        .try_for_each(|part| lock(part.start, part.len(), all_bytes))
}

/// Checks whether this much RAM is available. The kernel would not refuse memory beyond the limit of a control group:
/// it would kill a process.
pub(crate) fn check_available(wanted_bytes: u64) -> Result<(), Error> {
    let available_bytes = available_ram();
    if wanted_bytes <= available_bytes {
        return Ok(());
    }
    Err(Error::NoMemoryToLock { wanted_bytes, reason: format!("{} are available", Bytes(available_bytes)) })
}

/// Gives memory to all frames under the limit that have none. Takes 1 to 5 ms for 2 MiB.
pub(crate) fn populate_all(ram: &Ram) -> Result<(), Error> {
    while let Some(frame) = ram.zones().take_absent() {
        // SAFETY: the home of frames that were just taken from their zone.
        match unsafe { ram.mapper().populate(ram.frames().home(frame)) } {
            Ok(true) => {}
            Ok(false) => ram.note_small(frame),
            Err(error) => {
                ram.release_unpopulated(frame);
                return Err(not_populated(error));
            }
        }
        ram.release(frame);
    }
    ram.note_resident();
    Ok(())
}

pub(crate) fn grow_locked(ram: &Ram, bytes: u64) -> Result<(), Error> {
    let _one_at_a_time = ram.growing.lock().expect("nothing panics under this lock");
    let now_bytes = ram.budget_bytes();
    if bytes < now_bytes {
        return Err(Error::LockedShrink { now_bytes, wanted_bytes: bytes });
    }
    let limits = [now_bytes, bytes].map(|bytes| (bytes as usize / PAGE_SIZE).min(ram.zones().nr_frames_max()));
    let [old, new] = limits.map(|nr_frames| nr_frames / Order::HUGE.nr_pages());
    let bytes_of = |nr_pageblocks: usize| (nr_pageblocks * Order::HUGE.bytes()) as u64;
    if new > old {
        check_available(bytes_of(new - old))?;
        let all_bytes = bytes_to_lock(bytes_of(new), ram.frames().nr_zones());
        ram.frames().parts(old, new).try_for_each(|part| lock(part.start, part.len(), all_bytes))?;
        ram.frames().open(new)?;
        ram.zones().set_limit(new * Order::HUGE.nr_pages());
        // On failure, reclaim gives back what was already allocated.
        populate_all(ram).inspect_err(|_| {
            ram.zones().set_limit(old * Order::HUGE.nr_pages());
            ram.reclaim_wanted().signal();
        })?;
    }
    ram.note_budget(bytes);
    Ok(())
}

fn not_populated(error: MapError) -> Error {
    let wanted_bytes = Order::HUGE.bytes() as u64;
    match error {
        MapError::Refused(libc::ENOMEM) => Error::NoMemoryToLock { wanted_bytes, reason: "ENOMEM".into() },
        other => Error::System { what: "taking a locked budget's memory", error: std::io::Error::other(other) },
    }
}

/// RAM that this process can take without harm: what the kernel reports as available, and no more than its control
/// groups have left.
fn available_ram() -> u64 {
    memory::available_ram().min(control_group::memory_left())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pageblock_is_divided_and_made_huge_again_where_it_stands() {
        use folioswap_core::{Memory, Taken};
        use folioswap_sys::pagemap::{self, Scan};
        const BLOCK: usize = Order::HUGE.bytes();
        let builder = crate::Arena::builder().memory(16 << 20).locked(true);
        let arena = match builder.device(crate::DeviceSpec::Ram { size: 4 << 20 }).build() {
            Ok(arena) => arena,
            Err(error) => {
                println!("SKIP pageblocks of a locked budget: {error}");
                return;
            }
        };
        let ram = arena.engine().ram();
        let taken = ram.zones().all()[0].take(Order::HUGE, 0).unwrap();
        let home = ram.frames().home(taken.frame);
        let scan = || pagemap::scan(home..home + BLOCK).unwrap();
        let (whole, divided) = (BLOCK as u64, Scan { present_bytes: BLOCK as u64, huge_bytes: 0 });
        if scan().huge_bytes < whole {
            println!("SKIP pageblocks of a locked budget: the kernel has no huge pages");
            return;
        }
        // SAFETY: the pageblock was taken above.
        assert!(unsafe { ram.backing().divide_in_place(taken.frame) });
        assert_eq!(scan(), divided);
        let small = Taken { memory: Memory::Small, ..taken };
        assert!(ram.try_make_huge(small));
        assert_eq!(scan().huge_bytes, whole);
        // If the kernel makes no huge page, the small ones stay, and the zone knows that.
        // SAFETY: the pageblock was taken above.
        assert!(unsafe { ram.backing().divide_in_place(taken.frame) });
        memory::advise_nohugepage(home, BLOCK).unwrap();
        assert!(!ram.try_make_huge(small));
        assert_eq!((scan(), arena.stats().thp_collapse_alloc_failed), (divided, 1));
        assert_eq!(ram.zones().all()[0].pageblocks().take_divided().map(|taken| taken.memory), Some(Memory::Small));
    }

    #[test]
    fn more_than_the_machine_has_is_refused() {
        let error = check_lock(1 << 50).unwrap_err();
        assert!(matches!(error, Error::NoMemoryToLock { .. }), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
        assert!(available_ram() <= memory::total_ram());
    }
}
