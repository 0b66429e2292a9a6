//! Runs all algorithms in turn: first the fast ones, then the exact search. The best plan so far is
//! available at any time.
//!
//! A portfolio stops when the best plan is proven optimal, because it reaches the lower bound or
//! the search has refuted every lower peak. The steps depend only on the problem. A host with
//! threads divides the jobs among them ([`job`], [`Standing`]).

mod jobs;
mod standing;

pub use jobs::{Job, job};
pub use standing::Standing;

use super::exact::{Instance, PATIENCE, Progress, Search, Skyline};
use super::{Algorithm, Chains, Plan, Problem, Watch};
use alloc::sync::Arc;

/// A portfolio at work on a problem.
pub struct Portfolio<'a> {
    problem: &'a Problem,
    standing: Standing,
    /// The search; `None` before its first run, and for a problem that is too large for it.
    search: Option<Search>,
    /// Whether the portfolio has tried to create the search.
    prepared: bool,
    /// The number of the next job, or without heuristics that of the next search run.
    next: u64,
    heuristics: bool,
    /// The capacity of the present search run in bytes. `None` between two runs.
    running: Option<u64>,
    finished: bool,
}

impl<'a> Portfolio<'a> {
    /// Creates a portfolio before its first step.
    pub fn new(problem: &'a Problem) -> Self {
        let standing = Standing::new(problem);
        let finished = standing.optimal();
        Self { problem, standing, search: None, prepared: false, next: 0, heuristics: true, running: None, finished }
    }

    /// Creates a portfolio with only the exact search.
    pub fn exact(problem: &'a Problem) -> Self {
        Self { heuristics: false, ..Self::new(problem) }
    }

    /// Returns the best plan so far.
    pub fn best(&self) -> Option<&Plan> {
        self.standing.best()
    }

    /// Consumes the portfolio, and returns the best plan.
    pub fn into_best(self) -> Option<Plan> {
        self.standing.into_best()
    }

    /// Returns the source of the best plan: the name of an algorithm, `exact`, or the name that
    /// [`offer`](Self::offer) got. Empty if there is no plan.
    pub fn algorithm(&self) -> &'static str {
        self.standing.algorithm()
    }

    /// Returns the lower bound of all peaks in bytes. It grows with the proofs of the search.
    pub fn lower_bound(&self) -> u64 {
        self.standing.lower_bound()
    }

    /// Returns whether the best plan is proven optimal.
    pub fn optimal(&self) -> bool {
        self.standing.optimal()
    }

    /// Returns whether no job is left.
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// Returns the number of nodes that were searched.
    pub fn nodes(&self) -> u64 {
        self.search.as_ref().map_or(0, Search::nodes)
    }

    /// Takes a plan from another source if it is better than the best so far. The plan is not
    /// checked.
    pub fn offer(&mut self, plan: Plan, algorithm: &'static str) {
        self.standing.offer(plan, algorithm);
        self.finished |= self.standing.optimal();
    }

    /// Runs an algorithm, or searches some thousand nodes. Returns whether work is left.
    pub fn step(&mut self, watch: &mut dyn Watch) -> bool {
        if self.finished {
            return false;
        }
        if self.running.is_some() {
            self.search_on(watch);
        } else {
            match self.job() {
                // A portfolio without threads has no deadline, so it ends here.
                Job::Dive(_) => self.finished = true,
                Job::Heuristic(algorithm) => {
                    if let Some(plan) = algorithm.plan(self.problem, &mut StopOnly(watch)) {
                        self.keep(plan, algorithm.name(), watch);
                    }
                }
                Job::Run(run) => {
                    let capacity = self.standing.target(run);
                    self.running = Some(capacity);
                    if let Some(search) = &mut self.search {
                        search.begin(run, capacity);
                    }
                }
            }
        }
        self.finished |= self.standing.settled();
        !self.finished
    }

    /// Runs steps until no job is left, or until `watch` stops the portfolio.
    pub fn run(&mut self, watch: &mut dyn Watch) {
        while self.step(watch) && !watch.stop() {}
    }

    fn job(&mut self) -> Job {
        let number = self.next;
        self.next += 1;
        let searchable = self.search.is_some() || !self.prepared;
        let job = match self.heuristics {
            true => job(number, self.problem.buffers.len(), searchable),
            false if searchable => Job::Run(number),
            false => Job::Dive(Skyline(number)),
        };
        if !self.prepared && matches!(job, Job::Run(_)) {
            self.prepared = true;
            self.search = Instance::of(Chains::of(self.problem)).map(|instance| Search::new(Arc::new(instance)));
            if self.search.is_none() {
                self.next = number;
                return self.job();
            }
        }
        job
    }

    fn search_on(&mut self, watch: &mut dyn Watch) {
        let (Some(search), Some(capacity)) = (&mut self.search, self.running) else { return };
        let progress = search.advance(PATIENCE);
        if progress == Progress::DoesNotFit {
            self.standing.refute(search.instance().next_peak(capacity), search.instance().proves());
        }
        if progress != Progress::Working {
            self.running = None;
        }
        if let Some(plan) = search.plan() {
            self.keep(plan, "exact", watch);
        }
    }

    fn keep(&mut self, plan: Plan, algorithm: &'static str, watch: &mut dyn Watch) {
        if self.standing.offer(plan, algorithm)
            && let Some(best) = self.standing.best()
        {
            watch.improved(best);
        }
    }
}

/// Passes a stop on to an algorithm. It does not pass on the intermediate plans of the algorithm,
/// because they may be worse than the best plan of the portfolio.
struct StopOnly<'a>(&'a dyn Watch);

impl Watch for StopOnly<'_> {
    fn stop(&self) -> bool {
        self.0.stop()
    }
}

/// A portfolio as an algorithm.
pub struct Sequential;

impl Algorithm for Sequential {
    fn name(&self) -> &'static str {
        "portfolio"
    }

    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan> {
        let mut portfolio = Portfolio::new(problem);
        portfolio.run(watch);
        portfolio.into_best()
    }
}

/// The exact search by itself, from no plan to the lowest peak.
pub struct Exact;

impl Algorithm for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan> {
        let mut portfolio = Portfolio::exact(problem);
        portfolio.run(watch);
        portfolio.into_best()
    }
}
