//! The parts on which an arena is built: a userfaultfd, the page tables, and a mapper.

use std::sync::Arc;

use folioswap_core::HashKey;
use folioswap_sys::pagemap::Pagemap;
use folioswap_sys::random;
use folioswap_sys::uffd::{Delivery, Door, UffdError, Userfaultfd};

use crate::config::error::Error;
use crate::config::fault_mode::{FaultChoice, FaultMode};
use crate::config::mapping::Mapping;
use crate::memory::copy_mapper::CopyMapper;
use crate::memory::frames::Frames;
use crate::memory::mapper::Mapper;
use crate::memory::move_mapper::MoveMapper;
use crate::memory::selftest;

/// Makes the mapper, and registers the frames that it needs registered. Opens the page tables, hidden from the program.
pub(crate) fn register(uffd: Arc<Userfaultfd>, frames: &Frames, mapping: Mapping) -> Result<Box<dyn Mapper>, Error> {
    let pagemap =
        Pagemap::open().and_then(Pagemap::hide).map(Arc::new).map_err(Error::system("opening the page tables"))?;
    let mapper: Box<dyn Mapper> = if mapping == Mapping::Move {
        let zone = |zone| [frames.homes_of(zone), frames.nursery_of(zone), frames.small_nursery_of(zone)];
        let zones = (0..frames.nr_zones()).map(zone);
        let drops_tables = selftest::drops_tables(&uffd);
        let mapper = MoveMapper::new(uffd, pagemap, zones, frames.is_locked(), drops_tables);
        Box::new(mapper.map_err(Error::system("reserving addresses"))?)
    } else {
        let mapper = CopyMapper::new(uffd, pagemap);
        Box::new(mapper.map_err(Error::system("reserving addresses"))?)
    };
    let failed = |e: UffdError| Error::system("registering with userfaultfd")(e.into());
    let spare_pages = frames.is_locked().then(|| frames.spare_pages());
    for range in mapper.registers_frames().then(|| frames.range()).into_iter().chain(spare_pages) {
        mapper.uffd().register(range.start, range.len()).map_err(failed)?;
    }
    Ok(mapper)
}

/// The key of an arena's hashes.
pub(crate) fn random_key() -> Result<HashKey, Error> {
    let mut key = [0; size_of::<HashKey>()];
    random::fill(&mut key).map_err(Error::system("getting random bytes"))?;
    Ok(key)
}

/// Opens a userfaultfd for the wanted mode, hidden from the program.
///
/// # Errors
/// As [`try_userfaultfd`].
pub(crate) fn open_userfaultfd(wanted: FaultMode) -> Result<(FaultMode, Userfaultfd), Error> {
    let (choice, uffd) = try_userfaultfd(wanted)?;
    uffd.hide().map(|hidden| (choice.mode, hidden)).map_err(Error::system("keeping a descriptor from the program"))
}

/// Opens a userfaultfd for the wanted mode. `Auto` falls back to direct.
///
/// # Errors
/// [`Error::NoUserfaultfd`].
pub(crate) fn try_userfaultfd(wanted: FaultMode) -> Result<(FaultChoice, Userfaultfd), Error> {
    let choice = |mode, reason: String| FaultChoice { mode, reason };
    let mut reason = "it was asked for".to_owned();
    if wanted != FaultMode::Direct {
        match Userfaultfd::open(Delivery::Monitor) {
            Ok((uffd, _, _)) if wanted == FaultMode::Monitor => return Ok((choice(wanted, reason), uffd)),
            Ok((uffd, _, door)) => {
                let by = if door == Door::Device { "through /dev/userfaultfd" } else { "by the system call" };
                return Ok((choice(FaultMode::Monitor, format!("userfaultfd is permitted {by}")), uffd));
            }
            Err(error) if wanted == FaultMode::Monitor => {
                return Err(no_userfaultfd("monitor", error));
            }
            Err(error) => reason = format!("no userfaultfd for monitor: {error}"),
        }
    }
    let (uffd, _, _) = Userfaultfd::open(Delivery::Sigbus).map_err(|error| no_userfaultfd("direct", error))?;
    Ok((choice(FaultMode::Direct, reason), uffd))
}

/// The mode that an arena built now would get, and why.
///
/// # Errors
/// [`Error::NoUserfaultfd`].
pub fn choose_faults(wanted: FaultMode) -> Result<FaultChoice, Error> {
    try_userfaultfd(wanted).map(|(choice, _)| choice)
}

fn no_userfaultfd(mode: &'static str, error: UffdError) -> Error {
    let help = match error {
        UffdError::System { what, error } => return Error::system(what)(error),
        UffdError::NotSupported => "",
        _ => ": run as root, or `sysctl vm.unprivileged_userfaultfd=1`",
    };
    Error::NoUserfaultfd { mode, reason: error.to_string(), help }
}
