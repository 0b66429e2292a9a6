//! State shared by the threads of a run.

use crate::block::Block;
use crate::captures::{Captures, Moment};
use crate::elastic::ElasticRange;
use crate::options::RunOptions;
use crate::shadow::Shadow;
use crate::stage::Device;
use crate::subject::Subject;
use crate::tenant::Tenancy;
use crate::verdict::{Kind, Verdict};
use cachalot_core::{Config, DeviceError, Error, ErrorKind};
use parking_lot::Mutex;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Barrier, RwLock};
use std::time::{Duration, Instant};

/// A block on the way between two threads, and the place where the contents are known.
pub(crate) type Exchanged = (usize, Block);

/// State shared by the threads. Lives as long as the process.
pub(crate) struct Shared {
    pub(crate) options: RunOptions,
    pub(crate) config: Config,
    pub(crate) subject: Subject,
    pub(crate) devices: &'static [Device],
    pub(crate) shadow: Shadow,
    pub(crate) verdict: Verdict,
    pub(crate) tenancies: Vec<Tenancy>,
    /// Blocks of tenants that any thread may free. No work uses them but the work announced so far.
    pub(crate) loose: Mutex<Vec<Block>>,
    /// Elastic ranges that no thread works with.
    pub(crate) ranges: Mutex<Vec<ElasticRange>>,
    /// Number of elastic ranges reserved so far.
    pub(crate) ranges_made: AtomicU64,
    /// Blocks that any thread may take over.
    pub(crate) exchange: Mutex<Vec<Exchanged>>,
    /// Number of live blocks of the program.
    pub(crate) live: AtomicI64,
    /// The barrier at which all threads meet.
    pub(crate) barrier: Barrier,
    /// Number of threads that have done their share.
    pub(crate) done: AtomicU32,
    pub(crate) captures: Captures,
    /// Shared by captures that the allocator is not told of, and taken alone by a park: an event of
    /// the whole context would break them.
    pub(crate) untold: RwLock<()>,
    /// Shared by all captures, and taken alone by the threads that wait for a whole device, for the
    /// same reason.
    pub(crate) device_waits: parking_lot::RwLock<()>,
    /// Number of waits for a whole device by these threads.
    pub(crate) device_waits_made: AtomicU64,
    /// The most bytes of the host that served at an audit, of all devices together.
    pub(crate) spilled_bytes: AtomicU64,
    /// The run's own device memory: device, address, bytes.
    pub(crate) own: Mutex<Vec<(usize, u64, u64)>>,
    /// The first error that made a device unusable.
    pub(crate) lost: Mutex<Option<DeviceError>>,
    /// Whether device calls may fail: faults are planned, and the plan is not cleared yet.
    faulty: AtomicBool,
    /// Whether the run ends with the present round.
    ending: AtomicBool,
    end: Option<Instant>,
}

impl Shared {
    /// Creates the state at the start of a run.
    pub(crate) fn new(
        options: RunOptions,
        config: Config,
        subject: Subject,
        devices: &'static [Device],
        tenancies: Vec<Tenancy>,
    ) -> Self {
        Self {
            config,
            subject,
            devices,
            shadow: Shadow::default(),
            verdict: Verdict::default(),
            tenancies,
            loose: Mutex::default(),
            ranges: Mutex::default(),
            ranges_made: AtomicU64::new(0),
            exchange: Mutex::default(),
            live: AtomicI64::new(0),
            barrier: Barrier::new(options.threads as usize),
            done: AtomicU32::new(0),
            captures: Captures::default(),
            untold: RwLock::default(),
            device_waits: parking_lot::RwLock::default(),
            device_waits_made: AtomicU64::new(0),
            spilled_bytes: AtomicU64::new(0),
            own: Mutex::default(),
            lost: Mutex::default(),
            faulty: AtomicBool::new(options.faults.is_some()),
            ending: AtomicBool::new(false),
            end: options.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds)),
            options,
        }
    }

    /// Returns whether errors of the device are expected.
    pub(crate) fn is_faulty(&self) -> bool {
        self.faulty.load(Ordering::Acquire)
    }

    /// Declares the fault plan cleared: from now on, errors of the device are findings.
    pub(crate) fn expect_no_faults(&self) {
        self.faulty.store(false, Ordering::Release);
    }

    /// Returns whether the run's time is over.
    pub(crate) fn is_time_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Returns whether the run must stop at once.
    pub(crate) fn is_stopped(&self) -> bool {
        self.verdict.is_bad() || self.lost.lock().is_some()
    }

    /// Decides whether the present round is the last. Called by one thread while the other threads
    /// wait.
    pub(crate) fn decide_end(&self) {
        let all_done = self.done.load(Ordering::Acquire) == self.options.threads;
        self.ending.store(all_done || self.is_time_over() || self.is_stopped(), Ordering::Release);
    }

    /// Returns whether the run has ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Handles a failed device call. Reports a finding unless faults are expected, and remembers a
    /// lost device.
    pub(crate) fn device_failed(&self, what: &str, error: DeviceError) {
        if !self.is_faulty() {
            self.verdict.report(Kind::Unexpected, format!("{what}: {error}"));
        }
        if matches!(error.kind, ErrorKind::ContextLost | ErrorKind::Deinitialized) {
            self.lost.lock().get_or_insert(error);
        }
    }

    /// Returns whether an error may result from a capture during the call, which started at
    /// `since`. While a stream captures, the stream's cached memory cannot be unmapped, and a call
    /// that needs the memory fails.
    pub(crate) fn is_due_to_capture(&self, error: &Error, since: Moment) -> bool {
        matches!(error, Error::Device(error) if error.kind == ErrorKind::NotPermittedInCapture)
            && self.captures.met_since(since)
    }

    /// Reports a refused call that must succeed.
    pub(crate) fn refused(&self, what: &str, error: &dyn Display) {
        self.verdict.report(Kind::Refused, format!("{what}: {error}"));
    }
}
