//! Takes frames for a fault, which waits until it has some: free ones, those of clean folios, or frames from direct
//! reclaim. It gives up its block's lock while it waits: the folios that can be reclaimed may all be of such blocks.
//!
//! A fault that waits by turns leaves reclaim to the threads for it, because that may wait for a device. It reclaims
//! itself where there is no such thread, and while a thread forks: then those wait for the fault.

use std::mem::discriminant;
use std::time::{Duration, Instant};

use folioswap_core::{FolioId, Miss, Order, PIECE, Phase, Shortage, State, Taken};
use folioswap_sys::{maps, said};

use crate::block::Block;
use crate::config::size::Bytes;
use crate::engine::Engine;
use crate::process::cpu::current_cpu;
use crate::process::fatal;
use crate::process::stopwatch::Stopwatch;
use crate::process::turns::Waits;
use crate::swap::info;

/// How long a thread waits without any frame being freed before it looks for the reason.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How long a thread waits for the reclaim threads to start compressing before it does so itself, and how long at most
/// for them to finish.
const COMPRESSING: Duration = Duration::from_millis(1);
const MOST_COMPRESSING: Duration = Duration::from_millis(20);

/// How long a fault waits for frames before it looks what to do next.
const MOST_ASLEEP: Duration = Duration::from_millis(2);

/// The same, if it leaves reclaim to others: longer than a write takes.
const MOST_RECLAIMING: Duration = Duration::from_millis(20);

/// A fault's block was changed by others while the fault waited for frames. The fault is to look at it again.
#[derive(Debug)]
pub struct Changed;

/// Takes frames for a folio of this order, for a fault of a page that is not in RAM. Reclaims directly if there are
/// none, and ends the program if none can be had. `None`: no contiguous frames can be had now, and smaller folios
/// are to be taken instead.
///
/// # Errors
/// [`Changed`]: nothing was taken.
pub(crate) async fn take_frames(
    engine: &Engine,
    order: Order,
    block: &mut Block<'_>,
    page: usize,
    watch: &mut Stopwatch,
) -> Result<Option<Taken>, Changed> {
    let ram = engine.ram();
    let mut shortage = Shortage::new(order);
    loop {
        shortage.attempt(ram.frame_freed().now());
        if let Some(taken) = ram.try_take(engine.table(), order, 0) {
            return Ok(Some(taken));
        }
        if ram.give_stock_back() {
            continue;
        }
        match shortage.missed(ram.zones(), Instant::now(), engine.patience().limit()) {
            Miss::Late => {}
            Miss::Scattered => {
                watch.long_part(Phase::Frame);
                let compacted = if order == Order::HUGE { engine.direct().compact(engine) } else { None };
                watch.lap(Phase::Reclaim);
                return Ok(compacted);
            }
            Miss::Short { is_first, is_long } => {
                engine.stats().direct_reclaims.add(is_first.into());
                if is_long {
                    wait_for_devices_or_end(engine, shortage.freed());
                }
                watch.long_part(Phase::Frame);
                let reclaimed = reclaim(engine, order, block, page, shortage.freed()).await?;
                watch.lap(Phase::Reclaim);
                if !reclaimed {
                    if order == Order::HUGE && ram.zones().counts().small.in_use() > 0 {
                        return Ok(None); // small folios use the frames
                    }
                    ram.zones().keep_whole(0); // nothing else is left
                    wait_unlocked(engine, order, block, page, shortage.freed(), MOST_ASLEEP).await?;
                }
            }
        }
    }
}

/// Reclaims frames, or leaves that to the threads for it and waits. `freed`: the count of freed frames when there were
/// none. `false`: nothing was gained.
async fn reclaim(
    engine: &Engine,
    order: Order,
    block: &mut Block<'_>,
    page: usize,
    freed: u32,
) -> Result<bool, Changed> {
    let forks = || engine.gate().is_closed();
    match block.waits() {
        Waits::Asleep => Ok(await_compressed(engine, freed) || engine.direct().reclaim(engine, order)),
        Waits::ByTurns(_) if forks() || engine.ram().demand().lacks_reclaim() => {
            Ok(engine.direct().reclaim(engine, order))
        }
        Waits::ByTurns(_) => {
            let _awaited = engine.ram().demand().await_frames(order);
            let gained = wait_unlocked(engine, order, block, page, freed, MOST_RECLAIMING).await?;
            let is_idle = || info::describe_in_flight(engine.swap().devices()).is_none();
            Ok(gained || forks() || is_idle() && engine.direct().reclaim(engine, order))
        }
    }
}

/// Waits for freed frames for a folio, for `most` at most, with the block unlocked. `freed`: their count when there
/// were none. `false`: none was freed. By turns, also the beginning of a fork ends the wait.
async fn wait_unlocked(
    engine: &Engine,
    order: Order,
    block: &mut Block<'_>,
    page: usize,
    freed: u32,
    most: Duration,
) -> Result<bool, Changed> {
    let seen = |block: &Block<'_>| {
        let state = discriminant(&block.state(block.index_of(page)));
        let sealed = (block.is_sealed(page), block.sealed_order());
        (block.order(), state, sealed, block.pinned, engine.table().is_open(block.id()))
    };
    let (before, end) = (seen(block), Instant::now() + most);
    let frames = engine.ram().frame_freed();
    let is_closed = engine.gate().is_closed();
    let is_over = || {
        let has_changed = frames.now() != freed || engine.gate().is_closed() != is_closed;
        (has_changed || Instant::now() > end).then_some(())
    };
    let waits = block.waits();
    let wait = async {
        // The clean folios may all be of this very block.
        if !engine.ram().evict_standby(engine.table(), order) {
            waits.until(|| frames.wait_for(freed, most), is_over).await;
        }
    };
    block.pause(wait).await;
    if seen(block) == before { Ok(frames.now() != freed) } else { Err(Changed) }
}

/// Leaves compression to the reclaim threads, and waits for the first frame that they free. `false`: no device
/// compresses, no thread is compressing now, or it takes too long. While another thread forks, the reclaim threads
/// wait for threads that are in a fault, as this one is.
fn await_compressed(engine: &Engine, freed: u32) -> bool {
    if !engine.swap().devices().compresses() {
        return false;
    }
    engine.ram().reclaim_wanted().signal();
    let begun = Instant::now();
    loop {
        engine.ram().frame_freed().wait_for(freed, COMPRESSING);
        if engine.ram().frame_freed().now() != freed {
            return true;
        }
        if !engine.swap().is_compressing() || begun.elapsed() > MOST_COMPRESSING {
            return false;
        }
    }
}

/// Handles a long wait without a freed frame; `freed` is the count of `frame_freed`, unchanged for that long. Waits
/// for devices with I/O in flight as long as they take (an NVMe disk takes 30 s to report that it is stuck), and
/// says that once. Otherwise ends the program, unless copies can be given up.
fn wait_for_devices_or_end(engine: &Engine, freed: u32) {
    let Some(devices) = info::describe_in_flight(engine.swap().devices()) else {
        return if !engine.direct().shed_copies(engine) {
            give_up(engine)
        };
    };
    if engine.patience().begin_stall(freed) {
        let waited = engine.patience().limit().as_secs();
        fatal::say(&format!("no memory was freed for {waited} s: waiting for {devices}"));
    }
}

/// Bytes of mapped folios, but for those whose blocks are locked.
fn mapped_bytes(engine: &Engine) -> u64 {
    let is_mapped = |folio: FolioId| {
        let block = engine.try_lock(folio.block());
        block.is_some_and(|block| matches!(block.state(block.index_of(folio.page_in_block())), State::Resident(_)))
    };
    let mapped = engine.ram().zones().all_folios().filter(|&(_, folio, _)| is_mapped(folio));
    mapped.map(|(_, _, order)| order.bytes() as u64).sum()
}

/// Ends the program: it needs a frame, and none can be had.
fn give_up(engine: &Engine) -> ! {
    let [memory, mapped] = [engine.ram().budget_bytes(), mapped_bytes(engine)].map(Bytes);
    let in_use = format!("all {memory} of RAM in use ({mapped} of it mapped)");
    match engine.swap().allocate(current_cpu(), Order::PAGE) {
        None => fatal::die(&format!(
            "out of memory: {} and {in_use}; give more --memory, or more or larger --swap",
            info::describe_full(engine.swap().devices())
        )),
        Some(_) => {
            let waited = engine.patience().limit().as_secs();
            let help = too_many_mappings().unwrap_or_else(|| "give more --memory, or more or larger --swap".into());
            fatal::die(&format!("out of memory: {in_use}, and none could be freed for {waited} s; {help}"))
        }
    }
}

/// What to say if the process has nearly as many mappings as it may have: read-only memory leaves RAM by a mapping of
/// its own.
fn too_many_mappings() -> Option<String> {
    const NEEDED: usize = 64;
    let most: usize = said::read("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    let nr_mappings = maps::count().ok()?;
    (nr_mappings + NEEDED > most)
        .then(|| format!("it has {nr_mappings} mappings, and {most} are permitted: raise vm.max_map_count"))
}

/// Takes frames for the block's folio that holds a page and is not in RAM. Splits the block until
/// contiguous frames are found. Returns the folio's index after that.
///
/// # Errors
/// As [`take_frames`].
pub(super) async fn supply(
    engine: &Engine,
    block: &mut Block<'_>,
    page: usize,
    watch: &mut Stopwatch,
) -> Result<(usize, Taken), Changed> {
    loop {
        let order = block.order();
        if let Some(taken) = take_frames(engine, order, block, page, watch).await? {
            return Ok((block.index_of(page), taken));
        }
        engine.stats().swpin_fallback.add(order, 1);
        if order == Order::HUGE {
            engine.compactor().want_whole();
        }
        block.split_to(if order > PIECE { PIECE } else { Order::PAGE });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::arena::region::ArenaVec;
    use crate::config::fault_mode::FaultMode;
    use crate::device::DeviceSpec;
    use folioswap_core::PAGE_SIZE;

    /// With folios of one size only, free frames are never in pieces too small for one. No folio is split, whatever
    /// races there are between threads that take frames and the thread that frees them.
    #[test]
    fn folios_of_one_size_are_never_split_for_want_of_frames() {
        for order in [Order::new(2).unwrap(), PIECE, Order::HUGE] {
            let device = DeviceSpec::Ram { size: 96 << 20 };
            let builder = Arena::builder().memory(22 << 20).faults(FaultMode::Direct);
            let arena = builder.device(device).folio(order).build().unwrap();
            let mut bytes = ArenaVec::<u8>::zeroed(&arena, 48 << 20).unwrap();
            for round in 0..3 {
                std::thread::scope(|scope| {
                    for part in bytes.chunks_mut(24 << 20) {
                        let add = |byte: &mut u8| *byte = byte.wrapping_add(1);
                        scope.spawn(move || part.iter_mut().step_by(PAGE_SIZE).for_each(add));
                    }
                });
                assert!(bytes.iter().step_by(PAGE_SIZE).all(|&byte| byte == round + 1));
            }
            let stats = arena.engine().stats().snapshot();
            let by_order = |name| stats.by_order().find(|(known, _)| *known == name).unwrap().1;
            let swapped_in = by_order("swpin");
            assert_eq!((by_order("swpin_fallback"), by_order("split")), ([0; 10], [0; 10]), "{order}: {swapped_in:?}");
            let of_order = swapped_in[usize::from(order.exponent())];
            assert!(of_order > 0 && of_order == swapped_in.iter().sum::<u64>(), "{order}: {swapped_in:?}");
        }
    }
}
