//! The portfolio on several threads: each takes the next job, and all of them know the best plan.
//!
//! No run begins anew because another thread has found something; one whose capacity has been reached meanwhile is given up.

use cachalot_planner::exact::{Instance, PATIENCE, Progress, Search, Verdict};
use cachalot_planner::portfolio::{Job, Standing, job};
use cachalot_planner::{Chains, Plan, Problem, Watch};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What has come of a search for the lowest peak.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The best plan; `None` if there was no time for one.
    pub plan: Option<Plan>,
    /// No plan has a lower peak, in bytes.
    pub lower_bound: u64,
    /// Whether it is proven that no plan is better.
    pub optimal: bool,
    /// Who found the plan.
    pub algorithm: &'static str,
    /// How many nodes the exact search has taken, on all threads.
    pub nodes: u64,
}

/// Searches for the lowest peak on so many threads, until one is proven or the time is over.
///
/// `improved` sees every plan that is better than those before, with the lower bound and who found it. With several threads
/// it depends on their timing which plan is found; that it is one, and what is proven about it, does not.
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

/// Answers whether a problem fits into so many bytes.
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

/// What the threads share.
struct Race<'a> {
    problem: &'a Problem,
    /// What is asked: a plan within so many bytes, or the best one.
    capacity: Option<u64>,
    end: Option<Instant>,
    standing: Mutex<Standing>,
    /// Made by the first thread that needs it; `None` inside if the problem is too large.
    instance: OnceLock<Option<Arc<Instance>>>,
    next: AtomicU64,
    nodes: AtomicU64,
    over: AtomicBool,
}

/// A better plan, on its way to the caller's thread.
type News = (Plan, u64, &'static str);

impl<'a> Race<'a> {
    fn new(problem: &'a Problem, capacity: Option<u64>, deadline: Option<Duration>) -> Self {
        let race = Self {
            problem,
            capacity,
            end: deadline.map(|deadline| Instant::now() + deadline),
            standing: Mutex::new(Standing::new(problem)),
            instance: OnceLock::new(),
            next: AtomicU64::new(0),
            nodes: AtomicU64::new(0),
            over: AtomicBool::new(false),
        };
        race.over.store(race.is_settled(&race.standing.lock()), Ordering::Relaxed);
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
            // Ends when every thread has dropped its sender.
            for (plan, lower_bound, algorithm) in receiver {
                improved(&plan, lower_bound, algorithm);
            }
        });
    }

    fn outcome(&self) -> Outcome {
        let standing = self.standing.lock();
        Outcome {
            plan: standing.best().cloned(),
            lower_bound: standing.lower_bound(),
            optimal: standing.optimal(),
            algorithm: standing.algorithm(),
            nodes: self.nodes.load(Ordering::Relaxed),
        }
    }

    /// One thread: job after job.
    fn work(&self, news: &Sender<News>) {
        let mut search = None;
        while !self.stop() {
            match self.job() {
                None => break,
                Some(Job::Heuristic(algorithm)) => {
                    if let Some(plan) = algorithm.plan(self.problem, &mut Stop(self)) {
                        self.keep(plan, algorithm.name(), news);
                    }
                }
                Some(Job::Run(run)) => {
                    if search.is_none() {
                        search = self.instance().map(|instance| Search::new(Arc::clone(instance)));
                    }
                    if let Some(search) = &mut search {
                        self.search(search, run, news);
                    }
                }
            }
        }
        self.nodes.fetch_add(search.map_or(0, |search| search.nodes()), Ordering::Relaxed);
    }

    fn job(&self) -> Option<Job> {
        let (number, buffers) = (self.next.fetch_add(1, Ordering::Relaxed), self.problem.buffers.len());
        match job(number, buffers, true) {
            Some(Job::Run(_)) if self.instance().is_none() => job(number, buffers, false),
            job => job,
        }
    }

    fn instance(&self) -> Option<&Arc<Instance>> {
        self.instance.get_or_init(|| Instance::of(Chains::of(self.problem)).map(Arc::new)).as_ref()
    }

    /// One run of the search.
    fn search(&self, search: &mut Search, run: u64, news: &Sender<News>) {
        let target = self.capacity.unwrap_or_else(|| self.standing.lock().target(run));
        search.begin(run, target);
        loop {
            let progress = search.advance(PATIENCE);
            if let Some(plan) = search.plan() {
                self.keep(plan, "exact", news);
            }
            let mut standing = self.standing.lock();
            if progress == Progress::DoesNotFit {
                standing.refute(search.instance().next_peak(target), search.instance().proves());
                self.over.fetch_or(self.is_settled(&standing), Ordering::Relaxed);
            }
            let reached = standing.best().is_some_and(|best| best.peak <= target);
            drop(standing);
            if progress != Progress::Working || reached || self.stop() {
                return;
            }
        }
    }

    fn keep(&self, plan: Plan, algorithm: &'static str, news: &Sender<News>) {
        let mut standing = self.standing.lock();
        if standing.offer(plan.clone(), algorithm) {
            self.over.fetch_or(self.is_settled(&standing), Ordering::Relaxed);
            // Under the lock, so that they arrive in order. The receiver outlives the threads.
            let _ = news.send((plan, standing.lower_bound(), algorithm));
        }
    }

    /// Whether there is nothing left to do.
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
    use super::{fits, minimise};
    use cachalot_planner::exact::Verdict;
    use cachalot_planner::{Buffer, Problem, verify};
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
}
