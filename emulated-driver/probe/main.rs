//! Asks a `libcuda.so.1` questions that the documentation leaves open. Each answer is a
//! line: `name = answer`.
//!
//! The program runs on a real driver and on the emulated driver, and the two outputs are compared
//! line by line. Lines that begin with `#` are for the reader and are not compared. Every group of
//! questions runs in a separate process, because some groups end the process. An abnormal end is
//! also reported as a line.

mod basics;
mod calls;
mod capture;
mod compare;
mod endings;
mod front;
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

/// Asks a CUDA driver the questions that the documentation leaves open.
#[derive(Parser)]
struct Arguments {
    /// The library to ask.
    #[arg(long, default_value = "libcuda.so.1")]
    library: String,
    /// File of expected answers: differences are printed at the end, with exit code 1.
    #[arg(long)]
    compare: Option<PathBuf>,
    /// File with the output of an earlier run, compared instead of asking.
    #[arg(long, requires = "compare", conflicts_with_all = ["library", "group"])]
    answers: Option<PathBuf>,
    /// Ask only the named group of questions, in the calling process.
    #[arg(long)]
    group: Option<String>,
}

/// Seconds until a group counts as stuck.
const PATIENCE_SECONDS: u32 = 180;

/// The name of a group, and the function that asks the questions.
type Group = (&'static str, fn(&Sheet));

/// All groups, in the order of the output.
const GROUPS: &[Group] = &[
    ("start", basics::start),
    ("context", basics::contexts),
    ("no_context", basics::without_context),
    ("peer", basics::peers),
    ("lookup", front::lookup),
    ("pointers", front::pointers),
    ("contexts", front::whole_contexts),
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

/// Gets the answers from the library or from a file, and returns the differences from the expected
/// answers.
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

/// Asks a group in the calling process.
fn ask(library: &str, name: &str) -> ExitCode {
    let Some((group, questions)) = GROUPS.iter().find(|(group, _)| *group == name) else {
        eprintln!("no group {name}");
        return ExitCode::FAILURE;
    };
    match Sheet::new(library, group) {
        Ok(sheet) => {
            // SAFETY: ends the process if a question hangs.
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

/// Asks every group in a separate process, prints the answers and returns all lines.
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
