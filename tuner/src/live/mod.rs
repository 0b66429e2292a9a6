//! Settings that adjust themselves: a window of requests of a living allocator, a search, a switch
//! at an idle moment, and a trial.
//!
//! ```text
//!              idle moment          any thread            idle moment
//! Recording ── prepare ──▶ Job ──── run ──▶ Finding ──── conclude ──▶ Trial, or Recording
//!     ▲                                                                │
//!     └───── conclude ◀──── Finding ◀──── run ──── Job ◀──── prepare ──┘
//! ```
//!
//! A switch needs settings that save at least 2 % of reserved memory in the whole window. The later
//! part of the window, which the search does not see, must confirm that they save something. The
//! trial is as long as the window. Settings that save less than half of what was predicted are
//! taken back.
//!
//! The results depend only on the requests, the seed and the moments of the calls. Without a time
//! limit, the same program is tuned in the same way.

mod job;
#[cfg(test)]
mod tests;
mod window;

pub use job::{Finding, Job};

use cachalot_core::{Allocator, Config, DeviceIndex, DeviceMemory, Error, Lock, Storage, TuneReport, TuneStage};
use job::{Answer, Trial, What, remember};
use std::collections::VecDeque;
use std::time::Duration;
use window::seen;

/// The number of requests before the first search.
const FIRST_REQUESTS: u64 = 256;

/// The greatest number of requests between two searches: those of a full window.
const MOST_REQUESTS: u64 = 1 << 16;

/// The greatest number of settings taken back that are remembered.
const TAKEN_BACK: usize = 16;

/// The extent of a search.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The greatest number of candidates in a search.
    pub candidates: usize,
    /// The time limit of a search. `None` means no limit, so that the result does not depend on the
    /// machine.
    pub time: Option<Duration>,
    /// The source of all random choices.
    pub seed: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { candidates: 40, time: None, seed: 0 }
    }
}

/// The state of the tuner of a device.
#[derive(Debug, Default)]
enum Phase {
    /// Requests are recorded.
    #[default]
    Recording,
    /// A search is under way.
    Searching,
    /// The active settings are measured.
    Measuring(Measured),
    /// The measured trial is being checked.
    Checking,
}

/// A trial that is being measured.
#[derive(Debug)]
struct Measured {
    trial: Trial,
    /// The time of the latest event when the trial started.
    since: u64,
}

/// Tunes a device of an allocator. Only one thread at a time may call the methods.
#[derive(Debug)]
pub struct Tuner {
    limits: Limits,
    phase: Phase,
    /// The number of the program's changes of the configuration when the phase started.
    serial: u64,
    /// A finding that waits for a moment without a capture.
    waiting: Option<Finding>,
    taken_back: VecDeque<Config>,
    /// The number of requests of the device at the latest window or change.
    requests: u64,
    /// The number of requests until the next window.
    interval: u64,
}

impl Tuner {
    /// Creates a tuner.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            phase: Phase::Recording,
            serial: 0,
            waiting: None,
            taken_back: VecDeque::new(),
            requests: 0,
            interval: FIRST_REQUESTS,
        }
    }

    /// Continues without a finding for the job that was handed out.
    pub fn give_up(&mut self) {
        self.phase = Phase::Recording;
    }

    /// Changes the time limit of later searches.
    pub fn set_time(&mut self, time: Option<Duration>) {
        self.limits.time = time;
    }

    /// Gives back idle memory that still has the form of earlier settings, and returns a job if a
    /// search or a check is due. Call this at an idle moment: at the end of an iteration, or during
    /// upkeep.
    ///
    /// Device: called to release memory. Never waits for the device.
    ///
    /// # Errors
    /// The errors of [`Tuning::give_back`](cachalot_core::Tuning::give_back).
    pub fn prepare<D: DeviceMemory, R: Lock, S: Storage>(
        &mut self,
        allocator: &Allocator<D, R, S>,
        device: DeviceIndex,
    ) -> Result<Option<Job>, Error> {
        let tuning = allocator.tuning(device)?;
        if !tuning.is_possible() {
            return Ok(None);
        }
        if let Some(finding) = self.waiting.take() {
            self.conclude(allocator, device, finding)?;
        }
        tuning.give_back()?;
        if matches!(self.phase, Phase::Searching | Phase::Checking) || !self.is_due(allocator, device)? {
            return Ok(None);
        }
        self.read(allocator, device).map(Some)
    }

    /// Reads the window, for a search or for the check of the trial.
    fn read<D: DeviceMemory, R: Lock, S: Storage>(
        &mut self,
        allocator: &Allocator<D, R, S>,
        device: DeviceIndex,
    ) -> Result<Job, Error> {
        let tuning = allocator.tuning(device)?;
        let window = tuning.window();
        let is_current = window.serial == self.serial;
        self.serial = window.serial;
        let (since, what) = match std::mem::take(&mut self.phase) {
            // If the program has changed its settings during the trial, there is nothing to check.
            Phase::Measuring(measured) if is_current => (measured.since, What::Check(measured.trial)),
            _ => (0, What::Search(self.taken_back.clone())),
        };
        let is_search = matches!(what, What::Search(_));
        self.phase = if is_search { Phase::Searching } else { Phase::Checking };
        let mut config = window.config.clone();
        config.set_tunes(false);
        let job = Job {
            seen: seen(&window, since),
            config,
            limit: window.limit,
            serial: window.serial,
            has_virtual_memory: allocator.pages(device)?.are_supported(),
            limits: self.limits,
            what,
        };
        tuning.update_report(|report| {
            report.windows += 1;
            report.stage = if is_search { TuneStage::Searching } else { TuneStage::Trial };
        });
        Ok(job)
    }

    /// Activates the finding of a job. Call this at an idle moment. While a graph is being
    /// captured, the finding waits for the next [`prepare`](Self::prepare).
    ///
    /// Device: called to release memory. Never waits for the device.
    ///
    /// # Errors
    /// The errors of [`Tuning::put_in_force`](cachalot_core::Tuning::put_in_force). The tuner
    /// continues after an error.
    pub fn conclude<D: DeviceMemory, R: Lock, S: Storage>(
        &mut self,
        allocator: &Allocator<D, R, S>,
        device: DeviceIndex,
        finding: Finding,
    ) -> Result<(), Error> {
        let tuning = allocator.tuning(device)?;
        if !tuning.is_possible() {
            self.waiting = Some(finding);
            return Ok(());
        }
        let Finding { serial, config, reserved_bytes, requests, candidates, took, answer } = finding;
        self.phase = Phase::Recording;
        self.restart(allocator, device)?;
        // The next window is as long as this one, and twice as long after each search without
        // success.
        self.interval = (requests as u64).clamp(FIRST_REQUESTS, MOST_REQUESTS).max(self.interval);
        let is_search = matches!(answer, Answer::Better(..) | Answer::Nothing);
        tuning.update_report(|report| {
            report.searches += u64::from(is_search);
            report.candidates += candidates;
            report.search_us += u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            report.stage = TuneStage::Recording;
        });
        let update = |of: &dyn Fn(&mut TuneReport)| tuning.update_report(|report| of(report));
        match answer {
            Answer::Better(found, gain) => {
                let predicted_bytes = (reserved_bytes as f64 * (1.0 - gain)) as u64;
                self.interval = (requests as u64).clamp(FIRST_REQUESTS, MOST_REQUESTS);
                let changed = tuning.put_in_force(&found, serial, predicted_bytes);
                if matches!(changed, Ok(false)) {
                    return Ok(());
                }
                update(&|report| {
                    report.switches += 1;
                    report.stage = TuneStage::Trial;
                    (report.before_bytes, report.predicted_bytes) = (reserved_bytes, predicted_bytes);
                });
                let trial = Trial { old: Box::new(config), before_bytes: reserved_bytes, gain };
                self.measure(allocator, device, trial)?;
                changed.map(|_| ())
            }
            Answer::Nothing => {
                self.interval = (self.interval * 2).min(MOST_REQUESTS);
                update(&|report| report.without_gain += 1);
                Ok(())
            }
            Answer::Unfinished(None) => {
                self.interval = (self.interval * 2).min(MOST_REQUESTS);
                Ok(())
            }
            Answer::Unfinished(Some(trial)) => self.measure(allocator, device, trial),
            Answer::Holds => {
                update(&|report| {
                    report.held += 1;
                    report.after_bytes = reserved_bytes;
                });
                Ok(())
            }
            Answer::Fails(trial) => {
                remember(&mut self.taken_back, config);
                let changed = tuning.take_back(&trial.old, serial, reserved_bytes);
                update(&|report| {
                    report.taken_back += u64::from(!matches!(changed, Ok(false)));
                    report.after_bytes = reserved_bytes;
                });
                changed.map(|_| ())
            }
        }
    }

    /// Starts to measure a trial.
    fn measure<D: DeviceMemory, R: Lock, S: Storage>(
        &mut self,
        allocator: &Allocator<D, R, S>,
        device: DeviceIndex,
        trial: Trial,
    ) -> Result<(), Error> {
        let since = allocator.tuning(device)?.window().events.last().map_or(0, |event| event.time_us);
        self.phase = Phase::Measuring(Measured { trial, since });
        self.restart(allocator, device)
    }

    /// Starts to count requests from now on.
    fn restart<D: DeviceMemory, R: Lock, S: Storage>(
        &mut self,
        allocator: &Allocator<D, R, S>,
        device: DeviceIndex,
    ) -> Result<(), Error> {
        self.requests = requests(allocator, device)?;
        Ok(())
    }

    /// Returns whether enough requests were made since the latest window.
    fn is_due<D: DeviceMemory, R: Lock, S: Storage>(
        &mut self,
        allocator: &Allocator<D, R, S>,
        device: DeviceIndex,
    ) -> Result<bool, Error> {
        let now = requests(allocator, device)?;
        // The program may have reset the statistics.
        self.requests = self.requests.min(now);
        Ok(now - self.requests >= self.interval)
    }
}

/// Returns the number of requests of a device so far.
fn requests<D: DeviceMemory, R: Lock, S: Storage>(
    allocator: &Allocator<D, R, S>,
    device: DeviceIndex,
) -> Result<u64, Error> {
    Ok(allocator.stats(device)?.totals().allocations().allocated.max(0).cast_unsigned())
}
