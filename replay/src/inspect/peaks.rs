//! A device at the times at which the most was reserved, and the most was allocated.

use super::groups::{Group, Live, largest};
use super::past::Memory;
use cachalot_snapshot::{Event, Snapshot};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;

/// A device at its peak, in bytes. Blocks that were freed since count as what was asked for, rounded up to 512; so free memory may
/// be overstated by what was not split off them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Peak {
    /// The device.
    pub device: i64,
    /// Of what it is the peak.
    pub of: PeakOf,
    /// How many events of the trace come before.
    pub event: u64,
    /// How long before the end of the trace, in microseconds.
    pub before_end_us: Option<i64>,
    /// What was held from the device.
    pub reserved: u64,
    /// What the program held.
    pub allocated: u64,
    /// What it had freed, and other streams still used.
    pub pending: u64,
    /// What was wholly free, and could have been given back.
    pub releasable: u64,
    /// What was free in segments in use.
    pub in_holes: u64,
    /// The largest free block of a segment in use.
    pub largest_hole: u64,
    /// Blocks that were not free, by where they were allocated: those with the most bytes first.
    pub largest: Vec<Group>,
}

/// Of what a peak is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PeakOf {
    /// Bytes held from the device.
    Reserved,
    /// Bytes that the program holds.
    Allocated,
    /// Both, at the same time.
    Both,
}

/// The peaks of every device with events: one, if the most was reserved and allocated at the same time, or reserved all the time.
pub(super) fn peaks(snapshot: &Snapshot, most: usize) -> Vec<Peak> {
    let mut peaks = Vec::new();
    for (device, trace) in (0..).zip(&snapshot.device_traces).filter(|(_, trace)| !trace.is_empty()) {
        let [reserved, allocated] = highest(snapshot, device, trace);
        let mut wanted = if reserved == 0 || reserved == allocated {
            vec![(allocated, PeakOf::Both)]
        } else {
            vec![(reserved, PeakOf::Reserved), (allocated, PeakOf::Allocated)]
        };
        // The later one is reached first.
        wanted.sort_by_key(|&(event, _)| Reverse(event));
        let mut memory = Memory::at_end(snapshot, device);
        let mut at = trace.len();
        let first = peaks.len();
        for (event, of) in wanted {
            trace[event..at].iter().rev().for_each(|event| memory.undo(event));
            at = event;
            peaks.push(peak(&memory, snapshot, (device, of), event, most));
        }
        peaks[first..].sort_by_key(|peak| peak.of == PeakOf::Allocated);
    }
    peaks
}

/// How many events come before the first time at which the most was reserved, and the most was allocated.
fn highest(snapshot: &Snapshot, device: i64, trace: &[Event]) -> [usize; 2] {
    let mut memory = Memory::at_end(snapshot, device);
    let mut found = [(memory.reserved, trace.len()), (memory.allocated, trace.len())];
    for (number, event) in trace.iter().enumerate().rev() {
        memory.undo(event);
        for (best, now) in found.iter_mut().zip([memory.reserved, memory.allocated]) {
            if now >= best.0 {
                *best = (now, number);
            }
        }
    }
    let [(_, mut reserved), (_, allocated)] = found;
    // Memory is obtained for a request, which follows.
    while reserved > 0 && trace.get(reserved).is_some_and(|event| event.action.starts_with("segment_")) {
        reserved += 1;
    }
    if reserved > 0 && trace.get(reserved).is_some_and(|event| event.action == "alloc") {
        reserved += 1;
    }
    [reserved, allocated]
}

fn peak(memory: &Memory, snapshot: &Snapshot, (device, of): (i64, PeakOf), event: usize, most: usize) -> Peak {
    let trace = snapshot.device_traces.iter().zip(0..).find(|(_, number)| *number == device);
    let trace: &[Event] = trace.map_or(&[], |(trace, _)| trace);
    let time = |event: &Event| event.time_us;
    // The state is that behind the event before.
    let now = event.checked_sub(1).and_then(|last| time(&trace[last])).or_else(|| time(trace.first()?));
    let mut peak = Peak {
        device,
        of,
        event: event as u64,
        before_end_us: trace.last().and_then(time).zip(now).map(|(end, now)| end.saturating_sub(now)),
        reserved: memory.reserved,
        allocated: memory.allocated,
        pending: memory.pending,
        releasable: 0,
        in_holes: 0,
        largest_hole: 0,
        largest: largest(&live(memory, snapshot, device, trace, event), most),
    };
    for (&address, part) in &memory.parts {
        for hole in memory.holes(address, part, false) {
            if hole.whole {
                peak.releasable = peak.releasable.saturating_add(hole.bytes);
            } else {
                peak.in_holes = peak.in_holes.saturating_add(hole.bytes);
                peak.largest_hole = peak.largest_hole.max(hole.bytes);
            }
        }
    }
    peak
}

/// The blocks of a time, with where they were allocated.
fn live<'s>(memory: &Memory, snapshot: &'s Snapshot, device: i64, trace: &'s [Event], end: usize) -> Vec<Live<'s>> {
    let mut wanted: HashMap<u64, Option<usize>> = memory.used().map(|(address, ..)| (address, None)).collect();
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
    // What was allocated since is another block.
    for event in trace[end..].iter().filter(|event| event.action == "alloc") {
        event.addr.and_then(|address| own.remove(&address));
    }
    let found = |(address, size, is_pending)| {
        let number = wanted.get(&address).copied().flatten();
        let event = number.map(|number| &trace[number]);
        let age = |event: &Event| Some(now?.saturating_sub(event.time_us?));
        Live {
            stack: event.and_then(|event| event.frames.as_ref()).or_else(|| own.get(&address).copied()),
            size,
            is_pending,
            events: number.map(|number| (end - number) as u64),
            us: event.or(trace.first()).and_then(age),
        }
    };
    memory.used().map(found).collect()
}

/// The stacks of the blocks at the end. One that was there all the time is known by no event.
fn own_stacks(snapshot: &Snapshot, device: i64) -> HashMap<u64, &cachalot_snapshot::Stack> {
    let own = snapshot.segments.iter().filter(|segment| segment.device == device).flat_map(super::blocks);
    own.filter_map(|(address, block)| Some((address, block.frames.as_ref().filter(|stack| !stack.is_empty())?)))
        .collect()
}
