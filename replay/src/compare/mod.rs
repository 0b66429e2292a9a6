//! Comparing policies and configurations: the same programs on each, side by side.
//!
//! A record is taken for the program behind it: the requests with the bytes that were asked for, frees, streams, captured
//! graphs. Where its blocks lay and what was obtained for them does not count. A freed block that other streams still use is
//! theirs until the record says that it was complete: the device's work takes the same time whoever allocates.

mod costs;
mod curve;
mod measure;
mod policy;

pub use costs::{driver_name, load_costs, parse_costs};
pub use curve::Curve;
pub use measure::Figures;
pub use policy::{Configuration, Contender, contenders, policy_named};

use crate::program::{LeftOut, Settings};
use crate::replay::{self, ReplayError};
use crate::trace::{BadInput, Trace};
use cachalot_core::simulated::DriverCosts;
use measure::{Task, measure};
use rayon::prelude::*;

/// The memory of the simulated device, unless a limit is higher or the sizes are multiplied: that of an H200.
pub const DEVICE_BYTES: u64 = 139 << 30;

/// How to compare.
#[derive(Debug)]
pub struct Options {
    /// What is compared.
    pub contenders: Vec<Contender>,
    /// The memory limit in bytes in the place of the record's own.
    pub limit: Option<u64>,
    /// The memory limit as a multiple of the program's peak live bytes, in the place of any other.
    pub limit_factor: Option<f64>,
    /// The recorded calls that are left out.
    pub left_out: LeftOut,
    /// What every size of the program is multiplied by.
    pub size_factor: f64,
    /// How often each program runs on the same allocator; at least once.
    pub passes: u32,
    /// How many timed runs there are; the median is reported.
    pub repeat: u32,
    /// What the driver's calls cost.
    pub costs: DriverCosts,
    /// Whether the device does all work at once, so that every event is complete when it is asked for. Else work on memory
    /// that is freed is done where the record says so, or never.
    pub work_done_at_once: bool,
    /// The time of each of two calls of `maintain` between two passes, in microseconds; 0 for no call.
    pub upkeep_us: u64,
}

/// What a program came to with each contender.
#[derive(Debug)]
pub struct Comparison {
    /// How many calls the program makes in a pass.
    pub operations: usize,
    /// The memory limit in bytes, if there was one.
    pub limit: Option<u64>,
    /// The bytes that the program asks for and holds, over its passes.
    pub live: Curve,
    /// What came of it, in the order of the contenders; or where in the program and why an allocator refused a call.
    pub figures: Vec<Result<Figures, BadInput>>,
}

/// Runs the program of a record with every contender, several at once.
///
/// # Errors
/// Why the record is of no program that can be run.
pub fn compare(trace: &Trace, options: &Options) -> Result<Comparison, ReplayError> {
    let program = replay::program(trace)?.without(options.left_out).scaled(options.size_factor);
    let passes = options.passes.max(1);
    let factor = options.limit_factor.map(|factor| program.limit_of(factor));
    let limit = factor.or(options.limit).or(trace.limit_bytes());
    let announced = program.announced();
    let measured = |contender: &Contender| {
        let task = Task {
            program: if contender.config.planned().is_some() { &announced } else { &program },
            settings: Settings { config: contender.config.clone(), limit },
            // A larger program on a larger device: what does not fit would say nothing of the policy.
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
