//! The answer about a program: the peaks of reserved and of live memory, and the setting with the
//! best saving. Every claim about a setting comes from a replay.

use super::{Part, Space};
use crate::memory::{SMALL_PAGE, Stuck, free_between};
use crate::program::{OnDevice, Program, Run, Settings, Subject};
use crate::recorded::RecordedPeaks;
use crate::replay;
use crate::trace::Trace;
use cachalot_core::simulated::{DriverCosts, SimulatedDevice};
use cachalot_core::{BlockState, Config, PoolId, PoolKind, SnapshotSegment};
use cachalot_policies::POLICIES;
use cachalot_snapshot::Snapshot;
use cachalot_tuner::judge::{Cost, DEVICE_BYTES, Unfinished, cost};
use cachalot_tuner::{Candidate, Realm};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;

/// Largest number of operations for an answer, over all candidates. The bound limits work, not
/// time, so the same files have the same answers.
const MOST_OPERATIONS: usize = 8_000_000;

/// Largest number of events in a record with an answer. Each operation is at least two events, and
/// runs at least three times.
pub const MOST_EVENTS: usize = MOST_OPERATIONS / 2;

/// A setting is advised if the peak falls below a part of the present peak.
const WORTH: f64 = 0.98;

/// A simpler setting is advised up to a multiple of the lowest peak. So is the present setting, in
/// the place of a setting for later versions of `PyTorch`.
const PLAIN: f64 = 1.03;

/// Why a long history has no replay.
const TOO_LONG: &str = "the history is too long";

/// The policy of cachalot for free memory in one piece: pages from anywhere behind contiguous
/// addresses.
const ONE_PIECE: &str = "policy:stitched";

/// A configuration with less memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Better {
    /// The configuration string.
    pub config: String,
    /// The first version of `PyTorch` with all keys of the configuration. `None` for all supported
    /// versions.
    pub needs_pytorch: Option<&'static str>,
    /// Peak of reserved memory in bytes.
    pub peak_reserved_bytes: u64,
    /// Number of requests that run out of memory.
    pub ooms: u64,
}

/// A change with which every failed request is served, found by replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Rescue {
    /// More memory.
    Limit {
        /// The least sufficient limit in bytes.
        limit_bytes: u64,
        /// The present limit in bytes.
        instead_of_bytes: u64,
        /// Whether the present limit is a setting, and not the size of the device.
        is_setting: bool,
    },
    /// A setting of `PyTorch`'s allocator.
    Setting(Better),
    /// Free memory in one piece: a policy of cachalot that needs no free block of the request's
    /// size.
    OnePiece {
        /// The configuration string.
        config: &'static str,
        /// Peak of reserved memory in bytes.
        peak_reserved_bytes: u64,
    },
}

/// The answer of a program about its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// Whether the figures come from a recording, and not from a replay.
    pub is_recorded: bool,
    /// The settings of the program.
    pub config: String,
    /// Peak of reserved memory in bytes.
    pub peak_reserved_bytes: u64,
    /// Peak of the requested bytes of all live blocks.
    pub peak_live_bytes: u64,
    /// Peak of reserved memory in a replay with the program's settings, which every saving is
    /// measured against. `None` without a replay.
    pub replayed_bytes: Option<u64>,
    /// Why there is no replay, in a clause. `None` with a replay, and if none was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_replayed: Option<String>,
    /// Bytes of the segments that were idle when the history began, and that no request in it used.
    /// A replay starts without them, because nobody knows which requests left them there.
    pub idle_before_bytes: u64,
    /// The memory when the most was in use.
    pub fullest: Stuck,
    /// The advised setting, if the gain is 2 % or more, or fewer requests fail.
    pub better: Option<Better>,
    /// Number of requests that ran out of memory.
    pub ooms: u64,
    /// Size of the largest failed request in bytes.
    pub largest_failed_bytes: u64,
    /// Number of events of a history that starts in the middle of the program: the peaks are those
    /// of these events. `None` for a whole program.
    pub cut_to_events: Option<u64>,
    /// The changes with which no request fails, in the order in which they were tried.
    pub rescues: Vec<Rescue>,
    /// The part of the history that the answer is about, in words. `None` for all of it.
    #[serde(skip)]
    pub range: Option<String>,
    /// Whether the limit is known under which requests failed.
    #[serde(skip)]
    pub tells_limit: bool,
}

impl Answer {
    /// Returns the answer as that of a part of a history, if `range` names one.
    #[must_use]
    pub fn in_range(self, range: Option<String>) -> Self {
        let cut_to_events = self.cut_to_events.filter(|_| range.is_none());
        Self { cut_to_events, range, ..self }
    }

    /// Returns the peak that the advised setting's peak is compared with: that of the replay with
    /// the program's settings, which starts and ends as the setting's own replay does.
    pub fn compared_bytes(&self) -> u64 {
        self.replayed_bytes.unwrap_or(self.peak_reserved_bytes)
    }

    /// Returns the bytes that the advised setting saves. 0 without one.
    pub fn saved_bytes(&self) -> u64 {
        self.better.as_ref().map_or(0, |better| self.compared_bytes().saturating_sub(better.peak_reserved_bytes))
    }
}

/// A program with the settings in question.
#[derive(Debug)]
pub struct Question<'a> {
    /// The program with its limit.
    pub part: &'a Part,
    /// The program's settings.
    pub baseline: &'a Config,
    /// The figures of the recording, if program, limit and settings are as recorded.
    pub recorded: Option<&'a RecordedPeaks>,
    /// Whether the program's `PyTorch` knows the settings of version 2.11. `None` if unknown.
    pub has_late_keys: Option<bool>,
    /// Whether the limit is a setting, and not the size of a device.
    pub limit_is_setting: bool,
}

/// Returns the memory of an allocator.
fn stuck_of(segments: &[SnapshotSegment], config: &Config) -> Stuck {
    let mut stuck = Stuck::default();
    for segment in segments {
        let page = match (segment.is_expandable, segment.kind) {
            (false, _) => 0,
            (true, PoolKind::Small) => SMALL_PAGE,
            (true, PoolKind::Large) => config.large_segment_size(),
        };
        let used = segment.blocks.iter().filter(|block| block.state != BlockState::Inactive);
        let used = used.map(|block| (block.address.0, block.size));
        let (start, bytes) = (segment.address.0, segment.total_size);
        let free = free_between(start, start.saturating_add(bytes), page, used);
        stuck.add(bytes, free, segment.pool != PoolId::DEFAULT);
    }
    stuck
}

/// Returns the memory at the end of a snapshot, of each device with some.
pub fn at_end(snapshot: &Snapshot) -> BTreeMap<i64, Stuck> {
    let mut devices = BTreeMap::<i64, Stuck>::new();
    for (device, bytes, free, is_private) in crate::inspect::segments_at_end(snapshot) {
        devices.entry(device).or_default().add(bytes, free, is_private);
    }
    devices
}

/// Returns the answer of a record about its own settings. Without a replay, if the history is too
/// long or cannot be replayed, the answer has no advice, and says why.
pub fn answer_of(trace: &Trace) -> Answer {
    let recorded = RecordedPeaks::of(trace);
    let advised = || {
        if trace.events.len() > MOST_EVENTS {
            return Err(TOO_LONG.to_owned());
        }
        let refused = |error: replay::ReplayError| {
            let (replay::ReplayError::Input(error) | replay::ReplayError::Refused(error)) = error;
            format!("the history cannot be replayed ({})", error.without_file())
        };
        let baseline = replay::recorded_config(trace).map_err(refused)?;
        let program = replay::program(trace).map_err(refused)?;
        let limit = recorded.limit_bytes.map(|limit| limit.saturating_sub(recorded.kept_before_bytes));
        let part = Part { name: trace.name.clone(), program, limit, ..Part::default() };
        let question = Question {
            part: &part,
            baseline: &baseline,
            recorded: Some(&recorded),
            has_late_keys: trace.has_late_keys,
            limit_is_setting: trace.limit_bytes().is_some() || recorded.was_refused_by_limit,
        };
        answer(&question, &DriverCosts::h200())
    };
    let answer = advised()
        .unwrap_or_else(|why| Answer { not_replayed: Some(why), ..of_recording(&recorded, trace.config().to_owned()) });
    Answer { cut_to_events: trace.cut_to(), ..answer }
}

/// Returns the answer without advice.
pub fn of_recording(recorded: &RecordedPeaks, config: String) -> Answer {
    Answer {
        is_recorded: true,
        config,
        peak_reserved_bytes: recorded.peak_reserved_bytes,
        peak_live_bytes: recorded.peak_live_bytes,
        replayed_bytes: None,
        not_replayed: None,
        idle_before_bytes: recorded.idle_before_bytes,
        fullest: recorded.fullest,
        better: None,
        ooms: recorded.ooms,
        largest_failed_bytes: recorded.largest_failed_bytes,
        cut_to_events: None,
        rescues: Vec::new(),
        range: None,
        tells_limit: recorded.tells_limit,
    }
}

/// Runs the program with its settings and with the first candidates of a search, and advises a
/// setting.
///
/// A program of more than 8 million operations over all candidates is only run with
/// `expandable_segments:True`, and a still longer program not at all.
///
/// # Errors
/// Why not: the program is too long, or cannot be run with its settings.
pub fn answer(question: &Question<'_>, costs: &DriverCosts) -> Result<Answer, String> {
    let Question { part, baseline, .. } = *question;
    let length = part.program.operations.len();
    let space = Space {
        realm: Realm::Torch,
        policies: POLICIES,
        has_limit: part.limit.is_some(),
        has_virtual_memory: true,
        has_late_keys: question.has_late_keys != Some(false),
    };
    let mut candidates = space.first();
    // A setting that the program has is no advice.
    candidates.retain(|candidate| candidate.config(POLICIES).is_some_and(|config| config != *baseline));
    if (candidates.len() + 2) * length > MOST_OPERATIONS {
        candidates.retain(|candidate| candidate.text() == super::EXPANDABLE);
    }
    if (candidates.len() + 2) * length > MOST_OPERATIONS {
        return Err(TOO_LONG.to_owned());
    }
    let cost_of = |config: &Config, limit: Option<u64>| {
        let part = Part { limit, ..part.clone() };
        cost::<OnDevice>(&part, config, costs, &|| false)
    };
    let run = |config: &Config, limit: Option<u64>| cost_of(config, limit).ok();
    let present = cost_of(baseline, part.limit).map_err(|why| match why {
        Unfinished::Stopped => TOO_LONG.to_owned(),
        Unfinished::Refused(at, error) => format!("call {at} of the history cannot be replayed ({error})"),
    })?;
    let mut found = match question.recorded {
        Some(recorded) => of_recording(recorded, String::new()),
        None => of_replay(part, baseline, &present).ok_or("the history cannot be replayed again")?,
    };
    found.config = baseline.to_string();
    found.replayed_bytes = Some(present.reserved_bytes);
    let measured = |candidate: &Candidate| Some((candidate.clone(), run(&candidate.config(POLICIES)?, part.limit)?));
    let measured: Vec<(Candidate, Cost)> = candidates.par_iter().filter_map(measured).collect();
    found.better = advised(&measured, &found, present.ooms);
    if found.ooms > 0 && found.tells_limit {
        found.rescues = rescues(question, &found, run);
    }
    Ok(found)
}

/// Returns the setting with the fewest failed requests and then the least memory. A simpler
/// setting, or one for every version of `PyTorch`, is preferred if its peak is less than 3 %
/// higher.
fn advised(measured: &[(Candidate, Cost)], found: &Answer, present_ooms: u64) -> Option<Better> {
    // The gain holds beside the recording, and beside its replay, which may hold more.
    let peak = found.peak_reserved_bytes.min(found.compared_bytes()) as f64;
    let ooms = found.ooms.min(present_ooms);
    let gains = |(candidate, cost): &&(Candidate, Cost)| {
        let worth = if candidate.needs_pytorch().is_some() { peak / PLAIN } else { peak * WORTH };
        cost.ooms < ooms || (cost.ooms == ooms && (cost.reserved_bytes as f64) < worth)
    };
    let gaining: Vec<&(Candidate, Cost)> = measured.iter().filter(gains).collect();
    let least = gaining.iter().map(|(_, cost)| (cost.ooms, cost.reserved_bytes)).min()?;
    let near = gaining
        .into_iter()
        .filter(|(_, cost)| cost.ooms == least.0 && cost.reserved_bytes as f64 <= least.1 as f64 * PLAIN);
    let order = |(candidate, cost): &&(Candidate, Cost)| {
        (candidate.needs_pytorch().is_some(), candidate.count(), cost.reserved_bytes, candidate.text())
    };
    let (candidate, cost) = near.min_by_key(order)?;
    Some(Better {
        config: candidate.text(),
        needs_pytorch: candidate.needs_pytorch(),
        peak_reserved_bytes: cost.reserved_bytes,
        ooms: cost.ooms,
    })
}

/// Tries to serve every request: a higher limit, the advised setting, memory in one piece.
fn rescues(question: &Question<'_>, found: &Answer, run: impl Fn(&Config, Option<u64>) -> Option<Cost>) -> Vec<Rescue> {
    let Question { part, baseline, limit_is_setting: is_setting, .. } = *question;
    let mut rescues = Vec::new();
    let kept = question.recorded.map_or(0, |recorded| recorded.kept_before_bytes);
    if let Some(limit) = part.limit
        && let Some(free) = run(baseline, None).filter(|cost| cost.ooms == 0)
        && run(baseline, Some(free.reserved_bytes)).is_some_and(|cost| cost.ooms == 0)
        && free.reserved_bytes > limit
    {
        let [limit_bytes, instead_of_bytes] = [free.reserved_bytes, limit].map(|bytes| bytes + kept);
        rescues.push(Rescue::Limit { limit_bytes, instead_of_bytes, is_setting });
    }
    rescues.extend(found.better.clone().filter(|better| better.ooms == 0).map(Rescue::Setting));
    let config = cachalot_policies::parse(ONE_PIECE).ok().filter(|config| config != baseline);
    let in_one_piece = config.and_then(|config| run(&config, part.limit)).filter(|cost| cost.ooms == 0);
    rescues.extend(
        in_one_piece.map(|cost| Rescue::OnePiece { config: ONE_PIECE, peak_reserved_bytes: cost.reserved_bytes }),
    );
    rescues
}

/// Returns the figures of a replay.
fn of_replay(part: &Part, config: &Config, present: &Cost) -> Option<Answer> {
    let run = || {
        let device = SimulatedDevice::new(DEVICE_BYTES.max(part.limit.unwrap_or(0)));
        device.set_patience(0);
        let settings = Settings { config: config.clone(), limit: part.limit };
        OnDevice::create(device, &settings).map(Run::new).ok()
    };
    let Program { operations, .. } = &part.program;
    let (mut whole, mut most, mut end) = (run()?, 0, 0);
    for (at, &operation) in operations.iter().enumerate() {
        whole.perform(operation).ok()?;
        if operation.is_request() {
            let stats = whole.allocator.stats(crate::program::DEVICE).map(|stats| stats.totals()).ok()?;
            let in_use = stats.active_bytes().current.unsigned_abs();
            if in_use > most {
                (most, end) = (in_use, at + 1);
            }
        }
    }
    let mut again = run()?;
    again.perform_all(&operations[..end]).ok()?;
    let recorded = RecordedPeaks {
        peak_reserved_bytes: present.reserved_bytes,
        peak_live_bytes: part.program.live_bytes().max().unwrap_or(0),
        ooms: whole.ooms,
        largest_failed_bytes: whole.largest_failed,
        fullest: stuck_of(&again.allocator.snapshot(), config),
        limit_bytes: part.limit,
        tells_limit: part.limit.is_some(),
        ..RecordedPeaks::default()
    };
    Some(Answer { is_recorded: false, ..of_recording(&recorded, String::new()) })
}

#[cfg(test)]
mod tests {
    use super::{Stuck, at_end};
    use cachalot_snapshot::{Block, Segment, Snapshot};

    #[test]
    fn parked_memory_is_not_reserved() {
        let block = |size: u64, state: &str| Block { size, state: state.to_owned().into(), ..Block::default() };
        let segment = |parked: Option<u64>, blocks: Vec<Block>| Segment {
            total_size: blocks.iter().map(|block| block.size).sum(),
            parked_size: parked,
            blocks,
            ..Segment::default()
        };
        let segments = vec![
            segment(None, vec![block(6, "active_allocated"), block(4, "inactive")]),
            segment(Some(10), vec![block(7, "active_allocated"), block(3, "inactive")]),
            segment(Some(8), vec![block(10, "active_allocated")]),
        ];
        let found = at_end(&Snapshot { segments, ..Snapshot::default() });
        let expected =
            Stuck { reserved_bytes: 12, in_use_bytes: 8, hole_bytes: 4, hole_segments: 1, ..Stuck::default() };
        assert_eq!(found, [(0, expected)].into());
    }
}
