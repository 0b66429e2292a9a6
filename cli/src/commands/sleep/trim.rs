//! `cachalot trim`: a process gives back what it does not use.

use super::answers::name;
use super::ask::{WhomArgs, ask_each};
use crate::commands::bytes::{parse, show};
use cachalot_run::control::{Request, Status};
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Have a process give the memory that it caches back to the GPU's driver

The process is named by its id, by the name of cachalot run --name, or by its
program; with --all, so are several processes, also by their group. The process
must run under cachalot run, and as the same user. Memory that the program uses
stays as it is, also while the GPU works with it. Memory that the program has
freed goes back once all work before the free is complete. The program's later
requests take memory from the driver again.

--json prints an object with schema, processes, failures; sizes in bytes.

Exits with 0 if every process has done so, with 1 if a process refuses or does
not answer, and with 2 if there is no such process.";

const EXAMPLES: &str = "\
Examples:
  cachalot trim server
  cachalot trim 4711 --keep 2GiB
  cachalot trim --all team";

/// Have a process give the memory that it caches back to the driver
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct TrimArgs {
    /// Leave this much memory of each GPU with the process, used and cached: bytes, or a number
    /// with KiB, MiB, GiB, TiB, or kB, MB, GB, TB
    #[arg(long, value_name = "BYTES", value_parser = parse, default_value = "0")]
    keep: u64,
    #[command(flatten)]
    whom: WhomArgs,
}

/// Runs the command.
pub(crate) fn trim(args: &TrimArgs) -> ExitCode {
    ask_each(&args.whom, &Request::trim(args.keep), sentence)
}

/// Returns what a process has given back, as a sentence.
fn sentence(status: &Status) -> String {
    let (given, held) = (show(status.given_bytes.unwrap_or(0)), show(status.device_bytes));
    format!("{} gave {given} back to the driver, and holds {held} of served memory.", name(status))
}
