//! The options and the results of a search.

use crate::verdict::{Aim, Budget, Note, Summary};
use cachalot_core::config::Policies;
use cachalot_core::simulated::DriverCosts;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The options of a search.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own, and they combine freely")]
pub struct Options {
    /// The quantity to minimise.
    pub aim: Aim,
    /// The limits of a recommendation.
    pub budget: Budget,
    /// The largest part by which a recommendation may make a program worse.
    pub most_harm: f64,
    /// The configuration to compare with, for programs without their own baseline.
    pub baseline: String,
    /// The policies that are searched besides the core's own. Default: none.
    pub policies: Policies,
    /// The source of all random choices.
    pub seed: u64,
    /// The greatest number of candidates in each search.
    pub trials: usize,
    /// The end of the search. The run of the baseline ignores it.
    pub deadline: Option<Instant>,
    /// A flag that ends the search when another thread sets it, as a deadline does, and the run of
    /// the baseline, too.
    pub abandoned: Option<Arc<AtomicBool>>,
    /// Whether to search only `PyTorch`'s own settings.
    pub torch_only: bool,
    /// Whether to search only settings that can be changed in a living allocator, which are those
    /// of placement of the caching policy. A candidate keeps all other settings of the baseline.
    pub living: bool,
    /// Whether the device has virtual memory. Without it no segment is expandable.
    pub has_virtual_memory: bool,
    /// Whether the settings of `PyTorch` 2.11 are searched for `PyTorch`'s own allocator.
    pub has_late_keys: bool,
    /// The cost of the driver's calls.
    pub costs: DriverCosts,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            aim: Aim::Memory,
            budget: Budget::default(),
            most_harm: 0.01,
            baseline: String::new(),
            policies: Policies::NONE,
            seed: 0,
            trials: 64,
            deadline: None,
            abandoned: None,
            torch_only: false,
            living: false,
            has_virtual_memory: true,
            has_late_keys: true,
            costs: DriverCosts::h200(),
        }
    }
}

/// A candidate that was measured.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Tried {
    /// The configuration string.
    pub config: String,
    /// Whether `PyTorch`'s own allocator understands the configuration.
    pub is_of_torch: bool,
    /// The first version of `PyTorch` that takes the configuration. `None` for every supported
    /// version, and for a configuration of cachalot.
    pub needs_pytorch: Option<&'static str>,
    /// The figures of the seen programs.
    pub seen: Summary,
    /// The figures of the programs held back, if the candidate was checked.
    pub held_back: Option<Summary>,
    /// The reason why the candidate is recommended, or why it is not.
    pub note: Note,
}

/// The result of a search.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Outcome {
    /// All candidates: the baseline, then the best first.
    pub tried: Vec<Tried>,
    /// The number in `tried` of the recommendation for `PyTorch`'s own allocator. `None` if no
    /// candidate is better than the baseline.
    pub torch: Option<usize>,
    /// The number in `tried` of the recommendation for cachalot. `None` as above, and if the search
    /// was only for `PyTorch`.
    pub cachalot: Option<usize>,
    /// Whether the deadline ended the search.
    pub stopped: bool,
}
