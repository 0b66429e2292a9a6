//! Asks a `libcuda.so.1` what its documentation leaves open, one line an answer: `name = answer`.
//!
//! The same program runs on a real driver and on the emulated one, and the two outputs are compared line by line.
//! Lines that begin with `#` are for the reader and are not compared. Every group of questions runs in a process of
//! its own, because some end the process; how one ended, if not by itself, is a line as well.

mod basics;
mod calls;
mod capture;
mod compare;
mod endings;
mod memory;
mod order;
mod pools;
mod sheet;
mod virtual_memory;

use clap::Parser;
use compare::Comparison;
use sheet::Sheet;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Asks a CUDA driver what its documentation leaves open.
#[derive(Parser)]
struct Arguments {
    /// The library to ask.
    #[arg(long, default_value = "libcuda.so.1")]
    library: String,
    /// A file of expected answers: what differs is told at the end, and the exit code is 1 then.
    #[arg(long)]
    compare: Option<PathBuf>,
    /// A file that holds the output of an earlier run, which is compared instead of asking.
    #[arg(long, requires = "compare", conflicts_with_all = ["library", "group"])]
    answers: Option<PathBuf>,
    /// Only this group of questions, in this process.
    #[arg(long)]
    group: Option<String>,
}

/// A group that takes longer is stuck.
const PATIENCE_SECONDS: u32 = 180;

/// A group of questions: its name and the function that asks them.
type Group = (&'static str, fn(&Sheet));

/// All of them, in the order of the output.
const GROUPS: &[Group] = &[
    ("start", basics::start),
    ("context", basics::contexts),
    ("no_context", basics::without_context),
    ("peer", basics::peers),
    ("memory", memory::questions),
    ("pools", pools::questions),
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
    if let Some(name) = arguments.group {
        return ask(&arguments.library, &name);
    }
    match ask_and_compare(&arguments) {
        Ok(differences) if differences.is_empty() => ExitCode::SUCCESS,
        Ok(differences) => {
            eprintln!("{}", differences.join("\n"));
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Has the answers, from the library or from a file, and returns what differs from the expected ones.
fn ask_and_compare(arguments: &Arguments) -> std::io::Result<Vec<String>> {
    let expected = arguments.compare.as_ref().map(std::fs::read_to_string).transpose()?;
    let answers = match &arguments.answers {
        Some(file) => std::fs::read_to_string(file)?,
        None => ask_all(&arguments.library)?,
    };
    let Some(expected) = expected else { return Ok(Vec::new()) };
    let comparison = Comparison::new(&expected, &answers);
    print!("{}", comparison.remarks());
    Ok(comparison.differences)
}

/// Asks one group in this process.
fn ask(library: &str, name: &str) -> ExitCode {
    let Some((group, questions)) = GROUPS.iter().find(|(group, _)| *group == name) else {
        eprintln!("no group {name}");
        return ExitCode::FAILURE;
    };
    match Sheet::new(library, group) {
        Ok(sheet) => {
            // SAFETY: ends a process that is stuck in a question.
            unsafe { libc::alarm(PATIENCE_SECONDS) };
            questions(&sheet);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{library}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Asks every group in a process of its own, prints the answers and returns them.
fn ask_all(library: &str) -> std::io::Result<String> {
    let program = std::env::current_exe()?;
    let mut all = String::new();
    for (name, _) in GROUPS {
        let mut command = Command::new(&program);
        command.args(["--library", library, "--group", name]).stderr(Stdio::inherit());
        let output = command.output()?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        let ending = match (output.status.signal(), output.status.code()) {
            (Some(signal), _) => format!("{name} ended = signal {signal}\n"),
            (None, Some(code)) if code != 0 => format!("{name} ended = code {code}\n"),
            _ => String::new(),
        };
        text += &ending;
        print!("{text}");
        all += &text;
    }
    Ok(all)
}
