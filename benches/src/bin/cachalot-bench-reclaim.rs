//! Measures the memory that recorded programs hold over time, with and without `reclaim:auto`: the
//! tables of `tests/results/reclaim.md`.

use cachalot_benches::machine;
use cachalot_benches::reclaim::{Pace, report};
use cachalot_benches::stitching::default_programs;
use clap::Parser;
use std::error::Error;
use std::path::PathBuf;

/// The pairs of programs that run in turn, by name.
const PAIRS: [[&str; 2]; 3] =
    [["gpt2_varlen", "llm_generate"], ["unet_buckets", "mlp_seed"], ["resnet50_amp", "lstm_varlen"]];

/// Compare the memory held over time.
#[derive(Parser)]
struct Cli {
    /// Number of runs of each program
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Time of a run in seconds
    #[arg(long, default_value_t = 20.0)]
    run: f64,
    /// Time of a pause in seconds
    #[arg(long, default_value_t = 30.0)]
    pause: f64,
    /// Interval of the calls of `maintain` in milliseconds
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    upkeep: u64,
    /// Folder of the recorded programs
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/traces"), hide_default_value = true)]
    traces: PathBuf,
    /// Folder for the tables (printed by default)
    #[arg(long)]
    output: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let ms = |seconds: f64| (seconds * 1000.0) as u64;
    let pace = Pace {
        passes: cli.passes,
        run_ms: ms(cli.run),
        pause_ms: ms(cli.pause),
        upkeep_ms: cli.upkeep,
        upkeep_us: 2000,
    };
    let traces = default_programs(&cli.traces)?;
    let at = |name: &str| traces.iter().position(|trace| trace.name == name);
    let pairs: Vec<[usize; 2]> = PAIRS.iter().filter_map(|&[one, other]| Some([at(one)?, at(other)?])).collect();
    machine::write(cli.output.as_deref(), report(&traces, &pairs, pace)?)?;
    Ok(())
}
