//! The state of each device at the peaks of reserved memory and of memory in use.

use super::Since;
use super::groups::{Group, Lists, LiveBlock, largest};
use super::past::{self, PastMemory};
use crate::memory::Block;
use cachalot_snapshot::{Event, Snapshot};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;

/// A device at a peak, in bytes. A block freed since then counts with the requested size, rounded
/// up to 512, so free memory may be overstated by unsplit remainders.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Peak {
    /// The device.
    pub device: i64,
    /// The quantity at the peak.
    pub of: PeakOf,
    /// Number of earlier events of the trace.
    pub event: u64,
    /// Time until the end of the trace in microseconds.
    pub before_end_us: Option<i64>,
    /// Memory reserved from the device.
    pub reserved: u64,
    /// Memory of allocated blocks.
    pub allocated: u64,
    /// Memory freed by the program and still in use on other streams.
    pub pending: u64,
    /// Memory on the host, which is part of `reserved`. `None` if no earlier event says it.
    pub spilled: Option<u64>,
    /// Memory reserved for private pools.
    pub reserved_private: u64,
    /// Memory of wholly free segments, and of wholly free pages of expandable segments, which could
    /// be released. Not those in private pools.
    pub releasable: u64,
    /// Number of wholly free segments outside of private pools.
    pub releasable_segments: u64,
    /// Memory of wholly free segments and pages of private pools, which keep them as long as their
    /// graphs live.
    pub kept: u64,
    /// All other free memory.
    pub in_holes: u64,
    /// Number of segments in use with free memory.
    pub hole_segments: u64,
    /// The largest free block of a segment in use.
    pub largest_hole: u64,
    /// Blocks not free, by the place of the allocation: the groups with the most bytes first.
    pub largest: Vec<Group>,
}

/// The quantity at a peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PeakOf {
    /// Bytes reserved from the device.
    Reserved,
    /// Bytes of blocks that are not free: allocated or pending.
    InUse,
    /// Both, at a common time.
    Both,
}

/// Returns the peaks of every device with events: a single peak if both quantities peak at a common
/// time, or reserved memory is constant.
pub(super) fn peaks(snapshot: &Snapshot, since: &Since, lists: Lists) -> Vec<Peak> {
    let mut peaks = Vec::new();
    at_peaks(snapshot, since, |memory, place| peaks.push(peak(memory, snapshot, place, lists)));
    peaks.sort_by_key(|peak| (peak.device, peak.of == PeakOf::InUse));
    peaks
}

/// The place of a peak.
#[derive(Clone, Copy)]
pub(super) struct PeakPlace {
    pub(super) device: i64,
    pub(super) of: PeakOf,
    /// Number of earlier events.
    pub(super) event: usize,
    /// Number of the first event of the report.
    pub(super) first: usize,
}

/// Calls `visit` with the memory at the peaks of every device with events, the later peak of a
/// device first.
pub(super) fn at_peaks(snapshot: &Snapshot, since: &Since, mut visit: impl FnMut(&PastMemory, PeakPlace)) {
    for (device, trace) in (0..).zip(&snapshot.device_traces) {
        let first = since.of(device);
        if trace.len() <= first {
            continue;
        }
        let [reserved, in_use] = highest(snapshot, device, trace, first);
        let mut wanted = if reserved == first || reserved == in_use {
            vec![(in_use, PeakOf::Both)]
        } else {
            vec![(reserved, PeakOf::Reserved), (in_use, PeakOf::InUse)]
        };
        // Events are undone from the end, so the later peak comes first.
        wanted.sort_by_key(|&(event, _)| Reverse(event));
        let (mut memory, undo) = (past::at_end(snapshot, device), past::Undo::of(snapshot, trace));
        let mut at = trace.len();
        for (event, of) in wanted {
            for number in (event..at).rev() {
                undo.undo(&mut memory, number, &trace[number]);
            }
            at = event;
            visit(&memory, PeakPlace { device, of, event, first });
        }
    }
}

/// Returns the bytes on the host at a place, by the latest event before it that says them.
pub(super) fn spilled(snapshot: &Snapshot, place: PeakPlace) -> Option<u64> {
    let trace = &snapshot.device_traces[usize::try_from(place.device).ok()?];
    trace[..place.event].iter().rev().find_map(Event::spilled_size)
}

/// Returns the bytes of all blocks that are not free.
fn in_use(memory: &PastMemory) -> u64 {
    memory.allocated().saturating_add(memory.pending())
}

/// Returns the number of events before the first peak of reserved memory, and of memory in use,
/// from event number `first` on.
fn highest(snapshot: &Snapshot, device: i64, trace: &[Event], first: usize) -> [usize; 2] {
    let (mut memory, undo) = (past::at_end(snapshot, device), past::Undo::of(snapshot, trace));
    let mut found = [(memory.reserved(), trace.len()), (in_use(&memory), trace.len())];
    for (number, event) in trace.iter().enumerate().skip(first).rev() {
        undo.undo(&mut memory, number, event);
        for (best, now) in found.iter_mut().zip([memory.reserved(), in_use(&memory)]) {
            if now >= best.0 {
                *best = (now, number);
            }
        }
    }
    let [(_, mut reserved), (_, in_use)] = found;
    // Memory is reserved for a request, which follows in the trace, perhaps after what lies on the
    // host.
    let request = reserved + usize::from(trace.get(reserved).is_some_and(|event| event.spilled_size().is_some()));
    if reserved > first && trace.get(request).is_some_and(|event| event.action == "alloc") {
        reserved = request + 1;
    }
    [reserved, in_use]
}

fn peak(memory: &PastMemory, snapshot: &Snapshot, place: PeakPlace, lists: Lists) -> Peak {
    let PeakPlace { device, of, event, .. } = place;
    let trace = snapshot.device_traces.iter().zip(0..).find(|(_, number)| *number == device);
    let trace: &[Event] = trace.map_or(&[], |(trace, _)| trace);
    let time = |event: &Event| event.time_us;
    // The time of the state is the time of the preceding event.
    let now = event.checked_sub(1).and_then(|last| time(&trace[last])).or_else(|| time(trace.first()?));
    let mut peak = Peak {
        device,
        of,
        event: event as u64,
        before_end_us: trace.last().and_then(time).zip(now).map(|(end, now)| end.saturating_sub(now)),
        reserved: memory.reserved(),
        allocated: memory.allocated(),
        pending: memory.pending(),
        spilled: spilled(snapshot, place),
        reserved_private: 0,
        releasable: 0,
        releasable_segments: 0,
        kept: 0,
        in_holes: 0,
        hole_segments: 0,
        largest_hole: 0,
        largest: largest(&live(memory, snapshot, place), lists),
    };
    for (&address, part) in memory.parts() {
        let free = memory.free(address, part, false);
        peak.hole_segments += u64::from(free.holes > 0);
        if part.of.is_private() {
            peak.reserved_private = peak.reserved_private.saturating_add(part.end - address);
            peak.kept = peak.kept.saturating_add(free.idle);
        } else {
            peak.releasable_segments += u64::from(free.idle == part.end - address);
            peak.releasable = peak.releasable.saturating_add(free.idle);
        }
        peak.in_holes = peak.in_holes.saturating_add(free.holes);
        peak.largest_hole = peak.largest_hole.max(free.largest_hole);
    }
    peak
}

/// Returns the blocks at a time, with the stacks of the allocations.
pub(super) fn live<'s>(memory: &PastMemory, snapshot: &'s Snapshot, place: PeakPlace) -> Vec<LiveBlock<'s>> {
    let PeakPlace { device, event: end, first, .. } = place;
    let trace = usize::try_from(device).map_or(&[][..], |device| &snapshot.device_traces[device]);
    let mut wanted: HashMap<u64, Option<usize>> = memory.blocks().keys().map(|&address| (address, None)).collect();
    for (number, event) in trace[..end].iter().enumerate().rev() {
        if event.action == "alloc"
            && let Some(place) = event.addr.and_then(|address| wanted.get_mut(&address))
            && place.is_none()
        {
            *place = Some(number);
        }
    }
    let now = end.checked_sub(1).and_then(|last| trace[last].time_us);
    let mut own = own_stacks(snapshot, device);
    // An allocation since then is another block.
    for event in trace[end..].iter().filter(|event| event.action == "alloc") {
        event.addr.and_then(|address| own.remove(&address));
    }
    let found = |(&address, block): (&u64, &Block<()>)| {
        let number = wanted.get(&address).copied().flatten();
        let event = number.map(|number| &trace[number]);
        let age = |event: &Event| Some(now?.saturating_sub(event.time_us?));
        LiveBlock {
            device,
            stack: event.and_then(|event| event.frames.as_ref()).or_else(|| own.get(&address).copied()),
            size: block.size,
            is_pending: block.pending,
            events: number.map(|number| (end - number) as u64),
            is_earlier: first > 0 && number.is_none_or(|number| number < first),
            us: event.or(trace.first()).and_then(age),
        }
    };
    memory.blocks().iter().map(found).collect()
}

/// Returns the stacks in the snapshot's blocks. A block older than the trace has no event with a
/// stack.
fn own_stacks(snapshot: &Snapshot, device: i64) -> HashMap<u64, &cachalot_snapshot::Stack> {
    let own = snapshot.segments.iter().filter(|segment| segment.device == device).flat_map(super::blocks);
    own.filter_map(|(address, block)| Some((address, block.stack()?))).collect()
}
