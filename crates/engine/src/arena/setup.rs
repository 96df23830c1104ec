//! The parts on which an arena is built: addresses, a userfaultfd, the page tables, and a mapper with its registered
//! memory.

use std::sync::Arc;

use folioswap_core::{HashKey, Order, PAGE_SIZE};
use folioswap_sys::memory::{self, Reservation};
use folioswap_sys::pagemap::Pagemap;
use folioswap_sys::random;
use folioswap_sys::uffd::{Delivery, UffdError, Userfaultfd};

use crate::config::error::Error;
use crate::config::fault_mode::FaultMode;
use crate::config::limits::{ADDRESS_SPACE, ADDRESSES_PER_BYTE, MAX_ADDRESS_SPACE};
use crate::config::mapping::Mapping;
use crate::device::Opened;
use crate::memory::frames::Frames;
use crate::memory::mapper::{CopyMapper, Mapper, MoveMapper};

/// Reserves the addresses of regions, which children do not inherit. Without a size, reserves a multiple of what memory
/// and devices hold, or the default if that is not available.
pub(crate) fn span(
    address_space: Option<u64>,
    memory_bytes: u64,
    locked: bool,
    devices: &[Opened],
) -> Result<Reservation, Error> {
    let reserve = |bytes: u64| {
        let (len, block) = ((bytes as usize).next_multiple_of(Order::HUGE.bytes()), Order::HUGE.bytes());
        Reservation::new(len, block).map_err(|error| Error::NoAddresses { wanted_bytes: bytes, error })
    };
    let span = match address_space {
        Some(bytes) => reserve(bytes)?,
        None if locked => reserve(ADDRESS_SPACE)?,
        None => {
            let held =
                devices.iter().fold(memory_bytes, |sum, opened| sum.saturating_add(opened.device.likely_bytes()));
            let wanted = held.min(MAX_ADDRESS_SPACE / ADDRESSES_PER_BYTE) * ADDRESSES_PER_BYTE;
            reserve(wanted.next_power_of_two().max(ADDRESS_SPACE)).or_else(|_| reserve(ADDRESS_SPACE))?
        }
    };
    span.dontfork(span.range()).map_err(Error::system("keeping regions from children"))?;
    // Without this the kernel makes a table of small pages before it reports a fault, and a huge page moved there is
    // split.
    memory::advise_hugepage(span.addr(), span.len()).map_err(Error::system("asking for huge pages"))?;
    Ok(span)
}

/// Opens the page tables, hidden from the program.
pub(crate) fn page_tables() -> Result<Arc<Pagemap>, Error> {
    Pagemap::open().and_then(Pagemap::hide).map(Arc::new).map_err(Error::system("opening the page tables"))
}

/// Makes the kernel give the span one `anon_vma` while it is one mapping, by a page that is dropped at once. Changes of
/// protection divide the mapping. Parts with different `anon_vma`s could not be merged again, and a folio across two of
/// them could not be moved.
fn share_one_anon_vma(uffd: &Userfaultfd, span: &Reservation, frames: &Frames) -> Result<(), Error> {
    let page = [0u8; PAGE_SIZE];
    // In the last block, which is dropped whole: a table of small pages left there would split huge pages.
    let block = span.addr() + span.len() - Order::HUGE.bytes();
    // SAFETY: the target is in the span, of which no region has been handed out yet. The source is a local page.
    let copied = unsafe { uffd.copy(block, page.as_ptr() as usize, PAGE_SIZE) };
    copied.map_err(|error| Error::system("preparing regions")(std::io::Error::other(error)))?;
    // SAFETY: a block of the span, of which no region has been handed out yet.
    unsafe { frames.drop_memory(block, Order::HUGE.bytes()) }.map_err(Error::system("preparing regions"))
}

/// Makes the mapper, and registers the memory that it needs.
pub(crate) fn register(
    uffd: &Arc<Userfaultfd>,
    pagemap: &Arc<Pagemap>,
    span: &Reservation,
    frames: &Frames,
    mapping: Mapping,
) -> Result<Box<dyn Mapper>, Error> {
    let mapper: Box<dyn Mapper> = if mapping == Mapping::Move {
        let zone = |zone| [frames.homes_of(zone), frames.nursery_of(zone), frames.small_nursery_of(zone)];
        Box::new(MoveMapper::new(Arc::clone(uffd), Arc::clone(pagemap), (0..frames.nr_zones()).map(zone)))
    } else {
        Box::new(CopyMapper::new(Arc::clone(uffd), Arc::clone(pagemap)))
    };
    let failed = |e: UffdError| Error::system("registering with userfaultfd")(e.into());
    uffd.register(span.addr(), span.len(), mapper.region_mode()).map_err(failed)?;
    share_one_anon_vma(uffd, span, frames)?;
    let spare_pages = frames.is_locked().then(|| frames.spare_pages());
    for range in mapper.registers_frames().then(|| frames.range()).into_iter().chain(spare_pages) {
        uffd.register(range.start, range.len(), folioswap_sys::uffd::Mode::Missing).map_err(failed)?;
    }
    Ok(mapper)
}

fn hiding(error: std::io::Error) -> Error {
    Error::system("keeping a descriptor from the program")(error)
}

/// The key of an arena's hashes.
pub(crate) fn random_key() -> Result<HashKey, Error> {
    let mut key = [0; size_of::<HashKey>()];
    random::fill(&mut key).map_err(Error::system("getting random bytes"))?;
    Ok(key)
}

/// Opens a userfaultfd for the wanted mode. `Auto` falls back to direct.
pub(crate) fn open_userfaultfd(wanted: FaultMode) -> Result<(FaultMode, Userfaultfd), Error> {
    if wanted != FaultMode::Direct {
        match Userfaultfd::open(Delivery::Monitor) {
            Ok((uffd, _, _)) => return Ok((FaultMode::Monitor, uffd.hide().map_err(hiding)?)),
            Err(error) if wanted == FaultMode::Monitor => {
                return Err(Error::NoUserfaultfd { mode: "monitor", reason: error.to_string() });
            }
            Err(_) => {}
        }
    }
    let (uffd, _, _) = Userfaultfd::open(Delivery::Sigbus)
        .map_err(|error| Error::NoUserfaultfd { mode: "direct", reason: error.to_string() })?;
    Ok((FaultMode::Direct, uffd.hide().map_err(hiding)?))
}
