//! Comparing policies and configurations: the same programs on each, side by side.
//!
//! A record is taken for the program behind it: the requests with the bytes that were asked for, frees, streams, captured
//! graphs. Where its blocks lay and what was obtained for them does not count. A freed block that other streams still use is
//! theirs until the record says that it was complete: the device's work takes the same time whoever allocates.

mod costs;
mod curve;
mod measure;
mod meter;
mod policy;

pub use costs::{Costs, driver_name};
pub use curve::Curve;
pub use measure::Figures;
pub use meter::MeteredDevice;
pub use policy::{Configuration, Contender, contenders, policy_named};

use crate::program::{Operation, Settings};
use crate::replay::{self, ReplayError};
use crate::trace::{BadInput, Trace};
use measure::{Task, measure};
use rayon::prelude::*;
use std::sync::Arc;

/// The memory of the simulated device, unless a limit is higher: that of an H200.
pub const DEVICE_BYTES: u64 = 139 << 30;

/// How to compare.
#[derive(Debug)]
pub struct Options {
    /// What is compared.
    pub contenders: Vec<Contender>,
    /// The memory limit in bytes in the place of the record's own.
    pub limit: Option<u64>,
    /// Empty the cache where the recorded program did.
    pub empty_cache: bool,
    /// How many timed runs there are; the median is reported.
    pub repeat: u32,
    /// What the driver's calls cost.
    pub costs: Arc<Costs>,
}

/// What a program came to with each contender.
#[derive(Debug)]
pub struct Comparison {
    /// How many calls the program makes.
    pub operations: usize,
    /// The memory limit in bytes, if there was one.
    pub limit: Option<u64>,
    /// The bytes that the program asks for and holds, over its course.
    pub live: Curve,
    /// What came of it, in the order of the contenders; or where in the program and why an allocator refused a call.
    pub figures: Vec<Result<Figures, BadInput>>,
}

/// Runs the program of a record with every contender, several at once.
///
/// # Errors
/// Why the record is of no program that can be run.
pub fn compare(trace: &Trace, options: &Options) -> Result<Comparison, ReplayError> {
    let mut program = replay::program(trace)?;
    if !options.empty_cache {
        program.operations.retain(|&operation| operation != Operation::EmptyCache);
    }
    let limit = options.limit.or(trace.limit_bytes());
    let announced = program.announced();
    let measured = |contender: &Contender| {
        let task = Task {
            program: if contender.config.planned().is_some() { &announced } else { &program },
            settings: Settings { config: contender.config.clone(), limit },
            capacity: DEVICE_BYTES.max(limit.unwrap_or(0)),
            costs: &options.costs,
            repeat: options.repeat,
        };
        measure(&task).map_err(|(at, error)| {
            let Contender { policy, text, .. } = contender;
            let what = format!("{policy} with `{text}` refused call {} of the program: {error}", at + 1);
            BadInput::whole(&trace.file, what)
        })
    };
    let figures = options.contenders.par_iter().map(measured).collect();
    Ok(Comparison { operations: program.operations.len(), limit, live: Curve::live(&program), figures })
}
