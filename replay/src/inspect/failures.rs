//! Failed requests: the memory at the failure, and the changes with which the request would have
//! succeeded.

use super::Since;
use super::groups::{self, By, Group, Lists};
use super::lines::StackLines;
use super::past::{self, PastMemory};
use super::peaks::{self, PeakOf, PeakPlace};
use cachalot_snapshot::{Event, Snapshot};
use serde::Serialize;
use std::collections::BTreeSet;

/// A request that failed for lack of memory, with the memory at the failure in bytes. A block freed
/// since then counts with the requested size, rounded up to 512, so free memory may be overstated
/// by unsplit remainders.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failure {
    /// The device.
    pub device: i64,
    /// The number of the event, from 0.
    pub event: u64,
    /// The time in microseconds since 1970.
    pub time_us: Option<i64>,
    /// The stack of the program.
    #[serde(flatten)]
    pub lines: StackLines,
    /// Size of the needed block.
    pub wanted: u64,
    /// The stream of the request.
    pub stream: i64,
    /// Free memory of the device, if the record has it.
    pub device_free: Option<u64>,
    /// Who refused the request.
    pub refused_by: RefusedBy,
    /// The places that held the most memory, the most bytes first.
    pub holders: Vec<Group>,
    /// Memory reserved from the device.
    pub reserved: u64,
    /// Memory of allocated blocks.
    pub allocated: u64,
    /// Memory freed by the program and still in use on other streams.
    pub pending: u64,
    /// Memory on the host, which is part of `reserved`. `None` if no earlier event says it.
    pub spilled: Option<u64>,
    /// Free memory in the cache.
    pub cached: u64,
    /// The part of it in private pools, as those of CUDA graphs. It serves no other pool, and is
    /// not released while the graphs live.
    pub cached_private: u64,
    /// The private pools with free memory.
    pub private_pools: BTreeSet<(u64, u64)>,
    /// The largest free block of the request's stream, outside of private pools.
    pub largest_free_here: u64,
    /// The largest free block on other streams, outside of private pools.
    pub largest_free_elsewhere: u64,
    /// The largest free block on the stream if no memory were pending.
    pub largest_free_if_waited: u64,
    /// Memory for a new segment after the release of all wholly free segments.
    pub if_released: u64,
    /// Free memory of the stream in one piece, plus free memory of the device.
    pub if_in_one_piece: u64,
    /// All changes with which the request would have succeeded, the smallest change first: see
    /// [`Remedy`].
    pub remedies: Vec<Remedy>,
    /// Memory that the program would have had to free or avoid in any case, under the same limit.
    pub missing: u64,
}

/// Who refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedBy {
    /// A limit of the process, such as that of `set_per_process_memory_fraction`: the device had
    /// enough free memory.
    Limit,
    /// The device, which had too little.
    Device,
    /// The record does not have the device's free memory.
    Unknown,
}

/// The places that held memory at a failure: lines of the program.
const HOLDERS: Lists = Lists { most: 3, by: By::Place { frames: 1 } };

/// Bytes above the free memory of any real device (32 TiB): a replayed record does not know its
/// device, and reports a huge amount.
const LARGEST_DEVICE: u64 = 1 << 45;

/// A change with which a failed request would have succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// A higher limit. The device had enough memory, and only the limit refused the request.
    RaiseLimit,
    /// Waiting for work of other streams on freed blocks.
    WaitForStreams,
    /// Releasing wholly free cached memory.
    ReleaseCached,
    /// Using a free block of another stream.
    ShareStreams,
    /// Joining the stream's free memory, as expandable segments can.
    Defragment,
}

fn failure(snapshot: &Snapshot, place: PeakPlace, event: &Event, memory: &PastMemory) -> Failure {
    let PeakPlace { device, event: number, .. } = place;
    let wanted = u64::try_from(event.size).unwrap_or(0);
    let device_free = event.device_free().and_then(|bytes| u64::try_from(bytes).ok());
    let device_free = device_free.filter(|&bytes| bytes < LARGEST_DEVICE);
    let refused_by = match device_free {
        Some(free) if free >= wanted => RefusedBy::Limit,
        Some(_) => RefusedBy::Device,
        None => RefusedBy::Unknown,
    };
    // Below a limit, only released memory makes room.
    let left = device_free.filter(|_| refused_by == RefusedBy::Device).unwrap_or(0);
    let mut failure = Failure {
        device,
        event: number as u64,
        time_us: event.time_us,
        lines: event.frames.as_ref().map(StackLines::of).unwrap_or_default(),
        wanted,
        stream: event.stream,
        device_free,
        refused_by,
        holders: groups::largest(&peaks::live(memory, snapshot, place), HOLDERS),
        reserved: memory.reserved(),
        allocated: memory.allocated(),
        pending: memory.pending(),
        spilled: peaks::spilled(snapshot, place),
        cached: 0,
        cached_private: 0,
        private_pools: BTreeSet::new(),
        largest_free_here: 0,
        largest_free_elsewhere: 0,
        largest_free_if_waited: 0,
        if_released: left,
        if_in_one_piece: left,
        remedies: Vec::new(),
        missing: 0,
    };
    for (&address, part) in memory.parts() {
        let free = memory.free(address, part, false);
        let all = free.idle.saturating_add(free.holes);
        failure.cached = failure.cached.saturating_add(all);
        if part.of.is_private() {
            // Only the pool's graphs use it, so it makes no room as long as they live.
            failure.cached_private = failure.cached_private.saturating_add(all);
            failure.private_pools.extend(part.of.pool.filter(|_| all > 0));
            continue;
        }
        failure.if_released = failure.if_released.saturating_add(free.idle);
        if part.of.stream == event.stream {
            failure.largest_free_here = failure.largest_free_here.max(free.largest);
            failure.if_in_one_piece = failure.if_in_one_piece.saturating_add(all);
            let largest = memory.free(address, part, true).largest;
            failure.largest_free_if_waited = failure.largest_free_if_waited.max(largest);
        } else {
            failure.largest_free_elsewhere = failure.largest_free_elsewhere.max(free.largest);
        }
    }
    let ways = [
        (Remedy::RaiseLimit, failure.device_free.unwrap_or(0)),
        (Remedy::WaitForStreams, failure.largest_free_if_waited),
        (Remedy::ReleaseCached, failure.if_released),
        (Remedy::ShareStreams, failure.largest_free_elsewhere),
        (Remedy::Defragment, failure.if_in_one_piece),
    ];
    failure.remedies = ways.iter().filter(|(_, bytes)| *bytes >= wanted).map(|(remedy, _)| *remedy).collect();
    let free = failure.cached - failure.cached_private;
    failure.missing = wanted.saturating_sub(left).saturating_sub(free).saturating_sub(failure.pending);
    failure
}

pub(super) fn failures(snapshot: &Snapshot, since: &Since) -> Vec<Failure> {
    let mut failures = Vec::new();
    for (device, trace) in (0..).zip(&snapshot.device_traces) {
        let from = since.of(device);
        if !trace.iter().skip(from).any(|event| event.action == "oom") {
            continue;
        }
        let (mut memory, undo) = (past::at_end(snapshot, device), past::Undo::of(snapshot, trace));
        let first = failures.len();
        for (number, event) in trace.iter().enumerate().skip(from).rev() {
            if event.action == "oom" {
                let place = PeakPlace { device, of: PeakOf::InUse, event: number, first: from };
                failures.push(failure(snapshot, place, event, &memory));
            }
            undo.undo(&mut memory, number, event);
        }
        failures[first..].reverse();
    }
    failures
}
