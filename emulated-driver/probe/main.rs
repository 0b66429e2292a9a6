//! Asks a `libcuda.so.1` questions that the documentation leaves open. Each answer is a
//! line: `name = answer`.
//!
//! The program runs on a real driver and on the emulated driver, and the two outputs are compared
//! line by line. Lines that start with `#` are for the reader and are not compared. Every group of
//! questions runs in a separate process, because some groups end the process. An abnormal end is
//! also reported as a line.

#![allow(clippy::borrow_as_ptr, reason = "results are passed as in C")]

mod basics;
mod calls;
mod capture;
mod compare;
mod dead;
mod endings;
mod front;
mod gates;
mod limits;
mod lives;
mod marks;
mod memory;
mod order;
mod places;
mod pools;
mod sheet;
mod virtual_memory;

use clap::Parser;
use compare::Comparison;
use sheet::Sheet;
use std::io::Write;
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
    /// Ask only this question of a group whose questions are asked apart.
    #[arg(long, requires = "group")]
    question: Option<String>,
}

/// Seconds until a group counts as stuck.
const PATIENCE_SECONDS: u32 = 180;

/// Seconds until a question that is asked apart counts as stuck.
const PATIENCE_APART_SECONDS: u32 = 30;

/// Questions that are asked apart at the same time.
const AT_ONCE: usize = 6;

/// The name of a group, and the way of its questions.
type Group = (&'static str, Way);

/// The way in which the questions of a group are asked.
enum Way {
    /// In one process, by a function that writes the answers.
    Together(fn(&Sheet)),
    /// Each in a separate process, because some drivers crash there. The answer is a text, or the
    /// signal.
    Apart(fn() -> Vec<Question>),
}
use Way::{Apart, Together};

/// A question that is asked in its own process. An empty answer comes later, at the exit of the
/// process.
pub(crate) struct Question {
    name: String,
    ask: Box<dyn Fn(&Sheet) -> String>,
}

impl Question {
    /// Creates a question.
    pub(crate) fn new(name: impl Into<String>, ask: impl Fn(&Sheet) -> String + 'static) -> Self {
        Self { name: name.into(), ask: Box::new(ask) }
    }
}

/// All groups, in the order of the output.
const GROUPS: &[Group] = &[
    ("start", Together(basics::start)),
    ("context", Together(basics::contexts)),
    ("no_context", Together(basics::without_context)),
    ("peer", Together(basics::peers)),
    ("lookup", Together(front::lookup)),
    ("pointers", Together(front::pointers)),
    ("contexts", Together(front::whole_contexts)),
    ("memory", Together(memory::questions)),
    ("pools", Together(pools::questions)),
    ("virtual", Together(virtual_memory::questions)),
    ("order", Together(order::questions)),
    ("waits", Together(order::waits)),
    ("capture", Together(capture::questions)),
    ("capture_call_global", Together(capture::calls_global)),
    ("capture_call_thread_local", Together(capture::calls_thread_local)),
    ("capture_call_relaxed", Together(capture::calls_relaxed)),
    ("capture_other_thread", Together(capture::calls_of_another_thread)),
    ("sticky_trap", Together(endings::trap)),
    ("sticky_address", Together(endings::bad_address)),
    ("fork", Together(endings::fork)),
    ("exit_before", Together(endings::exit_before_driver)),
    ("exit_after", Together(endings::exit_after_driver)),
    ("capture_other_thread_local", Together(capture::calls_of_another_thread_local)),
    ("capture_other_relaxed", Together(capture::calls_of_another_relaxed)),
    ("capture_other_exchanged", Together(capture::calls_of_an_exchanged_thread)),
    ("capture_contexts", Together(capture::contexts)),
    ("gated", Together(gates::questions)),
    ("marks", Together(marks::questions)),
    ("freed", Together(places::freed)),
    ("held", Together(places::held)),
    ("places", Together(places::places)),
    ("addresses", Together(places::addresses)),
    ("attributes", Together(places::attributes)),
    ("many", Together(limits::questions)),
    ("end_destroy", Together(lives::destroy)),
    ("end_detach", Together(lives::detach)),
    ("end_reset", Together(lives::reset)),
    ("end_release", Together(lives::release)),
    ("destroyed", Apart(dead::destroyed)),
    ("ended", Apart(dead::ended)),
    ("exit_late", Apart(dead::at_exit)),
    ("contents", Together(memory::contents)),
];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(name) = arguments.group {
        return ask(&arguments.library, &name, arguments.question.as_deref());
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

/// Asks a group, or one question of a group, in the calling process.
fn ask(library: &str, name: &str, question: Option<&str>) -> ExitCode {
    let Some((group, way)) = GROUPS.iter().find(|(group, _)| *group == name) else {
        eprintln!("no group {name}");
        return ExitCode::FAILURE;
    };
    let sheet = match Sheet::new(library, group) {
        Ok(sheet) => sheet,
        Err(why) => {
            eprintln!("{library}: {why}");
            return ExitCode::FAILURE;
        }
    };
    match (way, question) {
        (Together(questions), _) => {
            // SAFETY: ends the process if a question hangs.
            unsafe { libc::alarm(PATIENCE_SECONDS) };
            questions(&sheet);
            ExitCode::SUCCESS
        }
        (Apart(questions), Some(name)) => ask_one(&sheet, questions(), name),
        (Apart(questions), None) => {
            let names: Vec<String> = questions().into_iter().map(|question| question.name).collect();
            println!("{}", names.join("\n"));
            ExitCode::SUCCESS
        }
    }
}

/// Asks one question. The process ends at once after the answer, unless the answer comes at the
/// exit.
fn ask_one(sheet: &Sheet, questions: Vec<Question>, name: &str) -> ExitCode {
    let Some(question) = questions.into_iter().find(|question| question.name == name) else {
        eprintln!("no question {name}");
        return ExitCode::FAILURE;
    };
    // SAFETY: ends the process if the question hangs.
    unsafe { libc::alarm(PATIENCE_APART_SECONDS) };
    let answer = (question.ask)(sheet);
    if !answer.is_empty() {
        sheet.line(name, answer);
        std::io::stdout().flush().expect("standard output");
        // SAFETY: the answer is written, and the driver may be beyond a clean end.
        unsafe { libc::_exit(0) };
    }
    ExitCode::SUCCESS
}

/// Asks every group in a separate process, prints the answers and returns all lines.
fn ask_all(library: &str) -> std::io::Result<String> {
    let mut all = String::new();
    for (name, way) in GROUPS {
        let text = match way {
            Together(_) => run(library, name, None)?,
            Apart(questions) => {
                let names: Vec<String> = questions().into_iter().map(|question| question.name).collect();
                run_apart(library, name, &names)?
            }
        };
        print!("{text}");
        std::io::stdout().flush()?;
        all += &text;
    }
    Ok(all)
}

/// Asks questions in separate processes, some at once, and returns the lines in order.
fn run_apart(library: &str, group: &str, names: &[String]) -> std::io::Result<String> {
    let mut all = String::new();
    for some in names.chunks(AT_ONCE) {
        let texts: std::io::Result<Vec<String>> = std::thread::scope(|scope| {
            let asked: Vec<_> = some.iter().map(|name| scope.spawn(move || run(library, group, Some(name)))).collect();
            asked.into_iter().map(|answer| answer.join().expect("joined")).collect()
        });
        all += &texts?.concat();
    }
    Ok(all)
}

/// Asks a group or a question in a separate process. Returns the lines, the last for an abnormal
/// end.
fn run(library: &str, name: &str, question: Option<&str>) -> std::io::Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--library", library, "--group", name]).stderr(Stdio::inherit());
    command.args(question.iter().flat_map(|question| ["--question", question]));
    let output = command.output()?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    let what = match question {
        None => "ended",
        Some(question) if text.is_empty() => question,
        Some(_) => "ended after an answer",
    };
    let end = match (output.status.signal(), output.status.code()) {
        (Some(signal), _) => format!("{name} {what} = signal {signal}\n"),
        (None, Some(code)) if code != 0 => format!("{name} {what} = code {code}\n"),
        _ => String::new(),
    };
    text.push_str(&end);
    Ok(text)
}
