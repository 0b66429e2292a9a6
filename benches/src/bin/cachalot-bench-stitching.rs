//! Compares the utilisation and the driver's estimated time of policies on recorded programs: the
//! tables of `tests/results/stitching.md`.

use cachalot_benches::frontier::{BUDGETS, Frontier};
use cachalot_benches::machine;
use cachalot_benches::stitching::{POLICIES, StitchingExtent, default_programs, report};
use cachalot_replay::compare::Contender;
use clap::Parser;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

/// Compare the utilisation and the driver time of policies.
#[derive(Parser)]
struct Cli {
    /// Configuration of a policy, any number of times; the default are caching, expandable segments
    /// and stitched, and the frontier of `compact`
    #[arg(long = "config", value_name = "STRING")]
    configs: Vec<String>,
    /// Number of runs of each program
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Hard limit as a multiple of the peak live bytes, for one of the variations
    #[arg(long, default_value_t = 1.05)]
    limit_factor: f64,
    /// Folder of the recorded programs
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/traces"), hide_default_value = true)]
    traces: PathBuf,
    /// Folder for the tables (printed by default); beside the folder, the picture of the frontier
    /// is written as `.svg`
    #[arg(long)]
    output: Option<PathBuf>,
}

impl Cli {
    /// Parses the configurations. A default policy that this version does not have is left out.
    fn contenders(&self) -> Result<Vec<Contender>, String> {
        if !self.configs.is_empty() {
            return self.configs.iter().map(|text| Contender::parse(text)).collect();
        }
        let known =
            |text: &&str| Contender::parse(text).inspect_err(|error| eprintln!("`{text}` is left out: {error}")).ok();
        Ok(POLICIES.iter().filter_map(known).collect())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let extent = StitchingExtent { passes: cli.passes, limit_factor: cli.limit_factor };
    let traces = default_programs(&cli.traces)?;
    let mut tables = report(&traces, &cli.contenders()?, extent)?;
    if cli.configs.is_empty() {
        let frontier = Frontier::measure(&traces, &BUDGETS, extent)?;
        if let Some(folder) = &cli.output {
            let image = frontier.draw()?;
            cachalot_atomic_file::write(&folder.with_extension("svg"), |to| to.write_all(image.as_bytes()))?;
        }
        tables.push(("frontier", frontier.table()));
    }
    machine::write(cli.output.as_deref(), tables)?;
    Ok(())
}
