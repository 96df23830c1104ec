//! The `folioswap` command: run a program with a memory budget, measure, and say what the system permits.
//!
//! Every way out is an exit status of [`exit`] with one sentence on standard error, or the status of the program that was run.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod doctor;
mod exit;
mod launch;
mod outside;
mod peer;
mod program;
mod run;
mod settings;
mod stats_text;
mod supervise;
mod swap_check;

use args::Command;
use exit::Failure;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match act() {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            complain(&format!("folioswap: {failure}"));
            ExitCode::from(failure.status)
        }
    }
}

fn act() -> Result<u8, Failure> {
    let Some(cli) = args::parse()? else { return Ok(0) };
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Bench(command) => bench::run(&command),
        Command::Doctor => Ok(doctor::print()),
        Command::Exec(args) => Err(launch::exec(&args)),
        Command::Kernel(args) => run::kernel(&args),
        Command::Guard(args) => peer::guard::guard(&args),
        Command::InnerSweep(args) => bench::sweep_command::inner(&args),
        Command::InnerRandom(args) => bench::random_command::inner(&args),
    }
}

/// A line on standard error; nobody may be there to read it, and the exit status still counts.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
