//! Sizes that are no multiples of their alignments: an alignment rounds offsets, and never ends.
//! The planner agrees with a search through every order on random programs of few buffers.

use cachalot_planner::exact::{Verdict, fits};
use cachalot_planner::portfolio::Portfolio;
use cachalot_planner::{Buffer, HEURISTICS, Problem, lower_bound, verify};
use cachalot_tests::planning::brute::lowest_peak;

/// Pseudo-random numbers by Vigna's `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((mixed ^ (mixed >> 31)) >> 32) * bound) >> 32
    }
}

/// Returns a problem of one to `most` buffers of 1 to 12 bytes with alignments 1, 2, 4 and 8. One
/// in eight has a fixed offset for its first buffer.
fn problem(seed: u64, most: u64) -> Problem {
    let mut random = Random(seed);
    let count = 1 + random.below(most);
    let mut buffers: Vec<Buffer> = (0..count)
        .map(|_| {
            let start = random.below(4);
            let (end, size, alignment) = (start + 1 + random.below(4), 1 + random.below(12), 1 << random.below(4));
            Buffer { start, end, size, alignment, fixed: None }
        })
        .collect();
    if random.below(8) == 0 {
        buffers[0].fixed = Some(buffers[0].alignment * random.below(3));
    }
    Problem { buffers, ..Problem::default() }
}

/// What was compared: how many programs, in how many of them a rounded end would have been another
/// answer, and how many bounds before the search were already the optimum.
#[derive(Debug, Default, PartialEq, Eq)]
struct Compared {
    programs: u64,
    rounded_differs: u64,
    bound_is_optimum: u64,
}

fn compare(seeds: std::ops::Range<u64>, most: u64) -> Compared {
    let mut compared = Compared::default();
    for seed in seeds {
        let problem = problem(seed, most);
        problem.check().expect("a problem");
        let lowest = lowest_peak(&problem);
        let bound = lower_bound(&problem);
        assert!(bound <= lowest, "seed {seed}: the bound {bound} is above {lowest}: {problem:?}");
        let mut portfolio = Portfolio::new(&problem);
        portfolio.run(&mut ());
        let plan = portfolio.best().expect("nobody stops it");
        assert_eq!(verify(&problem, plan), Ok(()), "seed {seed}: {problem:?}");
        assert!(portfolio.optimal(), "seed {seed}: {problem:?}");
        assert_eq!((plan.peak, portfolio.lower_bound()), (lowest, lowest), "seed {seed}: {problem:?}");
        assert!(matches!(fits(&problem, lowest, &mut ()), Verdict::Fits(_)), "seed {seed}: {problem:?}");
        assert_eq!(fits(&problem, lowest - 1, &mut ()), Verdict::DoesNotFit, "seed {seed}: {problem:?}");
        for algorithm in HEURISTICS {
            let plan = algorithm.plan(&problem, &mut ()).expect("nobody stops it");
            assert_eq!(verify(&problem, &plan), Ok(()), "{}, seed {seed}: {problem:?}", algorithm.name());
        }
        let end = |(buffer, offset): (&Buffer, &u64)| (offset + buffer.size).next_multiple_of(buffer.alignment);
        let rounded = problem.buffers.iter().zip(&plan.offsets).map(end).max();
        compared.programs += 1;
        compared.rounded_differs += u64::from(rounded != Some(lowest));
        compared.bound_is_optimum += u64::from(bound == lowest);
    }
    compared
}

#[test]
fn peaks_bounds_and_verdicts_are_those_of_every_order_tried() {
    let compared = compare(0..3_000, 4);
    assert!(compared.rounded_differs > 1_000 && compared.bound_is_optimum > 2_000, "{compared:?}");
    compare(0..300, 6);
}

/// The campaign of `tests/results/plan_ends.csv`: half a minute, with `cargo test --release`.
#[test]
#[ignore = "a campaign: CACHALOT_SEEDS=200000 cargo test -p cachalot-tests --test planning campaign_of_ends -- --ignored --nocapture"]
fn campaign_of_ends() {
    let seeds = std::env::var("CACHALOT_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200_000);
    println!("{:?}", compare(0..seeds, 4));
}

#[test]
fn two_buffers_of_300_bytes_aligned_to_256_end_at_812() {
    let buffer = Buffer { start: 0, end: 3, size: 300, alignment: 256, fixed: None };
    let problem = Problem { buffers: vec![buffer, buffer], ..Problem::default() };
    assert_eq!(lower_bound(&problem), 812);
    assert!(matches!(fits(&problem, 812, &mut ()), Verdict::Fits(_)));
    assert_eq!(fits(&problem, 811, &mut ()), Verdict::DoesNotFit);
}

#[test]
fn one_buffer_needs_its_own_bytes_whatever_its_alignment() {
    let buffers = vec![Buffer { start: 0, end: 1, size: 100, alignment: 1 << 29, fixed: None }];
    let problem = Problem { buffers, ..Problem::default() };
    let mut portfolio = Portfolio::new(&problem);
    portfolio.run(&mut ());
    assert_eq!((portfolio.best().map(|plan| plan.peak), portfolio.lower_bound()), (Some(100), 100));
}

/// A buffer that leaves much of its last unit unused is best on top, although it lives as long as
/// all others together: no search may put it on the ground for good.
#[test]
fn the_buffer_with_the_most_unused_bytes_lies_on_top() {
    let buffer = |size| Buffer { start: 0, end: 2, size, alignment: 512, fixed: None };
    let problem = Problem { buffers: vec![buffer(300), buffer(512), buffer(500)], ..Problem::default() };
    assert!(matches!(fits(&problem, 1324, &mut ()), Verdict::Fits(_)));
    assert_eq!(fits(&problem, 1323, &mut ()), Verdict::DoesNotFit);
}
