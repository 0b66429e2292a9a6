//! Tests of the tuner on a simulated device: every step of a switch, of a trial, and of taking
//! settings back.

use super::job::{Answer, Finding};
use super::*;
use crate::judge::{OnDevice, cost};
use crate::program::{DEVICE, Settings, Subject};
use cachalot_core::simulated::{Call, Failure, SimulatedDevice};
use cachalot_core::{Action, DeviceError, ErrorKind, MIB, PoolOptions, Route, RoutePurpose, StreamId};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const STREAM: StreamId = StreamId(3);

fn tuned(config: &str, device: SimulatedDevice) -> OnDevice {
    let settings = Settings { config: Config::parse(config).expect(config), limit: None };
    OnDevice::create(device, &settings).expect("an allocator")
}

fn at_once() -> SimulatedDevice {
    SimulatedDevice::new(1 << 40).with_work_done_at_once()
}

/// Makes steps with three live blocks of growing size. With the defaults, each block needs its own
/// segment.
fn iterate(allocator: &OnDevice) {
    for step in 0..120_u64 {
        let bytes = (20 + step % 12) * 2 * MIB;
        let blocks = [0; 3].map(|_| allocator.malloc(DEVICE, bytes, STREAM).expect("memory"));
        blocks.into_iter().for_each(|block| allocator.free(block).expect("it is live"));
    }
}

/// Does the work that is due at an idle moment. Returns the number of jobs.
fn idle(tuner: &mut Tuner, allocator: &OnDevice) -> u32 {
    let mut jobs = 0;
    while let Some(job) = tuner.prepare(allocator, DEVICE).expect("a healthy device") {
        tuner.conclude(allocator, DEVICE, job.run(cost::<OnDevice>, &Arc::default())).expect("a healthy device");
        jobs += 1;
    }
    jobs
}

fn report(allocator: &OnDevice) -> TuneReport {
    allocator.tuning(DEVICE).expect("the device").report()
}

fn in_force(allocator: &OnDevice) -> String {
    let mut config = allocator.settings(DEVICE).expect("the device").config();
    config.set_tunes(false);
    config.to_string()
}

fn tuner() -> Tuner {
    Tuner::new(Limits { candidates: 24, ..Limits::default() })
}

/// Returns the actions in the trace that concern settings.
fn settings_in_trace(allocator: &OnDevice) -> Vec<(Action, u64)> {
    let mut found = Vec::new();
    let visit = allocator.trace(DEVICE).map(|trace| {
        trace.for_each(|entry| {
            if matches!(entry.action, Action::SettingsChanged | Action::SettingsTakenBack) {
                found.push((entry.action, entry.size));
            }
        });
    });
    visit.expect("the device");
    found
}

/// Returns a possible finding of a search: settings that hold more memory, although the prediction
/// is that they save half of it.
fn bad(tuner: &mut Tuner, allocator: &OnDevice) -> Finding {
    let job = tuner.prepare(allocator, DEVICE).expect("a healthy device").expect("a search is due");
    let mut config = job.config.clone();
    config.set_large_segment_size_mb(512).expect("a size");
    let mut finding = job.run(cost::<OnDevice>, &Arc::default());
    finding.answer = Answer::Better(Box::new(config), 0.5);
    finding
}

#[test]
fn better_settings_come_into_force_and_hold() {
    let allocator = tuned("tune:auto", at_once());
    allocator.trace(DEVICE).expect("a trace").record(4096).expect("a trace");
    let mut tuner = tuner();
    iterate(&allocator);
    let before = allocator.device(DEVICE).expect("the device").used();
    assert_eq!(idle(&mut tuner, &allocator), 1);
    let tuning = report(&allocator);
    assert_eq!((tuning.searches, tuning.switches, tuning.held, tuning.is_tuned), (1, 1, 0, true), "{tuning:?}");
    assert_eq!((tuning.stage, tuning.before_bytes, tuning.given_back_bytes), (TuneStage::Trial, before, before));
    assert!(tuning.predicted_bytes < before / 2 && tuning.candidates >= 24, "{tuning:?}");
    assert_eq!(settings_in_trace(&allocator), [(Action::SettingsChanged, tuning.predicted_bytes)]);
    let found = in_force(&allocator);
    assert!(found.contains("expandable_segments:True"), "{found}");

    iterate(&allocator);
    assert!(idle(&mut tuner, &allocator) >= 1);
    let tuning = report(&allocator);
    assert_eq!((tuning.held, tuning.taken_back), (1, 0), "{tuning:?}");
    assert!(tuning.after_bytes <= tuning.predicted_bytes * 11 / 10, "{tuning:?}");
    assert_eq!(in_force(&allocator), found);
}

#[test]
fn a_phase_with_waste_is_tuned_after_one_without() {
    let allocator = tuned("tune:auto", at_once());
    let mut tuner = tuner();
    for _ in 0..300 {
        let block = allocator.malloc(DEVICE, 20 * MIB, STREAM).expect("memory");
        allocator.free(block).expect("it is live");
    }
    assert_eq!(idle(&mut tuner, &allocator), 1);
    let tuning = report(&allocator);
    assert_eq!((tuning.without_gain, tuning.switches, in_force(&allocator).as_str()), (1, 0, ""), "{tuning:?}");
    // A search that sees little of the new phase finds nothing, but a later one sees more.
    let switched = (0..16).find(|_| {
        iterate(&allocator);
        idle(&mut tuner, &allocator);
        report(&allocator).switches == 1
    });
    assert!(switched.is_some(), "{:?}", report(&allocator));
    for _ in 0..4 {
        iterate(&allocator);
        idle(&mut tuner, &allocator);
    }
    let tuning = report(&allocator);
    assert_eq!((tuning.held, tuning.taken_back), (1, 0), "{tuning:?}");
}

#[test]
fn settings_that_do_not_hold_are_taken_back_and_not_found_again() {
    let allocator = tuned("tune:auto,max_split_size_mb:600", at_once());
    allocator.trace(DEVICE).expect("a trace").record(1 << 14).expect("a trace");
    let mut tuner = tuner();
    let small = || {
        for _ in 0..300 {
            let block = allocator.malloc(DEVICE, 3 * MIB, STREAM).expect("memory");
            allocator.free(block).expect("it is live");
        }
    };
    small();
    let finding = bad(&mut tuner, &allocator);
    let bad = match &finding.answer {
        Answer::Better(config, _) => config.clone(),
        other => panic!("{other:?}"),
    };
    tuner.conclude(&allocator, DEVICE, finding).expect("a healthy device");
    assert!(in_force(&allocator).contains("large_segment_size_mb:512"));
    small();
    idle(&mut tuner, &allocator);
    let tuning = report(&allocator);
    assert_eq!((tuning.switches, tuning.held, tuning.taken_back, tuning.is_tuned), (1, 0, 1, false), "{tuning:?}");
    assert_eq!((in_force(&allocator).as_str(), tuning.after_bytes), ("max_split_size_mb:600", 512 * MIB));
    assert_eq!(settings_in_trace(&allocator).last(), Some(&(Action::SettingsTakenBack, 512 * MIB)));
    assert!(tuner.taken_back.contains(&*bad));
    assert_eq!(allocator.device(DEVICE).expect("the device").used(), 0, "idle memory of either form went back");
}

#[test]
fn nothing_changes_while_a_graph_is_captured() {
    let allocator = tuned("tune:auto", at_once());
    let mut tuner = tuner();
    iterate(&allocator);
    let job = tuner.prepare(&allocator, DEVICE).expect("a healthy device").expect("a search is due");
    let pools = allocator.pools(DEVICE).expect("the device");
    let pool = pools.create(PoolOptions::default()).expect("a pool");
    let capture = Route::Stream(StreamId(8));
    let capture = pools.route(pool, capture, RoutePurpose::Capture).expect("no other capture");
    let held = allocator.device(DEVICE).expect("the device").used();
    tuner.conclude(&allocator, DEVICE, job.run(cost::<OnDevice>, &Arc::default())).expect("a healthy device");
    assert!(tuner.prepare(&allocator, DEVICE).expect("a healthy device").is_none());
    assert_eq!((in_force(&allocator).as_str(), report(&allocator).switches), ("", 0));
    assert_eq!(allocator.device(DEVICE).expect("the device").used(), held);
    drop(capture);
    assert!(tuner.prepare(&allocator, DEVICE).expect("a healthy device").is_none(), "the finding has waited");
    assert_eq!(report(&allocator).switches, 1);
}

#[test]
fn the_program_has_the_last_word() {
    let allocator = tuned("tune:auto", at_once());
    let mut tuner = tuner();
    iterate(&allocator);
    let job = tuner.prepare(&allocator, DEVICE).expect("a healthy device").expect("a search is due");
    // While the search runs, the program changes a setting.
    let own = Config::parse("tune:auto,max_split_size_mb:128").expect("settings");
    allocator.configure(&own);
    tuner.conclude(&allocator, DEVICE, job.run(cost::<OnDevice>, &Arc::default())).expect("a healthy device");
    assert_eq!((in_force(&allocator).as_str(), report(&allocator).switches), ("max_split_size_mb:128", 0));

    // A trial ends with a change, and a new search starts.
    iterate(&allocator);
    idle(&mut tuner, &allocator);
    assert_eq!((report(&allocator).switches, report(&allocator).is_tuned), (1, true));
    assert_eq!(allocator.tuning(DEVICE).expect("the device").own_config(), own);
    allocator.configure(&Config::parse("tune:auto").expect("settings"));
    assert!(!report(&allocator).is_tuned);
    iterate(&allocator);
    iterate(&allocator);
    idle(&mut tuner, &allocator);
    assert_eq!((report(&allocator).switches, report(&allocator).taken_back), (2, 0));

    // `tune:off` ends everything.
    allocator.configure(&Config::parse("tune:off").expect("settings"));
    iterate(&allocator);
    assert_eq!(idle(&mut tuner, &allocator), 0);
    assert_eq!((in_force(&allocator).as_str(), report(&allocator).stage), ("", TuneStage::Off));
}

#[test]
fn a_trial_measures_what_requests_get_after_the_switch() {
    let allocator = tuned("tune:auto", SimulatedDevice::new(1 << 40));
    let device = allocator.device(DEVICE).expect("the device");
    let mut tuner = tuner();
    iterate(&allocator);
    let held = device.used();
    idle(&mut tuner, &allocator);
    assert_eq!((device.used(), report(&allocator).retired_bytes), (held, held), "the stream is busy: nothing waits");
    // The stream never finishes, so the old memory is kept, but serves nothing.
    iterate(&allocator);
    idle(&mut tuner, &allocator);
    assert_eq!((report(&allocator).held, report(&allocator).taken_back), (1, 0));
    assert_eq!((report(&allocator).retired_bytes, device.calls(Call::Synchronize)), (held, 0));
    device.complete(STREAM);
    idle(&mut tuner, &allocator);
    assert_eq!((report(&allocator).retired_bytes, report(&allocator).given_back_bytes), (0, held));
    assert!(device.used() < held / 2);
}

#[test]
fn failures_of_the_device_lose_no_memory_and_stop_nothing() {
    for call in [Call::Release, Call::CreateEvent, Call::Record, Call::IsComplete] {
        let allocator = tuned("tune:auto", at_once());
        let device = allocator.device(DEVICE).expect("the device");
        let mut tuner = tuner();
        iterate(&allocator);
        let job = tuner.prepare(&allocator, DEVICE).expect("a healthy device").expect("a search is due");
        let error = DeviceError::new(ErrorKind::Other, 7);
        device.fail(Failure { call, nth: device.calls(call) + 1, persistent: false, error });
        let _failed = tuner.conclude(&allocator, DEVICE, job.run(cost::<OnDevice>, &Arc::default()));
        device.clear_failures();
        assert_eq!(report(&allocator).switches, 1, "{call:?}");
        iterate(&allocator);
        idle(&mut tuner, &allocator);
        let tuning = report(&allocator);
        assert_eq!(tuning.held + tuning.taken_back, 1, "{call:?}: {tuning:?}");
        allocator.check_invariants().expect("every invariant holds");
        allocator.empty_cache(DEVICE).expect("nothing is in use");
        let leaked = allocator.stats(DEVICE).expect("the device").leaked_bytes();
        assert_eq!(device.used(), leaked, "{call:?}: what could not be released is counted");
    }
}

#[test]
fn abandoned_work_changes_nothing() {
    let allocator = tuned("tune:auto", at_once());
    let mut tuner = tuner();
    iterate(&allocator);
    let job = tuner.prepare(&allocator, DEVICE).expect("a healthy device").expect("a search is due");
    let abandoned = Arc::new(AtomicBool::new(true));
    let finding = job.run(cost::<OnDevice>, &abandoned);
    assert!(matches!(finding.answer, Answer::Unfinished(None)), "{finding:?}");
    tuner.conclude(&allocator, DEVICE, finding).expect("a healthy device");
    assert_eq!((report(&allocator).switches, in_force(&allocator).as_str()), (0, ""));
}

#[test]
fn a_program_without_waste_is_left_alone() {
    let allocator = tuned("tune:auto", at_once());
    let mut tuner = tuner();
    for _ in 0..3 {
        for _ in 0..1000 {
            let block = allocator.malloc(DEVICE, 20 * MIB, STREAM).expect("memory");
            allocator.free(block).expect("it is live");
        }
        idle(&mut tuner, &allocator);
    }
    let tuning = report(&allocator);
    assert_eq!((tuning.switches, tuning.is_tuned), (0, false), "{tuning:?}");
    assert!(tuning.without_gain > 0 && tuning.without_gain == tuning.searches);
}
