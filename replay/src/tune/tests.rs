//! Tests of the search on made programs.

use super::*;
use crate::program::{Operation, Program};
use crate::replay;
use crate::trace::Trace;
use cachalot_core::simulated::DriverCosts;
use cachalot_core::{Config, StreamId};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

const MIB: u64 = 1 << 20;

fn malloc(bytes: u64, slot: u32) -> Operation {
    Operation::Malloc { bytes, stream: StreamId::DEFAULT, slot }
}

fn part(name: &str, operations: Vec<Operation>, slots: u32) -> Part {
    Part { name: name.to_owned(), program: Program { operations, slots, start: 0 }, ..Part::default() }
}

/// Returns steps with three growing blocks. By default each block needs its own segment. Expandable
/// segments need only the memory of the last step.
fn growing(name: &str, first: u64, steps: u64) -> Part {
    let step = |step: u64| {
        let blocks = (0..3).map(move |slot| malloc((first + step) * 2 * MIB, slot));
        blocks.chain((0..3).map(|slot| Operation::Free { slot }))
    };
    part(name, (0..steps).flat_map(step).collect(), 3)
}

/// Blocks of 21 MiB: segments of 22 MiB by default, and pages of 20 MiB in expandable segments.
fn odd(name: &str) -> Part {
    part(name, (0..2).map(|slot| malloc(21 * MIB, slot)).collect(), 2)
}

fn search(parts: &Parts, options: &Options) -> Outcome {
    tune(parts, options, &mut |_| ()).expect("the baseline serves the programs")
}

fn every_policy() -> Options {
    Options { policies: cachalot_policies::POLICIES, ..Options::default() }
}

fn short() -> Options {
    Options { trials: 24, ..every_policy() }
}

#[test]
fn a_gain_that_holds_is_recommended() {
    let parts = Parts { seen: vec![growing("a", 20, 8)], held: vec![growing("b", 31, 9)], halves: false };
    let outcome = search(&parts, &short());
    for best in [outcome.torch, outcome.cachalot] {
        let best = &outcome.tried[best.expect("a recommendation")];
        assert_eq!(best.note, Note::Best);
        let held = best.held_back.as_ref().expect("it was checked");
        assert!(best.seen.memory_change < -0.5 && held.memory_change < -0.5, "{best:?}");
    }
    assert!(outcome.tried[outcome.torch.expect("a recommendation")].is_of_torch);
    assert_eq!((outcome.tried[0].note, outcome.stopped), (Note::Baseline, false));
}

#[test]
fn what_loses_on_a_program_held_back_is_not_recommended() {
    let seen = vec![growing("a", 20, 8)];
    let (free, bound) =
        (Parts { seen: seen.clone(), ..Parts::default() }, Parts { seen, held: vec![odd("b")], halves: false });
    let options = Options { torch_only: true, ..short() };
    // Unchecked, expandable segments are tempting.
    let tempting = search(&free, &options);
    let best = &tempting.tried[tempting.torch.expect("a recommendation")];
    assert!(best.config.contains(EXPANDABLE) && best.held_back.is_none(), "{best:?}");

    let outcome = search(&bound, &options);
    let refused = outcome.tried.iter().find(|tried| tried.config == best.config).expect("it was tried");
    assert_eq!(refused.note, Note::Unconfirmed);
    let harm = refused.held_back.as_ref().expect("it was checked").worst_change;
    assert!(harm > 0.01, "{harm}");
    if let Some(best) = outcome.torch {
        let held = outcome.tried[best].held_back.as_ref().expect("it was checked");
        assert!(held.worst_change <= 0.01, "{:?}", outcome.tried[best]);
    }
    assert_eq!(outcome.cachalot, None);
}

#[test]
fn equal_seeds_have_equal_results_on_any_number_of_threads() {
    let parts = Parts { seen: vec![growing("a", 20, 8), odd("c")], held: vec![growing("b", 31, 9)], halves: false };
    let on = |threads, seed| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let options = Options { seed, trials: 40, ..every_policy() };
        pool.install(|| serde_json::to_string(&search(&parts, &options)).expect("JSON"))
    };
    assert_eq!(on(1, 5), on(4, 5));
    assert_ne!(on(2, 5), on(2, 6));
}

#[test]
fn a_deadline_leaves_the_best_so_far() {
    let parts = Parts { seen: vec![growing("a", 20, 8)], held: vec![growing("b", 31, 9)], halves: false };
    let past = Options { deadline: Some(Instant::now()), ..short() };
    let outcome = search(&parts, &past);
    assert_eq!((outcome.stopped, outcome.tried.len(), outcome.torch), (true, 1, None));

    // The end comes once the first round is known.
    let abandoned = Arc::new(AtomicBool::new(false));
    let options = Options { trials: 1_000_000, abandoned: Some(Arc::clone(&abandoned)), ..short() };
    let mut bests = Vec::new();
    let outcome = tune(&parts, &options, &mut |now| {
        bests.push(now.best.map(|(text, _)| text.to_owned()));
        abandoned.store(true, Relaxed);
    });
    let outcome = outcome.expect("the baseline serves the programs");
    assert!(!bests.is_empty() && bests[0].is_some(), "the first round has a best: {bests:?}");
    assert!(outcome.stopped && outcome.tried.len() < 100, "{}", outcome.tried.len());
    assert!(outcome.torch.is_some(), "{:?}", outcome.tried);
}

#[test]
fn time_is_searched_within_the_memory_of_the_baseline() {
    let parts = Parts { seen: vec![growing("a", 20, 8)], held: vec![growing("b", 31, 9)], halves: false };
    let outcome = search(&parts, &Options { aim: Aim::Time, ..short() });
    let best = &outcome.tried[outcome.cachalot.expect("a recommendation")];
    assert!(best.seen.time_change < -0.1 && best.seen.memory_change <= 0.0, "{best:?}");
    for tried in outcome.tried.iter().filter(|tried| tried.seen.memory_change > 1e-9) {
        assert!(matches!(tried.note, Note::OverBudget | Note::Worse), "{tried:?}");
    }
}

#[test]
fn a_driver_that_costs_too_much_is_over_budget() {
    let parts = Parts { seen: vec![growing("a", 20, 100)], ..Parts::default() };
    let mut options = short();
    options.budget.us_per_request = 1e-9;
    let outcome = search(&parts, &options);
    let base = outcome.tried[0].seen.us_per_request;
    for best in [outcome.torch, outcome.cachalot].into_iter().flatten() {
        let us = outcome.tried[best].seen.us_per_request;
        assert!(us <= base, "{us} µs, {base} µs by default");
    }
    assert!(outcome.tried.iter().any(|tried| tried.note == Note::OverBudget));
}

#[test]
fn a_baseline_must_be_a_configuration() {
    let options = Options { baseline: "max_split_size_mb:5".to_owned(), ..every_policy() };
    let error = tune(&Parts::default(), &options, &mut |_| ()).expect_err("too small");
    assert!(error.starts_with("max_split_size_mb does not take `5`"), "{error}");
}

#[test]
fn gains_are_beside_the_baseline_that_is_given() {
    let parts = Parts { seen: vec![growing("a", 20, 8)], held: vec![growing("b", 31, 9)], halves: false };
    let options = Options { baseline: EXPANDABLE.to_owned(), ..short() };
    let outcome = search(&parts, &options);
    assert_eq!((outcome.tried[0].config.as_str(), outcome.tried[0].is_of_torch), (EXPANDABLE, true));
    assert_eq!(outcome.tried.iter().filter(|tried| tried.config == EXPANDABLE).count(), 1);
    let default = outcome.tried.iter().find(|tried| tried.config.is_empty()).expect("it was tried");
    assert_eq!(default.note, Note::Worse);
}

#[test]
fn an_answer_names_the_setting_that_holds_less() {
    let costs = DriverCosts::h200();
    let baseline = Config::new();
    let answer = |part: &Part| {
        let (recorded, has_late_keys, limit_is_setting) = (None, None, false);
        let question = Question { part, baseline: &baseline, recorded, has_late_keys, limit_is_setting };
        answer(&question, &costs).expect("an answer")
    };
    let growing = answer(&growing("a", 20, 8));
    let better = growing.better.expect("a better setting");
    assert!(better.config.contains(EXPANDABLE), "{better:?}");
    // Three blocks of 40, 42, … 54 MiB by default, and three of 54 MiB, in pages, at the best.
    assert_eq!(growing.peak_reserved_bytes, 3 * (40..=54).step_by(2).sum::<u64>() * MIB);
    assert!((162 * MIB..182 * MIB).contains(&better.peak_reserved_bytes), "{better:?}");
    assert_eq!((growing.fullest.reserved_bytes, growing.fullest.hole_bytes), (growing.peak_reserved_bytes, 0));
    let idle = (growing.fullest.idle_bytes, growing.fullest.idle_segments);
    assert_eq!(idle, (3 * (40..54).step_by(2).sum::<u64>() * MIB, 21));

    // A segment of 20 MiB with a block of 2 MiB, whatever the setting.
    let small = answer(&part("c", vec![malloc(2 * MIB, 0)], 1));
    let stuck = Stuck {
        reserved_bytes: 20 * MIB,
        in_use_bytes: 2 * MIB,
        hole_bytes: 18 * MIB,
        hole_segments: 1,
        ..Stuck::default()
    };
    assert_eq!(
        (small.fullest, small.better.map(|better| (better.config, better.needs_pytorch))),
        (stuck, Some((format!("{EXPANDABLE},large_segment_size_mb:12"), Some("2.11"))))
    );
    assert_eq!(answer(&odd("b")).better, None);
}

/// A recorded program.
fn recorded(name: &str) -> Part {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/traces").join(name);
    let trace = Trace::load(&file).expect(name).remove(0);
    let limit = trace.limit_bytes();
    Part { name: name.to_owned(), program: replay::program(&trace).expect(name), limit, ..Part::default() }
}

/// Costs of a configuration in all programs of a search.
fn costs(parts: &Parts, text: &str) -> Vec<Cost> {
    let config = Config::parse(text).expect("a configuration");
    let of = |part| {
        cachalot_tuner::judge::cost::<crate::program::OnDevice>(part, &config, &DriverCosts::h200(), &|| false)
            .expect("it is served")
    };
    parts.seen.iter().chain(&parts.held).map(of).collect()
}

#[test]
fn advice_has_only_keys_that_have_an_effect() {
    let parts = Parts::divide(vec![recorded("gpt2_varlen__oom.csv.gz")], HoldBack::Half, 0);
    // A search that ends early has not tried each setting without its idle keys.
    for trials in [19, 24] {
        let outcome = search(&parts, &Options { trials, ..short() });
        for best in [outcome.torch, outcome.cachalot].into_iter().flatten() {
            let config = &outcome.tried[best].config;
            let keys: Vec<&str> = config.split(',').filter(|key| !key.starts_with("policy:")).collect();
            for key in &keys {
                let others: Vec<&str> = config.split(',').filter(|other| other != key).collect();
                assert_ne!(
                    costs(&parts, &others.join(",")),
                    costs(&parts, config),
                    "{trials} trials: {key} of {config}"
                );
            }
        }
    }
}

/// Most of a segment with each part of a block in use, and then a request that fits into no hole.
fn holes(name: &str) -> Part {
    let fill = (0..20).map(|slot| malloc(5 * MIB, slot));
    let free = (0..20).filter(|slot| slot % 4 != 0).map(|slot| Operation::Free { slot });
    let large = [malloc(60 * MIB, 20), Operation::Free { slot: 20 }];
    Part { limit: Some(120 * MIB), ..part(name, fill.chain(free).chain(large).collect(), 21) }
}

/// In the program searched the setting costs memory; what it serves is in the program held back.
#[test]
fn a_setting_that_serves_a_failed_request_is_advised_although_it_needs_more_memory() {
    let small = part("small", (0..40).map(|slot| malloc(MIB / 2, slot)).collect(), 40);
    let parts = Parts { seen: vec![small], held: vec![holes("b")], halves: false };
    let outcome = search(&parts, &short());
    let base = outcome.tried[0].held_back.as_ref().expect("a program");
    assert_eq!(base.ooms, 1, "{base:?}");
    let best = &outcome.tried[outcome.cachalot.expect("a recommendation")];
    assert_eq!(best.held_back.as_ref().map(|held| held.ooms), Some(0), "{best:?}");
    // No setting of PyTorch's own allocator serves it.
    assert_eq!(outcome.torch.map(|best| outcome.tried[best].note), None);
}

/// Free memory next to a block: whole in expandable segments, and in two segments otherwise.
fn beside_a_block(name: &str) -> Part {
    let fill = (0..8).map(|slot| malloc(5 * MIB, slot));
    let free = (1..8).map(|slot| Operation::Free { slot });
    let program = fill.chain(free).chain([malloc(35 * MIB, 8)]);
    Part { limit: Some(50 * MIB), ..part(name, program.collect(), 9) }
}

#[test]
fn what_still_fails_is_no_advice_beside_what_serves_every_request() {
    let alone = Parts { seen: vec![beside_a_block("a")], ..Parts::default() };
    let outcome = search(&alone, &short());
    assert_eq!(outcome.tried[0].seen.ooms, 1);
    let best = &outcome.tried[outcome.torch.expect("a recommendation")];
    assert_eq!((best.config.as_str(), best.seen.ooms), (EXPANDABLE, 0));

    // No setting of PyTorch's allocator before 2.11 serves the second program.
    let both = Parts { seen: vec![beside_a_block("a"), holes("b")], ..Parts::default() };
    let outcome = search(&both, &Options { has_late_keys: false, ..short() });
    assert_eq!((outcome.tried[0].seen.ooms, outcome.torch), (2, None));
    assert_eq!(outcome.tried[outcome.cachalot.expect("a recommendation")].seen.ooms, 0);
    // The list has the fewest failed requests first.
    let failed: Vec<u64> = outcome.tried[1..].iter().map(|tried| tried.seen.ooms).collect();
    assert!(failed.is_sorted(), "{failed:?}");
}
