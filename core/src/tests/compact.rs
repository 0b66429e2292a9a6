//! The setting `compact`: a budget for held memory.

use crate::allocator::Allocator;
use crate::arena::request::Forecast;
use crate::config::Config;
use crate::config::rounding::PoolKind;
use crate::device::simulated::{Call, SimulatedDevice};
use crate::pool::{PoolOptions, Route, RoutePurpose};
use crate::stats::Stat;
use crate::tables::{Growable, Lazy};
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use std::format;
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &str) -> Simulated {
    Simulated::new([SimulatedDevice::new(1 << 40)], &Config::parse(config).unwrap()).unwrap()
}

/// Allocates blocks of `mib` on `stream`, all live at one time, and frees them.
fn cache(allocator: &Simulated, stream: StreamId, mib: &[u64]) {
    let blocks: Vec<_> = mib.iter().map(|mib| malloc(allocator, stream, *mib)).collect();
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
}

fn malloc(allocator: &Simulated, stream: StreamId, mib: u64) -> DevicePtr {
    allocator.malloc(DEVICE, mib * MIB, stream).unwrap()
}

/// Makes all free blocks of the stream quiet.
fn quiesce(allocator: &Simulated, stream: StreamId) {
    let arena = allocator.arena(DEVICE).unwrap();
    let slot = arena.heaps.find_pair(0, stream).unwrap().slot(PoolKind::Large);
    assert!(allocator.on(DEVICE).unwrap().holdings().given_up().begin_epoch(slot, STREAM));
    allocator.device(DEVICE).unwrap().complete(stream);
}

/// The sizes of all segments in MiB, ascending.
fn segments(allocator: &Simulated) -> Vec<u64> {
    let mut sizes: Vec<_> = allocator.snapshot().iter().map(|segment| segment.total_size / MIB).collect();
    sizes.sort_unstable();
    sizes
}

/// The number of calls that made the device wait for its work.
fn waits(allocator: &Simulated) -> u64 {
    let device = allocator.device(DEVICE).unwrap();
    [Call::Wait, Call::Synchronize].map(|call| device.calls(call)).iter().sum()
}

#[test]
fn nothing_is_released_for_a_request_before_the_device_has_finished_with_it() {
    let allocator = allocator("compact:0.05");
    cache(&allocator, STREAM, &[100, 100]);
    let larger = malloc(&allocator, STREAM, 140);
    assert_eq!(segments(&allocator), [100, 100, 140], "the event is pending: the budget is exceeded");
    allocator.free(larger).unwrap();
    allocator.device(DEVICE).unwrap().complete(STREAM);
    let largest = malloc(&allocator, STREAM, 180);
    assert_eq!(segments(&allocator), [140, 180], "what was freed before the event is released, and no more");
    assert_eq!(waits(&allocator), 0);
    allocator.free(largest).unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn the_smallest_segments_that_suffice_are_released() {
    let allocator = allocator("compact:0.05");
    cache(&allocator, STREAM, &[40, 60, 100]);
    quiesce(&allocator, STREAM);
    // 120 MiB beyond the budget of 210: no segment suffices alone, and 40 do for the rest of 20.
    malloc(&allocator, STREAM, 130);
    assert_eq!(segments(&allocator), [60, 130]);
}

#[test]
fn what_streams_without_unfinished_work_have_freed_is_released_at_once() {
    for streams in [&[STREAM][..], &[STREAM, OTHER]] {
        let device = SimulatedDevice::new(1 << 40).with_work_done_at_once();
        let allocator = Simulated::new([device], &Config::parse("compact:0").unwrap()).unwrap();
        streams.iter().for_each(|&stream| cache(&allocator, stream, &[60]));
        malloc(&allocator, STREAM, 200);
        assert_eq!(segments(&allocator), [200], "{streams:?}");
        assert_eq!(waits(&allocator), 0);
    }
}

#[test]
fn of_equal_segments_too_small_alone_the_last_is_released_first() {
    let allocator = allocator("compact:0");
    let blocks = [60, 60].map(|mib| malloc(&allocator, STREAM, mib));
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    quiesce(&allocator, STREAM);
    allocator.on(DEVICE).unwrap().holdings().given_up().poll_departures();
    let last = blocks.into_iter().max_by_key(|block| block.0).unwrap();
    assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(200 * MIB, STREAM), Ok(Forecast::Release(last)));
    malloc(&allocator, STREAM, 200);
    assert_eq!(segments(&allocator), [200]);
}

#[test]
fn segments_of_other_streams_are_released_and_those_of_pools_in_use_are_not() {
    let allocator = allocator("compact:0");
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(OTHER), RoutePurpose::Requests).unwrap();
    cache(&allocator, OTHER, &[100]);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    cache(&allocator, OTHER, &[60]);
    quiesce(&allocator, OTHER);
    let arena = allocator.arena(DEVICE).unwrap();
    for slot in arena.heaps.slot_numbers() {
        // As if every event were complete.
        let mut heap = arena.heaps.lock(slot);
        if heap.sets.is_made() {
            heap.sets.quiet = u64::MAX;
        }
    }
    malloc(&allocator, STREAM, 80);
    assert_eq!(segments(&allocator), [80, 100]);
}

#[test]
fn a_whole_segment_serves_close_sizes_only_within_the_budget() {
    let allocator = allocator("compact:1");
    let _live = malloc(&allocator, STREAM, 200);
    let hundred = malloc(&allocator, STREAM, 100);
    allocator.free(hundred).unwrap();
    // A fifth of the segment may be lost, and no more.
    let close = malloc(&allocator, STREAM, 80);
    assert_eq!(close, hundred);
    allocator.free(close).unwrap();
    let smaller = malloc(&allocator, STREAM, 78);
    assert_eq!(segments(&allocator), [78, 100, 200]);
    // A segment that is cut serves any size.
    allocator.free(smaller).unwrap();
    let (cut, part) = (malloc(&allocator, STREAM, 76), malloc(&allocator, STREAM, 80));
    assert_eq!((cut, part), (smaller, hundred));
    assert_eq!(malloc(&allocator, STREAM, 15), part.offset(80 * MIB));
    // Beyond the budget, any block serves.
    allocator.configure(&Config::parse("compact:0").unwrap());
    allocator.free(cut).unwrap();
    assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(30 * MIB, STREAM), Ok(Forecast::Hit(cut)));
    assert_eq!(malloc(&allocator, STREAM, 30), cut);
    assert_eq!(allocator.device(DEVICE).unwrap().calls(Call::Release), 0);
}

#[test]
fn any_block_serves_where_the_limit_allows_no_segment() {
    let allocator = allocator("compact:1");
    allocator.settings(DEVICE).unwrap().set_limit(Some(110 * MIB));
    cache(&allocator, STREAM, &[100]);
    let forecast = allocator.forecast(DEVICE).unwrap().malloc(40 * MIB, STREAM);
    assert_eq!(forecast, Ok(Forecast::Hit(malloc(&allocator, STREAM, 40))));
    assert_eq!(segments(&allocator), [100]);
    assert_eq!(waits(&allocator), 0);
}

#[test]
fn segments_of_one_block_are_exact_and_released_before_a_larger_one_is_cut() {
    let allocator = allocator("parity:False,compact:0,exact_segments:True");
    let bytes = 3 * MIB + 100;
    let first = allocator.malloc(DEVICE, bytes, STREAM).unwrap();
    let segment = allocator.base_of(first).unwrap().segment_bytes;
    assert_eq!(segment, bytes.next_multiple_of(4096), "neither 20 MiB nor a multiple of 2 MiB");
    // A request of 128 MiB may lose 1 MiB of a segment.
    cache(&allocator, STREAM, &[129]);
    quiesce(&allocator, STREAM);
    let close = malloc(&allocator, STREAM, 128);
    assert_eq!(segments(&allocator), [3, 129]);
    allocator.free(close).unwrap();
    quiesce(&allocator, STREAM);
    allocator.on(DEVICE).unwrap().holdings().given_up().poll_departures();
    assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(127 * MIB, STREAM), Ok(Forecast::Release(close)));
    malloc(&allocator, STREAM, 127);
    assert_eq!(segments(&allocator), [3, 127]);
    assert_eq!(waits(&allocator), 0);
    allocator.check_invariants().unwrap();
}

#[test]
fn with_a_roomy_budget_a_segment_serves_smaller_blocks_whole() {
    // A request of 4 MiB leaves 1 MiB, which is not split off; one of 32 MiB receives an oversize
    // block whole.
    for (cached, fits, too_small, rest_would_be_cut) in [(5, 4, 3, None), (40, 32, 31, None), (15, 15, 10, Some(12))] {
        let allocator = allocator("parity:False,compact:1,exact_segments:True,max_split_size_mb:20");
        cache(&allocator, STREAM, &[cached]);
        let block = malloc(&allocator, STREAM, fits);
        assert_eq!(segments(&allocator), [cached]);
        assert_eq!(allocator.base_of(block).unwrap().base, block);
        allocator.free(block).unwrap();
        for other in [Some(too_small), rest_would_be_cut].into_iter().flatten() {
            allocator.free(malloc(&allocator, STREAM, other)).unwrap();
            assert!(segments(&allocator).contains(&other), "{other} of {cached}: {:?}", segments(&allocator));
        }
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn no_segment_is_released_within_the_slack() {
    for (slack, expected) in [(0, &[50][..]), (39, &[50]), (40, &[40, 50])] {
        let allocator = allocator(&std::format!("compact:0,exact_segments:True,compact_slack_mb:{slack}"));
        cache(&allocator, STREAM, &[40]);
        quiesce(&allocator, STREAM);
        malloc(&allocator, STREAM, 50);
        assert_eq!(segments(&allocator), expected, "{slack} MiB");
    }
}

#[test]
fn no_segment_is_released_for_an_exact_one_that_a_lowered_limit_forbids() {
    let allocator = allocator("parity:False,compact:0,exact_segments:True");
    let _live = malloc(&allocator, STREAM, 50);
    cache(&allocator, STREAM, &[7]);
    quiesce(&allocator, STREAM);
    allocator.on(DEVICE).unwrap().holdings().given_up().poll_departures();
    allocator.settings(DEVICE).unwrap().set_limit(Some(40 * MIB));
    let forecast = allocator.forecast(DEVICE).unwrap().malloc(2 * MIB, STREAM);
    assert_eq!(forecast, Ok(Forecast::Hit(malloc(&allocator, STREAM, 2))));
    assert_eq!(segments(&allocator), [7, 50]);
    allocator.check_invariants().unwrap();
}

#[test]
fn a_release_of_a_quiet_segment_is_foretold() {
    let allocator = allocator("compact:0");
    cache(&allocator, STREAM, &[40, 60]);
    let forecast = || allocator.forecast(DEVICE).unwrap().malloc(80 * MIB, STREAM).unwrap();
    assert_eq!(forecast(), Forecast::Obtain(80 * MIB), "the device may still use both");
    quiesce(&allocator, STREAM);
    allocator.on(DEVICE).unwrap().holdings().given_up().poll_departures();
    let Forecast::Release(first) = forecast() else { panic!("{:?}", forecast()) };
    malloc(&allocator, STREAM, 80);
    assert_eq!(segments(&allocator), [80]);
    assert!(allocator.base_of(first).is_err());
}

#[test]
fn during_a_capture_nothing_is_released_and_no_event_is_recorded() {
    let allocator = allocator("compact:0");
    cache(&allocator, STREAM, &[60]);
    quiesce(&allocator, STREAM);
    let device = allocator.device(DEVICE).unwrap();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    let recorded = device.calls(Call::Record);
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(OTHER), RoutePurpose::Capture).unwrap();
    device.set_capturing(OTHER, true);
    for stream in [OTHER, STREAM] {
        malloc(&allocator, stream, 80);
    }
    assert_eq!(segments(&allocator), [60, 80, 80]);
    assert_eq!(device.calls(Call::Record), recorded);
    device.set_capturing(OTHER, false);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    malloc(&allocator, STREAM, 100);
    assert_eq!(segments(&allocator), [80, 80, 100], "the capture is over");
}

#[test]
fn the_most_in_use_survives_a_reset_of_the_peaks() {
    let allocator = allocator("compact:0");
    cache(&allocator, STREAM, &[100, 100]);
    allocator.stats(DEVICE).unwrap().reset_peaks();
    quiesce(&allocator, STREAM);
    let live = malloc(&allocator, STREAM, 100);
    let most = allocator.arena(DEVICE).unwrap().peaks.device.most(Stat::ActiveBytes);
    assert_eq!(most, 200 * MIB);
    allocator.stats(DEVICE).unwrap().reset_peaks();
    assert_eq!(allocator.arena(DEVICE).unwrap().peaks.device.most(Stat::ActiveBytes), most);
    allocator.free(live).unwrap();
}

/// Requests served one after the other, of which the last `window` are live. Returns the segments
/// obtained for all of them, and for those but the first quarter, and the most memory held in
/// percent of the most in use.
fn obtained(pins: bool, window: usize, sizes: impl Iterator<Item = u64>) -> (u64, u64, u64) {
    let device = SimulatedDevice::new(1 << 40).with_work_done_at_once();
    let device = if pins { device.with_pinned_segments() } else { device };
    let config = Config::parse("compact:0.01,exact_segments:True").unwrap();
    let allocator = Simulated::new([device], &config).unwrap();
    let sizes: Vec<u64> = sizes.collect();
    let (mut live, mut early, mut held) = (std::collections::VecDeque::new(), 0, 0);
    let obtained = || allocator.device(DEVICE).unwrap().calls(Call::Obtain);
    for (number, &size) in sizes.iter().enumerate() {
        if live.len() == window {
            allocator.free(live.pop_front().unwrap()).unwrap();
        }
        live.push_back(allocator.malloc(DEVICE, size, STREAM).unwrap());
        if number == sizes.len() / 4 {
            early = obtained();
        }
        held = held.max(allocator.device(DEVICE).unwrap().used());
    }
    let most = sizes.windows(window).map(|live| live.iter().sum::<u64>()).max().unwrap();
    (obtained(), obtained() - early, held * 100 / most)
}

#[test]
fn pinned_memory_of_varying_sizes_is_hardly_pinned_anew_and_stays_tight() {
    // 8 MiB and up to a tenth more, by a simple generator.
    let varying = || (0..400_u64).map(|number| 8 * MIB + (number * 7919 % 4096) * (MIB * 8 / 10 / 4096));
    for window in [2, 16] {
        let (_, anew, held) = obtained(true, window, varying());
        assert!(anew <= 3, "{window}: {anew} of 300");
        assert!(held <= 120, "{window}: {held} %");
        let (_, exact, _) = obtained(false, window, varying());
        assert!(exact > 150, "{window}: {exact} of 300 where a segment costs little");
    }
    // A cache that grows by 64 KiB a step, the old one freed once the new one is filled.
    let (all, _, held) = obtained(true, 2, (1..=200).map(|step| MIB + step * MIB / 16));
    assert!(all <= 80, "{all} of 200");
    assert!(held <= 120, "{held} %");
    // Equal sizes are exact.
    let (all, anew, held) = obtained(true, 16, (0..400).map(|_| 8 * MIB + 4096));
    assert_eq!((all, anew, held), (16, 0, 100));
}

#[test]
fn pinned_memory_of_many_sizes_gets_a_larger_budget_unless_one_is_named() {
    for (named, pins, wanted) in [(0.01, true, 0.25), (0.05, true, 0.05), (0.01, false, 0.01)] {
        let device = SimulatedDevice::new(1 << 40).with_work_done_at_once();
        let device = if pins { device.with_pinned_segments() } else { device };
        let config = Config::parse(&format!("compact:{named},exact_segments:True")).unwrap();
        let allocator = Simulated::new([device], &config).unwrap();
        let mut live = std::collections::VecDeque::new();
        // 4 to 16 MiB, by a simple generator.
        for number in 0..400_u64 {
            if live.len() == 16 {
                allocator.free(live.pop_front().unwrap()).unwrap();
            }
            let size = 4 * MIB + (number * 7919 % 4096) * (12 * MIB / 4096);
            live.push_back(allocator.malloc(DEVICE, size, STREAM).unwrap());
        }
        assert_eq!(allocator.settings(DEVICE).unwrap().config().compact(), Some(wanted), "{named}, {pins}");
    }
}
