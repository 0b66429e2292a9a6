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

/// Explanation of the figures, for the reader.
const HOW: &str = "Recorded programs of PyTorch's default configuration run on a simulated device, each several times on the same allocator. Between \
two passes everything live is freed in the order of the requests, and nothing is released. Recorded `empty_cache` calls are left out, freed memory \
is reusable at once (at `f`): the device has done all work when it is asked. Captured graphs have their private pool. *utilisation*: peak live requested bytes / peak reserved bytes, over all \
passes. *cold*, *steady*: estimated driver time an allocation, in the first pass and in the later passes. *stall*: the most driver time of one \
request. The times are those of an H200's driver, without any waiting for the device; equal on every machine. *out of memory*: programs with a \
request that ran out of memory. [On a GPU](stitching_gpu.md), with real memory, beside PyTorch and `cudaMallocAsync`.\n";

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
    /// File for the tables (printed by default); beside a `.md` file, the picture of the frontier
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
    let mut text = report(&traces, &cli.contenders()?, extent)?;
    if cli.configs.is_empty() {
        let frontier = Frontier::measure(&traces, &BUDGETS, extent)?;
        let picture = cli.output.as_ref().filter(|path| path.extension() == Some("md".as_ref()));
        let picture = picture.map(|path| path.with_extension("svg"));
        if let Some(path) = &picture {
            let image = frontier.draw()?;
            cachalot_atomic_file::write(path, |to| to.write_all(image.as_bytes()))?;
        }
        let name = picture.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
        text = format!("{text}\n{}", frontier.section(name.as_deref()));
    }
    let text = format!("# Utilisation and driver time\n\n{}\n{HOW}\n{text}", machine::describe());
    match &cli.output {
        Some(path) => machine::write(path, text.trim_end())?,
        None => print!("{text}"),
    }
    Ok(())
}
