//! Tests of the reading of files.

use cachalot_snapshot::{Event, Format, Frame, ReadError, Segment, Snapshot, read_from, read_with, write};
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
