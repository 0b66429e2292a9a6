//! Replaying recorded programs: their decisions are repeated and compared, and their calls are timed.

mod attribute;
mod compare;
mod difference;
mod end;
mod follow;
mod ranges;
mod snapshot;
mod start;
mod trials;

pub use end::StatDifference;
pub use snapshot::{End, end};

use crate::program::{self, DriverTime, LeftOut, OnDevice, Program, Run, Settings, Subject};
use crate::trace::{Action, BadInput, Event, Start, Trace};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Config, PlannedReport};
use follow::Follower;
use std::collections::BTreeMap;
use std::fmt;

/// The allocator that records are followed with.
type Simulated = OnDevice;

/// A device for runs whose addresses do not matter, in bytes (64 TiB): never full before a limit says so.
const ROOMY_DEVICE: u64 = 1 << 46;

/// How to replay.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The configuration in the place of the record's own.
    pub config: Option<Config>,
    /// The memory limit in bytes in the place of the record's own.
    pub limit: Option<u64>,
    /// How the program is run, where it is not followed in the record.
    pub variation: Variation,
    /// Hold every decision against the record.
    pub check: bool,
    /// How many timed runs there are; the median is reported.
    pub repeat: u32,
}

/// How the program of a record is run on an allocator of its own. A record that is followed address by address has no
/// variation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Variation {
    /// How often the program runs on the same allocator, instead of once.
    pub passes: Option<u32>,
    /// The recorded calls that are left out.
    pub left_out: LeftOut,
    /// The memory limit as a multiple of the program's peak live bytes, in the place of any other.
    pub limit_factor: Option<f64>,
}

/// What a replay came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The policy it was placed by.
    pub policy: &'static str,
    /// Every statistic at the end.
    pub stats: BTreeMap<String, i64>,
    /// How many requests there were.
    pub allocations: u64,
    /// Bytes that the program asked for and held, at the highest.
    pub peak_live_bytes: u64,
    /// Bytes held from the device, at the highest.
    pub peak_reserved_bytes: u64,
    /// The median time of a call in nanoseconds, when everything has been run once before.
    pub ns_per_op: f64,
    /// The requests that ran out of memory.
    pub failed: Failed,
    /// What was held against the record; `None` if it was not.
    pub checked: Option<Checked>,
    /// The driver's time, if the program was run in passes.
    pub driver: Option<DriverTime>,
    /// How the planned policy has done; the bytes and the time are those of the second half then.
    pub planned: Option<PlannedReport>,
}

/// The requests of a replay that ran out of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failed {
    /// How many there were.
    pub count: u64,
    /// How many of them the recorded program was served.
    pub new: u64,
    /// The bytes of the largest of them.
    pub largest_bytes: u64,
}

/// A replay held against its record.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// Events, final segments and final blocks that were compared.
    pub decisions: u64,
    /// How many of them differ.
    pub mismatches: u64,
    /// Final statistics that were compared.
    pub stats: u64,
    /// Those that differ.
    pub stat_differences: Vec<StatDifference>,
    /// The first difference, in words: both decisions and the free blocks that were considered.
    pub first: Option<String>,
}

/// Why there is no outcome.
#[derive(Debug)]
pub enum ReplayError {
    /// The record, or its configuration, cannot be used.
    Input(BadInput),
    /// The allocator refused a call for another reason than lack of memory: where in the record, and why.
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
    /// Whether the recorded addresses are followed: without settings or a variation of its own, and whenever a record is checked.
    pub fn follows(&self) -> bool {
        let own = self.config.is_none() && self.limit.is_none() && self.variation == Variation::default();
        own || self.check
    }
}

impl Outcome {
    /// A statistic; 0 if there is none of this name.
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

/// The settings that the program of a record ran with.
fn recorded_settings(trace: &Trace) -> Result<Settings, ReplayError> {
    let config = Config::parse(trace.config()).map_err(|error| {
        let what = format!("the recorded configuration `{}` cannot be used: {error}", trace.config());
        ReplayError::Input(BadInput::whole(&trace.file, what))
    })?;
    Ok(Settings { config, limit: trace.limit_bytes() })
}

/// The settings that a replay runs with.
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

/// The allocator refused what event number `at` asks for.
fn refused(trace: &Trace, at: usize, error: &cachalot_core::Error) -> ReplayError {
    let place = trace.events.get(at).or(trace.events.last()).map(|event| event.place);
    let what = format!("the allocator refused the call: {error}");
    ReplayError::Refused(BadInput { file: trace.file.clone(), place, what })
}

/// The allocator could not be put into the state in which a record begins.
fn beginning_refused(trace: &Trace, error: &cachalot_core::Error) -> ReplayError {
    let what = format!("the state before the first event cannot be replayed: {error}");
    ReplayError::Input(BadInput::whole(&trace.file, what))
}

/// The calls of the program that a record is of.
///
/// # Errors
/// What cannot be used, or where the allocator refused a call.
pub fn program(trace: &Trace) -> Result<Program, ReplayError> {
    let settings = recorded_settings(trace)?;
    Ok(follow(trace, &settings)?.program)
}

/// Replays a record.
///
/// Other settings, and other calls than those recorded, lead to other segments, so the device invents their addresses.
///
/// # Errors
/// What cannot be used, or where the allocator refused a call.
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
    let fresh = || program::allocator(SimulatedDevice::new(ROOMY_DEVICE), &settings).map(Run::new).map_err(end);

    let (stats, peak_live_bytes, driver, planned, failed) = if follows {
        let failed = failed(&follower.run);
        (end::stats(&follower.run.allocator).map_err(end)?, peak_live_bytes(trace), None, None, failed)
    } else {
        let mut run = fresh()?;
        let passes = options.variation.passes.unwrap_or(1).max(1);
        let made = run.perform_passes(&program, passes, |_, _| ()).map_err(|(_, error)| end(error))?;
        let driver = options.variation.passes.map(|_| made.driver);
        let stats = end::stats(&run.allocator).map_err(end)?;
        (stats, made.peak_live_bytes, driver, run.allocator.planned(), failed(&run))
    };
    let mut timed = fresh()?;
    timed.perform_all(&program.operations).map_err(end)?;
    let ns_per_op = program::nanoseconds_per_call(&mut timed, &program, options.repeat).map_err(end)?;
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
    if let Some(expected) = &trace.expected {
        let segments = end::compare_segments(&expected.segments, &end::segments(&follower.run.allocator));
        checked.decisions += segments.checked;
        checked.mismatches += segments.mismatches;
        let file = trace.file.display();
        checked.first = checked.first.or_else(|| Some(format!("{file}: at the end, {}", segments.first?)));
        // Statistics count from the beginning of the program.
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

/// Bytes that the program asked for and had not given back, at the highest.
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
