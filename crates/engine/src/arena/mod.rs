//! The public API: an arena is a budget of RAM, swap devices, and the memory that is paged between them.

pub(crate) mod advice;
mod background;
pub(crate) mod by_address;
mod crew;
mod discard;
pub(crate) mod doctor;
pub(crate) mod fork;
pub(crate) mod heap;
pub(crate) mod inherit;
pub(crate) mod region;
pub(crate) mod run_settings;
mod setup;
pub(crate) mod tuning;
pub(crate) mod usage;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use folioswap_core::{Order, PAGE_SIZE, StatsSnapshot};
use folioswap_sys::memory;
use folioswap_sys::own_table;
use folioswap_sys::uffd::Userfaultfd;

use crate::arena::by_address::RawSpace;
use crate::arena::crew::Crew;
use crate::arena::region::Region;
pub use crate::arena::setup::choose_faults;
use crate::arena::tuning::Tuning;
use crate::block::Parts;
use crate::compact::compactd;
use crate::compact::direct::OnOwnThread;
use crate::config::error::Error;
use crate::config::fault_mode::FaultMode;
use crate::config::folio_size::FolioSize;
use crate::config::limits::{MAX_DEVICE_BYTES, MAX_DEVICES, MAX_MEMORY, MIN_MEMORY};
use crate::config::mapping::Mapping;
use crate::config::swap_in_policy::SwapIn;
use crate::device::topology::Topology;
use crate::device::{self, Opened, SwapDevice};
use crate::engine::Engine;
use crate::fault::direct;
use crate::fault::take::PATIENCE;
use crate::memory::backing::Backing;
use crate::memory::compactor::Compactor;
use crate::memory::frames::Frames;
use crate::memory::mlock;
use crate::memory::ram::Ram;
use crate::memory::selftest;
use crate::memory::table::Table;
use crate::memory::zones::Zoning;
use crate::policy::Policy;
use crate::process::shared_stats::{self, SharedCounters, StatsHome};
use crate::relocate::remove;
use crate::swap::attached::{DEVICE_SHIFT, Layout};
use crate::swap::info::{self, DeviceInfo};
use crate::swap::space::SwapSpace;

/// How long [`Arena::set_memory`] waits for folios to leave RAM.
const SHRINK_PATIENCE: Duration = Duration::from_secs(10);

/// Settings of an arena to be built.
#[must_use]
pub struct ArenaBuilder {
    memory: u64,
    locked: bool,
    devices: Vec<SwapDevice>,
    topology: Option<Topology>,
    faults: FaultMode,
    mapping: Mapping,
    may_end_soon: bool,
    folio: FolioSize,
    swap_in: SwapIn,
    tuning: Tuning,
    patience: Duration,
    device_shift: u32,
    stats: Option<&'static SharedCounters>,
}

impl ArenaBuilder {
    /// The budget: the most bytes of RAM that the arena's memory may take. At least 16 MiB. Default: 256 MiB.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Whether the budget is allocated at once and locked in RAM: the kernel neither swaps nor reclaims it, and nothing
    /// of it is given back before the arena ends. Takes 1 to 5 ms for 2 MiB. Without CAP_IPC_LOCK the process needs a
    /// limit of locked memory that covers the budget and all regions together. The engine's own
    /// records are not locked. Default: false.
    pub fn locked(mut self, locked: bool) -> Self {
        self.locked = locked;
        self
    }

    /// Adds a swap device, a [`DeviceSpec`](crate::DeviceSpec) or a [`SwapDevice`]. The latter can set a priority.
    /// Devices without one are used in the order in which they were added, except that a NUMA node prefers its own.
    /// Default: an unlinked file in [`device::default_directory`] that grows as needed.
    pub fn device(mut self, device: impl Into<SwapDevice>) -> Self {
        self.devices.push(device.into());
        self
    }

    /// Sets which CPUs and devices are on which NUMA node. Default: as the kernel reports.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// How faults are delivered. Default: [`FaultMode::Auto`].
    pub fn faults(mut self, mode: FaultMode) -> Self {
        self.faults = mode;
        self
    }

    /// How folios are mapped. Default: [`Mapping::Auto`].
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.mapping = mapping;
        self
    }

    /// Whether the program may end soon, or never need swap: then the threads for swap start when memory first runs
    /// short. Default: false.
    #[doc(hidden)]
    pub fn may_end_soon(mut self, may: bool) -> Self {
        self.may_end_soon = may;
        self
    }

    /// The size of the arena's folios: an [`Order`], or [`FolioSize::Auto`], which measures what is best for each 2 MiB
    /// of addresses. Default: auto.
    pub fn folio(mut self, size: impl Into<FolioSize>) -> Self {
        self.folio = size.into();
        self
    }

    /// Whether folios that were swapped out whole are swapped in whole. Default: [`SwapIn::Always`].
    pub fn swap_in(mut self, policy: SwapIn) -> Self {
        self.swap_in = policy;
        self
    }

    /// Settings that only benchmarks change.
    #[doc(hidden)]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Gives devices fewer slots, for tests that fill one.
    #[cfg(test)]
    pub(crate) fn device_shift(mut self, bits: u32) -> Self {
        self.device_shift = bits;
        self
    }

    /// Counts in memory that is shared with another process ([`open_shared_stats`](crate::open_shared_stats)).
    pub fn shared_stats(mut self, stats: &'static SharedCounters) -> Self {
        self.stats = Some(stats);
        self
    }

    /// How long a thread waits without any frame being freed before it looks for the cause.
    #[cfg(test)]
    pub(crate) fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Builds the arena and starts its threads.
    ///
    /// # Errors
    /// [`Error`] names what is missing and what would help.
    pub fn build(mut self) -> Result<Arena, Error> {
        self.check_budget()?;
        self.devices = self.devices.into_iter().map(device::check::with_absolute_path).collect::<Result<_, _>>()?;
        let topology = &*self.topology.get_or_insert_with(Topology::of_machine);
        let mut devices: Vec<Opened> = if self.devices.is_empty() {
            device::open_defaults(&device::default_directory())?
        } else {
            self.devices.iter().map(|wanted| device::open(wanted, topology)).collect::<Result<_, _>>()?
        };
        if let Some(throttle) = self.tuning.throttle {
            devices = devices.into_iter().map(|opened| opened.throttled(throttle)).collect();
        }
        self.build_on(devices)
    }

    pub(crate) fn build_on(self, devices: Vec<impl Into<Opened>>) -> Result<Arena, Error> {
        let devices: Vec<Opened> = devices.into_iter().map(Into::into).collect();
        if devices.len() > MAX_DEVICES {
            return Err(Error::TooManyDevices(MAX_DEVICES));
        }
        let (mode, uffd) = setup::open_userfaultfd(self.faults)?;
        self.stats.inspect(|stats| stats.count_mode(mode));
        let (locked, mapping) = (self.locked, self.choose_mapping()?);
        let (frees, wanted, waits) = (self.tuning.frees, self.devices.clone(), self.may_end_soon);
        let engine = Arc::new(self.engine(Arc::new(uffd), mapping, devices)?);
        if locked {
            mlock::populate_all(engine.ram())?;
        }
        let crew = Crew::new(Arc::clone(&engine), mode, frees)?;
        let raw = RawSpace::new(Arc::clone(&engine), mode);
        let directory = device::default_directory();
        let running = Running { engine, mode, mapping, wanted, directory, crew, pid: std::process::id().into(), raw };
        running.crew.begin()?;
        if !waits {
            running.crew.begin_all();
        }
        if mode != FaultMode::Monitor {
            direct::attach(&running.engine)?;
        }
        Ok(Arena { running: Arc::new(running) })
    }

    fn check_budget(&self) -> Result<(), Error> {
        match self.memory {
            0..MIN_MEMORY => Err(Error::BudgetTooSmall(self.memory)),
            MIN_MEMORY..=MAX_MEMORY if self.locked => mlock::check_available(self.memory),
            MIN_MEMORY..=MAX_MEMORY => Ok(()),
            _ => Err(Error::BudgetTooLarge(self.memory)),
        }
    }

    fn choose_mapping(&self) -> Result<Mapping, Error> {
        let mapping = selftest::choose(self.mapping)?;
        if self.locked && mapping == Mapping::Copy {
            let reason = selftest::self_test().moves.err();
            return Err(Error::LockNeedsMove(reason.unwrap_or_else(|| "the copy mapper was asked for".into())));
        }
        Ok(mapping)
    }

    /// Checks that the swap devices could be opened now. Leaves no trace. Returns the devices with absolute paths.
    ///
    /// # Errors
    /// What is wrong with a device, or with the default directory if there is none, and what would help.
    pub fn check_devices(&self) -> Result<Vec<SwapDevice>, Error> {
        let topology = self.topology.clone().unwrap_or_else(Topology::of_machine);
        device::check::all(&self.devices, &topology)
    }

    /// Checks in a tenth of the time of [`ArenaBuilder::build`] that it would succeed, but for swap devices and limits
    /// of addresses.
    ///
    /// # Errors
    /// As [`ArenaBuilder::build`].
    pub fn check(&self) -> Result<(), Error> {
        self.check_budget()?;
        setup::try_userfaultfd(self.faults)?;
        if self.locked || self.mapping == Mapping::Move {
            self.choose_mapping()?;
        }
        Ok(())
    }

    fn swap_space(&mut self, devices: Vec<Opened>, ram: &Ram, stats: &Arc<StatsHome>) -> SwapSpace {
        let nr_cpus = folioswap_sys::cpu::nr_cpus();
        let (most_slots, device_shift) = (MAX_DEVICE_BYTES as usize / PAGE_SIZE, self.device_shift);
        let layout =
            Layout { most_slots, device_shift, nr_cpus, rotational: self.tuning.rotational, frees: self.tuning.frees };
        let (compacts, background) = (self.tuning.compaction.is_some(), Arc::clone(ram.demand().background()));
        SwapSpace::new(devices, layout, self.topology.take(), compacts, background, Arc::clone(stats))
    }

    fn engine(mut self, uffd: Arc<Userfaultfd>, mapping: Mapping, devices: Vec<Opened>) -> Result<Engine, Error> {
        let block = Order::HUGE.bytes();
        // Addresses and records for a budget that may grow, unless they are limited (ulimit -v, -d).
        let may_grow = memory::address_limit().is_none();
        let most = if may_grow { memory::total_ram().min(MAX_MEMORY) } else { 0 };
        let most = most.min(memory::data_limit().unwrap_or(u64::MAX));
        let most_blocks = most.max(self.memory) as usize / block;
        let topology = self.topology.get_or_insert_with(Topology::of_machine);
        let zoning = Zoning::new(topology, self.memory as usize / block);
        let frames = Frames::new(most_blocks, zoning.nr_zones, self.locked)?;
        zoning.bind(&frames);
        if self.locked {
            mlock::lock_all(&frames, self.memory)?;
        }
        let mapper = setup::register(uffd, &frames, mapping)?;
        let stats = self.stats.map_or_else(|| StatsHome::Own(shared_stats::of_its_own()), StatsHome::Shared);
        let stats = Arc::new(stats);
        let backing = Backing::new(frames, mapper, Arc::clone(&stats));
        let ram = Ram::new(zoning, backing, Arc::clone(&stats), self.memory)?;
        let swap = self.swap_space(devices, &ram, &stats);
        let compactor = Compactor::new(
            ram.zones().all(),
            self.tuning.compaction,
            self.tuning.compaction_means,
            ram.demand().background(),
        );
        let policy = Policy::new(self.folio.order(), self.swap_in);
        let table = Table::new(setup::random_key()?);
        let parts = Parts::new(table, ram, swap, stats);
        Engine::new(parts, policy, compactor, Box::new(OnOwnThread), self.patience)
    }
}

/// A budget of RAM, swap devices, and the memory that is paged between them. Cheap to clone. The arena ends with the
/// last of its clones and regions.
#[derive(Clone)]
pub struct Arena {
    running: Arc<Running>,
}

struct Running {
    engine: Arc<Engine>,
    mode: FaultMode,
    mapping: Mapping,
    /// The devices as they were asked for.
    wanted: Vec<SwapDevice>,
    /// Where files lie if none was.
    directory: PathBuf,
    crew: Arc<Crew>,
    /// Whose threads these are.
    pid: AtomicU32,
    raw: RawSpace,
}

/// How much of an arena's memory is in RAM, as the kernel sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Residency {
    /// Bytes of regions and frames in RAM.
    pub resident_bytes: u64,
    /// Of these, bytes in huge pages.
    pub huge_bytes: u64,
    /// The budget in bytes.
    pub budget_bytes: u64,
}

impl Arena {
    /// A builder with default settings.
    pub fn builder() -> ArenaBuilder {
        ArenaBuilder {
            memory: 256 << 20,
            locked: false,
            devices: Vec::new(),
            topology: None,
            faults: FaultMode::Auto,
            mapping: Mapping::Auto,
            may_end_soon: false,
            folio: FolioSize::Auto,
            swap_in: SwapIn::default(),
            tuning: Tuning::default(),
            patience: PATIENCE,
            device_shift: DEVICE_SHIFT,
            stats: None,
        }
    }

    /// Maps `len` zeroed bytes. This takes addresses only; RAM and slots are taken as the memory is used.
    ///
    /// # Errors
    /// [`Error::BadLength`], or the kernel's.
    pub fn map(&self, len: usize) -> Result<Region, Error> {
        Region::new(self, len, FolioSize::Auto)
    }

    /// As [`Arena::map`], for a region with its own folio size. `Auto`: the arena's.
    ///
    /// # Errors
    /// As [`Arena::map`].
    pub fn map_with(&self, len: usize, folio: FolioSize) -> Result<Region, Error> {
        Region::new(self, len, folio)
    }

    /// Whether folios are swapped in whole.
    pub fn swap_in(&self) -> SwapIn {
        self.running.engine.policy().swap_in()
    }

    /// Changes the policy for folios that are swapped in from now on.
    pub fn set_swap_in(&self, policy: SwapIn) {
        self.running.engine.policy().set_swap_in(policy);
    }

    /// All statistics so far. Takes about 100 us, and 90 KiB for the histograms.
    pub fn stats(&self) -> StatsSnapshot {
        self.running.flush_slots();
        self.running.engine.stats().snapshot()
    }

    /// The budget in bytes.
    pub fn memory(&self) -> u64 {
        self.running.engine.ram().budget_bytes()
    }

    /// Changes the budget while running. After shrinking it, waits until the surplus has left RAM, for at most ten
    /// seconds. Folios that others hold in RAM stay until they are released.
    ///
    /// A budget beyond the RAM of the machine (and beyond the first budget) has the effect of the larger of the two.
    ///
    /// A [locked](ArenaBuilder::locked) budget can only grow. The additional memory is allocated and locked when this
    /// returns.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`]; [`Error::BudgetTooLarge`]; with a locked budget [`Error::LockedShrink`],
    /// [`Error::NoMemoryToLock`] and [`Error::LockLimit`]; the kernel's when it does not grant that much. After an
    /// error the budget is unchanged.
    pub fn set_memory(&self, bytes: u64) -> Result<(), Error> {
        if bytes < MIN_MEMORY {
            return Err(Error::BudgetTooSmall(bytes));
        }
        let engine = &self.running.engine;
        let ram = engine.ram();
        if ram.frames().is_locked() {
            return mlock::grow_locked(ram, bytes);
        }
        if bytes > MAX_MEMORY {
            return Err(Error::BudgetTooLarge(bytes));
        }
        {
            let _inside = engine.enter(); // a handler's fault might lock a zone
            ram.set_budget(bytes)?;
        }
        let excess = || {
            let _inside = engine.enter();
            ram.zones().counts().excess
        };
        let begun = Instant::now();
        while excess() > 0 && begun.elapsed() < SHRINK_PATIENCE {
            let seen = ram.frame_freed().now();
            if excess() > 0 {
                ram.frame_freed().wait_for(seen, Duration::from_millis(10));
            }
        }
        Ok(())
    }

    /// To be called before the program limits its process, or sets a seccomp filter on all threads: starts the arena's
    /// threads, and waits until they have what they need, besides calls that `folioswap_sys::own_calls` exempts.
    pub fn prepare_for_limits(&self) {
        self.running.crew.prepare_for_limits();
        let _ = own_table::keep_stderr(); // without it, messages are lost
    }

    /// To be called after the arena's rings were given up ([`folioswap_sys::uring::give_up`]): starts the threads that
    /// it needs without them.
    pub fn go_on_without_rings(&self) {
        self.running.crew.go_on_without_rings();
    }

    /// Whether the budget is locked in RAM ([`ArenaBuilder::locked`]).
    pub fn is_locked(&self) -> bool {
        self.running.engine.ram().frames().is_locked()
    }

    /// The swap devices in the order in which they are used, apart from the preferences of nodes: by priority, then in
    /// the order in which they were added.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.running.flush_slots();
        let _inside = self.running.engine.enter();
        info::all(self.running.engine.swap().devices())
    }

    /// Adds a swap device while running, a [`DeviceSpec`](crate::DeviceSpec) or a [`SwapDevice`]. Without a priority it
    /// is used after the existing devices, except on its own NUMA node.
    ///
    /// # Errors
    /// As [`ArenaBuilder::build`] for the device; [`Error::TooManyDevices`].
    pub fn add_device(&self, device: &(impl Clone + Into<SwapDevice>)) -> Result<(), Error> {
        let engine = &self.running.engine;
        let wanted = device::check::with_absolute_path(device.clone().into())?;
        engine.swap().devices().add(device::open(&wanted, engine.swap().devices().topology())?)?;
        engine.swap().slot_work().evacuate(); // a failing device may have content for which there is room now
        self.running.crew.compress();
        Ok(())
    }

    /// Removes a swap device while running, by its name in [`Arena::devices`]. Its content goes to other devices or to
    /// free RAM. Nothing is written to it from now on. Takes as long as it takes to read and write all of its content;
    /// a thread that needs a folio waits only for that folio.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`]; [`Error::SwapInUse`] when there is no room for its content elsewhere, or it cannot be
    /// read. The content then stays there, and the device is used as before, unless it is failing
    /// ([`DeviceInfo::state`]).
    pub fn remove_device(&self, name: &str) -> Result<(), Error> {
        remove::remove_device(&self.running.engine, name)
    }

    /// How faults are delivered: [`FaultMode::Direct`] or [`FaultMode::Monitor`].
    pub fn fault_mode(&self) -> FaultMode {
        self.running.mode
    }

    /// How folios are mapped: [`Mapping::Move`] or [`Mapping::Copy`].
    pub fn mapping(&self) -> Mapping {
        self.running.mapping
    }

    /// The size of folios.
    pub fn folio(&self) -> FolioSize {
        self.running.engine.policy().fixed_order().map_or(FolioSize::Auto, FolioSize::Fixed)
    }

    /// The arena's memory by address, for faces that replace a C library's memory calls.
    pub fn raw(&self) -> RawSpace {
        self.running.raw.clone()
    }

    /// Moves the small folios in RAM together to make as many whole huge pages as possible. Waits a little for busy
    /// folios. Needs free RAM to move them to. Returns whether all of RAM was scanned.
    pub fn compact(&self) -> bool {
        let engine = &self.running.engine;
        let _inside = engine.enter(); // a signal handler might touch managed memory, and wait for a fork
        compactd::compact_all(engine)
    }

    /// Evicts every folio that is not in use.
    pub fn evict_all(&self) {
        let engine = &self.running.engine;
        let in_use = {
            let _inside = engine.enter(); // a child that another thread forks finds the lock free
            engine.table().in_use()
        };
        for range in in_use {
            advice::follow(engine, range, advice::Advice::Cold);
        }
    }

    /// Asks the kernel how much is in RAM, and notes the huge pages in the statistics. Walks the page tables: about 1
    /// ms for a GiB. A folio that moves meanwhile is counted twice or not at all.
    pub fn measure(&self) -> Result<Residency, Error> {
        let scan = self.running.engine.measure().map_err(Error::system("reading the page map"))?;
        Ok(Residency { resident_bytes: scan.present_bytes, huge_bytes: scan.huge_bytes, budget_bytes: self.memory() })
    }

    #[cfg(test)]
    pub(crate) fn engine(&self) -> &Engine {
        &self.running.engine
    }

    /// Bytes in use by the engine's own records: folio table, zones, and slot records.
    pub fn metadata_bytes(&self) -> usize {
        let _inside = self.running.engine.enter();
        self.running.engine.metadata_bytes()
    }
}

impl Running {
    /// Whether this is a forked child of another kind than [`Forking::child`](fork::Forking::child) makes: it has
    /// neither the threads nor the devices, and locks that were held at the fork stay locked.
    fn is_childs(&self) -> bool {
        self.pid.load(Ordering::Relaxed) != std::process::id()
    }

    /// Frees all slots in batches, so that counts of devices are exact.
    fn flush_slots(&self) {
        if !self.is_childs() {
            self.engine.swap().flush_slots(self.engine.gate());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_childs() {
            return;
        }
        self.engine.lifecycle().stop();
        self.engine.ram().reclaim_wanted().signal();
        self.engine.reads().wake();
        self.engine.swap().relief().wake();
        direct::detach(&self.engine);
        self.crew.end();
        self.engine.swap().flush_slots(self.engine.gate());
    }
}
