//! Lists small changes of a crate without a failing test. A single build has all changes, and a
//! test program takes a change at run time.
//!
//! ```text
//! cachalot-mutants build cachalot-core FOLDER --then cachalot-tests:allocator
//! cachalot-mutants run FOLDER --jobs 8
//! cachalot-mutants report FOLDER
//! ```
//!
//! The folder has the test programs and the list of changes: enough for `run` on a machine without
//! a compiler.

mod build;
mod campaign;
mod change;
mod conditions;
#[cfg(test)]
mod judged;
mod places;
mod render;
mod report;
mod source;
mod switch;
mod tests;
mod values;

use campaign::Pace;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

#[derive(Parser)]
#[command(about)]
struct Options {
    #[command(subcommand)]
    step: Step,
}

#[derive(Subcommand)]
enum Step {
    /// Writes every change of a package behind a switch, and builds its test programs.
    Build {
        /// The changed package.
        package: String,
        /// The folder for the programs and the list of changes.
        folder: PathBuf,
        /// Test programs that judge after the unit tests: a package and a test target.
        #[arg(long, value_parser = program)]
        then: Vec<(String, String)>,
        /// Features that the test programs turn on, besides the package's own.
        #[arg(long)]
        feature: Vec<String>,
        /// Names of files beside the test programs that tests need, such as a library.
        #[arg(long)]
        beside: Vec<String>,
        /// The folder for the changed copy of the workspace and the build.
        #[arg(long, default_value = "target/mutants/work")]
        work: PathBuf,
    },
    /// Takes every change and runs the tests with a way to the change. Goes on after the last line
    /// of the results.
    Run {
        /// The folder with the programs and the list of changes.
        folder: PathBuf,
        /// How many changes are judged side by side.
        #[arg(long, default_value_t = 1)]
        jobs: usize,
        /// When to stop.
        #[arg(long)]
        seconds: Option<u64>,
        /// Leaves out slow tests.
        #[arg(long)]
        quick: bool,
        /// A folder that each test finds empty. Needs the right to mount.
        #[arg(long)]
        alone: Option<PathBuf>,
    },
    /// Prints the sums by file, and the changes without a failing test.
    Report {
        /// The folder with the list of changes and the results.
        folder: PathBuf,
    },
}

fn program(text: &str) -> Result<(String, String), String> {
    let (package, target) = text.split_once(':').ok_or("a program is PACKAGE:TARGET")?;
    Ok((package.into(), target.into()))
}

fn main() -> ExitCode {
    let result = match Options::parse().step {
        Step::Build { package, folder, then, feature, beside, work } => {
            build(&package, &folder, &then, &feature, &beside, &work)
        }
        Step::Run { folder, jobs, seconds, quick, alone } => {
            // The tests run in other folders.
            let folder = folder.canonicalize().unwrap_or(folder);
            let limit = seconds.map(Duration::from_secs);
            campaign::run(&folder, &Pace { jobs: jobs.max(1), limit, is_quick: quick, alone })
        }
        Step::Report { folder } => report::print(&folder),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the programs, and puts them into the folder with the list of changes.
fn build(
    package: &str,
    folder: &Path,
    then: &[(String, String)],
    features: &[String],
    beside: &[String],
    work: &Path,
) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(told)?;
    std::fs::create_dir_all(work).map_err(told)?;
    let workspace = std::env::current_dir().map_err(told)?;
    let work = work.canonicalize().map_err(told)?;
    let order = build::Order { workspace: &workspace, package, folder: &work, programs: then, features };
    let (changes, built) = build::build(&order)?;
    let mut programs = Vec::new();
    for (index, build::Built { program, runs_in }) in built.into_iter().enumerate() {
        let name = index.checked_sub(1).map_or_else(|| "unit".into(), |at| format!("{}-{}", then[at].0, then[at].1));
        std::fs::copy(&program, folder.join(&name)).map_err(told)?;
        // The program is carried to other machines.
        let _ = Command::new("strip").arg(folder.join(&name)).status();
        for file in beside {
            // Other programs may be in other folders.
            let from = program.with_file_name(file);
            if from.is_file() {
                std::fs::copy(&from, folder.join(file)).map_err(told)?;
                let _ = Command::new("strip").arg("--strip-debug").arg(folder.join(file)).status();
            }
        }
        programs.push(tests::Program { name, runs_in, alone: None });
    }
    campaign::write(&folder.join("list.json"), &campaign::List { changes, programs })
}
