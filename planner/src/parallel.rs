//! Runs the portfolio on several threads. Each thread takes the next job, and all of them know the
//! best plan.
//!
//! When another thread finds a plan, a run continues, unless this plan is within the capacity of
//! the run.

use crate::exact::{Instance, PATIENCE, Progress, Search, Verdict};
use crate::portfolio::{Job, Standing, job};
use crate::{Algorithm, Chains, Plan, Problem, Unusable, Watch};
use alloc::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// The work of the first runs of the exact search, which all aim at the lower bound, on all threads
/// together. A core does 25,000,000 in a second.
///
/// Most programs fit into their lower bound, and a plan at the bound needs no proof. `MiniMalloc`'s
/// instance E has such a plan, which the 122nd run at the bound finds with a work of 33,000,000.
const BOUND_FIRST: u64 = 50_000_000;

/// The result of a search for the lowest peak.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The best plan, or `None` if the deadline came before the first plan.
    pub plan: Option<Plan>,
    /// A peak in bytes. No plan has a lower one.
    pub lower_bound: u64,
    /// Whether the plan is proven to have the lowest peak.
    pub optimal: bool,
    /// The name of the algorithm that found the plan.
    pub algorithm: &'static str,
    /// The number of nodes of the exact search, on all threads.
    pub nodes: u64,
}

/// Plans a problem on every core, until the plan is proven optimal or the deadline has passed.
///
/// # Errors
/// The reason why the problem cannot be planned.
///
/// # Examples
/// ```
/// use cachalot_planner::{Buffer, Problem, solve};
/// use std::time::Duration;
///
/// let buffer = |start, end, size| Buffer { start, end, size, alignment: 1, fixed: None };
/// let problem = Problem { buffers: vec![buffer(0, 2, 100), buffer(1, 3, 50)], ..Problem::default() };
/// let outcome = solve(&problem, Duration::from_secs(1))?;
/// assert!(outcome.optimal);
/// assert_eq!(outcome.plan.map(|plan| plan.peak), Some(150));
/// # Ok::<(), cachalot_planner::Unusable>(())
/// ```
pub fn solve(problem: &Problem, deadline: Duration) -> Result<Outcome, Unusable> {
    problem.check()?;
    let threads = available_parallelism().map_or(1, usize::from);
    Ok(minimise(problem, threads, Some(deadline), &mut |_, _, _| {}))
}

/// Searches for the lowest peak on `threads` threads, until a plan is proven optimal or the
/// deadline has passed.
///
/// `improved` receives every plan that is better than those before it, with the lower bound and the
/// name of the algorithm. The offsets of the plan depend on the timing of the threads. Its
/// validity, and proofs about it, do not.
pub fn minimise(
    problem: &Problem,
    threads: usize,
    deadline: Option<Duration>,
    improved: &mut dyn FnMut(&Plan, u64, &'static str),
) -> Outcome {
    let race = Race::new(problem, None, deadline);
    race.run(threads, improved);
    race.outcome()
}

/// Answers whether a problem fits into `capacity` bytes.
pub fn fits(
    problem: &Problem,
    capacity: u64,
    threads: usize,
    deadline: Option<Duration>,
    improved: &mut dyn FnMut(&Plan, u64, &'static str),
) -> (Outcome, Verdict) {
    let race = Race::new(problem, Some(capacity), deadline);
    race.run(threads, improved);
    let outcome = race.outcome();
    let verdict = match &outcome.plan {
        Some(plan) if plan.peak <= capacity => Verdict::Fits(plan.clone()),
        _ if outcome.lower_bound > capacity => Verdict::DoesNotFit,
        _ => Verdict::Undecided,
    };
    (outcome, verdict)
}

/// The state that the threads share.
struct Race<'a> {
    problem: &'a Problem,
    /// The question: whether a plan needs at most this many bytes, or which plan is the best if
    /// `None`.
    capacity: Option<u64>,
    end: Option<Instant>,
    /// The lower bound before the search.
    bound: u64,
    standing: Mutex<Standing>,
    /// The instance, which the first thread that needs it makes; `None` inside if the problem is
    /// too large.
    instance: OnceLock<Option<Arc<Instance>>>,
    next: AtomicU64,
    /// The next of the first runs, which aim at the lower bound.
    bound_run: AtomicU64,
    /// The work of those runs so far.
    bound_work: AtomicU64,
    nodes: AtomicU64,
    over: AtomicBool,
}

/// A better plan, with the lower bound and the algorithm, on its way to the caller's thread.
type News = (Plan, u64, &'static str);

impl<'a> Race<'a> {
    fn new(problem: &'a Problem, capacity: Option<u64>, deadline: Option<Duration>) -> Self {
        // The clock starts here, because the lower bound of a million buffers takes a second.
        let end = deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let standing = Standing::new(problem);
        let race = Self {
            problem,
            capacity,
            end,
            bound: standing.lower_bound(),
            standing: Mutex::new(standing),
            instance: OnceLock::new(),
            next: AtomicU64::new(0),
            bound_run: AtomicU64::new(0),
            bound_work: AtomicU64::new(0),
            nodes: AtomicU64::new(0),
            over: AtomicBool::new(false),
        };
        race.over.store(race.is_settled(&race.standing()), Ordering::Relaxed);
        race
    }

    fn run(&self, threads: usize, improved: &mut dyn FnMut(&Plan, u64, &'static str)) {
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                let sender = sender.clone();
                scope.spawn(move || self.work(&sender));
            }
            drop(sender);
            // This ends when every thread has dropped its sender.
            for (plan, lower_bound, algorithm) in receiver {
                improved(&plan, lower_bound, algorithm);
            }
        });
    }

    fn outcome(&self) -> Outcome {
        let standing = self.standing();
        Outcome {
            plan: standing.best().cloned(),
            lower_bound: standing.lower_bound(),
            optimal: standing.optimal(),
            algorithm: standing.algorithm(),
            nodes: self.nodes.load(Ordering::Relaxed),
        }
    }

    /// Does one job after the other, on one thread.
    fn work(&self, news: &Sender<News>) {
        let mut search = None;
        while !self.stop() {
            match self.job() {
                // Nothing but a deadline would end these.
                Job::Dive(_) if self.end.is_none() => break,
                Job::Dive(skyline) => self.plan(&skyline, news),
                Job::Heuristic(algorithm) => self.plan(algorithm, news),
                Job::Run(run) => {
                    if search.is_none() {
                        search = self.instance().map(|instance| Search::new(Arc::clone(instance)));
                        search.iter_mut().for_each(|search| self.search_at_bound(search, news));
                    }
                    if let Some(search) = &mut search {
                        let target = self.capacity.unwrap_or_else(|| self.standing().target(run));
                        self.search(search, run, target, &|_| false, news);
                    }
                }
            }
        }
        self.nodes.fetch_add(search.map_or(0, |search| search.nodes()), Ordering::Relaxed);
    }

    fn plan(&self, algorithm: &dyn Algorithm, news: &Sender<News>) {
        if let Some(plan) = algorithm.plan(self.problem, &mut Stop(self)) {
            self.keep(plan, algorithm.name(), news);
        }
    }

    fn job(&self) -> Job {
        let (number, buffers) = (self.next.fetch_add(1, Ordering::Relaxed), self.problem.buffers.len());
        match job(number, buffers, true) {
            Job::Run(_) if self.instance().is_none() => job(number, buffers, false),
            job => job,
        }
    }

    fn instance(&self) -> Option<&Arc<Instance>> {
        self.instance.get_or_init(|| Instance::of(Chains::of(self.problem)).map(Arc::new)).as_ref()
    }

    /// Makes the first runs, which aim at the lower bound before any other capacity is tried.
    fn search_at_bound(&self, search: &mut Search, news: &Sender<News>) {
        let spent = |work: u64| self.bound_work.fetch_add(work, Ordering::Relaxed) + work >= BOUND_FIRST;
        while self.capacity.is_none() && !spent(0) && !self.stop() && self.standing().searched() == self.bound {
            let run = self.bound_run.fetch_add(1, Ordering::Relaxed);
            self.search(search, run, self.bound, &spent, news);
        }
    }

    /// Makes one run of the search. `spent` receives the work since its last call, and says whether
    /// the run must end.
    fn search(&self, search: &mut Search, run: u64, target: u64, spent: &dyn Fn(u64) -> bool, news: &Sender<News>) {
        search.begin(run, target);
        loop {
            let before = search.work();
            let progress = search.advance(PATIENCE);
            let is_spent = spent(search.work() - before);
            if let Some(plan) = search.plan() {
                self.keep(plan, "exact", news);
            }
            let mut standing = self.standing();
            if progress == Progress::DoesNotFit {
                standing.refute(search.instance().next_peak(target), search.instance().proves());
                self.over.fetch_or(self.is_settled(&standing), Ordering::Relaxed);
            }
            let reached = standing.best().is_some_and(|best| best.peak <= target);
            drop(standing);
            if progress != Progress::Working || reached || is_spent || self.stop() {
                return;
            }
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        // Poison is ignored, because every change of the standing is complete before anything can
        // panic.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, plan: Plan, algorithm: &'static str, news: &Sender<News>) {
        let mut standing = self.standing();
        if standing.offer(plan.clone(), algorithm) {
            self.over.fetch_or(self.is_settled(&standing), Ordering::Relaxed);
            // Sent under the lock, so that plans arrive in order. The receiver outlives the
            // threads.
            let _ = news.send((plan, standing.lower_bound(), algorithm));
        }
    }

    /// Returns whether there is nothing left to do.
    fn is_settled(&self, standing: &Standing) -> bool {
        let answered =
            |capacity: u64| standing.searched() > capacity || standing.best().is_some_and(|best| best.peak <= capacity);
        standing.settled() || self.capacity.is_some_and(answered)
    }

    fn stop(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.end.is_some_and(|end| Instant::now() >= end)
    }
}

/// Stops an algorithm when the race is over.
struct Stop<'a>(&'a Race<'a>);

impl Watch for Stop<'_> {
    fn stop(&self) -> bool {
        self.0.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::{Race, fits, minimise, solve};
    use crate::exact::Verdict;
    use crate::squeaky_wheel::tests::cut;
    use crate::{Buffer, Problem, Unusable, verify};
    use alloc::vec::Vec;
    use std::sync::atomic::Ordering;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// `MiniMalloc`'s tricky problem: at most 4 bytes live at once, and 5 are needed.
    fn tricky() -> Problem {
        let lives = [(0, 1, 3), (0, 3, 1), (4, 5, 3), (2, 5, 1), (1, 2, 2), (3, 4, 2), (1, 4, 1)];
        let buffer = |(start, end, size)| Buffer { start, end, size, alignment: 1, fixed: None };
        Problem { buffers: lives.map(buffer).to_vec(), ..Problem::default() }
    }

    #[test]
    fn every_number_of_threads_proves_the_optimum() {
        for threads in [0, 1, 2, 5] {
            let mut peaks = Vec::new();
            let outcome = minimise(&tricky(), threads, None, &mut |plan, lower_bound, _| {
                verify(&tricky(), plan).expect("a plan");
                assert!((4..=5).contains(&lower_bound));
                peaks.push(plan.peak);
            });
            let plan = outcome.plan.expect("it has all the time");
            assert_eq!((plan.peak, outcome.lower_bound, outcome.optimal), (5, 5, true), "{threads} threads");
            assert!(peaks.is_sorted_by(|one, next| one > next), "{peaks:?}");
            assert_eq!(peaks.last(), Some(&5));
        }
    }

    #[test]
    fn a_capacity_is_answered_with_a_plan_or_a_proof() {
        let answer = |capacity| fits(&tricky(), capacity, 2, None, &mut |_, _, _| {}).1;
        assert_eq!([answer(0), answer(3), answer(4)], [Verdict::DoesNotFit, Verdict::DoesNotFit, Verdict::DoesNotFit]);
        for capacity in [5, 6, u64::MAX] {
            let Verdict::Fits(plan) = answer(capacity) else { panic!("{capacity} bytes are enough") };
            verify(&tricky(), &plan).expect("a plan");
            assert!(plan.peak <= capacity);
        }
    }

    #[test]
    fn no_time_is_no_answer() {
        let (outcome, verdict) = fits(&tricky(), 4, 2, Some(Duration::ZERO), &mut |_, _, _| {});
        assert_eq!((outcome.plan, verdict), (None, Verdict::Undecided));
    }

    #[test]
    fn a_problem_too_large_for_the_search_is_planned_until_the_deadline() {
        let problem = tricky();
        let race = Race::new(&problem, None, Some(Duration::from_secs(3600)));
        assert!(race.instance.set(None).is_ok(), "the search refuses the problem");
        let (sender, _receiver) = channel();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| race.work(&sender));
            // More jobs than there are algorithms.
            while race.next.load(Ordering::Relaxed) < 100 {
                assert!(!thread.is_finished(), "only {} jobs", race.next.load(Ordering::Relaxed));
                std::thread::yield_now();
            }
            race.over.store(true, Ordering::Relaxed);
        });
        assert_eq!(race.outcome().plan.map(|plan| plan.peak), Some(5));
    }

    #[test]
    fn solving_needs_a_problem_that_can_be_planned() {
        let outcome = solve(&tricky(), Duration::MAX).expect("a problem");
        assert_eq!((outcome.plan.map(|plan| plan.peak), outcome.optimal), (Some(5), true));
        assert_eq!(solve(&Problem::default(), Duration::MAX).map(|outcome| outcome.nodes), Err(Unusable::Empty));
    }

    #[test]
    fn the_search_tries_the_lower_bound_before_any_other_capacity() {
        let mut searched = 0;
        for seed in 0..12 {
            let problem = cut(120, seed);
            let outcome = minimise(&problem, 1, None, &mut |plan, lower_bound, algorithm| {
                if algorithm == "exact" {
                    assert_eq!((plan.peak, lower_bound), (1000, 1000), "seed {seed}");
                    searched += 1;
                }
            });
            assert!(outcome.optimal, "seed {seed}");
        }
        assert!(searched >= 6, "the other algorithms found all but {searched}");
    }
}
