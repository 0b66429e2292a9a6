//! Compares `tune:auto` with the default and with the best static setting of each recorded program:
//! the tables of `tests/results/auto.md`.

use cachalot_benches::auto::{AutoExtent, report};
use cachalot_benches::machine;
use cachalot_benches::stitching::default_programs;
use clap::Parser;
use std::error::Error;
use std::path::PathBuf;

/// Compare settings that adjust themselves with static ones.
#[derive(Parser)]
struct Cli {
    /// Number of runs of each program
    #[arg(long, default_value_t = 6)]
    passes: usize,
    /// Most candidates of a search of the living allocator
    #[arg(long, default_value_t = 40)]
    candidates: usize,
    /// Most candidates of the search for the best static setting
    #[arg(long, default_value_t = 96)]
    static_candidates: usize,
    /// Source of all random choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Only the programs whose names contain this text, with the two that run in turn
    #[arg(long)]
    only: Option<String>,
    /// Two programs that run in turn
    #[arg(long, num_args = 2, default_values_t = ["gpt2_varlen".to_owned(), "resnet50_amp".to_owned()])]
    in_turn: Vec<String>,
    /// Folder of the recorded programs
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/traces"), hide_default_value = true)]
    traces: PathBuf,
    /// Folder for the tables (printed by default)
    #[arg(long)]
    output: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let extent = AutoExtent {
        passes: cli.passes.max(1),
        candidates: cli.candidates,
        static_candidates: cli.static_candidates,
        seed: cli.seed,
    };
    let mut traces = default_programs(&cli.traces)?;
    if let Some(only) = &cli.only {
        traces.retain(|trace| trace.name.contains(only) || cli.in_turn.contains(&trace.name));
    }
    let (tables, sentence) = report(&traces, [&cli.in_turn[0], &cli.in_turn[1]], extent)?;
    machine::write(cli.output.as_deref(), tables)?;
    println!("{sentence}");
    Ok(())
}
