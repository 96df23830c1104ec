//! Removes a swap device while the arena runs.
//!
//! From the start no slot of the device is handed out, and freed slots are free at once. Then all blocks are walked,
//! each under its lock, which waits for I/O on the block. The first walk moves content that is only on the device to
//! other devices, or to RAM if they have no room, so that a removal that must fail does so early. Content is verified
//! in a buffer outside the budget. Later walks also free the device's copies of folios in RAM. They are repeated until
//! no slot is in use, because writes to it may be under way; not for ever.
//!
//! **Invariant.** A failed step leaves every folio in its old or in a new place, so a removal can be given up at any
//! point.

use std::time::{Duration, Instant};

use folioswap_core::{DeviceId, List, Order, PIECE, SlotId};

use crate::block::{Block, SlotRun};
use crate::config::error::Error;
use crate::engine::Engine;
use crate::process::cpu::current_cpu;
use crate::process::turns::asleep;
use crate::reclaim::evict::{self, Washed};
use crate::reclaim::kept;
use crate::swap::block::Buffer;
use crate::swap::health::SwapInError;

/// How long a removal waits after the first walks, when only writes in flight can use the device.
const PATIENCE: Duration = Duration::from_secs(30);

/// The same, where only forked children need what is left, or no write can be under way.
const PATIENCE_AT_REST: Duration = Duration::from_secs(1);

/// Writes to other devices that may fail in a row. Each failure takes slots out of use.
pub(crate) const FAILURES: usize = 8;

/// How long to wait after a walk for writes in flight.
const SETTLING: Duration = Duration::from_millis(10);

/// Why a device cannot be emptied.
pub(crate) enum Stuck {
    /// Neither another device nor RAM has room.
    Full,
    /// A read failed.
    Lost(SwapInError),
    /// Writes to it do not end.
    Busy,
    /// Forked children may read what their parent had there.
    Shared,
}

/// What a walk does with a block.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Step {
    /// Moves content that is only on the device.
    Carry,
    /// Frees the copies of folios in RAM, and moves the rest.
    Free,
}

/// Removes the device of this name.
///
/// # Errors
/// [`Error::NoSuchDevice`]. [`Error::SwapInUse`] if it cannot be emptied; then it is used as before, unless it is
/// failing.
pub(crate) fn remove_device(engine: &Engine, name: &str) -> Result<(), Error> {
    let name = name.to_owned(); // may lie in managed memory, which is not touched under a lock
    let _alone = engine.swap().devices().changing();
    let Some(device) = engine.swap().devices().find(&name) else { return Err(Error::NoSuchDevice(name)) };
    try_remove(engine, device).map_err(|stuck| {
        let reason = match stuck {
            Stuck::Full => {
                "neither other devices nor RAM have room for all that it holds; add a device or give more --memory"
                    .into()
            }
            Stuck::Lost(error) => error.to_string(),
            Stuck::Busy => "writes to it do not end; try once more".into(),
            Stuck::Shared => "forked children may need what was there; try once more when they have ended".into(),
        };
        Error::SwapInUse { name, reason }
    })
}

/// In a forked child that has little room for devices left: removes some of its ancestors', those with the least
/// content first, as long as that fits into three quarters of the room on its own. The caller keeps others from adding
/// and removing devices.
pub(crate) fn remove_foreign(engine: &Engine) {
    let devices = engine.swap().devices();
    for device in devices.foreign() {
        if !devices.lacks_places_for_child() || devices.device(device).nr_used() > devices.nr_free_of_own() / 4 * 3 {
            return;
        }
        let _ = try_remove(engine, device);
    }
}

fn try_remove(engine: &Engine, device: DeviceId) -> Result<(), Stuck> {
    {
        let _inside = engine.enter();
        engine.swap().devices().begin_removal(device);
    }
    let emptied = empty_device(engine, device);
    if emptied.is_ok() {
        engine.swap().devices().detach(device);
    } else {
        {
            let _inside = engine.enter();
            engine.swap().devices().cancel_removal(device);
        }
        engine.ram().reclaim_wanted().signal();
    }
    emptied
}

fn empty_device(engine: &Engine, device: DeviceId) -> Result<(), Stuck> {
    let mut buffer = Buffer::new();
    walk(engine, device, Step::Carry, &mut buffer)?;
    let mut walked = None;
    while engine.swap().devices().device(device).nr_used() > 0 {
        let is_shared = engine.swap().devices().is_for_children(device);
        // Nothing is written to an ancestor's.
        let is_short = is_shared || engine.swap().devices().device(device).is_foreign();
        let patience = if is_short { PATIENCE_AT_REST } else { PATIENCE };
        if walked.is_some_and(|walked: Instant| walked.elapsed() > patience) {
            return Err(if is_shared { Stuck::Shared } else { Stuck::Busy });
        }
        let seen = engine.ram().frame_freed().now();
        walk(engine, device, Step::Free, &mut buffer)?;
        walked = walked.or_else(|| Some(Instant::now()));
        // Folios that were being written to the device settle when their writes end.
        engine.ram().reclaim_wanted().signal();
        engine.ram().frame_freed().wait_for(seen, SETTLING);
    }
    Ok(())
}

fn walk(engine: &Engine, device: DeviceId, step: Step, buffer: &mut Buffer) -> Result<(), Stuck> {
    let never = || false;
    engine
        .each_block_in_use(never, |id| {
            let mut block = engine.lock(id);
            if step == Step::Free {
                free_copies(engine, &mut block, device)?;
            }
            carry(engine, &mut block, device, buffer)
        })
        .map(drop)
}

/// Frees the device's copies of a block's folios in RAM. A clean folio keeps a copy on another device, or stays in
/// RAM as a dirty one if there are frames to spare.
pub(crate) fn free_copies(engine: &Engine, block: &mut Block<'_>, device: DeviceId) -> Result<(), Stuck> {
    let order = block.order();
    for index in 0..block.nr_folios() {
        let folio = block.folio(index);
        let (Some(frame), Some(slot)) = (folio.frame(), folio.slot()) else { continue };
        if engine.swap().devices().device_of(slot) != device {
            continue;
        }
        if engine.ram().zone(frame).list(frame) == Some(List::Clean) {
            let counts = engine.ram().zones().counts();
            let spare = counts.available() >= counts.watermarks.high + order.nr_pages();
            if !spare {
                // RAM is short: keep the folio clean by a copy elsewhere.
                if let Some(place) = slot_elsewhere(engine, order) {
                    block.release_slot(index);
                    engine.ram().zone(frame).remove(frame);
                    block.write_one(index, place);
                    continue;
                }
                return copy_in_parts(engine, block, device);
            }
            engine.ram().put(frame, List::Laundry); // it has no copy any more
            engine.ram().reclaim_wanted().signal();
        }
        block.release_slot(index);
    }
    Ok(())
}

/// Copies a clean folio in RAM to another device in parts, because no run of slots is left there.
fn copy_in_parts(engine: &Engine, block: &mut Block<'_>, device: DeviceId) -> Result<(), Stuck> {
    let split = match Order::new(block.order().exponent().wrapping_sub(1)) {
        Some(smaller) if block.order() == Order::HUGE => {
            engine.ram().put(block.frame(0), List::Laundry); // it has no copy any more if that fails
            Washed::in_parts(engine, block, smaller)
        }
        Some(_) => evict::split_to_fit(engine, block),
        None => Washed::NoSlot,
    };
    match split {
        Washed::Again => free_copies(engine, block, device),
        Washed::Clean => Ok(()),
        Washed::NoSlot | Washed::Dirty(_) => Err(Stuck::Full),
    }
}

/// Slots on a device that is not being removed.
fn slot_elsewhere(engine: &Engine, order: Order) -> Option<SlotId> {
    engine.swap().allocate(current_cpu(), order)
}

/// Moves away the content of a block that is only on the device.
fn carry(engine: &Engine, block: &mut Block<'_>, device: DeviceId, buffer: &mut Buffer) -> Result<(), Stuck> {
    let (mut page, mut failures) = (0, 0);
    while let Some(run) = SlotRun::next(block, page, device) {
        page = run.pages.start;
        failures = if carry_run(engine, block, &run, buffer)? { 0 } else { failures + 1 };
        if failures > FAILURES {
            return Err(Stuck::Full);
        }
    }
    Ok(())
}

/// Moves as much of a run as possible: at least one folio, or else splits the block. `false`: all writes failed.
pub(crate) fn carry_run(
    engine: &Engine,
    block: &mut Block<'_>,
    run: &SlotRun,
    buffer: &mut Buffer,
) -> Result<bool, Stuck> {
    let order = block.order();
    asleep(run.hash_pages(block)).map_err(Stuck::Lost)?;
    let nr_folios = run.pages.len() >> order.exponent();
    let mut places: Vec<SlotId> = (0..nr_folios).map_while(|_| slot_elsewhere(engine, order)).collect();
    if places.is_empty() {
        match evict::split_to_fit(engine, block) {
            Washed::Again => return Ok(true),
            _ if kept::shed_all_copies(engine) => places.extend(slot_elsewhere(engine, order)),
            _ => {}
        }
    }
    let bytes = buffer.pages(run.pages.len());
    if let Err(lost) = asleep(run.read(block, bytes)) {
        places.into_iter().for_each(|slot| engine.swap().put_back_slots(slot, order));
        return Err(Stuck::Lost(lost));
    }
    if places.is_empty() {
        return keep_in_ram(engine, block, run, bytes).map(|()| true);
    }
    let any = block.put_elsewhere(run.pages.start, bytes, &places);
    Ok(any)
}

/// Keeps a run's folios, whose content was read, in RAM because no device has slots: as many as there are frames to
/// spare.
fn keep_in_ram(engine: &Engine, block: &mut Block<'_>, run: &SlotRun, bytes: &[u8]) -> Result<(), Stuck> {
    let order = block.order();
    let reserve = engine.ram().zones().counts().watermarks.high;
    for (at, part) in bytes.chunks(order.bytes()).enumerate() {
        let Some(taken) = engine.ram().try_take(engine.table(), order, reserve) else {
            let there_are_frames = engine.ram().zones().counts().available() >= reserve + order.nr_pages();
            return match at {
                0 if there_are_frames && order > Order::PAGE => {
                    // There are enough frames, but not contiguous ones.
                    block.split_to(if order > PIECE { PIECE } else { Order::PAGE });
                    Ok(())
                }
                0 => Err(Stuck::Full),
                _ => Ok(()),
            };
        };
        let index = block.index_of(run.pages.start) + at;
        let mut prepared = engine.ram().prepare(taken, order);
        prepared.bytes_mut().copy_from_slice(part);
        let frame = prepared.into_frame();
        engine.policy().note_swap_in(block, index, engine.ram());
        engine.ram().zone(frame).set_owner(frame, block.name(index));
        block.folio_mut(index).set_in_ram(frame, false);
        block.release_slot(index);
        engine.ram().put(frame, List::Laundry);
        engine.count_swap_in(order);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::arena::region::ArenaVec;
    use crate::device::DeviceSpec;
    use crate::reclaim::write_out::{self, Batch, Outgoing};

    #[test]
    fn a_slow_write_does_not_end_a_removal() {
        let arena = Arena::builder().memory(16 << 20).folio(Order::PAGE).build().unwrap();
        let mut bytes = ArenaVec::<u8>::zeroed(&arena, Order::HUGE.bytes()).unwrap();
        bytes[0] = 1;
        let engine = arena.engine();
        let mut block = engine.lock(engine.table().page_at(bytes.as_ptr() as usize).block());
        let slot = evict::wash_now(engine, &mut block, 0).unwrap();
        let mut batch = Batch::new(engine, slot, Order::PAGE);
        assert!(batch.push(engine, &mut block, 0, slot));
        drop(block);
        let old = arena.devices()[0].name.clone();
        arena.add_device(&DeviceSpec::Ram { size: 64 << 20 }).unwrap();
        std::thread::scope(|scope| {
            let removal = scope.spawn(|| arena.remove_device(&old));
            std::thread::sleep(Duration::from_secs(2)); // longer than many walks take
            assert!(!removal.is_finished(), "the removal has ended before the write");
            write_out::write_now(engine, Outgoing::Small(batch));
            removal.join().unwrap().unwrap();
        });
        assert_eq!(arena.devices().len(), 1);
    }
}
