//! Asks a `libcuda.so.1` what its documentation leaves open, one line an answer: `name = answer`.
//!
//! The same program runs on a real driver and on the emulated one, and the two outputs are compared line by line.
//! Lines that begin with `#` are for the reader and are not compared. Every group of questions runs in a process of
//! its own, because some end the process; how one ended, if not by itself, is a line as well.

mod basics;
mod calls;
mod capture;
mod endings;
mod memory;
mod order;
mod sheet;
mod virtual_memory;

use clap::Parser;
use sheet::Sheet;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

/// Asks a CUDA driver what its documentation leaves open.
#[derive(Parser)]
struct Arguments {
    /// The library to ask.
    #[arg(long, default_value = "libcuda.so.1")]
    library: String,
    /// Only this group of questions, in this process.
    #[arg(long)]
    group: Option<String>,
}

/// A group of questions: its name and the function that asks them.
type Group = (&'static str, fn(&Sheet));

/// All of them, in the order of the output.
const GROUPS: &[Group] = &[
    ("start", basics::start),
    ("context", basics::contexts),
    ("no_context", basics::without_context),
    ("peer", basics::peers),
    ("memory", memory::questions),
    ("virtual", virtual_memory::questions),
    ("order", order::questions),
    ("waits", order::waits),
    ("capture", capture::questions),
    ("capture_call_global", capture::calls_global),
    ("capture_call_thread_local", capture::calls_thread_local),
    ("capture_call_relaxed", capture::calls_relaxed),
    ("capture_other_thread", capture::calls_of_another_thread),
    ("sticky_trap", endings::trap),
    ("sticky_address", endings::bad_address),
    ("fork", endings::fork),
    ("exit_before", endings::exit_before_driver),
    ("exit_after", endings::exit_after_driver),
    ("contents", memory::contents),
];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.group {
        Some(name) => ask(&arguments.library, &name),
        None => ask_all(&arguments.library),
    }
}

/// Asks one group in this process.
fn ask(library: &str, name: &str) -> ExitCode {
    let Some((group, questions)) = GROUPS.iter().find(|(group, _)| *group == name) else {
        eprintln!("no group {name}");
        return ExitCode::FAILURE;
    };
    match Sheet::new(library, group) {
        Ok(sheet) => {
            questions(&sheet);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{library}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Asks every group in a process of its own.
fn ask_all(library: &str) -> ExitCode {
    let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
    for (name, _) in GROUPS {
        let status = Command::new(&program).args(["--library", library, "--group", name]).status();
        match status.map(|status| (status.code(), status.signal())) {
            Ok((Some(0), _)) => {}
            Ok((_, Some(signal))) => println!("{name} ended = signal {signal}"),
            Ok((code, _)) => println!("{name} ended = code {}", code.unwrap_or(-1)),
            Err(why) => {
                eprintln!("{name}: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
