//! Traces, snapshots, and the stacks in both.

use crate::common::scratch;
use crate::common::subject::{MIB, Subject, ok, stream};
use cachalot::c::abi::{
    CACHALOT_ACTION_ALLOC, CACHALOT_ACTION_FREE_COMPLETED, CACHALOT_ACTION_FREE_REQUESTED,
    CACHALOT_ACTION_SEGMENT_FREE, CACHALOT_JSON, CACHALOT_PICKLE, cachalot_action, cachalot_allocator,
    cachalot_snapshot_options, cachalot_stack,
};
use cachalot::c::capi::{
    cachalot_empty_cache, cachalot_free, cachalot_malloc, cachalot_on_stack, cachalot_process_events,
    cachalot_record_stream, cachalot_simulate_progress, cachalot_snapshot, cachalot_stack_push, cachalot_trace_start,
};
use cachalot::c::status::{CACHALOT_ERROR_INVALID_ARGUMENT, CACHALOT_ERROR_OUT_OF_MEMORY};
use serde_json::{Value, json};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// Gathers parts of a text.
unsafe extern "C" fn append(userdata: *mut c_void, text: *const c_char, bytes: usize) -> c_int {
    // SAFETY: the caller's vector, without another user during the call.
    let whole = unsafe { &mut *userdata.cast::<Vec<u8>>() };
    // SAFETY: the text has the passed length.
    whole.extend_from_slice(unsafe { std::slice::from_raw_parts(text.cast(), bytes) });
    0
}

/// Returns the snapshot, as the callback receives it.
fn snapshot_of(subject: &Subject) -> Value {
    let mut whole = Vec::<u8>::new();
    // SAFETY: the callback takes the vector, which outlives the call.
    ok(unsafe { cachalot_snapshot(subject.0, null(), Some(append), (&raw mut whole).cast()) });
    serde_json::from_slice(&whole).expect("it is JSON")
}

#[test]
fn traces_tell_what_happened_in_order() {
    let subject = Subject::plain();
    ok(cachalot_trace_start(subject.0, 0, 4));
    let block = subject.malloc(1000, stream(1));
    subject.free(block);
    ok(cachalot_empty_cache(subject.0, 0));
    let list = subject.trace(0);
    let told: Vec<_> = list.iter().map(|entry| (entry.action, entry.address as usize, entry.bytes)).collect();
    let at = block.addr();
    // The oldest of five, the segment, is gone: four are kept.
    let expected = [
        (CACHALOT_ACTION_ALLOC, at, 1000),
        (CACHALOT_ACTION_FREE_REQUESTED, at, 1000),
        (CACHALOT_ACTION_FREE_COMPLETED, at, 1000),
        (CACHALOT_ACTION_SEGMENT_FREE, at, 2 * MIB as u64),
    ];
    assert_eq!(told, expected);
    assert!(list.iter().all(|entry| entry.stream_id == 0x10000 && entry.time_us > 1_600_000_000_000_000));
    ok(cachalot_trace_start(subject.0, 0, 0));
    assert!(subject.trace(0).is_empty());
}

#[test]
fn snapshots_are_json_with_pytorchs_keys() {
    let subject = Subject::plain();
    ok(subject.configure(c"max_split_size_mb:64"));
    ok(cachalot_trace_start(subject.0, 0, 100));
    let block = subject.malloc(1000, stream(1));
    let (status, _) = subject.try_malloc(0, 100 << 30, stream(1));
    assert_eq!(status, CACHALOT_ERROR_OUT_OF_MEMORY);
    let snapshot = snapshot_of(&subject);
    let at = block.addr();
    let expected = json!([{
        "device": 0, "address": at, "total_size": 2 * MIB, "allocated_size": 1024, "active_size": 1024,
        "requested_size": 1000, "stream": 0x10000, "segment_type": "small", "segment_pool_id": [0, 0],
        "is_expandable": false, "frames": [],
        "blocks": [
            { "address": at, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": [] },
            { "address": at + 1024, "size": 2 * MIB - 1024, "requested_size": 0, "state": "inactive", "frames": [] },
        ],
    }]);
    assert_eq!(snapshot["segments"], expected);
    let actions: Vec<_> = snapshot["device_traces"][0].as_array().expect("a list").iter().collect();
    assert_eq!(actions.iter().map(|entry| &entry["action"]).collect::<Vec<_>>(), ["segment_alloc", "alloc", "oom"]);
    assert_eq!((&actions[1]["addr"], &actions[1]["size"]), (&at.into(), &1000.into()));
    assert!(actions[2]["addr"].is_null() && actions[2]["device_free"].is_u64());
    assert_eq!(snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"], "max_split_size_mb:64");

    let file = scratch("history").join("snapshot.json");
    ok(subject.write_snapshot(&file));
    let written: Value = serde_json::from_slice(&std::fs::read(&file).expect("it was written")).expect("JSON");
    assert_eq!(written, snapshot);
    subject.free(block);
}

#[test]
fn snapshots_are_pickles_too() {
    let subject = Subject::plain();
    ok(cachalot_trace_start(subject.0, 0, 100));
    let block = subject.malloc(1000, stream(1));
    let file = scratch("history").join("snapshot.pickle");
    ok(subject.write_snapshot(&file));
    let pickled = std::fs::read(&file).expect("it was written");
    let read: Value = serde_pickle::from_slice(&pickled, serde_pickle::DeOptions::new()).expect("a pickle");
    assert_eq!(read, snapshot_of(&subject));
    let mut whole = Vec::<u8>::new();
    let struct_size = size_of::<cachalot_snapshot_options>();
    let mut options = cachalot_snapshot_options { struct_size, path: null(), format: CACHALOT_PICKLE, flags: 0 };
    // SAFETY: the callback takes the vector, which outlives the call.
    let status = unsafe { cachalot_snapshot(subject.0, &raw const options, Some(append), (&raw mut whole).cast()) };
    ok(status);
    assert_eq!(whole, pickled);
    for format in [3, -1] {
        options.format = format;
        // SAFETY: as above.
        let status = unsafe { cachalot_snapshot(subject.0, &raw const options, Some(append), (&raw mut whole).cast()) };
        assert_eq!(status, CACHALOT_ERROR_INVALID_ARGUMENT);
    }
    // A format counts more than the name of the file, and a snapshot goes to one place.
    let named = CString::new(file.to_str().expect("UTF-8")).expect("no NUL");
    options = cachalot_snapshot_options { path: named.as_ptr(), format: CACHALOT_JSON, ..options };
    // SAFETY: as above, and there is no callback.
    ok(unsafe { cachalot_snapshot(subject.0, &raw const options, None, null_mut()) });
    let json: Value = serde_json::from_slice(&std::fs::read(&file).expect("it was written")).expect("it is JSON");
    assert_eq!(json, read);
    // SAFETY: as above.
    let status = unsafe { cachalot_snapshot(subject.0, &raw const options, Some(append), (&raw mut whole).cast()) };
    assert_eq!(status, CACHALOT_ERROR_INVALID_ARGUMENT);
    subject.free(block);
}

/// The stacks that a callback describes, and the number of its calls.
#[derive(Default)]
struct Describer {
    subject: Option<*mut cachalot_allocator>,
    asked: Vec<cachalot_action>,
}

unsafe extern "C" fn describe(userdata: *mut c_void, stack: *mut cachalot_stack, action: cachalot_action) {
    // SAFETY: `userdata` points to the describer that the test passed, and nothing else uses the
    // describer during the call.
    let describer = unsafe { &mut *userdata.cast::<Describer>() };
    describer.asked.push(action);
    if let Some(allocator) = describer.subject {
        // Requests of a callback are recorded, and lead to no other question.
        let mut block = null_mut();
        // SAFETY: the variable outlives the call.
        ok(unsafe { cachalot_malloc(allocator, 0, 5000, stream(2), &raw mut block) });
        ok(cachalot_free(allocator, block));
    }
    if action == CACHALOT_ACTION_FREE_REQUESTED {
        return;
    }
    let line = c_int::try_from(describer.asked.len()).expect("few");
    // SAFETY: the stack is the one that this callback got; the texts are ended by NUL, or NULL.
    unsafe { cachalot_stack_push(stack, c"forward \xff".as_ptr(), c"model.py".as_ptr(), line) };
    // SAFETY: as above.
    unsafe { cachalot_stack_push(stack, null(), null(), -1) };
}

#[test]
fn stacks_are_described_by_the_program_and_told_with_blocks_segments_and_events() {
    let subject = Subject::plain();
    let mut describer = Describer { subject: Some(subject.0), asked: Vec::new() };
    // SAFETY: the describer outlives the allocator's last call.
    ok(unsafe { cachalot_on_stack(subject.0, Some(describe), (&raw mut describer).cast()) });
    let early = subject.malloc(1000, stream(1));
    assert!(describer.asked.is_empty(), "nothing is recorded yet");
    ok(cachalot_trace_start(subject.0, 0, 100));
    let block = subject.malloc(3 * MIB, stream(1));
    let other = subject.malloc(4 * MIB, stream(1));
    subject.free(other);
    ok(cachalot_record_stream(subject.0, block, stream(3)));
    subject.free(block);
    let (alloc, free) = (CACHALOT_ACTION_ALLOC, CACHALOT_ACTION_FREE_REQUESTED);
    assert_eq!(describer.asked, [alloc, alloc, free, free]);
    let snapshot = snapshot_of(&subject);
    let stack = |line: c_int| {
        json!([{"name": "forward \u{fffd}", "filename": "model.py", "line": line},
            {"name": "", "filename": "", "line": -1}])
    };
    let none = json!([]);
    for segment in snapshot["segments"].as_array().expect("a list") {
        for entry in segment["blocks"].as_array().expect("a list") {
            let pending = entry["address"] == block.addr();
            assert_eq!(entry["frames"], if pending { stack(1) } else { none.clone() }, "{entry}");
        }
        let large = segment["segment_type"] == "large";
        assert_eq!(segment["frames"], if large { stack(1) } else { none.clone() }, "{segment}");
    }
    let events = snapshot["device_traces"][0].as_array().expect("a list").iter();
    let told: Vec<_> = events
        .filter(|event| event["stream"] == 0x10000)
        .map(|event| (event["action"].as_str().expect("a text"), event["frames"].clone()))
        .collect();
    assert_eq!(
        told,
        [
            ("segment_alloc", stack(1)),
            ("alloc", stack(1)),
            ("alloc", stack(2)),
            ("free_requested", stack(2)),
            ("free_completed", stack(2)),
            ("free_requested", stack(1)),
        ]
    );
    // SAFETY: without a callback, the library uses no pointer.
    ok(unsafe { cachalot_on_stack(subject.0, None, null_mut()) });
    subject.free(early);
    ok(cachalot_simulate_progress(subject.0, 0, stream(3)));
    ok(cachalot_process_events(subject.0, 0));
    assert_eq!(describer.asked.len(), 4);
    let events = snapshot_of(&subject)["device_traces"][0].as_array().expect("a list").clone();
    let frames: Vec<_> = events.iter().rev().take(3).map(|event| event["frames"].clone()).collect();
    assert_eq!(frames, [stack(1), none.clone(), none]);
}

#[test]
fn a_stack_of_another_place_is_nobodys() {
    // SAFETY: a stack that is none is passed over.
    unsafe { cachalot_stack_push(null_mut(), c"a".as_ptr(), c"b".as_ptr(), 1) };
}
