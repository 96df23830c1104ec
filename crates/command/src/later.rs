//! Options and subcommands that are set up only when they are asked for. Those of the benchmarks would take longer than
//! all that a `run` needs.

use clap::{ArgMatches, Args, FromArgMatches, Subcommand};

/// The options of a subcommand, or its own subcommands.
#[derive(Debug)]
pub struct Later<T>(pub T);

impl<T: Args> Args for Later<T> {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.defer(T::augment_args)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        T::augment_args_for_update(command)
    }
}

impl<T: Subcommand> Subcommand for Later<T> {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        command.defer(T::augment_subcommands)
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        T::augment_subcommands_for_update(command)
    }

    fn has_subcommand(name: &str) -> bool {
        T::has_subcommand(name)
    }
}

impl<T: FromArgMatches> FromArgMatches for Later<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(Later)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}
