//! Runs worlds, each with a seed of its own, and prints the sums.

use cachalot_worlds::campaign::{CONFIGS, campaign};
use cachalot_worlds::world::Rules;
use clap::Parser;
use std::process::ExitCode;
use std::time::Duration;

/// Programs of several threads on the core, on a simulated device, with turns decided by the seed.
#[derive(Parser, Debug)]
#[command(name = "cachalot-worlds", version)]
struct Arguments {
    /// The seed of the first world; the next worlds have the next seeds.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Most worlds.
    #[arg(long, default_value_t = u64::MAX)]
    worlds: u64,
    /// Seconds after which no world begins.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Threads of a world.
    #[arg(long, default_value_t = 4)]
    threads: u32,
    /// Rounds of a world, after each of which all blocks are checked.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Let calls to the device fail now and then.
    #[arg(long)]
    faults: bool,
    /// Write every call to the standard error.
    #[arg(long)]
    tell: bool,
    /// The configuration of every world, in place of several in turn.
    #[arg(long)]
    config: Option<String>,
}

fn main() -> ExitCode {
    let Arguments { seed, worlds, seconds, threads, rounds, faults, tell, config } = Arguments::parse();
    cachalot_worlds::turns::tell_calls(tell);
    let rules = Rules { config: String::new(), threads: threads.max(1), rounds, faults, mistake: None };
    let configs = config.map_or_else(|| CONFIGS.map(String::from).to_vec(), |config| vec![config]);
    let (sum, finding) = campaign(seed, worlds, Duration::from_secs(seconds), &rules, &configs);
    println!(
        "{} worlds from seed {seed} on: {} requests and frees, {} checks, {} failing calls, digest of the last {:016x}",
        sum.worlds, sum.of.operations, sum.of.checks, sum.of.faults, sum.of.digest
    );
    match finding {
        None => ExitCode::SUCCESS,
        Some(finding) => {
            println!("FINDING in seed {}: {finding}", finding.seed);
            ExitCode::FAILURE
        }
    }
}
