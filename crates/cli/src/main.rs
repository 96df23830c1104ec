//! The `folioswap` command: runs a program with a memory budget, runs benchmarks, and reports what the system
//! permits.
//!
//! It ends as the program that it ran, or with a status of its own ([`Failure`]) and one sentence on
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
use folioswap_command::exit::{End, Failure};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    folioswap::end_on_panics(None);
    match act() {
        Ok(end) => {
            if let End::Signal(signal) = end {
                folioswap_child::end_by(signal);
            }
            ExitCode::from(end.status())
        }
        Err(failure) => {
            complain(&format!("folioswap: {failure}"));
            ExitCode::from(failure.status.code())
        }
    }
}

fn act() -> Result<End, Failure> {
    let Some(cli) = command_line::parse()? else { return Ok(End::Status(0)) };
    let status = match cli.command {
        Command::Run(args) => return run::run(&args),
        Command::Bench(command) => folioswap_bench::run(&command.0)?,
        Command::Doctor => doctor::print()?,
        Command::Step(step) => folioswap_bench::step(&step, program::find)?,
    };
    Ok(End::Status(status))
}

/// Writes a line to standard error. A failed write is ignored: the exit status still tells the result.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
