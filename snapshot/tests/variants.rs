//! Tests of every form of a snapshot: protocols of pickles, keys of old and new versions of
//! `PyTorch`, files without events, and events that are converted at once.

use cachalot_snapshot::{Event, Format, Frame, ReadError, Snapshot, Stack, read, read_with, write};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

fn event(action: &str, addr: u64, more: &Value) -> Value {
    let mut event = json!({"action": action, "addr": addr, "size": 512, "stream": 0});
    event.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    event
}

/// Builds a snapshot with keys of all versions from 2.1 to 2.15.
fn snapshot() -> Value {
    let frames = json!([{"name": "forward", "filename": "model.py", "line": 7},
        {"name": "main", "filename": "train.py", "line": 90, "fx_node_op": "call_function"}]);
    let block =
        json!({"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": frames});
    let rest = json!({"address": 4608, "size": 2_096_640, "requested_size": 0, "state": "inactive", "frames": []});
    json!({
        "segments": [{"device": 0, "address": 4096, "total_size": 2_097_152, "allocated_size": 512, "active_size": 512,
            "requested_size": 500, "stream": 0, "segment_type": "small", "segment_pool_id": [0, 1],
            "is_expandable": false, "frames": frames, "blocks": [block, rest]}],
        "device_traces": [[
            event("segment_alloc", 4096, &json!({"frames": frames, "time_us": 1_700_000_000_000_000_u64})),
            event("alloc", 4096, &json!({"frames": frames, "time_us": 1_700_000_000_000_001_u64,
                "compile_context": "0/1", "user_metadata": "step 3", "pool_id": [0, 1]})),
            event("annotate", 0, &json!({"user_metadata": "epoch 2", "compile_context": "N/A", "frames": []})),
            {"action": "oom", "device_free": 1024, "size": 1 << 30, "stream": 7, "frames": []},
            event("snapshot", 0, &json!({})),
        ], []],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False", "expandable_segments": false,
            "roundup_power2_divisions": {"1": 0}},
        "external_annotations": [{"name": "## step 3 ##", "stage": "START", "device": 0, "time_us": 1_700_000_000_000_000_u64}],
        "host_segments": [{"device": -1, "address": 64, "total_size": 4096, "blocks": []}],
        "host_traces": [{"action": "alloc", "addr": 64, "size": 64, "stream": 0, "frames": frames}],
    })
}

fn plain(snapshot: &Value) -> Snapshot {
    read(snapshot.to_string().as_bytes()).expect("a snapshot")
}

/// Converts every event into itself.
fn read_events(bytes: &[u8]) -> Result<Snapshot, ReadError> {
    read_with(bytes, |event: Event| event)
}

/// Returns a snapshot as [`read_with`] reads it: without host memory.
fn without_host(mut snapshot: Snapshot) -> Snapshot {
    (snapshot.host_segments, snapshot.host_traces) = (None, None);
    snapshot.other.clear();
    snapshot
}

/// Pickles a JSON text by Python, with protocols 2 to 5. `None` without Python.
fn pickled(snapshot: &Value) -> Option<Vec<Vec<u8>>> {
    const PROGRAM: &str = "
import json, pickle, sys
value = json.loads(sys.argv[1])
for segment in value['segments'] if isinstance(value, dict) else value:
    if 'segment_pool_id' in segment:
        segment['segment_pool_id'] = tuple(segment['segment_pool_id'])
for protocol in (2, 3, 4, 5):
    with open(f'{sys.argv[2]}.{protocol}', 'wb') as file:
        pickle.dump(value, file, protocol=protocol)
";
    let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("variant{}", snapshot.to_string().len()));
    let output = Command::new("python3").args(["-c", PROGRAM, &snapshot.to_string()]).arg(&base).output();
    let Ok(output) = output else {
        eprintln!("skipped: snapshots pickled by Python (no python3)");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |protocol: u32| std::fs::read(format!("{}.{protocol}", base.display())).expect("a pickle");
    Some((2..=5).map(read).collect())
}

#[test]
fn every_key_of_an_event_is_read_into_its_field() {
    let snapshot = plain(&snapshot());
    let [_, alloc, _, oom, _] = &snapshot.device_traces[0][..] else { panic!("five events") };
    assert_eq!((&*alloc.action, alloc.addr, alloc.size, alloc.stream), ("alloc", Some(4096), 512, 0));
    assert_eq!((alloc.time_us, alloc.pool_id()), (Some(1_700_000_000_000_001), Some((0, 1))));
    let frames = alloc.frames.as_ref().expect("a stack").frames();
    assert_eq!(
        frames.iter().map(|frame| (&*frame.name, frame.line)).collect::<Vec<_>>(),
        [("forward", 7), ("main", 90)]
    );
    assert_eq!((oom.addr, oom.size, oom.stream, oom.device_free()), (None, 1 << 30, 7, Some(1024)));
    assert_eq!((oom.time_us, oom.pool_id()), (None, None));
}

#[test]
fn stacks_are_equal_if_their_frames_are() {
    let stack = |line| Stack::from(vec![Frame { name: "forward".into(), line, ..Frame::default() }]);
    assert_eq!(stack(1), stack(1));
    assert_ne!(stack(1), stack(2));
    assert_ne!(stack(1), Stack::default());
    assert!(Stack::default().is_empty() && !stack(1).is_empty());
}

#[test]
fn every_protocol_has_the_same_snapshot() {
    let expected = plain(&snapshot());
    let event = &expected.device_traces[0][1];
    let details = event.details.as_ref().expect("details");
    assert_eq!(details.user_metadata.as_deref(), Some("step 3"));
    assert_eq!((details.compile_context.as_deref(), details.pool_id), (Some("0/1"), Some((0, 1))));
    assert_eq!(expected.external_annotations.as_ref().expect("marks")[0].name, "## step 3 ##");
    for pickle in pickled(&snapshot()).unwrap_or_default() {
        assert_eq!(read(&pickle).expect("a pickle"), expected);
        assert_eq!(read_events(&pickle).expect("a pickle"), without_host(expected.clone()));
    }
}

#[test]
fn events_are_converted_in_the_order_of_the_file() {
    let expected = plain(&snapshot());
    for format in [Format::Pickle, Format::Json] {
        let mut bytes = Vec::new();
        write(&mut bytes, format, &expected).expect("a vector takes everything");
        let mut count = 0;
        let numbered = read_with(&*bytes, |event| {
            count += 1;
            (event.action, count)
        });
        let traces = numbered.expect("a snapshot").device_traces;
        let actions: Vec<_> = traces[0].iter().map(|(action, _)| action.as_ref()).collect();
        assert_eq!(actions, ["segment_alloc", "alloc", "annotate", "oom", "snapshot"], "{format:?}");
        assert!(traces[0].is_sorted_by_key(|(_, number)| *number) && traces[1].is_empty(), "{format:?}");
    }
}

#[test]
fn a_file_without_events_is_a_snapshot() {
    let segments = snapshot()["segments"].clone();
    let expected = Snapshot { segments: plain(&snapshot()).segments, ..Snapshot::default() };
    // `torch.cuda.memory_snapshot()` returns a list.
    for variant in [segments.clone(), json!({ "segments": segments })] {
        assert_eq!(plain(&variant), expected);
        for pickle in pickled(&variant).unwrap_or_default() {
            assert_eq!(read(&pickle).expect("a pickle"), expected);
            assert_eq!(read_events(&pickle).expect("a pickle"), expected);
        }
    }
    // A dictionary without segments is something else.
    let error = read(b"{\"events\": []}").expect_err("no snapshot").to_string();
    assert!(error.contains("missing field `segments`"), "{error}");
}

#[test]
fn lists_that_share_events_have_all_of_them() {
    // One event, memoized, in both lists; the second list has it twice.
    let mut pickle = b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces](]".to_vec();
    pickle.extend(b"}q\x00(X\x06\x00\x00\x00actionX\x03\x00\x00\x00oomX\x04\x00\x00\x00sizeK\x05u");
    pickle.extend(b"a](h\x00h\x00eeu.");
    let read = read_with(&*pickle, |event| event.size).expect("a snapshot");
    assert_eq!(read.device_traces, [vec![5], vec![5, 5]]);
    assert_eq!(cachalot_snapshot::read(&pickle).expect("a snapshot").device_traces[1].len(), 2);
}

#[test]
fn no_operation_of_a_pickle_calls_anything() {
    // `os.system("true")`, in protocols 2 and 4.
    for call in [
        &b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."[..],
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    ] {
        for error in [read(call).expect_err("a call"), read_events(call).expect_err("a call")] {
            assert!(error.to_string().contains("which plain values do not need"), "{error}");
        }
    }
}

/// Odd values in every place that is not needed in order to understand a snapshot.
#[test]
fn odd_values_are_unknown_and_refuse_nothing() {
    let odd = [
        ("/segments/0/blocks/0/frames/0/line", json!(u64::MAX)),
        ("/segments/0/blocks/0/frames/0/line", Value::Null),
        ("/segments/0/blocks/0/frames/0/filename", Value::Null),
        ("/segments/0/requested_size", json!("many")),
        ("/segments/0/segment_pool_id", json!(7)),
        ("/segments/0/segment_pool_id", json!([1])),
        ("/device_traces/0/1/time_us", json!(1.7e15)),
        ("/device_traces/0/1/time_us", Value::Null),
        ("/device_traces/0/1/pool_id", json!("none")),
        ("/device_traces/0/3/device_free", json!("N/A")),
        ("/allocator_settings/max_split_size", json!(u64::MAX)),
        ("/allocator_settings/expandable_segments", json!("True")),
        ("/allocator_settings/roundup_power2_divisions", json!([1, 2])),
        ("/external_annotations/0/name", Value::Null),
        ("/external_annotations/0/time_us", json!(1.7e15)),
        ("/external_annotations", json!({"x": 1})),
        ("/external_annotations", json!([1, "x", null, {"name": "a"}])),
        ("/host_segments", json!({"a": 1})),
        ("/host_segments", Value::Null),
        ("/host_traces", json!(7)),
        ("/host_traces", json!([7, [[[[{"action": "alloc"}]]]], 1.5, true])),
        ("/allocator_settings", json!("x")),
        ("/allocator_settings", json!([1])),
    ];
    for (place, value) in odd {
        let mut file = snapshot();
        let (parent, key) = place.rsplit_once('/').expect("a path");
        file.pointer_mut(parent)
            .expect(place)
            .as_object_mut()
            .map_or_else(|| panic!("{parent} is no object"), |parent| parent.insert(key.to_owned(), value.clone()));
        for format in [Format::Json, Format::Pickle] {
            let mut bytes = Vec::new();
            match format {
                Format::Json => bytes = file.to_string().into_bytes(),
                Format::Pickle => cachalot_snapshot::pickle::to_writer(&mut bytes, &file).expect("memory"),
            }
            let read = read(&bytes).unwrap_or_else(|error| panic!("{place} = {value} as {format:?}: {error}"));
            assert_eq!(read.segments.len(), 1, "{place}");
        }
    }
}

/// Events of the host may be in a list for each device, as those of devices are.
#[test]
fn events_of_the_host_are_read_flat_and_by_device() {
    let flat = snapshot();
    let mut nested = snapshot();
    nested["host_traces"] = json!([nested["host_traces"], []]);
    for file in [&flat, &nested] {
        let mut pickle = Vec::new();
        cachalot_snapshot::pickle::to_writer(&mut pickle, file).expect("memory");
        for bytes in [file.to_string().into_bytes(), pickle] {
            let read = read(&bytes).expect("a snapshot");
            let traces = read.host_traces.expect("events");
            assert_eq!((traces.len(), traces[0].size), (1, 64));
            assert_eq!(traces[0].frames.as_ref().map(|stack| stack.frames().len()), Some(2));
        }
    }
}

#[test]
fn a_missing_line_without_its_sign_is_minus_one_again() {
    let mut file = snapshot();
    file["segments"][0]["frames"][0]["line"] = json!(u64::MAX);
    let read = plain(&file);
    let frames = read.segments[0].frames.as_ref().expect("a stack").frames();
    assert_eq!((frames[0].line, frames[0].known_line()), (-1, None));
}

#[test]
fn negative_addresses_are_the_same_bits() {
    let high = 0xffff_8000_0000_0000_u64;
    let mut file = snapshot();
    file["segments"][0]["address"] = json!(high.cast_signed());
    file["device_traces"][0][1]["addr"] = json!(high.cast_signed());
    let read = plain(&file);
    assert_eq!((read.segments[0].address, read.device_traces[0][1].addr), (high, Some(high)));
}
