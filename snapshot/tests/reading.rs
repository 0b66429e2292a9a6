//! Tests of the reading of files: in pieces, with events in any place, and with values of wrong
//! types.

use crate::shared::Pickle;
use cachalot_snapshot::{Event, Format, Frame, ReadError, Segment, Snapshot, Stack, read, read_from, read_with, write};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer, U32Deserializer};
use serde_json::json;
use std::io::{self, BufReader, ErrorKind, Read};

/// A reader of a few bytes at a time, interrupted before each of them. Fails at the end.
struct Trickle<'a> {
    left: &'a [u8],
    is_interrupted: bool,
}

impl Read for Trickle<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.is_interrupted = !self.is_interrupted;
        if self.is_interrupted {
            return Err(ErrorKind::Interrupted.into());
        }
        if self.left.is_empty() {
            return Err(io::Error::other("the network is down"));
        }
        let length = self.left.len().min(to.len()).min(5);
        let (now, later) = self.left.split_at(length);
        to[..length].copy_from_slice(now);
        self.left = later;
        Ok(length)
    }
}

fn trickle(bytes: &[u8]) -> BufReader<Trickle<'_>> {
    BufReader::with_capacity(3, Trickle { left: bytes, is_interrupted: false })
}

#[test]
fn a_file_is_read_in_pieces_until_the_reader_fails() {
    let frames = vec![Frame { name: "a name longer than a piece".into(), ..Frame::default() }];
    let segment = Segment { total_size: 1 << 40, frames: Some(frames.into()), ..Segment::default() };
    let event = Event { action: "alloc".into(), size: 1 << 40, ..Event::default() };
    let snapshot =
        Snapshot { segments: vec![segment], device_traces: vec![vec![event.clone(), event]], ..Snapshot::default() };
    let mut pickle = Vec::new();
    write(&mut pickle, Format::Pickle, &snapshot).expect("a vector takes everything");
    // A pickle tells its end, and JSON ends with the file.
    assert_eq!(read_from(trickle(&pickle)).expect("a snapshot"), snapshot);
    assert_eq!(read_with(trickle(&pickle), |event| event).expect("a snapshot"), snapshot);
    for cut_off in [&pickle[..pickle.len() - 1], b"", b"{\"segments\": [] "] {
        let error = read_from(trickle(cut_off)).expect_err("the reader fails");
        assert!(matches!(&error, ReadError::Io(error) if error.to_string() == "the network is down"), "{error}");
    }
}

/// Adds an event of a size, and memoizes the event under the size.
fn event(pickle: Pickle, size: u8) -> Pickle {
    let named = pickle.put(b"}q").put(&[size, b'(']).text("action").text("alloc");
    named.text("size").put(&[b'K', size, b'u'])
}

/// Builds a snapshot with the events of sizes 0 to 3 under an unknown key. The lists of the devices
/// have events of these sizes.
fn with_lists(lists: &[&[u8]]) -> Vec<u8> {
    let early = Pickle::new().put(b"}(").text("segments").put(b"]").text("early").put(b"](");
    let mut pickle = (0..4).fold(early, event).put(b"e").text("device_traces").put(b"](");
    for list in lists {
        pickle = list.iter().fold(pickle.put(b"]("), |pickle, size| pickle.recall(*size, 1)).put(b"e");
    }
    pickle.put(b"eu.").0
}

fn sizes_of(lists: &[&[u8]]) -> Vec<Vec<i64>> {
    lists.iter().map(|list| list.iter().map(|&size| size.into()).collect()).collect()
}

#[test]
fn lists_have_their_events_wherever_these_stand_in_the_file() {
    let cases: [&[&[u8]]; 7] = [
        &[&[0, 1], &[], &[2, 3]],
        &[&[0], &[2]],
        &[&[], &[1, 2, 3], &[]],
        &[&[2, 3], &[0, 1]],
        &[&[3], &[2], &[1], &[0]],
        &[&[0, 1, 2], &[1, 2, 3]],
        &[&[2, 0], &[3]],
    ];
    for lists in cases {
        let pickle = with_lists(lists);
        let wanted = sizes_of(lists);
        let snapshot = read(&pickle).expect("a snapshot");
        let sizes = snapshot.device_traces.iter().map(|list| list.iter().map(|event| event.size).collect());
        assert_eq!(sizes.collect::<Vec<Vec<_>>>(), wanted);
        let event = |size: i64| json!({"action": "alloc", "size": size, "stream": 0});
        assert_eq!(snapshot.other["early"], json!([event(0), event(1), event(2), event(3)]));
        // Every event is converted once, in the order of the file.
        let mut converted = Vec::new();
        let convert = |event: Event| {
            converted.push(event.size);
            event.size
        };
        assert_eq!(read_with(&*pickle, convert).expect("a snapshot").device_traces, wanted);
        assert_eq!(converted, [0, 1, 2, 3]);
    }
}

/// A converted event that is never copied.
struct Unique(i64);

impl Clone for Unique {
    fn clone(&self) -> Self {
        panic!("event {} is copied", self.0)
    }
}

#[test]
fn lists_in_the_order_of_the_file_are_not_copied() {
    let cases: [&[&[u8]]; 4] = [&[&[0, 1, 2, 3]], &[&[0, 1], &[2, 3]], &[&[], &[0], &[], &[2, 3], &[]], &[&[1], &[3]]];
    for lists in cases {
        let traces = read_with(&*with_lists(lists), |event| Unique(event.size)).expect("a snapshot").device_traces;
        let sizes = traces.iter().map(|list| list.iter().map(|event| event.0).collect::<Vec<_>>());
        assert_eq!(sizes.collect::<Vec<_>>(), sizes_of(lists));
    }
}

#[test]
fn an_event_may_have_the_frames_of_a_dictionary_that_is_none() {
    let start = Pickle::new().put(b"}(").text("segments").put(b"]").text("early");
    let none = start.put(b"}(").one("action").text("frames").put(b"]q\x00(");
    let frame = none.put(b"}(").text("name").text("main").text("filename").text("train.py").one("line").put(b"ueu");
    let traces = frame.text("device_traces").put(b"](](");
    let event = traces.put(b"}(").text("action").text("alloc").one("size").text("frames").recall(0, 1).put(b"u");
    let snapshot = read(&event.put(b"eeu.").0).expect("a snapshot");
    let frames = json!([{"name": "main", "filename": "train.py", "line": 1}]);
    assert_eq!(snapshot.other["early"], json!({"action": 1, "frames": frames}));
    assert_eq!(serde_json::to_value(&snapshot.device_traces[0][0].frames).expect("frames"), frames);
}

#[test]
fn a_value_of_a_wrong_type_is_refused_by_what_is_expected() {
    let traces = |pickle: Pickle| pickle.put(b"}(").text("segments").put(b"]").text("device_traces").put(b"](");
    let event = |pickle: Pickle| traces(pickle).put(b"](}(");
    let pickles = [
        (traces(Pickle::new()).put(b"K\x05eu."), "invalid type: integer `5`, expected a list of events"),
        (event(Pickle::new()).put(b"K\x05K\x06ueeu."), "invalid type: integer `5`, expected a key"),
        (event(Pickle::new()).text("action").put(b"C\x01\xffueeu."), "a text is not UTF-8"),
        (event(Pickle::new()).one("size").put(b"ueeu."), "missing field `action`"),
    ];
    for (pickle, wanted) in pickles {
        assert_eq!(read(&pickle.0).expect_err("no snapshot").to_string(), wanted);
    }
    for (entry, wanted) in [("5", "an event"), (r#"{"action": 5}"#, "a string")] {
        let text = format!(r#"{{"segments": [], "device_traces": [[{entry}]]}}"#);
        let error = read(text.as_bytes()).expect_err("no snapshot").to_string();
        assert!(error.starts_with(&format!("invalid type: integer `5`, expected {wanted}")), "{error}");
    }
    // Formats without serde's newtypes.
    let number: U32Deserializer<Error> = 5_u32.into_deserializer();
    let error = Stack::deserialize(number).expect_err("no stack").to_string();
    assert_eq!(error, "invalid type: integer `5`, expected a stack or a frame");
    let text: StrDeserializer<'_, Error> = "x".into_deserializer();
    let error = Event::deserialize(text).expect_err("no event").to_string();
    assert_eq!(error, "invalid type: string \"x\", expected an event");
}
