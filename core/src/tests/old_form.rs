//! Memory of earlier settings goes back.

use crate::allocator::Allocator;
use crate::arena::tuning::TuneStage;
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind};
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose};
use crate::tables::Growable;
use crate::trace::Action;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &str) -> Simulated {
    Simulated::new([SimulatedDevice::new(1 << 34)], &parse(config)).unwrap()
}

fn parse(config: &str) -> Config {
    Config::parse(config).unwrap()
}

fn malloc(allocator: &Simulated, mib: u64) -> DevicePtr {
    allocator.malloc(DEVICE, mib * MIB, STREAM).unwrap()
}

fn change(allocator: &Simulated, config: &str) -> bool {
    let tuning = allocator.tuning(DEVICE).unwrap();
    let serial = tuning.window().serial;
    tuning.put_in_force(&parse(config), serial, 0).unwrap()
}

fn used(allocator: &Simulated) -> u64 {
    allocator.device(DEVICE).unwrap().used() / MIB
}

#[test]
fn settings_of_placement_come_into_force_and_all_others_stay() {
    let allocator = allocator("tune:auto,per_process_memory_fraction:0.9,max_split_size_mb:64");
    assert!(change(&allocator, "large_segment_size_mb:32,per_process_memory_fraction:0.1"));
    let config = allocator.settings(DEVICE).unwrap().config();
    assert_eq!(config, parse("tune:auto,per_process_memory_fraction:0.9,large_segment_size_mb:32"));
    let tuning = allocator.tuning(DEVICE).unwrap();
    assert!(tuning.report().is_tuned);
    assert_eq!(tuning.own_config().max_split_size(), Some(64 * MIB));
    malloc(&allocator, 3);
    assert_eq!(used(&allocator), 32);
    // The program's own settings, activated again, are no longer settings found.
    assert!(change(&allocator, "max_split_size_mb:64"));
    assert!(!tuning.report().is_tuned);
}

#[test]
fn nothing_comes_into_force_where_it_must_not() {
    let off = allocator("");
    assert!(!change(&off, "expandable_segments:True"));
    assert_eq!(off.tuning(DEVICE).unwrap().report().stage, TuneStage::Off);

    let tuned = allocator("tune:auto");
    assert_eq!(tuned.tuning(DEVICE).unwrap().report().stage, TuneStage::Recording);
    tuned.settings(DEVICE).unwrap().set_caching(false);
    assert!(!change(&tuned, "expandable_segments:True"));
    tuned.settings(DEVICE).unwrap().set_caching(true);
    let pool = tuned.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    tuned.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Capture).unwrap();
    assert!(!change(&tuned, "expandable_segments:True"));
    tuned.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();

    let tuning = tuned.tuning(DEVICE).unwrap();
    let serial = tuning.window().serial;
    tuned.configure(&parse("tune:auto,max_split_size_mb:64"));
    assert!(!tuning.put_in_force(&parse("expandable_segments:True"), serial, 0).unwrap(), "settings have changed");
    assert!(!tuned.settings(DEVICE).unwrap().config().expandable_segments());
    assert!(change(&tuned, "expandable_segments:True"));
}

#[test]
fn settings_taken_back_are_those_of_the_window_and_the_trace_tells_so() {
    let allocator = allocator("tune:auto");
    allocator.trace(DEVICE).unwrap().record(100).unwrap();
    let tuning = allocator.tuning(DEVICE).unwrap();
    assert!(tuning.is_possible());
    let serial = tuning.window().serial;
    assert!(change(&allocator, "large_segment_size_mb:32"));
    assert!(!tuning.take_back(&parse(""), serial + 7, 0).unwrap(), "the program has changed the settings");
    assert!(tuning.take_back(&parse(""), serial, 5).unwrap());
    assert_eq!(allocator.settings(DEVICE).unwrap().config(), parse("tune:auto"));
    let mut actions = alloc::vec::Vec::new();
    allocator.trace(DEVICE).unwrap().for_each(|entry| actions.push(entry.action));
    assert_eq!(actions, [Action::SettingsChanged, Action::SettingsTakenBack]);
    tuning.update_report(|report| (report.stage, report.windows) = (TuneStage::Trial, 3));
    let report = tuning.report();
    assert_eq!((report.stage, report.windows), (TuneStage::Trial, 3));
    allocator.configure(&Config::new());
    assert!(!tuning.is_possible());
    tuning.update_report(|report| report.stage = TuneStage::Trial);
    assert_eq!(tuning.report().stage, TuneStage::Off);
}

#[test]
fn the_window_is_no_trace_of_the_program() {
    let allocator = allocator("tune:auto");
    let count = || {
        let mut events = 0;
        allocator.trace(DEVICE).unwrap().for_each(|_| events += 1);
        events
    };
    let window = || allocator.tuning(DEVICE).unwrap().window();
    let block = malloc(&allocator, 3);
    assert_eq!((count(), window().events.len()), (0, 2), "a segment and a block");
    allocator.trace(DEVICE).unwrap().record(2).unwrap();
    allocator.free(block).unwrap();
    let block = malloc(&allocator, 3);
    assert_eq!((count(), window().events.len()), (2, 3), "the latest two of a free, its end and a block");
    allocator.trace(DEVICE).unwrap().record(0).unwrap();
    allocator.free(block).unwrap();
    assert_eq!((count(), window().events.len()), (0, 2));

    // Private pools are no part of a window.
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Capture).unwrap();
    let captured = malloc(&allocator, 30);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    assert_eq!((window().events.len(), window().segments.len()), (2, 1));
    assert_eq!(window().segments[0].pool, PoolId::DEFAULT);
    allocator.free(captured).unwrap();
    allocator.configure(&Config::new());
    malloc(&allocator, 3);
    assert_eq!(window().events.len(), 0);
}

#[test]
fn memory_of_the_old_form_goes_back_when_the_device_has_finished_with_it() {
    let allocator = allocator("tune:auto");
    let device = allocator.device(DEVICE).unwrap();
    let (stays, idle) = (malloc(&allocator, 40), malloc(&allocator, 60));
    allocator.free(idle).unwrap();
    allocator.trace(DEVICE).unwrap().record(64).unwrap();
    assert!(change(&allocator, "expandable_segments:True"));
    let tuning = allocator.tuning(DEVICE).unwrap();
    let bytes = || {
        let report = tuning.report();
        (used(&allocator), report.retired_bytes / MIB, report.given_back_bytes / MIB)
    };
    assert_eq!(bytes(), (100, 60, 0), "the work of the stream may use it");
    let pages = malloc(&allocator, 60);
    assert_eq!(bytes(), (160, 60, 0), "no request gets it");
    tuning.give_back().unwrap();
    assert_eq!(bytes(), (160, 60, 0));
    device.complete(STREAM);
    tuning.give_back().unwrap();
    assert_eq!(bytes(), (100, 0, 60));
    allocator.check_invariants().unwrap();
    allocator.free(stays).unwrap();
    tuning.give_back().unwrap();
    assert_eq!(bytes(), (100, 40, 60), "a segment goes back later, once it is idle");
    device.complete(STREAM);
    tuning.give_back().unwrap();
    assert_eq!(bytes(), (60, 0, 100));
    allocator.free(pages).unwrap();
    assert_eq!(device.calls(Call::Synchronize), 0);
    let mut actions = alloc::vec::Vec::new();
    allocator.trace(DEVICE).unwrap().for_each(|entry| actions.push(entry.action));
    assert_eq!(actions[0], Action::SettingsChanged);
    allocator.check_invariants().unwrap();
}

#[test]
fn pages_go_back_at_a_moment_when_the_stream_is_idle() {
    let device = SimulatedDevice::new(1 << 34).with_work_done_at_once();
    let allocator = Simulated::new([device], &parse("tune:auto,expandable_segments:True")).unwrap();
    let (stays, idle) = (malloc(&allocator, 40), malloc(&allocator, 60));
    allocator.free(idle).unwrap();
    assert!(change(&allocator, ""));
    assert_eq!(used(&allocator), 40);
    let later = malloc(&allocator, 60);
    assert_eq!(used(&allocator), 100, "an ordinary segment");
    for block in [stays, later] {
        allocator.free(block).unwrap();
    }
    allocator.tuning(DEVICE).unwrap().give_back().unwrap();
    assert_eq!(used(&allocator), 60, "the rest of the old form, and nothing else");
}

#[test]
fn a_request_short_of_memory_gets_what_has_retired() {
    let allocator = allocator("tune:auto");
    allocator.settings(DEVICE).unwrap().set_limit(Some(100 * MIB));
    let idle = malloc(&allocator, 90);
    allocator.free(idle).unwrap();
    assert!(change(&allocator, "expandable_segments:True"));
    assert_eq!(used(&allocator), 90);
    let block = malloc(&allocator, 80);
    assert_eq!(used(&allocator), 80);
    allocator.free(block).unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn what_cannot_retire_stays_or_waits_for_the_cache_to_be_emptied() {
    for call in [Call::CreateEvent, Call::Record, Call::IsComplete] {
        let allocator = allocator("tune:auto");
        let device = allocator.device(DEVICE).unwrap();
        let idle = malloc(&allocator, 90);
        allocator.free(idle).unwrap();
        let error = DeviceError::new(ErrorKind::Other, 7);
        device.fail(Failure { call, nth: device.calls(call) + 1, persistent: true, error });
        assert!(change(&allocator, "expandable_segments:True"));
        device.complete(STREAM);
        allocator.tuning(DEVICE).unwrap().give_back().unwrap();
        assert_eq!(used(&allocator), 90, "{call:?}");
        allocator.check_invariants().unwrap();
        device.clear_failures();
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!((used(&allocator), allocator.stats(DEVICE).unwrap().leaked_bytes()), (0, 0), "{call:?}");
        assert_eq!(allocator.tuning(DEVICE).unwrap().report().retired_bytes, 0);
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn pages_of_an_earlier_form_stay_while_their_stream_works() {
    let allocator = allocator("tune:auto,expandable_segments:True");
    let device = allocator.device(DEVICE).unwrap();
    let (_stays, idle) = (malloc(&allocator, 40), malloc(&allocator, 60));
    allocator.free(idle).unwrap();
    device.launch(STREAM, idle, 60 * MIB).unwrap();
    assert!(change(&allocator, ""));
    assert_eq!((used(&allocator), allocator.stats(DEVICE).map(|stats| stats.leaked_bytes())), (100, Ok(0)));
    allocator.tuning(DEVICE).unwrap().give_back().unwrap();
    assert_eq!((used(&allocator), device.calls(Call::Unmap)), (100, 0), "the work may use it");
}

#[test]
fn memory_of_an_earlier_form_goes_back_whenever_it_becomes_idle() {
    let allocator = allocator("tune:auto");
    let device = allocator.device(DEVICE).unwrap();
    // Both heaps have memory in use at the change.
    let blocks = [512, 40 * MIB].map(|bytes| allocator.malloc(DEVICE, bytes, STREAM).unwrap());
    assert!(change(&allocator, "expandable_segments:True"));
    let give_back = || {
        device.complete(STREAM);
        // Found idle, and then no longer in use.
        (0..2).for_each(|_| {
            allocator.tuning(DEVICE).unwrap().give_back().unwrap();
            device.complete(STREAM);
        });
        used(&allocator)
    };
    assert_eq!(give_back(), 42);
    allocator.free(blocks[1]).unwrap();
    assert_eq!(give_back(), 2);
    allocator.free(blocks[0]).unwrap();
    assert_eq!(give_back(), 0);
}
