//! Plans a problem with the chosen algorithm, within a deadline.

use cachalot_planner::parallel::{self, Outcome};
use cachalot_planner::portfolio::Portfolio;
use cachalot_planner::{Algorithm, HEURISTICS, Plan, Problem, Watch, lower_bound};
use rayon::current_num_threads;
use std::time::{Duration, Instant};

/// The name of the portfolio.
pub const PORTFOLIO: &str = "portfolio";

/// The name of the exact search alone.
const EXACT: &str = "exact";

/// A way to plan.
#[derive(Clone, Copy)]
pub enum Method {
    /// Everything at once, on as many threads as rayon has.
    Portfolio,
    /// The exact search alone, on a single thread.
    Exact,
    /// A fast algorithm alone.
    One(&'static (dyn Algorithm + Sync)),
}

/// The result of planning a problem.
#[derive(Debug, Clone)]
pub struct Solved {
    /// The best plan. `None` if the time ran out before the first plan.
    pub plan: Option<Plan>,
    /// A lower bound of every plan's peak, in bytes.
    pub lower_bound: u64,
    /// Whether the plan is proven optimal.
    pub optimal: bool,
    /// Name of the algorithm that found the plan.
    pub algorithm: &'static str,
    /// Whether the problem is too large for the exact search, and no other algorithm was to plan
    /// it.
    pub refused: bool,
    /// Time for planning in seconds.
    pub seconds: f64,
}

/// Answer to whether a problem fits into a capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FitAnswer {
    /// A plan fits.
    Fits,
    /// Proven not to fit.
    DoesNotFit,
    /// The time ran out before a plan or a proof.
    NotDecided,
}

impl Method {
    /// Returns all names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        [PORTFOLIO, EXACT].into_iter().chain(HEURISTICS.iter().map(|algorithm| algorithm.name()))
    }

    /// Returns the method with a name.
    ///
    /// # Errors
    /// All accepted names.
    pub fn named(name: &str) -> Result<Self, String> {
        let accepted = || format!("expected one of {}", Self::names().collect::<Vec<_>>().join(", "));
        match name {
            PORTFOLIO => Ok(Self::Portfolio),
            EXACT => Ok(Self::Exact),
            _ => HEURISTICS.into_iter().find(|one| one.name() == name).map(Self::One).ok_or_else(accepted),
        }
    }
}

/// Plans a problem. Calls `improved` for every better plan, with the lower bound and the algorithm.
pub fn solve(
    problem: &Problem,
    method: Method,
    deadline: Option<Duration>,
    improved: &mut dyn FnMut(&Plan, u64, &'static str),
) -> Solved {
    let start = Instant::now();
    let mut solved = match method {
        Method::Portfolio => parallel::minimise(problem, current_num_threads(), deadline, improved).into(),
        Method::Exact => exact(problem, deadline, improved),
        Method::One(algorithm) => one(problem, algorithm, deadline, improved),
    };
    solved.seconds = start.elapsed().as_secs_f64();
    solved
}

fn exact(problem: &Problem, deadline: Option<Duration>, improved: &mut dyn FnMut(&Plan, u64, &'static str)) -> Solved {
    let mut portfolio = Portfolio::exact(problem);
    let end = deadline.and_then(|deadline| Instant::now().checked_add(deadline));
    let lower_bound = portfolio.lower_bound();
    portfolio.run(&mut Until { end, improved: &mut |plan| improved(plan, lower_bound, EXACT) });
    let (lower_bound, optimal) = (portfolio.lower_bound(), portfolio.optimal());
    let refused = portfolio.finished() && portfolio.best().is_none();
    Solved { plan: portfolio.into_best(), lower_bound, optimal, algorithm: EXACT, refused, seconds: 0.0 }
}

fn one(
    problem: &Problem,
    algorithm: &dyn Algorithm,
    deadline: Option<Duration>,
    improved: &mut dyn FnMut(&Plan, u64, &'static str),
) -> Solved {
    let lower_bound = lower_bound(problem);
    let name = algorithm.name();
    let end = deadline.and_then(|deadline| Instant::now().checked_add(deadline));
    let mut watch = Until { end, improved: &mut |plan| improved(plan, lower_bound, name) };
    let plan = algorithm.plan(problem, &mut watch);
    let optimal = plan.as_ref().is_some_and(|plan| plan.peak == lower_bound);
    Solved { plan, lower_bound, optimal, algorithm: name, refused: false, seconds: 0.0 }
}

/// Stops an algorithm at the deadline.
struct Until<'a> {
    end: Option<Instant>,
    improved: &'a mut dyn FnMut(&Plan),
}

impl Watch for Until<'_> {
    fn stop(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    fn improved(&mut self, plan: &Plan) {
        (self.improved)(plan);
    }
}

/// Decides whether a problem fits into `capacity` bytes, and returns a fitting plan if found. If
/// the lower bound leaves the question open, only the portfolio and the exact search can prove a
/// negative answer.
pub fn fits(
    problem: &Problem,
    capacity: u64,
    method: Method,
    deadline: Option<Duration>,
    improved: &mut dyn FnMut(&Plan, u64, &'static str),
) -> (Solved, FitAnswer) {
    let start = Instant::now();
    let mut solved = match method {
        Method::Portfolio => parallel::fits(problem, capacity, current_num_threads(), deadline, improved).0.into(),
        Method::Exact | Method::One(_) => solve(problem, method, deadline, improved),
    };
    solved.seconds = start.elapsed().as_secs_f64();
    let answer = match &solved.plan {
        Some(plan) if plan.peak <= capacity => FitAnswer::Fits,
        _ if capacity < solved.lower_bound => FitAnswer::DoesNotFit,
        _ => FitAnswer::NotDecided,
    };
    (solved, answer)
}

impl Solved {
    /// Takes back what a plan of a problem proves about another problem that asks for less:
    /// `relaxed` has all that the other asks for, or less. Returns the answer for the other.
    pub fn relax(&mut self, relaxed: &Problem, answer: Option<FitAnswer>, capacity: Option<u64>) -> Option<FitAnswer> {
        self.lower_bound = lower_bound(relaxed);
        self.optimal = self.plan.as_ref().is_some_and(|plan| plan.peak == self.lower_bound);
        let is_beyond = capacity.is_some_and(|capacity| capacity < self.lower_bound);
        answer.map(|answer| match answer {
            FitAnswer::DoesNotFit if !is_beyond => FitAnswer::NotDecided,
            other => other,
        })
    }
}

impl From<Outcome> for Solved {
    fn from(outcome: Outcome) -> Self {
        let Outcome { plan, lower_bound, optimal, algorithm, .. } = outcome;
        Self { plan, lower_bound, optimal, algorithm, refused: false, seconds: 0.0 }
    }
}
