//! Description of the machine and the run, and the file of the results.

use cachalot_tests::figures;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

/// Writes a report in Markdown, and the figures of its tables as CSV next to the report.
///
/// # Errors
/// The errors of the file system.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    cachalot_atomic_file::write(path, |to| writeln!(to, "{text}"))?;
    let Some(figures) = figures::csv(text) else { return Ok(()) };
    // A device or a stream has no file next to it.
    if path.metadata()?.is_file() {
        cachalot_atomic_file::write(&path.with_extension("csv"), |to| to.write_all(figures.as_bytes()))?;
    }
    Ok(())
}

/// Describes the machine and the run, as lines of Markdown.
pub fn describe() -> String {
    let commit = match run("git", &["rev-parse", "--short", "HEAD"]) {
        Some(commit) if run("git", &["status", "--porcelain", "core"]).is_some() => {
            format!("{commit}, with changes in `core`")
        }
        Some(commit) => commit,
        None => "none".to_owned(),
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut command = std::env::args();
    let program = command.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let command: Vec<String> = command.collect();
    let lines = [
        ("machine", format!("{}, {cores} cores", processor())),
        ("system", system()),
        ("compiler", run("rustc", &["--version"]).unwrap_or_default()),
        ("date", run("date", &["-u", "+%Y-%m-%d"]).unwrap_or_default()),
        ("commit", commit),
        ("command", format!("`cargo run --release -p cachalot-benches --bin {program} {}`", command.join(" "))),
        ("other load", format!("{} programs ready to run, over the last minute", load())),
    ];
    lines.map(|(what, is)| format!("* {what}: {is}\n")).concat().replace(" `\n", "`\n")
}

/// Runs a command, and returns the output, or `None` if the command fails or prints no text.
fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Returns the name and version of the kernel, without the suffix of the distribution.
fn system() -> String {
    let kernel = run("uname", &["-sr"]).unwrap_or_default();
    kernel.split('-').next().unwrap_or_default().to_owned()
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    // Virtual machines hide the model's name; family and model number identify the generation.
    let numbers = field("cpu family").zip(field("model\t"));
    let numbers = numbers.map_or(String::new(), |(family, model)| format!(" (family {family}, model {model})"));
    field("model name").unwrap_or_else(|| "unknown processor".to_owned()) + &numbers
}

fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().next().unwrap_or("unknown").to_owned()
}
