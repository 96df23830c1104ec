//! The command line. Every value is read here into its type; whether it makes sense on this machine is checked later.

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

/// The subcommands; hidden ones are steps of others.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program with a memory budget; what does not fit goes to swap, huge pages in one piece
    Run(RunArgs),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Say what this system permits, and what would change that
    Doctor,
    /// Become a program (a step of `run`).
    #[command(name = "__exec", hide = true)]
    Exec(ExecArgs),
    /// Run a program under the kernel's swap, in a memory cgroup.
    #[command(name = "__kernel", hide = true)]
    Kernel(KernelArgs),
    /// Hold the kernel's swap up for its parent.
    #[command(name = "__guard", hide = true)]
    Guard(GuardArgs),
    /// Sweep the memory of an ordinary process.
    #[command(name = "__sweep", hide = true)]
    InnerSweep(InnerSweepArgs),
    /// Access the memory of an ordinary process at random.
    #[command(name = "__random", hide = true)]
    InnerRandom(InnerRandomArgs),
}

/// How memory is paged; the same for every subcommand that does.
#[derive(Args, Clone, Debug)]
pub struct Paging {
    /// RAM that the managed memory may take, 16M or more
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: u64,
    #[command(flatten)]
    pub means: Means,
}

/// By what memory is paged, whatever the budget.
#[derive(Args, Clone, Debug)]
pub struct Means {
    /// Swap device, repeatable: a file or block device, or RAM outside the budget, plain or compressed (SIZE is what it takes at most; what
    /// has been there longest goes on to the devices after it). Default: an unnamed file in
    /// $FOLIOSWAP_DIR, else in /var/tmp. `,prio=N` after it, 0 to 32767: higher ones are used first, equal ones in turns; those without
    /// come last, the one on the NUMA node of the memory first of these, the others as they are named. `,node=N`: it is on that node.
    /// `,force=yes`: use a block device that holds a file system or partitions, which are lost; never one that is in use
    #[arg(long, value_name = "PATH[:SIZE]|ram:SIZE|zram:SIZE[,algo=lz4|zstd][,prio=N][,node=N][,force=yes]", value_parser = parsed::<SwapDevice>)]
    pub swap: Vec<SwapDevice>,
    /// Which CPUs and devices are on which NUMA node, instead of what the kernel says: lines like `node 0 cpus 0-3` and
    /// `device /mnt/a/swap node 0`
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Who resolves faults: the faulting thread (direct) or a thread of the engine (monitor, needs permission)
    #[arg(long, value_name = "auto|direct|monitor", default_value = "auto", value_parser = parsed::<FaultMode>)]
    pub faults: FaultMode,
    /// How folios are mapped: moved, or copied where the kernel cannot move
    #[arg(long, value_name = "auto|move|copy", default_value = "auto", value_parser = parsed::<Mapping>)]
    pub mapper: Mapping,
}

impl Means {
    /// The topology that was named, if one was.
    pub fn topology(&self) -> Result<Option<Topology>, Failure> {
        let read =
            |path: &PathBuf| Topology::from_file(path).map_err(|error| Failure::new(Status::Usage, error.to_string()));
        self.topology.as_ref().map(read).transpose()
    }
}

/// What size folios have, and how they come back; where one arena is what it is about.
#[derive(Args, Clone, Debug)]
pub struct Folios {
    /// Size of a folio: a power of two from 4K to 2M, or the engine's choice for each 2 MiB
    #[arg(long, value_name = "auto|2M|64K|4K|...", default_value = "auto", value_parser = parsed::<FolioSize>)]
    pub folio: FolioSize,
    /// Whether a folio that went out in one piece comes back so: always, where the program advised huge pages, or never
    #[arg(long, value_name = "always|madvise|never", default_value = "always", value_parser = parsed::<SwapIn>)]
    pub swap_in: SwapIn,
}

/// Refuses a budget below the smallest, before anything else is done.
pub fn check_budget(memory_bytes: u64) -> Result<(), Failure> {
    if memory_bytes < folioswap::MIN_MEMORY {
        let error = folioswap::Error::BudgetTooSmall(memory_bytes);
        return Err(Failure::new(Status::BudgetTooSmall, error.to_string()));
    }
    Ok(())
}

/// A size such as 512M.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Anything that reads itself from text.
pub fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// Reads the command line; `None` when help or the version was asked for and has been printed.
pub fn parse() -> Result<Option<Cli>, Failure> {
    match Cli::try_parse() {
        Ok(cli) => Ok(Some(cli)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            error.print().map_err(|error| Failure::new(Status::Failed, format!("standard output: {error}")))?;
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // The help itself, where errors go.
            eprint!("{}", error.render());
            Err(Failure::new(Status::Usage, "a subcommand is missing"))
        }
        Err(error) => Err(Failure::new(Status::Usage, one_line(&error.to_string()))),
    }
}

/// The parser's message without its tips and usage, in one line.
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
