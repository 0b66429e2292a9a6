//! `cachalot status`: where the memory of processes is.

use super::answers::{SleepLine, name, sentences, time};
use crate::commands::bytes::{grouped, show};
use crate::commands::table::{Column, Look, Table, column, extra};
use crate::commands::{BAD_INPUT, DIFFERENT, end, print};
use cachalot_run::control::Status;
use cachalot_run::control::client::{FindError, Sleeper, find, sleepers, statuses};
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Show where the memory of processes is: on the GPU, or parked on the host

Without an argument, prints a table of all processes of the user that can be
parked. With the id or the name of a process, describes its state in sentences.

state      awake, parking, parked or waking
idle       since the program's last submission of work
parked     memory on the host, or in files
device     served memory on the GPU
remains    memory that a park leaves on the GPU: contexts, modules and so on

--json prints an object with schema, processes, failures; sizes in bytes.

Exits with 1 if the named process does not answer, and with 2 if there is no
such process, otherwise with 0.";

const EXAMPLES: &str = "\
Examples:
  cachalot status
  cachalot status server
  cachalot status --json";

/// The columns of the table.
const COLUMNS: [Column; 12] = [
    column("process"),
    column("state"),
    column("idle"),
    column("parked"),
    column("device"),
    column("remains"),
    extra("group"),
    extra("parks"),
    extra("last park"),
    extra("wakes"),
    extra("last wake"),
    extra("last failure"),
];

/// Show where the memory of processes is: on the GPU, or parked on the host
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: Look,
    #[arg(value_name = "PID|NAME", help = "Only this process: its id, its name, or its program")]
    process: Option<String>,
}

/// Runs the command.
pub(crate) fn status(args: &StatusArgs) -> ExitCode {
    let asked = match asked(args.process.as_deref()) {
        Ok(asked) => asked,
        Err(error) => {
            complain!("{error}");
            return ExitCode::from(BAD_INPUT);
        }
    };
    let mut line = SleepLine::new(asked.iter().zip(statuses(&asked)));
    if args.process.is_none() {
        line.processes.retain(|told| !told.stays_awake);
    }
    // A process of many that is stopped is a line of the result.
    let status = if args.process.is_some() && !line.failures.is_empty() { DIFFERENT } else { 0 };
    line.failures.iter().for_each(|failure| complain!("{}", failure.text));
    let written = match (args.json, &line.processes[..]) {
        (true, _) => line.print(),
        (false, [told]) if args.process.is_some() => print(args.look.fold(&sentences(told), 0)),
        (false, []) if line.failures.is_empty() => print("No process of this user can be parked."),
        (false, []) => Ok(()),
        (false, all) => print(table(all).render(&args.look)),
    };
    end(status, &written)
}

/// Returns the processes to ask.
fn asked(process: Option<&str>) -> Result<Vec<Sleeper>, FindError> {
    match process {
        Some(process) => find(process).map(|sleeper| vec![sleeper]),
        None => sleepers().map_err(FindError::Folder),
    }
}

fn table(all: &[Status]) -> Table {
    let mut table = Table::new(&COLUMNS);
    for told in all {
        let remains = told.remaining.iter().fold(0_u64, |sum, rest| sum.saturating_add(rest.bytes));
        let last = |transfer: &Option<_>| transfer.map_or(String::new(), super::answers::moved);
        table.row(vec![
            name(told),
            told.state.to_string(),
            told.idle_ms.map_or(String::new(), time),
            show(told.parked_bytes),
            show(told.device_bytes),
            show(remains),
            told.group.clone().unwrap_or_default(),
            grouped(told.parks),
            last(&told.last_park),
            grouped(told.wakes),
            last(&told.last_wake),
            told.last_error.clone().unwrap_or_default(),
        ]);
    }
    table
}
