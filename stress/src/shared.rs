//! What the threads of a run share.

use crate::block::Block;
use crate::options::RunOptions;
use crate::shadow::Shadow;
use crate::stage::Device;
use crate::subject::Subject;
use crate::verdict::{Kind, Verdict};
use cachalot_core::{Config, DeviceError, Error, ErrorKind};
use parking_lot::Mutex;
use std::fmt::Display;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A block between two threads, and the place where its contents are known.
pub(crate) type Handed = (usize, Block);

/// What the threads share. Lives as long as the process.
pub(crate) struct Shared {
    pub(crate) options: RunOptions,
    pub(crate) config: Config,
    pub(crate) subject: Subject,
    pub(crate) devices: &'static [Device],
    pub(crate) shadow: Shadow,
    pub(crate) verdict: Verdict,
    /// Blocks that the next thread may take.
    pub(crate) exchange: Mutex<Vec<Handed>>,
    /// Blocks that the program holds.
    pub(crate) live: AtomicI64,
    /// Where all threads meet.
    pub(crate) barrier: Barrier,
    /// Threads that have done their share.
    pub(crate) done: AtomicU32,
    /// Captures that began in this round.
    pub(crate) captures: AtomicU32,
    /// Memory of the run's own: device, address, bytes.
    pub(crate) own: Mutex<Vec<(usize, u64, u64)>>,
    /// The first error after which a device is of no use.
    pub(crate) lost: Mutex<Option<DeviceError>>,
    /// Calls of the device may fail: faults are planned and were not cleared yet.
    faulty: AtomicBool,
    /// The run ends with this round.
    ending: AtomicBool,
    end: Option<Instant>,
}

impl Shared {
    /// What a run begins with.
    pub(crate) fn new(options: RunOptions, config: Config, subject: Subject, devices: &'static [Device]) -> Self {
        Self {
            config,
            subject,
            devices,
            shadow: Shadow::default(),
            verdict: Verdict::default(),
            exchange: Mutex::default(),
            live: AtomicI64::new(0),
            barrier: Barrier::new(options.threads as usize),
            done: AtomicU32::new(0),
            captures: AtomicU32::new(0),
            own: Mutex::default(),
            lost: Mutex::default(),
            faulty: AtomicBool::new(options.faults.is_some()),
            ending: AtomicBool::new(false),
            end: options.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds)),
            options,
        }
    }

    /// Whether errors of the device are to be expected.
    pub(crate) fn is_faulty(&self) -> bool {
        self.faulty.load(Ordering::Acquire)
    }

    /// No more faults are planned: an error of the device is one.
    pub(crate) fn expect_no_faults(&self) {
        self.faulty.store(false, Ordering::Release);
    }

    /// Whether the time is over.
    pub(crate) fn is_late(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Whether there is a reason to stop at once.
    pub(crate) fn is_stopped(&self) -> bool {
        self.verdict.is_bad() || self.lost.lock().is_some()
    }

    /// Decides whether this round was the last one. Called by one thread while the others wait.
    pub(crate) fn decide(&self) {
        let all_done = self.done.load(Ordering::Acquire) == self.options.threads;
        self.ending.store(all_done || self.is_late() || self.is_stopped(), Ordering::Release);
    }

    /// Whether the last round is over.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// A call of the device failed.
    pub(crate) fn device_failed(&self, what: &str, error: DeviceError) {
        if !self.is_faulty() {
            self.verdict.report(Kind::Unexpected, format!("{what}: {error}"));
        }
        if matches!(error.kind, ErrorKind::ContextLost | ErrorKind::Deinitialized) {
            self.lost.lock().get_or_insert(error);
        }
    }

    /// Whether an error may be due to a capture: while a stream captures, what it has cached cannot be unmapped, and a call that
    /// would have to says so.
    pub(crate) fn is_due_to_capture(&self, error: &Error) -> bool {
        matches!(error, Error::Device(error) if error.kind == ErrorKind::NotPermittedInCapture)
            && self.captures.load(Ordering::Acquire) > 0
    }

    /// A call was refused that has to be possible.
    pub(crate) fn refused(&self, what: &str, error: &dyn Display) {
        self.verdict.report(Kind::Refused, format!("{what}: {error}"));
    }
}
