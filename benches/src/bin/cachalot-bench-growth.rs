//! Measures what a step costs among more and more objects: the table of `tests/results/growth.md`.

use cachalot_benches::{growth, machine};
use clap::Parser;
use std::error::Error;
use std::path::PathBuf;

/// Measure what a step costs among more and more objects.
#[derive(Parser)]
struct Cli {
    /// Numbers of objects
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000])]
    counts: Vec<u64>,
    /// Number of rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Folder for the table (printed by default)
    #[arg(long)]
    output: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    machine::write(cli.output.as_deref(), [("steps", growth::report(&cli.counts, cli.rounds)?)])?;
    Ok(())
}
