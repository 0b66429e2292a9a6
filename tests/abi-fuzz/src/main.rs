//! Random programs over every function of `cachalot.h`, on the emulated driver, with every byte
//! checked.
//!
//! ```text
//! campaign ─▶ a process for each case ─▶ child: phases of operations by threads ─▶ audit, end
//!    │                                     │ worker: chooses an operation, does it
//! shrink                                   │ permitted: which status may come
//!                                          └ contents: work of streams, which writes and checks bytes
//! ```
//!
//! A case is a line of JSON and follows from its seed. Every operation has random numbers of its
//! own, so that a case without some of its operations repeats the others.

mod abi;
mod audit;
mod campaign;
mod case;
mod child;
mod contents;
mod driver;
mod faults;
mod finding;
mod history;
mod hooks;
mod permitted;
mod places;
mod shrink;
mod watch;
mod worker;
mod world;

use cachalot_emulated_driver::install::install;
use campaign::{Outcome, Setting};
use case::Case;
use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;
use std::time::Duration;

/// Random programs over every function of the C interface.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the cases of many seeds.
    Campaign {
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many seeds.
        #[arg(long, default_value_t = 98)]
        seeds: u64,
        /// Processes at a time.
        #[arg(long, default_value_t = 1)]
        jobs: u32,
        /// Seconds after which no further case begins.
        #[arg(long, default_value_t = 1 << 30)]
        seconds: u64,
        /// Prints the number of calls of each function.
        #[arg(long)]
        calls: bool,
        #[command(flatten)]
        change: Change,
    },
    /// Runs a case: a seed, or a line of JSON.
    Run {
        case: String,
        /// Prints every operation.
        #[arg(long)]
        trace: bool,
        /// Prints what happened at the address of a finding.
        #[arg(long)]
        history: bool,
        /// How often.
        #[arg(long, default_value_t = 1)]
        times: u32,
        #[command(flatten)]
        change: Change,
    },
    /// Shortens a case with a finding.
    Shrink {
        case: String,
        /// Cases run at most.
        #[arg(long, default_value_t = 400)]
        runs: u32,
        #[command(flatten)]
        change: Change,
    },
    /// Prints the names of the functions that cases call.
    Functions,
    /// Runs a case in this process.
    #[command(hide = true)]
    Child {
        case: String,
        #[arg(long)]
        trace: bool,
        #[arg(long)]
        history: bool,
    },
}

/// Changes of a case.
#[derive(Debug, Args)]
struct Change {
    /// Operations of each case.
    #[arg(long, default_value_t = 6000)]
    ops: u64,
    /// Threads, in place of one or four.
    #[arg(long)]
    threads: Option<u32>,
    /// Whether driver calls fail.
    #[arg(long)]
    faults: Option<bool>,
    /// The configuration.
    #[arg(long)]
    config: Option<String>,
    /// Whether requests can exceed the memory.
    #[arg(long)]
    memory: Option<u64>,
    /// Kinds of operations that are left out, such as `park`.
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// Seconds for a case.
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// Path of the emulated driver, in place of the built one.
    #[arg(long)]
    library: Option<String>,
}

impl Change {
    /// Returns the case of a seed, changed.
    fn case(&self, seed: u64) -> Case {
        self.apply(Case::of(seed, self.ops))
    }

    /// Reads a case: a seed, or a line of JSON.
    fn read(&self, text: &str) -> Result<Case, String> {
        match text.parse() {
            Ok(seed) => Ok(self.case(seed)),
            Err(_) => serde_json::from_str(text).map(|case| self.apply(case)).map_err(|error| error.to_string()),
        }
    }

    /// Changes a case.
    fn apply(&self, mut case: Case) -> Case {
        if let Some(threads) = self.threads {
            case.threads = threads;
            case.step = threads == 1 && !case.seed.is_multiple_of(4);
        }
        case.without.extend(self.without.iter().cloned());
        case.faults = self.faults.unwrap_or(case.faults);
        case.memory = self.memory.unwrap_or(case.memory);
        case.config = self.config.clone().unwrap_or(case.config);
        case
    }

    /// Returns the driver, which is installed beside the program if necessary, and the limit.
    fn setting(&self) -> Result<Setting, String> {
        let library = self.library.clone().map_or_else(installed, Ok)?;
        Ok(Setting { library, limit: Duration::from_secs(self.limit), trace: false, history: false })
    }
}

/// Installs the built driver beside the program.
fn installed() -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = install(&program.with_file_name("abi-fuzz-driver"), &[]).map_err(|error| error.to_string())?;
    path.into_os_string().into_string().map_err(|path| format!("{} is no UTF-8", path.display()))
}

/// Mixes three numbers into a seed.
pub(crate) fn mix(first: u64, second: u64, third: u64) -> u64 {
    let mut value = first ^ second.rotate_left(21) ^ third.rotate_left(42);
    for _ in 0..3 {
        value = (value ^ (value >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(second ^ third);
    }
    value ^ (value >> 29)
}

fn main() -> ExitCode {
    match act(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

/// Runs a command. Returns whether there was no finding.
fn act(command: Command) -> Result<bool, String> {
    match command {
        Command::Campaign { seed, seeds, jobs, seconds, calls, change } => {
            let cases: Vec<Case> = (seed..seed + seeds).map(|seed| change.case(seed)).collect();
            let totals = campaign::campaign(&cases, &change.setting()?, jobs, Duration::from_secs(seconds));
            if calls {
                totals.calls.iter().for_each(|(function, count)| println!("{count:>10} {function}"));
            }
            println!("seeds {seed}..{}: {}", seed + seeds, totals.line());
            Ok(totals.found.is_empty())
        }
        Command::Run { case, trace, history, times, change } => {
            let case = change.read(&case)?;
            let mut clean = true;
            for _ in 0..times {
                let setting = Setting { trace, history, ..change.setting()? };
                match campaign::judge(&case, &setting) {
                    Outcome::Clean(counts) => println!("{counts}"),
                    Outcome::Found(line) => {
                        println!("{line}");
                        clean = false;
                    }
                }
            }
            println!("{}", serde_json::to_string(&case).map_err(|error| error.to_string())?);
            Ok(clean)
        }
        Command::Shrink { case, runs, change } => {
            let case = change.read(&case)?;
            let Some((shorter, line)) = shrink::shrink(&case, &change.setting()?, runs) else {
                println!("no finding");
                return Ok(true);
            };
            println!("{line}\n{}", serde_json::to_string(&shorter).map_err(|error| error.to_string())?);
            Ok(false)
        }
        Command::Functions => {
            abi::counts().for_each(|(name, _)| println!("{name}"));
            Ok(true)
        }
        Command::Child { case, trace, history } => {
            if history {
                history::start();
            }
            let case: Case = serde_json::from_str(&case).map_err(|error| error.to_string())?;
            child::run(case, trace)?;
            Ok(true)
        }
    }
}
