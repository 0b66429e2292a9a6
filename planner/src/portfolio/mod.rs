//! Everything at once: the algorithms that answer soon, then the exact search, with the best plan so far at any time.
//!
//! A portfolio stops by itself when its best plan is proven optimal: when it reaches the lower bound, or when the search
//! has refuted everything below it. What it does depends on nothing but the problem and how many steps were taken; a host
//! that has threads shares the same jobs out among them ([`job`], [`Standing`]).

mod jobs;
mod standing;

pub use jobs::{Job, job};
pub use standing::Standing;

use super::exact::{Instance, PATIENCE, Progress, Search};
use super::{Algorithm, Chains, Plan, Problem, Watch};
use alloc::sync::Arc;

/// A portfolio at work on a problem.
pub struct Portfolio<'a> {
    problem: &'a Problem,
    standing: Standing,
    /// None before it is needed, and where the problem is too large for it.
    search: Option<Search>,
    /// Whether that has been tried.
    prepared: bool,
    /// The number of the next job; of the next run, if there are no others.
    next: u64,
    heuristics: bool,
    /// The capacity of the run at hand, in bytes.
    running: Option<u64>,
    finished: bool,
}

impl<'a> Portfolio<'a> {
    /// A portfolio that has not begun.
    pub fn new(problem: &'a Problem) -> Self {
        let standing = Standing::new(problem);
        let finished = standing.optimal();
        Self { problem, standing, search: None, prepared: false, next: 0, heuristics: true, running: None, finished }
    }

    /// One of the exact search alone.
    pub fn exact(problem: &'a Problem) -> Self {
        Self { heuristics: false, ..Self::new(problem) }
    }

    /// The best plan so far.
    pub fn best(&self) -> Option<&Plan> {
        self.standing.best()
    }

    /// The best plan, for good.
    pub fn into_best(self) -> Option<Plan> {
        self.standing.into_best()
    }

    /// Who found it: the name of an algorithm, `exact`, or what [`offer`](Self::offer) was told; empty if nobody has.
    pub fn algorithm(&self) -> &'static str {
        self.standing.algorithm()
    }

    /// No plan has a peak below so many bytes. Grows when the search proves more.
    pub fn lower_bound(&self) -> u64 {
        self.standing.lower_bound()
    }

    /// Whether the best plan is proven to be that.
    pub fn optimal(&self) -> bool {
        self.standing.optimal()
    }

    /// Whether there is nothing left to try.
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// How many nodes have been searched.
    pub fn nodes(&self) -> u64 {
        self.search.as_ref().map_or(0, Search::nodes)
    }

    /// Takes a plan that was found elsewhere, if it is better. It is not checked.
    pub fn offer(&mut self, plan: Plan, algorithm: &'static str) {
        self.standing.offer(plan, algorithm);
        self.finished |= self.standing.optimal();
    }

    /// One algorithm, or some thousand nodes of the search. True while there is more to do.
    pub fn step(&mut self, watch: &mut dyn Watch) -> bool {
        if self.finished {
            return false;
        }
        if self.running.is_some() {
            self.search_on(watch);
        } else {
            match self.job() {
                None => self.finished = true,
                Some(Job::Heuristic(algorithm)) => {
                    if let Some(plan) = algorithm.plan(self.problem, &mut StopOnly(watch)) {
                        self.keep(plan, algorithm.name(), watch);
                    }
                }
                Some(Job::Run(run)) => {
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

    /// Steps until there is nothing left to do, or until it is stopped.
    pub fn run(&mut self, watch: &mut dyn Watch) {
        while self.step(watch) && !watch.stop() {}
    }

    fn job(&mut self) -> Option<Job> {
        let number = self.next;
        self.next += 1;
        let job = if self.heuristics {
            job(number, self.problem.buffers.len(), self.search.is_some() || !self.prepared)
        } else {
            Some(Job::Run(number))
        };
        if !self.prepared && matches!(job, Some(Job::Run(_))) {
            self.prepared = true;
            self.search = Instance::of(Chains::of(self.problem)).map(|instance| Search::new(Arc::new(instance)));
            if self.search.is_none() {
                self.next = number;
                return if self.heuristics { self.job() } else { None };
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

/// Lets an algorithm be stopped; what it finds on the way is not the best of all.
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
