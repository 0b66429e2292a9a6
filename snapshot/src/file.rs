//! Reads and writes snapshot files.

use crate::model::{Event, Segment, Snapshot};
use crate::{pickle, shared};
use serde::Serialize;
use std::fmt;
use std::io::{self, BufRead, BufWriter, ErrorKind, Write};
use std::path::Path;

/// Size of the write buffer in bytes.
const PART_BYTES: usize = 64 << 10;

/// The format of a snapshot file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// A pickle, equal to Python's.
    Pickle,
    /// JSON, with lists in the place of tuples.
    Json,
}

impl Format {
    /// Returns the format for a file name: JSON for the extension `.json`, otherwise a pickle.
    pub fn of(path: &Path) -> Self {
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
            Self::Json
        } else {
            Self::Pickle
        }
    }
}

/// Writes a snapshot, in parts of up to 64 KiB. Each list is iterated once, during the write.
///
/// # Errors
/// The errors of the writer.
pub fn write<S: Serialize, T: Serialize>(
    mut to: impl Write,
    format: Format,
    snapshot: &Snapshot<S, T>,
) -> io::Result<()> {
    // One type of writer: the compiler writes out all serializers for each, and a call for 64 KiB
    // costs nothing.
    let to: &mut dyn Write = &mut to;
    let mut buffered = BufWriter::with_capacity(PART_BYTES, to);
    match format {
        Format::Json => serde_json::to_writer(&mut buffered, snapshot)?,
        Format::Pickle => pickle::to_writer(&mut buffered, snapshot).map_err(|error| match error {
            pickle::Error::Io(error) => error,
            error => io::Error::other(error),
        })?,
    }
    buffered.flush()
}

/// Writes a snapshot to a file through [`cachalot_atomic_file::write`].
///
/// # Errors
/// The errors of the file system. After a failure a regular file has the previous contents.
pub fn write_file<S: Serialize, T: Serialize>(
    path: &Path,
    format: Format,
    snapshot: &Snapshot<S, T>,
) -> io::Result<()> {
    cachalot_atomic_file::write(path, |file| write(file, format, snapshot))
}

/// The reason why a snapshot cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The pickle is invalid.
    Pickle(pickle::Error),
    /// The JSON is invalid.
    Json(serde_json::Error),
    /// The reader failed.
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pickle(error) => error.fmt(f),
            Self::Json(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {}

/// Reads a snapshot in either format. Equal stacks share memory.
///
/// # Errors
/// If `bytes` is no snapshot, is cut off, or is a pickle that expands beyond the bound of
/// [`pickle::from_slice`].
pub fn read(bytes: &[u8]) -> Result<Snapshot<Vec<Segment>, Vec<Vec<Event>>>, ReadError> {
    read_from(bytes)
}

/// Reads a snapshot in either format from a reader. A pickle is read in parts and takes little more
/// memory than the events.
///
/// A list of segments, as `torch.cuda.memory_snapshot()` returns it, is a snapshot without events.
///
/// # Errors
/// The errors of [`read`], and [`ReadError::Io`].
pub fn read_from(mut reader: impl BufRead) -> Result<Snapshot<Vec<Segment>, Vec<Vec<Event>>>, ReadError> {
    match start(&mut reader)? {
        Start::Pickle => pickle::snapshot_from(reader).map_err(of_pickle),
        text => read_json(reader, text),
    }
}

/// Reads a snapshot like [`read_from`], and passes each event to `convert` at once, in the order of
/// the file. Of a pickle, only the converted events are kept in memory: 10 million events with
/// small converted values fit into 2 GB. Pinned host memory and unknown keys are left out.
///
/// # Errors
/// The errors of [`read_from`].
pub fn read_with<T: Clone>(
    mut reader: impl BufRead,
    mut convert: impl FnMut(Event) -> T,
) -> Result<Snapshot<Vec<Segment>, Vec<Vec<T>>>, ReadError> {
    match start(&mut reader)? {
        Start::Pickle => pickle::outline_from(reader, convert).map_err(of_pickle),
        text => {
            let Snapshot { segments, device_traces, allocator_settings, external_annotations, .. } =
                read_json(reader, text)?;
            let convert_all = |events: Vec<Event>| events.into_iter().map(&mut convert).collect();
            let device_traces = device_traces.into_iter().map(convert_all).collect();
            Ok(Snapshot { segments, device_traces, allocator_settings, external_annotations, ..Snapshot::default() })
        }
    }
}

/// The content of a file by the first character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Pickle,
    Object,
    List,
}

fn start(reader: &mut impl BufRead) -> Result<Start, ReadError> {
    let start = loop {
        match reader.fill_buf() {
            Ok(bytes) => break bytes.trim_ascii_start().first(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(ReadError::Io(error)),
        }
    };
    Ok(match start {
        Some(b'{') => Start::Object,
        Some(b'[') => Start::List,
        _ => Start::Pickle,
    })
}

fn read_json(mut reader: impl BufRead, start: Start) -> Result<Snapshot, ReadError> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(ReadError::Io)?;
    let read = || match start {
        Start::List => Ok(Snapshot { segments: serde_json::from_slice(&bytes)?, ..Snapshot::default() }),
        _ => serde_json::from_slice(&bytes),
    };
    shared::reading(read).map_err(ReadError::Json)
}

fn of_pickle(error: pickle::Error) -> ReadError {
    match error {
        pickle::Error::Io(error) => ReadError::Io(error),
        error => ReadError::Pickle(error),
    }
}
