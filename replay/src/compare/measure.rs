//! Measures one program on one allocator.

use super::curve::Curve;
use crate::program::{DriverTime, OnDevice, Position, Program, Refusal, Run, Settings, Subject, nanoseconds_per_call};
use cachalot_core::simulated::{Call, DriverCosts, SimulatedDevice};
use cachalot_core::{BlockState, PlannedReport, SnapshotSegment};

/// A program, and the settings of the run.
#[derive(Debug)]
pub(super) struct MeasuredRun<'a> {
    pub(super) program: &'a Program,
    pub(super) settings: Settings,
    /// The device's memory in bytes.
    pub(super) capacity: u64,
    pub(super) costs: &'a DriverCosts,
    /// Number of passes on one allocator before the timed runs.
    pub(super) passes: u32,
    /// Number of timed runs.
    pub(super) repeat: u32,
    /// Whether the device does all work at once.
    pub(super) work_done_at_once: bool,
    /// Time of each of two calls of upkeep between two passes, in microseconds; 0 for no call.
    pub(super) upkeep_us: u64,
}

/// The figures of a program. All figures but the time of a call cover all passes. The first pass
/// starts on an empty allocator, and the calls of the driver that make again what the program held
/// before its record do not count. With a plan, the bytes and the time count from the start of the
/// plan.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Peak of the requested bytes of all live blocks.
    pub peak_live_bytes: u64,
    /// Peak of the bytes held from the device.
    pub peak_reserved_bytes: u64,
    /// Number of calls, for each of [`Call::ALL`].
    pub device_calls: [u64; Call::ALL.len()],
    /// Cost of the calls on a device in nanoseconds, for each of [`Call::ALL`].
    pub driver_ns: [u64; Call::ALL.len()],
    /// Cost of the calls by pass, and for the most expensive request.
    pub driver: DriverTime,
    /// Median time of an operation in nanoseconds, over the timed runs.
    pub ns_per_op: f64,
    /// Number of requests that ran out of memory.
    pub ooms: u64,
    /// Size of the largest failed request in bytes.
    pub largest_failed_bytes: u64,
    /// `1 − largest free block / all free blocks` at the peak of the held bytes; 0 without free
    /// blocks.
    pub fragmentation: f64,
    /// Bytes held from the device, over the program.
    pub reserved: Curve,
    /// Report of the planned policy. `None` for another policy.
    pub planned: Option<PlannedReport>,
}

impl Figures {
    /// Returns peak live bytes over peak reserved bytes.
    pub fn utilisation(&self) -> f64 {
        if self.peak_reserved_bytes == 0 {
            return 0.0;
        }
        self.peak_live_bytes as f64 / self.peak_reserved_bytes as f64
    }

    /// Returns the cost of all calls on a device, in microseconds.
    pub fn driver_us(&self) -> f64 {
        self.driver_ns.iter().sum::<u64>() as f64 / 1000.0
    }
}

/// Runs a program on an allocator with the task's settings.
pub(super) fn measure(task: &MeasuredRun<'_>) -> Result<Figures, Refusal> {
    let mut device = SimulatedDevice::new(task.capacity).with_costs(task.costs.clone());
    if task.work_done_at_once {
        device = device.with_work_done_at_once();
    }
    // For `spill`, which says how much of it serves.
    device.set_mappable_host_memory(task.capacity);
    // Waiting for other threads is useless: there are none.
    device.set_patience(0);
    let mut run = Run::new(OnDevice::create(device, &task.settings).map_err(|error| (0, error))?);
    run.upkeep_us = task.upkeep_us;
    let operations = task.program.operations.len();
    let mut reserved = Curve::new(operations * task.passes as usize);
    let (mut peak, mut fragmentation) = (0, 0.0);
    // What made the memory from before the record again is no cost of the record.
    let (mut start_calls, mut start_ns) = ([0; Call::ALL.len()], [0; Call::ALL.len()]);
    let plan_begins = task.program.plan_begins();
    let passes = run.perform_passes(task.program, task.passes, |run, Position { pass, operation }| {
        reserved.reach(pass as usize * operations + operation, run.device().used());
        if pass == 0 && plan_begins == Some(operation) {
            run.device().reset_peak_used();
            peak = 0;
        }
        if pass == 0 && operation + 1 == task.program.start {
            start_calls = Call::ALL.map(|call| run.device().calls(call));
            start_ns = Call::ALL.map(|call| run.device().driver_ns_of(call));
        }
        let reached = run.device().peak_used();
        if reached > peak {
            peak = reached;
            fragmentation = fragmentation_of(&run.allocator.snapshot());
        }
    })?;
    let device = run.device();
    let less = |[all, start]: [u64; 2]| all.saturating_sub(start);
    let mut driver = passes.driver;
    if let Some(first) = driver.passes_ns.first_mut() {
        *first = less([*first, start_ns.iter().sum()]);
    }
    let mut figures = Figures {
        peak_live_bytes: passes.peak_live_bytes,
        peak_reserved_bytes: peak,
        device_calls: std::array::from_fn(|at| less([device.calls(Call::ALL[at]), start_calls[at]])),
        driver_ns: std::array::from_fn(|at| less([device.driver_ns_of(Call::ALL[at]), start_ns[at]])),
        driver,
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
