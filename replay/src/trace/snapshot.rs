//! Reads memory snapshots of `PyTorch` and cachalot: the trace of every device, with the segments
//! and settings at the end.

use super::error::describe_io;
use super::kind::{self, Kind};
use super::{
    Action, BadInput, BlockState, Event, Expected, ExpectedBlock, Note, OfDevice, Place, Pools, RecordFacts, Segment,
    Trace, open, profile, refused,
};
use crate::memory::Frees;
use cachalot_core::{MAX_REQUEST, PoolId};
use cachalot_snapshot::{ReadError, Snapshot, pickle};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

/// A snapshot of a file, with its name in the file: empty if the file is one snapshot, and else the
/// rank.
type Ranked<T> = (String, Snapshot<Vec<cachalot_snapshot::Segment>, T>);

/// Reads a snapshot, a pickle or JSON, from an optionally compressed file.
///
/// # Errors
/// If the file is no snapshot.
pub fn load(file: &Path) -> Result<Snapshot, BadInput> {
    only(file, parse(file, open::decompressed(file)?)?)
}

/// Reads a snapshot from a file like [`load`], and calls `watch` after each read with the number of
/// bytes read from the file.
///
/// # Errors
/// If the file is no snapshot.
pub fn load_watched(file: &Path, watch: impl FnMut(u64)) -> Result<Snapshot, BadInput> {
    only(file, load_all_watched(file, watch)?)
}

/// Reads a file like [`load_watched`] that may have a snapshot for each rank. The name of a
/// snapshot is its rank, and empty if it is the only one.
///
/// # Errors
/// If the file has no snapshot.
pub fn load_all_watched(file: &Path, watch: impl FnMut(u64)) -> Result<Vec<(String, Snapshot)>, BadInput> {
    parse(file, open::decompressed_watched(file, watch)?)
}

/// Reads a snapshot from the bytes of a file.
///
/// # Errors
/// If the bytes are no snapshot.
pub fn load_bytes(file: &Path, bytes: &[u8]) -> Result<Snapshot, BadInput> {
    only(file, parse(file, open::decompress(file, bytes.len() as u64, bytes)?)?)
}

/// Reads snapshots like [`load_all_watched`], and passes each event to `convert` at once. Only the
/// converted events are kept: see [`cachalot_snapshot::read_with`].
///
/// # Errors
/// If the file has no snapshot.
pub fn load_all_with<T: Clone>(
    file: &Path,
    watch: impl FnMut(u64),
    convert: impl FnMut(cachalot_snapshot::Event) -> T,
) -> Result<Vec<Ranked<Vec<Vec<T>>>>, BadInput> {
    let reader = open::decompressed_watched(file, watch)?;
    parse_by(file, reader, |reader| cachalot_snapshot::read_all_with(reader, convert))
}

fn parse(file: &Path, reader: Box<dyn BufRead + '_>) -> Result<Vec<(String, Snapshot)>, BadInput> {
    parse_by(file, reader, cachalot_snapshot::read_all_from)
}

/// Returns the only snapshot of a file.
fn only(file: &Path, mut snapshots: Vec<(String, Snapshot)>) -> Result<Snapshot, BadInput> {
    match snapshots.pop() {
        Some((_, only)) if snapshots.is_empty() => Ok(only),
        _ => {
            let count = snapshots.len() + 1;
            let what =
                format!("there are {count} snapshots in the file, and one is expected: `cachalot inspect` reads all");
            Err(BadInput::whole(file, what))
        }
    }
}

/// Returns the name of a snapshot of `file`.
pub fn ranked(name: &str, rank: &str) -> String {
    if rank.is_empty() { name.to_owned() } else { format!("{name}#{rank}") }
}

/// Reads snapshots by `read`, which gets the decompressed content.
fn parse_by<'r, T>(
    file: &Path,
    mut reader: Box<dyn BufRead + 'r>,
    read: impl FnOnce(Box<dyn BufRead + 'r>) -> Result<Vec<Ranked<T>>, ReadError>,
) -> Result<Vec<Ranked<T>>, BadInput> {
    let start = reader.fill_buf().map_err(|error| BadInput::whole(file, describe_io(&error)))?;
    let refused = match kind::of(start) {
        Kind::Snapshot => None,
        // A profile without events of memory is none for the other commands either.
        Kind::Profile => {
            profile::read(file, "", reader)?;
            return Err(BadInput::whole(file, RECORD));
        }
        Kind::Record | Kind::Rmm => Some(RECORD.to_owned()),
        other => refused::described(other, &mut reader).or_else(|| Some(UNKNOWN.to_owned())),
    };
    if let Some(what) = refused {
        return Err(BadInput::whole(file, what));
    }
    let snapshots = read(reader).map_err(|error| {
        BadInput::whole(
            file,
            match error {
                ReadError::Pickle(pickle::Error::Truncated(at)) => {
                    format!("the snapshot ends early, after byte {at}: the file is truncated")
                }
                ReadError::Io(error) => describe_io(&error),
                error => format!("not a memory snapshot: {error}"),
            },
        )
    })?;
    for (_, snapshot) in &snapshots {
        let hosts = snapshot.host_segments.iter().flatten();
        if !adds_up(snapshot.segments.iter().chain(hosts)) {
            return Err(BadInput::whole(file, "the sizes of the snapshot add up to 2^63 bytes or more"));
        }
    }
    Ok(snapshots)
}

/// Says where a record is read.
const RECORD: &str = "this is a record for `cachalot view`, `tune`, `compare`, `predict`, `plan` and `replay`: expected a \
     memory snapshot (.pickle, .json, also .gz), as `cachalot snapshot RECORD -o end.pickle` makes it of a record";

/// Says what a snapshot is.
const UNKNOWN: &str =
    "not a memory snapshot: neither a pickle, as torch.cuda.memory._dump_snapshot() writes it, nor JSON";

/// Returns whether a file is a record without a state at the end, compressed or not, and not a
/// snapshot.
///
/// # Errors
/// If the file cannot be read.
pub fn is_record(file: &Path) -> Result<bool, BadInput> {
    let mut content = open::decompressed(file)?;
    let start = content.fill_buf().map_err(|error| BadInput::whole(file, describe_io(&error)))?;
    Ok(matches!(kind::of(start), Kind::Record | Kind::Rmm | Kind::Profile))
}

/// Returns whether no sum of a snapshot's sizes can overflow.
fn adds_up<'s>(segments: impl Iterator<Item = &'s cachalot_snapshot::Segment>) -> bool {
    let of_blocks = |block: &cachalot_snapshot::Block| [block.size, block.requested_size.unwrap_or(0)];
    let sizes = segments
        .flat_map(|segment| std::iter::once(segment.total_size).chain(segment.blocks.iter().flat_map(of_blocks)));
    sizes.map(u128::from).sum::<u128>() < 1 << 63
}

/// Reads a record for every device with events of every snapshot, and the snapshot if it is the
/// only one.
pub(super) fn read(
    file: &Path,
    name: &str,
    reader: Box<dyn BufRead + '_>,
) -> Result<(Vec<OfDevice>, Option<Snapshot>), BadInput> {
    let snapshots = parse(file, reader)?;
    let mut all = Vec::new();
    for (rank, snapshot) in &snapshots {
        all.extend(each(file, &ranked(name, rank), snapshot));
    }
    Ok((with_events(file, all)?, only(file, snapshots).ok()))
}

/// Returns a record for every device with events.
///
/// # Errors
/// If no device has events.
pub(super) fn traces(file: &Path, name: &str, snapshot: &Snapshot) -> Result<Vec<OfDevice>, BadInput> {
    with_events(file, each(file, name, snapshot).collect())
}

fn with_events(file: &Path, traces: Vec<OfDevice>) -> Result<Vec<OfDevice>, BadInput> {
    if traces.is_empty() {
        return Err(BadInput::whole(file, "the snapshot holds no events: its memory history was not recorded"));
    }
    Ok(traces)
}

/// Returns the record of every device with events, or why it cannot be used.
pub(super) fn each<'s>(
    file: &'s Path,
    name: &'s str,
    snapshot: &'s Snapshot,
) -> impl Iterator<Item = (i64, Result<Trace, BadInput>)> + 's {
    let several = snapshot.device_traces.iter().filter(|entries| !entries.is_empty()).count() > 1;
    (0..).zip(&snapshot.device_traces).filter_map(move |(device, entries)| {
        let name = if several { format!("{name}#{device}") } else { name.to_owned() };
        of_device(file, name, snapshot, device, entries).transpose().map(|trace| (device, trace))
    })
}

/// Returns the record of a device. `None` without events of the allocator.
fn of_device(
    file: &Path,
    name: String,
    snapshot: &Snapshot,
    device: i64,
    entries: &[cachalot_snapshot::Event],
) -> Result<Option<Trace>, BadInput> {
    let mut pools = Pools::default();
    let (events, remarks) = events(file, entries, &mut pools)?;
    if events.is_empty() {
        return Ok(None);
    }
    let settings = snapshot.allocator_settings.as_ref();
    let config = settings.and_then(|settings| settings.string.clone());
    let own = snapshot.segments.iter().filter(|segment| segment.device == device);
    let first_failed = entries.iter().find(|entry| entry.action == "oom");
    let device_free = first_failed.and_then(|entry| u64::try_from(entry.device_free()?).ok());
    let (has_late_keys, is_cut) = (has_late_keys(snapshot), overflowed(snapshot));
    let trace = trace(file, name, device, events, config, own)?;
    Ok(Some(Trace { pools, device_free, has_late_keys, is_cut, remarks, ..trace }))
}

/// Returns the record of `device`, with the segments at the end. Does not check for contradictions.
pub(super) fn trace<'s>(
    file: &Path,
    name: String,
    device: i64,
    events: Vec<Event>,
    config: Option<String>,
    segments: impl Iterator<Item = &'s cachalot_snapshot::Segment>,
) -> Result<Trace, BadInput> {
    let segments = segments.map(segment).collect::<Result<Vec<_>, _>>();
    let mut segments = segments.map_err(|what| BadInput::whole(file, what))?;
    segments.sort_by_key(|segment| segment.address);
    let (config_is_unknown, config) = (config.is_none(), config.unwrap_or_default());
    let expected = Some(Expected { config, config_is_unknown, segments, ..Expected::default() });
    Ok(Trace { expected, ..Trace::of(file, name, device, events) })
}

/// Returns whether a snapshot says that the first events of its history were overwritten.
pub fn overflowed<Segments, Traces>(snapshot: &Snapshot<Segments, Traces>) -> bool {
    snapshot.allocator_settings.as_ref().and_then(|settings| settings.trace_alloc_overflowed).unwrap_or_default()
}

/// Returns whether the `PyTorch` that wrote a snapshot accepts the settings of version 2.11. It
/// does if the snapshot has a later setting. It does not if the snapshot has no pinned host memory,
/// which snapshots have since 2.10. `None` if the keys of the snapshot do not say.
pub fn has_late_keys<Segments, Traces>(snapshot: &Snapshot<Segments, Traces>) -> Option<bool> {
    let settings = snapshot.allocator_settings.as_ref()?;
    if settings.max_cached_size.is_some() || settings.max_round_threshold.is_some() {
        return Some(true);
    }
    snapshot.host_segments.is_none().then_some(false)
}

/// Converts a segment, and fills in values missing in old versions. The device becomes 0, because a
/// replayed program has one device.
fn segment(segment: &cachalot_snapshot::Segment) -> Result<Segment, String> {
    let mut at = segment.address;
    let mut blocks = Vec::with_capacity(segment.blocks.len());
    for block in &segment.blocks {
        let (address, requested_size) = (block.address.unwrap_or(at), block.requested_size.unwrap_or(0));
        blocks.push(ExpectedBlock { address, size: block.size, requested_size, state: state(&block.state)? });
        at = address.saturating_add(block.size);
    }
    let sum = |is: fn(BlockState) -> bool, of: fn(&ExpectedBlock) -> u64| {
        blocks.iter().filter(|block| is(block.state)).map(of).fold(0, u64::saturating_add)
    };
    let is_active = |state| state != BlockState::Inactive;
    Ok(Segment {
        device: 0,
        address: segment.address,
        total_size: segment.total_size,
        allocated_size: segment
            .allocated_size
            .unwrap_or_else(|| sum(|state| state == BlockState::ActiveAllocated, |block| block.size)),
        active_size: segment.active_size.unwrap_or_else(|| sum(is_active, |block| block.size)),
        requested_size: segment.requested_size.unwrap_or_else(|| sum(is_active, |block| block.requested_size)),
        stream: segment.stream.cast_unsigned(),
        segment_type: segment.segment_type.as_deref().unwrap_or_default().to_owned(),
        segment_pool_id: segment.segment_pool_id.unwrap_or_default(),
        is_expandable: segment.is_expandable.unwrap_or_default(),
        blocks,
    })
}

/// Returns the state with a name in a snapshot. Some descriptions of the format have
/// `active_awaiting_free` for the second state.
pub(crate) fn state(name: &str) -> Result<BlockState, String> {
    Ok(match name {
        "active_allocated" => BlockState::ActiveAllocated,
        "active_pending_free" | "active_awaiting_free" => BlockState::ActivePendingFree,
        "inactive" => BlockState::Inactive,
        _ => return Err(format!("unknown state `{name}` of a block")),
    })
}

/// Converts the events of a device. Also returns what was left out or filled in, as sentences.
fn events(
    file: &Path,
    entries: &[cachalot_snapshot::Event],
    pools: &mut Pools,
) -> Result<(Vec<Event>, Vec<String>), BadInput> {
    let mut events = Vec::with_capacity(entries.len());
    let mut unknown = BTreeMap::<&str, u64>::new();
    for (number, entry) in (0..).zip(entries) {
        let place = Place::Event(number);
        let action = match Action::named(&entry.action) {
            Some(Action::Mark | Action::Other) => continue,
            Some(action) => action,
            None => {
                *unknown.entry(&entry.action).or_default() += 1;
                continue;
            }
        };
        let size = u64::try_from(entry.size).ok().filter(|&size| size < MAX_REQUEST).ok_or_else(|| {
            let what = format!("the size {} is out of range: 0 to {MAX_REQUEST} bytes (1 EiB)", entry.size);
            BadInput::at_place(file, place, what)
        })?;
        // Some writers put the free bytes of the device there.
        let addr = entry.addr.filter(|_| action != Action::OutOfMemory).unwrap_or(0);
        let stream = entry.stream.cast_unsigned();
        let pool = entry.pool_id().and_then(|(one, other)| pools.number(PoolId(one, other)));
        events.push(Event { action, addr, size, of: RecordFacts { stream, note: Note::None, pool, place } });
    }
    let (events, remark) = with_both_frees(events);
    let mut remarks: Vec<String> = remark.map(str::to_owned).into_iter().collect();
    remarks.extend(unknown.into_iter().map(|(name, count)| left_out(name, count)));
    Ok((events, remarks))
}

/// Says that events of an action that this version does not know were left out.
pub fn left_out(action: &str, count: u64) -> String {
    let (plural, were) = if count == 1 { ("", "was") } else { ("s", "were") };
    format!("{count} event{plural} of an action that is not known here, `{action}`, {were} left out")
}

/// Fills in the one of the two events of a free that `skip_actions` of PyTorch 2.10 left out of the
/// whole history. Also returns what to say about it.
pub(super) fn with_both_frees(events: Vec<Event>) -> (Vec<Event>, Option<&'static str>) {
    let remark = match Frees::of(events.iter().map(|event| event.action)) {
        Frees::Completions => {
            "the history has no `free_requested` (skip_actions), so each free counts from its completion, and nothing \
             as pending"
        }
        Frees::Requests => {
            "the history has no `free_completed` (skip_actions), so each free counts as complete at once"
        }
        Frees::Both => return (events, None),
    };
    let both = |event: Event| match event.action {
        Action::FreeRequested | Action::FreeCompleted => {
            let of = |action| Event { action, ..event };
            vec![of(Action::FreeRequested), of(Action::FreeCompleted)]
        }
        _ => vec![event],
    };
    (events.into_iter().flat_map(both).collect(), Some(remark))
}
