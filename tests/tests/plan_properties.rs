//! Properties of all algorithms: every plan is valid, independent of the input order, and not below
//! the bound; the verifier detects invalid plans.

use cachalot_planner::best_fit::BestFit;
use cachalot_planner::exact::Skyline;
use cachalot_planner::pushdown::Pushdown;
use cachalot_planner::{
    Algorithm, Buffer, Colocation, HEURISTICS, Overwrite, Plan, Problem, Watch, lower_bound, verify,
};
use cachalot_tests::planning::large::{MODELS, training_step};
use cachalot_tests::planning::{naive, problems};
use cachalot_tests::strategies::proptest_config;
use proptest::prelude::*;
use proptest::sample::Index;
use std::cell::Cell;

/// Reorders the buffers of a problem: `order[i]` is the old number of buffer `i`.
fn reordered(problem: &Problem, order: &[usize]) -> Problem {
    let mut new = vec![0; order.len()];
    for (number, &old) in order.iter().enumerate() {
        new[old] = number as u32;
    }
    let pair = |pair: &Overwrite| Overwrite {
        writer: new[pair.writer as usize],
        target: new[pair.target as usize],
        offset: pair.offset,
    };
    let place = |pair: &Colocation| Colocation { first: new[pair.first as usize], second: new[pair.second as usize] };
    Problem {
        buffers: order.iter().map(|&old| problem.buffers[old]).collect(),
        overwrites: problem.overwrites.iter().map(pair).collect(),
        colocations: problem.colocations.iter().map(place).collect(),
    }
}

/// Lists every buffer with its offset, sorted: equal buffers may swap places.
fn placed(problem: &Problem, plan: &Plan) -> Vec<(u64, u64, u64, u64, Option<u64>, u64)> {
    let content = |(buffer, &offset): (&Buffer, &u64)| {
        (buffer.start, buffer.end, buffer.size, buffer.alignment, buffer.fixed, offset)
    };
    let mut placed: Vec<_> = problem.buffers.iter().zip(&plan.offsets).map(content).collect();
    placed.sort_unstable();
    placed
}

#[test]
fn places_that_differ_only_in_whose_alignment_is_strict_are_told_apart() {
    let buffer = |start, alignment| Buffer { start, end: start + 1, size: 8, alignment, fixed: None };
    let buffers = vec![buffer(0, 16), buffer(0, 1), buffer(1, 1), buffer(1, 16)];
    let colocations = vec![Colocation { first: 0, second: 2 }, Colocation { first: 1, second: 3 }];
    let problem = Problem { buffers, colocations, ..Problem::default() };
    let other = reordered(&problem, &[1, 0, 2, 3]);
    for algorithm in HEURISTICS {
        let [one, two] = [&problem, &other].map(|problem| algorithm.plan(problem, &mut ()).expect("a plan"));
        assert_eq!(placed(&problem, &one), placed(&other, &two), "{}", algorithm.name());
    }
}

/// Stops an algorithm at its `last` question, and counts the questions.
struct Questions {
    asked: Cell<usize>,
    last: usize,
}

impl Watch for Questions {
    fn stop(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.asked.get() >= self.last
    }
}

/// Runs an algorithm, and returns the number of its questions.
fn asked(algorithm: &dyn Algorithm, problem: &Problem, last: usize) -> usize {
    let mut watch = Questions { asked: Cell::new(0), last };
    let _ = algorithm.plan(problem, &mut watch);
    watch.asked.get()
}

#[test]
fn every_algorithm_asks_again_and_again_and_ends_when_it_is_told_to() {
    let [many, few] = [6_000, 300].map(|buffers| training_step(MODELS[0], buffers, 1));
    for algorithm in HEURISTICS {
        // The last two take minutes for many buffers, and ask at each of their steps.
        let is_slow = ["hill-climb", "interval-move"].contains(&algorithm.name());
        let problem = if is_slow { &few } else { &many };
        let all = asked(algorithm, problem, usize::MAX);
        assert!(all >= problem.buffers.len() / 1_024, "{}: {all} questions", algorithm.name());
        for last in 1..=all.min(12) {
            assert_eq!(asked(algorithm, problem, last), last, "{}", algorithm.name());
        }
    }
}

#[test]
fn a_plan_made_anew_for_a_fixed_offset_asks_and_ends_too() {
    let free = training_step(MODELS[0], 6_000, 1);
    let mut fixed = free.clone();
    fixed.buffers[0].fixed = Some(0);
    for algorithm in [&Pushdown as &dyn Algorithm, &BestFit, &Skyline(0)] {
        let all = asked(algorithm, &fixed, usize::MAX);
        let more = all - asked(algorithm, &free, usize::MAX);
        assert!(more >= free.buffers.len() / 1_024, "{}: {more} more questions", algorithm.name());
        assert_eq!(asked(algorithm, &fixed, all - 1), all - 1, "{}", algorithm.name());
    }
}

proptest! {
    #![proptest_config(proptest_config("regressions/plan_properties.txt", 300))]

    #[test]
    fn every_plan_is_one(problem in problems::problem(24)) {
        prop_assert_eq!(problem.check(), Ok(()));
        let bound = lower_bound(&problem);
        for algorithm in HEURISTICS {
            let plan = algorithm.plan(&problem, &mut ()).expect("nobody stops it");
            prop_assert_eq!(verify(&problem, &plan), Ok(()), "{}", algorithm.name());
            prop_assert!(naive::is_plan(&problem, &plan), "{}", algorithm.name());
            prop_assert!(plan.peak >= bound, "{}: {} is below {}", algorithm.name(), plan.peak, bound);
        }
    }

    #[test]
    fn the_order_of_the_input_moves_nothing(
        (problem, order) in problems::problem(24).prop_flat_map(|problem| {
            let order: Vec<usize> = (0..problem.buffers.len()).collect();
            (Just(problem), Just(order).prop_shuffle())
        }),
    ) {
        let other = reordered(&problem, &order);
        prop_assert_eq!(lower_bound(&problem), lower_bound(&other));
        for algorithm in HEURISTICS {
            let [one, two] = [&problem, &other].map(|problem| algorithm.plan(problem, &mut ()).expect("a plan"));
            prop_assert_eq!(one.peak, two.peak, "{}", algorithm.name());
            prop_assert_eq!(placed(&problem, &one), placed(&other, &two), "{}", algorithm.name());
        }
    }

    #[test]
    fn the_verifier_sees_what_the_naive_one_sees(
        problem in problems::problem(8),
        which in any::<Index>(),
        moves in prop::collection::vec((any::<Index>(), -9..9_i64), 0..3),
        peak in prop_oneof![4 => Just(0_u64), 1 => 1..3_u64],
    ) {
        let mut plan = HEURISTICS[which.index(HEURISTICS.len())].plan(&problem, &mut ()).expect("a plan");
        for (buffer, by) in moves {
            let offset = &mut plan.offsets[buffer.index(problem.buffers.len())];
            *offset = offset.saturating_add_signed(by);
        }
        let targets = naive::targets(&problem);
        let alignments = naive::alignments(&problem);
        let roots = (0..targets.len()).filter(|&number| targets[number].is_none());
        let end = |number: usize| {
            (plan.offsets[number] + problem.buffers[number].size).next_multiple_of(alignments[number])
        };
        plan.peak = roots.map(end).max().expect("a buffer") + peak;
        prop_assert_eq!(verify(&problem, &plan).is_ok(), naive::is_plan(&problem, &plan));
    }

    #[test]
    fn the_bound_is_the_load_where_nothing_is_aligned_or_fixed(problem in problems::movable(24)) {
        let load = naive::load(&problem);
        let bound = lower_bound(&problem);
        if problem.buffers.iter().all(|buffer| buffer.alignment == 1) {
            prop_assert_eq!(bound, load);
        }
        prop_assert!(bound >= load);
    }
}
