//! Searches policies and settings for the least reserved memory, or the least driver time, of
//! recorded programs.
//!
//! The search sees a part of the programs. A candidate is recommended only if the rest, the
//! programs held back, confirm it: no program becomes worse by more than 1 %, or the part that
//! [`Options::most_harm`] allows.
//!
//! The search is an evolution in rounds of fixed size. All choices come from a seed, and no choice
//! depends on time or on the number of threads, so equal inputs lead to equal results unless the
//! deadline ends a search early.

mod answer;
mod judge;
mod search;
mod space;
mod split;
#[cfg(test)]
mod tests;
mod verdict;

pub use answer::{Answer, Better, MOST_EVENTS, Stuck, answer, answer_of, stuck};
pub use judge::{Cost, Part};
pub use search::Progress;
pub use split::{HoldBack, Parts};
pub use verdict::{Note, Summary};

use cachalot_core::Config;
use cachalot_core::simulated::DriverCosts;
use search::Search;
use serde::Serialize;
use space::{Candidate, Space};
use std::time::Instant;

/// The setting that `PyTorch`'s documentation recommends against fragmentation. Always measured, for
/// comparison.
pub const EXPANDABLE: &str = "expandable_segments:True";

/// What to make small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// The peak of reserved memory.
    Memory,
    /// The time in the driver.
    Time,
}

/// The bounds of a recommendation. Both hold for every program.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Budget {
    /// Most driver time of a request on average, in microseconds, with [`Aim::Memory`]. The first 10
    /// ms of a program do not count. A program that needs more with the baseline may keep what it
    /// needs.
    pub us_per_request: f64,
    /// Most reserved memory as a multiple of the baseline's, with [`Aim::Time`].
    pub memory_factor: f64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { us_per_request: 10.0, memory_factor: 1.0 }
    }
}

/// How to search.
#[derive(Debug)]
pub struct Options {
    /// What to make small.
    pub aim: Aim,
    /// The bounds of a recommendation.
    pub budget: Budget,
    /// The largest part by which a recommendation may make a program worse.
    pub most_harm: f64,
    /// The configuration that gains are measured against.
    pub baseline: String,
    /// Source of all random choices.
    pub seed: u64,
    /// Most candidates of each search.
    pub trials: usize,
    /// End of the search. The baseline is always measured to its end.
    pub deadline: Option<Instant>,
    /// Whether to search `PyTorch`'s own settings only.
    pub torch_only: bool,
    /// Cost of the driver's calls.
    pub costs: DriverCosts,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            aim: Aim::Memory,
            budget: Budget::default(),
            most_harm: 0.01,
            baseline: String::new(),
            seed: 0,
            trials: 64,
            deadline: None,
            torch_only: false,
            costs: DriverCosts::h200(),
        }
    }
}

/// A candidate with its figures.
#[derive(Debug, Clone, Serialize)]
pub struct Tried {
    /// The configuration string.
    pub config: String,
    /// Whether `PyTorch`'s own allocator understands the configuration.
    pub is_of_torch: bool,
    /// Figures of the programs that the search sees.
    pub seen: Summary,
    /// Figures of the programs held back, if the candidate was checked.
    pub held_back: Option<Summary>,
    /// Why the candidate is or is not recommended.
    pub note: Note,
}

/// The result of a search.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// All candidates: the baseline, then the best first.
    pub tried: Vec<Tried>,
    /// Number in `tried` of the recommendation for `PyTorch`'s own allocator. `None` if no candidate
    /// is better than the baseline.
    pub torch: Option<usize>,
    /// Number in `tried` of the recommendation for cachalot. `None` as above, and if the search
    /// was for `PyTorch` only.
    pub cachalot: Option<usize>,
    /// Whether the deadline ended the search.
    pub stopped: bool,
}

/// Searches for the best settings. Calls `watch` after each round, from the calling thread.
///
/// # Errors
/// The baseline is no configuration, or an allocator refused a call of a program with the baseline.
pub fn tune(parts: &Parts, options: &Options, watch: &mut dyn FnMut(&Progress<'_>)) -> Result<Outcome, String> {
    let baseline = Config::parse(&options.baseline).map_err(|error| error.to_string())?;
    let has_limit = parts.seen.iter().chain(&parts.held).any(|part| part.limit.is_some());
    let torch = Space { is_torch: true, has_limit };
    let mut search = Search::new(parts, options, &baseline)?;
    let searches = if options.torch_only { 1 } else { 2 };
    // With two searches, the first may take half of the time.
    let whole = options.deadline;
    let half = whole.map(|end| Instant::now() + end.saturating_duration_since(Instant::now()) / searches);
    search.run(torch, options.trials, half, watch);
    if !options.torch_only {
        search.run(Space { is_torch: false, ..torch }, options.trials, whole, watch);
    }
    search.yardstick(EXPANDABLE);
    Ok(search.finish())
}
