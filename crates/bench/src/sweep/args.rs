//! The arguments of `folioswap bench sweep`.

use crate::shared::records::Data;
use crate::shared::setup::whole_words;
use crate::sweep::Plan;
use clap::{Args, ValueEnum};
use folioswap_command::args::{Folios, Paging, report_file, size};
use folioswap_command::exit::Failure;
use std::path::PathBuf;

/// What to compare with.
#[derive(Copy, Clone, Eq, PartialEq, Debug, ValueEnum)]
pub enum Versus {
    /// Kernel swap, with the same memory and disk (needs root)
    Kernel,
    /// folioswap itself, swapping in page by page what was swapped out whole
    Pages,
}

/// The parameters of the sweep.
#[derive(Args, Clone, Debug)]
pub struct Shape {
    /// Size of the array
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: u64,
    /// Number of threads, each with a share of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// How often each share is written
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// How often each share is then read and checked
    #[arg(long, value_name = "Q", default_value_t = 2)]
    pub read_rounds: u16,
    /// What is written
    #[arg(long, value_enum, default_value_t)]
    pub data: Data,
}

impl Shape {
    pub fn plan(&self) -> Plan {
        Plan {
            threads: usize::from(self.threads),
            rounds: usize::from(self.rounds),
            read_rounds: usize::from(self.read_rounds),
            data: self.data,
        }
    }

    pub fn bytes(&self) -> Result<usize, Failure> {
        whole_words(self.size, 0)
    }
}

/// Arguments of `bench sweep`.
#[derive(Args, Debug)]
pub struct SweepArgs {
    #[command(flatten)]
    pub shape: Shape,
    #[command(flatten)]
    pub paging: Paging,
    #[command(flatten)]
    pub folios: Folios,
    /// Also run the same sweep in another way, and compare
    #[arg(long)]
    pub versus: Option<Versus>,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE", value_parser = report_file())]
    pub json: Option<PathBuf>,
    /// Also draw the rounds to this file, as SVG (not with --versus pages)
    #[arg(long, value_name = "FILE", value_parser = report_file())]
    pub plot: Option<PathBuf>,
}
