//! Measures all subjects in turn, and writes the tables.

use cachalot_benches::measure::Effort;
use cachalot_benches::{machine, program, report};
use cachalot_tests::figures::Table;
use clap::{Parser, ValueEnum};
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

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
    /// Folder for the tables (printed by default)
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
    /// Returns the tables, by name.
    fn measure(self, cli: &Cli) -> Result<Vec<(&'static str, Table)>, Box<dyn Error>> {
        let effort = |milliseconds| Effort { rounds: cli.rounds, round: Duration::from_millis(milliseconds) };
        Ok(match self {
            Self::Pair => vec![("pair", report::pairs(effort(2)))],
            Self::Crowded => vec![("crowded", report::crowds(effort(2)))],
            Self::Policies => ["policies", "policies_crowded"].into_iter().zip(report::policies(effort(2))).collect(),
            // Long enough to repeat a program, with its tables in the processor's caches again.
            Self::Replay => vec![("replay", report::replays(&program::programs(&cli.traces)?, effort(10)))],
            // Long compared with the start of a thread and with the system's time slice.
            Self::Threads => ["threads", "threads_processor"].into_iter().zip(report::threads(effort(40))).collect(),
            Self::Instructions => {
                let program = std::env::current_exe()?.with_file_name("cachalot-bench-instructions");
                vec![("instructions", report::instructions(&program))]
            }
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let mut tables = Vec::new();
    for &section in Section::value_variants() {
        if cli.only.is_empty() || cli.only.contains(&section) {
            tables.extend(section.measure(&cli)?);
        }
    }
    machine::write(cli.output.as_deref(), tables)?;
    Ok(())
}
