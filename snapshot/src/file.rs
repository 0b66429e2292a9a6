//! Reads and writes snapshot files.

use crate::model::{Event, Segment, Snapshot};
use crate::{pickle, shared};
use serde::Serialize;
use serde_json::value::RawValue;
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
    /// The file has several snapshots, with these names, where one is expected.
    Several(Vec<String>),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pickle(error) => error.fmt(f),
            Self::Json(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::Several(names) => {
                write!(f, "there are {} snapshots ({}), and one is expected", names.len(), first(names))
            }
        }
    }
}

/// Returns the first names of a list as a text.
fn first(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = names.get(..SHOWN).unwrap_or(names).join(", ");
    if names.len() > SHOWN { format!("{shown}, …") } else { shown }
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
/// A snapshot may be alone in a list or a dictionary.
///
/// # Errors
/// The errors of [`read`], [`ReadError::Io`], and [`ReadError::Several`].
pub fn read_from(reader: impl BufRead) -> Result<Snapshot<Vec<Segment>, Vec<Vec<Event>>>, ReadError> {
    one(read_all_from(reader)?)
}

/// Reads a file of one snapshot, or of one for each rank: a list, or a dictionary by rank. The name
/// of a snapshot is its key or position, and empty if it is the only one.
///
/// # Errors
/// The errors of [`read`], and [`ReadError::Io`].
pub fn read_all_from(mut reader: impl BufRead) -> Result<Vec<(String, Snapshot)>, ReadError> {
    match start(&mut reader)? {
        Start::Pickle => pickle::snapshots_from(reader).map_err(of_pickle),
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
    reader: impl BufRead,
    convert: impl FnMut(Event) -> T,
) -> Result<Snapshot<Vec<Segment>, Vec<Vec<T>>>, ReadError> {
    one(read_all_with(reader, convert)?)
}

/// Reads the snapshots of a file like [`read_all_from`], and their events like [`read_with`].
///
/// # Errors
/// The errors of [`read_all_from`].
#[expect(clippy::type_complexity, reason = "a pair of a name and a snapshot")]
pub fn read_all_with<T: Clone>(
    mut reader: impl BufRead,
    mut convert: impl FnMut(Event) -> T,
) -> Result<Vec<(String, Snapshot<Vec<Segment>, Vec<Vec<T>>>)>, ReadError> {
    let text = match start(&mut reader)? {
        Start::Pickle => return pickle::outlines_from(reader, convert).map_err(of_pickle),
        text => text,
    };
    let converted = |(name, snapshot): (String, Snapshot)| {
        let Snapshot { segments, device_traces, allocator_settings, external_annotations, .. } = snapshot;
        let mut all = |events: Vec<Event>| events.into_iter().map(&mut convert).collect();
        let device_traces = device_traces.into_iter().map(&mut all).collect();
        (name, Snapshot { segments, device_traces, allocator_settings, external_annotations, ..Snapshot::default() })
    };
    Ok(read_json(reader, text)?.into_iter().map(converted).collect())
}

/// Returns the only snapshot of a file.
fn one<S>(mut snapshots: Vec<(String, S)>) -> Result<S, ReadError> {
    match snapshots.pop() {
        Some((_, only)) if snapshots.is_empty() => Ok(only),
        last => Err(ReadError::Several(snapshots.into_iter().chain(last).map(|(name, _)| name).collect())),
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

fn read_json(mut reader: impl BufRead, start: Start) -> Result<Vec<(String, Snapshot)>, ReadError> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(ReadError::Io)?;
    let read = || match start {
        Start::List => Ok(Snapshot { segments: serde_json::from_slice(&bytes)?, ..Snapshot::default() }),
        _ => serde_json::from_slice(&bytes),
    };
    match shared::reading(read) {
        Ok(snapshot) => Ok(vec![(String::new(), snapshot)]),
        // What is no snapshot may hold some.
        Err(error) => match wrapped(&bytes) {
            snapshots if snapshots.is_empty() => Err(ReadError::Json(error)),
            snapshots => snapshots.into_iter().map(|(name, text)| Ok((name, of_text(text)?))).collect(),
        },
    }
}

fn of_text(text: &RawValue) -> Result<Snapshot, ReadError> {
    shared::reading(|| serde_json::from_str(text.get())).map_err(ReadError::Json)
}

/// Returns the texts of the snapshots in a list, or in an object by rank.
fn wrapped(bytes: &[u8]) -> Vec<(String, &RawValue)> {
    let list = || serde_json::from_slice::<Vec<&RawValue>>(bytes).ok();
    let numbered = || list().map(|list| (0..).zip(list).map(|(at, text): (u64, _)| (at.to_string(), text)).collect());
    let object = serde_json::from_slice(bytes).ok().map(|InOrder(entries)| entries);
    let mut found: Vec<(String, &RawValue)> = object.or_else(numbered).unwrap_or_default();
    // serde takes a list for a structure, too.
    let is_object = |text: &RawValue| text.get().starts_with('{');
    found.retain(|(_, text)| is_object(text) && serde_json::from_str::<HasSegments<'_>>(text.get()).is_ok());
    if let [(name, _)] = &mut found[..] {
        name.clear();
    }
    found
}

/// An object with the key of a snapshot's segments.
#[derive(serde::Deserialize)]
struct HasSegments<'t> {
    #[serde(borrow, rename = "segments")]
    _segments: &'t RawValue,
}

/// The entries of an object, in the order of the text.
struct InOrder<'t>(Vec<(String, &'t RawValue)>);

impl<'de> serde::Deserialize<'de> for InOrder<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> serde::de::Visitor<'de> for Entries {
            type Value = InOrder<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<InOrder<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(InOrder(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

fn of_pickle(error: pickle::Error) -> ReadError {
    match error {
        pickle::Error::Io(error) => ReadError::Io(error),
        error => ReadError::Pickle(error),
    }
}
