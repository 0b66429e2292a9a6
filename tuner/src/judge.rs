//! Runs a program with a configuration, and finds its cost: the peak of reserved memory, the driver
//! time, and the failed requests.

use crate::program::{Operation, Program, Run, Settings, Subject};
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
    /// The part of `driver_ns` that the start of the program took: see [`Program::start`].
    pub start_ns: u64,
    /// The part of `requests` that the start of the program made.
    pub start_requests: u64,
}

/// The driver time at the start of a whole program that does not count for the budget, in
/// nanoseconds: 10 ms.
const START_NS: u64 = 10_000_000;

impl Cost {
    /// Returns the average driver time of a request in microseconds, without the start. A short
    /// program spends most of its driver time at the start: of a whole program, 10 ms are left out;
    /// of one from the middle, what it took to make its memory again.
    pub fn us_per_request_after_start(&self) -> f64 {
        let start_ns = if self.start_requests > 0 { self.start_ns } else { START_NS };
        self.per_request(self.driver_ns.saturating_sub(start_ns))
    }

    /// Returns the average driver time of a request in microseconds, without what it took to make
    /// the memory from before the record again.
    pub fn us_per_request(&self) -> f64 {
        self.per_request(self.driver_ns.saturating_sub(self.start_ns))
    }

    fn per_request(&self, driver_ns: u64) -> f64 {
        let requests = self.requests.saturating_sub(self.start_requests);
        driver_ns as f64 / 1000.0 / requests.max(1) as f64
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
    let Program { operations, start, .. } = &part.program;
    let mut start_ns = 0;
    for (at, &operation) in operations.iter().enumerate() {
        if at.is_multiple_of(BETWEEN_LOOKS) && stop() {
            return Err(Unfinished::Stopped);
        }
        if at == *start {
            start_ns = run.device().driver_ns();
        }
        run.perform(operation).map_err(refused(at))?;
    }
    let device = run.device();
    let requests = |of: &[Operation]| of.iter().filter(|operation| operation.is_request()).count() as u64;
    Ok(Cost {
        reserved_bytes: device.peak_used(),
        driver_ns: device.driver_ns(),
        ooms: run.ooms,
        requests: requests(operations),
        start_ns,
        start_requests: requests(&operations[..(*start).min(operations.len())]),
    })
}

#[cfg(test)]
mod tests {
    use super::{Cost, OnDevice, Part, cost};
    use crate::program::{Operation, Program};
    use cachalot_core::simulated::DriverCosts;
    use cachalot_core::{Config, StreamId};

    /// A program from the middle: it held 50 blocks, and then makes and frees one, from the cache.
    fn cost_of(start: usize) -> Cost {
        let malloc = |slot| Operation::Malloc { bytes: 30 << 20, stream: StreamId::DEFAULT, slot };
        let mut operations: Vec<Operation> = (0..50).map(malloc).collect();
        for _ in 0..100 {
            operations.extend([Operation::Free { slot: 49 }, malloc(49)]);
        }
        let part = Part { program: Program { operations, slots: 50, start }, ..Part::default() };
        cost::<OnDevice>(&part, &Config::default(), &DriverCosts::h200(), &|| false).expect("there is memory")
    }

    #[test]
    fn what_it_takes_to_make_the_memory_from_before_is_not_the_program_s() {
        let (whole, from_middle) = (cost_of(0), cost_of(50));
        assert_eq!((whole.start_ns, whole.start_requests), (0, 0));
        assert_eq!((from_middle.start_requests, from_middle.requests), (50, 150));
        assert_eq!((from_middle.driver_ns, from_middle.start_ns), (whole.driver_ns, whole.driver_ns));
        assert!(from_middle.driver_ns > 0 && whole.us_per_request() > 0.0);
        assert_eq!((from_middle.us_per_request(), from_middle.us_per_request_after_start()), (0.0, 0.0));
    }
}
