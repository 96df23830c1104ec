//! `folioswap doctor`: reports what this system permits. Each missing feature comes with the one command that enables
//! it.

use std::io::Write;

use crate::{program, run};
use folioswap::{ExitStatus, Finding, Verdict};
use folioswap_command::exit::Failure;

/// Prints the findings. The exit status is 0 if `run` can work.
pub fn print() -> Result<u8, Failure> {
    let mut findings = folioswap::doctor();
    findings.push(library());
    let written = std::io::stdout().write_all(table(&findings).as_bytes());
    written.map_err(|error| Failure::new(format!("standard output: {error}")))?;
    let is_missing = findings.iter().any(|finding| finding.verdict == Verdict::Missing);
    Ok(if is_missing { ExitStatus::CheckFailed.code() } else { 0 })
}

/// Checks that the preload library is where `run` looks for it.
fn library() -> Finding {
    let (verdict, text, remedy) = match run::preload_library() {
        Ok(path) => match program::library_obstacle(&path) {
            None => (Verdict::Good, path.display().to_string(), None),
            Some(obstacle) => (Verdict::Missing, format!("{}: {obstacle}", path.display()), Some(REBUILD)),
        },
        Err(failure) => (Verdict::Missing, failure.message, Some(REBUILD)),
    };
    Finding { name: "library", verdict, text, remedy: remedy.map(str::to_owned) }
}

const REBUILD: &str = "cargo build --release -p folioswap-cli -p folioswap-preload";

fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let word = match finding.verdict {
            Verdict::Good => "ok",
            Verdict::Limited => "limited",
            Verdict::Missing => "MISSING",
        };
        text.push_str(&format!("{:<width$}  {word:<8} {}\n", finding.name, finding.text));
        if let Some(remedy) = &finding.remedy {
            text.push_str(&format!("{:<width$}  {:<8} to change it: {remedy}\n", "", ""));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_remedies_shown() {
        let finding = |name, remedy: Option<&str>| Finding {
            name,
            verdict: if remedy.is_some() { Verdict::Missing } else { Verdict::Good },
            text: "text".into(),
            remedy: remedy.map(str::to_owned),
        };
        let text = table(&[finding("a", None), finding("long name", Some("do it"))]);
        assert_eq!(
            text,
            "a          ok       text\nlong name  MISSING  text\n                    to change it: do it\n"
        );
    }
}
