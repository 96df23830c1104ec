//! The `folioswap` command: runs a program with a memory budget, runs benchmarks, and reports what the system
//! permits.
//!
//! It ends with the status of the program that it ran, or with a status of its own ([`Failure`]) and one sentence on
//! standard error.

#![forbid(unsafe_code)]

mod command_line;
mod doctor;
mod launch;
mod outside;
mod program;
mod run;
mod sanitizer;
mod stats_text;
mod watch;

use command_line::Command;
use folioswap_command::exit::Failure;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    folioswap::end_on_panics(None);
    match act() {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            complain(&format!("folioswap: {failure}"));
            ExitCode::from(failure.status.code())
        }
    }
}

fn act() -> Result<u8, Failure> {
    let Some(cli) = command_line::parse()? else { return Ok(0) };
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Bench(command) => folioswap_bench::run(&command.0),
        Command::Doctor => Ok(doctor::print()),
        Command::Step(step) => folioswap_bench::step(&step, program::find),
    }
}

/// Writes a line to standard error. A failed write is ignored: the exit status still tells the result.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
