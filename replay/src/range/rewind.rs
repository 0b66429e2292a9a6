//! The memory at the end of a range, found by undoing the events after it, and a snapshot of the
//! range alone.

use super::resolve::{HistoryRange, Span};
use crate::inspect::{Placement, large_page, page};
use crate::memory::{self, Action, Frees, HistoryReader, Memory, Part};
use cachalot_core::rounding::SMALL_SEGMENT;
use cachalot_snapshot::{Annotation, Block, Event, Segment, Snapshot, Stack};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The stacks of the blocks that were allocated before a range and are there when it begins, by
/// device and address. Sorted, because the readers number the stacks in this order.
pub type EarlierStacks = BTreeMap<(i64, u64), Stack>;

/// The number of no segment and of no block.
const NONE: usize = usize::MAX;

/// What is known of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin {
    /// The number of the segment at the end of the history, or [`NONE`].
    segment: usize,
    place: Placement,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BlockFacts {
    /// The numbers of the segment and of the block at the end of the history, or [`NONE`].
    last: (usize, usize),
    requested: u64,
}

/// Makes a snapshot what it would have been at the end of a range: the events after it are undone
/// and gone. As in every report, a block that was freed after it counts with the requested size,
/// rounded up to 512 bytes.
///
/// # Errors
/// The memory is too large to be added up: the events contradict each other.
pub fn rewind(snapshot: &mut Snapshot, range: &HistoryRange) -> Result<(), String> {
    let large_page = large_page(snapshot);
    let mut is_earlier = false;
    for span in range.devices.iter().filter(|span| span.to_event < span.events) {
        let Ok(device) = usize::try_from(span.device) else { continue };
        let trace = std::mem::take(&mut snapshot.device_traces[device]);
        let segments = at(snapshot, span, &trace, large_page);
        snapshot.device_traces[device] = trace;
        snapshot.device_traces[device].truncate(span.to_event);
        snapshot.segments.retain(|segment| segment.device != span.device);
        snapshot.segments.extend(segments);
        is_earlier = true;
    }
    if !is_earlier {
        return Ok(());
    }
    snapshot.segments.sort_by_key(|segment| (segment.device, segment.address));
    // Nothing says what pinned memory there was. That there are lists says how old PyTorch is.
    snapshot.host_segments = snapshot.host_segments.is_some().then(Vec::new);
    snapshot.host_traces = snapshot.host_traces.is_some().then(Vec::new);
    let sum: u128 = snapshot.segments.iter().map(|segment| u128::from(segment.total_size)).sum();
    if sum < 1 << 63 { Ok(()) } else { Err("the sizes add up to 2^63 bytes or more".to_owned()) }
}

/// Removes the events before a range, and the marks outside of it. Returns the stacks of the blocks
/// from before.
pub fn cut(snapshot: &mut Snapshot, range: &HistoryRange) -> EarlierStacks {
    let mut before = EarlierStacks::new();
    let first_us = range_ends(snapshot, range);
    for &Span { device, from_event, .. } in &range.devices {
        let Some(trace) = usize::try_from(device).ok().and_then(|at| snapshot.device_traces.get_mut(at)) else {
            continue;
        };
        let mut live = HashMap::<u64, &Stack>::new();
        for event in &trace[..from_event] {
            let Some(address) = event.addr else { continue };
            match &*event.action {
                "alloc" => _ = event.frames.as_ref().map(|stack| live.insert(address, stack)),
                "free_completed" => _ = live.remove(&address),
                _ => {}
            }
        }
        before.extend(live.into_iter().map(|(address, stack)| ((device, address), stack.clone())));
        trace.drain(..from_event);
    }
    tell(snapshot, &before);
    if let (Some(ends), Some(marks)) = (first_us, snapshot.external_annotations.as_mut()) {
        *marks = within(std::mem::take(marks), ends);
    }
    before
}

/// Returns the times of the first and of the last event in a range. `None` without times.
fn range_ends(snapshot: &Snapshot, range: &HistoryRange) -> Option<(i64, i64)> {
    let events = range.devices.iter().flat_map(|span| {
        let trace = usize::try_from(span.device).ok().and_then(|at| snapshot.device_traces.get(at));
        trace.and_then(|trace| trace.get(span.from_event..span.to_event.min(trace.len()))).unwrap_or_default()
    });
    let times = || events.clone().filter_map(|event| event.time_us);
    times().min().zip(times().max())
}

/// Gives the blocks at the end the stacks of their allocations before the range.
fn tell(snapshot: &mut Snapshot, before: &EarlierStacks) {
    let again: HashSet<(i64, u64)> = (0..)
        .zip(&snapshot.device_traces)
        .flat_map(|(device, trace)| trace.iter().map(move |event| (device, event)))
        .filter(|(_, event)| event.action == "alloc")
        .filter_map(|(device, event)| Some((device, event.addr?)))
        .collect();
    for segment in &mut snapshot.segments {
        let mut at = segment.address;
        for block in &mut segment.blocks {
            let place = (segment.device, block.address.unwrap_or(at));
            at = place.1.saturating_add(block.size);
            if block.state != "inactive" && block.stack().is_none() && !again.contains(&place) {
                block.frames = before.get(&place).cloned();
            }
        }
    }
}

/// Returns the marks of a range, in their order. What began before it begins with it, and what
/// ended after it ends with it.
fn within(marks: Vec<Annotation>, (first, last): (i64, i64)) -> Vec<Annotation> {
    let mut open: Vec<usize> = Vec::new();
    let mut kept = vec![false; marks.len()];
    for (number, mark) in marks.iter().enumerate() {
        if mark.stage == "START" {
            open.push(number);
            continue;
        }
        let is_same = |&at: &usize| (&marks[at].name, marks[at].device) == (&mark.name, mark.device);
        let start = open.iter().rposition(is_same).map(|place| open.remove(place));
        if mark.time_us >= first && start.is_none_or(|start| marks[start].time_us <= last) {
            kept[number] = true;
            start.into_iter().for_each(|start| kept[start] = true);
        }
    }
    open.into_iter().filter(|&start| marks[start].time_us <= last).for_each(|start| kept[start] = true);
    let clamped = |mark: Annotation| Annotation { time_us: mark.time_us.clamp(first, last), ..mark };
    marks.into_iter().zip(kept).filter(|(_, kept)| *kept).map(|(mark, _)| clamped(mark)).collect()
}

/// The memory of a device on its way back.
type RewoundMemory = Memory<Origin, BlockFacts>;

/// Returns the segments of a device at the end of a span.
fn at(snapshot: &Snapshot, span: &Span, trace: &[Event], large_page: u64) -> Vec<Segment> {
    let mut memory = at_end(snapshot, span.device, large_page);
    let frees = Frees::of(trace.iter().filter_map(|event| Action::named(&event.action)));
    for (number, event) in trace.iter().enumerate().skip(span.to_event).rev() {
        let event = memory::EventOf::of_snapshot(event, Placement::of(event));
        memory.undo(&event, &mut RangeReader { large_page, waits: frees.waits(number) });
    }
    let requests = latest(&trace[..span.to_event], &memory);
    let mut segments = Vec::new();
    for (&address, part) in memory.parts() {
        let origin = part.of;
        let mut segment = match snapshot.segments.get(origin.segment) {
            Some(last) => Segment { blocks: Vec::new(), parked_size: None, spilled_size: None, ..last.clone() },
            None => unknown(span.device, origin.place, part.end - address, (part.page > 0).then_some(large_page)),
        };
        (segment.address, segment.total_size) = (address, part.end - address);
        let mut place = address;
        for (&start, block) in memory.blocks().range(address..part.end) {
            if start < place {
                continue;
            }
            let size = block.size.min(part.end - start);
            segment.blocks.extend(free(place, start));
            let of_request = requests.get(&start).copied();
            segment.blocks.push(used(snapshot, start, memory::Block { size, ..*block }, of_request));
            place = start.saturating_add(size);
        }
        segment.blocks.extend(free(place, part.end));
        add_up(&mut segment);
        segments.push(segment);
    }
    segments
}

/// Returns the memory of a device at the end of the history.
fn at_end(snapshot: &Snapshot, device: i64, large_page: u64) -> RewoundMemory {
    let mut memory = RewoundMemory::default();
    for (number, segment) in snapshot.segments.iter().enumerate().filter(|(_, segment)| segment.device == device) {
        let pool = Some(segment.segment_pool_id.unwrap_or_default());
        let of = Origin { segment: number, place: Placement { stream: segment.stream, pool } };
        let end = segment.address.saturating_add(segment.total_size);
        memory.insert(segment.address, Part { end, page: page(segment, large_page), of });
        let mut place = segment.address;
        for (at, block) in segment.blocks.iter().enumerate() {
            let address = block.address.unwrap_or(place);
            place = address.saturating_add(block.size);
            if block.state != "inactive" {
                let pending = matches!(&*block.state, "active_pending_free" | "active_awaiting_free");
                let requested = block.requested_size.unwrap_or(block.size);
                let of = BlockFacts { last: (number, at), requested };
                memory.set_block(address, Some(memory::Block { size: block.size, pending, of }));
            }
        }
    }
    memory
}

/// Reads an event backwards. Nothing is known of what is gone at the end of the history.
struct RangeReader {
    large_page: u64,
    /// Whether the block of a completed free was pending.
    waits: bool,
}

impl HistoryReader for RangeReader {
    type Part = Origin;
    type Block = BlockFacts;
    type Event = Placement;

    fn part(&mut self, event: &memory::EventOf<Placement>, _: &RewoundMemory) -> Part<Origin> {
        Part { end: event.end(), page: event.page(self.large_page), of: Origin { segment: NONE, place: event.of } }
    }

    fn block(&mut self, event: &memory::EventOf<Placement>, _: &RewoundMemory) -> memory::Block<BlockFacts> {
        let of = BlockFacts { last: (NONE, NONE), requested: event.size };
        memory::Block { size: memory::rounded(event.size), pending: self.waits, of }
    }

    fn join(&self, new: &mut Part<Origin>, beside: &Part<Origin>, is_joined: bool) -> bool {
        let joins = new.of == beside.of || (!is_joined && new.of.place.is_of(beside.of.place));
        if joins {
            new.of = beside.of;
        }
        joins
    }
}

/// Returns the latest request at the address of each block.
fn latest<'t>(trace: &'t [Event], memory: &RewoundMemory) -> HashMap<u64, &'t Event> {
    let mut missing: HashSet<u64> = memory.blocks().keys().copied().collect();
    let mut found = HashMap::new();
    for event in trace.iter().rev().filter(|event| event.action == "alloc") {
        if missing.is_empty() {
            break;
        }
        if let Some(address) = event.addr
            && missing.remove(&address)
        {
            found.insert(address, event);
        }
    }
    found
}

/// Returns a segment that is gone at the end of the history. `large_page` is that of an expandable
/// segment.
fn unknown(device: i64, place: Placement, bytes: u64, large_page: Option<u64>) -> Segment {
    let is_small = large_page.map_or(bytes == SMALL_SEGMENT, |page| !bytes.is_multiple_of(page.max(1)));
    Segment {
        device,
        stream: place.stream,
        segment_type: Some(Cow::Borrowed(if is_small { "small" } else { "large" })),
        segment_pool_id: Some(place.pool.unwrap_or_default()),
        is_expandable: Some(large_page.is_some()),
        ..Segment::default()
    }
}

/// Returns a block that is not free. What the end of the history says of it is true for the whole
/// life of the block.
fn used(snapshot: &Snapshot, address: u64, block: memory::Block<BlockFacts>, request: Option<&Event>) -> Block {
    let memory::Block { size, pending, of: BlockFacts { last: (segment, number), requested } } = block;
    let last = snapshot.segments.get(segment).and_then(|segment| segment.blocks.get(number));
    let stack = request.and_then(|event| event.frames.clone()).filter(|stack| !stack.is_empty());
    let mut made = last.cloned().unwrap_or_default();
    if made.stack().is_none() {
        made.frames = stack;
    }
    (made.address, made.size) = (Some(address), size);
    made.requested_size = Some(requested.min(size));
    made.state = Cow::Borrowed(if pending { "active_pending_free" } else { "active_allocated" });
    made
}

/// Returns the free block between two addresses, if there is room.
fn free(start: u64, end: u64) -> Option<Block> {
    let state = Cow::Borrowed("inactive");
    let (address, requested_size) = (Some(start), Some(0));
    (start < end).then(|| Block { address, size: end - start, requested_size, state, ..Block::default() })
}

/// Adds up the blocks of a segment.
fn add_up(segment: &mut Segment) {
    let sum = |is: fn(&Block) -> bool, of: fn(&Block) -> u64| {
        Some(segment.blocks.iter().filter(|block| is(block)).map(of).fold(0, u64::saturating_add))
    };
    let is_used = |block: &Block| block.state != "inactive";
    let allocated = sum(|block| block.state == "active_allocated", |block| block.size);
    let (active, requested) =
        (sum(is_used, |block| block.size), sum(is_used, |block| block.requested_size.unwrap_or(0)));
    (segment.allocated_size, segment.active_size, segment.requested_size) = (allocated, active, requested);
}
