//! Measures all subjects in turn, and writes the tables.

use cachalot_benches::measure::Effort;
use cachalot_benches::{machine, program, report};
use clap::{Parser, ValueEnum};
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

/// Explanation of the measurements, for the reader.
const HOW: &str = "Each allocator has many short rounds, in turn with the others, on one thread and in that thread's processor time; a \
                   number is the median of its rounds. `cachalot` and `BTreeSet` are complete: statistics, streams, pointer → block, one \
                   lock per operation (the one of the C ABI where nothing else is said), and the same decisions, which a test compares on every \
                   recorded program. The others are bare structures over one arena: no lock, no statistics, no streams, no segments, no \
                   look-up of pointers, and not the best fit; *locks and counts* takes the two locks and counts, and does nothing else.\n";

/// Measure the cost of an allocation, and write the tables.
#[derive(Parser)]
struct Cli {
    /// Measure only the given tables
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1..)]
    only: Vec<Section>,
    /// Number of rounds of each allocator
    #[arg(long, default_value_t = 51)]
    rounds: usize,
    /// Folder of the recorded programs
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/traces"), hide_default_value = true)]
    traces: PathBuf,
    /// File for the tables (printed by default)
    #[arg(long)]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    Pair,
    Crowded,
    Policies,
    Replay,
    Threads,
    Instructions,
}

impl Section {
    fn measure(self, cli: &Cli) -> Result<String, Box<dyn Error>> {
        let effort = |milliseconds| Effort { rounds: cli.rounds, round: Duration::from_millis(milliseconds) };
        Ok(match self {
            Self::Pair => report::pairs(effort(2)),
            Self::Crowded => report::crowds(effort(2)),
            Self::Policies => report::policies(effort(2)),
            // Long enough to repeat a program, with its tables in the processor's caches again.
            Self::Replay => report::replays(&program::programs(&cli.traces)?, effort(10)),
            // Long compared with the start of a thread and with the system's time slice.
            Self::Threads => report::threads(effort(40)),
            Self::Instructions => {
                report::instructions(&std::env::current_exe()?.with_file_name("cachalot-bench-instructions"))
            }
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let mut text = format!("# What an allocation costs\n\n{}\n{HOW}\n", machine::describe());
    for &section in Section::value_variants() {
        if cli.only.is_empty() || cli.only.contains(&section) {
            text += &section.measure(&cli)?;
            text.push('\n');
        }
    }
    match &cli.output {
        Some(path) => machine::write(path, text.trim_end())?,
        None => print!("{text}"),
    }
    Ok(())
}
