//! Pickled `PyTorch` memory snapshots: the trace of every device, with the segments and settings at its end.

use super::error::describe_io;
use super::{Action, BadInput, Event, Expected, Note, Segment, Trace};
use cachalot_core::units::MAX_REQUEST;
use serde::Deserialize;
use std::io::BufRead;
use std::path::Path;

/// What is read of a snapshot; stacks, times and annotations are passed over.
#[derive(Deserialize)]
struct Snapshot {
    segments: Vec<Segment>,
    device_traces: Vec<Vec<Entry>>,
    #[serde(default)]
    allocator_settings: Settings,
}

/// The settings of the run. Only the string is read: every other key follows from it.
#[derive(Deserialize, Default)]
struct Settings {
    #[serde(rename = "PYTORCH_CUDA_ALLOC_CONF", default)]
    string: String,
}

/// One event of a device's trace. An out-of-memory event has `device_free` in the place of `addr`.
#[derive(Deserialize)]
struct Entry {
    action: String,
    #[serde(default)]
    addr: u64,
    size: i64,
    stream: u64,
}

/// Reads one record for every device that has events.
pub(super) fn read(file: &Path, name: &str, reader: Box<dyn BufRead>) -> Result<Vec<Trace>, BadInput> {
    // Stacks that several events share are taken for recursion by the decoder. They are passed over, so nothing may
    // stand in their place; were a field replaced that is read, its type would be wrong and the snapshot refused.
    let options = serde_pickle::DeOptions::new().replace_recursive_structures().replace_unresolved_globals();
    let snapshot: Snapshot =
        serde_pickle::from_reader(reader, options).map_err(|error| BadInput::whole(file, describe(error)))?;
    let several = snapshot.device_traces.iter().filter(|entries| !entries.is_empty()).count() > 1;
    let mut traces = Vec::new();
    for (device, entries) in (0..).zip(&snapshot.device_traces) {
        let events = events(file, entries)?;
        if events.is_empty() {
            continue;
        }
        traces.push(Trace {
            name: if several { format!("{name}#{device}") } else { name.to_owned() },
            file: file.to_owned(),
            events,
            expected: Some(Expected {
                config: snapshot.allocator_settings.string.clone(),
                segments: segments_of(&snapshot.segments, device),
                ..Expected::default()
            }),
        });
    }
    if traces.is_empty() {
        return Err(BadInput::whole(file, "the snapshot holds no events: its memory history was not recorded"));
    }
    Ok(traces)
}

fn describe(error: serde_pickle::Error) -> String {
    use serde_pickle::{Error, ErrorCode};
    match error {
        Error::Io(error) => describe_io(&error),
        Error::Eval(ErrorCode::EOFWhileParsing, offset) => {
            format!("the snapshot ends early, behind byte {offset}: the file is truncated")
        }
        error => format!("not a memory snapshot: {error}"),
    }
}

fn segments_of(segments: &[Segment], device: u32) -> Vec<Segment> {
    let mut own: Vec<Segment> = segments.iter().filter(|segment| segment.device == device).cloned().collect();
    own.sort_by_key(|segment| segment.address);
    for segment in &mut own {
        // A replayed program has one device, its own.
        segment.device = 0;
    }
    own
}

fn events(file: &Path, entries: &[Entry]) -> Result<Vec<Event>, BadInput> {
    let mut events = Vec::with_capacity(entries.len());
    for (line, entry) in (1..).zip(entries) {
        let complain = |what: String| BadInput::at(file, line, what);
        let Some(action) = action(&entry.action).map_err(complain)? else {
            continue;
        };
        let size = u64::try_from(entry.size).ok().filter(|&size| size < MAX_REQUEST).ok_or_else(|| {
            complain(format!("the size {} is out of range: 0 to {MAX_REQUEST} bytes (1 EiB)", entry.size))
        })?;
        events.push(Event { action, addr: entry.addr, size, stream: entry.stream, note: Note::None, line });
    }
    Ok(events)
}

/// The action of a snapshot's name for it; `None` for what is no event of the allocator.
fn action(name: &str) -> Result<Option<Action>, String> {
    Ok(Some(match name {
        "alloc" => Action::Alloc,
        "free_requested" => Action::FreeRequested,
        "free_completed" => Action::FreeCompleted,
        "segment_alloc" => Action::SegmentAlloc,
        "segment_free" => Action::SegmentFree,
        "segment_map" => Action::SegmentMap,
        "segment_unmap" => Action::SegmentUnmap,
        "oom" => Action::OutOfMemory,
        "snapshot" | "annotate" | "user_defined" => return Ok(None),
        _ => return Err(format!("unknown action `{name}`")),
    }))
}
