//! Requests that failed: what there was when they did, and what would have been enough.

use super::lines;
use super::past::{Memory, Part};
use cachalot_snapshot::{Event, Snapshot};
use serde::Serialize;

/// A request that failed for want of memory, with the memory as it was then, in bytes. Blocks that were freed since count as what was
/// asked for, rounded up to 512; so free memory may be overstated by what was not split off them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failure {
    /// Its device.
    pub device: i64,
    /// The number of the event, from 0.
    pub event: u64,
    /// When, in microseconds since 1970.
    pub time_us: Option<i64>,
    /// Where in the program, as of a [`Group`](super::Group).
    pub stack: Vec<String>,
    /// The block that was wanted.
    pub wanted: u64,
    /// On which stream.
    pub stream: i64,
    /// What nobody used of the device.
    pub device_free: u64,
    /// What was held from it.
    pub reserved: u64,
    /// What the program held.
    pub allocated: u64,
    /// What it had freed, and other streams still used.
    pub pending: u64,
    /// What was free.
    pub cached: u64,
    /// The largest free block of the request's stream, outside of private pools.
    pub largest_free_here: u64,
    /// The largest of other streams and of private pools.
    pub largest_free_elsewhere: u64,
    /// The largest there would be on the stream if nothing were pending.
    pub largest_free_if_waited: u64,
    /// What there would be for a new segment if everything that is wholly free were given back.
    pub if_released: u64,
    /// What there would be on the stream if its free memory were in one piece, with what the device has left.
    pub if_in_one_piece: u64,
    /// What would have been enough, the least of it first: see [`Remedy`].
    pub remedies: Vec<Remedy>,
    /// What the program would have had to free or do without in any case, below the same limit.
    pub missing: u64,
}

/// What would have been enough for a request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Nothing: the device had enough, so a limit kept it from being used.
    RaiseLimit,
    /// To wait until other streams are done with blocks that were freed.
    WaitForStreams,
    /// To give back what was cached and wholly free.
    ReleaseCached,
    /// To have a free block of another stream or pool.
    ShareStreams,
    /// To have the stream's free memory in one piece, as expandable segments can.
    Defragment,
}

fn failure(device: i64, number: usize, event: &Event, memory: &Memory) -> Failure {
    let wanted = u64::try_from(event.size).unwrap_or(0);
    let device_free = event.device_free().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
    // If the device had enough, a limit forbade to take it, and what is given back makes room below that.
    let left = if device_free >= wanted { 0 } else { device_free };
    let here = |part: &Part| part.stream == event.stream && part.pool.is_none_or(|pool| pool == (0, 0));
    let mut failure = Failure {
        device,
        event: number as u64,
        time_us: event.time_us,
        stack: event.frames.as_ref().map(lines).unwrap_or_default(),
        wanted,
        stream: event.stream,
        device_free,
        reserved: memory.reserved,
        allocated: memory.allocated,
        pending: memory.pending,
        cached: 0,
        largest_free_here: 0,
        largest_free_elsewhere: 0,
        largest_free_if_waited: 0,
        if_released: left,
        if_in_one_piece: left,
        remedies: Vec::new(),
        missing: 0,
    };
    for (&address, part) in &memory.parts {
        for hole in memory.holes(address, part, false) {
            failure.cached = failure.cached.saturating_add(hole.bytes);
            if hole.whole {
                failure.if_released = failure.if_released.saturating_add(hole.bytes);
            }
            if here(part) {
                failure.largest_free_here = failure.largest_free_here.max(hole.bytes);
                failure.if_in_one_piece = failure.if_in_one_piece.saturating_add(hole.bytes);
            } else {
                failure.largest_free_elsewhere = failure.largest_free_elsewhere.max(hole.bytes);
            }
        }
        if here(part) {
            let largest = memory.holes(address, part, true).iter().map(|hole| hole.bytes).max().unwrap_or(0);
            failure.largest_free_if_waited = failure.largest_free_if_waited.max(largest);
        }
    }
    let ways = [
        (Remedy::RaiseLimit, failure.device_free),
        (Remedy::WaitForStreams, failure.largest_free_if_waited),
        (Remedy::ReleaseCached, failure.if_released),
        (Remedy::ShareStreams, failure.largest_free_elsewhere),
        (Remedy::Defragment, failure.if_in_one_piece),
    ];
    failure.remedies = ways.iter().filter(|(_, bytes)| *bytes >= wanted).map(|(remedy, _)| *remedy).collect();
    failure.missing = wanted.saturating_sub(left).saturating_sub(failure.cached).saturating_sub(failure.pending);
    failure
}

pub(super) fn failures(snapshot: &Snapshot) -> Vec<Failure> {
    let mut failures = Vec::new();
    for (device, trace) in (0..).zip(&snapshot.device_traces) {
        if !trace.iter().any(|event| event.action == "oom") {
            continue;
        }
        let mut memory = Memory::at_end(snapshot, device);
        let first = failures.len();
        for (number, event) in trace.iter().enumerate().rev() {
            if event.action == "oom" {
                failures.push(failure(device, number, event, &memory));
            }
            memory.undo(event);
        }
        failures[first..].reverse();
    }
    failures
}
