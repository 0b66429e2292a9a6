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

/// Explanation of the figures, for the reader.
const HOW: &str = "Recorded programs of PyTorch's default configuration run on a simulated device, each several times on the same allocator. \
The records have no times: each run is assumed to take RUN s, spread evenly over its calls, and a pause of PAUSE s follows, in which \
nothing is requested and everything is free. `maintain` (UPKEEP ms of driver time at most) is called every INTERVAL ms. Recorded `empty_cache` calls are \
left out, freed memory is reusable at once, and the device has done all work when it is asked. The driver's calls take an H200's time. \
*peak*, *mean*, *end*: bytes held from the driver, at the highest, on average over the time, and at the end of the last pause. *driver*: \
time of all driver calls. *stall*: the most driver time of one request. *given back*: by `reclaim:auto`, over the whole time. *too early*: \
units (segments and pages) that were obtained again before giving them back was worth it. `garbage_collection_threshold` runs with the default's peak as limit: \
without a limit it does nothing. *Two programs in turn*: runs of the one program and then of the other, twice, without pauses; \
*second*: bytes held on average while the second runs.\n";

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
    /// File for the tables (printed by default)
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
    let tables = report(&traces, &pairs, pace)?;
    let how = HOW.replace("RUN", &cli.run.to_string()).replace("PAUSE", &cli.pause.to_string());
    let how = how.replace("UPKEEP", "2").replace("INTERVAL", &cli.upkeep.to_string());
    let text = format!("# Idle memory given back\n\n{}\n{how}\n{tables}", machine::describe());
    match &cli.output {
        Some(path) => machine::write(path, text.trim_end())?,
        None => print!("{text}"),
    }
    Ok(())
}
