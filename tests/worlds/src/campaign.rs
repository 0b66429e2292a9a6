//! Worlds in turn, with a list of configurations, until a finding or the end of the time.

use crate::world::{Finding, Outcome, Rules, run};
use std::time::{Duration, Instant};

/// The configurations in turn.
pub const CONFIGS: [&str; 14] = [
    "",
    "decisions:improved",
    "expandable_segments:True",
    "decisions:improved,expandable_segments:True",
    "policy:stitched",
    "policy:stitched,slack:0",
    "reclaim:auto,decisions:improved",
    "garbage_collection_threshold:0.6,max_split_size_mb:64",
    "policy:stitched,completed_pages_only:True",
    "policy:planned",
    "guard:all",
    "guard:sampled:7,zero:on_free",
    "expandable_segments:True,spill:0.5",
    "policy:stitched,per_process_memory_fraction:0.4,spill:0.5",
];

/// What a campaign has done.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum {
    /// Number of worlds.
    pub worlds: u64,
    /// Sums over the worlds, and the digest of the last world.
    pub of: Outcome,
}

/// Runs the worlds from `seed` on until `worlds` have ended, `time` is over, or a world has a
/// finding. Returns the sums until then, and the finding.
pub fn campaign(
    seed: u64,
    worlds: u64,
    time: Duration,
    rules: &Rules,
    configs: &[String],
) -> (Sum, Option<Box<Finding>>) {
    let (begin, mut sum) = (Instant::now(), Sum::default());
    for seed in seed..seed.saturating_add(worlds) {
        if begin.elapsed() > time {
            break;
        }
        let config = configs[(seed % configs.len() as u64) as usize].clone();
        match run(seed, &Rules { config, ..rules.clone() }) {
            Ok(outcome) => {
                sum.worlds += 1;
                sum.of.operations += outcome.operations;
                sum.of.checks += outcome.checks;
                sum.of.faults += outcome.faults;
                sum.of.digest = outcome.digest;
            }
            Err(finding) => return (sum, Some(finding)),
        }
    }
    (sum, None)
}
