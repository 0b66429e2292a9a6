//! The answer in one sentence: how much reserved memory is free but stuck, and which setting would
//! have held less.

use super::{Part, Space};
use crate::program::{Program, Run, Settings, allocator};
use crate::replay;
use crate::trace::Trace;
use cachalot_core::simulated::{DriverCosts, SimulatedDevice};
use cachalot_core::{BlockState, Config, SnapshotSegment};
use cachalot_snapshot::Snapshot;
use cachalot_tuner::Realm;
use cachalot_tuner::judge::{DEVICE_BYTES, cost};
use rayon::prelude::*;
use serde::Serialize;

/// Largest number of operations for an answer, over all candidates. The bound limits work, not time, so equal
/// files have equal answers.
const MOST_OPERATIONS: usize = 8_000_000;

/// Largest number of events in a record with an answer. Each operation is at least two events, and runs at
/// least three times.
pub const MOST_EVENTS: usize = MOST_OPERATIONS / 2;

/// A setting is worth a sentence if the peak falls below this part of the present peak.
const WORTH: f64 = 0.98;

/// Free memory of a device at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Stuck {
    /// Bytes reserved from the device.
    pub reserved_bytes: u64,
    /// Free bytes in segments with blocks in use, which cannot be released.
    pub hole_bytes: u64,
    /// Number of segments with blocks in use and free bytes.
    pub hole_segments: u64,
    /// Bytes of wholly free segments. When the peak was reached, no free block was of use to the
    /// request.
    pub idle_bytes: u64,
    /// Number of wholly free segments.
    pub idle_segments: u64,
}

/// A configuration with less memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Better {
    /// The configuration string.
    pub config: String,
    /// Peak of reserved memory in bytes.
    pub reserved_bytes: u64,
    /// Peak of reserved memory with the present settings, in bytes.
    pub instead_of_bytes: u64,
    /// Number of requests that run out of memory.
    pub ooms: u64,
    /// Number of requests that run out of memory with the present settings.
    pub instead_of_ooms: u64,
}

/// The answer of a record about the record's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// Memory at the peak of reserved memory.
    pub peak: Stuck,
    /// The setting with the lowest peak, if the gain is 2 % or more.
    pub better: Option<Better>,
}

impl Stuck {
    /// Adds a segment of which `free` bytes are free.
    fn add(&mut self, bytes: u64, free: u64) {
        self.reserved_bytes += bytes;
        if free == bytes {
            self.idle_bytes += bytes;
            self.idle_segments += 1;
        } else if free > 0 {
            self.hole_bytes += free;
            self.hole_segments += 1;
        }
    }

    fn of(segments: &[SnapshotSegment]) -> Self {
        let mut stuck = Self::default();
        for segment in segments {
            let free = segment.blocks.iter().filter(|block| block.state == BlockState::Inactive);
            stuck.add(segment.total_size, free.map(|block| block.size).sum());
        }
        stuck
    }
}

/// Returns the free memory at the end of a snapshot, on all devices.
pub fn stuck(snapshot: &Snapshot) -> Stuck {
    let mut stuck = Stuck::default();
    for segment in &snapshot.segments {
        let free = segment.blocks.iter().filter(|block| &*block.state == "inactive");
        let free: u64 = free.map(|block| block.size).sum();
        // Parked memory is not reserved, and a park gives up what is free.
        let reserved = segment.total_size.saturating_sub(segment.parked_size.unwrap_or(0));
        if reserved > 0 {
            stuck.add(reserved, free.min(reserved));
        }
    }
    stuck
}

/// Returns the answer of a record, from a replay with the recorded settings. `None` if the history is too
/// long or cannot be replayed.
pub fn answer_of(trace: &Trace) -> Option<Answer> {
    if trace.events.len() > MOST_EVENTS {
        return None;
    }
    let baseline = Config::parse(trace.config()).ok()?;
    let program = replay::program(trace).ok()?;
    let part = Part { name: trace.name.clone(), program, limit: trace.limit_bytes() };
    answer(&part, &baseline, &DriverCosts::h200())
}

/// Runs the program with its present settings and with the first candidates of a search. Returns the best.
/// `None` if the program is too long or cannot be run with its settings.
///
/// A program of more than 8 million operations over all candidates is only run with
/// `expandable_segments:True`, and a still longer program not at all.
pub fn answer(part: &Part, baseline: &Config, costs: &DriverCosts) -> Option<Answer> {
    let length = part.program.operations.len();
    let mut candidates =
        Space { realm: Realm::Torch, has_limit: part.limit.is_some(), has_virtual_memory: true }.first();
    if (candidates.len() + 2) * length > MOST_OPERATIONS {
        candidates.retain(|candidate| candidate.text() == super::EXPANDABLE);
    }
    if (candidates.len() + 2) * length > MOST_OPERATIONS {
        return None;
    }
    let never = || false;
    let present = cost(part, baseline, costs, &never).ok()?;
    let measured = |candidate: super::Candidate| {
        let cost = cost(part, &candidate.config()?, costs, &never).ok()?;
        Some((cost.ooms, cost.reserved_bytes, candidate.count(), candidate.text()))
    };
    let best = candidates.into_par_iter().filter_map(measured).min();
    let better = best.filter(|&(ooms, bytes, ..)| {
        ooms < present.ooms || (ooms == present.ooms && (bytes as f64) < present.reserved_bytes as f64 * WORTH)
    });
    let better = better.map(|(ooms, reserved_bytes, _, config)| Better {
        config,
        reserved_bytes,
        instead_of_bytes: present.reserved_bytes,
        ooms,
        instead_of_ooms: present.ooms,
    });
    Some(Answer { peak: at_peak(part, baseline)?, better })
}

/// Returns the memory when the most was reserved, just after the request.
fn at_peak(part: &Part, config: &Config) -> Option<Stuck> {
    let run = || {
        let device = SimulatedDevice::new(DEVICE_BYTES.max(part.limit.unwrap_or(0)));
        device.set_patience(0);
        let settings = Settings { config: config.clone(), limit: part.limit };
        allocator(device, &settings).map(Run::new).ok()
    };
    let Program { operations, .. } = &part.program;
    let (mut whole, mut peak, mut end) = (run()?, 0, 0);
    for (at, &operation) in operations.iter().enumerate() {
        whole.perform(operation).ok()?;
        let used = whole.device().used();
        if used > peak {
            (peak, end) = (used, at + 1);
        }
    }
    let mut again = run()?;
    again.perform_all(&operations[..end]).ok()?;
    Some(Stuck::of(&again.allocator.snapshot()))
}

#[cfg(test)]
mod tests {
    use super::{Stuck, stuck};
    use cachalot_snapshot::{Block, Segment, Snapshot};

    #[test]
    fn parked_memory_is_not_reserved() {
        let block = |size: u64, state: &str| Block { size, state: state.to_owned().into(), ..Block::default() };
        let segment = |parked: Option<u64>, blocks: Vec<Block>| Segment {
            total_size: blocks.iter().map(|block| block.size).sum(),
            parked_size: parked,
            blocks,
            ..Segment::default()
        };
        let segments = vec![
            segment(None, vec![block(6, "active_allocated"), block(4, "inactive")]),
            segment(Some(10), vec![block(7, "active_allocated"), block(3, "inactive")]),
            segment(Some(8), vec![block(10, "active_allocated")]),
        ];
        let found = stuck(&Snapshot { segments, ..Snapshot::default() });
        assert_eq!(found, Stuck { reserved_bytes: 12, hole_bytes: 4, hole_segments: 1, ..Stuck::default() });
    }
}
