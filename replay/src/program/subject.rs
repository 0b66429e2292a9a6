//! What a program can be run on: an allocator with one simulated device.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Allocator, Config, DeviceIndex, DevicePtr, Error, Growable, PlannedReport, PoolId, PoolOptions, Route,
    SnapshotSegment, StreamId,
};
use std::time::{Duration, Instant};

/// The one device of a program.
pub(crate) const DEVICE: DeviceIndex = DeviceIndex(0);

/// The pool that all captured graphs of a program share. A record does not name it; `PyTorch` names its first one so.
const GRAPHS: PoolId = PoolId(0, 1);

/// What an allocator is set to.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The configuration.
    pub config: Config,
    /// The most bytes that may be held from the device, if there is a limit beyond what the configuration sets.
    pub limit: Option<u64>,
}

/// An allocator under test, as a program calls it. Errors are those of the allocator.
#[allow(clippy::missing_errors_doc, reason = "said once, above")]
pub trait Subject {
    /// The device.
    fn device(&self) -> &SimulatedDevice;
    /// A block of at least `bytes` for use on `stream`.
    fn malloc(&self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error>;
    /// Frees a block. Null, the block of a request that failed, is fine.
    fn free(&self, block: DevicePtr) -> Result<(), Error>;
    /// Announces that `stream` uses a block, or null.
    fn record_stream(&self, block: DevicePtr, stream: StreamId) -> Result<(), Error>;
    /// Asks after the work that freed blocks wait for.
    fn process_events(&self) -> Result<(), Error>;
    /// Gives back what is cached.
    fn empty_cache(&self) -> Result<(), Error>;
    /// An iteration ends, and the next begins. What was observed is planned, and the plan comes into force at once.
    fn announce(&self) -> Result<(), Error>;
    /// How the planned policy has done, if that is the policy.
    fn planned(&self) -> Option<PlannedReport>;
    /// Leads every request into the graphs' pool from here on.
    fn begin_capture(&self) -> Result<(), Error>;
    /// Leads none there from here on.
    fn end_capture(&self) -> Result<(), Error>;
    /// Nobody uses the graphs' pool any more.
    fn destroy_graphs(&self) -> Result<(), Error>;
    /// Every segment with its blocks.
    fn snapshot(&self) -> Vec<SnapshotSegment>;
}

/// The core's allocator on one simulated device.
pub type OnDevice = Allocator<SimulatedDevice, parking_lot::RawMutex, Growable>;

/// An allocator over `device`.
///
/// # Errors
/// Those of the allocator.
pub fn allocator(device: SimulatedDevice, settings: &Settings) -> Result<OnDevice, Error> {
    let allocator = OnDevice::new([device], &settings.config)?;
    // Without a limit of its own, one that the configuration sets as a fraction stays in force.
    if settings.limit.is_some() {
        allocator.set_limit(DEVICE, settings.limit)?;
    }
    Ok(allocator)
}

impl Subject for OnDevice {
    fn device(&self) -> &SimulatedDevice {
        Allocator::device(self, DEVICE).expect("an allocator under test has one device")
    }

    fn malloc(&self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        Allocator::malloc(self, DEVICE, bytes, stream)
    }

    fn free(&self, block: DevicePtr) -> Result<(), Error> {
        Allocator::free(self, block)
    }

    fn record_stream(&self, block: DevicePtr, stream: StreamId) -> Result<(), Error> {
        Allocator::record_stream(self, block, stream)
    }

    fn process_events(&self) -> Result<(), Error> {
        Allocator::process_events(self, DEVICE)
    }

    fn empty_cache(&self) -> Result<(), Error> {
        Allocator::empty_cache(self, DEVICE)
    }

    fn announce(&self) -> Result<(), Error> {
        announce(self)
    }

    fn planned(&self) -> Option<PlannedReport> {
        self.config(DEVICE).ok()?.planned()?;
        self.planned_report(DEVICE).ok()
    }

    fn begin_capture(&self) -> Result<(), Error> {
        self.retain_pool(DEVICE, GRAPHS, PoolOptions::default())?;
        Allocator::begin_capture(self, DEVICE, GRAPHS, Route::All)
    }

    fn end_capture(&self) -> Result<(), Error> {
        Allocator::end_capture(self, DEVICE, GRAPHS)
    }

    fn destroy_graphs(&self) -> Result<(), Error> {
        while self.pool_users(DEVICE, GRAPHS).is_ok_and(|users| users > 0) {
            self.release_pool(DEVICE, GRAPHS)?;
        }
        Ok(())
    }

    fn snapshot(&self) -> Vec<SnapshotSegment> {
        Allocator::snapshot(self)
    }
}

/// Announces an iteration, plans what was observed, if anything was, and puts the plan in force at once; with the first one
/// the peaks of the statistics begin anew.
fn announce(allocator: &OnDevice) -> Result<(), Error> {
    allocator.iteration(DEVICE)?;
    if let Some(observed) = allocator.observed(DEVICE)? {
        let config = allocator.config(DEVICE)?;
        let milliseconds = config.planned().map_or(0, |planned| planned.plan_deadline_ms);
        let until = Instant::now() + Duration::from_millis(milliseconds);
        let plans = observed.plan(&|| Instant::now() >= until, &|| false).unwrap_or_default();
        allocator.adopt_plans(DEVICE, observed, &plans)?;
        allocator.iteration(DEVICE)?;
        if allocator.planned_report(DEVICE)?.plans == 1 {
            allocator.reset_peak_stats(DEVICE)?;
        }
    }
    Ok(())
}
