use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind, Host};
use crate::pool::{PoolOptions, Route};
use crate::stats::ReclaimStats;
use crate::tables::Growable;
use crate::trace::Action;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);

/// Enough time for all that is worth it.
const ALL_US: u64 = 1_000_000;

/// The two kinds of units.
const KINDS: [&str; 2] = ["reclaim:auto", "reclaim:auto,expandable_segments:True"];

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn over(device: SimulatedDevice, config: &str) -> Simulated {
    Simulated::new([device], &Config::parse(config).unwrap()).unwrap()
}

/// An allocator whose device finishes all work at once.
fn allocator(config: &str) -> Simulated {
    over(SimulatedDevice::new(1 << 40).with_work_done_at_once(), config)
}

fn malloc(allocator: &Simulated, mib: u64) -> DevicePtr {
    allocator.malloc(DEVICE, mib * MIB, STREAM).unwrap()
}

/// Allocates blocks of so many MiB, all live at one time, and frees them.
fn cache(allocator: &Simulated, mib: &[u64]) {
    let blocks: Vec<_> = mib.iter().map(|&mib| malloc(allocator, mib)).collect();
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
}

/// Lets `ms` milliseconds pass, with a call of `maintain` every `step` of them.
fn pass(allocator: &Simulated, ms: u64, step: u64) {
    for _ in 0..ms / step {
        allocator.device(DEVICE).unwrap().pause(step * 1000);
        allocator.pages(DEVICE).unwrap().maintain(ALL_US).unwrap();
    }
    allocator.check_invariants().unwrap();
}

fn reserved(allocator: &Simulated) -> u64 {
    allocator.stats(DEVICE).unwrap().reserved_bytes().current as u64 / MIB
}

fn stats(allocator: &Simulated) -> ReclaimStats {
    allocator.pages(DEVICE).unwrap().reclaim_stats().unwrap()
}

fn calls(allocator: &Simulated, calls: &[Call]) -> u64 {
    calls.iter().map(|&call| allocator.device(DEVICE).unwrap().calls(call)).sum()
}

#[test]
fn memory_that_nothing_uses_goes_back_once_its_idle_time_pays_for_the_calls() {
    for config in KINDS {
        let allocator = allocator(config);
        let live = malloc(&allocator, 40);
        cache(&allocator, &[40, 200, 60]);
        pass(&allocator, 20, 10);
        assert_eq!(reserved(&allocator), 340, "{config}: a moment");
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 40, "{config}: a minute");
        let stats = stats(&allocator);
        assert_eq!((stats.given_back, stats.idle, stats.needed_soon), (300 * MIB, 0, 0), "{config}: {stats:?}");
        assert!(stats.driver_us > 0 && stats.given_back_units >= 3, "{config}: {stats:?}");
        assert_eq!(calls(&allocator, &[Call::Wait, Call::Synchronize, Call::SynchronizeAll]), 0, "{config}");
        allocator.free(live).unwrap();
    }
}

#[test]
fn without_the_setting_or_a_budget_nothing_goes_back_and_nothing_is_asked() {
    for config in ["", "reclaim:off,reclaim_budget:1", "reclaim:auto,reclaim_budget:0"] {
        let allocator = allocator(config);
        cache(&allocator, &[40, 200]);
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 240, "{config}");
        assert_eq!(calls(&allocator, &[Call::Record, Call::Release, Call::IsIdle]), 0, "{config}");
        assert_eq!(stats(&allocator).looks > 0, config.contains("auto"));
    }
}

#[test]
fn what_is_used_in_each_period_stays() {
    for config in KINDS {
        let allocator = allocator(config);
        for _ in 0..300 {
            cache(&allocator, &[40, 200, 60]);
            pass(&allocator, 300, 10);
        }
        let stats = stats(&allocator);
        assert_eq!((reserved(&allocator), stats.given_back), (300, 0), "{config}: {stats:?}");
        assert!(stats.needed_soon >= 300 * MIB, "{config}: {stats:?}");
    }
}

#[test]
fn a_look_at_the_end_of_each_step_sees_what_the_step_used() {
    for config in KINDS {
        let allocator = allocator(config);
        for _ in 0..200 {
            cache(&allocator, &[40, 200, 60]);
            pass(&allocator, 1000, 1000);
        }
        assert_eq!(stats(&allocator).given_back, 0, "{config}: {:?}", stats(&allocator));
    }
}

#[test]
fn memory_of_an_earlier_phase_goes_back_while_requests_go_on() {
    for config in KINDS {
        let allocator = allocator(config);
        cache(&allocator, &[40, 400, 60]);
        for _ in 0..6000 {
            cache(&allocator, &[3, 30]);
            pass(&allocator, 10, 10);
        }
        assert!(reserved(&allocator) <= 80, "{config}: {} MiB, {:?}", reserved(&allocator), stats(&allocator));
    }
}

#[test]
fn memory_goes_back_after_the_work_that_used_it_and_segments_when_no_stream_works() {
    for config in KINDS {
        let allocator = over(SimulatedDevice::new(1 << 40).with_idle_streams_told(), config);
        let device = allocator.device(DEVICE).unwrap();
        let other = allocator.malloc(DEVICE, 40 * MIB, OTHER).unwrap();
        let block = malloc(&allocator, 200);
        device.launch(STREAM, block, 200 * MIB).unwrap();
        allocator.free(block).unwrap();
        pass(&allocator, 60_000, 50);
        assert_eq!((reserved(&allocator), stats(&allocator).busy), (240, 200 * MIB), "{config}: its own work");
        device.launch(OTHER, other, 40 * MIB).unwrap();
        device.complete(STREAM);
        pass(&allocator, 100, 50);
        let is_segment = config == KINDS[0];
        assert_eq!(reserved(&allocator), if is_segment { 240 } else { 40 }, "{config}: work of another stream");
        device.complete(OTHER);
        pass(&allocator, 100, 50);
        assert_eq!(reserved(&allocator), 40, "{config}");
        assert_eq!(calls(&allocator, &[Call::Wait, Call::Synchronize, Call::SynchronizeAll]), 0, "{config}");
        allocator.free(other).unwrap();
    }
}

#[test]
fn nothing_of_a_graph_goes_back_and_nothing_at_all_during_a_capture() {
    for config in KINDS {
        let allocator = allocator(config);
        let device = allocator.device(DEVICE).unwrap();
        cache(&allocator, &[200]);
        let pool = allocator.create_pool(DEVICE, PoolOptions::default()).unwrap();
        allocator.begin_capture(DEVICE, pool, Route::Stream(OTHER)).unwrap();
        device.set_capturing(OTHER, true);
        let block = allocator.malloc(DEVICE, 60 * MIB, OTHER).unwrap();
        allocator.free(block).unwrap();
        let before = calls(&allocator, &[Call::Record, Call::Release, Call::Unmap]);
        pass(&allocator, 60_000, 50);
        assert_eq!(calls(&allocator, &[Call::Record, Call::Release, Call::Unmap]), before, "{config}: a capture");
        device.set_capturing(OTHER, false);
        allocator.end_capture(DEVICE, pool).unwrap();
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 60, "{config}: the graph uses its pool");
        // A stream captures a graph, and no `begin_capture` has told the allocator.
        cache(&allocator, &[200]);
        device.set_capturing(STREAM, true);
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 260, "{config}: no event is recorded on the stream");
        device.set_capturing(STREAM, false);
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 60, "{config}");
    }
}

#[test]
fn a_failed_call_loses_at_most_the_unit_in_hand() {
    let error = DeviceError::new(ErrorKind::Other, 7);
    for config in KINDS {
        for call in Call::ALL {
            for persistent in [false, true] {
                let allocator = allocator(config);
                let device = allocator.device(DEVICE).unwrap();
                cache(&allocator, &[40, 200, 60]);
                device.fail(Failure { call, nth: device.calls(call) + 1, persistent, error });
                let mut failures = 0;
                for _ in 0..1200 {
                    device.pause(50_000);
                    failures += u64::from(allocator.pages(DEVICE).unwrap().maintain(ALL_US).is_err());
                    allocator.check_invariants().unwrap();
                }
                let leaked = allocator.leaked_bytes(DEVICE).unwrap();
                assert!(failures > 0 || leaked == 0, "{config}, {call:?}: each loss is told");
                assert!(persistent || leaked <= 200 * MIB, "{config}, {call:?}: {leaked}");
                device.clear_failures();
                let block = malloc(&allocator, 40);
                device.launch(STREAM, block, 40 * MIB).unwrap();
                allocator.free(block).unwrap();
                pass(&allocator, 120_000, 50);
                assert_eq!(reserved(&allocator), 0, "{config}, {call:?}, {persistent}: {:?}", stats(&allocator));
            }
        }
    }
}

#[test]
fn a_lost_context_ends_it() {
    let allocator = allocator(KINDS[0]);
    let device = allocator.device(DEVICE).unwrap();
    cache(&allocator, &[40, 200]);
    let error = DeviceError::new(ErrorKind::ContextLost, 700);
    device.fail(Failure { call: Call::Release, nth: 1, persistent: false, error });
    let mut failed = 0;
    for _ in 0..1200 {
        device.pause(50_000);
        failed += u32::from(allocator.pages(DEVICE).unwrap().maintain(ALL_US).is_err());
    }
    assert!(failed > 1);
    assert_eq!(device.calls(Call::Release), 1);
}

#[test]
fn giving_back_and_obtaining_again_stay_within_the_budget_whatever_the_program_does() {
    for config in KINDS {
        let allocator = allocator(config);
        let device = allocator.device(DEVICE).unwrap();
        let sizes: Vec<u64> = (0..40).map(|at| 20 + 4 * at).collect();
        cache(&allocator, &sizes);
        let before = device.driver_ns();
        // Pauses that grow, so that each is longer than all before it.
        let mut ms = 500;
        let mut passed = 0;
        while ms < 60_000 {
            pass(&allocator, ms, 50);
            cache(&allocator, &sizes);
            (passed, ms) = (passed + ms, ms + ms / 7);
        }
        let ns = device.driver_ns() - before;
        let share = ns as f64 / (passed as f64 * 1e6);
        let stats = stats(&allocator);
        assert!(stats.given_back > 0 && stats.obtained_again > 0, "{config}: {stats:?}");
        // The last units, obtained in the last step, were paid before.
        assert!(share < 0.011, "{config}: {share}, {stats:?}");
    }
}

#[test]
fn memory_obtained_again_too_early_makes_decisions_more_cautious() {
    let allocator = allocator(KINDS[0]);
    cache(&allocator, &[40, 200, 60]);
    let mut last = 0;
    let mut caution = 0;
    for _ in 0..30 {
        // The worst moment: just after memory went back.
        while stats(&allocator).given_back == last {
            pass(&allocator, 10, 10);
        }
        last = stats(&allocator).given_back;
        cache(&allocator, &[40, 200, 60]);
        pass(&allocator, 10, 10);
        caution = caution.max(stats(&allocator).caution);
    }
    let stats = stats(&allocator);
    assert!(stats.too_early_units > 30 && caution >= 1, "{caution}, {stats:?}");
}

#[test]
fn each_unit_is_traced_as_its_kind_is() {
    for (config, action) in KINDS.into_iter().zip([Action::SegmentFree, Action::SegmentUnmap]) {
        let allocator = allocator(config);
        allocator.record_trace(DEVICE, 100).unwrap();
        cache(&allocator, &[40, 200]);
        pass(&allocator, 60_000, 50);
        let mut bytes = 0;
        let visit = |entry: &crate::trace::TraceEntry| bytes += if entry.action == action { entry.size } else { 0 };
        allocator.for_each_trace_entry(DEVICE, visit).unwrap();
        assert_eq!(bytes, 240 * MIB, "{config}");
    }
}

#[test]
fn a_pinned_segment_or_page_stays() {
    for config in KINDS {
        let allocator = allocator(config);
        let block = malloc(&allocator, 40);
        allocator.pages(DEVICE).unwrap().pin(block).unwrap();
        allocator.free(block).unwrap();
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 40, "{config}");
        allocator.pages(DEVICE).unwrap().unpin(block).unwrap();
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 0, "{config}");
    }
}

#[test]
fn a_call_takes_about_its_time_and_tells_that_something_is_left() {
    for config in KINDS {
        let allocator = allocator(config);
        let device = allocator.device(DEVICE).unwrap();
        cache(&allocator, &[40; 20]);
        let pages = allocator.pages(DEVICE).unwrap();
        let mut more = false;
        for _ in 0..1200 {
            device.pause(50_000);
            let before = device.driver_ns();
            more |= pages.maintain(200).unwrap();
            assert!(device.driver_ns() - before < 300_000, "{config}");
        }
        assert!(more, "{config}");
        assert_eq!(reserved(&allocator), 0, "{config}");
    }
}
