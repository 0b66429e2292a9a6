//! Properties of the exact search: agreement with a brute-force search, and with itself.

use cachalot_planner::exact::{Instance, Progress, Search, Skyline, Verdict, fits};
use cachalot_planner::portfolio::{Exact, Portfolio, Sequential};
use cachalot_planner::{Algorithm, Buffer, Chains, Plan, Problem, lower_bound, verify};
use cachalot_tests::planning::brute::lowest_peak;
use cachalot_tests::planning::problems;
use cachalot_tests::strategies::proptest_config;
use proptest::prelude::*;
use std::sync::Arc;

/// Generates problems of up to `most` buffers with alignments and fixed offsets, without overwrites
/// and colocations.
fn plain(most: usize) -> impl Strategy<Value = Problem> {
    shared(most).prop_map(|mut problem| {
        problem.colocations.clear();
        problem
    })
}

/// Generates problems of up to `most` buffers with alignments, fixed offsets and colocations,
/// without overwrites.
fn shared(most: usize) -> impl Strategy<Value = Problem> {
    problems::problem(most).prop_map(|mut problem| {
        problem.overwrites.clear();
        problem
    })
}

fn search(problem: &Problem) -> Search {
    Search::new(Arc::new(Instance::of(Chains::of(problem)).expect("it is small")))
}

/// Lists the buffers with their offsets, sorted: equal for equal plans, whatever the order of the
/// buffers.
fn content(problem: &Problem, plan: &Plan) -> Vec<(u64, u64, u64, u64, Option<u64>, u64)> {
    let line = |(buffer, &offset): (&Buffer, &u64)| {
        (buffer.start, buffer.end, buffer.size, buffer.alignment, buffer.fixed, offset)
    };
    let mut lines: Vec<_> = problem.buffers.iter().zip(&plan.offsets).map(line).collect();
    lines.sort_unstable();
    lines
}

proptest! {
    #![proptest_config(proptest_config("regressions/plan_exact_properties.txt", 300))]

    #[test]
    fn finds_the_lowest_peak_and_refutes_the_next(problem in plain(7)) {
        let lowest = lowest_peak(&problem);
        let plan = Exact.plan(&problem, &mut ()).expect("nobody stops it");
        prop_assert_eq!(verify(&problem, &plan), Ok(()));
        prop_assert_eq!(plan.peak, lowest);
        prop_assert_eq!(fits(&problem, lowest - 1, &mut ()), Verdict::DoesNotFit);
    }

    #[test]
    fn every_run_agrees(problem in plain(7)) {
        let lowest = lowest_peak(&problem);
        let mut search = search(&problem);
        for run in 0..24 {
            search.begin(run, lowest);
            prop_assert_eq!(search.advance(u64::MAX), Progress::Fits, "run {}", run);
            let plan = search.plan().expect("it fits");
            prop_assert_eq!(verify(&problem, &plan), Ok(()));
            prop_assert_eq!(plan.peak, lowest);
            search.begin(run, lowest - 1);
            prop_assert_eq!(search.advance(u64::MAX), Progress::DoesNotFit, "run {}", run);
        }
    }

    #[test]
    fn the_portfolio_proves_its_optimum(problem in plain(7)) {
        let mut portfolio = Portfolio::new(&problem);
        portfolio.run(&mut ());
        let plan = portfolio.best().expect("nobody stops it");
        prop_assert_eq!(verify(&problem, plan), Ok(()));
        prop_assert!(portfolio.optimal() && portfolio.finished());
        prop_assert_eq!((plan.peak, portfolio.lower_bound()), (lowest_peak(&problem), lowest_peak(&problem)));
    }

    #[test]
    fn no_two_runs_contradict_each_other(problem in plain(16), spare in 0..3_u64) {
        let capacity = lower_bound(&problem) + spare;
        let mut search = search(&problem);
        let mut verdict = Progress::Spent;
        for run in 0..12 {
            search.begin(run, capacity);
            let progress = search.advance(u64::MAX);
            if let Some(plan) = search.plan() {
                prop_assert_eq!(verify(&problem, &plan), Ok(()));
                prop_assert!(plan.peak <= capacity);
            }
            if progress != Progress::Spent {
                prop_assert!(verdict == Progress::Spent || progress == verdict, "run {}: {:?}, not {:?}", run, progress, verdict);
                verdict = progress;
            }
        }
    }

    #[test]
    fn nothing_false_is_proven_of_buffers_that_share_a_place(problem in shared(7)) {
        let lowest = lowest_peak(&problem);
        let mut portfolio = Portfolio::new(&problem);
        for _ in 0..40 {
            portfolio.step(&mut ());
        }
        let plan = portfolio.best().expect("the heuristics have answered");
        prop_assert_eq!(verify(&problem, plan), Ok(()));
        prop_assert!(portfolio.lower_bound() <= lowest && lowest <= plan.peak, "{} is the lowest peak", lowest);
        if !problem.colocations.is_empty() {
            prop_assert!(fits(&problem, lowest, &mut ()) != Verdict::DoesNotFit);
        }
    }

    #[test]
    fn overwrites_and_colocations_are_planned_with(problem in problems::problem(10)) {
        let mut portfolio = Portfolio::new(&problem);
        for _ in 0..40 {
            portfolio.step(&mut ());
        }
        let plan = portfolio.best().expect("the heuristics have answered");
        prop_assert_eq!(verify(&problem, plan), Ok(()));
        prop_assert!(lower_bound(&problem) <= portfolio.lower_bound() && portfolio.lower_bound() <= plan.peak);
        prop_assert_eq!(portfolio.optimal(), plan.peak == portfolio.lower_bound());
    }

    #[test]
    fn a_dive_leaves_no_buffer_hanging(problem in problems::movable(30), run in 0..12_u64) {
        let plan = Skyline(run).plan(&problem, &mut ()).expect("nobody stops it");
        prop_assert_eq!(verify(&problem, &plan), Ok(()));
        // Something of the same time lies right below everything that lies above the ground, but
        // for its alignment.
        if problem.overwrites.is_empty() && problem.colocations.is_empty() {
            let all = || problem.buffers.iter().zip(&plan.offsets);
            for (buffer, &offset) in all() {
                let under = all().filter(|(other, at)| other.start < buffer.end && buffer.start < other.end && **at < offset);
                let roof = under.map(|(other, at)| at + other.size).max().unwrap_or(0);
                prop_assert!(offset < roof.next_multiple_of(buffer.alignment) + 16, "{:?} at {} over {}", buffer, offset, roof);
            }
        }
    }

    #[test]
    fn the_order_of_input_makes_no_difference(problem in plain(10), turn in 0..10_usize) {
        let mut turned = problem.clone();
        turned.buffers.rotate_left(turn % problem.buffers.len());
        turned.buffers.reverse();
        let algorithms: [&dyn Algorithm; 4] = [&Exact, &Sequential, &Skyline(0), &Skyline(12)];
        for algorithm in algorithms {
            let plan = |problem: &Problem| algorithm.plan(problem, &mut ()).expect("nobody stops it");
            prop_assert_eq!(content(&problem, &plan(&problem)), content(&turned, &plan(&turned)), "{}", algorithm.name());
        }
    }

    #[test]
    fn a_run_begun_after_another_was_left_is_as_if_there_had_been_none(
        problem in plain(12), left in 0..60_u64, runs in (0..20_u64, 0..20_u64),
    ) {
        let capacity = lower_bound(&problem);
        let mut used = search(&problem);
        used.begin(runs.0, capacity + 1);
        // In pieces, as a portfolio does it.
        (0..left).for_each(|_| { used.advance(1); });
        used.begin(runs.1, capacity);
        let mut fresh = search(&problem);
        fresh.begin(runs.1, capacity);
        while fresh.advance(1) == Progress::Working {}
        prop_assert_eq!(used.advance(u64::MAX), fresh.advance(u64::MAX));
        prop_assert_eq!(used.plan(), fresh.plan());
    }
}
