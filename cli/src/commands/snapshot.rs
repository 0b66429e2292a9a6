//! `cachalot snapshot`: the memory snapshot that a replayed program ends in.

use super::bytes;
use cachalot_cli::compare::policy_named;
use cachalot_cli::replay::{self, Options, ReplayError};
use cachalot_cli::snapshot;
use cachalot_cli::trace::Trace;
use cachalot_core::Config;
use cachalot_core::config::Policy;
use std::path::PathBuf;
use std::process::ExitCode;

/// What the command line says.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(
        short,
        long,
        value_name = "FILE",
        help = "The snapshot: .json, or any other name for a pickle, which torch's _memory_viz.py and pytorch.org/memory_viz open"
    )]
    output: PathBuf,
    #[arg(
        long,
        value_name = "STRING",
        value_parser = Config::parse,
        help = "The configuration in PyTorch's syntax, in the place of the record's own"
    )]
    config: Option<Config>,
    /// A policy with its defaults, in the place of the record's own configuration
    #[arg(long, value_name = "NAME", value_parser = policy_named, conflicts_with = "config")]
    policy: Option<&'static str>,
    /// The memory limit, in bytes or with KiB, MiB, GiB or TiB, in the place of the record's own
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    limit: Option<u64>,
    #[arg(value_name = "FILE", help = "A record: .csv, .csv.gz, or a memory snapshot (.pickle, .json, also .gz)")]
    file: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let config = args.policy.and_then(Policy::named).map(|policy| {
        let mut config = Config::default();
        config.set_policy(policy);
        config
    });
    let options = Options { config: args.config.clone().or(config), limit: args.limit, ..Options::default() };
    let ends = Trace::load(&args.file)
        .map_err(ReplayError::Input)
        .and_then(|traces| traces.iter().map(|trace| replay::end(trace, &options)).collect());
    match ends {
        Ok(ends) => {
            let written = snapshot::write(ends, &args.output);
            super::end(0, &written.map_err(|error| super::in_file(&args.output, &error)))
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(super::status_of(&error))
        }
    }
}
