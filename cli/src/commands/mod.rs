//! One file for each command, and what they share.

pub(crate) mod bytes;
pub(crate) mod compare;
pub(crate) mod inspect;
pub(crate) mod manual;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod replay;
pub(crate) mod settings;
pub(crate) mod snapshot;
pub(crate) mod table;
pub(crate) mod variation;

use cachalot_replay::replay::ReplayError;
use std::io::{self, Write};
use std::process::ExitCode;

/// The exit status when what was to be shown does not hold.
pub(crate) const DIFFERENT: u8 = 1;

/// The exit status for input that cannot be used; clap exits with the same for a wrong command line.
pub(crate) const BAD_INPUT: u8 = 2;

/// The exit status for what a trace could not be used for.
fn status_of(error: &ReplayError) -> u8 {
    match error {
        ReplayError::Refused(_) => DIFFERENT,
        ReplayError::Input(_) => BAD_INPUT,
    }
}

/// A failure with a file, with its name.
fn in_file(file: &std::path::Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

/// Prints lines to standard output, without their styles where `--color` or the terminal wants none.
fn print(lines: impl std::fmt::Display) -> io::Result<()> {
    writeln!(anstream::stdout().lock(), "{lines}")
}

/// Says on standard error that a record begins in the middle of its program, if it does: what was there before, and what is done
/// about it.
fn announce_start(file: &std::path::Path, start: Option<&str>, then: &str) {
    if let Some(start) = start {
        eprintln!("{}: {start}; {then}", file.display());
    }
}

/// Ends a command with `status`, unless its output could not be written.
fn end(status: u8, written: &io::Result<()>) -> ExitCode {
    // The reader of the output may stop reading early, as `head` does. That is no failure.
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        eprintln!("the output cannot be written: {error}");
        return ExitCode::from(BAD_INPUT);
    }
    ExitCode::from(status)
}
