//! The memory of a program before a run: at another batch size, or from a list of requests.

mod calls;
mod requests;
mod scale;
mod steps;

pub use calls::{Calls, Phase, Site};
pub use requests::{List, is_list, load, read};
pub use scale::{Growth, Scaled, Untold};

use crate::program::{OnDevice, Program, Run, Settings, Subject};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Config, DeviceIndex, Error};
use serde::Serialize;

/// The memory of the simulated device in bytes (64 TiB): only a limit makes requests fail.
const DEVICE_BYTES: u64 = 1 << 46;

/// No batch is searched that is more than this many times larger or smaller than the recorded one.
const LARGEST_SCALE: f64 = 1024.0;

/// The memory of a program with some settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Prediction {
    /// Peak of the bytes of all blocks, with the rounding of the policy.
    pub peak_allocated_bytes: u64,
    /// Peak of the bytes reserved from the device.
    pub peak_reserved_bytes: u64,
    /// Number of requests that run out of memory.
    pub ooms: u64,
    /// Size of the largest failed request in bytes.
    pub largest_failed_bytes: u64,
    /// Number of the first failed request, from 1.
    pub first_failed_request: Option<u64>,
}

/// Runs a program on an empty allocator. The program goes on after a request that runs out of
/// memory.
///
/// # Errors
/// The allocator refused a call for another reason than lack of memory.
pub fn predict(program: &Program, settings: &Settings) -> Result<Prediction, Error> {
    let device = SimulatedDevice::new(DEVICE_BYTES.max(settings.limit.unwrap_or(0)));
    device.set_patience(0);
    let mut run = Run::new(OnDevice::create(device, settings)?);
    let (mut requests, mut first) = (0, None);
    for &operation in &program.operations {
        requests += u64::from(operation.is_request());
        run.perform(operation)?;
        if run.ooms > 0 && first.is_none() {
            first = Some(requests);
        }
    }
    let stats = run.allocator.stats(DeviceIndex(0))?.totals();
    Ok(Prediction {
        peak_allocated_bytes: stats.allocated_bytes().peak.unsigned_abs(),
        peak_reserved_bytes: run.device().peak_used(),
        ooms: run.ooms,
        largest_failed_bytes: run.largest_failed,
        first_failed_request: first,
    })
}

/// Returns the settings of a configuration with a limit.
pub fn settings(config: &Config, limit: Option<u64>) -> Settings {
    Settings { config: config.clone(), limit }
}

/// Returns the largest multiple of the batch at which no request of a program runs out of memory,
/// within a hundredth. `None` if not even a thousandth of the batch fits, or everything fits.
///
/// # Errors
/// The allocator refused a call for another reason than lack of memory.
pub fn largest_scale(program: &Program, growth: &Growth, settings: &Settings) -> Result<Option<f64>, Error> {
    let fits = |scale: f64| predict(&growth.scaled(program, scale).0, settings).map(|outcome| outcome.ooms == 0);
    let (mut fitting, mut failing) = (1.0, 2.0);
    if fits(1.0)? {
        while fits(failing)? {
            (fitting, failing) = (failing, 2.0 * failing);
            if failing > LARGEST_SCALE {
                return Ok(None);
            }
        }
    } else {
        (fitting, failing) = (0.5, 1.0);
        while !fits(fitting)? {
            (fitting, failing) = (fitting / 2.0, fitting);
            if fitting < 1.0 / LARGEST_SCALE {
                return Ok(None);
            }
        }
    }
    while failing / fitting > 1.01 {
        let middle = f64::midpoint(fitting, failing);
        if fits(middle)? {
            fitting = middle;
        } else {
            failing = middle;
        }
    }
    Ok(Some(fitting))
}
