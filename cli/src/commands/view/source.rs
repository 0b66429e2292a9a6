//! Reads histories from snapshots and from records, and makes histories by replay.

use super::history::{Event, History, HistoryMemory, HistoryPart, Kind, Names, Origin, Pages, Seen, UNKNOWN};
use super::stacks::{NO_STACK, Stacks};
use crate::commands::range::{RangeArgs, words_of};
use cachalot_core::{Config, PoolId, PoolKind, TraceEntry};
use cachalot_replay::memory::{Action, Block, Part};
use cachalot_replay::replay::{self, Options, ReplayError};
use cachalot_replay::trace::{self, BadInput, BlockState, Note, Place, Pools, RecordFacts, Trace, snapshot};
use cachalot_replay::tune;
use cachalot_snapshot::{Segment, Snapshot};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

/// Returns the history of every device of a file, a snapshot or a record. `watch` gets the number
/// of bytes after each read, and `begin` is called before the program of a history is replayed.
pub(super) fn load(
    file: &Path,
    range: &RangeArgs,
    watch: impl FnMut(u64),
    begin: impl Fn(),
) -> Result<Vec<History>, BadInput> {
    let label = match file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned() {
        name if name == "-" => trace::base_name(file),
        name => name,
    };
    let answer = &|trace: &Trace| {
        begin();
        Some(tune::answer_of(trace))
    };
    if range.is_given() {
        return ranged(file, range, &label, watch, answer);
    }
    if snapshot::is_record(file)? {
        let history = |trace: &Trace| {
            super::super::announce_remarks(trace);
            History { answer: answer(trace), ..of_record(trace, &label) }
        };
        return Ok(Trace::load(file)?.iter().map(history).collect());
    }
    let (mut names, mut stacks) = (Names::default(), Stacks::default());
    let mut unknown = BTreeMap::<String, u64>::new();
    let read = snapshot::load_all_with(file, watch, |event| {
        let converted = of_event(&event, &mut names, &mut stacks);
        if Action::named(&event.action).is_none() {
            *unknown.entry(event.action.into_owned()).or_default() += 1;
        }
        converted
    })?;
    for (action, count) in unknown {
        complain!("{}: {}", file.display(), snapshot::left_out(&action, count));
    }
    let (mut histories, last) = (Vec::new(), read.len());
    for (number, (rank, read)) in (1..).zip(read) {
        let label = snapshot::ranked(&label, &rank);
        // Nearly every file is a single snapshot, and its stacks may be many.
        let (names, stacks) = if number == last {
            (std::mem::take(&mut names), std::mem::take(&mut stacks))
        } else {
            (names.clone(), stacks.clone())
        };
        histories.extend(answered(file, read, &label, names, stacks, answer));
    }
    Ok(histories)
}

/// Returns the histories of a range of each snapshot of a file.
fn ranged(
    file: &Path,
    range: &RangeArgs,
    label: &str,
    watch: impl FnMut(u64),
    answer: impl Fn(&Trace) -> Option<tune::Answer>,
) -> Result<Vec<History>, BadInput> {
    if snapshot::is_record(file)? {
        let what = "--from and --to need a memory snapshot, which has the state at the end: `cachalot snapshot FILE -o \
                    end.pickle` makes one of a record";
        return Err(BadInput::whole(file, what));
    }
    let mut histories = Vec::new();
    for (rank, mut snapshot) in snapshot::load_all_watched(file, watch)? {
        let (found, before) = range.cut(file, &mut snapshot)?;
        let (mut names, mut stacks) = (Names::default(), Stacks::default());
        let mut numbers = BTreeMap::<i64, FxHashMap<u64, u32>>::new();
        for ((device, address), stack) in &before {
            numbers.entry(*device).or_default().insert(*address, stacks.number(Some(stack), None));
        }
        let Snapshot { segments, device_traces, allocator_settings, external_annotations, host_segments, .. } =
            snapshot;
        let mut all = |events: Vec<cachalot_snapshot::Event>| {
            events.iter().map(|event| of_event(event, &mut names, &mut stacks)).collect()
        };
        let device_traces = device_traces.into_iter().map(&mut all).collect();
        let rest = Snapshot::default();
        let read =
            Snapshot { segments, device_traces, allocator_settings, external_annotations, host_segments, ..rest };
        let own = answered(file, read, &snapshot::ranked(label, &rank), names, stacks, &answer);
        histories.extend(own.into_iter().map(|history| {
            let span = found.iter().flat_map(|found| &found.devices).find(|span| span.device == history.device);
            let part = span.map(|span| HistoryPart {
                words: words_of(span),
                first: span.from_event,
                events: span.events,
                before: numbers.remove(&span.device).unwrap_or_default(),
            });
            let answer = history.answer.map(|answer| answer.in_range(part.as_ref().map(|part| part.words.clone())));
            History { answer, is_cut: history.is_cut && part.is_none(), part, ..history }
        }));
    }
    Ok(histories)
}

/// Returns the histories of a snapshot, with their answers.
fn answered(
    file: &Path,
    read: Snapshot<Vec<Segment>, Vec<Vec<Event>>>,
    label: &str,
    names: Names,
    stacks: Stacks,
    answer: impl Fn(&Trace) -> Option<tune::Answer>,
) -> Vec<History> {
    let settings = read.allocator_settings.as_ref();
    let config = settings.and_then(|settings| settings.string.clone());
    let (has_late_keys, is_cut) = (snapshot::has_late_keys(&read), snapshot::overflowed(&read));
    let mut found: Vec<_> = (0..)
        .zip(&read.device_traces)
        .map(|(device, events)| {
            let segments = read.segments.iter().filter(|segment| segment.device == device);
            let failed = events.iter().find(|event| event.action == Action::OutOfMemory);
            let device_free = failed.map(|event| event.addr).filter(|&free| free != u64::MAX);
            let trace = trace(file, device, events, &names, config.clone(), segments)?;
            let trace = Trace { device_free, has_late_keys, is_cut: is_cut || trace.is_cut, ..trace };
            Ok((answer(&trace), trace.remarks))
        })
        .collect();
    let mut histories = of_snapshot(read, label, names, stacks);
    for history in &mut histories {
        let own = usize::try_from(history.device).ok().and_then(|device| found.get_mut(device));
        match own.map(|found| std::mem::replace(found, Err(Unused::Nothing))) {
            Some(Ok((answer, remarks))) => (history.answer, history.remarks) = (answer, remarks),
            Some(Err(Unused::TooLong)) => {
                history.remarks = vec!["the history is too long, so no setting was tried".to_owned()];
            }
            Some(Err(Unused::Contradicts(why))) => history.contradiction = Some(why),
            Some(Err(Unused::Nothing)) | None => {}
        }
        history.is_cut = is_cut || history.answer.as_ref().is_some_and(|answer| answer.cut_to_events.is_some());
    }
    histories
}

/// Why the events of a device are no record.
enum Unused {
    /// There are none.
    Nothing,
    /// They are more than an answer may have.
    TooLong,
    /// They contradict each other, for a reason.
    Contradicts(String),
}

/// Returns the events of a device as a record.
fn trace<'s>(
    file: &Path,
    device: i64,
    events: &[Event],
    names: &Names,
    config: Option<String>,
    segments: impl Iterator<Item = &'s Segment>,
) -> Result<Trace, Unused> {
    if events.is_empty() {
        return Err(Unused::Nothing);
    }
    if events.len() > tune::MOST_EVENTS {
        return Err(Unused::TooLong);
    }
    let mut converted = Vec::with_capacity(events.len());
    let mut pools = Pools::default();
    let numbers: Vec<_> = names.pools.iter().map(|&(one, other)| pools.number(PoolId(one, other))).collect();
    for (number, event) in (0..).zip(events) {
        if matches!(event.action, Action::Mark | Action::Other) {
            continue;
        }
        let addr = if event.action == Action::OutOfMemory { 0 } else { event.addr };
        let stream = names.streams[usize::from(event.of.stream)].cast_unsigned();
        let (size, place, action) = (event.size, Place::Event(number), event.action);
        if size >= cachalot_core::MAX_REQUEST {
            return Err(Unused::Contradicts(format!("{place}: the size {size} is out of range")));
        }
        let pool = numbers.get(usize::from(event.of.pool)).copied().flatten();
        converted.push(trace::Event { action, addr, size, of: RecordFacts { stream, note: Note::None, pool, place } });
    }
    if converted.is_empty() {
        return Err(Unused::Nothing);
    }
    let trace = Trace::of_events(file, device, (converted, pools), config, segments);
    trace.map_err(|error| Unused::Contradicts(error.without_file()))
}

fn of_event(event: &cachalot_snapshot::Event, names: &mut Names, stacks: &mut Stacks) -> Event {
    let details = event.details.as_deref();
    let action = Action::named(&event.action).unwrap_or(Action::Other);
    let metadata = details.and_then(|details| details.user_metadata.as_deref()).filter(|text| !text.is_empty());
    let compiling = details.and_then(|details| details.compile_context.as_deref());
    let compiling = compiling.filter(|text| !matches!(*text, "" | "N/A"));
    let note = match (metadata, compiling) {
        (None, None) => None,
        (Some(note), None) => Some(note.to_owned()),
        (None, Some(context)) => Some(format!("compile {context}")),
        (Some(note), Some(context)) => Some(format!("{note}, compile {context}")),
    };
    Event {
        addr: if action == Action::OutOfMemory {
            event.device_free().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(u64::MAX)
        } else {
            event.addr.unwrap_or(0)
        },
        size: u64::try_from(event.size).unwrap_or(0),
        of: Seen {
            time: event.time_us.unwrap_or(0),
            stack: stacks.number(event.frames.as_ref(), note.as_deref()),
            stream: names.stream(event.stream),
            pool: event.pool_id().map_or(UNKNOWN, |pool| names.pool(pool)),
        },
        action,
    }
}

fn of_snapshot(
    snapshot: Snapshot<Vec<Segment>, Vec<Vec<Event>>>,
    label: &str,
    mut names: Names,
    mut stacks: Stacks,
) -> Vec<History> {
    let config = snapshot.allocator_settings.and_then(|settings| settings.string);
    let (tells_config, config) = (config.is_some(), config.unwrap_or_default());
    let pages = Pages::of(&config);
    let mut ends: BTreeMap<i64, HistoryMemory> = BTreeMap::new();
    for segment in &snapshot.segments {
        add(ends.entry(segment.device).or_default(), segment, pages, &mut names, &mut stacks);
    }
    let mut events: BTreeMap<i64, Vec<Event>> = (0..).zip(snapshot.device_traces).collect();
    events.retain(|device, events| !events.is_empty() || ends.contains_key(device));
    for &device in ends.keys() {
        events.entry(device).or_default();
    }
    let annotations = snapshot.external_annotations.unwrap_or_default();
    let (names, stacks) = (Rc::new(names), Rc::new(stacks));
    let history = |(device, events): (i64, Vec<Event>)| History {
        label: label.to_owned(),
        device,
        config: config.clone(),
        has_times: events.iter().any(|event| event.of.time != 0),
        events,
        end: Some(ends.remove(&device).unwrap_or_default()),
        annotations: annotations.iter().filter(|mark| mark.device == device).cloned().collect(),
        names: Rc::clone(&names),
        stacks: Rc::clone(&stacks),
        tells_config,
        is_cut: false,
        part: None,
        answer: None,
        contradiction: None,
        remarks: Vec::new(),
    };
    events.into_iter().map(history).collect()
}

/// Adds a segment to the memory at the end.
fn add(end: &mut HistoryMemory, segment: &Segment, pages: Pages, names: &mut Names, stacks: &mut Stacks) {
    let kind = Kind::named(segment.segment_type.as_deref());
    let page = pages.page(segment.total_size, segment.is_expandable.unwrap_or_default(), kind);
    let origin = Origin {
        kind,
        stream: names.stream(segment.stream),
        pool: segment.segment_pool_id.map_or(UNKNOWN, |pool| names.pool(pool)),
        expandable: segment.is_expandable.unwrap_or_default(),
        stack: stacks.number(segment.frames.as_ref(), None),
    };
    let behind = segment.address.saturating_add(segment.total_size);
    end.insert(segment.address, Part { end: behind, page, of: origin });
    let mut at = segment.address;
    for block in &segment.blocks {
        // The oldest snapshots have no addresses of blocks.
        let address = block.address.unwrap_or(at);
        at = address.saturating_add(block.size);
        if block.state != "inactive" {
            let pending = matches!(&*block.state, "active_pending_free" | "active_awaiting_free");
            let stack = stacks.number(block.stack(), None);
            end.set_block(address, Some(Block { size: block.size, pending, of: stack }));
        }
    }
}

/// Converts a record without stacks.
fn of_record(trace: &Trace, label: &str) -> History {
    let mut names = Names::default();
    let mut stacks = Stacks::default();
    let event = |event: &trace::Event| Event {
        addr: if event.action == Action::OutOfMemory { u64::MAX } else { event.addr },
        size: event.size,
        of: Seen {
            time: 0,
            stack: NO_STACK,
            stream: names.stream(event.of.stream.cast_signed()),
            pool: trace.pools.of(event).map_or(UNKNOWN, |pool| names.pool((pool.0, pool.1))),
        },
        action: event.action,
    };
    let events = trace.events.iter().map(event).collect();
    let end = trace.expected.as_ref().filter(|expected| !expected.segments.is_empty()).map(|expected| {
        let mut end = HistoryMemory::default();
        for segment in &expected.segments {
            add(&mut end, &of_segment(segment), Pages::of(trace.config()), &mut names, &mut stacks);
        }
        end
    });
    History {
        label: label.to_owned(),
        device: 0,
        config: trace.config().to_owned(),
        events,
        end,
        annotations: Vec::new(),
        names: Rc::new(names),
        stacks: Rc::new(stacks),
        has_times: false,
        tells_config: trace.tells_config(),
        is_cut: trace.is_cut,
        part: None,
        answer: None,
        contradiction: None,
        remarks: Vec::new(),
    }
}

/// Converts a segment of a record.
fn of_segment(segment: &trace::Segment) -> Segment {
    let block = |block: &trace::ExpectedBlock| cachalot_snapshot::Block {
        address: Some(block.address),
        size: block.size,
        state: match block.state {
            BlockState::ActiveAllocated => "active_allocated",
            BlockState::ActivePendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        }
        .into(),
        ..cachalot_snapshot::Block::default()
    };
    Segment {
        address: segment.address,
        total_size: segment.total_size,
        stream: segment.stream.cast_signed(),
        segment_pool_id: Some(segment.segment_pool_id),
        segment_type: Some(segment.segment_type.clone().into()),
        is_expandable: Some(segment.is_expandable),
        blocks: segment.blocks.iter().map(block).collect(),
        ..Segment::default()
    }
}

/// Replays every device of a file with another configuration. `recorded` has the histories of the
/// file, whose stacks and times the replayed requests get.
pub(super) fn replay(
    (file, range): (&Path, &RangeArgs),
    recorded: &[History],
    config: &Config,
    name: &str,
    limit: Option<u64>,
) -> Result<Vec<History>, ReplayError> {
    let traces = range.traces(file).map_err(ReplayError::Input)?;
    // A device with a history that cannot be used has no record.
    let mut with_events = recorded.iter().filter(|history| !history.events.is_empty());
    let own = |trace: &Trace| with_events.find(|history| history.device == trace.device);
    let pairs: Vec<_> = traces.iter().map(own).zip(&traces).collect();
    let pairs = pairs.into_iter().filter_map(|(history, trace)| Some((history?, trace)));
    pairs.map(|(history, trace)| replay_one(trace, history, config, name, limit)).collect()
}

fn replay_one(
    trace: &Trace,
    recorded: &History,
    config: &Config,
    name: &str,
    limit: Option<u64>,
) -> Result<History, ReplayError> {
    let options = Options { config: Some(config.clone()), limit, ..Options::default() };
    let end = replay::end(trace, &options)?;
    let mut names = Names { streams: recorded.names.streams.clone(), pools: recorded.names.pools.clone() };
    let requests = requests(recorded);
    let mut next = requests.iter();
    let (mut stack, mut time) = (NO_STACK, requests.first().map_or(0, |request| request.1));
    let event = |(entry, pool): (&TraceEntry, &PoolId)| {
        let action = Action::from(entry.action);
        // Both programs have the same requests in the same order.
        if matches!(action, Action::Alloc | Action::OutOfMemory)
            && let Some(request) = next.next()
        {
            (stack, time) = *request;
        }
        Event {
            addr: if action == Action::OutOfMemory { u64::MAX } else { entry.addr.0 },
            size: entry.size,
            of: Seen {
                time,
                stack,
                stream: names.stream(entry.stream.0.cast_signed()),
                pool: names.pool((pool.0, pool.1)),
            },
            action,
        }
    };
    let events = end.events.iter().zip(&end.pools).map(event).collect();
    let mut memory = HistoryMemory::default();
    let mut stacks = Stacks::default();
    for segment in &end.segments {
        add(&mut memory, &of_core(segment), Pages::of(name), &mut names, &mut stacks);
    }
    Ok(History {
        label: format!("{} · {name}", recorded.label),
        device: recorded.device,
        config: name.to_owned(),
        events,
        end: Some(memory),
        annotations: Vec::new(),
        names: Rc::new(names),
        stacks: Rc::clone(&recorded.stacks),
        has_times: recorded.has_times,
        tells_config: true,
        is_cut: false,
        part: None,
        answer: None,
        contradiction: None,
        remarks: Vec::new(),
    })
}

/// Returns stack and time of every request of a program: first the blocks from before the first
/// event, by address.
fn requests(history: &History) -> Vec<(u32, i64)> {
    let begin = super::begin::begin(history);
    let mut before: Vec<(u64, u32)> =
        begin.memory.blocks().iter().map(|(&address, block)| (address, block.of)).collect();
    before.sort_unstable();
    let first = history.events.first().map_or(0, |event| event.of.time);
    let of_program = history.events.iter().filter(|event| matches!(event.action, Action::Alloc | Action::OutOfMemory));
    let before = before.into_iter().map(|(_, stack)| (stack, first));
    before.chain(of_program.map(|event| (event.of.stack, event.of.time))).collect()
}

/// Converts a segment of an allocator.
fn of_core(segment: &cachalot_core::SnapshotSegment) -> Segment {
    let block = |block: &cachalot_core::SnapshotBlock| cachalot_snapshot::Block {
        address: Some(block.address.0),
        size: block.size,
        state: block.state.name().into(),
        ..cachalot_snapshot::Block::default()
    };
    Segment {
        address: segment.address.0,
        total_size: segment.total_size,
        stream: segment.stream.0.cast_signed(),
        segment_pool_id: Some((segment.pool.0, segment.pool.1)),
        segment_type: Some(if segment.kind == PoolKind::Small { "small" } else { "large" }.into()),
        is_expandable: Some(segment.is_expandable),
        blocks: segment.blocks.iter().map(block).collect(),
        ..Segment::default()
    }
}
