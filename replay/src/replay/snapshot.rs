//! Replays a program up to a snapshot at the end.

use super::{Options, ROOMY_DEVICE, ReplayError, follow, placed, recorded_settings, refused, settings};
use crate::program::{DEVICE, OnDevice, Run, Subject};
use crate::trace::Trace;
use cachalot_core::{Config, Error, PoolId, SnapshotSegment, TraceEntry};

/// Number of calls between two readings of the allocator's trace, and room in the trace per call. A
/// call may release every segment.
const CALLS_PER_READING: usize = 1 << 12;
const EVENTS_PER_CALL: usize = 1 << 6;

/// The end state of a program, and all events.
#[derive(Debug, Clone)]
pub struct End {
    /// The configuration of the run.
    pub config: Config,
    /// The segments with their blocks.
    pub segments: Vec<SnapshotSegment>,
    /// The events from the start of the program. The times come from the simulated device, and only
    /// their order has a meaning.
    pub events: Vec<TraceEntry>,
    /// The pool of each event.
    pub pools: Vec<PoolId>,
}

/// Replays a record up to its end. Other settings than the record's own lead to other addresses.
///
/// # Errors
/// A record that cannot be used, or a call that the allocator refused.
pub fn end(trace: &Trace, options: &Options) -> Result<End, ReplayError> {
    let recorded = recorded_settings(trace)?;
    let mut follower = follow(trace, &recorded)?;
    if options.config.is_none() && options.limit.is_none() {
        let segments = follower.run.allocator.snapshot();
        let events = std::mem::take(&mut follower.entries);
        let (operations, start) = (&follower.program.operations[follower.program.start..], &trace.start);
        let pools = placed::pools(&events, operations, start.as_ref().map_or(&[], |start| &start.segments));
        return Ok(End { config: recorded.config.clone(), segments, events, pools });
    }
    let settings = settings(trace, options)?;
    let program = std::mem::take(&mut follower.program);
    let refused = |error: Error| refused(trace, trace.events.len(), &error);
    let device = super::spilled::device(ROOMY_DEVICE);
    let mut run = Run::new(OnDevice::create(device, &settings).map_err(refused)?);
    let mut events = Vec::new();
    for calls in program.operations.chunks(CALLS_PER_READING) {
        run.allocator
            .trace(DEVICE)
            .and_then(|trace| trace.record(CALLS_PER_READING * EVENTS_PER_CALL))
            .map_err(refused)?;
        calls.iter().try_for_each(|&operation| run.perform(operation)).map_err(refused)?;
        run.allocator.trace(DEVICE).map_err(refused)?.for_each(|entry| events.push(*entry));
    }
    let pools = placed::pools(&events, &program.operations, &[]);
    Ok(End { config: settings.config, segments: run.allocator.snapshot(), events, pools })
}
