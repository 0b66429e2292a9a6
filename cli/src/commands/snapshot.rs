//! `cachalot snapshot`: writes the memory snapshot at the end of a replayed program.

use super::settings::Settings;
use cachalot_replay::replay::{self, Options, ReplayError};
use cachalot_replay::snapshot;
use cachalot_replay::trace::Trace;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  cachalot snapshot tests/traces/gpt2_varlen.csv.gz -o end.pickle
  cachalot snapshot --config expandable_segments:True before.pickle -o after.pickle";

/// Write the memory snapshot at the end of a replayed program, for torch's tools
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SnapshotArgs {
    #[arg(
        short,
        long,
        value_name = "FILE",
        help = "The snapshot: .json, or any other name for a pickle, which torch's _memory_viz.py and pytorch.org/memory_viz open"
    )]
    output: PathBuf,
    #[command(flatten)]
    settings: Settings,
    #[arg(value_name = "FILE", help = "A record: .csv, .csv.gz, or a memory snapshot (.pickle, .json, also .gz)")]
    file: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &SnapshotArgs) -> ExitCode {
    let Settings { limit, .. } = args.settings;
    let options = Options { config: args.settings.config(), limit, ..Options::default() };
    let end = |trace: &Trace| {
        super::announce_start(trace, "the events are those from there on");
        replay::end(trace, &options)
    };
    let ends = Trace::load(&args.file).map_err(ReplayError::Input).and_then(|traces| traces.iter().map(end).collect());
    match ends {
        Ok(ends) => {
            let written = snapshot::write(ends, &args.output);
            super::end(0, &written.map_err(|error| super::in_file(&args.output, &error)))
        }
        Err(error) => {
            complain!("{error}");
            ExitCode::from(super::status_of(&error))
        }
    }
}
