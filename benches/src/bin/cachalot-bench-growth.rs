//! Measures what a step costs among more and more objects: the table of `tests/results/growth.md`.

use cachalot_benches::{growth, machine};
use clap::Parser;
use std::error::Error;
use std::path::PathBuf;

/// Explanation of the figures, for the reader.
const HOW: &str = "Nanoseconds of processor time a step, in a phase that takes the step for each object: the median of the rounds. \
A program runs its phases one after the other, so the number of objects grows in the first phase and is highest between two phases. The \
device is simulated, and nothing that is queued on it is complete, but where the step says so. *growth*: the time among the most \
objects in that among the fewest. Tables double, and the processor's caches hold fewer of many objects; where a step walked over all \
objects, the growth would be that of their number.\n";

/// Measure what a step costs among more and more objects.
#[derive(Parser)]
struct Cli {
    /// Numbers of objects
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000])]
    counts: Vec<u64>,
    /// Number of rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// File for the table (printed by default)
    #[arg(long)]
    output: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let table = growth::report(&cli.counts, cli.rounds)?;
    let text = format!("# What a step costs among many objects\n\n{}\n{HOW}\n{table}\n", machine::describe());
    match &cli.output {
        Some(path) => machine::write(path, text.trim_end())?,
        None => print!("{text}"),
    }
    Ok(())
}
