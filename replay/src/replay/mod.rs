//! Replays recorded programs: repeats and compares the allocator's decisions, and times the calls.

mod attribute;
mod compare;
mod difference;
mod end;
mod follow;
mod placed;
mod ranges;
mod snapshot;
mod spilled;
mod start;
mod trials;

pub use end::StatDifference;
pub use snapshot::{End, end};
pub use spilled::Spilled;

use crate::program::{DriverTime, LeftOut, OnDevice, Position, Program, Run, Settings, Subject, nanoseconds_per_call};
use crate::trace::{Action, BadInput, Event, Start, Trace};
use cachalot_core::{Config, PlannedReport};
use follow::Follower;
use std::collections::BTreeMap;
use std::fmt;

/// The allocator type of a replay.
type Simulated = OnDevice;

/// A device for runs whose addresses do not matter, in bytes (64 TiB): never full before a limit
/// says so.
const ROOMY_DEVICE: u64 = 1 << 46;

/// Options of a replay.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The configuration in the place of the record's own.
    pub config: Option<Config>,
    /// The memory limit in bytes in the place of the record's own.
    pub limit: Option<u64>,
    /// Variation of the program, for a replay that does not follow the record.
    pub variation: Variation,
    /// Whether each decision is compared with the record.
    pub check: bool,
    /// Number of timed runs. The replay reports the median.
    pub repeat: u32,
}

/// Variation of a recorded program on a new allocator. A record that is followed address by address
/// has no variation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Variation {
    /// Number of passes on one allocator, in place of a single run.
    pub passes: Option<u32>,
    /// Recorded calls to leave out.
    pub left_out: LeftOut,
    /// The memory limit as a multiple of the program's peak live bytes. Replaces every limit in
    /// bytes.
    pub limit_factor: Option<f64>,
}

/// Result of a replay.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The policy of the allocator.
    pub policy: &'static str,
    /// Every statistic at the end.
    pub stats: BTreeMap<String, i64>,
    /// Number of served requests in the record.
    pub allocations: u64,
    /// Peak of the requested bytes of all live blocks.
    pub peak_live_bytes: u64,
    /// Peak of the bytes held from the device.
    pub peak_reserved_bytes: u64,
    /// Median time of a call in nanoseconds, after a first run of the whole program.
    pub ns_per_op: f64,
    /// The requests without enough memory.
    pub failed: Failed,
    /// Result of the comparison with the record. `None` without a check.
    pub checked: Option<Checked>,
    /// The driver's time, if the program was run in passes.
    pub driver: Option<DriverTime>,
    /// The memory of the host, if the settings have `spill`, and the program was run with them.
    pub spilled: Option<Spilled>,
    /// Report of the planned policy. With a plan, the peak of live bytes and the time of a call
    /// count from the plan's start.
    pub planned: Option<PlannedReport>,
}

/// The requests of a replay without enough memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failed {
    /// Number of failed requests.
    pub count: u64,
    /// Number of failed requests that succeeded in the recorded program.
    pub new: u64,
    /// Size of the largest failed request in bytes.
    pub largest_bytes: u64,
}

/// Result of the comparison of a replay with its record.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// Number of compared events, final segments and final blocks.
    pub decisions: u64,
    /// Number of differences.
    pub mismatches: u64,
    /// Number of compared final statistics.
    pub stats: u64,
    /// The final statistics that differ.
    pub stat_differences: Vec<StatDifference>,
    /// Text of the first difference: both decisions and the considered free blocks.
    pub first: Option<String>,
}

/// Reason for a replay without an outcome.
#[derive(Debug)]
pub enum ReplayError {
    /// The record or its configuration cannot be used.
    Input(BadInput),
    /// The allocator refused a call for another reason than lack of memory: place in the record,
    /// and reason.
    Refused(BadInput),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(error) | Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReplayError {}

impl Options {
    /// Returns whether the replay follows the recorded addresses: without own settings and
    /// variation, and during a check.
    pub fn follows(&self) -> bool {
        let own = self.config.is_none() && self.limit.is_none() && self.variation == Variation::default();
        own || self.check
    }
}

impl Outcome {
    /// Returns the value of a statistic, or 0 for an unknown name.
    pub fn stat(&self, name: &str) -> i64 {
        self.stats.get(name).copied().unwrap_or(0)
    }

    /// Peak live over peak reserved.
    pub fn utilisation(&self) -> f64 {
        if self.peak_reserved_bytes == 0 {
            return 0.0;
        }
        self.peak_live_bytes as f64 / self.peak_reserved_bytes as f64
    }
}

/// Returns the configuration of the recorded program.
///
/// # Errors
/// A recorded configuration that cannot be used.
pub fn recorded_config(trace: &Trace) -> Result<Config, ReplayError> {
    Ok(recorded_settings(trace)?.config)
}

/// Returns the settings of the recorded program.
fn recorded_settings(trace: &Trace) -> Result<Settings, ReplayError> {
    let config = cachalot_policies::parse(trace.config()).map_err(|error| {
        let what = format!("the recorded configuration `{}` cannot be used: {error}", trace.config());
        ReplayError::Input(BadInput::whole(&trace.file, what))
    })?;
    Ok(Settings { config, limit: trace.limit_bytes() })
}

/// Returns the settings of a replay.
fn settings(trace: &Trace, options: &Options) -> Result<Settings, ReplayError> {
    let mut settings = match &options.config {
        Some(config) => Settings { config: config.clone(), limit: trace.limit_bytes() },
        None => recorded_settings(trace)?,
    };
    settings.limit = options.limit.or(settings.limit);
    Ok(settings)
}

/// Follows a whole record.
fn follow<'t>(trace: &'t Trace, settings: &'t Settings) -> Result<Follower<'t>, ReplayError> {
    let mut follower = Follower::new(trace, settings).map_err(|error| beginning_refused(trace, &error))?;
    follower.follow(trace.events.len()).map_err(|(at, error)| refused(trace, at, &error))?;
    Ok(follower)
}

/// Returns the error for event number `at`, whose call the allocator refused.
fn refused(trace: &Trace, at: usize, error: &cachalot_core::Error) -> ReplayError {
    let place = trace.events.get(at).or(trace.events.last()).map(|event| event.of.place);
    let what = format!("the allocator refused the call: {error}");
    ReplayError::Refused(BadInput { file: trace.file.clone(), place, what })
}

/// Returns the error for a record whose first state the allocator refused.
fn beginning_refused(trace: &Trace, error: &cachalot_core::Error) -> ReplayError {
    let what = format!("the state before the first event cannot be replayed: {error}");
    ReplayError::Input(BadInput::whole(&trace.file, what))
}

/// Returns the calls of the recorded program.
///
/// # Errors
/// A record that cannot be used, or a call that the allocator refused.
pub fn program(trace: &Trace) -> Result<Program, ReplayError> {
    let settings = recorded_settings(trace)?;
    Ok(follow(trace, &settings)?.program)
}

/// Replays a record.
///
/// With other settings or other calls than the recorded ones, the program obtains other segments.
/// The simulated device then chooses the addresses.
///
/// # Errors
/// A record that cannot be used, or a call that the allocator refused.
pub fn replay(trace: &Trace, options: &Options) -> Result<Outcome, ReplayError> {
    let mut settings = settings(trace, options)?;
    let follows = options.follows();
    let recorded = if follows { settings.clone() } else { recorded_settings(trace)? };
    let mut follower = follow(trace, &recorded)?;
    let mut program = std::mem::take(&mut follower.program);
    if !follows {
        program = program.without(options.variation.left_out);
        settings.limit = options.variation.limit_factor.map(|factor| program.limit_of(factor)).or(settings.limit);
    }
    if settings.config.planned().is_some() {
        program = program.announced();
    }
    let end = |error| refused(trace, trace.events.len(), &error);
    let fresh = || OnDevice::create(spilled::device(ROOMY_DEVICE), &settings).map(Run::new).map_err(end);

    let (stats, peak_live_bytes, driver, spilled, planned, failed) = if follows {
        let failed = failed(&follower.run);
        (end::stats(&follower.run.allocator).map_err(end)?, peak_live_bytes(trace), None, None, None, failed)
    } else {
        let mut run = fresh()?;
        let passes = options.variation.passes.unwrap_or(1).max(1);
        let mut spilled = settings.config.spill().map(|_| Spilled::default());
        let watch = |run: &Run<OnDevice>, at: Position| {
            spilled.iter_mut().for_each(|sum| sum.note(run, program.operations[at.operation]));
        };
        let made = run.perform_passes(&program, passes, watch).map_err(|(_, error)| end(error))?;
        let driver = options.variation.passes.map(|_| made.driver);
        let stats = end::stats(&run.allocator).map_err(end)?;
        (stats, made.peak_live_bytes, driver, spilled, run.allocator.planned(), failed(&run))
    };
    let mut timed = fresh()?;
    timed.perform_all(&program.operations).map_err(end)?;
    let ns_per_op = nanoseconds_per_call(&mut timed, &program, options.repeat).map_err(end)?;
    Ok(Outcome {
        policy: settings.config.policy_name(),
        allocations: count(&trace.events, Action::Alloc),
        peak_live_bytes,
        peak_reserved_bytes: stats.get("reserved_bytes.all.peak").map_or(0, |&bytes| bytes as u64),
        ns_per_op,
        failed,
        checked: options.check.then(|| check(trace, &settings, &follower, &stats)),
        stats,
        driver,
        spilled,
        planned,
    })
}

fn failed<A>(run: &Run<A>) -> Failed {
    Failed { count: run.ooms, new: run.new_ooms, largest_bytes: run.largest_failed }
}

fn check(trace: &Trace, settings: &Settings, follower: &Follower<'_>, stats: &BTreeMap<String, i64>) -> Checked {
    let events = compare::compare(&trace.events, &follower.entries);
    let mut checked = Checked {
        decisions: events.checked,
        mismatches: events.mismatches,
        first: events.first.map(|first| difference::describe(trace, settings, &first)),
        ..Checked::default()
    };
    if let Some(expected) = trace.expected.as_ref().filter(|expected| !expected.end_is_unknown) {
        let segments = end::compare_segments(&expected.segments, &end::segments(&follower.run.allocator));
        checked.decisions += segments.checked;
        checked.mismatches += segments.mismatches;
        let file = trace.file.display();
        checked.first = checked.first.or_else(|| Some(format!("{file}: at the end, {}", segments.first?)));
        // Statistics count from the start of the program.
        if trace.start.is_none() {
            checked.stats = expected.stats.len() as u64;
            checked.stat_differences = end::compare_stats(expected, stats);
        }
        let stat = checked.stat_differences.first().map(|stat| {
            let replayed = stat.replayed.map_or_else(|| "none".to_owned(), |value| value.to_string());
            format!("{file}: at the end, {}\n  recorded: {}\n  replayed: {replayed}", stat.name, stat.recorded)
        });
        checked.first = checked.first.or(stat);
    }
    checked
}

fn count(events: &[Event], action: Action) -> u64 {
    events.iter().filter(|event| event.action == action).count() as u64
}

/// Returns the peak of the requested bytes of all live blocks.
fn peak_live_bytes(trace: &Trace) -> u64 {
    let mut live = trace.start.as_ref().map_or(0, Start::live_bytes);
    let mut peak = live;
    for event in &trace.events {
        match event.action {
            Action::Alloc => live += event.size,
            Action::FreeRequested => live -= event.size,
            _ => {}
        }
        peak = peak.max(live);
    }
    peak
}
