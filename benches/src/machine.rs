//! Description of the machine and the run, and the files of the results.

use cachalot_tests::figures::Table;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

/// Writes tables into a folder as CSV, by name, with the head of their page. Without a folder,
/// prints them.
///
/// # Errors
/// The errors of the file system.
pub fn write<'a>(folder: Option<&Path>, tables: impl IntoIterator<Item = (&'a str, Table)>) -> io::Result<()> {
    for (name, table) in std::iter::once(("head", describe())).chain(tables) {
        let Some(folder) = folder else {
            println!("{name}:\n\n{table}");
            continue;
        };
        fs::create_dir_all(folder)?;
        let file = folder.join(name).with_extension("csv");
        cachalot_atomic_file::write(&file, |to| to.write_all(table.csv().as_bytes()))?;
    }
    Ok(())
}

/// Describes the machine and the run: the head of a page.
fn describe() -> Table {
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
    let command = ["--bin".to_owned(), program.to_owned(), "--".to_owned()].into_iter().chain(command);
    let command = command.collect::<Vec<_>>().join(" ");
    let mut head = Table::list();
    head.add_row(["machine".to_owned(), format!("{}, {cores} cores", processor())]);
    head.add_row(["system".to_owned(), system()]);
    head.add_row(["compiler".to_owned(), run("rustc", &["--version"]).unwrap_or_default()]);
    head.add_row(["date".to_owned(), run("date", &["-u", "+%Y-%m-%d"]).unwrap_or_default()]);
    head.add_row(["commit".to_owned(), commit]);
    head.add_row(["command".to_owned(), format!("`cargo run --release -p cachalot-benches {command}`")]);
    head.add_row(["other load".to_owned(), format!("{} programs ready to run, over the last minute", load())]);
    head
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
