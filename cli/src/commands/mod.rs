//! The commands, one file each, and shared functions.

/// Prints a line on standard error. A reader that has gone, as `head` does, is no failure;
/// `eprintln!` would end the command in a panic.
macro_rules! complain {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($line)*);
    }};
}

pub(crate) mod answer;
pub(crate) mod book;
pub(crate) mod bytes;
pub(crate) mod compare;
pub(crate) mod diff;
pub(crate) mod emulate;
pub(crate) mod export;
pub(crate) mod group;
pub(crate) mod inspect;
pub(crate) mod ledger;
pub(crate) mod manual;
pub(crate) mod plan;
pub(crate) mod predict;
pub(crate) mod progress;
pub(crate) mod range;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod settings;
pub(crate) mod sleep;
pub(crate) mod snapshot;
pub(crate) mod stacks;
pub(crate) mod table;
pub(crate) mod top;
pub(crate) mod tune;
pub(crate) mod variation;
pub(crate) mod view;

use cachalot_replay::replay::ReplayError;
use cachalot_replay::trace::Trace;
use std::io::{self, Write};
use std::process::ExitCode;

/// The version of all objects of `--json`. A change that breaks readers raises the number.
pub(crate) const SCHEMA: u32 = 1;

/// Exit status for an expectation that does not hold.
pub(crate) const DIFFERENT: u8 = 1;

/// Exit status for invalid input. Equals clap's exit status for an invalid command line.
pub(crate) const BAD_INPUT: u8 = 2;

/// Returns the exit status for a failed use of a trace.
fn status_of(error: &ReplayError) -> u8 {
    match error {
        ReplayError::Refused(_) => DIFFERENT,
        ReplayError::Input(_) => BAD_INPUT,
    }
}

/// Adds the name of a file to an error.
fn in_file(file: &std::path::Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

/// Prints lines to standard output, without styles if `--color` or the terminal has no colours.
fn print(lines: impl std::fmt::Display) -> io::Result<()> {
    writeln!(anstream::stdout().lock(), "{lines}")
}

/// Prints a line on standard error for a record that starts in the middle of the program: the state
/// at the start, and the consequence.
fn announce_start(trace: &Trace, then: &str) {
    // The idle memory of a whole program is made up.
    if let Some(start) = trace.start.as_ref().filter(|_| trace.is_cut) {
        let device = if trace.name.contains('#') { format!(": device {}", trace.device) } else { String::new() };
        complain!("{}{device}: {start}; {then}", trace.file.display());
    }
    announce_remarks(trace);
}

/// Prints a line on standard error for each remark on a record: what was left out or filled in.
fn announce_remarks(trace: &Trace) {
    trace.remarks.iter().for_each(|remark| complain!("{}: {remark}", trace.file.display()));
}

/// Ends a command with `status`, or with an error if the output could not be written.
fn end(status: u8, written: &io::Result<()>) -> ExitCode {
    // A reader of the output may stop early, as `head` does, without a failure.
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        complain!("the output cannot be written: {error}");
        return ExitCode::from(BAD_INPUT);
    }
    ExitCode::from(status)
}
