//! Published examples of other planners: TensorFlow Lite Micro's `GreedyMemoryPlanner`, XLA's
//! `HeapSimulator`, TVM's `hill_climb`.

use cachalot_planner::greedy::Greedy;
use cachalot_planner::hill_climb::HillClimb;
use cachalot_planner::{Algorithm, Buffer, Colocation, HEURISTICS, Plan, Problem, lower_bound, verify};
use cachalot_tests::planning::instances;

/// Builds a problem from buffers as (start, end, size) with half-open lives.
fn problem(buffers: &[(u64, u64, u64)], alignment: u64) -> Problem {
    let buffer = |&(start, end, size): &_| Buffer { start, end, size, alignment, fixed: None };
    Problem { buffers: buffers.iter().map(buffer).collect(), ..Problem::default() }
}

fn solve(algorithm: &dyn Algorithm, problem: &Problem) -> Plan {
    problem.check().expect("a problem");
    let plan = algorithm.plan(problem, &mut ()).expect("nobody stops it");
    verify(problem, &plan).unwrap_or_else(|fault| panic!("{}: {fault}", algorithm.name()));
    plan
}

/// Builds a problem from buffers as (size, first step, last step).
fn micro(buffers: &[(u64, u64, u64)]) -> Problem {
    problem(&buffers.iter().map(|&(size, first, last)| (first, last + 1, size)).collect::<Vec<_>>(), 1)
}

#[test]
fn micro_basics() {
    let plan = solve(&Greedy::Size, &micro(&[(10, 0, 1), (20, 2, 3)]));
    assert_eq!((plan.peak, plan.offsets), (20, vec![0, 0]));
}

#[test]
fn micro_medium() {
    let plan = solve(&Greedy::Size, &micro(&[(10, 0, 1), (20, 1, 2), (30, 2, 3), (40, 3, 4), (50, 0, 1)]));
    assert_eq!((plan.peak, plan.offsets), (90, vec![50, 70, 40, 0, 0]));
}

#[test]
fn micro_overlap() {
    assert_eq!(solve(&Greedy::Size, &micro(&[(100, 0, 1), (50, 2, 3), (20, 1, 2)])).peak, 120);
}

#[test]
fn micro_person_detection() {
    let Some(problem) = instances::read("tflm_person_detection.csv", "micro_person_detection") else { return };
    assert_eq!((problem.buffers.len(), problem.buffers.iter().map(|buffer| buffer.size).sum()), (30, 241_027));
    assert_eq!(lower_bound(&problem), 64_512);
    assert_eq!(solve(&Greedy::Size, &problem).peak, 64_512);
}

#[test]
fn xla_all_at_once() {
    let plan = solve(&Greedy::Size, &problem(&[(0, 9, 10), (1, 9, 30), (2, 9, 20), (3, 9, 40)], 1));
    assert_eq!((plan.peak, plan.offsets), (100, vec![90, 40, 70, 0]));
}

#[test]
fn xla_alignment() {
    // a, b and c live; a is freed, then d comes. XLA's numbers times 4/5: its alignment of 20 is no
    // power of two.
    let plan = solve(&Greedy::Size, &problem(&[(0, 3, 8), (1, 9, 16), (2, 9, 40), (4, 9, 32)], 16));
    assert_eq!((plan.peak, plan.offsets), (96, vec![48, 80, 0, 48]));
}

#[test]
fn xla_best_fit() {
    let plan = solve(&Greedy::Size, &problem(&[(0, 3, 10), (1, 9, 20), (2, 9, 40), (4, 9, 30), (5, 9, 50)], 1));
    assert_eq!((plan.peak, plan.offsets), (140, vec![90, 120, 50, 90, 0]));
}

/// XLA's default, `GlobalDecreasingSizeBestFit`, is `Greedy::Size`: all peaks and offsets agree.
#[test]
fn xla_colocated() {
    // a lives in step 0, b from step 1 on, c in step 2; c lies where a does. The sizes, b's end,
    // the peak, the offsets of a and b.
    for (name, sizes, end, peak, places) in [
        ("Colocated", [40, 20, 40], 2, 40, [0, 0]),
        ("ColocatedII", [40, 20, 40], 4, 60, [0, 40]),
        ("ColocatedIII", [10, 30, 10], 4, 40, [30, 0]),
        ("ColocatedDifferentSize1", [40, 20, 30], 4, 50, [0, 30]),
        ("ColocatedDifferentSize2", [40, 20, 50], 4, 70, [0, 50]),
    ] {
        let [a, b, c] = sizes;
        let mut problem = problem(&[(0, 1, a), (1, end, b), (2, 3, c)], 1);
        problem.colocations.push(Colocation { first: 2, second: 0 });
        let plan = solve(&Greedy::Size, &problem);
        assert_eq!((plan.peak, plan.offsets), (peak, vec![places[0], places[1], places[0]]), "{name}");
        assert_eq!(lower_bound(&problem), peak, "{name}");
        for algorithm in HEURISTICS {
            let found = solve(algorithm, &problem).peak;
            // Interval move alone lays the place above b, where a's 40 bytes reach higher than c's
            // 30.
            let above = u64::from(algorithm.name() == "interval-move" && c < a) * 10;
            assert_eq!(found, peak + above, "{name}: {}", algorithm.name());
        }
    }
}

#[test]
fn tvm_hill_climb_reaches_the_bound() {
    for (name, peak) in [("alloc_max", 67_600), ("simple", 216_096), ("deep_speech", 100_352), ("five", 176_923)] {
        let Some(problem) = instances::read(&format!("{name}.csv"), "tvm_hill_climb_reaches_the_bound") else { return };
        assert_eq!(lower_bound(&problem), peak, "{name}");
        assert_eq!(solve(&HillClimb::TVM, &problem).peak, peak, "{name}");
    }
}

#[test]
fn every_heuristic_has_a_name_of_its_own() {
    let mut names: Vec<_> = HEURISTICS.iter().map(|algorithm| algorithm.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), HEURISTICS.len());
}
