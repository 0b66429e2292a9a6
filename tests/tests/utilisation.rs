//! Utilisation of recorded programs under the stitched policy, with sizes and waits outside the
//! tuning of the policy.

use cachalot_core::simulated::DriverCosts;
use cachalot_replay::compare::{CompareOptions, Contender, compare};
use cachalot_replay::program::LeftOut;
use cachalot_replay::trace::Trace;
use std::path::Path;

/// Runs a recorded program with all sizes multiplied, several times on one allocator. Returns the
/// peak of live memory over the peak of held memory. With `waits`, memory used by other streams is
/// free at the recorded completion, and otherwise at once.
fn utilisation(name: &str, size_factor: f64, passes: u32, waits: bool) -> f64 {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces").join(format!("{name}.csv.gz"));
    let traces = Trace::load(&file).expect("the record is valid");
    let options = CompareOptions {
        contenders: vec![Contender::parse("policy:stitched").expect("the configuration is valid")],
        limit: None,
        limit_factor: None,
        left_out: LeftOut { empty_cache: true, record_stream: !waits, captures: true },
        size_factor,
        passes,
        repeat: 0,
        costs: DriverCosts::h200(),
        work_done_at_once: !waits,
        upkeep_us: 0,
    };
    let compared = compare(&traces[0], &options).expect("the program runs");
    compared.figures[0].as_ref().expect("no call is refused").utilisation()
}

/// A request of half the memory consists of long pages. Only the pages beyond the budget are short.
#[test]
fn programs_of_other_sizes_use_what_is_held() {
    for (size_factor, least) in [(1.37, 0.96), (2.9, 0.96)] {
        let used = utilisation("llm_generate", size_factor, 6, false);
        assert!(used >= least, "sizes × {size_factor}: {used:.4}");
    }
}

/// The memory held twice because of waits for another stream's work is at most 3.6 % of the peak.
#[test]
fn programs_of_several_streams_hold_little_more_than_is_live() {
    for name in ["multistream_prefetch", "multistream_prefetch__expandable"] {
        for (passes, least) in [(1, 0.95), (6, 0.95)] {
            let used = utilisation(name, 1.0, passes, true);
            assert!(used >= least, "{name}, {passes} passes: {used:.4}");
        }
    }
}
