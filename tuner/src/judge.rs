//! Runs a program with a configuration, and finds its cost: the peak of reserved memory, the driver
//! time, and the failed requests.

use crate::program::{Program, Run, Settings, Subject};
use cachalot_core::Config;
use cachalot_core::simulated::{DriverCosts, SimulatedDevice};

/// The memory of the simulated device, unless the limit is higher. It is that of an H200.
pub const DEVICE_BYTES: u64 = 139 << 30;

/// The allocator of the unit tests.
#[cfg(test)]
pub(crate) type OnDevice =
    cachalot_core::Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, cachalot_core::Growable>;

/// The number of operations after which the clock is read again.
const BETWEEN_LOOKS: usize = 1024;

/// The cost of a program with a configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Cost {
    /// The peak of the bytes held from the device.
    pub reserved_bytes: u64,
    /// The estimated time of all driver calls, in nanoseconds.
    pub driver_ns: u64,
    /// The number of requests that failed because there was no memory.
    pub ooms: u64,
    /// The number of all requests.
    pub requests: u64,
}

/// The driver time at the start of a program that does not count for the budget, in nanoseconds: 10
/// ms.
const START_NS: u64 = 10_000_000;

impl Cost {
    /// Returns the average driver time of a request in microseconds, without the first 10 ms of
    /// driver time. A short program spends most of its driver time at the start.
    pub fn us_per_request_after_start(&self) -> f64 {
        self.driver_ns.saturating_sub(START_NS) as f64 / 1000.0 / self.requests.max(1) as f64
    }

    /// Returns the average driver time of a request in microseconds.
    pub fn us_per_request(&self) -> f64 {
        self.driver_ns as f64 / 1000.0 / self.requests.max(1) as f64
    }
}

/// The reason why a run has no cost.
#[derive(Debug, Clone, PartialEq)]
pub enum Unfinished {
    /// The run was stopped, because its time was over or the search was abandoned.
    Stopped,
    /// The allocator refused operation number `.0`, and not because there was no memory.
    Refused(usize, String),
}

/// A program with its memory limit.
#[derive(Debug, Clone, Default)]
pub struct Part {
    /// The name of the record.
    pub name: String,
    /// The calls.
    pub program: Program,
    /// The memory limit in bytes, or `None` if there is no limit.
    pub limit: Option<u64>,
    /// The configuration against which the gains of this program are measured. `None` means the
    /// baseline of the search.
    pub baseline: Option<Config>,
    /// The number of the process. Programs of the same process are never divided.
    pub process: Option<usize>,
}

/// [`cost`] for one type of allocator. A search gets this function from its caller, so that a
/// program that has an allocator anyway, such as a library with `tune:auto`, tries settings on the
/// same type. The allocator is then compiled only once.
pub type Judge = fn(&Part, &Config, &DriverCosts, &(dyn Fn() -> bool + Sync)) -> Result<Cost, Unfinished>;

/// Runs a program once, on an empty allocator of the type `A`. Calls `stop` now and then.
///
/// # Errors
/// [`Unfinished`]: `stop` returned true, or the allocator refused a call.
pub fn cost<A: Subject>(
    part: &Part,
    config: &Config,
    costs: &DriverCosts,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Cost, Unfinished> {
    let refused = |at: usize| move |error: cachalot_core::Error| Unfinished::Refused(at, error.to_string());
    let device = SimulatedDevice::new(DEVICE_BYTES.max(part.limit.unwrap_or(0))).with_costs(costs.clone());
    // No other thread frees memory, so it is useless to wait for one.
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
