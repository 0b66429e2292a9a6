//! The figures of `MegEngine`'s tests of its static memory allocators (`static_mem_alloc.cpp`), for
//! every alignment and padding in the original.

use cachalot_planner::best_fit::BestFit;
use cachalot_planner::interval_move::IntervalMove;
use cachalot_planner::pushdown::Pushdown;
use cachalot_planner::{Algorithm, Buffer, Overwrite, Plan, Problem, lower_bound, verify};

const ALGORITHMS: [&dyn Algorithm; 3] = [&IntervalMove, &BestFit, &Pushdown];

/// Builds a problem from buffers as (start, end, size without padding), and overwrites as (writer,
/// target, offset).
fn problem(buffers: &[(u64, u64, u64)], overwrites: &[(u32, u32, u64)], (alignment, padding): (u64, u64)) -> Problem {
    let buffer = |&(start, end, size): &_| Buffer { start, end, size: size + padding, alignment, fixed: None };
    let pair = |&(writer, target, offset): &_| Overwrite { writer, target, offset };
    let (buffers, overwrites) = (buffers.iter().map(buffer).collect(), overwrites.iter().map(pair).collect());
    Problem { buffers, overwrites, ..Problem::default() }
}

fn solve(algorithm: &dyn Algorithm, problem: &Problem) -> Plan {
    problem.check().expect("a problem");
    let plan = algorithm.plan(problem, &mut ()).expect("nobody stops it");
    verify(problem, &plan).unwrap_or_else(|fault| panic!("{}: {fault}", algorithm.name()));
    assert!(plan.peak >= lower_bound(problem), "{}", algorithm.name());
    plan
}

/// Solves a problem with three algorithms, alignments 1 and 2, and paddings 1 and 2. Peak and bound
/// must equal `expected`. `MegEngine` rounds each padded size up to the alignment.
fn expect(
    buffers: &[(u64, u64, u64)],
    overwrites: &[(u32, u32, u64)],
    expected: impl Fn(&dyn Fn(u64) -> u64, u64) -> u64,
) {
    for (alignment, padding) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let mut problem = problem(buffers, overwrites, (alignment, padding));
        problem.buffers.iter_mut().for_each(|buffer| buffer.size = buffer.size.next_multiple_of(alignment));
        let expected = expected(&|size: u64| size.next_multiple_of(alignment), padding);
        assert_eq!(lower_bound(&problem), expected, "alignment {alignment}, padding {padding}");
        for algorithm in ALGORITHMS {
            let plan = solve(algorithm, &problem);
            let name = algorithm.name();
            assert_eq!(plan.peak, expected, "{name}, alignment {alignment}, padding {padding}");
        }
    }
}

#[test]
fn alloc() {
    expect(&[(0, 1, 1), (0, 1, 1), (1, 2, 2)], &[], |align, pad| align(2 + pad).max(2 * align(1 + pad)));
}

#[test]
fn overwrite() {
    expect(&[(0, 2, 3), (1, 3, 1), (2, 4, 1)], &[(1, 0, 1), (2, 1, 0)], |align, pad| align(3 + pad));
}

#[test]
fn overwrite_same_end() {
    expect(&[(0, 2, 1), (1, 2, 1)], &[(1, 0, 0)], |align, pad| align(1 + pad));
}

fn chain(count: u64) -> Problem {
    let buffers: Vec<_> = (0..count).map(|at| (at, at + 2, at + 1)).collect();
    problem(&buffers, &[], (1, 0))
}

#[test]
fn pushdown_chain() {
    let problem = chain(5);
    assert_eq!(lower_bound(&problem), 9);
    assert_eq!(solve(&Pushdown, &problem).peak, 9);
}

#[test]
fn pushdown_consistence() {
    let mut problem = chain(100);
    assert_eq!(lower_bound(&problem), 199);
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..500 {
        random.shuffle(&mut problem.buffers);
        assert_eq!(solve(&Pushdown, &problem).peak, 199);
    }
}

/// `RandomOpr`: a fifth of the buffers overwrite an earlier buffer; half of these targets are
/// writers themselves.
fn random_operators(count: u32, settings: (u64, u64), random: &mut fastrand::Rng) -> Problem {
    let mut buffers: Vec<(u64, u64, u64)> = Vec::new();
    let mut overwrites: Vec<(u32, u32, u64)> = Vec::new();
    for number in 0..count {
        let target = if number > 0 && random.u32(..5) == 0 {
            match overwrites.len() {
                writers if writers > 0 && random.bool() => Some(overwrites[random.usize(..writers)].0),
                _ => Some(random.u32(..number)),
            }
        } else {
            None
        };
        let life = random.u64(1..50);
        if let Some(target) = target {
            let (_, end, size) = buffers[target as usize];
            let offset = random.u64(..size);
            overwrites.push((number, target, offset));
            buffers.push((end - 1, end - 1 + life, random.u64(1..=size - offset)));
        } else {
            let start = random.u64(..u64::from(count));
            buffers.push((start, start + life, random.u64(1..4096)));
        }
    }
    problem(&buffers, &overwrites, settings)
}

fn random(counts: &[u32]) {
    let mut random = fastrand::Rng::with_seed(0);
    for &count in counts {
        for settings in [(1, 1), (1, 32), (256, 1), (256, 32)] {
            let problem = random_operators(count, settings, &mut random);
            assert!(count < 100 || problem.overwrites.len() as u32 >= count / 10);
            for algorithm in ALGORITHMS {
                // MegEngine leaves it out there, too.
                if count <= 400 || algorithm.name() != "interval-move" {
                    solve(algorithm, &problem);
                }
            }
        }
    }
}

#[test]
fn random_operators_10() {
    random(&[10; 20]);
}

#[test]
fn random_operators_400() {
    random(&[400]);
}

#[test]
fn random_operators_1000() {
    random(&[1000]);
}

#[test]
fn random_operators_10000() {
    random(&[10_000]);
}
