//! One program on one allocator: what it came to.

use super::costs::Costs;
use super::curve::Curve;
use super::meter::MeteredDevice;
use crate::program::{Program, Run, Settings, Simulation, Subject, allocator, nanoseconds_per_call};
use cachalot_core::simulated::Call;
use cachalot_core::{BlockState, Error, PlannedReport, SnapshotSegment};
use std::sync::Arc;

/// What to run, and how.
#[derive(Debug)]
pub(super) struct Task<'a> {
    pub(super) program: &'a Program,
    pub(super) settings: Settings,
    /// The device's memory in bytes.
    pub(super) capacity: u64,
    pub(super) costs: &'a Arc<Costs>,
    /// How many timed runs there are.
    pub(super) repeat: u32,
}

/// The number of the operation that was refused for another reason than lack of memory, with that reason.
pub(super) type Refusal = (usize, Error);

/// What a run came to. Everything but the time of a call is of the first run, on an empty allocator. Of a program for
/// which a plan is made, the bytes and the time are those since that is in force.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Bytes that the program asked for and held, at the highest.
    pub peak_live_bytes: u64,
    /// Bytes held from the device, at the highest.
    pub peak_reserved_bytes: u64,
    /// How often each of [`Call::ALL`] was made.
    pub device_calls: [u64; Call::ALL.len()],
    /// What those calls would cost on a device, in microseconds.
    pub driver_us: f64,
    /// The median time of an operation in nanoseconds, over the later runs.
    pub ns_per_op: f64,
    /// Requests that ran out of memory.
    pub ooms: u64,
    /// The largest of those, in bytes.
    pub largest_failed_bytes: u64,
    /// `1 − largest free block / all free blocks`, when the most was held from the device; 0 if nothing was free then.
    pub fragmentation: f64,
    /// Bytes held from the device, over the program.
    pub reserved: Curve,
    /// How the planned policy has done, if that is the policy.
    pub planned: Option<PlannedReport>,
}

impl Figures {
    /// Peak live over peak reserved.
    pub fn utilisation(&self) -> f64 {
        if self.peak_reserved_bytes == 0 {
            return 0.0;
        }
        self.peak_live_bytes as f64 / self.peak_reserved_bytes as f64
    }
}

/// Runs a program on an allocator with the task's settings.
pub(super) fn measure(task: &Task<'_>) -> Result<Figures, Refusal> {
    let device = MeteredDevice::new(task.capacity, Arc::clone(task.costs));
    let mut run = Run::new(allocator(device, &task.settings).map_err(|error| (0, error))?);
    let operations = task.program.operations.len();
    let mut reserved = Curve::new(operations);
    let (mut at, mut peak, mut fragmentation) = (0, 0, 0.0);
    let plan_begins = task.program.plan_begins();
    let peak_live_bytes = run.perform_watching(task.program, |run, _| {
        reserved.reach(at, run.device().used());
        if plan_begins == Some(at) {
            Subject::device(&run.allocator).restart_peak();
            peak = 0;
        }
        at += 1;
        let reached = Subject::device(&run.allocator).peak();
        if reached > peak {
            peak = reached;
            fragmentation = fragmentation_of(&run.allocator.snapshot());
        }
    })?;
    let device = Subject::device(&run.allocator);
    let mut figures = Figures {
        peak_live_bytes,
        peak_reserved_bytes: peak,
        device_calls: Call::ALL.map(|call| device.simulated().calls(call)),
        driver_us: device.us(),
        ns_per_op: 0.0,
        ooms: run.ooms,
        largest_failed_bytes: run.largest_failed,
        fragmentation,
        reserved,
        planned: run.allocator.planned(),
    };
    figures.ns_per_op =
        nanoseconds_per_call(&mut run, task.program, task.repeat).map_err(|error| (operations, error))?;
    Ok(figures)
}

fn fragmentation_of(segments: &[SnapshotSegment]) -> f64 {
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let free = blocks.filter(|block| block.state == BlockState::Inactive).map(|block| block.size);
    let (all, largest) = free.fold((0, 0), |(all, largest): (u64, u64), size| (all + size, largest.max(size)));
    if all == 0 { 0.0 } else { 1.0 - largest as f64 / all as f64 }
}
