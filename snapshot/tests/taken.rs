//! Tests of snapshots of an allocator.

use crate::device::{FIRST, MIB, SECOND, allocator};
use cachalot_core::{
    Action, BlockState, Config, DeviceIndex, DevicePtr, PoolId, PoolKind, SnapshotBlock, SnapshotSegment, StreamId,
    TraceEntry, TraceExtent,
};
use cachalot_snapshot::{Event, Format, Frame, Stack, Taken, read, write};
use serde_json::{Value, json};
use std::path::Path;

/// Returns a function from the numbers of call sites, 0 to 6, to stacks. 0 has no frames.
fn stacks() -> impl Fn(u32) -> Stack {
    let frame = |line| Frame { name: "allocate".into(), filename: "model.py".into(), line, ..Frame::default() };
    let mut stacks = vec![Stack::default()];
    stacks.extend((1..=6).map(|line| Stack::from(vec![frame(line)])));
    move |site| stacks[site as usize].clone()
}

fn written<F: Fn(u32) -> Stack>(taken: &Taken<F>) -> Value {
    let mut text = Vec::new();
    taken.write(&mut text, Format::Json).expect("a vector takes everything");
    serde_json::from_slice(&text).expect("JSON")
}

/// Two segments with two blocks each, and the traces of two devices.
fn parts() -> (Vec<SnapshotSegment>, Vec<Vec<TraceEntry>>) {
    let block = |address, size, requested_size, state, site| SnapshotBlock {
        address: DevicePtr(address),
        size,
        spilled: if site == 5 { 800 } else { 0 },
        requested_size,
        state,
        site,
    };
    let small = SnapshotSegment {
        device: DeviceIndex(1),
        address: DevicePtr(0x1000),
        total_size: 3000,
        parked: 0,
        spilled: 800,
        stream: StreamId(7),
        kind: PoolKind::Small,
        pool: PoolId(2, 3),
        is_expandable: false,
        site: 4,
        blocks: vec![
            block(0x1000, 1000, 900, BlockState::ActiveAllocated, 5),
            block(0x13e8, 1500, 1400, BlockState::ActivePendingFree, 6),
            block(0x19c4, 500, 300, BlockState::Inactive, 0),
        ],
    };
    let large = SnapshotSegment {
        device: FIRST,
        address: DevicePtr(0x2000),
        total_size: 50,
        parked: 20,
        spilled: 0,
        stream: StreamId(u64::MAX),
        kind: PoolKind::Large,
        pool: PoolId::DEFAULT,
        is_expandable: true,
        site: 0,
        blocks: vec![block(0x2000, 50, 0, BlockState::Inactive, 0)],
    };
    let entry = |action, site, addr, size, stream, time_us| TraceEntry {
        action,
        site,
        addr: DevicePtr(addr),
        size,
        stream: StreamId(stream),
        time_us,
    };
    let first =
        vec![entry(Action::Alloc, 5, 0x1000, 900, 7, 11), entry(Action::OutOfMemory, 6, 4096, 1 << 40, u64::MAX, 12)];
    (
        vec![small, large],
        vec![first, vec![entry(Action::SegmentFree, 0, 0x3000, 8, 0, 13), entry(Action::Spilled, 0, 0, 800, 7, 14)]],
    )
}

#[test]
fn a_snapshot_has_the_keys_of_pytorch() {
    let (segments, traces) = parts();
    let taken = Taken::new(segments, traces, &Config::default(), stacks());
    let frames = |site: u32| json!([{"name": "allocate", "filename": "model.py", "line": site}]);
    let powers: serde_json::Map<_, _> = (0..16).map(|power| ((1 << power).to_string(), 0.into())).collect();
    let expected = json!({
        "segments": [
            {"device": 1, "address": 0x1000, "total_size": 3000, "allocated_size": 1000, "active_size": 2500,
                "requested_size": 2300, "stream": 7, "segment_type": "small", "segment_pool_id": [2, 3],
                "is_expandable": false, "spilled_size": 800, "frames": frames(4), "blocks": [
                    {"address": 0x1000, "size": 1000, "requested_size": 900, "spilled_size": 800,
                        "state": "active_allocated", "frames": frames(5)},
                    {"address": 0x13e8, "size": 1500, "requested_size": 1400, "state": "active_pending_free",
                        "frames": frames(6)},
                    {"address": 0x19c4, "size": 500, "requested_size": 300, "state": "inactive", "frames": []}]},
            {"device": 0, "address": 0x2000, "total_size": 50, "allocated_size": 0, "active_size": 0,
                "requested_size": 0, "stream": -1, "segment_type": "large", "segment_pool_id": [0, 0],
                "is_expandable": true, "parked_size": 20, "frames": [], "blocks": [
                    {"address": 0x2000, "size": 50, "requested_size": 0, "state": "inactive", "frames": []}]}],
        "device_traces": [
            [{"action": "alloc", "addr": 0x1000, "size": 900, "stream": 7, "time_us": 11, "frames": frames(5),
                "compile_context": "N/A", "user_metadata": ""},
             {"action": "oom", "device_free": 4096, "size": 1_u64 << 40, "stream": -1, "time_us": 12,
                "frames": frames(6), "compile_context": "N/A", "user_metadata": ""}],
            [{"action": "segment_free", "addr": 0x3000, "size": 8, "stream": 0, "time_us": 13, "frames": [],
                "compile_context": "N/A", "user_metadata": ""},
             {"action": "user_defined", "addr": 0, "size": 800, "stream": 7, "time_us": 14, "frames": [],
                "compile_context": "N/A", "user_metadata": "", "spilled_size": 800}]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1,
            "garbage_collection_threshold": 0.0, "expandable_segments": false, "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": false, "pinned_use_cuda_host_register": false,
            "graph_capture_record_stream_reuse": false, "max_round_threshold": -1, "max_cached_size": -1,
            "roundup_power2_divisions": powers},
        "external_annotations": [],
    });
    assert_eq!(written(&taken), expected);

    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("taken.pickle");
    // The file of an earlier run.
    let _ = std::fs::remove_file(&path);
    taken.write_file(&path, Format::of(&path)).expect("the test's folder can be written");
    let pickle = std::fs::read(&path).expect("the file");
    assert_eq!(pickle[..2], *b"\x80\x02");
    let back = read(&pickle).expect("a pickle");
    let on_host = |event: &Event| event.spilled_size();
    assert_eq!(back.device_traces[1].iter().map(on_host).collect::<Vec<_>>(), [None, Some(800)]);
    assert_eq!(back, read(expected.to_string().as_bytes()).expect("JSON"));
}

#[test]
fn the_settings_have_the_names_and_units_of_pytorch() {
    let text = "expandable_segments:True,max_split_size_mb:256,garbage_collection_threshold:0.75,\
        roundup_power2_divisions:[256:1,512:2,1024:4,>:8],pinned_num_register_threads:4,\
        release_lock_on_cudamalloc:True,pinned_use_cuda_host_register:True,graph_capture_record_stream_reuse:True,\
        pinned_max_round_threshold_mb:3,pinned_max_cached_size_mb:5";
    let config = Config::parse(text).expect("a configuration");
    let divisions = |power: u32| match 1_u32 << power {
        ..=256 => 1,
        512 => 2,
        1024 => 4,
        _ => 8,
    };
    let powers = (0..16).map(|power| ((1_u32 << power).to_string(), divisions(power).into()));
    let expected = json!({
        "PYTORCH_CUDA_ALLOC_CONF": config.to_string(),
        "max_split_size": 256 * MIB,
        "garbage_collection_threshold": 0.75,
        "expandable_segments": true,
        "pinned_num_register_threads": 4,
        "release_lock_on_cudamalloc": true,
        "pinned_use_cuda_host_register": true,
        "graph_capture_record_stream_reuse": true,
        "max_round_threshold": 3 * MIB,
        "max_cached_size": 5 * MIB,
        "roundup_power2_divisions": powers.collect::<serde_json::Map<_, _>>(),
    });
    assert_eq!(written(&Taken::new(Vec::new(), Vec::new(), &config, stacks()))["allocator_settings"], expected);
}

#[test]
fn a_snapshot_has_the_state_of_an_allocator() {
    let allocator = allocator("max_split_size_mb:64");
    for (device, count) in [(FIRST, 1), (SECOND, 3)] {
        allocator.trace(device).expect("a device").record(100).expect("a device");
        let block = allocator.malloc(device, count * MIB, StreamId(0)).expect("memory");
        if device == SECOND {
            allocator.free(block).expect("a block");
        }
    }
    let trace = |device| {
        let mut entries = Vec::new();
        allocator.trace(device).expect("a device").for_each(|entry| entries.push(*entry));
        entries
    };
    let traces = [FIRST, SECOND].map(trace);
    assert_eq!(traces.each_ref().map(Vec::len), [2, 4]);
    let config = allocator.settings(FIRST).expect("a device").config();
    let extent = TraceExtent { capacity: 100, dropped: 0 };
    let parts = Taken::new(allocator.snapshot(), traces.into(), &config, stacks()).with_extent(extent);
    assert_eq!(written(&Taken::of(&allocator, stacks())), written(&parts));
}

/// `PyTorch` has the same keys, in the same place.
#[test]
fn a_snapshot_tells_that_its_history_is_cut() {
    let allocator = allocator("");
    let told = || {
        let settings = written(&Taken::of(&allocator, stacks()))["allocator_settings"].clone();
        (settings["trace_alloc_max_entries"].clone(), settings["trace_alloc_overflowed"].clone())
    };
    assert_eq!(told(), (0.into(), false.into()));
    allocator.trace(FIRST).expect("a device").record(3).expect("a device");
    for _request in 0..3 {
        assert_eq!(told(), (3.into(), false.into()));
        allocator.malloc(FIRST, MIB, StreamId(0)).expect("memory");
    }
    assert_eq!(told(), (3.into(), true.into()), "two segments and three blocks");
}

#[test]
fn a_snapshot_taken_is_written_once() {
    let taken = Taken::new(Vec::new(), Vec::new(), &Config::default(), stacks());
    let snapshot = taken.snapshot();
    let write = |format| write(Vec::new(), format, &snapshot);
    write(Format::Json).expect("the first time");
    for format in [Format::Json, Format::Pickle] {
        let error = write(format).expect_err("the second time");
        assert!(error.to_string().contains("a list was written before"), "{error}");
    }
}
