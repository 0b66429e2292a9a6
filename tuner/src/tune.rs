//! Searches the policies and settings with which recorded programs need the least reserved memory,
//! or the least driver time.
//!
//! The search sees only a part of the programs. A candidate is recommended only if the held-back
//! programs confirm it: none becomes worse by more than [`Options::most_harm`], by default 1 %.
//!
//! The search is an evolution in rounds of a fixed size. All choices come from a seed, and none
//! depends on the time or on the number of threads. So the same inputs lead to the same results,
//! unless the deadline ends a search early.

pub use crate::options::{Options, Outcome, Tried};

use crate::judge::{Judge, Part};
use crate::search::{Progress, Runner, Search};
use crate::space::{Realm, Space};
use crate::split::Parts;
use cachalot_core::Config;
use std::time::Instant;

/// The setting that `PyTorch`'s documentation recommends against fragmentation. It is one of the
/// first candidates, and if it was tried, it is also run on the held-back programs, for comparison.
pub const EXPANDABLE: &str = "expandable_segments:True";

/// Searches for the best settings, on allocators of the type that `judge` uses. Calls `watch` after
/// each round, from the calling thread.
///
/// # Errors
/// A text: the baseline is not a configuration, an allocator refused a call of a program with it,
/// or the search was abandoned before it was measured.
pub fn tune(
    parts: &Parts,
    options: &Options,
    judge: Judge,
    runner: &dyn Runner,
    watch: &mut dyn FnMut(&Progress<'_>),
) -> Result<Outcome, String> {
    let baseline = Config::parse_with(options.policies, &options.baseline).map_err(|error| error.to_string())?;
    let has_limit = parts.seen.iter().chain(&parts.held).any(|part: &Part| part.limit.is_some());
    let Options { policies, has_virtual_memory, has_late_keys, .. } = *options;
    let torch = Space { realm: Realm::Torch, policies, has_limit, has_virtual_memory, has_late_keys };
    let mut search = Search::new(parts, options, judge, runner, &baseline)?;
    let whole = options.deadline;
    if options.living {
        search.run(Space { realm: Realm::Living, ..torch }, options.trials, whole, watch);
        return Ok(search.finish());
    }
    let searches = if options.torch_only { 1 } else { 2 };
    // With two searches, the first may take half of the time.
    let half = whole.map(|end| Instant::now() + end.saturating_duration_since(Instant::now()) / searches);
    search.run(torch, options.trials, half, watch);
    if !options.torch_only {
        search.run(Space { realm: Realm::All, ..torch }, options.trials, whole, watch);
    }
    search.yardstick(EXPANDABLE);
    Ok(search.finish())
}
