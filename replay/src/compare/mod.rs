//! Compares policies and configurations on the same programs, side by side.
//!
//! A record stands for the program behind it: requests with their requested bytes, frees, streams
//! and captured graphs. The recorded addresses and segments do not count. A freed block that other
//! streams still use is complete when the record says so, because the device's work takes the same
//! time under every allocator.

mod costs;
mod curve;
mod measure;
mod policy;

pub use costs::{load_costs, parse_costs};
pub use curve::Curve;
pub use measure::Figures;
pub use policy::{Configuration, Contender, WrongConfiguration, contenders, policy_named};

use crate::program::{LeftOut, Settings};
use crate::replay::{self, ReplayError};
use crate::trace::{BadInput, Trace};
use cachalot_core::simulated::DriverCosts;
use measure::{MeasuredRun, measure};
use rayon::prelude::*;

/// Memory of the simulated device in bytes, as of an H200. A higher limit and a size factor above 1
/// enlarge the device.
pub const DEVICE_BYTES: u64 = 139 << 30;

/// Options of a comparison.
#[derive(Debug)]
pub struct CompareOptions {
    /// The compared contenders.
    pub contenders: Vec<Contender>,
    /// The memory limit in bytes. Replaces the record's own limit.
    pub limit: Option<u64>,
    /// The memory limit as a multiple of the program's peak live bytes. Replaces every limit in
    /// bytes.
    pub limit_factor: Option<f64>,
    /// Recorded calls to leave out.
    pub left_out: LeftOut,
    /// Factor for every size of the program.
    pub size_factor: f64,
    /// Number of passes of each program on one allocator, at least 1.
    pub passes: u32,
    /// Number of timed runs. The comparison reports the median.
    pub repeat: u32,
    /// Costs of the driver's calls.
    pub costs: DriverCosts,
    /// Whether the device does all work at once, so that every polled event is complete. Otherwise
    /// work on freed memory ends at the recorded completion, or never.
    pub work_done_at_once: bool,
    /// The time of each of two calls of `maintain` between two passes, in microseconds; 0 for no
    /// call.
    pub upkeep_us: u64,
}

/// Result of a program with each contender.
#[derive(Debug)]
pub struct Comparison {
    /// Number of calls of the program in a pass.
    pub operations: usize,
    /// The memory limit in bytes. `None` without a limit.
    pub limit: Option<u64>,
    /// The requested bytes of all live blocks, over the passes of the program.
    pub live: Curve,
    /// The figures in the order of the contenders, or the call that an allocator refused and the
    /// reason.
    pub figures: Vec<Result<Figures, BadInput>>,
}

/// Runs the program of a record with every contender, several at once.
///
/// # Errors
/// A record without a program that can be run.
pub fn compare(trace: &Trace, options: &CompareOptions) -> Result<Comparison, ReplayError> {
    let program = replay::program(trace)?.without(options.left_out).scaled(options.size_factor);
    let passes = options.passes.max(1);
    let factor = options.limit_factor.map(|factor| program.limit_of(factor));
    let limit = factor.or(options.limit).or(trace.limit_bytes());
    let announced = program.announced();
    let measured = |contender: &Contender| {
        let task = MeasuredRun {
            program: if contender.config.planned().is_some() { &announced } else { &program },
            settings: Settings { config: contender.config.clone(), limit },
            // A larger program on a larger device: what does not fit would say nothing of the
            // policy.
            capacity: ((DEVICE_BYTES as f64 * options.size_factor.max(1.0)) as u64).max(limit.unwrap_or(0)),
            costs: &options.costs,
            passes,
            repeat: options.repeat,
            work_done_at_once: options.work_done_at_once,
            upkeep_us: options.upkeep_us,
        };
        measure(&task).map_err(|(at, error)| {
            let Contender { policy, text, .. } = contender;
            let what = format!("{policy} with `{text}` refused call {} of the program: {error}", at + 1);
            BadInput::whole(&trace.file, what)
        })
    };
    let figures = options.contenders.par_iter().map(measured).collect();
    Ok(Comparison { operations: program.operations.len(), limit, live: Curve::live(&program, passes), figures })
}
