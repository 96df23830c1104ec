//! The command line: the subcommands, and the messages for lines that cannot be parsed.

use crate::run::RunArgs;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use folioswap_bench::{BenchCommand, Step};
use folioswap_command::exit::{Failure, help_table};
use folioswap_command::later::Later;

/// Runs programs in less RAM than they need: swap in user space, in large folios.
#[derive(Parser, Debug)]
#[command(name = "folioswap", version, after_long_help = help_table(), max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands. Hidden ones are steps of the others.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program with a memory budget; what does not fit is swapped out, huge pages in one piece
    #[command(after_long_help = help_table())]
    Run(RunArgs),
    /// Run a benchmark
    #[command(subcommand)]
    Bench(Later<BenchCommand>),
    /// Report what this system permits, and what would change that
    Doctor,
    /// Steps of benchmarks.
    #[command(flatten)]
    Step(Step),
}

/// Parses the command line. Returns `None` if help or the version was asked for; it has been printed then.
pub fn parse() -> Result<Option<Cli>, Failure> {
    match Cli::try_parse() {
        Ok(cli) => Ok(Some(cli)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            error.print().map_err(|error| Failure::new(format!("standard output: {error}")))?;
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // The full help goes to standard error, because a missing subcommand is an error.
            eprint!("{}", error.render());
            Err(Failure::new("a subcommand is missing"))
        }
        Err(error) => Err(Failure::new(one_line(&error.to_string()))),
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
    use folioswap::{FolioSize, SwapIn};

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
