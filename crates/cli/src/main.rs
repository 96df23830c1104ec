//! The `folioswap` command: runs a program with a memory budget, runs benchmarks, and reports what the system
//! permits.
//!
//! It ends with the status of the program that it ran, or with a status of its own ([`exit`]) and one sentence on
//! standard error.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod command_line;
mod doctor;
mod exit;
mod launch;
mod outside;
mod peer;
mod program;
mod run;
mod sanitizer;
mod stats_text;
mod supervise;
mod swap_check;
mod watch;

use command_line::Command;
use exit::Failure;
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
        Command::Bench(command) => bench::run(&command),
        Command::Doctor => Ok(doctor::print()),
        Command::Kernel(args) => run::kernel(&args),
        Command::Guard(args) => peer::guard::guard(&args),
        Command::InnerCalls(args) => bench::calls::inner(&args),
        Command::InnerSweep(args) => bench::sweep::command::inner(&args),
        Command::InnerRandom(args) => bench::random::command::inner(&args),
    }
}

/// Writes a line to standard error. A failed write is ignored: the exit status still tells the result.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
