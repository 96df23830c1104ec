//! `folioswap run`: checks everything, starts the program with the preload library, and ends as it did.
//!
//! Nothing is created before every check has passed. What is created then (counters in shared memory, swap files,
//! open devices) has no name in any file system and is freed with the processes.

use crate::launch::Launch;
use crate::stats_text::Form;
use crate::watch::{Allowed, Watch, Watched};
use crate::{complain, outside, program, stats_text};
use clap::Args;
use folioswap::device::KeptDevice;
use folioswap::{Bytes, RunSettings, SwapDevice};
use folioswap_command::args::{BUDGET_AND_SWAP, Folios, Paging, PagingOptions, REPORTS, check_budget};
use folioswap_command::exit::{End, Failure};
use folioswap_command::own_executable;
use folioswap_command::supervise::Supervisor;
use folioswap_sys::memory::total_ram;
use folioswap_sys::{control_group, own_calls};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

const PRELOAD_LIBRARY: &str = "libfolioswap_preload.so";

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub paging: Paging,
    #[command(flatten)]
    pub folios: Folios,
    /// Allocate the budget's RAM at start, locked, and keep all of it until the end
    ///
    /// Needs root, CAP_IPC_LOCK or `ulimit -l unlimited`. Each process that the program starts locks a budget of its
    /// own.
    #[arg(long, help_heading = BUDGET_AND_SWAP)]
    pub lock: bool,
    /// Manage all memory from the start, also while it fits into the budget
    #[arg(long, help_heading = BUDGET_AND_SWAP)]
    pub eager: bool,
    /// At the end, print what was swapped, how long faults took and how much was resident
    ///
    /// It goes to standard error, as lines or as one JSON object in one line.
    #[arg(
        long, value_name = "text|json", num_args = 0..=1, require_equals = true, default_missing_value = "text",
        hide_possible_values = true, help_heading = REPORTS
    )]
    pub stats: Option<Form>,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, num_args = 1.., value_name = "PROGRAM ARGS")]
    pub program: Vec<OsString>,
}

/// Runs the program under folioswap.
pub fn run(args: &RunArgs) -> Result<End, Failure> {
    check_budget(args.paging.memory)?;
    let file = program::find(&args.program[0])?;
    if own_calls::is_filtered() && !own_calls::survives_start().unwrap_or(false) {
        return Err(Failure::new(
            "a seccomp filter ends processes that make the calls of folioswap; start `folioswap run` outside of the \
             sandbox, or start the sandbox inside of `folioswap run`",
        ));
    }
    let mut swap = args.paging.options.check_swap()?;
    if args.lock {
        folioswap::check_lock(args.paging.memory)?;
    }
    check_modes(&args.paging.options, args.lock)?;
    let faults = folioswap::choose_faults(args.paging.options.faults)?;
    let preload = preload_library()?;
    note_lack_of_ram(args.paging.memory);
    let obstacle = program::obstacle(&file);
    if let Some(obstacle) = obstacle {
        complain(&format!("folioswap: note: the memory of '{}' is not paged: {obstacle}", file.display()));
    }
    let mut supervisor = Supervisor::new()?; // before any thread, which would take signals
    let counters = stats_text::Counters::create()?;
    let kept = keep_open(&mut swap)?;
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let topology = args.paging.options.topology.as_ref().map(absolute);
    let settings = RunSettings {
        memory_bytes: args.paging.memory,
        faults: args.paging.options.faults,
        mapping: args.paging.options.mapper,
        folio: args.folios.folio,
        swap_in: args.folios.swap_in,
        lock: args.lock,
        eager: args.eager,
        own_calls: own_calls::draw_address().unwrap_or_default(),
        stats: Some(counters.place().clone()),
        topology,
        swap,
    };
    let library = (obstacle != Some(program::OTHER_LIBRARY)).then(|| preload.clone());
    let launch = Launch { file, argv: &args.program, library, settings: settings.encode() };
    let begin = Instant::now();
    let allowed = Allowed { memory_bytes: args.paging.memory, in_ram_bytes: outside::in_ram(&settings.swap) };
    let mut watch = None;
    let end = supervisor.run(&mut launch.command(), |child| {
        counters.answer();
        let watched = Watched::new(child.id(), &preload, allowed);
        watch = Some(Watch::start(watched, folioswap::open_shared_stats(counters.place()).ok(), complain));
    })?;
    drop(watch);
    supervisor.release(); // what follows may take long
    kept.iter().for_each(KeptDevice::wipe);
    let outside = counters.outside(&settings.swap, obstacle);
    if let Some(form) = args.stats {
        complain(&counters.describe(form, args.paging.memory, begin.elapsed(), &outside, &faults));
    }
    if args.stats != Some(Form::Json)
        && let Some(complaint) = outside.complaint(args.paging.memory)
    {
        complain(&format!("folioswap: note: {complaint}"));
    }
    Ok(counters.end(end))
}

/// Says if the budget is more RAM than there is.
fn note_lack_of_ram(budget_bytes: u64) {
    let (permitted_bytes, total_bytes) = (control_group::memory_limit(), total_ram());
    let (there_are_bytes, who) = match permitted_bytes < total_bytes {
        true => (permitted_bytes, "a memory cgroup permits"),
        false => (total_bytes, "the machine has"),
    };
    if there_are_bytes < budget_bytes {
        complain(&format!(
            "folioswap: note: {who} {} of RAM, less than the budget: the kernel swaps or kills beyond that; \
             --memory 80% takes 80% of that",
            Bytes(there_are_bytes)
        ));
    }
}

/// Opens the devices that the processes of a program cannot each open for themselves, and records in `swap` how to find
/// them. They stay open as long as the returned values live.
fn keep_open(swap: &mut [SwapDevice]) -> Result<Vec<KeptDevice>, Failure> {
    let mut kept = Vec::new();
    for device in swap {
        if let Some(opened) = KeptDevice::open(device)? {
            device.shared = Some(opened.share());
            kept.push(opened);
        }
    }
    Ok(kept)
}

/// Checks that faults can be delivered and folios mapped in the requested modes.
fn check_modes(options: &PagingOptions, lock: bool) -> Result<(), Failure> {
    let builder = folioswap::Arena::builder()
        .memory(folioswap::MIN_MEMORY)
        .device(folioswap::DeviceSpec::Ram { size: 2 << 20 })
        .faults(options.faults)
        .mapping(options.mapper)
        .locked(lock);
    // Where addresses or locks are limited, a small arena with the same modes fails as the program's own arena would.
    let is_limited = folioswap_sys::memory::address_limit().is_some();
    let checked = if lock || is_limited { builder.build().map(drop) } else { builder.check() };
    checked.map_err(Failure::from)
}

/// Finds the preload library: `$FOLIOSWAP_PRELOAD`, next to the command, or in ../lib/folioswap.
pub fn preload_library() -> Result<PathBuf, Failure> {
    let missing = |text: String| Failure::new(text);
    let found = if let Some(named) = std::env::var_os("FOLIOSWAP_PRELOAD") {
        let path = std::path::absolute(&named).unwrap_or_else(|_| PathBuf::from(&named));
        if !path.is_file() {
            return Err(missing(format!("FOLIOSWAP_PRELOAD names {}, which is not a file", path.display())));
        }
        path
    } else {
        let own = own_executable()?;
        let directory = own.parent().unwrap_or(Path::new("/"));
        let candidates = [directory.join(PRELOAD_LIBRARY), directory.join("../lib/folioswap").join(PRELOAD_LIBRARY)];
        candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| {
            missing(format!(
                "{PRELOAD_LIBRARY} is neither in {0} nor in {0}/../lib/folioswap; build it with \
                 `cargo build --release -p folioswap-preload` or name it in FOLIOSWAP_PRELOAD",
                directory.display()
            ))
        })?
    };
    if found.as_os_str().as_encoded_bytes().iter().any(|byte| *byte == b':' || byte.is_ascii_whitespace()) {
        return Err(missing(format!(
            "the loader cannot take a library from a path with spaces or colons: {}; install it elsewhere",
            found.display()
        )));
    }
    Ok(found)
}
