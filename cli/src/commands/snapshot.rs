//! `cachalot snapshot`: writes the memory snapshot of a running program, or at the end of a
//! replayed one.

use super::settings::Settings;
use super::{BAD_INPUT, DIFFERENT};
use cachalot_replay::replay::{self, Options, ReplayError};
use cachalot_replay::snapshot;
use cachalot_replay::trace::Trace;
use cachalot_run::control::Request;
use cachalot_run::control::client::{FindError, Sleeper, find};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  cachalot snapshot tests/traces/gpt2_varlen.csv.gz -o end.pickle
  cachalot snapshot --config expandable_segments:True before.pickle -o after.pickle
  cachalot snapshot 4711 -o now.pickle";

/// Write the memory snapshot of a program under `cachalot run`, or at the end of a replayed one
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
    #[arg(
        value_name = "FILE|PID|NAME",
        help = "A record: .csv, .csv.gz, or a memory snapshot (.pickle, .json, also .gz). Or a running process: its id, its name, or its program"
    )]
    file: PathBuf,
}

impl SnapshotArgs {
    /// Returns the running process that is named. `None`: a file is named.
    fn process(&self) -> Option<Result<Sleeper, FindError>> {
        let text = self.file.to_str().filter(|text| !text.contains('/') && !self.file.exists())?;
        match find(text) {
            // A file with digits alone in its name has no extension, so it is no record.
            Err(FindError::Missing { .. }) if !text.bytes().all(|byte| byte.is_ascii_digit()) => None,
            found => Some(found),
        }
    }

    /// Lets a running process write the snapshot.
    fn ask(&self, process: &Sleeper) -> ExitCode {
        if self.settings.are_given() {
            complain!(
                "--config, --policy and --limit are for a replay, and {} is a running process",
                self.file.display()
            );
            return ExitCode::from(BAD_INPUT);
        }
        let written = std::path::absolute(&self.output).map_err(|error| super::in_file(&self.output, &error));
        let output = match written {
            Ok(output) => output,
            Err(error) => return super::end(0, &Err(error)),
        };
        match process.ask(&Request::snapshot(output)) {
            Ok(told) => {
                let line =
                    format!("the latest events of {} ({}) are in {}", told.name, told.pid, self.output.display());
                super::end(0, &super::print(line))
            }
            Err(error) => {
                complain!("{error}");
                ExitCode::from(DIFFERENT)
            }
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &SnapshotArgs) -> ExitCode {
    if let Some(process) = args.process() {
        return match process {
            Ok(process) => args.ask(&process),
            Err(error) => {
                complain!("{error}");
                ExitCode::from(BAD_INPUT)
            }
        };
    }
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
