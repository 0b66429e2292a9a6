//! Large generated programs: plans near the lower bound, in a short time.

use cachalot_planner::greedy::Greedy;
use cachalot_planner::pushdown::Pushdown;
use cachalot_planner::{Algorithm, lower_bound, verify};
use cachalot_tests::planning::large::{MODELS, training_step};

#[test]
fn twenty_thousand_buffers_within_a_hundredth_of_the_bound() {
    for model in MODELS {
        let problem = training_step(model, 20_000, 3);
        assert!((19_000..25_000).contains(&problem.buffers.len()), "{model:?}: {}", problem.buffers.len());
        problem.check().expect("a problem");
        let bound = lower_bound(&problem);
        let peaks = [&Pushdown as &dyn Algorithm, &Greedy::Size].map(|algorithm| {
            let plan = algorithm.plan(&problem, &mut ()).expect("nobody stops it");
            verify(&problem, &plan).unwrap_or_else(|fault| panic!("{}: {fault}", algorithm.name()));
            plan.peak
        });
        assert!(peaks.iter().min().is_some_and(|peak| peak * 100 <= bound * 101), "{model:?}: {peaks:?}, {bound}");
    }
}

#[test]
fn the_same_numbers_make_the_same_problem() {
    for model in MODELS {
        assert_eq!(training_step(model, 1000, 5), training_step(model, 1000, 5));
        assert_ne!(training_step(model, 1000, 5), training_step(model, 1000, 6));
    }
}
