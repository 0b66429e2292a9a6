//! The search: rounds of candidates, which are ranked by the seen programs and checked with the
//! held-back programs.

use crate::judge::{Cost, Judge, Part, Unfinished};
use crate::options::{Options, Outcome, Tried};
use crate::space::{Candidate, Space};
use crate::split::Parts;
use crate::verdict::{Note, is_over_budget, is_worse, score, spent, summary, without_granularity};
use cachalot_core::Config;
use fastrand::Rng;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The number of candidates in a round. It is fixed, so that the results do not depend on the
/// number of threads.
const ROUND: usize = 8;

/// The number of the best candidates that become parents: by the ranking for recommendations, and
/// by price alone.
const PARENTS: [usize; 2] = [5, 3];

/// The number of proposals for a new candidate before the space counts as exhausted.
const PROPOSALS: usize = 200;

/// The least gain of another setting, as a natural logarithm.
const WORTH: f64 = 0.001;

/// The least gain of a setting that earlier versions of `PyTorch` refuse, as a natural logarithm.
const WORTH_A_VERSION: f64 = 0.03;

/// The least gain for a unit of the other resource, both as natural logarithms.
const EXCHANGE: f64 = 0.001;

/// The least gain of a recommendation, as a natural logarithm: in the seen programs, and in the
/// held-back programs.
const LEAST_GAIN: f64 = 0.005;
const LEAST_GAIN_HELD: f64 = 0.002;

/// Runs the jobs of a round, on one thread or on several. The result of a search does not depend on
/// the runner.
pub trait Runner: Sync {
    /// Calls `job` once with each number below `count`, and returns after the last call has ended.
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync));
}

/// Runs jobs one after the other on the calling thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct InTurn;

impl Runner for InTurn {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(job);
    }
}

/// The progress of a search.
#[derive(Debug)]
pub struct Progress<'a> {
    /// The number of candidates that the search has tried so far.
    pub tried: usize,
    /// The greatest number of candidates that the search tries.
    pub most: usize,
    /// Whether the search is only for `PyTorch`'s own allocator.
    pub is_torch: bool,
    /// The best confirmed configuration so far, with the mean change of the minimised quantity.
    pub best: Option<(&'a str, f64)>,
}

/// A candidate, with its known costs.
#[derive(Debug)]
struct Entry {
    candidate: Candidate,
    text: String,
    config: Config,
    seen: Vec<Cost>,
    held: Option<Vec<Cost>>,
    score: f64,
    /// The score, plus the prices of the settings and of the other resource.
    price: f64,
    note: Note,
}

impl Entry {
    /// Returns the number of failed requests in all programs that the entry was run on.
    fn failed(&self) -> u64 {
        fails(&self.seen) + self.held.as_deref().map_or(0, fails)
    }
}

/// A search in progress.
pub(crate) struct Search<'a> {
    parts: &'a Parts,
    options: &'a Options,
    judge: Judge,
    runner: &'a dyn Runner,
    /// The configuration to compare with.
    baseline: Config,
    /// The costs of the baseline, for the seen and for the held-back programs.
    base: Vec<Cost>,
    base_held: Vec<Cost>,
    entries: Vec<Entry>,
    /// The text of every candidate that was proposed.
    known: HashSet<String>,
    random: Rng,
    /// Whether a deadline ended a run.
    stopped: bool,
    /// The recommendations: for `PyTorch`, and for cachalot.
    best: [Option<usize>; 2],
}

impl<'a> Search<'a> {
    /// Creates a search, and measures the baseline.
    pub(crate) fn new(
        parts: &'a Parts,
        options: &'a Options,
        judge: Judge,
        runner: &'a dyn Runner,
        baseline: &Config,
    ) -> Result<Self, String> {
        let measure = |list: &[Part]| {
            let pairs: Vec<_> = list.iter().map(|part| (part.baseline.as_ref().unwrap_or(baseline), part)).collect();
            let costs: Costs = run_pairs(&pairs, options, (judge, runner), None).into_iter().collect();
            costs.map_err(|(part, error)| match error {
                Unfinished::Refused(at, why) => format!("{part}: the baseline refused call {}: {why}", at + 1),
                Unfinished::Stopped => format!("{part}: the search was abandoned"),
            })
        };
        Ok(Self {
            base: measure(&parts.seen)?,
            base_held: measure(&parts.held)?,
            parts,
            options,
            judge,
            runner,
            baseline: baseline.clone(),
            entries: Vec::new(),
            known: HashSet::new(),
            random: Rng::with_seed(options.seed),
            stopped: false,
            best: [None; 2],
        })
    }

    /// Tries candidates of a space, and confirms the best one after each round.
    pub(crate) fn run(
        &mut self,
        space: Space,
        most: usize,
        deadline: Option<Instant>,
        watch: &mut dyn FnMut(&Progress<'_>),
    ) {
        let place = usize::from(!space.is_torch());
        let mut tried = 0;
        let mut waiting: Vec<Candidate> = space.first();
        waiting.reverse();
        while tried < most {
            let round = self.round(space, &mut waiting, (most - tried).min(ROUND));
            if round.is_empty() || !self.measure(round, &mut tried, deadline) {
                break;
            }
            self.best[place] = self.confirm(space, deadline);
            let best =
                self.best[place].map(|best| (self.entries[best].text.as_str(), self.entries[best].score.exp_m1()));
            watch(&Progress { tried, most, is_torch: space.is_torch(), best });
        }
        // The space of cachalot includes everything that was tried for PyTorch, even if the time
        // was over.
        let best = self.confirm(space, deadline).or(self.best[place]);
        self.best[place] = best.map(|at| self.without_idle_keys(at, deadline));
    }

    /// Returns the entry without the keys that change no cost of any program, so that a
    /// recommendation has only keys with an effect.
    fn without_idle_keys(&mut self, at: usize, deadline: Option<Instant>) -> usize {
        let mut at = self.without_noted_keys(at);
        'shorter: loop {
            let simpler: Vec<Candidate> = self.entries[at].candidate.simpler().collect();
            for candidate in simpler {
                let text = candidate.text();
                if self.known.insert(text.clone())
                    && let Some(config) = self.config_of(&candidate)
                {
                    self.measure(vec![(candidate, config)], &mut 0, deadline);
                }
                let Some(found) = self.entries.iter().position(|entry| entry.text == text) else { continue };
                if self.entries[found].seen != self.entries[at].seen {
                    continue;
                }
                let is_run = self.entries[found].held.is_some() || self.check(found, deadline);
                if is_run && self.entries[found].held == self.entries[at].held {
                    at = found;
                    continue 'shorter;
                }
            }
            return at;
        }
    }

    /// Returns the entry without the keys that have no effect beside its other keys. Every cost
    /// stays the same, so nothing is run, and this is possible after the deadline, too.
    fn without_noted_keys(&mut self, mut at: usize) -> usize {
        let limited = self.parts.seen.iter().chain(&self.parts.held).any(|part| part.limit.is_some());
        loop {
            let Entry { candidate, config, .. } = &self.entries[at];
            let of_note = |note: cachalot_core::config::Note| candidate.without(note.key);
            let Some(shorter) = config.notes(limited).map(of_note).find(|shorter| shorter != candidate) else {
                return at;
            };
            let Some(config) = self.config_of(&shorter) else { return at };
            let text = shorter.text();
            let Entry { seen, held, score, price, note, .. } = &self.entries[at];
            let (seen, held, score, price, note) = (seen.clone(), held.clone(), *score, *price - WORTH, *note);
            at = self.entries.iter().position(|entry| entry.text == text).unwrap_or_else(|| {
                self.known.insert(text.clone());
                let candidate = shorter;
                self.entries.push(Entry { candidate, text, config, seen, held: None, score, price, note });
                self.entries.len() - 1
            });
            self.entries[at].held = held;
        }
    }

    /// Returns the configuration of a candidate. For a living allocator, the candidate changes the
    /// baseline.
    fn config_of(&self, candidate: &Candidate) -> Option<Config> {
        if self.options.living { candidate.over(&self.baseline) } else { candidate.config(self.options.policies) }
    }

    /// Returns up to `most` new candidates: first those that wait, then simpler forms of the best
    /// candidate, then neighbours of the best ones.
    fn round(&mut self, space: Space, waiting: &mut Vec<Candidate>, most: usize) -> Vec<(Candidate, Config)> {
        let mut round = Vec::new();
        let parents = self.parents(space);
        let mut simpler: Vec<Candidate> = parents.first().into_iter().flat_map(Candidate::simpler).collect();
        let mut attempts = 0;
        while round.len() < most {
            let candidate = if let Some(candidate) = waiting.pop() {
                candidate
            } else if parents.is_empty() || attempts == PROPOSALS {
                break;
            } else if let Some(candidate) = simpler.pop() {
                candidate
            } else {
                attempts += 1;
                let choose = |random: &mut Rng| &parents[random.usize(0..parents.len())];
                let (one, other) = (choose(&mut self.random), choose(&mut self.random));
                space.propose(one, other, &mut self.random)
            };
            if self.known.insert(candidate.text())
                && let Some(config) = self.config_of(&candidate)
            {
                attempts = 0;
                round.push((candidate, config));
            }
        }
        round
    }

    /// Returns the best candidates with different costs, by the ranking for recommendations and by
    /// price alone. A harmful candidate may be only one setting away from the best one.
    fn parents(&self, space: Space) -> Vec<Candidate> {
        let ranking = self.ranking(space);
        let mut by_price = ranking.clone();
        by_price.sort_by(|&one, &other| self.entries[one].price.total_cmp(&self.entries[other].price));
        let mut parents: Vec<usize> = Vec::new();
        for (ranking, most) in [ranking, by_price].iter().zip(PARENTS) {
            let end = parents.len() + most;
            for &at in ranking {
                let is_new = parents.iter().all(|&known| self.entries[known].seen != self.entries[at].seen);
                if is_new && parents.len() < end {
                    parents.push(at);
                }
            }
        }
        parents.into_iter().map(|at| self.entries[at].candidate.clone()).collect()
    }

    /// Runs candidates on all seen programs. Returns whether there is time left.
    fn measure(&mut self, round: Vec<(Candidate, Config)>, tried: &mut usize, deadline: Option<Instant>) -> bool {
        let configs: Vec<&Config> = round.iter().map(|(_, config)| config).collect();
        let costs = run_all(&self.parts.seen, &configs, self.options, (self.judge, self.runner), deadline);
        let &Options { aim, budget, most_harm, .. } = self.options;
        let mut is_stopped = false;
        for ((candidate, config), costs) in round.into_iter().zip(costs) {
            match costs {
                Ok(seen) => {
                    *tried += 1;
                    let pairs = seen.iter().zip(&self.base);
                    let coarse: Vec<Cost> = pairs.map(|(cost, base)| without_granularity(cost, base)).collect();
                    let note = if is_worse(&coarse, &self.base, aim, most_harm) {
                        Note::Worse
                    } else if is_over_budget(&seen, &self.base, aim, budget) {
                        Note::OverBudget
                    } else {
                        Note::Behind
                    };
                    let text = candidate.text();
                    let score = score(&seen, &self.base, aim);
                    let other = spent(&seen, &self.base, aim).max(0.0);
                    let price = score + WORTH * candidate.count() as f64 + EXCHANGE * other;
                    self.entries.push(Entry { candidate, text, config, seen, held: None, score, price, note });
                }
                Err((_, Unfinished::Stopped)) => is_stopped = true,
                // The candidate cannot serve the program, so it is dropped.
                Err((_, Unfinished::Refused(..))) => *tried += 1,
            }
        }
        self.stopped |= is_stopped;
        !is_stopped
    }

    /// Returns the numbers of the entries of a space, the best first.
    fn ranking(&self, space: Space) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..self.entries.len()).collect();
        numbers.retain(|&at| !space.is_torch() || self.entries[at].candidate.is_of_torch());
        let price = |entry: &Entry| match entry.candidate.needs_pytorch() {
            Some(_) if space.is_torch() => entry.price + WORTH_A_VERSION,
            _ => entry.price,
        };
        numbers.sort_by(|&one, &other| order(&self.entries[one], &self.entries[other], price));
        numbers
    }

    /// If requests fail with the baseline, returns the entry with the fewest failed requests in all
    /// programs, and of several such entries the best one. A setting with which the program still
    /// fails saves nothing, and the seen programs may not show the failure. So every entry is run
    /// on the programs held back, and may need more memory.
    fn serving(&mut self, space: Space, deadline: Option<Instant>) -> Option<usize> {
        let before = fails(&self.base) + fails(&self.base_held);
        if before == 0 {
            return None;
        }
        let ranking = self.ranking(space);
        for &at in &ranking {
            if self.entries[at].held.is_none() && self.entries[at].note != Note::Unconfirmed {
                self.check(at, deadline);
            }
        }
        let failed = |at: usize| {
            let (entry, pairs) = (&self.entries[at], self.base.iter().chain(&self.base_held));
            let costs = entry.seen.iter().chain(entry.held.as_deref()?);
            // A setting that serves one program must not make another one fail.
            let harms = costs.zip(pairs).any(|(cost, base)| cost.ooms > base.ooms);
            (!harms).then(|| entry.failed())
        };
        let least = ranking.iter().filter_map(|&at| failed(at)).min().filter(|&least| least < before)?;
        // In the ranking, those with harm and those over the budget come last.
        ranking.iter().copied().find(|&at| failed(at) == Some(least))
    }

    /// Runs an entry on the programs held back. Returns whether this was possible.
    fn check(&mut self, at: usize, deadline: Option<Instant>) -> bool {
        let config = &self.entries[at].config;
        match run_all(&self.parts.held, &[config], self.options, (self.judge, self.runner), deadline).remove(0) {
            Ok(held) => self.entries[at].held = Some(held),
            Err((_, Unfinished::Stopped)) => self.stopped = true,
            Err((_, Unfinished::Refused(..))) => self.entries[at].note = Note::Unconfirmed,
        }
        self.entries[at].held.is_some()
    }

    /// Returns the best entry that the held-back programs confirm. Each entry is checked once.
    fn confirm(&mut self, space: Space, deadline: Option<Instant>) -> Option<usize> {
        let &Options { aim, budget, most_harm, .. } = self.options;
        if let Some(at) = self.serving(space, deadline) {
            return Some(at);
        }
        for at in self.ranking(space) {
            let entry = &self.entries[at];
            let gains = entry.score < -LEAST_GAIN || fails(&entry.seen) < fails(&self.base);
            if matches!(entry.note, Note::Worse | Note::OverBudget) || !gains {
                return None;
            }
            if entry.note == Note::Unconfirmed {
                continue;
            }
            let is_known = entry.held.is_some();
            if !is_known && !self.check(at, deadline) {
                continue;
            }
            let (entry, base) = (&self.entries[at], &self.base_held);
            let held = entry.held.as_deref().unwrap_or_default();
            let gains = held.is_empty() || score(held, base, aim) < -LEAST_GAIN_HELD || fails(held) < fails(base);
            if gains && !is_worse(held, base, aim, most_harm) && !is_over_budget(held, base, aim, budget) {
                return Some(at);
            }
            self.entries[at].note = Note::Unconfirmed;
        }
        None
    }

    /// Runs a tried configuration on the held-back programs, for comparison only.
    pub(crate) fn yardstick(&mut self, text: &str) {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.text == text && entry.held.is_none()) else {
            return;
        };
        entry.held =
            run_all(&self.parts.held, &[&entry.config], self.options, (self.judge, self.runner), self.options.deadline)
                .remove(0)
                .ok();
    }

    /// Returns the result.
    pub(crate) fn finish(mut self) -> Outcome {
        let aim = self.options.aim;
        // A setting with which the program still fails is no advice beside one that serves it.
        let failed = |at: usize| self.entries[at].failed();
        if let [Some(torch), Some(cachalot)] = self.best
            && failed(cachalot) < failed(torch)
        {
            self.best[0] = None;
        }
        for best in self.best.into_iter().flatten() {
            self.entries[best].note = Note::Best;
        }
        let is_of = |part: &Part, entry: &Entry| match &part.baseline {
            Some(own) => *own == entry.config,
            None => entry.text == self.options.baseline,
        };
        let is_baseline = |entry: &Entry| self.parts.seen.iter().chain(&self.parts.held).all(|part| is_of(part, entry));
        let mut ranking: Vec<usize> = (0..self.entries.len()).filter(|&at| !is_baseline(&self.entries[at])).collect();
        ranking.sort_by(|&one, &other| {
            let (one, other) = (&self.entries[one], &self.entries[other]);
            one.failed().cmp(&other.failed()).then_with(|| order(one, other, |entry| entry.price))
        });
        let has_held = !self.parts.held.is_empty();
        let mut tried = vec![Tried {
            config: self.options.baseline.clone(),
            is_of_torch: self.entries.iter().any(|entry| is_baseline(entry) && entry.candidate.is_of_torch()),
            needs_pytorch: None,
            seen: summary(&self.base, &self.base, aim),
            held_back: has_held.then(|| summary(&self.base_held, &self.base_held, aim)),
            note: Note::Baseline,
        }];
        tried.extend(ranking.iter().map(|&at| {
            let entry = &self.entries[at];
            let held = entry.held.as_ref().filter(|_| has_held);
            Tried {
                config: entry.text.clone(),
                is_of_torch: entry.candidate.is_of_torch(),
                needs_pytorch: entry.candidate.needs_pytorch().filter(|_| entry.candidate.is_of_torch()),
                seen: summary(&entry.seen, &self.base, aim),
                held_back: held.map(|held| summary(held, &self.base_held, aim)),
                note: entry.note,
            }
        }));
        let place = |best: Option<usize>| ranking.iter().position(|&at| Some(at) == best).map(|at| at + 1);
        Outcome { tried, torch: place(self.best[0]), cachalot: place(self.best[1]), stopped: self.stopped }
    }
}

/// Returns the number of failed requests in all programs.
fn fails(costs: &[Cost]) -> u64 {
    costs.iter().map(|cost| cost.ooms).sum()
}

/// Orders entries by harm, budget, failed requests, the score with prices, and the text.
fn order(one: &Entry, other: &Entry, price: impl Fn(&Entry) -> f64) -> Ordering {
    let key = |entry: &Entry| (entry.note == Note::Worse, entry.note == Note::OverBudget, entry.failed());
    let prices = price(one).total_cmp(&price(other));
    key(one).cmp(&key(other)).then(prices).then_with(|| one.text.cmp(&other.text))
}

/// The costs of all programs with a configuration, or the first program without a cost.
type Costs = Result<Vec<Cost>, (String, Unfinished)>;

/// Runs all programs with all configurations. Returns the costs of each configuration.
fn run_all(
    parts: &[Part],
    configs: &[&Config],
    options: &Options,
    (judge, runner): (Judge, &dyn Runner),
    deadline: Option<Instant>,
) -> Vec<Costs> {
    let pairs: Vec<_> = configs.iter().flat_map(|&config| parts.iter().map(move |part| (config, part))).collect();
    let mut costs = run_pairs(&pairs, options, (judge, runner), deadline);
    configs.iter().map(|_| costs.drain(..parts.len()).collect()).collect()
}

/// Runs each program with its configuration.
fn run_pairs(
    pairs: &[(&Config, &Part)],
    options: &Options,
    (judge, runner): (Judge, &dyn Runner),
    deadline: Option<Instant>,
) -> Vec<Result<Cost, (String, Unfinished)>> {
    // The baseline has no deadline, but every run can be abandoned.
    let is_abandoned = || options.abandoned.as_ref().is_some_and(|flag| flag.load(Relaxed));
    let stop = || is_abandoned() || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let found: Vec<Mutex<Option<Result<Cost, Unfinished>>>> = pairs.iter().map(|_| Mutex::new(None)).collect();
    runner.run(pairs.len(), &|at| {
        let (config, part) = pairs[at];
        let cost = judge(part, config, &options.costs, &stop);
        *found[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(cost);
    });
    let costs = found.into_iter().zip(pairs).map(|(found, (_, part))| {
        let cost = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        cost.unwrap_or(Err(Unfinished::Stopped)).map_err(|error| (part.name.clone(), error))
    });
    costs.collect()
}

#[cfg(test)]
mod tests {
    use super::{InTurn, Search};
    use crate::judge::{OnDevice, Part, cost};
    use crate::options::Options;
    use crate::program::{Operation, Program};
    use crate::space::{Realm, Space};
    use crate::split::Parts;
    use cachalot_core::config::Policies;
    use cachalot_core::{Config, MIB, StreamId};
    use std::time::Instant;

    #[test]
    fn keys_without_effect_go_even_after_the_deadline() {
        let operations = vec![Operation::Malloc { bytes: MIB, stream: StreamId::DEFAULT, slot: 0 }];
        let program = Program { operations, slots: 1, start: 0 };
        let parts = Parts { seen: vec![Part { program, ..Part::default() }], ..Parts::default() };
        let options = Options { deadline: Some(Instant::now()), ..Options::default() };
        let mut search =
            Search::new(&parts, &options, cost::<OnDevice>, &InTurn, &Config::new()).expect("the baseline runs");
        let policies = Policies::NONE;
        let (realm, has_limit, has_virtual_memory, has_late_keys) = (Realm::Torch, false, true, true);
        let first = Space { realm, policies, has_limit, has_virtual_memory, has_late_keys }.first();
        let expandable = first.into_iter().find(|one| one.text() == "expandable_segments:True").expect("it is first");
        let idle = expandable.with("max_non_split_rounding_mb", "128").with("garbage_collection_threshold", "0.6");
        let config = search.config_of(&idle).expect("a configuration");
        assert!(search.measure(vec![(idle, config)], &mut 0, None));
        let best = search.without_idle_keys(0, options.deadline);
        assert_eq!(search.entries[best].text, "expandable_segments:True");
    }
}
