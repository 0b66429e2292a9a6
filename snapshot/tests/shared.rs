//! Tests of pickles with references between values: sharing is kept, excessive expansion is
//! refused.

use cachalot_snapshot::pickle::{Error, from_slice, to_writer};
use cachalot_snapshot::{Frame, ReadError, Stack, read};
use serde_json::Value;
use std::sync::Arc;

/// A pickle built by hand from operations and plain values.
pub(crate) struct Pickle(pub(crate) Vec<u8>);

impl Pickle {
    pub(crate) fn new() -> Self {
        Self(b"\x80\x02".to_vec())
    }

    pub(crate) fn put(mut self, operations: &[u8]) -> Self {
        self.0.extend_from_slice(operations);
        self
    }

    pub(crate) fn text(mut self, text: &str) -> Self {
        self.0.push(b'X');
        self.0.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// Adds the number 1 under a key.
    pub(crate) fn one(self, key: &str) -> Self {
        self.text(key).put(b"K\x01")
    }

    /// Adds a memoized value several times.
    pub(crate) fn recall(mut self, number: u8, times: usize) -> Self {
        self.0.extend([b'h', number].repeat(times));
        self
    }
}

/// Builds a snapshot with `times` references to one segment, which has `times` references to one
/// block.
fn shared_blocks(times: usize) -> Vec<u8> {
    let segment = Pickle::new().put(b"}(").text("segments").put(b"](}q\x01(").one("address").one("total_size");
    let block = segment.text("blocks").put(b"](}q\x02(").one("size").text("state").text("inactive").put(b"u");
    let blocks = block.recall(2, times - 1).put(b"eu").recall(1, times - 1).put(b"e");
    blocks.text("device_traces").put(b"]u.").0
}

#[test]
fn a_snapshot_that_expands_without_end_is_refused_by_its_bound() {
    let few = read(&shared_blocks(50)).expect("2500 blocks");
    assert_eq!((few.segments.len(), few.segments[49].blocks.len()), (50, 50));

    let bytes = shared_blocks(10_000);
    assert!(bytes.len() < 41_000, "{}", bytes.len());
    let error = read(&bytes).expect_err("100 million blocks");
    let most = bytes.len() as u64 * 8;
    assert!(matches!(error, ReadError::Pickle(Error::Expands(bound)) if bound == most), "{error}");
    let accepted = "the most is 8 values for each byte of the pickle, or 65536 if that is more";
    assert_eq!(error.to_string(), format!("shared values expand to more than {most}: {accepted}"));
}

#[test]
fn keys_that_are_not_known_expand_no_further() {
    // Each list has two references to the previous list, 40 levels deep: 2^40 values at the end.
    let mut pickle = Pickle::new().put(b"}(").text("segments").put(b"]").text("device_traces").put(b"]").text("x");
    // Each list is memoized and then removed from the stack.
    pickle = pickle.put(b"]q\x000");
    for _ in 0..40 {
        pickle = pickle.put(b"h\x00h\x00\x86q\x000");
    }
    let error = read(&pickle.recall(0, 1).put(b"u.").0).expect_err("2^40 lists");
    assert!(matches!(error, ReadError::Pickle(Error::Expands(65_536))), "{error}");

    // Long texts count by length.
    let long = "long".repeat(50_000);
    let texts = |times| Pickle::new().put(b"](").text(&long).put(b"q\x00").recall(0, times).put(b"e.").0;
    assert_eq!(from_slice::<Vec<String>>(&texts(200)).expect("40 MB").len(), 201);
    assert!(matches!(from_slice::<Vec<String>>(&texts(1000)), Err(Error::Expands(_))));
}

#[test]
fn stacks_and_frames_that_a_pickle_shares_are_shared_in_memory() {
    // Two frames in a list. Then the list 20,000 times, and 1000 new lists of the frames 100
    // times.
    let frame = |pickle: Pickle, name: &str, number: &[u8]| {
        let named = pickle.put(b"}(").text("name").text(name).text("filename").text("model.py");
        named.one("line").put(b"uq").put(number)
    };
    let frames = frame(frame(Pickle::new().put(b"](]("), "inner", b"\x01"), "outer", b"\x02");
    let mut pickle = frames.put(b"eq\x03").recall(3, 19_999);
    for _ in 0..1000 {
        pickle = pickle.put(b"](").recall(1, 50).recall(2, 50).put(b"e");
    }
    let stacks: Vec<Stack> = from_slice(&pickle.put(b"e.").0).expect("a list of stacks");
    assert_eq!(stacks.len(), 21_000);
    let [inner, outer] = stacks[0].frames() else { panic!("{:?}", stacks[0]) };
    assert_eq!((inner.name.as_str(), outer.name.as_str()), ("inner", "outer"));
    for stack in &stacks[1..20_000] {
        assert!(std::ptr::eq(stack.frames(), stacks[0].frames()));
    }
    for stack in &stacks[20_000..] {
        assert_eq!(stack.frames().len(), 100);
        assert!(stack.frames().iter().take(50).all(|frame| Arc::ptr_eq(frame, inner)));
        assert!(stack.frames().iter().skip(50).all(|frame| Arc::ptr_eq(frame, outer)));
    }
}

#[test]
fn a_long_stack_is_read_once_for_all_that_refer_to_it() {
    let frame = |line| Frame { name: "forward".into(), filename: "model.py".into(), line, ..Frame::default() };
    let stack: Stack = (0..1000).map(|line| Arc::new(frame(line))).collect();
    // The bound would refuse 50 million frames.
    let many = vec![stack; 50_000];
    let mut bytes = Vec::new();
    to_writer(&mut bytes, &many).expect("a vector takes everything");
    let read: Vec<Stack> = from_slice(&bytes).expect("our own");
    assert_eq!((read.len(), &read[0]), (many.len(), &many[0]));
    assert!(read.iter().all(|stack| std::ptr::eq(stack.frames(), read[0].frames())));
    // Read as plain values, the stacks are expanded and so refused.
    assert!(matches!(from_slice::<Value>(&bytes), Err(Error::Expands(_))));
}
