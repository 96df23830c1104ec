//! The command line. Each value is parsed into its type here. Whether it makes sense on this machine is checked
//! later.

use crate::bench::BenchCommand;
use crate::bench::random_command::InnerRandomArgs;
use crate::bench::sweep_command::InnerSweepArgs;
use crate::exit::{Failure, Status, help_table};
use crate::launch::ExecArgs;
use crate::peer::guard::GuardArgs;
use crate::run::{KernelArgs, RunArgs};
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use folioswap::{FaultMode, FolioSize, Mapping, SwapDevice, SwapIn, Topology, parse_size};
use std::path::PathBuf;

/// Runs programs in less RAM than they need: swap in user space, in large folios.
#[derive(Parser, Debug)]
#[command(name = "folioswap", version, after_help = help_table(), max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands. Hidden ones are steps of the others.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program with a memory budget; what does not fit is swapped out, huge pages in one piece
    Run(RunArgs),
    /// Run a benchmark
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Report what this system permits, and what would change that
    Doctor,
    /// Becomes a program (a step of `run`).
    #[command(name = "__exec", hide = true)]
    Exec(ExecArgs),
    /// Runs a program under kernel swap, in a memory cgroup.
    #[command(name = "__kernel", hide = true)]
    Kernel(KernelArgs),
    /// Sets up kernel swap for its parent and undoes it when the parent ends.
    #[command(name = "__guard", hide = true)]
    Guard(GuardArgs),
    /// Sweeps the memory of an ordinary process.
    #[command(name = "__sweep", hide = true)]
    InnerSweep(InnerSweepArgs),
    /// Accesses the memory of an ordinary process at random.
    #[command(name = "__random", hide = true)]
    InnerRandom(InnerRandomArgs),
}

/// Budget and paging options that all paging subcommands share.
#[derive(Args, Clone, Debug)]
pub struct Paging {
    /// RAM that the managed memory may use, at least 16M
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: u64,
    #[command(flatten)]
    pub options: PagingOptions,
}

/// Paging options that do not depend on the budget.
#[derive(Args, Clone, Debug)]
pub struct PagingOptions {
    /// Swap device, repeatable: a file, a block device, or RAM outside the budget (`ram` plain, `zram` compressed).
    /// For RAM, SIZE is the most memory that it takes; compressed RAM writes its oldest folios back to the devices
    /// after it. Default: an unnamed file in $FOLIOSWAP_DIR, or in /var/tmp if that is not set. Options follow after
    /// commas. `prio=N` (0 to 32767): devices of higher priority are used first, devices of equal priority take
    /// turns. Devices without a priority come last: first the one on the NUMA node of the memory, then the others in
    /// the order given. `node=N`: the NUMA node of the device. `force=yes`: use a block device that holds a file
    /// system or partitions and destroy them; a device in use is always refused
    #[arg(long, value_name = "PATH[:SIZE]|ram:SIZE|zram:SIZE[,algo=lz4|zstd][,prio=N][,node=N][,force=yes]", value_parser = parsed::<SwapDevice>)]
    pub swap: Vec<SwapDevice>,
    /// File that states which CPUs and devices belong to which NUMA node, overriding the kernel. Lines like
    /// `node 0 cpus 0-3` and `device /mnt/a/swap node 0`
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Which thread resolves faults: the faulting thread (direct), or a thread of the engine (monitor, needs
    /// permission)
    #[arg(long, value_name = "auto|direct|monitor", default_value = "auto", value_parser = parsed::<FaultMode>)]
    pub faults: FaultMode,
    /// How folios are mapped: moved, or copied where the kernel cannot move them
    #[arg(long, value_name = "auto|move|copy", default_value = "auto", value_parser = parsed::<Mapping>)]
    pub mapper: Mapping,
}

impl PagingOptions {
    /// The topology given on the command line, if any.
    pub fn topology(&self) -> Result<Option<Topology>, Failure> {
        let read =
            |path: &PathBuf| Topology::from_file(path).map_err(|error| Failure::new(Status::Usage, error.to_string()));
        self.topology.as_ref().map(read).transpose()
    }
}

/// Folio size and swap-in policy of one arena.
#[derive(Args, Clone, Debug)]
pub struct Folios {
    /// Folio size: a power of two from 4K to 2M, or `auto`, where the engine chooses for each 2 MiB
    #[arg(long, value_name = "auto|2M|64K|4K|...", default_value = "auto", value_parser = parsed::<FolioSize>)]
    pub folio: FolioSize,
    /// Whether a folio that was swapped out whole is swapped in whole: always, only where the program advised huge
    /// pages, or never
    #[arg(long, value_name = "always|madvise|never", default_value = "always", value_parser = parsed::<SwapIn>)]
    pub swap_in: SwapIn,
}

/// Rejects a budget below the minimum before any other work is done.
pub fn check_budget(memory_bytes: u64) -> Result<(), Failure> {
    if memory_bytes < folioswap::MIN_MEMORY {
        let error = folioswap::Error::BudgetTooSmall(memory_bytes);
        return Err(Failure::new(Status::BudgetTooSmall, error.to_string()));
    }
    Ok(())
}

/// Parses a size such as 512M.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Parses any type that implements `FromStr`.
pub fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// Parses the command line. Returns `None` if help or the version was asked for; it has been printed then.
pub fn parse() -> Result<Option<Cli>, Failure> {
    match Cli::try_parse() {
        Ok(cli) => Ok(Some(cli)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            error.print().map_err(|error| Failure::new(Status::Failed, format!("standard output: {error}")))?;
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // The full help goes to standard error, because a missing subcommand is an error.
            eprint!("{}", error.render());
            Err(Failure::new(Status::Usage, "a subcommand is missing"))
        }
        Err(error) => Err(Failure::new(Status::Usage, one_line(&error.to_string()))),
    }
}

/// Reduces the parser's message to one line, without tips and usage.
fn one_line(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let first: Vec<&str> = message.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    format!("{}; see --help", first.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn errors_take_one_line() {
        let line = ["folioswap", "run", "--memory", "12Q", "--", "true"];
        let error = Cli::try_parse_from(line).expect_err("no size");
        let message = one_line(&error.to_string());
        assert!(message.contains("12Q") && message.contains("--memory") && !message.contains('\n'), "{message}");
        let error = Cli::try_parse_from(["folioswap", "run", "--", "true"]).expect_err("no budget");
        let message = one_line(&error.to_string());
        assert!(message.contains("--memory") && !message.contains('\n'), "{message}");
    }

    #[test]
    fn the_program_keeps_its_own_options() {
        let line = ["folioswap", "run", "--memory", "1G", "--stats=json", "--", "ls", "--stats", "-l"];
        let cli = Cli::try_parse_from(line).expect("a line");
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.program, ["ls", "--stats", "-l"]);
        assert_eq!(run.paging.memory, 1 << 30);
        assert_eq!((run.folios.folio, run.folios.swap_in), (FolioSize::Auto, SwapIn::Always));
    }
}
