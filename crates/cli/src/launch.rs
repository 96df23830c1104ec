//! `folioswap __exec`: the last step before the program, in the process that becomes it.
//!
//! This crate has no unsafe code and cannot run code between fork and exec. This process does that work instead: it
//! sets its parent-death signal and enters the cgroup. LD_PRELOAD is set only here, so that this step itself does not
//! load the library.

use crate::exit::Failure;
use crate::program::own_executable;
use crate::sanitizer;
use clap::Args;
use folioswap::{ExitStatus, RunSettings};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments of the hidden step.
#[derive(Args, Debug)]
pub struct ExecArgs {
    /// Parent process; this process is killed when it ends.
    #[arg(long)]
    pub parent: i32,
    /// Directory of the cgroup to enter.
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Library to put first in LD_PRELOAD.
    #[arg(long)]
    pub preload: Option<PathBuf>,
    /// Value of the settings variable.
    #[arg(long)]
    pub settings: Option<OsString>,
    /// File to execute.
    #[arg(long)]
    pub file: PathBuf,
    /// argv, including argument zero.
    #[arg(last = true, required = true, num_args = 1..)]
    pub argv: Vec<OsString>,
}

impl ExecArgs {
    /// The command that starts this step as a child of the calling process.
    pub fn command(&self) -> Result<Command, Failure> {
        let mut command = Command::new(own_executable()?);
        command.arg("__exec").arg("--parent").arg(self.parent.to_string());
        for (name, value) in [("--cgroup", &self.cgroup), ("--preload", &self.preload)] {
            if let Some(value) = value {
                command.arg(name).arg(value);
            }
        }
        if let Some(settings) = &self.settings {
            command.arg("--settings").arg(settings);
        }
        command.arg("--file").arg(&self.file).arg("--").args(&self.argv);
        Ok(command)
    }
}

/// Executes the program. Returns only on failure.
pub fn exec(args: &ExecArgs) -> Failure {
    if let Err(failure) = prepare(args) {
        return failure;
    }
    let mut command = Command::new(&args.file);
    command.arg0(&args.argv[0]).args(&args.argv[1..]);
    if let Some(preload) = &args.preload {
        let mut list = preload_list(preload, std::env::var_os("LD_PRELOAD").as_deref());
        if let Some(sanitizer) = sanitizer::needed_by(&args.file) {
            // The library takes it away again, for what the program starts.
            command.env(IN_FRONT, &sanitizer);
            list = preload_list(Path::new(&sanitizer), Some(&list));
        }
        command.env("LD_PRELOAD", list);
    }
    if let Some(settings) = &args.settings {
        command.env(RunSettings::VARIABLE, settings);
    }
    let error = command.exec();
    let status = match error.kind() {
        std::io::ErrorKind::NotFound => ExitStatus::NotFound,
        _ => ExitStatus::NotExecutable,
    };
    Failure::of(status, format!("program '{}' could not be executed: {error}", args.file.display()))
}

fn prepare(args: &ExecArgs) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::new(format!("prctl(PR_SET_PDEATHSIG) failed: {error}")))?;
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(args.parent) {
        return Err(Failure::new("the folioswap command ended before the program began"));
    }
    if let Some(cgroup) = &args.cgroup {
        crate::peer::cgroup::enter(cgroup)
            .map_err(|message| Failure::new(format!("the memory cgroup was not entered: {message}")))?;
    }
    Ok(())
}

/// Tells the library what precedes it in LD_PRELOAD.
const IN_FRONT: &str = "FOLIOSWAP_IN_FRONT";

/// Puts a library before those that are preloaded.
fn preload_list(library: &Path, existing: Option<&OsStr>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
        list.push(":");
        list.push(existing);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preload_keeps_what_was_there() {
        assert_eq!(preload_list(Path::new("/a.so"), None), "/a.so");
        assert_eq!(preload_list(Path::new("/a.so"), Some(OsStr::new(""))), "/a.so");
        assert_eq!(preload_list(Path::new("/a.so"), Some(OsStr::new("/b.so"))), "/a.so:/b.so");
    }
}
