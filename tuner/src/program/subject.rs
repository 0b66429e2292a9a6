//! The allocators under test, each with one simulated device.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::suballoc::SubAllocators;
use cachalot_core::{
    Allocator, Config, DeviceIndex, DeviceMemory, DevicePtr, Error, Growable, Lock, PlannedReport, PoolId, PoolOptions,
    Route, RoutePurpose, SnapshotSegment, StreamId,
};
use std::time::{Duration, Instant};

/// The device of a program.
pub const DEVICE: DeviceIndex = DeviceIndex(0);

/// The pool of all graphs of a program that are captured with [`Operation::BeginCapture`], for a
/// record that does not name their pools. `PyTorch` gives the first pool of graphs the same name.
///
/// [`Operation::BeginCapture`]: super::Operation::BeginCapture
pub const GRAPHS: PoolId = PoolId(0, 1);

/// The settings of an allocator.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The configuration.
    pub config: Config,
    /// The most bytes that may be held from the device. If it is given, it replaces a limit in the
    /// configuration.
    pub limit: Option<u64>,
}

/// A type of device that can be a simulated one, so that an allocator with this type can be tested.
pub trait Simulates: DeviceMemory + Sized {
    /// Wraps a simulated device.
    fn of_simulated(device: SimulatedDevice) -> Self;
    /// Returns the simulated device, or `None` if this is another one.
    fn simulated(&self) -> Option<&SimulatedDevice>;
}

impl Simulates for SimulatedDevice {
    fn of_simulated(device: SimulatedDevice) -> Self {
        device
    }

    fn simulated(&self) -> Option<&SimulatedDevice> {
        Some(self)
    }
}

/// An allocator under test, with the calls of a program. Every error comes from the allocator.
#[allow(clippy::missing_errors_doc, reason = "said once, above")]
pub trait Subject: Sized {
    /// Creates an allocator over `device`.
    fn create(device: SimulatedDevice, settings: &Settings) -> Result<Self, Error>;
    /// Returns the device.
    fn device(&self) -> &SimulatedDevice;
    /// Requests a block of at least `bytes` bytes for use on `stream`.
    fn malloc(&self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error>;
    /// Frees a block. Null, which is the block of a failed request, is valid.
    fn free(&self, block: DevicePtr) -> Result<(), Error>;
    /// Announces the use of a block on `stream`. Null is valid.
    fn record_stream(&self, block: DevicePtr, stream: StreamId) -> Result<(), Error>;
    /// Polls the work for which freed blocks wait.
    fn process_events(&self) -> Result<(), Error>;
    /// Releases cached memory.
    fn empty_cache(&self) -> Result<(), Error>;
    /// Does the work that requests have put off, for about `max_us` microseconds of driver time.
    fn maintain(&self, max_us: u64) -> Result<(), Error>;
    /// Announces the end of an iteration and the start of the next one. If an iteration was
    /// observed, plans it, and lets the plan take effect at once.
    fn announce(&self) -> Result<(), Error>;
    /// Returns the report of the planned policy, or `None` under any other policy.
    fn planned(&self) -> Option<PlannedReport>;
    /// Routes every later request into the pool of the graphs.
    fn begin_capture(&self) -> Result<(), Error>;
    /// Ends the routing into the pool of the graphs.
    fn end_capture(&self) -> Result<(), Error>;
    /// Keeps a private pool from now on. A captured graph uses it, unless the program has made it.
    fn keep_pool(&self, pool: PoolId) -> Result<(), Error>;
    /// Routes every later request into a private pool.
    fn begin_route(&self, pool: PoolId) -> Result<(), Error>;
    /// Ends the route into a private pool.
    fn end_route(&self, pool: PoolId) -> Result<(), Error>;
    /// Releases a private pool.
    fn destroy_pool(&self, pool: PoolId) -> Result<(), Error>;
    /// Returns every segment with all its blocks.
    fn snapshot(&self) -> Vec<SnapshotSegment>;
}

impl<D: Simulates, R: Lock, A: SubAllocators> Subject for Allocator<D, R, Growable<A>> {
    fn create(device: SimulatedDevice, settings: &Settings) -> Result<Self, Error> {
        let allocator = Self::new([D::of_simulated(device)], &settings.config)?;
        // Without a limit in the settings, a fraction in the configuration remains active.
        if settings.limit.is_some() {
            allocator.settings(DEVICE)?.set_limit(settings.limit);
        }
        Ok(allocator)
    }

    fn device(&self) -> &SimulatedDevice {
        let device = Allocator::device(self, DEVICE).expect("an allocator under test has one device");
        device.simulated().expect("it was created over a simulated device")
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

    fn maintain(&self, max_us: u64) -> Result<(), Error> {
        self.pages(DEVICE)?.maintain(max_us).map(|_| ())
    }

    fn announce(&self) -> Result<(), Error> {
        announce(self)
    }

    fn planned(&self) -> Option<PlannedReport> {
        self.settings(DEVICE).ok()?.config().planned()?;
        Some(self.plans(DEVICE).ok()?.report())
    }

    fn begin_capture(&self) -> Result<(), Error> {
        let pools = self.pools(DEVICE)?;
        pools.retain(GRAPHS, PoolOptions::default())?;
        pools.begin_route(GRAPHS, Route::All, RoutePurpose::Capture)
    }

    fn end_capture(&self) -> Result<(), Error> {
        // In a record, the graphs may be destroyed during a capture. If their pool has no users,
        // the capture has ended.
        let pools = self.pools(DEVICE)?;
        if pools.users(GRAPHS).is_ok_and(|users| users > 0) {
            pools.end_route(GRAPHS, RoutePurpose::Capture).map(drop)
        } else {
            Ok(())
        }
    }

    fn keep_pool(&self, pool: PoolId) -> Result<(), Error> {
        let pools = self.pools(DEVICE)?;
        pools.retain(pool, PoolOptions::default())?;
        // PyTorch names the pools of graphs (n, 0), and those that a program makes (0, n).
        if pool.0 == 0 {
            return Ok(());
        }
        // An empty capture is how the allocator learns that a graph uses the pool. Its user is the
        // graph.
        pools.begin_route(pool, Route::All, RoutePurpose::Capture)?;
        pools.end_route(pool, RoutePurpose::Capture).map(drop)
    }

    fn begin_route(&self, pool: PoolId) -> Result<(), Error> {
        self.pools(DEVICE)?.begin_route(pool, Route::All, RoutePurpose::Requests)
    }

    fn end_route(&self, pool: PoolId) -> Result<(), Error> {
        let pools = self.pools(DEVICE)?;
        pools.end_route(pool, RoutePurpose::Requests)?;
        // The route's user. A program changes pools often, and each route adds one.
        pools.release(pool)
    }

    fn destroy_pool(&self, pool: PoolId) -> Result<(), Error> {
        let pools = self.pools(DEVICE)?;
        while pools.users(pool).is_ok_and(|users| users > 0) {
            pools.release(pool)?;
        }
        Ok(())
    }

    fn snapshot(&self) -> Vec<SnapshotSegment> {
        Allocator::snapshot(self)
    }
}

/// Announces an iteration. If one was observed, plans it, and lets the plan take effect at once.
/// The first plan resets the peaks of the statistics.
fn announce<D: Simulates, R: Lock, A: SubAllocators>(allocator: &Allocator<D, R, Growable<A>>) -> Result<(), Error> {
    let planning = allocator.plans(DEVICE)?;
    planning.end_iteration()?;
    if let Some(observed) = planning.observed() {
        let config = allocator.settings(DEVICE)?.config();
        let milliseconds = config.planned().map_or(0, |planned| planned.plan_deadline_ms);
        let until = Instant::now() + Duration::from_millis(milliseconds);
        let plans = observed.plan(&|| Instant::now() >= until, &|| false).unwrap_or_default();
        planning.adopt(observed, &plans)?;
        planning.end_iteration()?;
        if planning.report().plans == 1 {
            allocator.stats(DEVICE)?.reset_peaks();
        }
    }
    Ok(())
}
