//! Tests of the text of metrics.

use crate::device::{FIRST, MIB, SECOND, TestAllocator, allocator};
use cachalot_core::{PoolId, PoolOptions, Route, RoutePurpose, Statistic, StatisticKind, StreamId, Tag, TagLimits};
use cachalot_snapshot::metrics::{of_allocator, of_snapshot};
use cachalot_snapshot::{Block, Event, Segment, Snapshot};
use std::num::NonZeroU64;

fn block(size: u64, requested: Option<u64>, state: &'static str) -> Block {
    Block { size, requested_size: requested, state: state.into(), ..Block::default() }
}

#[test]
fn the_metrics_of_a_snapshot() {
    let used = Segment {
        total_size: 5000,
        stream: -1,
        blocks: vec![
            block(1000, Some(900), "active_allocated"),
            block(200, Some(150), "active_allocated"),
            block(30, Some(20), "active_pending_free"),
            block(4, Some(3), "active_awaiting_free"),
            block(3000, Some(2500), "inactive"),
            block(766, None, "inactive"),
        ],
        ..Segment::default()
    };
    let free = Segment {
        total_size: 2000,
        segment_pool_id: Some((3, 4)),
        stream: 0x1f,
        blocks: vec![block(2000, Some(0), "inactive")],
        ..Segment::default()
    };
    let pending =
        Segment { device: 2, total_size: 70, blocks: vec![block(70, None, "active_pending_free")], ..used.clone() };
    let unknown =
        Segment { device: -1, total_size: 60, blocks: vec![block(60, None, "of a later version")], ..free.clone() };
    let events = |count| vec![Event::default(); count];
    let snapshot = Snapshot {
        segments: vec![used.clone(), free, used, pending],
        host_segments: Some(vec![unknown]),
        device_traces: vec![events(3), events(0), events(1)],
        ..Snapshot::default()
    };
    assert_eq!(of_snapshot(&snapshot), include_str!("metrics/snapshot.txt"));
}

const fn tag(number: u64) -> Tag {
    Tag(NonZeroU64::new(number).expect("not 0"))
}

/// Creates a pool with a tag on the second device.
fn pool(allocator: &TestAllocator, tag: Tag, limits: Option<TagLimits>) -> PoolId {
    allocator.tags(SECOND).unwrap().limit(tag, limits).expect("these limits");
    let pool = allocator.pools(SECOND).expect("a pool").create(PoolOptions::default()).expect("a pool");
    allocator.parking(SECOND).expect("a device").tag_pool(pool, Some(tag)).expect("a pool");
    pool
}

#[test]
fn the_metrics_of_an_allocator() {
    let allocator = allocator("");
    let malloc = |bytes, stream| allocator.malloc(FIRST, bytes, StreamId(stream)).expect("memory");
    let peak = malloc(100 * MIB, 0);
    allocator.free(peak).expect("a block");
    allocator.malloc(FIRST, 1 << 40, StreamId(0)).expect_err("more than the device has");
    malloc(1000, 0);
    malloc(700, 0);
    let pending = malloc(5 * MIB, 0x1f);
    allocator.record_stream(pending, StreamId(7)).expect("a block");
    allocator.free(pending).expect("a block");
    let free = malloc(30 * MIB, 0);
    allocator.free(free).expect("a block");

    allocator.settings(SECOND).expect("a limit").set_limit(Some(128 * MIB));
    let limits = TagLimits { max: Some(40 * MIB), low: 10 * MIB, ..TagLimits::NONE };
    let limited = pool(&allocator, tag(5), Some(limits));
    let other = pool(&allocator, tag(9), None);
    let low = TagLimits { low: 1, ..TagLimits::NONE };
    allocator.tags(SECOND).unwrap().limit(tag(12), Some(low)).expect("limits without a pool");
    let malloc_in = |pool, bytes, stream| {
        allocator.pools(SECOND).expect("a pool").begin_route(pool, Route::All, RoutePurpose::Requests).expect("a pool");
        let block = allocator.malloc(SECOND, bytes, StreamId(stream));
        allocator.pools(SECOND).expect("a pool").end_route(pool, RoutePurpose::Requests).expect("a pool");
        allocator.pools(SECOND).expect("a pool").release(pool).expect("a pool");
        block
    };
    malloc_in(other, 3 * MIB, 0).expect("memory");
    let given = malloc_in(limited, 20 * MIB, 1).expect("memory");
    allocator.free(given).expect("a block");
    malloc_in(limited, 30 * MIB, 0).expect("the memory of the first block goes back");
    malloc_in(limited, 20 * MIB, 0).expect_err("more than the limit");

    let expected = include_str!("metrics/allocator.txt")
        .replace("{version}", env!("CARGO_PKG_VERSION"))
        .replace("{statistics}\n", &statistics(&allocator));
    assert_eq!(of_allocator(&allocator).expect("two devices"), expected);
}

#[test]
fn the_events_that_a_history_lost_are_counted() {
    let allocator = allocator("");
    let lost = || {
        let text = of_allocator(&allocator).expect("two devices");
        let lines = text.lines().filter_map(|line| line.strip_prefix("cachalot_dropped_events{device="));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lost(), [""; 0], "nothing is recorded");
    allocator.trace(SECOND).expect("a device").record(3).expect("a device");
    assert_eq!(lost(), ["\"1\"} 0"]);
    // Five blocks, two in a segment.
    for _block in 0..5 {
        allocator.malloc(SECOND, MIB, StreamId(0)).expect("memory");
    }
    assert_eq!(lost(), ["\"1\"} 5"]);
}

/// Returns the text of the statistics in the table of the core. The settings that have their own
/// figures are off.
fn statistics(allocator: &TestAllocator) -> String {
    let in_use = |of: &&Statistic| of.name.starts_with("pages.") || of.name.starts_with("device.");
    let family = |statistic: &Statistic| {
        let (name, unit, help) = (statistic.metric(), statistic.unit, statistic.text);
        let is_counter = statistic.kind == StatisticKind::Counter;
        let (kind, suffix) = if is_counter { ("counter", "_total") } else { ("gauge", "") };
        let head = format!("# TYPE {name} {kind}\n# UNIT {name} {unit}\n# HELP {name} {help}\n");
        let samples = [FIRST, SECOND].map(|device| {
            let value = allocator.stats(device).expect("a device").reading().value(statistic);
            format!("{name}{suffix}{{device=\"{}\"}} {value}\n", device.0)
        });
        head + &samples.concat()
    };
    Statistic::ALL.iter().filter(in_use).map(family).collect()
}
