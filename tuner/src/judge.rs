//! Runs a program with a configuration: peak of reserved memory, driver time, failed requests.

use crate::program::{Program, Run, Settings, Subject};
use cachalot_core::Config;
use cachalot_core::simulated::{DriverCosts, SimulatedDevice};

/// The memory of the simulated device, unless the limit is higher: the memory of an H200.
pub const DEVICE_BYTES: u64 = 139 << 30;

/// The allocator of the unit tests.
#[cfg(test)]
pub(crate) type OnDevice =
    cachalot_core::Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, cachalot_core::Growable>;

/// Number of operations between two looks at the clock.
const BETWEEN_LOOKS: usize = 1024;

/// Cost of a program with a configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Cost {
    /// Peak of the bytes held from the device.
    pub reserved_bytes: u64,
    /// Estimated time of all driver calls, in nanoseconds.
    pub driver_ns: u64,
    /// Number of failed requests, for lack of memory.
    pub ooms: u64,
    /// Number of all requests.
    pub requests: u64,
}

/// Driver time of a program's start excluded from the budget, in nanoseconds: 10 ms.
const START_NS: u64 = 10_000_000;

impl Cost {
    /// Returns the driver time of a request in microseconds, on average, beyond the first 10 ms of
    /// the program. A short program spends most of its driver time at the start.
    pub fn us_per_request_after_start(&self) -> f64 {
        self.driver_ns.saturating_sub(START_NS) as f64 / 1000.0 / self.requests.max(1) as f64
    }

    /// Returns the driver time of a request in microseconds, on average.
    pub fn us_per_request(&self) -> f64 {
        self.driver_ns as f64 / 1000.0 / self.requests.max(1) as f64
    }
}

/// Reason for a run without a cost.
#[derive(Debug, Clone, PartialEq)]
pub enum Unfinished {
    /// The time was over.
    Stopped,
    /// The allocator refused operation number `.0`, for another reason than lack of memory.
    Refused(usize, String),
}

/// A program with its memory limit.
#[derive(Debug, Clone, Default)]
pub struct Part {
    /// Name of the record.
    pub name: String,
    /// The calls.
    pub program: Program,
    /// The memory limit in bytes. `None` without a limit.
    pub limit: Option<u64>,
    /// The configuration that gains of this program are measured against. `None` for the search's
    /// baseline.
    pub baseline: Option<Config>,
    /// The number of the process. Programs of one process stay together in a division.
    pub process: Option<usize>,
}

/// [`cost`] on one type of allocator. A search gets the function from its caller: a program that
/// has an allocator anyway, such as a library with `tune:auto`, tries settings on the same type,
/// and the allocator is compiled once and not twice.
pub type Judge = fn(&Part, &Config, &DriverCosts, &(dyn Fn() -> bool + Sync)) -> Result<Cost, Unfinished>;

/// Runs a program once, on an empty allocator of type `A`. Asks `stop` now and then.
///
/// # Errors
/// `stop` returned true, or the allocator refused a call.
pub fn cost<A: Subject>(
    part: &Part,
    config: &Config,
    costs: &DriverCosts,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Cost, Unfinished> {
    let refused = |at: usize| move |error: cachalot_core::Error| Unfinished::Refused(at, error.to_string());
    let device = SimulatedDevice::new(DEVICE_BYTES.max(part.limit.unwrap_or(0))).with_costs(costs.clone());
    // No other thread frees memory, so a wait for one is useless.
    device.set_patience(0);
    let settings = Settings { config: config.clone(), limit: part.limit };
    let mut run: Run<A> = Run::new(A::create(device, &settings).map_err(refused(0))?);
    for (chunk, operations) in part.program.operations.chunks(BETWEEN_LOOKS).enumerate() {
        if stop() {
            return Err(Unfinished::Stopped);
        }
        for (at, &operation) in operations.iter().enumerate() {
            run.perform(operation).map_err(refused(chunk * BETWEEN_LOOKS + at))?;
        }
    }
    let device = run.device();
    let requests = part.program.operations.iter().filter(|operation| operation.is_request()).count();
    Ok(Cost {
        reserved_bytes: device.peak_used(),
        driver_ns: device.driver_ns(),
        ooms: run.ooms,
        requests: requests as u64,
    })
}
