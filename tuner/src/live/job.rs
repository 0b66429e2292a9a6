//! The work of a tuner without the allocator: a search with a window, or the check of a trial.

use super::window::Seen;
use super::{Limits, TAKEN_BACK};
use crate::judge::{Cost, Judge, Part};
use crate::search::InTurn;
use crate::split::{HoldBack, Parts};
use crate::tune::{Options, tune};
use crate::verdict::{Aim, Budget, is_over_budget};
use cachalot_core::Config;
use cachalot_core::simulated::DriverCosts;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The least saving in the whole window for which settings are switched, as a part of reserved
/// memory.
const LEAST_GAIN: f64 = 0.02;

/// The part of the predicted gain that a trial must confirm.
const CONFIRMED: f64 = 0.5;

/// Work for any thread, without an allocator and without a lock.
#[derive(Debug)]
pub struct Job {
    pub(super) seen: Seen,
    /// The active settings, without `tune`.
    pub(super) config: Config,
    pub(super) limit: Option<u64>,
    pub(super) serial: u64,
    pub(super) has_virtual_memory: bool,
    pub(super) limits: Limits,
    pub(super) what: What,
}

/// The task of a job.
#[derive(Debug)]
pub(super) enum What {
    /// A search. The queue has the settings that were taken back before, which the search must not
    /// find again.
    Search(VecDeque<Config>),
    /// A check whether the active settings save what was predicted.
    Check(Trial),
}

/// Settings on trial.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    /// The settings before the trial.
    pub(super) old: Box<Config>,
    /// The most bytes that were reserved with the old settings.
    pub(super) before_bytes: u64,
    /// The predicted saving, as a part of reserved memory.
    pub(super) gain: f64,
}

/// The result of a job.
#[derive(Debug)]
pub struct Finding {
    pub(super) serial: u64,
    /// The settings while the window was recorded.
    pub(super) config: Config,
    pub(super) reserved_bytes: u64,
    pub(super) requests: usize,
    /// The number of configurations that were tried.
    pub(super) candidates: u64,
    /// The time that the job took.
    pub(super) took: Duration,
    pub(super) answer: Answer,
}

/// The answer of a job.
#[derive(Debug)]
pub(super) enum Answer {
    /// Better settings, with their saving as a part of reserved memory.
    Better(Box<Config>, f64),
    /// No settings are better.
    Nothing,
    /// The trial confirms the prediction.
    Holds,
    /// The trial does not confirm the prediction.
    Fails(Trial),
    /// The job was abandoned. If it had a trial, it must be measured again.
    Unfinished(Option<Trial>),
}

impl Finding {
    /// Returns the duration of the job.
    pub fn took(&self) -> Duration {
        self.took
    }
}

impl Job {
    /// Does the work, on allocators of the type that `judge` uses. Ends early if `abandoned` is
    /// set.
    pub fn run(self, judge: Judge, abandoned: &Arc<AtomicBool>) -> Finding {
        let begin = Instant::now();
        // Settings that are found in time are checked with the whole window, which takes two more
        // runs.
        let deadline = self.limits.time.map(|time| begin + time);
        let stop = || abandoned.load(Ordering::Relaxed);
        let Self { seen: Seen { program, requests, reserved_bytes }, config, limit, serial, .. } = self;
        let whole = Part { program, limit, ..Part::default() };
        let costs = DriverCosts::h200();
        let (answer, candidates) = match self.what {
            What::Search(taken_back) => {
                let options = Options {
                    baseline: config.to_string(),
                    seed: self.limits.seed,
                    trials: self.limits.candidates,
                    deadline,
                    abandoned: Some(Arc::clone(abandoned)),
                    living: true,
                    has_virtual_memory: self.has_virtual_memory,
                    costs,
                    ..Options::default()
                };
                search(&whole, &config, &options, judge, &taken_back, &stop)
            }
            What::Check(trial) => (check(&whole, trial, reserved_bytes, &costs, judge, &stop), 1),
        };
        Finding { serial, config, reserved_bytes, requests, candidates, took: begin.elapsed(), answer }
    }
}

/// Searches with the earlier part of the window, checks with the later part, and then with the
/// whole window.
fn search(
    whole: &Part,
    config: &Config,
    options: &Options,
    judge: Judge,
    taken_back: &VecDeque<Config>,
    stop: &(dyn Fn() -> bool + Sync),
) -> (Answer, u64) {
    let parts = Parts::divide(vec![whole.clone()], HoldBack::Later, options.seed);
    if parts.held.is_empty() {
        return (Answer::Nothing, 0);
    }
    let Ok(outcome) = tune(&parts, options, judge, &InTurn, &mut |_| ()) else { return (Answer::Unfinished(None), 0) };
    let candidates = outcome.tried.len() as u64;
    let Some(best) = outcome.cachalot.and_then(|best| Config::parse(&outcome.tried[best].config).ok()) else {
        return (Answer::Nothing, candidates);
    };
    let mut found = config.clone();
    found.take_placement(&best);
    if taken_back.contains(&found) {
        return (Answer::Nothing, candidates);
    }
    let of = |config: &Config| judge(whole, config, &options.costs, stop).ok();
    let (Some(base), Some(new)) = (of(config), of(&found)) else { return (Answer::Unfinished(None), candidates) };
    let gain = gain(&base, &new);
    let is_dear = is_over_budget(&[new], &[base], Aim::Memory, Budget::default());
    if gain < LEAST_GAIN || new.ooms > base.ooms || is_dear {
        return (Answer::Nothing, candidates);
    }
    (Answer::Better(Box::new(found), gain), candidates)
}

/// Returns the saving as a part of reserved memory.
fn gain(base: &Cost, new: &Cost) -> f64 {
    1.0 - new.reserved_bytes as f64 / base.reserved_bytes.max(1) as f64
}

/// Compares the memory that was reserved during a trial with that under the old settings: what was
/// reserved before the trial, or what the requests of the trial would need, whichever is more. It
/// is not the fault of the settings if the program makes larger requests.
fn check(
    whole: &Part,
    trial: Trial,
    reserved_bytes: u64,
    costs: &DriverCosts,
    judge: Judge,
    stop: &(dyn Fn() -> bool + Sync),
) -> Answer {
    let Ok(old) = judge(whole, &trial.old, costs, stop) else { return Answer::Unfinished(Some(trial)) };
    let most = old.reserved_bytes.max(trial.before_bytes) as f64 * (1.0 - trial.gain * CONFIRMED);
    if reserved_bytes as f64 <= most { Answer::Holds } else { Answer::Fails(trial) }
}

/// Adds settings to the list of those that were taken back.
pub(super) fn remember(taken_back: &mut VecDeque<Config>, config: Config) {
    if taken_back.len() == TAKEN_BACK {
        taken_back.pop_front();
    }
    taken_back.push_back(config);
}
